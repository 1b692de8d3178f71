"""How products are split: parts cover the matrices, and the model's bytes are those that move."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.linalg.matmul import plan
from meshrun.jobs.linalg.matmul.job import matmul
from meshrun.jobs.linalg.matmul.plan import MatmulLayout, MatmulProblem, choose, cut, panel_cuts
from meshrun.jobs.linalg.matmul.summa import Schedule
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

AMPLE = 1 << 60


def square(n: int, itemsize: int = 4) -> MatmulProblem:
    return MatmulProblem(n, n, n, itemsize, itemsize, itemsize)


@pytest.mark.parametrize("length", [0, 1, 5, 16, 97])
@pytest.mark.parametrize("unit", [1, 4])
def test_parts_cover_a_length_at_multiples_of_a_unit(length: int, unit: int) -> None:
    for parts in (1, 2, 3, 7):
        ends = [cut(length, parts, index, unit) for index in range(parts)]
        assert ends[0][0] == 0
        assert ends[-1][1] == length
        assert all(one[1] == other[0] for one, other in itertools.pairwise(ends))
        assert all(stop % unit == 0 or stop == length for _, stop in ends)
        assert max(stop - start for start, stop in ends) == plan.longest(length, parts, unit)


@pytest.mark.parametrize("grid", [(1, 1), (4, 1), (1, 3), (2, 2), (2, 3), (4, 6)])
@pytest.mark.parametrize("length", [0, 5, 50])
def test_each_step_of_summa_is_a_permutation(grid: tuple[int, int], length: int) -> None:
    """Each rank multiplies each panel once; in a step, no rank sends two panels of one factor."""
    panels = 2 * np.lcm(*grid)
    schedule, ranks = Schedule(grid, int(panels)), range(grid[0] * grid[1])
    cuts = panel_cuts(length, grid, int(panels))
    assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
    assert cuts[-1][1] == length
    for rank in ranks:
        assert sorted(schedule.panel(rank, step) for step in range(panels)) == [*range(panels)]
    for step in range(panels):
        wanted = [schedule.panel(rank, step) for rank in ranks]
        for holder in (schedule.holder_of_a, schedule.holder_of_b):
            assert sorted(holder(rank, panel) for rank, panel in zip(ranks, wanted, strict=True)) == [*ranks]


@pytest.mark.parametrize(
    ("problem", "ranks", "expected"),
    [
        (square(4096), 2, ("ring", (2, 1))),  # both move as much
        (square(4096), 16, ("summa", (4, 4))),
        (square(4096), 13, ("ring", (13, 1))),
        (MatmulProblem(100_000, 100, 100, 4, 4, 4), 16, ("ring", (16, 1))),  # B is small
        (MatmulProblem(100, 100, 100_000, 4, 4, 4), 16, ("summa", (1, 16))),  # A is small
    ],
)
def test_the_algorithm_that_moves_less_is_chosen(problem: MatmulProblem, ranks: int, expected: Any) -> None:
    layout, other = choose(problem, ranks, AMPLE, "auto")
    assert (layout.algorithm, layout.grid) == expected
    assert other is not None
    assert other.algorithm != layout.algorithm
    assert layout.received <= other.received


def test_blocks_that_do_not_fit_pass_through_the_ring() -> None:
    problem = square(1 << 15)
    layout, other = choose(problem, 4, 1 << 30, "auto")
    assert (layout.algorithm, other) == ("ring", None)
    assert layout.turns > 1
    assert layout.memory <= 1 << 30


def test_the_ranks_that_would_do_are_enough() -> None:
    problem = square(1 << 15)
    with pytest.raises(
        UserError, match=r"1 rank by --algorithm summa.*expected at most 1\.1 GB.*Try: --algorithm ring"
    ):
        choose(problem, 1, 1 << 30, "summa")
    enough = plan.enough_ranks(problem, 1 << 30, "summa")
    assert enough is not None
    assert choose(problem, enough, 1 << 30, "summa")[0].memory <= 1 << 30
    assert next(plan.summas(problem, enough // 2, 1 << 30, (1, 1)), None) is None
    with pytest.raises(UserError, match=r"memory of 2 ranks: .*Try: \d+ ranks"):
        choose(problem, 2, 400_000, "auto")


class Counted:
    """Counts the bytes that a rank receives."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.received, self.messages = inner, 0, 0

    def exchange(self, sends: Any, receives: Any) -> Any:
        self.received += sum(array.nbytes for _, array in receives)
        self.messages += len(receives)
        return self.inner.exchange(sends, receives)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("algorithm", ["ring", "summa"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 6])
@pytest.mark.parametrize("shape", [(48, 36, 60), (23, 8, 19)])  # the second has nothing that divides
def test_the_models_bytes_are_those_that_move(
    tmp_path: Path, shape: tuple[int, int, int], algorithm: str, ranks: int
) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape[:2]))
    np.save(tmp_path / "b.npy", np.ones(shape[1:]))

    def rank(control: Control) -> tuple[int, int, str]:
        world = open_world("cpu", control=control)
        counted = Counted(world.arrays)
        world.arrays = counted
        files = [tmp_path / "a.npy", tmp_path / "b.npy"]
        record = run(matmul, files, [tmp_path / "c.npy"], {"algorithm": algorithm}, Options(), world=world)
        return counted.received, counted.messages, record["result"]["received"]

    moved = run_ranks(ranks, rank)
    layout = choose(MatmulProblem(*shape, 8, 8, 8), ranks, AMPLE, algorithm)[0]
    assert max(received for received, _, _ in moved) == layout.received
    assert {messages for _, messages, _ in moved} == {layout.messages}
    assert moved[0][2].startswith(plan.bytes_text(layout.received))


def test_layouts_say_what_they_are() -> None:
    assert (
        MatmulLayout("ring", (2, 1), 3, 4, 0, (1, 1), 0, 0).describe()
        == "ring of 2, B in 8 pieces, rows of A in 3 turns"
    )
    assert MatmulLayout("summa", (2, 3), 1, 1, 6, (1, 1), 0, 0).describe() == "summa on 2x3 ranks, 6 panels"
