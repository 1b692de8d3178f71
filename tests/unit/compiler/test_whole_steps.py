"""Kernels of several steps of whole-array functions, compiled for the host: the plain function's bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import host_steps
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_parts import Part, compare
from step_runs import PAD
from whole_functions import compiled, programs

from meshrun.runner.compiler.cuda.steps.kernel import build
from meshrun.runner.compiler.cuda.steps.layout import NotFusable, StepKernel, Tuning, layout_of
from meshrun.runner.compiler.cuda.steps.tuning import choices
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Graph, Operand, Program
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.task import plan_task
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.kernel_report import kernel_report

pytestmark = pytest.mark.skipif(host_steps.GXX is None, reason="needs g++")


def dirichlet(u):
    new = u.copy()
    sides = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    new[1:-1, 1:-1] += 0.2 * (sides - 4 * u[1:-1, 1:-1])
    new[0] = 1
    new[-1] = 0
    new[:, 0] = 0.5
    return new


def neumann(u):
    new = dirichlet(u)
    new[0] = new[1]
    new[-1] = new[-2]
    new[:, 0] = new[:, 1]
    new[:, -1] = new[:, -2]
    return new


def one_sided(u):
    """Second-order differences at the ends, two cells of them."""
    new = u * 0.5
    new[2:-2, 2:-2] = u[2:-2, 2:-2] + 0.1 * (u[1:-3, 2:-2] - u[3:-1, 2:-2] + u[2:-2, 1:-3] - u[2:-2, 3:-1])
    new[1] = u[1] + 0.1 * (u[3] - u[2])
    new[0] = u[0] + 0.1 * (u[2] - u[1])
    new[-2] = u[-2] - 0.1 * (u[-4] - u[-3])
    new[-1] = new[-2] * 0.5
    new[:, -2] += 0.1 * u[:, -4]
    new[:, 0] -= 0.1 * u[:, 3]
    return new


def rolled(u):
    sides = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1)
    return u + 0.2 * (sides - 4 * u)


def rolled_closed(u):
    """Rows beyond the last one equal the first ones, which read further than others."""
    new = rolled(u)
    new[0] = new[1]
    return new


def rolled_stages(u):
    """The second stage reads the first one's edges around the ends."""
    first = u.copy()
    first[1:-1] += 0.2 * (u[2:] - u[:-2])
    first[:, 0] = first[:, 1]
    return first + 0.1 * (np.roll(first, 1, 0) - np.roll(first, -1, 1))


def closed_stages(u):
    """The first stage is 0 at the ends, where the second one is another."""
    first = np.zeros_like(u)
    centre = u[1:-1, 1:-1]
    sides = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    first[1:-1, 1:-1] = centre * centre * centre - centre - 0.5 * (sides - 4 * centre)
    new = u * 0.5
    new[1:-1, 1:-1] = centre + 0.01 * (
        first[2:, 1:-1] + first[:-2, 1:-1] + first[1:-1, 2:] - 3 * first[1:-1, 1:-1]
    )
    return new


def periodic_by_hand(u):
    new = u.copy()
    sides = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    new[1:-1, 1:-1] += 0.2 * (sides - 4 * u[1:-1, 1:-1])
    new[0], new[-1] = new[-2], new[1]
    new[:, 0] = new[:, -2]
    new[:, -1] = new[:, 1]
    return new


def periodic_rows(u):
    """Two cells at each end of rows repeat others; columns have values of their own."""
    new = u.copy()
    new[1:-1, 2:-2] += 0.1 * (u[2:, 2:-2] - u[1:-1, :-4] + u[1:-1, 4:])
    new[:, :2], new[:, -2:] = new[:, -4:-2], new[:, 2:4]
    new[0] = new[1]
    new[-1] = 0.5
    return new


def periodic_nodes(u, before):
    """The last row is the first one. A cell of `before` is repeated a step later than one of `u`."""
    new = 2 * u - before
    new[:-1] += 0.1 * (u[1:] - np.roll(u[:-1], 1, 0))
    new[-1] = new[0]
    return new, u


def periodic_cells(u):
    """No cell repeats another, but its neighbours are named one by one."""
    new = u.copy()
    new[1:-1] += 0.1 * (u[2:] - u[:-2])
    new[0] += 0.1 * (u[1] - u[-1])
    new[-1] += 0.1 * (u[0] - u[-2])
    return new


def coordinates(u):
    n, m = u.shape
    x, y = np.linspace(0, 1, n, dtype=u.dtype), np.arange(m, dtype=u.dtype)
    new = u * (1 + 0.001 * x[:, None]) + 0.01 * y[None, :]
    new[1:] -= 0.1 * u[:-1]
    new[:, :-1] += 0.1 * u[:, 1:]
    new[3:7, 4:9] = 0
    new[n // 2 - 2 : n // 2 + 1, m // 2 :] = -1
    return new


def red_black(u):
    new = u.copy()
    new[1:-1:2, 1:-1] = 0.5 * (u[:-2:2, 1:-1] + u[2::2, 1:-1][: new[1:-1:2].shape[0]])
    new[1:-1, 2:-1:2] += 0.25 * (u[1:-1, 1:-2:2] + u[1:-1, 3::2])
    return new


def wave(u, before):
    new = 2 * u - before
    new[1:-1, 1:-1] += 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[0], new[-1] = 0, u[-2]
    new[:, 0], new[:, -1] = u[:, 1], 0
    return new, u


def materials(u, rate):
    """A field that no output feeds, read further away at the ends."""
    new = u.copy()
    new[1:-1, 1:-1] += rate[2:, 1:-1] * (u[1:-1, 2:] - u[1:-1, :-2]) - rate[1:-1, :-2] * u[:-2, 1:-1]
    new[0] = rate[2] * u[1]
    new[:, -1] = rate[:, -4]
    return new


def life(cells):
    shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    count = sum(np.roll(np.roll(cells, a, 0), b, 1) for a, b in shifts)
    new = ((count == 3) | ((cells == 1) & (count == 2))).astype(cells.dtype)
    new[0] = 0
    new[:, -1] = 1
    return new


def life_by_hand(cells):
    rows = cells[:-2] + cells[1:-1] + cells[2:]
    count = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    new = np.zeros_like(cells)
    new[1:-1, 1:-1] = (count == 3) | ((count == 4) & (cells[1:-1, 1:-1] == 1))
    new[:, 0], new[:, -1] = new[:, -2], new[:, 1]
    new[0], new[-1] = new[-2], new[1]
    return new


def rod(u):
    new = u.copy()
    new[1:-1] += 0.25 * (u[2:] - 2 * u[1:-1] + u[:-2])
    new[0] = 1
    new[-1] = new[-2]
    return new


def ring(u):
    new = u + 0.25 * (np.roll(u, 1) - 2 * u + np.roll(u, -1))
    new[0] = 1
    new[-1] = new[1]
    return new


def hoop(u):
    new = u.copy()
    new[1:-1] += 0.25 * (u[2:] - 2 * u[1:-1] + u[:-2])
    new[0], new[-1] = new[-2], new[1]
    return new


def cube(u):
    new = u.copy()
    own = u[1:-1, 1:-1, 1:-1]
    sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    new[1:-1, 1:-1, 1:-1] += 0.1 * (sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * own)
    new[0], new[-1] = 1, 0
    new[:, 0], new[:, -1] = 0.5, 0.25
    new[:, :, 0] = new[:, :, 1]
    new[:, :, -1] = new[:, :, -2]
    return new


def cube_closed(u):
    new = cube(u)
    new[0], new[-1] = new[1], new[-2]
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    return new


def cube_periodic(u):
    new = cube(u)
    new[0], new[-1] = new[-2], new[1]
    new[:, 0], new[:, -1] = new[:, -2], new[:, 1]
    new[:, :, 0], new[:, :, -1] = new[:, :, -2], new[:, :, 1]
    return new


def cube_rolled(u):
    rows = np.arange(u.shape[1], dtype=u.dtype)[:, None]
    new = u + 0.1 * (np.roll(u, 1, 0) - np.roll(u, -1, 1) + np.roll(u, 1, 2) * rows)
    new[0] = 2
    new[:, 3] = new[:, 2]
    return new


@dataclass(frozen=True)
class Case:
    """A function of whole arrays. feeds: of each output, the number of an input."""

    function: Callable[..., Any]
    dtypes: tuple[str, ...] = ("f4",)
    feeds: tuple[int, ...] = (0,)
    axes: int = 2


CASES = {
    "dirichlet": Case(dirichlet),
    "neumann": Case(neumann),
    "neumann f8": Case(neumann, ("f8",)),
    "one_sided": Case(one_sided),
    "rolled": Case(rolled),
    "rolled_closed": Case(rolled_closed),
    "rolled_stages": Case(rolled_stages),
    "closed_stages": Case(closed_stages),
    "periodic_by_hand": Case(periodic_by_hand),
    "life_by_hand": Case(life_by_hand, ("u1",)),
    "periodic_rows": Case(periodic_rows, ("f8",)),
    "periodic_nodes": Case(periodic_nodes, ("f4", "f4"), (0, 1)),
    "periodic_cells": Case(periodic_cells),
    "coordinates": Case(coordinates),
    "red_black": Case(red_black),
    "wave": Case(wave, ("f4", "f4"), (0, 1)),
    "materials": Case(materials, ("f4", "f4")),
    "life": Case(life, ("u1",)),
    "rod": Case(rod, axes=1),
    "ring": Case(ring, axes=1),
    "hoop": Case(hoop, axes=1),
    "cube": Case(cube, axes=3),
    "cube_closed": Case(cube_closed, axes=3),
    "cube_periodic": Case(cube_periodic, axes=3),
    "cube_rolled": Case(cube_rolled, axes=3),
}


def fields(case: Case, shape: Sequence[int]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [(rng.random(shape) * (2 if kind == "u1" else 9)).astype(kind) for kind in case.dtypes]


def traced(case: Case, shape: Sequence[int]) -> tuple[Program, str]:
    """Return the program for whole arrays of a shape, and the boundary."""
    inputs = [WholeInput(f"in{n}", tuple(shape), np.dtype(kind)) for n, kind in enumerate(case.dtypes)]
    names = [f"out{n}" for n in range(len(case.feeds))]
    whole = trace_whole(case.function, inputs, {}, names)
    program = whole.program
    return program, "wrap" if any(whole.wraps) else "none"


def after(case: Case, arrays: Sequence[Any], steps: int) -> list[Any]:
    now = [one.copy() for one in arrays]
    for _ in range(steps):
        with np.errstate(all="ignore"):
            found = case.function(*(one.copy() for one in now))
        for place, result in zip(case.feeds, found if len(case.feeds) > 1 else (found,), strict=True):
            now[place] = result
    return [now[place] for place in case.feeds]


def halo_of(program: Program) -> list[tuple[int, int]]:
    reads = [program.footprint(number) for number in range(len(program.inputs))]
    return [(max(one[a][0] for one in reads), max(one[a][1] for one in reads)) for a in range(program.axes)]


def check(
    folder: Path,
    case: Case,
    shape: Sequence[int],
    steps: int,
    tuning: Tuning,
    parts: Sequence[Sequence[Part] | None] = (None,),
    change: Callable[[str], str] = str,
) -> StepKernel:
    """Compare kernels for these parts of arrays with the plain function on whole ones."""
    program, boundary = traced(case, shape)
    kernel = build(program, case.feeds, boundary, 0, steps, tuning)
    object.__setattr__(kernel, "source", change(kernel.source))
    arrays = fields(case, shape)
    if first := layout_of(program, case.feeds).first_steps:
        arrays = after(case, arrays, first)
    wanted = after(case, arrays, steps)
    for part in parts:
        compare(
            folder, kernel, arrays, wanted, halo_of(program), boundary == "wrap", part, aligned=tuning.vectors
        )
    return kernel


PLAIN = {1: Tuning(2, 2, 2, 1), 2: Tuning(2, 2, 2, 1, rows=9, keeps=True), 3: Tuning(1, 3, 4, 1, rows=7)}
VECTORS = {
    1: Tuning(4, 1, 1, 3, vectors=True),
    2: Tuning(4, 1, 1, 3, rows=9, vectors=True, keeps=True),
    3: Tuning(2, 2, 6, 2, rows=7, vectors=True),
}
SHAPES = {1: (371,), 2: (37, 133), 3: (17, 19, 55)}
WIDE = {1: (372,), 2: (29, 372), 3: (13, 17, 132)}
SMALL = {1: (5,), 2: (5, 7), 3: (4, 5, 6)}


def steps_of(name: str) -> int:
    return {"one_sided": 3, "rolled_stages": 2, "closed_stages": 2}.get(
        name, 4 if CASES[name].axes < 3 else 2
    )


def by_day(names: Iterable[str], *chosen: str) -> list[Any]:
    """Return all names; those that are not chosen are tried at night."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.nightly) for name in names]


# By day, each function in one of the three: whole and in parts by elements, by vectors, or small.
BY_VECTORS = {"neumann", "one_sided", "rolled_stages", "closed_stages", "wave", "ring", "cube"}
SMALL_BY_DAY = {"rolled", "red_black", "periodic_by_hand", "cube_closed", "neumann", "rod"}
IN_PARTS = CASES.keys() - (BY_VECTORS | {"rolled", "red_black"}) | {"neumann", "wave"}


@pytest.mark.parametrize("name", by_day(CASES, *IN_PARTS))
def test_bits_are_those_of_the_function(name: str, libraries: Path) -> None:
    case = CASES[name]
    cut = {
        1: [[Part(0, 90)], [Part(90, 300)], [Part(300, 371)]],
        2: [[Part(0, 12), Part(0, 60)], [Part(12, 30), Part(60, 90)], [Part(30, 37), Part(90, 133)]],
        3: [[Part(0, 7), Part(0, 9), Part(0, 30)], [Part(7, 17), Part(9, 19), Part(30, 55)]],
    }
    check(libraries, case, SHAPES[case.axes], steps_of(name), PLAIN[case.axes], [None, *cut[case.axes]])


@pytest.mark.parametrize("name", by_day(CASES, *BY_VECTORS))
def test_vectors_change_nothing(name: str, libraries: Path) -> None:
    case = CASES[name]
    rows = {
        1: [None],
        2: [None, [Part(0, 10), Part(0, 372)], [Part(10, 29), Part(0, 372)]],
        3: [None, [Part(0, 6), Part(0, 17), Part(0, 132)]],
    }
    check(libraries, case, WIDE[case.axes], steps_of(name), VECTORS[case.axes], rows[case.axes])


@pytest.mark.parametrize("name", by_day(CASES, *SMALL_BY_DAY))
def test_small_arrays(name: str, libraries: Path) -> None:
    case = CASES[name]
    check(libraries, case, SMALL[case.axes], steps_of(name), PLAIN[case.axes])


@pytest.mark.parametrize("name", ["neumann", "one_sided", "materials"])
@pytest.mark.parametrize("rows", [1, 3])
def test_short_strips(name: str, rows: int, libraries: Path) -> None:
    """What rows at the ends read further away is in none of a strip's own rows."""
    tuning = Tuning(2, 2, 2, 1, rows=rows)
    columns = 113  # a tile computes 56: the last one has a single column
    parts = [[Part(*own), Part(0, columns)] for own in ((0, 3), (34, 37), (2, 33))]
    check(libraries, CASES[name], (37, columns), steps_of(name), tuning, [None, *parts])


@pytest.mark.parametrize("columns", [114, 125, 128, 130])
def test_a_last_tile_of_few_columns(columns: int, libraries: Path) -> None:
    """Columns at the end read further away than the tile's margin."""
    kernel = check(libraries, CASES["neumann"], (9, columns), 4, Tuning(2, 2, 2, 1, rows=9))
    assert (kernel.valid, kernel.far) == (56, 6)


@pytest.mark.parametrize(
    ("kind", "boundary"), [("f4", "none"), ("f8", "wrap"), ("u1", "wrap"), ("f2", "none")]
)
def test_each_step_reads_its_own_row_of_scalars(kind: str, boundary: str, libraries: Path) -> None:
    dtype, graph, shape, steps = np.dtype(kind), Graph(), (11, 70), 3
    load = graph.load(0, dtype, (0, 0))
    first, second = graph.scalar(0, np.dtype("f8")), graph.scalar(2, dtype)
    half = graph.operation("cast", dtype, [first])
    value = graph.operation("add", dtype, [graph.operation("multiply", dtype, [load, second]), half])
    edge = graph.operation("where", dtype, [graph.inside(0, 0, 1), second, value])
    field = Operand("u", dtype)
    program = Program(2, (field,), (field,), ((edge,),), graph, lengths=shape)
    rng = np.random.default_rng(1)
    numbers, factors = rng.integers(0, 9, steps), rng.integers(1, 5, steps).astype(dtype)
    slots = np.full((steps, 3, 8), 255, np.uint8)
    for row, (number, factor) in enumerate(zip(numbers, factors, strict=True)):
        slots[row, 0] = np.frombuffer(np.float64(number).tobytes(), np.uint8)
        slots[row, 2, : dtype.itemsize] = np.frombuffer(factor.tobytes(), np.uint8)
    whole = [rng.integers(0, 5, shape).astype(dtype)]
    wanted = whole[0]
    for number, factor in zip(numbers, factors, strict=True):
        wanted = wanted * factor + dtype.type(number)
        wanted[0] = factor
    kernel = build(program, (0,), boundary, 0, steps, PLAIN[2])
    scalars = slots.view(np.uint64)
    compare(libraries, kernel, whole, [wanted], [(0, 0)] * 2, boundary == "wrap", scalars=scalars)


@pytest.mark.parametrize("boundary", by_day(BOUNDARIES, "mirror", "wrap"))
def test_places_beside_a_boundary(boundary: str, libraries: Path) -> None:
    """In a function of blocks, cells beyond the array copy others, whatever their place is."""
    dtype, graph, shape, steps = np.dtype("f4"), Graph(), (29, 132), 3
    near = [graph.load(0, dtype, at) for at in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    total = near[0]
    for node in near[1:]:
        total = graph.operation("add", dtype, [total, node])
    quarter = graph.operation("multiply", dtype, [graph.constant(0.25, dtype), total])
    slope = graph.operation("cast", dtype, [graph.place(1, 3)])
    value = graph.operation("add", dtype, [quarter, slope])
    for axis, low, high in ((0, 0, 2), (0, 27, 29), (1, 0, 3), (1, 130, 132)):
        condition = graph.inside(axis, low, high)
        value = graph.operation("where", dtype, [condition, near[2 * axis], value])
    field = Operand("u", dtype)
    program = Program(2, (field,), (field,), ((value,),), graph, lengths=shape)
    whole = [np.random.default_rng(2).random(shape).astype(dtype)]
    wanted, widths = whole[0], ((1, 1), (1, 1))
    for _ in range(steps):
        beyond = np.pad(wanted, 1, "constant", constant_values=2)
        if boundary != "constant":
            beyond = np.pad(wanted, 1, PAD[boundary])
        (wanted,) = evaluate(program, [beyond], widths, (0, 0))
    rows = [Part(0, 10), Part(0, 132)], [Part(10, 29), Part(0, 132)]
    for tuning in (PLAIN[2], VECTORS[2]):
        kernel = build(program, (0,), boundary, 2, steps, tuning)
        for part in (None, *rows):
            wraps, vectors = boundary == "wrap", tuning.vectors
            compare(libraries, kernel, whole, [wanted], widths, wraps, part, aligned=vectors)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        # an edge applied at each rank's edge
        ("dirichlet", "at = place + start;\n        return BOUNDARY", "at = place;\n        return BOUNDARY"),
        *(
            pytest.param(*mutant, marks=pytest.mark.nightly)
            for mutant in [
                ("neumann", "return FAR_X > 0 ?", "return false ?"),
                # rows that are read again after the last one, and those beyond an end on another rank
                ("periodic_by_hand", "(axis.whole() ? REPEATS_Y : 0)", "0"),
                (
                    "periodic_by_hand",
                    "place += place + start < 0 ? -repeats",
                    "place += place + start < 0 ? 0",
                ),
                # the text of tiles between the ends along x, for all
                (
                    "neumann",
                    "if (near_end(at.all.x, at.column - int(threadIdx.x) % LANES * C))",
                    "if (false)",
                ),
                ("one_sided", "kept[KEPT - 1][c] = ring[0][c];", ""),
                ("rolled_stages", "modulo(at, length) : at;", "at : at;"),
                ("neumann", "SLOTS - 1 - LATE][c] = out", "SLOTS - 2 - LATE][c] = out"),
                ("neumann", "needed = least(needed, high_edge(all.y) - KEPT);", ""),
                ("neumann", "0 : others - number % 3", "0 : others - 1"),  # a tile that nobody computes
                ("dirichlet", "low + LATE + K * RY;", "low + K * RY - 1;"),
                ("one_sided", "high + RY - most(KEPT - 1, 0) - SLOTS + 1);", "high + RY + 1);"),
                ("rolled_stages", "return low + high > 0 &&", "return false &&"),
            ]
        ),
    ],
)
def test_a_kernel_that_is_wrong_at_one_place_is_caught(
    name: str, right: str, wrong: str, libraries: Path
) -> None:
    def change(source: str) -> str:
        assert source.count(right) == 1
        return source.replace(right, wrong)

    cut = [[Part(12, 37), Part(0, 60)], [Part(0, 37), Part(90, 133)]]
    runs: list[tuple[Tuning, tuple[int, int], list[Any]]] = [
        (PLAIN[2], (37, 133), [None, *cut]),
        (VECTORS[2], (37, 372), [None]),
        (Tuning(2, 2, 2, 1, rows=1), (37, 113), [None]),
    ]
    caught = 0
    for tuning, shape, parts in runs:
        try:
            check(libraries, CASES[name], shape, steps_of(name), tuning, parts, change)
        except AssertionError:
            caught += 1
    assert caught


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("place == z.low ? z.low : 0", "0"),  # a face that nobody writes
        pytest.param("dy < 0 ? at.lowest : at.highest", "at.lowest", marks=pytest.mark.nightly),
        pytest.param(
            *("y0 + row < all.y.own && !(ENDS_FILLED && beyond)", "y0 + row < all.y.own"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_wrong_face_is_caught(right: str, wrong: str, libraries: Path) -> None:
    def change(source: str) -> str:
        assert source.count(right) == 1
        return source.replace(right, wrong)

    with pytest.raises(AssertionError):
        check(libraries, CASES["cube_closed"], (9, 11, 30), 2, PLAIN[3], change=change)


def test_a_stale_halo_row_is_caught(libraries: Path) -> None:
    case, shape = CASES["neumann"], (37, 70)
    program, boundary = traced(case, shape)
    kernel = build(program, case.feeds, boundary, 0, 4, PLAIN[2])
    arrays = fields(case, shape)
    wanted, part = after(case, arrays, 4), [Part(12, 24), Part(0, 70)]
    compare(libraries, kernel, arrays, wanted, halo_of(program), False, part)
    stale = arrays[0].copy()
    stale[24 + 3] += 1  # the last halo row but those that only edges read
    with pytest.raises(AssertionError):
        compare(libraries, kernel, [stale], wanted, halo_of(program), False, part)


def inside(source: str) -> str:
    """Return the statements of a kernel for cells between the array's ends."""
    found = re.search(r"if constexpr \((?:WHERE == INSIDE|!EDGE)\) {\n(.*?)\n    } else", source, re.S)
    if found is None:
        found = re.search(r"INLINE void compute\(const .*? EDGE = [^\n]*\n(.*?)\n}\n", source, re.S)
    assert found
    return found[1]


@pytest.mark.parametrize("name", ["dirichlet", "neumann", "cube"])
def test_edges_cost_nothing_between_them(name: str) -> None:
    """There, the text is that of the same stencil without edges, with the same margins and as many rows."""

    def plain(u):
        centre = (slice(1, -1),) * u.ndim
        new = u.copy()
        source = CASES["cube" if u.ndim == 3 else "dirichlet"].function(u)
        new[centre] = source[centre]
        return new

    case = CASES[name]
    shape = (64, 512) if case.axes == 2 else (40, 40, 512)
    tuning = Tuning(4, 1, 4, 3, 3, vectors=True) if case.axes == 2 else Tuning(2, 8, 12, vectors=True)
    kernels = []
    for each in (case, Case(plain, axes=case.axes)):
        program, boundary = traced(each, shape)
        kernels.append(build(program, (0,), boundary, 0, 3, tuning))
    with_edges, without = kernels
    assert inside(with_edges.source) == inside(without.source)
    assert (with_edges.radius, with_edges.margin) == (without.radius, without.margin)
    assert with_edges.registers == without.registers


def test_what_is_rolled_has_no_ends() -> None:
    program, boundary = traced(CASES["rolled"], (40, 50))
    assert boundary == "wrap"
    assert not program.has_places
    assert not layout_of(program, (0,)).has_ends


def test_edges_that_read_too_far_are_refused() -> None:
    def far(u):
        new = u.copy()
        new[1:-1] += u[2:] - u[:-2]
        new[0] = u[7]
        return new

    program, _ = traced(Case(far), (40, 50))
    with pytest.raises(NotFusable, match="reads 7 cells beside its own"):
        layout_of(program, (0,))


@pytest.mark.parametrize(
    ("name", "shape", "several"),
    [
        ("neumann", (8192, 8192), True),
        ("periodic_by_hand", (8192, 8192), True),
        ("rolled_closed", (8192, 8192), False),  # rows at an end read those at the other
        ("cube", (512, 512, 512), True),
        ("cube_closed", (512, 512, 512), True),
    ],
)
def test_single_steps_where_ends_would_make_several_slower(
    name: str, shape: tuple[int, ...], several: bool
) -> None:
    case = CASES[name]
    traced_inputs = [WholeInput("u", shape, np.dtype("f4"))]
    program = trace_whole(case.function, traced_inputs, {}, ["out"]).program
    assert (len(choices(program, [0])) > 0) == several


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dirichlet", {}),
        (
            "cube_closed",
            dict.fromkeys([f"axis {n}" for n in range(3)], "edges of 1 + 1 cells copy those beside them"),
        ),
        ("neumann", dict.fromkeys(["axis 0", "axis 1"], "edges read 2 cells away; others with a reach of 1")),
        (
            "periodic_by_hand",
            dict.fromkeys(["axis 0", "axis 1"], "the last 2 cells repeat the first ones"),
        ),
    ],
)
def test_the_report_says_how_far_edges_read(name: str, says: dict[str, str]) -> None:
    shape = (40, 50, 60)[: CASES[name].axes]
    types = [(shape, np.dtype(kind)) for kind in CASES[name].dtypes]
    job = with_inferred_halo(distribute(CASES[name].function), types, {})
    facts = dict(kernel_report(plan_task(job, {}, types, 1), "strict", 2, cpu=False).facts)
    assert {fact: text for fact, text in facts.items() if fact.startswith("axis")} == says
    assert facts["a cell"] == f"8 bytes of memory, {3 + 2 * len(shape)} operations"


@settings(max_examples=max(settings.default.max_examples // 6, 1), deadline=None)
@given(text=programs(), steps=st.integers(1, 3), data=st.data())
def test_bits_of_any_function(text: str, steps: int, data: st.DataObject, libraries: Path) -> None:
    """Random functions of two fields, by elements and by vectors, whole and in parts."""
    function = compiled(text)

    def of_fields(u, v):
        return function(u, v)[:2]

    case = Case(of_fields, ("f4", "f4"), (0, 1))
    shape = (11, 9)
    tuning = data.draw(st.sampled_from([Tuning(2, 1, 1, 1, rows=3), Tuning(4, 1, 1, 3, rows=5)]))
    part = data.draw(st.sampled_from([None, [Part(0, 5), Part(0, 9)], [Part(5, 11), Part(0, 9)]]))
    try:
        check(libraries, case, shape, steps, tuning, [None, part])
    except NotFusable:
        return
