"""Functions as people write them first: each is right on any number of ranks, or refused with its line."""

from __future__ import annotations

import inspect
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.maps.split_probe import refusal
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.report.summary import render
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

CALLS = 0
FAR = 150
KEPT: list[int] = []
SEEN: dict[str, int] = {"calls": 0}
TABLE = np.arange(256, dtype=np.float32) ** 2
RNG = np.random.default_rng(3)


# Edges written by index. The line that ends in "# here" is to be named.


def first_cell(u: Any) -> Any:
    new = u[1:-1] + 0.2 * (u[2:] - 2 * u[1:-1] + u[:-2])
    new[0] = 1  # here
    return new


def last_row(u: Any) -> Any:
    new = u[1:-1, 1:-1] + 0.1 * u[2:, 1:-1]
    new[-1] = 0  # here
    return new


def inner_sum(u: Any) -> Any:
    new = u.copy()
    new[1:-1] += 0.5 * (u[2:] - u[:-2])  # here
    return new


def first_rows(u: Any) -> Any:
    new = u * 2
    new[:4] = 0  # here
    return new


def filled_edge(u: Any, *, out: Any) -> None:
    out[...] = u[1:-1]
    out[0] = 1  # here


def input_cell(u: Any) -> Any:
    u[1] = 1  # here
    return u[1:-1] + u[2:]


def flat_cell(u: Any) -> Any:
    new = u + 1
    new.flat[0] = 7  # here
    return new


def put_cells(u: Any) -> Any:
    new = u + 1
    np.put(new, [0, 2], 5)  # here
    return new


def far_cell(u: Any) -> Any:
    new = u + 1
    new[100] = 0  # here
    return new


def cell_of_a_global(u: Any) -> Any:
    new = u + 1
    new[FAR] = 0  # here
    return new


def cell_of_a_variable(u: Any) -> Any:
    row = 90
    new = u + 1
    new[row, :] = 0  # here
    return new


def cell_of_a_parameter(u: Any, *, row: int = 70) -> Any:
    new = u + 1
    new[row] = 0  # here
    return new


def cell_that_is_computed(u: Any) -> Any:
    new = u + 1
    new[FAR * 2 + 3] = 0  # here
    return new


def middle_cell(u: Any) -> Any:
    new = u + 1
    new[len(u) // 2] = 0  # here
    return new


def one_face(u: Any) -> Any:
    new = u[1:-1, 1:-1, 1:-1] * 0.5
    new[:, -1] = new[:, -2]  # here
    return new


def copied_row(u: Any) -> Any:
    new = u[1:-1, 1:-1] + u[:-2, 1:-1]
    new[0, :] = new[1, :]  # here
    return new


def helper(new: Any) -> None:
    new[0] = 3  # here


def by_a_helper(u: Any) -> Any:
    new = u * 2
    helper(new)
    return new


# Loops, counters, random numbers


def row_by_row(u: Any) -> Any:
    new = u.copy()
    for i in range(1, len(new)):  # here
        new[i] = 0.5 * new[i - 1] + u[i]
    return new


def counter(u: Any) -> Any:
    global CALLS  # noqa: PLW0603
    CALLS += 1  # here
    return u + CALLS


def kept_in_a_list(u: Any) -> Any:
    KEPT.append(1)  # here
    return u * len(KEPT)


def kept_in_a_dictionary(u: Any) -> Any:
    SEEN["calls"] += 1  # here
    return u + SEEN["calls"]


def random_scalar(u: Any) -> Any:
    return u + random.random()  # here


def noise(u: Any) -> Any:
    return u + RNG.normal(size=u.shape)  # here


def seeded_noise(u: Any) -> Any:
    return u + np.random.default_rng(0).random(u.shape)  # here


# Reads of the whole block


def by_rank(u: Any, *, here: Any) -> Any:
    return u + here.rank  # here


def median(u: Any) -> Any:
    return u - np.median(u)  # here


def normalized(u: Any) -> Any:
    return u / u.sum()  # here


def above(u: Any) -> Any:
    if u.max() > 1:  # here
        return u - 1
    return u * 1


def far_above(u: Any) -> Any:
    if u.max() > 5000:  # here
        return u - 1
    return u * 1


def roots(u: Any) -> Any:
    return u - np.sqrt(u).sum()  # here


def running(u: Any) -> Any:
    return np.cumsum(u, axis=0)  # here


def ordered(u: Any) -> Any:
    return np.sort(u, axis=0)  # here


def mirrored(u: Any) -> Any:
    return u[::-1] + 0  # here


def rolled(u: Any) -> Any:
    return np.roll(u, 1, axis=0)  # here


def ramp(u: Any) -> Any:
    return u + np.arange(u.shape[0])[:, None]  # here


def profile(u: Any) -> Any:
    return u * np.linspace(0, 1, len(u))  # here


def from_the_first(u: Any) -> Any:
    return u - u[0]  # here


def slope(u: Any) -> Any:
    return np.gradient(u, axis=0)  # here


def smooth(u: Any) -> Any:
    return ndimage.gaussian_filter(u, 1)  # here


def spectrum(u: Any) -> Any:
    return np.abs(np.fft.fft(u, axis=0))  # here


def padded(u: Any) -> Any:
    wide = np.pad(u, ((1, 1), (0, 0)))  # here
    return wide[2:] + wide[:-2]


# Lengths and parity


def long_only(u: Any) -> Any:
    if u.shape[0] > 100:  # here
        return u * 2
    return u * 1


def red_black(u: Any) -> Any:
    new = u[1:-1] * 1
    new[::2] = 0.5 * (u[:-2] + u[2:])[::2]  # here
    return new


def mean_of_length(u: Any) -> Any:
    return u / u.shape[0]  # here


# Right ones


def sides(u: Any) -> Any:
    return u[1:-1, 1:-1] + 0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])


def placed_edge(u: Any, *, here: Any) -> Any:
    new = u[1:-1] + 0.2 * (u[2:] - u[:-2])
    at = here.offset[0] + np.arange(here.block[0])
    return np.where(at == 0, 1, new)


def table(u: Any) -> Any:
    return TABLE[u]


def in_place(u: Any, *, out: Any) -> None:
    u *= 2
    out[...] = u


def own_noise(u: Any, *, here: Any) -> Any:
    return u + here.uniform(4)


def gray(u: Any) -> Any:
    return u.mean(axis=-1)


def red_black_placed(u: Any, *, here: Any) -> Any:
    red = (here.offset[0] + np.arange(here.block[0])) % 2 == 0
    return np.where(red, 0.5 * (u[:-2] + u[2:]), u[1:-1])


def smooth_in_a_halo(u: Any) -> Any:
    return ndimage.gaussian_filter(u, 1)[4:-4, 4:-4]


def logarithm(u: Any) -> Any:
    return np.log(u) + np.sqrt(u)


def inverted(u: Any) -> Any:
    return np.linalg.inv(u.reshape(-1, 2, 2)).reshape(u.shape)


LINE, PLATE, CUBE = (40,), (40, 30), (20, 12, 10)
# Those whose hint is a line to write in place of the one that is named.
TYPED = (first_cell, last_row, first_rows, filled_edge, input_cell, far_cell)
WRONG: list[tuple[Any, tuple[int, ...], dict[str, Any]]] = [
    (first_cell, LINE, {"halo": 1}),
    (last_row, PLATE, {"halo": 1}),
    (inner_sum, PLATE, {"halo": 0}),
    (first_rows, PLATE, {}),
    (filled_edge, LINE, {"halo": 1}),
    (input_cell, LINE, {"halo": 1}),
    (flat_cell, PLATE, {}),
    (put_cells, LINE, {}),
    (far_cell, (400,), {}),
    (cell_of_a_global, (400, 3), {}),
    (cell_of_a_variable, (1000, 1000), {}),
    (cell_of_a_parameter, (10**6,), {}),
    (cell_that_is_computed, (500, 400), {}),
    (middle_cell, LINE, {}),
    (one_face, CUBE, {"halo": 1}),
    (copied_row, (31, 8), {"halo": 1}),
    (by_a_helper, LINE, {}),
    (row_by_row, PLATE, {}),
    (counter, LINE, {}),
    (kept_in_a_list, PLATE, {}),
    (kept_in_a_dictionary, PLATE, {}),
    (random_scalar, PLATE, {}),
    (noise, LINE, {}),
    (seeded_noise, LINE, {}),
    (by_rank, PLATE, {}),
    (median, PLATE, {}),
    (normalized, CUBE, {}),
    (above, LINE, {}),
    (far_above, LINE, {}),
    (roots, LINE, {}),
    (running, PLATE, {}),
    (ordered, PLATE, {}),
    (mirrored, LINE, {}),
    (rolled, PLATE, {}),
    (ramp, PLATE, {}),
    (profile, LINE, {}),
    (from_the_first, PLATE, {}),
    (slope, PLATE, {}),
    (smooth, PLATE, {}),
    (spectrum, PLATE, {}),
    (padded, PLATE, {}),
    (long_only, (400,), {}),
    (red_black, LINE, {"halo": 1}),
    (mean_of_length, LINE, {}),
]
RIGHT: list[tuple[Any, tuple[int, ...], str, dict[str, Any]]] = [
    (sides, PLATE, "f4", {"halo": 1}),
    (placed_edge, LINE, "f8", {"halo": 1}),
    (table, PLATE, "u1", {}),
    (in_place, PLATE, "f4", {}),
    (own_noise, CUBE, "f8", {}),
    (gray, (40, 30, 3), "f4", {"halo": (0, 0)}),
    (red_black_placed, LINE, "f8", {"halo": 1}),
    (smooth_in_a_halo, PLATE, "f8", {"halo": 4}),
    (logarithm, PLATE, "f4", {}),
    (inverted, (40, 4), "f8", {"halo": (0, 0)}),
]


def task_of(function: Any, shape: tuple[int, ...], dtype: str = "f8", **declared: Any) -> Task:
    job = meshrun.map_blocks(**{"halo": 0, "boundary": "nearest", **declared})(function)
    return plan_task(job, job.complete({}), [(shape, np.dtype(dtype))], 1)


def line_of(function: Any) -> int:
    """The line that ends in "# here", in the function or in the helper that it calls."""
    lines, first = inspect.getsourcelines(helper if function is by_a_helper else function)
    return first + next(n for n, line in enumerate(lines) if line.rstrip().endswith("# here"))


@pytest.mark.parametrize(("function", "shape", "declared"), WRONG, ids=[one[0].__name__ for one in WRONG])
def test_a_result_that_depends_on_the_cut_is_refused_with_its_line(
    function: Any, shape: tuple[int, ...], declared: dict[str, Any]
) -> None:
    error = refusal(task_of(function, shape, **declared), CpuBackend())
    assert isinstance(error, UserError)
    assert error.everywhere
    assert f"{Path(__file__).name}, line {line_of(function)}: " in str(error)
    assert str(error.hint).endswith("or split_dependent=True in the decorator, which accepts it")


@pytest.mark.parametrize("function", TYPED)
def test_what_the_hint_says_can_be_typed_and_is_right(function: Any) -> None:
    shape, declared = next((shape, declared) for one, shape, declared in WRONG if one is function)
    hint = str(refusal(task_of(function, shape, **declared), CpuBackend()).hint)
    head, placed, instead = re.findall(r"`([^`]*)`", hint)
    lines = inspect.getsource(function).splitlines()
    wrong = next(n for n, line in enumerate(lines) if line.endswith("# here"))
    out = ", out" if "out" in inspect.signature(function).parameters else ""
    lines[0] = f"{head.removesuffix(')')}{out}):"
    lines[wrong : wrong + 1] = [f"    {placed}", f"    {instead}"]
    names: dict[str, Any] = {"np": np, "Any": Any}
    exec("\n".join(lines), names)
    mended = task_of(names[function.__name__], shape, **declared)
    assert refusal(mended, CpuBackend()) is None
    cells = np.random.default_rng(5).random(shape)
    right, wrongly = (
        np.asarray(one.job(cells.copy())) for one in (mended, accepted(function, shape, declared))
    )
    assert np.array_equal(right, wrongly)


def accepted(function: Any, shape: tuple[int, ...], declared: dict[str, Any]) -> Task:
    return task_of(function, shape, **declared, split_dependent=True)


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "declared"), RIGHT, ids=[one[0].__name__ for one in RIGHT]
)
def test_a_function_that_is_not_refused_gives_the_same_bits_on_any_number_of_ranks(
    function: Any, shape: tuple[int, ...], dtype: str, declared: dict[str, Any], tmp_path: Path
) -> None:
    cells = np.random.default_rng(1).random(shape) * 200
    np.save(tmp_path / "in.npy", cells.astype(dtype))
    job = task_of(function, shape, dtype, **declared).job

    def results(ranks: int) -> bytes:
        target = tmp_path / f"{ranks}.npy"

        def rank(control: Any) -> None:
            run(job, tmp_path / "in.npy", target, world=open_world("cpu", control=control))

        run_ranks(ranks, rank)
        return target.read_bytes()

    assert results(1) == results(2) == results(3)


def test_a_run_is_refused_on_one_rank_and_on_two_and_says_so_if_it_is_accepted(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros(31))
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"

    def record(ranks: int, split_dependent: bool, **options: Any) -> dict[str, Any]:
        job = task_of(first_cell, LINE, halo=1, split_dependent=split_dependent).job

        def rank(control: Any) -> dict[str, Any]:
            world = open_world("cpu", control=control)
            return run(job, source, target, options=Options(**options), world=world)

        return run_ranks(ranks, rank)[0]

    for ranks in (1, 2):
        with pytest.raises(UserError, match=r"depends on how the array is cut along axis 0"):
            record(ranks, False)
        assert not target.exists()
    for ranks in (1, 2):
        found = record(ranks, True)
        assert found["split_dependent"] is True
        assert "  split-dependent: " in render(found)
