"""Functions with coarse grids: levels with partitions of their own, compared with NumPy to the bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_runs import stepped

import meshrun
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.trace import graph
from meshrun.runner.compiler.trace.graph import Graph
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.between.levels import LevelGrid, Progression
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.task import plan_task
from meshrun.runner.programs import chains, execute, replicas
from meshrun.runner.programs.cells import LevelCells
from meshrun.runner.programs.level_kernel import level_partition
from meshrun.runner.programs.stages import StagedProgram
from meshrun.runner.run.kernel_report import kernel_report
from tests.facts.program_runs import plain, planned, run_program

GRIDS = [(1, 1), (2, 1), (3, 1), (5, 1), (2, 2)]


def field(*shape: int, dtype: Any = "f4", seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape).astype(dtype)


def check(
    function: Any, *arrays: Any, names: Any = ("out",), grids: Any = GRIDS, kind: str = "cpu"
) -> StagedProgram:
    """Compare the results with NumPy's, to the bit. kind: of the device that stages are planned for.

    On every second grid, each rank has all cells of the levels.
    """
    wanted = plain(function, arrays)
    program = planned(function, arrays, names, kind)
    for number, grid in enumerate(grids):
        for one, want in zip(levels_run(program, arrays, grid, split=number % 2 > 0), wanted, strict=True):
            assert (one.dtype, one.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(one, want, err_msg=str(grid))
    return program


def levels_run(program: StagedProgram, arrays: Any, grid: Any, *, split: bool) -> list[Any]:
    """Return the outputs. split: whether also the cells of small levels are split."""
    with pytest.MonkeyPatch.context() as patch:
        if split:
            patch.setattr(replicas, "MOST_CELLS", {"cpu": 0})
        return run_program(program, arrays, grid)


def smoothed(u: Any, f: Any, h: float, sweeps: int) -> Any:
    """Damped Jacobi sweeps for Poisson's equation between fixed edges."""
    for _ in range(sweeps):
        new = u.copy()
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        new[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.8 * ((around - h * h * f[1:-1, 1:-1]) / 4 - u[1:-1, 1:-1])
        u = new
    return u


def residual(u: Any, f: Any, h: float) -> Any:
    r = np.zeros_like(u)
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    r[1:-1, 1:-1] = f[1:-1, 1:-1] - (around - 4 * u[1:-1, 1:-1]) / (h * h)
    return r


def restricted(r: Any) -> Any:
    """Full weighting."""
    c = np.zeros(((r.shape[0] + 1) // 2, (r.shape[1] + 1) // 2), r.dtype)
    rows = r[1:-3:2] + 2 * r[2:-2:2] + r[3:-1:2]
    c[1:-1, 1:-1] = (rows[:, 1:-3:2] + 2 * rows[:, 2:-2:2] + rows[:, 3:-1:2]) / 16
    return c


def prolonged(c: Any, shape: Any) -> Any:
    """Bilinear interpolation."""
    fine = np.zeros(shape, c.dtype)
    fine[::2, ::2] = c
    fine[1::2, ::2] = (c[:-1] + c[1:]) / 2
    fine[:, 1::2] = (fine[:, :-2:2] + fine[:, 2::2]) / 2
    return fine


def cycle(u: Any, f: Any, *, h: float = 0.1, bottom: int = 20) -> Any:
    """A V-cycle of vertex-centred grids."""
    if min(u.shape) <= 3 or min(u.shape) % 2 == 0:
        return smoothed(u, f, h, bottom)
    u = smoothed(u, f, h, 2)
    c = restricted(residual(u, f, h))
    e = cycle(np.zeros(c.shape, c.dtype), c, h=2 * h, bottom=bottom)
    return smoothed(u + prolonged(e, u.shape), f, h, 2)


def two_grids(u: Any, f: Any) -> Any:
    u = smoothed(u, f, 0.1, 2)
    c = restricted(residual(u, f, 0.1))
    return smoothed(u + prolonged(smoothed(np.zeros_like(c), c, 0.2, 4), u.shape), f, 0.1, 2)


def jacobi(u: Any, f: Any, sweeps: int) -> Any:
    for _ in range(sweeps):
        p = np.pad(u, 1)
        u = u + 0.8 * ((p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - f) / 4 - u)
    return u


def cell_cycle(u: Any, f: Any, *, least: int = 4) -> Any:
    """A V-cycle of cell-centred grids: means of four cells, and cells repeated."""
    n, m = u.shape
    if min(n, m) < least or n % 2 or m % 2:
        return jacobi(u, f, 8)
    u = jacobi(u, f, 2)
    p = np.pad(u, 1)
    r = f - (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * u)
    c = r.reshape(n // 2, 2, m // 2, 2).mean(axis=(1, 3))
    e = cell_cycle(np.zeros_like(c), c, least=least)
    return jacobi(u + np.repeat(np.repeat(e, 2, axis=0), 2, axis=1), f, 2)


def levels_of(program: StagedProgram) -> set[int]:
    return {one.lattice.step[0] for one in program.intermediates if one.lattice is not None}


def test_two_grids() -> None:
    program = check(two_grids, field(21, 17), field(21, 17, seed=1))
    assert levels_of(program) >= {2}
    coarse = {
        one.shape for one in program.intermediates if one.lattice is not None and one.lattice.step == (2, 2)
    }
    assert (11, 9) in coarse
    assert any(isinstance(stage.cells, LevelCells) for stage in program.kernels)


@pytest.mark.parametrize(("rows", "columns"), [(33, 33), (65, 17), (25, 41)])
def test_cycles_of_vertices(rows: int, columns: int) -> None:
    """Down to 3 cells along an axis, on more ranks than that; odd sizes end where they do not nest."""
    program = check(cycle, field(rows, columns), field(rows, columns, seed=1))
    assert max(levels_of(program)) >= min(rows, columns) // 4 // 2


def test_cycle_of_many_levels() -> None:
    program = check(cycle, field(129, 129), field(129, 129, seed=1), grids=[(1, 1), (3, 1), (5, 1)])
    assert levels_of(program) >= {2, 4, 8, 16, 32, 64}
    assert (3, 3) in {one.shape for one in program.intermediates}
    # Four sweeps, a restriction and a correction of each level, and the sweeps of the last one.
    assert len(program.stages) < 6 * 10 + 21


def cycle_by_residuals(u: Any, f: Any, *, h: float = 0.1) -> Any:
    """A V-cycle whose sweeps add residuals: of 3 x 3 cells, one is needed, as the others are zero."""

    def swept(u: Any, f: Any, sweeps: int) -> Any:
        for _ in range(sweeps):
            new = u.copy()
            new[1:-1, 1:-1] = u[1:-1, 1:-1] - 0.2 * h * h * residual(u, f, h)[1:-1, 1:-1]
            u = new
        return u

    if min(u.shape) <= 3:
        return swept(u, f, 5)
    u = swept(u, f, 1)
    c = restricted(residual(u, f, h))
    e = cycle_by_residuals(np.zeros_like(c), c, h=2 * h)
    return swept(u + prolonged(e, u.shape), f, 1)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_grid_of_which_one_cell_is_needed(kind: str) -> None:
    program = check(
        cycle_by_residuals, field(65, 65), field(65, 65, seed=1), grids=[(1, 1), (3, 1)], kind=kind
    )
    assert levels_of(program) >= {2, 4, 8, 16, 32}


def test_levels_that_each_rank_has_are_exchanged_where_a_cycle_comes_to_them() -> None:
    program = planned(cycle, [field(129, 129)] * 2, ("out",))
    levels = replicas.replicated_levels(program, "cpu")
    assert {one.step[0] for one in levels} >= {2, 4, 8, 16, 32, 64}
    gathering = [program.stages[number] for number in replicas.gathering_stages(program, levels)]
    assert 0 < len(gathering) < 5
    for stage in gathering:
        assert isinstance(stage.cells, LevelCells)
        assert max(stage.cells.lattice.step) <= 4


@pytest.mark.parametrize("size", [32, 33, 64, 65])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_level_is_read_around_the_ends_of_space(size: int, kind: str) -> None:
    """Also where a stage of several sweeps reads cells further away than half of space."""
    function = cycle if size % 2 else cell_cycle
    u, f = field(size, size), field(size, size, seed=1)
    program = check(function, u, f, grids=[(1, 1), (3, 1)], kind=kind)
    assert levels_of(program) >= {2, 4, 8}
    assert not any(one.wraps for one in program.intermediates)
    # No array of a coarse grid has all positions along one of its axes.
    steps = [one.lattice.step for one in program.intermediates if one.lattice is not None]
    assert not [step for step in steps if max(step) > 2 and min(step) == 1]


def test_a_level_is_read_around_the_ends_of_space() -> None:
    def periodic(u):
        c = u[::2, ::2] * 2
        for _ in range(3):
            c = c + np.sqrt(np.abs(np.roll(c, 1, axis=0))) - np.roll(c * c, -2, axis=1) / 9
        return u + np.repeat(np.repeat(c, 2, axis=0), 2, axis=1)

    program = check(periodic, field(48, 40))
    assert any(one.wraps and one.lattice is not None for one in program.intermediates)

    def odd(u):
        c = u[::2, ::2] * 2
        c = c - np.sqrt(np.abs(np.roll(c, 1, axis=0))) - np.roll(np.sqrt(c), -2, axis=1) / 9
        u[::2, ::2] -= c
        return u

    check(odd, field(49, 41))


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (48, 20)])
def test_cycles_of_cells(rows: int, columns: int) -> None:
    program = check(cell_cycle, field(rows, columns), field(rows, columns, seed=1))
    assert max(levels_of(program)) >= 4


def test_sizes_that_do_not_nest_are_refused_as_by_numpy() -> None:
    def once(u, f):
        c = restricted(residual(u, f, 0.1))
        return u + prolonged(c, u.shape)

    check(once, field(33, 21), field(33, 21, seed=1))
    with pytest.raises(ValueError, match="could not broadcast"):
        plain(once, [field(100, 100), field(100, 100)])
    for shape, hint in (((100, 100), "99 x 99 or 101 x 101"), ((40, 21), "39 x 21 or 41 x 21")):
        with pytest.raises(NotTraceable, match="broadcast") as refused:
            planned(once, [field(*shape)] * 2, ("out",))
        assert refused.value.hint == f"arrays of {hint}, whose levels nest"
    # Another mistake, which no length prevents, and one without levels.
    for function in (lambda u: u[::2, ::2] * 2 + u, lambda u: u[1:] + u):
        with pytest.raises(NotTraceable) as refused:
            planned(function, [field(20, 20)], ("out",))
        assert refused.value.hint is None


def test_compiled_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read and write rows whose neighbours are components of a cell, and the ends of rows."""
    monkeypatch.setattr(execute, "LEAST_COMPILED", 0)
    monkeypatch.setattr(chains, "MOST_CELLS", {"cpu": 0})

    def transfers(u):
        c = u[::2, ::2] * 2 + u[1::2, 1::2][: (u.shape[0] + 1) // 2]
        for _ in range(2):
            around = np.sqrt(np.abs(c[2:] * c[:-2] + c[1:-1] * 3 + 1))
            c[1:-1] = c[1:-1] / 2 + around * c[2:] - around * c[:-2] + around * around
        u[::2, ::2] += c
        u[1::2] = u[::2] * 3 - u[1::2]
        return u + np.roll(u, 1, axis=1)

    u = field(12, 14)
    (want,) = plain(transfers, [u])
    program = planned(transfers, [u], ("out",))
    assert levels_of(program)
    for grid in ((1, 1), (1, 3), (5, 1)):
        (found,) = run_program(program, [u], grid, compiled=True)
        np.testing.assert_array_equal(found, want, err_msg=str(grid))


def test_reductions_of_levels() -> None:
    def norms(u, f):
        c = restricted(residual(u, f, 0.1))
        d = smoothed(c, c * 2, 0.2, 2)
        return u * d.max() + d[2, 3] - np.abs(d[1:-1, ::2]).max() + d[1:].min(), (d > 0).sum(), c.argmax()

    program = check(norms, field(33, 21), field(33, 21, seed=1), names=("out", "count", "where"))
    assert levels_of(program) >= {2}


def test_lines_volumes_and_halves_of_axes() -> None:
    def lines(u):
        c = u[::2] * 3
        for _ in range(3):
            c[1:-1] = c[:-2] + c[2:] - c[1:-1]
        d = c[::2] + 0
        d[1:-1] = np.sqrt(d[:-2] + d[2:] + 100)
        fine = np.zeros_like(u)
        fine[::4] = d
        fine[2::4] = c[1::2] - d[1:]
        return u + fine

    check(lines, field(41), grids=[(1,), (2,), (3,), (5,), (11,)])

    def volume(u):
        c = (u[::2, ::2, ::2] + u[1::2, 1::2, ::2]) / 2
        c = c + np.roll(c, 1, axis=0) + np.roll(np.sqrt(c), -1, axis=2)
        c = c - np.roll(c * c + c, 1, axis=1)
        return u + np.repeat(np.repeat(np.repeat(c, 2, axis=0), 2, axis=1), 2, axis=2)

    check(volume, field(12, 8, 16), grids=[(1, 1, 1), (2, 1, 1), (5, 1, 1), (2, 2, 1), (1, 2, 3)])

    def columns(u):
        c = u[:, ::2] + u[:, 1::2] * 2
        for _ in range(2):
            c = c + np.roll(np.exp2(c / 99), 1, axis=1) + np.roll(c, 1, axis=0)
        u[:, ::2] -= c
        u[:, 1::2] += c
        return u

    check(columns, field(9, 20), grids=[*GRIDS, (1, 5)])


TRANSFERS = {
    "every second": lambda u: u[::2, ::2] + 1,
    "the others": lambda u: u[1::2, 1::2] * 2,
    "weighted": lambda u: (u[:-2:2, ::2] + 2 * u[1:-1:2, ::2] + u[2::2, ::2])[:, : (u.shape[1] + 1) // 2] / 4,
}  # fmt: skip


@st.composite
def programs(draw: Any) -> tuple[tuple[int, int], list[Any]]:
    """Return lengths, and what a random program does: sweeps, a level down, one up."""
    half = draw(st.tuples(st.integers(5, 12), st.integers(5, 9)))
    odd = draw(st.booleans())
    kinds = st.sampled_from(["sweep", "down", "up", "shift", "mask", "max", "edge"])
    return tuple(4 * n + odd for n in half), draw(st.lists(kinds, min_size=3, max_size=12))


def walk(steps: list[str]) -> Any:
    """Return a function that takes steps, and goes up from the level where it is then."""

    def function(u):
        stack = [u]
        for number, step in enumerate(steps):
            top = stack[-1]
            if step == "sweep":
                new = top.copy()
                new[1:-1, 1:-1] += top[:-2, 1:-1] - top[2:, 1:-1] * 3 + top[1:-1, :-2] + top[1:-1, 2:]
                stack[-1] = new
            elif step == "down" and min(top.shape) > 8:
                stack.append(top[::2, ::2] * 2 + 1 if number % 2 else top[::2, ::2] - top.max())
            elif step == "up" and len(stack) > 1:
                coarse = stack.pop()
                fine = stack[-1].copy()
                fine[::2, ::2] += coarse
                if fine.shape[0] % 2:
                    fine[1::2, ::2] -= coarse[:-1] + coarse[1:]
                else:
                    fine[1::2, 1::2] = coarse
                stack[-1] = fine
            elif step == "shift":
                stack[-1] = top + np.roll(top * 2, 1, axis=number % 2)
            elif step == "mask":
                top[top > 3] -= 2
            elif step == "max":
                stack[-1] = top - top[1:-1].max()
            elif step == "edge":
                stack[-1] = top = top.copy()
                top[0], top[:, -1] = top[1], 2
        while len(stack) > 1:
            coarse = stack.pop()
            stack[-1][::2, ::2] -= coarse
        return stack[0] * 1

    return function


@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(
    programs(),
    st.sampled_from(["f4", "f8", "i4"]),
    st.sampled_from(GRIDS),
    st.sampled_from(["cpu", "cuda"]),
    st.booleans(),
)
def test_random_programs(program: Any, dtype: str, grid: Any, kind: str, split: bool) -> None:
    (rows, columns), steps = program
    function = walk(steps)
    u = (field(rows, columns, dtype="f8") * 9 - 4).astype(dtype)
    try:
        wanted = plain(function, [u])
        staged = planned(function, [u], ("out",), kind)
    except NotTraceable:
        return
    (found,) = levels_run(staged, [u], grid, split=split)
    np.testing.assert_array_equal(found, wanted[0])


@pytest.mark.nightly
@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(
    programs(), st.sampled_from(["f4", "f8", "i4"]), st.sampled_from([(1, 1), (2, 1)]), st.integers(1, 300)
)
def test_random_programs_in_chains(program: Any, dtype: str, grid: Any, replicated: int) -> None:
    """replicated: cells of the levels that each rank has. A run follows one with other arrays."""
    (rows, columns), steps = program
    function = walk(steps)
    u = (field(rows, columns, dtype="f8") * 9 - 4).astype(dtype)
    try:
        wanted = plain(function, [u])
        staged = planned(function, [u], ("out",))
    except NotTraceable:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "MOST_CELLS", {"cpu": replicated})
        (found,) = run_program(staged, [u], grid, compiled=True, before=[u[::-1] - 1])
    np.testing.assert_array_equal(found, wanted[0])


@given(st.integers(0, 9), st.integers(1, 4), st.integers(1, 9), st.data())
def test_positions_within_and_without_a_condition(low: int, step: int, count: int, data: Any) -> None:
    """What a condition picks is exact; what it leaves has all positions at which it is false."""
    one = Progression(low, low + step * (count - 1), step if count > 1 else 0)
    first, length, every = (data.draw(st.integers(*some)) for some in ((-3, 30), (1, 30), (1, 6)))
    condition = Graph().inside(0, first, first + length, every)
    true = {at for at in one.positions if at in range(*condition.value[1:])}
    within, without = one.within(condition), one.without(condition)
    assert ({*within.positions} if within else set()) == true
    false = {*one.positions} - true
    assert false <= ({*without.positions} if without else set()) <= {*one.positions}
    other = Progression(first, first, 0)
    assert {first, *one.positions} <= {*one.joined(other).positions}


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 9), st.data())
def test_cells_are_on_the_rank_of_their_positions(length: int, parts: int, step: int, data: Any) -> None:
    first = data.draw(st.integers(0, step - 1))
    space, lattice = Partition((length,), (parts,)), LevelGrid((first,), (step,))
    cells = level_partition(space, lattice)
    at = 0
    for rank in range(parts):
        (start,), (stop,) = cells[rank].start, cells[rank].stop
        assert start == at
        at = stop
        for cell in range(start, stop):
            assert space[rank].start[0] <= first + step * cell < space[rank].stop[0]
    assert at == len(range(first, length, step))


def visits(function: Any, *arrays: Any) -> int:
    """Return how many nodes are looked at while a function is traced, each as often as it is."""
    count = 0
    order = graph.in_order

    def counted(*args: Any) -> Any:
        nonlocal count
        nodes = order(*args)
        count += len(nodes)
        return nodes

    modules = [one for one in sys.modules.values() if getattr(one, "in_order", None) is order]
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "in_order", counted)
        inputs = [WholeInput(f"in{number}", one.shape, one.dtype) for number, one in enumerate(arrays)]
        trace_whole(function, inputs, {}, kind="cpu")
    return count


def test_the_time_of_tracing_is_linear_in_the_length_of_a_chain() -> None:
    """Each sweep's field is also used at the own cell, so that every field depends on all before."""

    def sweeps(count: int) -> Any:
        def function(u: Any, f: Any) -> Any:
            c = restricted(residual(u, f, 0.1))
            return smoothed(u + prolonged(smoothed(np.zeros_like(c), c, 0.2, count), u.shape), f, 0.1, count)

        return function

    one, two, four = (visits(sweeps(count), field(33, 33), field(33, 33)) for count in (12, 24, 48))
    assert four - two < 2.5 * (two - one)  # twice the sweeps


def test_writes_without_points_rewrite_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = []
    rewrite = WholeGraph._rewritten

    def counted(self: WholeGraph, nodes: Any, leaf: Any) -> Any:
        nodes = list(nodes)
        rewritten.extend(nodes)
        return rewrite(self, nodes, leaf)

    monkeypatch.setattr(WholeGraph, "_rewritten", counted)

    def function(u: Any) -> Any:
        for row in range(8):
            u[row] = u[row] + 1
        return u

    trace_whole(function, [WholeInput("u", (33, 33), np.dtype("f4"))], {})
    assert not rewritten


def with_source(u: Any, f: Any) -> Any:
    c = restricted(residual(smoothed(u, f, 0.1, 2), f, 0.1))
    new = u + prolonged(smoothed(c, c, 0.2, 2), u.shape)
    new[[3], [4]] += f.max()
    return new


def with_maxima_along_rows(u: Any, f: Any) -> Any:
    c = restricted(residual(smoothed(u, f, 0.1, 2), f, 0.1))
    c = smoothed(c - c.max(axis=0), c, 0.2, 2)
    return u + prolonged(c, u.shape)


@pytest.mark.parametrize(
    ("function", "shape", "why", "line"),
    [
        (with_source, (17, 17), "writes to points", "new[[3]"),
        (with_maxima_along_rows, (17, 17), "reduced along some axes", "c.max"),
    ],
)
def test_why_coarse_grids_have_all_positions_is_said(
    function: Any, shape: Any, why: str, line: str, tmp_path: Path
) -> None:
    u, f = field(*shape), field(*shape, seed=1)
    program = check(function, u, f, grids=[(2, 1)])
    assert program.reasons.misaligned is not None
    assert why in program.reasons.misaligned.reason
    text = Path(__file__).read_text().splitlines()[program.reasons.misaligned.line - 1]
    assert line in text
    job = meshrun.distribute(outputs=("u",))(function)
    types = [(one.shape, one.dtype) for one in (u, f)]
    task = plan_task(with_inferred_halo(job, types, {}), {}, types, 1)
    facts = dict(kernel_report(task, "strict", None, cpu=True).facts)
    assert f"line {program.reasons.misaligned.line}: " in facts["coarse grids"]
    _, record = stepped(tmp_path, job, [u, f], 1)
    assert [one for one in record["warnings"] if "coarse grids" in one and why in one]


def test_levels_say_nothing() -> None:
    assert planned(cell_cycle, [field(16, 16), field(16, 16)], ("out",)).reasons.misaligned is None


def loop_among_grids(u: Any, f: Any) -> Any:
    """A loop that stays one, between two corrections by a coarse grid."""

    u = two_grids(u, f)
    for _ in range(40):
        u[1:-1] = np.sqrt(np.abs(u[2:] * u[:-2]) + np.abs(u).max()) / 2
    return two_grids(u, f)


def test_a_loop_among_grids() -> None:
    program = check(loop_among_grids, field(33, 25), field(33, 25, seed=1), grids=[(1, 1), (2, 1)])
    assert program.loops
    assert 2 in levels_of(program)
