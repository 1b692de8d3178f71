"""Kernels of several steps, compiled for the host, against a plain NumPy loop: the same bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import host_steps
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from nvrtc_log import log_of_text
from step_parts import Part, bits, compare, run

from meshrun.runner.compiler.cuda.steps.kernel import (
    arguments,
    build,
    fitting_steps,
    one_block_more,
    takes_vectors,
)
from meshrun.runner.compiler.cuda.steps.layout import Axis, NotFusable, StepKernel, Tuning
from meshrun.runner.compiler.cuda.steps.tuning import choices
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Graph, Operand, Program
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.halo import source_index

pytestmark = pytest.mark.skipif(host_steps.GXX is None, reason="needs g++")


def heat(u: Any, *, rate: float = 0.2) -> Any:
    centre = u[1:-1, 1:-1]
    sides = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return centre + rate * (sides - 4 * centre)


def wave(now: Any, before: Any) -> Any:
    centre = now[1:-1, 1:-1]
    sides = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:]
    return 2 * centre - before[1:-1, 1:-1] + 0.25 * (sides - 4 * centre), centre


def spread(field: Any) -> Any:
    centre = field[1:-1, 1:-1]
    return field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:] - 4 * centre


def gray_scott(u: Any, v: Any) -> Any:
    here_u, here_v = u[1:-1, 1:-1], v[1:-1, 1:-1]
    reaction = here_u * here_v * here_v
    next_u = here_u + 0.2 * spread(u) - reaction + 0.037 * (1 - here_u)
    return next_u, here_v + 0.1 * spread(v) + reaction - 0.097 * here_v


def life(board: Any) -> Any:
    rows = board[:-2] + board[1:-1] + board[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    alive = board[1:-1, 1:-1]
    return ((around == 3) | ((around == 4) & (alive == 1))).astype(board.dtype)


def masked(u: Any, rate: Any) -> Any:
    """Read coefficients on both sides."""
    centre = u[1:-1, 1:-1]
    right = (rate[1:-1, 2:] + rate[1:-1, 1:-1]) * (u[1:-1, 2:] - centre)
    left = (rate[1:-1, 1:-1] + rate[1:-1, :-2]) * (centre - u[1:-1, :-2])
    return centre + right - left + rate[:-2, 1:-1] * u[2:, 1:-1]


def far(u: Any) -> Any:
    """Read two cells away, not alike on all sides."""
    x = 2 * u[2:-2, 1:-3] - u[2:-2, 4:] + u[2:-2, :-4]
    return 0.25 * (x + u[:-4, 2:-2] - u[4:, 3:-1] + u[3:-1, 2:-2]) + 0.125 * u[2:-2, 2:-2]


def upwind(u: Any) -> Any:
    """Read before the own cell only."""
    return u[1:-1, 1:-1] - 0.5 * (u[1:-1, 1:-1] - u[1:-1, :-2]) - 0.25 * (u[1:-1, 1:-1] - u[:-2, :-2])


def still(u: Any, source: Any) -> Any:
    """Read the neighbours of the coefficients alone."""
    return 0.5 * u[1:-1, 1:-1] + source[:-2, 2:] - source[2:, :-2]


def rings(u: Any, v: Any) -> Any:
    """Multiply by powers of two on each side of sums and differences, and by others."""
    a = 8 * u[1:-1, 1:-1] - u[:-2, 1:-1] + 2 * v[1:-1, 2:]
    b = v[1:-1, 1:-1] - (-2) * u[2:, 1:-1] - 16 * v[1:-1, :-2] + 3 * u[1:-1, 1:-1] - 0.5 * v[:-2, 2:]
    return 0.03125 * a, 0.03125 * b


def vectors(u: Any) -> Any:
    """Mix the components of a vector."""
    x, y = u[1:-1, 1:-1, 0], u[1:-1, 1:-1, 1]
    return np.stack([x + 0.1 * (u[1:-1, 2:, 1] - u[:-2, 1:-1, 1]), y - 0.1 * u[2:, 1:-1, 0]], -1)


def downwind(u: Any, v: Any) -> Any:
    """Read below and right of the own cell only, one field in one row alone."""
    return u[1:-1, 1:-1] - 0.5 * v[2:, 2:], 0.5 * v[1:-1, 1:-1] + 0.25 * u[2:, 1:-1] + 0.125 * u[2:, 2:]


def uneven(u: Any, v: Any, source: Any) -> Any:
    """Read one field at two rows above the cell, the other two rows below; their dtypes differ."""
    wide = u[:-4, 2:-2] + v[4:, 1:-3] * np.float32(0.5) + source[1:-3, 2:-2]
    return wide.astype(u.dtype), (0.25 * wide - v[4:, 3:-1]).astype(v.dtype)


DIRECTIONS = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, -1), (-1, 1)]


def lattice(
    f0: Any, f1: Any, f2: Any, f3: Any, f4: Any, f5: Any, f6: Any, f7: Any, f8: Any, solid: Any
) -> Any:
    """Take a step of a lattice-Boltzmann fluid, D2Q9: populations come from the cell that they leave, collide
    (Bhatnagar, Gross and Krook, Physical Review 94, 1954), and turn back where the mask is not 0."""
    shift = {1: slice(None, -2), 0: slice(1, -1), -1: slice(2, None)}
    f = [
        one[shift[y], shift[x]].astype(np.float32)
        for one, (y, x) in zip((f0, f1, f2, f3, f4, f5, f6, f7, f8), DIRECTIONS, strict=True)
    ]
    wall = solid[1:-1, 1:-1] != 0
    density = f[0] + f[1] + f[2] + f[3] + f[4] + f[5] + f[6] + f[7] + f[8]
    u = (f[1] - f[3] + f[5] - f[6] - f[7] + f[8]) / density
    v = (f[2] - f[4] + f[5] + f[6] - f[7] - f[8]) / density
    rest = 1 - 1.5 * (u * u + v * v)
    after = []
    for (y, x), own, opposite in zip(DIRECTIONS, f, [f[n] for n in (0, 3, 4, 1, 2, 7, 8, 5, 6)], strict=True):
        weight = 4 / 9 if x == y == 0 else 1 / 9 if x * y == 0 else 1 / 36
        along = x * u + y * v
        wanted = weight * density * (rest + 3 * along + 4.5 * along * along)
        after.append(np.where(wall, opposite, own + 0.6 * (wanted - own)).astype(f0.dtype))
    return tuple(after)


def kinds(u: Any, kind: Any) -> Any:
    """Take several costly ways, which few cells need: in a branch, with values of the next lanes."""
    mean = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    mean = mean + np.float32(0.25) * kind[2:, 1:-1]
    here = kind[1:-1, 1:-1]
    steep = np.sqrt(abs(u[1:-1, 2:] - u[1:-1, :-2])) / (1 + mean * mean) + mean / 3
    wall = np.sqrt(abs(mean)) / 5 + kind[:-2, 2:] + np.sqrt(abs(u[1:-1, 1:-1]))
    return np.where(here == 1, steep, np.where(here == 2, wall, mean))


def potential(u: Any) -> Any:
    """Compute a potential, and then its Laplacian: two stages of one step."""
    centre = u[1:-1, 1:-1]
    return u[2:-2, 2:-2] + 0.01 * spread(centre * centre * centre - centre - 0.5 * spread(u))


def midpoint(u: Any, v: Any) -> Any:
    """Take a step of two stages, in each of which two fields carry each other along."""

    def rates(a: Any, b: Any) -> tuple[Any, Any]:
        x, y = (one[1:-1, 2:] - one[1:-1, :-2] for one in (a, b))
        up, down = (one[2:, 1:-1] - one[:-2, 1:-1] for one in (a, b))
        here_a, here_b = a[1:-1, 1:-1], b[1:-1, 1:-1]
        return (
            0.1 * spread(a) - 0.05 * (here_a * x + here_b * up),
            0.1 * spread(b) - 0.05 * (here_a * y + here_b * down),
        )

    half_u, half_v = rates(u, v)
    more_u, more_v = rates(u[1:-1, 1:-1] + 0.5 * half_u, v[1:-1, 1:-1] + 0.5 * half_v)
    return u[2:-2, 2:-2] + more_u, v[2:-2, 2:-2] + more_v


def chained(u: Any, rate: Any) -> Any:
    """Read a stage above the own cell only, and one of coefficients; a third stage reads both."""
    flow = np.sqrt(abs(u[1:] - u[:-1])) * (u[1:] + 0.25)
    mean = np.sqrt(rate[1:] + rate[:-1]) / 3
    lifted = (flow[:-1] * mean[:-1] - 0.5) / (1 + flow[1:] * flow[1:])
    return 0.5 * u[2:-2, 2:-2] + 0.25 * (lifted[:-2, 1:-3] - lifted[2:, 3:-1]) + 0.1 * flow[:-3, 2:-2]


def branched(u: Any, kind: Any) -> Any:
    """Compute each of two stages in another way where a mask says so: in a branch of its own."""
    for cut in (1, 2):
        here = kind[cut:-cut, cut:-cut] == 1
        mean = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        steep = np.sqrt(abs(u[2:, 1:-1])) / (1 + mean * mean) + np.sqrt(abs(mean)) / 3
        u = np.where(here, steep, mean)
    return u


def line(u: Any) -> Any:
    return u[1:-1] + 0.25 * (u[:-2] - 2 * u[1:-1] + u[2:])


def cube(u: Any) -> Any:
    centre = u[1:-1, 1:-1, 1:-1]
    sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    return centre + 0.1 * (sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * centre)


def slanting(u: Any) -> Any:
    """Read corners of the cube around a cell."""
    near = u[:-2, 2:, :-2] - u[2:, :-2, 1:-1] + 0.5 * u[2:, 2:, 2:]
    return 0.25 * (near + u[1:-1, :-2, 2:] - u[:-2, :-2, 1:-1]) + 0.5 * u[1:-1, 1:-1, 1:-1]


def materials(u: Any, rate: Any) -> Any:
    """Read coefficients of the neighbours along each axis."""
    centre, own = u[1:-1, 1:-1, 1:-1], rate[1:-1, 1:-1, 1:-1]
    z = (rate[2:, 1:-1, 1:-1] + own) * (u[2:, 1:-1, 1:-1] - centre)
    y = (rate[1:-1, :-2, 1:-1] + own) * (u[1:-1, :-2, 1:-1] - centre)
    x = (rate[1:-1, 1:-1, 2:] + own) * (u[1:-1, 1:-1, 2:] - centre)
    return centre + 0.1 * (z + y + x)


def wave3d(now: Any, before: Any) -> Any:
    after = cube(now) * 2 - before[1:-1, 1:-1, 1:-1]
    return after, now[1:-1, 1:-1, 1:-1]


@dataclass(frozen=True)
class Case:
    """A function of inputs. width: of the halo. feeds: of each output, the number of an input."""

    function: Callable[..., Any]
    dtypes: tuple[str, ...]
    width: int = 1
    feeds: tuple[int, ...] = (0,)
    axes: int = 2
    trailing: tuple[int, ...] = ()

    def program(self) -> Program:
        names = self.function.__code__.co_varnames
        inputs = [
            Operand(name, np.dtype(kind), self.trailing)
            for name, kind in zip(names, self.dtypes, strict=False)
        ]
        outputs = [f"output{number}" for number in range(len(self.feeds))]
        widths = ((self.width, self.width),) * self.axes
        return trace(self.function, inputs, widths, {}, frozenset(), outputs)


CASES = {
    "heat": Case(heat, ("f4",)),
    "heat f8": Case(heat, ("f8",)),
    "heat f2": Case(heat, ("f2",)),
    "wave": Case(wave, ("f4", "f4"), feeds=(0, 1)),
    "gray_scott": Case(gray_scott, ("f4", "f4"), feeds=(0, 1)),
    "life": Case(life, ("u1",)),
    "masked": Case(masked, ("f4", "f4")),
    "mixed": Case(masked, ("f8", "f4")),
    "far": Case(far, ("f4",), 2),
    "upwind": Case(upwind, ("f4",)),
    "still": Case(still, ("f4", "f4")),
    "rings": Case(rings, ("f4", "f4"), feeds=(0, 1)),
    "vectors": Case(vectors, ("f4",), trailing=(2,)),
    "downwind": Case(downwind, ("f4", "f4"), feeds=(0, 1)),
    "uneven": Case(uneven, ("f8", "f2", "f4"), 2, feeds=(0, 1)),
    "lattice": Case(lattice, ("f4",) * 9 + ("u1",), feeds=tuple(range(9))),
    "lattice f2": Case(lattice, ("f2",) * 9 + ("u1",), feeds=tuple(range(9))),
    "kinds": Case(kinds, ("f4", "u1")),
    "potential": Case(potential, ("f4",), 2),
    "midpoint": Case(midpoint, ("f8", "f8"), 2, feeds=(0, 1)),
    "chained": Case(chained, ("f4", "f4"), 2),
    "branched": Case(branched, ("f4", "u1"), 2),
    "line": Case(line, ("f4",), axes=1),
    "cube": Case(cube, ("f4",), axes=3),
    "cube f8": Case(cube, ("f8",), axes=3),
    "slanting": Case(slanting, ("f4",), axes=3),
    "materials": Case(materials, ("f4", "f4"), axes=3),
    "wave3d": Case(wave3d, ("f4", "f4"), feeds=(0, 1), axes=3),
}


def padded(array: Any, width: int, boundary: str, cval: float, axes: int) -> Any:
    """Return an array with the cells beyond it."""
    for axis in range(axes):
        length = array.shape[axis]
        places = [source_index(p, length, boundary) for p in range(-width, length + width)]
        rows = np.take(array, [p or 0 for p in places], axis)
        index = [slice(None)] * array.ndim
        index[axis] = np.flatnonzero([p is None for p in places])  # type: ignore[call-overload]
        rows[tuple(index)] = cval
        array = rows
    return array


def expected(case: Case, inputs: Sequence[Any], boundary: str, cval: float, steps: int) -> list[Any]:
    """Return the inputs after so many steps."""
    now = list(inputs)
    for _ in range(steps):
        with np.errstate(all="ignore"):
            found = case.function(*(padded(one, case.width, boundary, cval, case.axes) for one in now))
        for place, result in zip(case.feeds, found if len(case.feeds) > 1 else (found,), strict=True):
            now[place] = result
    return now


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def random(case: Case, shape: Sequence[int], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        (rng.random((*shape, *case.trailing)) * (2 if kind == "u1" else 1)).astype(kind)
        for kind in case.dtypes
    ]


def check(
    folder: Path,
    case: Case,
    kernel: StepKernel,
    boundary: str,
    cval: float,
    shape: Sequence[int],
    parts: Sequence[Part] | None = None,
    aligned: bool = False,
    given: Sequence[Any] | None = None,
    read: bool = False,
) -> None:
    """Compare what a rank with the cells of `parts`, and their neighbours' cells, gets.

    given: the arrays. read: neighbours' cells are there only as far as steps read them on each side.
    """
    whole = given or random(case, shape)
    wanted = expected(case, whole, boundary, cval, kernel.steps)
    halo = [(case.width, case.width)] * case.axes
    if read:
        reads = [kernel.program.footprint(place) for place in case.feeds]
        halo = [
            (max(one[axis][0] for one in reads), max(one[axis][1] for one in reads))
            for axis in range(case.axes)
        ]
    compare(
        folder, kernel, whole, [wanted[place] for place in case.feeds], halo, boundary == "wrap", parts,
        aligned=aligned, exact_nan=given is None,
    )  # fmt: skip


def made(name: str, boundary: str, steps: int = 4, vectors: bool = False) -> tuple[Case, StepKernel, float]:
    case = CASES[name]
    cval = 1 if name == "life" else 0.3
    tuning = Tuning(2, 2, 2, 1, rows=9, keeps=True)
    if vectors:
        tuning = Tuning(4, 1, 1, 3, rows=9, vectors=True, keeps=True)
    if case.axes == 3:
        tuning = Tuning(1, 3, 4, 1, rows=7) if not vectors else Tuning(2, 2, 6, 2, rows=7, vectors=True)
    return case, build(case.program(), case.feeds, boundary, cval, steps, tuning), cval


def by_day(names: Iterable[str]) -> Iterator[Any]:
    """Yield each name with each boundary: every eighth pair by day, the others at night."""
    for number, (name, boundary) in enumerate(product(names, BOUNDARIES)):
        yield pytest.param(name, boundary, marks=[pytest.mark.nightly] if number % 8 else [])


@pytest.mark.parametrize(("name", "boundary"), [*by_day(CASES)])
def test_bits_are_those_of_a_loop(name: str, boundary: str, libraries: Path) -> None:
    few = {
        "far": 3,
        "uneven": 3,
        "gray_scott": 2,
        "lattice": 2,
        "lattice f2": 2,
        "midpoint": 2,
        "chained": 3,
        "branched": 2,
    }
    steps = few.get(name, 4) if CASES[name].axes < 3 else 3
    case, kernel, cval = made(name, boundary, steps)
    for shape in [(5, 3), (31, 133)] if case.axes < 3 else [(2, 5, 3), (17, 19, 55)]:
        check(libraries, case, kernel, boundary, cval, shape[-case.axes :])


# Text of the kernel of `heat`, and what replaces it: each makes it wrong at one place.
MUTANTS = {
    "one row too few before a strip": (
        "most(needed - K * RY, all.known)",
        "most(needed - K * RY + 1, all.known)",
    ),
    "no row before the array": (
        "RY, all.known);",
        "RY, all.known + RY * (all.y.start == 0));",
    ),
    "one column too many of a tile": (
        "constexpr int VALID = TILE - 2 * MARGIN;",
        "constexpr int VALID = TILE - 2 * MARGIN + 1;",
    ),
    "a neighbour's cells of the lane itself": (
        "INLINE T from_left(T value) {",
        "INLINE T from_left(T value) { return value;",
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] if turn else []) for turn, name in enumerate(MUTANTS)],
)
def test_a_kernel_that_is_wrong_at_one_place_is_caught(name: str, libraries: Path) -> None:
    right, wrong = MUTANTS[name]
    case, kernel, cval = made("heat", "reflect")
    assert kernel.source.count(right) == 1
    mutant = replace(kernel, source=kernel.source.replace(right, wrong))
    with pytest.raises(AssertionError):
        check(libraries, case, mutant, "reflect", cval, (31, 133))


def test_a_branch_reads_a_value_of_the_same_row(libraries: Path) -> None:
    """Two stages with the same condition: the value is written before the branch that reads it."""
    case, kernel, cval = made("branched", "reflect", 2)
    assert "rows.value0" in kernel.source
    check(libraries, case, kernel, "reflect", cval, (31, 133))


def test_a_branch_that_one_cell_decides_is_caught(libraries: Path) -> None:
    """A lane takes a branch if any of its cells needs it, and the lanes of a warp together."""
    case, kernel, cval = made("kinds", "reflect", 1)
    tests = re.findall(r"if \(in_any_lane\(\((\w+)\)((?: \| \(\w+\))+)\)\)", kernel.source)
    assert tests
    source = kernel.source
    for first, others in tests:
        source = source.replace(f"in_any_lane(({first}){others})", f"in_any_lane({first})")
    rng = np.random.default_rng(1)
    inputs = [rng.random((9, 133), "f4"), np.zeros((9, 133), "u1")]
    inputs[1][2, 40] = inputs[1][6, 83] = 1  # alone in its warp's row; of either column of a lane
    wanted = expected(case, inputs, "reflect", cval, 1)[0]
    for text, right in ((kernel.source, True), (source, False)):
        outs = [np.empty_like(inputs[0])]
        run(libraries, replace(kernel, source=text), inputs, outs, [Axis(n, 0, n) for n in (9, 133)])
        assert np.array_equal(bits(outs[0]), bits(wanted)) == right


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (2, 2), (3, 56), (9, 57), (8, 112)])
@pytest.mark.parametrize(
    ("name", "boundary"),
    [  # one of the two by day, in turn
        pytest.param(name, boundary, marks=[pytest.mark.nightly] if (place + turn) % 2 else [])
        for place, boundary in enumerate(BOUNDARIES)
        for turn, name in enumerate(("heat", "upwind"))
    ],
)
def test_any_shape_will_do(name: str, boundary: str, shape: tuple[int, int], libraries: Path) -> None:
    case, kernel, cval = made(name, boundary)
    check(libraries, case, kernel, boundary, cval, shape)


@pytest.mark.parametrize(("name", "boundary"), [*by_day(["heat", "masked", "far", "still", "potential"])])
def test_a_rank_computes_its_part_of_the_array(name: str, boundary: str, libraries: Path) -> None:
    case, kernel, cval = made(name, boundary, 3)
    shape = (45, 160)
    rows = [Part(0, 45), Part(0, 14), Part(14, 29), Part(29, 45)]
    columns = [Part(0, 160), Part(0, 70), Part(70, 91), Part(91, 160), Part(20, 140)]
    for parts in list(product(rows, columns))[1:]:
        check(libraries, case, kernel, boundary, cval, shape, parts)


@pytest.mark.parametrize(
    ("name", "boundary"),
    [  # one of the two by day, in turn
        pytest.param(name, boundary, marks=[pytest.mark.nightly] if (place + turn) % 2 else [])
        for place, boundary in enumerate(("reflect", "wrap", "constant"))
        for turn, name in enumerate(("upwind", "downwind"))
    ],
)
def test_a_rank_has_neighbours_rows_only_where_they_are_read(
    name: str, boundary: str, libraries: Path
) -> None:
    """On one side of its own, as many as the kernel goes back on the other."""
    case, kernel, cval = made(name, boundary, 3)
    columns = Part(0, 300)
    for rows in [Part(0, 14), Part(14, 29), Part(29, 45), Part(1, 45)]:
        check(libraries, case, kernel, boundary, cval, (45, 300), [rows, columns], read=True)
    cubic = made("slanting", boundary, 2)[1]
    parts = [Part(5, 12), Part(0, 23), Part(0, 90)]
    check(libraries, CASES["slanting"], cubic, boundary, 0.3, (20, 23, 90), parts, read=True)


@pytest.mark.parametrize(("name", "boundary"), [*by_day(["cube", "materials", "slanting"])])
def test_a_rank_computes_its_part_of_a_cube(name: str, boundary: str, libraries: Path) -> None:
    case, kernel, cval = made(name, boundary, 3)
    shape = (20, 23, 60)
    for parts in [
        (Part(0, 7), Part(0, 23), Part(0, 60)),
        (Part(7, 20), Part(4, 14), Part(0, 60)),
        (Part(0, 20), Part(14, 23), Part(30, 60)),
        (Part(7, 14), Part(0, 9), Part(9, 47)),
    ]:
        check(libraries, case, kernel, boundary, cval, shape, parts)


@pytest.mark.parametrize(
    ("name", "boundary", "steps"),
    [
        ("heat", "wrap", 4),
        ("heat f8", "wrap", 5),
        ("masked", "wrap", 4),
        ("lattice f2", "wrap", 2),
        ("heat", "reflect", 4),
        ("heat f8", "nearest", 3),
        ("wave", "constant", 3),
        ("far", "mirror", 3),
        ("far", "reflect", 3),
        ("potential", "reflect", 2),
        ("potential", "wrap", 3),
        ("chained", "constant", 2),
    ],
)
def test_columns_beyond_the_array_are_in_other_lanes(
    name: str, boundary: str, steps: int, libraries: Path
) -> None:
    """Or on its other side, as are rows, if there are enough of them and a lane's are not on both sides."""
    case, kernel, cval = made(name, boundary, steps, True)
    tall, wide = Part(0, 33), Part(0, 372)
    for parts in [(tall, wide), (Part(15, 30), wide), (tall, Part(60, 300)), (Part(0, 8), wide)]:
        check(libraries, case, kernel, boundary, cval, (33, 372), parts, aligned=True)
    for shape in [(13, 12), (9, 4), (33, 128), (33, 371), (2, 372)]:
        check(libraries, case, kernel, boundary, cval, shape, aligned=True)


@pytest.mark.parametrize("boundary", ["wrap", "reflect"])
def test_tiles_without_slow_edges(boundary: str) -> None:
    _, kernel, _ = made("heat", boundary, 2, True)
    memory = np.zeros((33, 512), "f4")
    for columns, edges in [(372, 0), (371, 2)]:
        axes = [Axis(33, 0, 33), Axis(columns, 0, columns)]
        block = memory[:, :columns]
        _, _, low, high, *_ = arguments(kernel, [block], [block], axes).values
        assert low + high == edges


@pytest.mark.parametrize(
    ("name", "boundary"),
    [*by_day(["heat", "heat f8", "gray_scott", "life", "masked", "uneven", "lattice", "cube", "materials"])],
)
def test_vectors_change_nothing(name: str, boundary: str, libraries: Path) -> None:
    case, kernel, cval = made(name, boundary, 3, True)
    for shape in [(7, 9), (29, 371)] if case.axes == 2 else [(3, 7, 9), (13, 17, 130)]:
        check(libraries, case, kernel, boundary, cval, shape, aligned=True)
    parts = [Part(3, 9), Part(14, 29), Part(40, 360)][-case.axes :]
    check(libraries, case, kernel, boundary, cval, (12, 45, 400)[-case.axes :], parts, aligned=True)


@pytest.mark.parametrize(("name", "boundary"), [*by_day(["heat", "wave", "heat f8", "rings"])])
def test_products_that_overflow_are_rounded(name: str, boundary: str, libraries: Path) -> None:
    """Elements so large that four times them is infinite, infinities, NaN, zeros of both signs."""
    case, kernel, cval = made(name, boundary, 3, True)
    assert re.search(r"#define LARGEST 0x1.0+p", kernel.source)
    shape = (41, 371)
    rng = np.random.default_rng(5)
    kind = np.finfo(case.dtypes[0])
    for rare in (
        [],
        [kind.max / 3],
        [np.inf, -np.inf, np.nan, -0.0, 0.0, kind.tiny, kind.max, -kind.max / 4],
    ):
        arrays = []
        for _ in case.dtypes:
            array = rng.normal(size=shape).astype(kind.dtype)
            for value in rare:
                array[tuple(rng.integers(0, shape))] = value
            array[5:12, 100:200] = 0
            arrays.append(array)
        check(libraries, case, kernel, boundary, cval, shape, aligned=True, given=arrays)


@pytest.mark.parametrize(
    ("name", "boundary", "rows"),
    [("potential", "wrap", 3), ("midpoint", "wrap", 3), ("potential", "reflect", 5), ("heat", "wrap", 3)],
)
def test_the_loop_inside_holds_the_rows_that_are_read(name: str, boundary: str, rows: int) -> None:
    """All around the results' row if the loop for edges follows it, which keeps no values."""
    tuning = Tuning(columns=2, warps=2, ahead=3, keeps=True)
    kernel = build(CASES[name].program(), CASES[name].feeds, boundary, 0, 2, tuning)
    assert f"#define PERIOD {rows}\n" in kernel.source


@pytest.mark.parametrize("rows", [1, 5, 12, 13, 14, 15, 16, 17, 30])
def test_kept_values_of_few_rows_that_wrap_around(rows: int, libraries: Path) -> None:
    """The loop inside takes all rows of a strip, or none."""
    case, kernel, cval = made("potential", "wrap", steps=2, vectors=True)
    check(libraries, case, kernel, "wrap", cval, (rows, 128), aligned=True)


def test_vectors_need_aligned_rows() -> None:
    _, kernel, _ = made("heat", "wrap", vectors=True)
    block = np.zeros((6, 23), np.float32)
    with pytest.raises(ValueError, match="vector"):
        arguments(kernel, [block], [block], [Axis(6, 0, 6), Axis(23, 0, 23)])


def test_vectors_need_rows_equally_far_apart() -> None:
    memory = np.zeros(4096, np.uint8)
    first = -memory.ctypes.data % 64
    floats = memory[first : first + 2048].view(np.float32)
    near, far = floats[:256].reshape(8, 32), floats[:512].reshape(8, 64)[:, :32]
    mask = memory[first : first + 1024].reshape(8, 128)[:, :32]
    assert takes_vectors([near, near, mask], Tuning(), 2)
    assert takes_vectors([far, mask], Tuning(), 2)
    assert not takes_vectors([near, far], Tuning(), 2)


def test_components_are_not_read_by_vectors() -> None:
    """Four float32 of a cell are as large as a vector."""
    operand = Operand("u", np.dtype("f4"), (4,))
    program = trace(lambda u: u[1:-1, 1:-1] + u[:-2, 1:-1], [operand], ((1, 1),) * 2, {}, frozenset(), ["v"])
    kernel = DeviceKernel(program, ((1, 1),) * 2, feeds=(0,))
    assert kernel.most_steps > 1
    assert not kernel.aligned  # or each cell would begin a line of the cache
    assert not kernel._takes_vectors([np.zeros((8, 32, 4), np.float32)])


@pytest.mark.parametrize("step", [(64, 4, 1), (64, 4, 2), (64, 5, 1), (4, 64, 1)])
def test_cells_of_a_row_that_lie_apart_are_refused(step: tuple[int, int, int]) -> None:
    _, kernel, _ = made("vectors", "wrap")
    strides = tuple(4 * one for one in step)
    memory = np.zeros(4096, np.float32)
    apart = as_strided(memory, (8, 12, 2), strides, writeable=False)
    right = as_strided(memory, (8, 12, 2), (256, 8, 4), writeable=False)
    axes = [Axis(8, 0, 8), Axis(12, 0, 12)]
    arguments(kernel, [right], [right], axes)
    for inputs, outs in ([apart], [right]), ([right], [apart]):
        with pytest.raises(ValueError, match="lie apart"):
            arguments(kernel, inputs, outs, axes)


@st.composite
def programs(draw: st.DrawFn, axes: int = 2) -> Program:
    """Return a program of one or two fed inputs and perhaps one that stays."""
    graph = Graph()
    kind = np.dtype(draw(st.sampled_from(["f4", "f8", "i4", "u1", "i2"])))
    fed = draw(st.integers(1, 2))
    inputs = [Operand(f"input{n}", kind) for n in range(fed + draw(st.integers(0, 1)))]
    reach = draw(st.integers(1, 2))
    offsets = st.tuples(*[st.integers(-reach, reach)] * axes)

    def leaf() -> Any:
        if draw(st.integers(0, 5)) == 0:
            return graph.constant(draw(st.integers(0, 3)), kind)
        return graph.load(draw(st.integers(0, len(inputs) - 1)), kind, draw(offsets))

    results = []
    for _ in range(fed):
        node = leaf()
        for _ in range(draw(st.integers(1, 7))):
            op = draw(st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum", "where"]))
            if op == "where":
                test = graph.operation("less", np.dtype(bool), [node, leaf()])
                node = graph.operation("where", kind, [test, leaf(), node])
            else:
                node = graph.operation(op, kind, [node, leaf()])
        for _ in range(draw(st.integers(0, 2))):  # a stage of its own, at another cell
            (other,) = graph.shifted([node], draw(st.tuples(*[st.integers(-1, 1)] * axes)))
            node = graph.operation(draw(st.sampled_from(["add", "subtract", "minimum"])), kind, [node, other])
        results.append((node,))
    outputs = tuple(Operand(f"output{n}", kind) for n in range(fed))
    return Program(axes, tuple(inputs), outputs, tuple(results), graph)


def case_of(program: Program) -> Case:
    """Return a case that evaluates a program with NumPy."""
    width = max(max(max(pair) for pair in program.footprint(n)) for n in range(len(program.inputs)))

    def function(*blocks: Any) -> Any:
        found = evaluate(program, blocks, ((width, width),) * program.axes)
        return tuple(found) if len(found) > 1 else found[0]

    dtypes = tuple(one.dtype.str[1:] for one in program.inputs)
    return Case(function, dtypes, width, tuple(range(len(program.outputs))), program.axes)


@settings(max_examples=max(settings.default.max_examples // 6, 1))
@given(program=programs(), boundary=st.sampled_from(BOUNDARIES), steps=st.integers(1, 4), data=st.data())
def test_bits_of_any_program(
    program: Program, boundary: str, steps: int, data: st.DataObject, libraries: Path
) -> None:
    case = case_of(program)
    columns = data.draw(st.sampled_from([1, 2, 4]))
    tuning = Tuning(columns, 1, 1, data.draw(st.integers(1, 3)), rows=7, keeps=data.draw(st.booleans()))
    try:
        kernel = build(program, case.feeds, boundary, 2, steps, tuning)
    except NotFusable:
        assert columns == 1
        return
    shape = data.draw(st.tuples(st.integers(2, 33), st.integers(2, 150)))
    check(libraries, case, kernel, boundary, 2, shape)


@settings(max_examples=max(settings.default.max_examples // 15, 1))
@given(program=programs(3), boundary=st.sampled_from(BOUNDARIES), steps=st.integers(1, 3), data=st.data())
def test_bits_of_any_program_over_three_axes(
    program: Program, boundary: str, steps: int, data: st.DataObject, libraries: Path
) -> None:
    case = case_of(program)
    rows, warps = data.draw(st.sampled_from([(1, 7), (2, 6), (3, 6), (5, 3)]))
    tuning = Tuning(data.draw(st.sampled_from([1, 2])), rows, warps, rows=data.draw(st.integers(3, 30)))
    try:
        kernel = build(program, case.feeds, boundary, 2, steps, tuning)
    except NotFusable:
        assert rows * warps <= 4 * steps or tuning.columns == 1
        return
    shape = data.draw(st.tuples(st.integers(2, 25), st.integers(2, 30), st.integers(2, 70)))
    check(libraries, case, kernel, boundary, 2, shape)


def test_what_cannot_be_fused_is_said() -> None:
    program = CASES["wave"].program()
    with pytest.raises(NotFusable, match="feeds no input"):
        build(program, (0, None), "wrap")
    with pytest.raises(NotFusable, match="columns on each side"):
        build(program, (0, 1), "wrap", steps=40, tuning=Tuning(2))
    with pytest.raises(NotFusable, match="unlike the input"):
        build(CASES["mixed"].program(), (1,), "wrap")
    assert fitting_steps(program, (0, None)) == 0


def test_more_columns_or_wider_elements_allow_fewer_steps() -> None:
    heat = CASES["heat"].program()
    few, many = (fitting_steps(heat, (0,), Tuning(columns)) for columns in (4, 8))
    assert 0 < many < few
    assert fitting_steps(CASES["heat f8"].program(), (0,), Tuning(8)) < many


@pytest.mark.parametrize(
    ("name", "steps"), [("cube", 4), ("cube f8", 3), ("materials", 2), ("wave3d", 4), ("slanting", 4)]
)
def test_kernels_over_three_axes_take_as_many_steps_as_pay(name: str, steps: int) -> None:
    case = CASES[name]
    found = choices(case.program(), case.feeds)
    assert [one.steps for one in found] == [steps]


def test_inputs_read_at_many_neighbours_make_single_steps_as_fast() -> None:
    def diffuse(field: Any, rate: Any) -> Any:
        after = field[1:-1, 1:-1, 1:-1]
        for axis in range(3):
            rows = tuple(slice(None) if other == axis else slice(1, -1) for other in range(3))
            low, high = ([slice(None)] * 3 for _ in range(2))
            low[axis], high[axis] = slice(None, -1), slice(1, None)
            heat, conducts = field[rows], rate[rows]
            flow = (conducts[tuple(high)] + conducts[tuple(low)]) / 2 * (heat[tuple(high)] - heat[tuple(low)])
            after = after + (flow[tuple(high)] - flow[tuple(low)])
        return after

    program = Case(diffuse, ("f4", "f4"), axes=3).program()
    assert fitting_steps(program, (0,)) > 1
    assert choices(program, (0,)) == []


@pytest.mark.parametrize("length", [3, 64, 128, 768])
def test_blocks_over_three_axes_cover_all_planes(length: int) -> None:
    case = CASES["cube"]
    kernel = build(case.program(), case.feeds, "reflect", 0, 3)
    block = np.zeros((length,) * 3, np.float32)
    launch = arguments(kernel, [block], [block], [Axis(length, 0, length)] * 3)
    height = launch.values[0]
    assert launch.grid == (-(-length // kernel.valid), -(-length // kernel.valid_rows), -(-length // height))
    assert 1 <= height <= length
    if length == 768:
        assert 64 <= height <= 192  # as measured


@pytest.mark.parametrize(
    ("registers", "blocks"), [(168, None), (173, 3), (178, 3), (179, None), (200, None), (134, 4)]
)
def test_a_few_registers_too_many_for_one_block_more(registers: int, blocks: int | None) -> None:
    """A processor has 65536 registers: 168 for each thread of 3 blocks of 128, 128 of 4."""
    case = CASES["wave"]
    kernel = build(case.program(), case.feeds, "reflect", 0, 3, Tuning(4, ahead=3, blocks=2, vectors=True))
    closer = one_block_more(kernel, registers)
    assert closer == (None if blocks is None else replace(kernel.tuning, blocks=blocks))


def test_equal_programs_make_equal_text() -> None:
    case = CASES["gray_scott"]
    assert len({build(case.program(), (0, 1), "wrap", 0, 3).source for _ in range(2)}) == 1


COMPILED = {  # steps and choices of kernels that keep nothing in local memory, or next to nothing
    "heat": (7, Tuning(4, ahead=3, blocks=3, vectors=True)),
    "heat f8": (5, Tuning(4, ahead=3, blocks=2, vectors=True)),
    "gray_scott": (4, Tuning(4, ahead=3, blocks=3, vectors=True)),
    "life": (6, Tuning(8, blocks=2, vectors=True)),
    "wave": (5, Tuning(4, ahead=2, blocks=3)),
    "vectors": (3, Tuning(4, blocks=3)),
    "heat f2": (4, Tuning(4, blocks=3)),
    "uneven": (2, Tuning(2, ahead=3, blocks=2, vectors=True)),
    "lattice": (2, Tuning(2, ahead=3, blocks=3, vectors=True)),
    "lattice f2": (2, Tuning(2, ahead=3, blocks=3, vectors=True)),
    "potential": (4, Tuning(4, ahead=3, blocks=2, vectors=True, keeps=True)),
    "cube": (4, Tuning(2, 6, 12, vectors=True)),
    "cube f8": (3, Tuning(2, 4, 12, vectors=True)),
    "materials": (2, Tuning(2, 4, 12)),
}
# By day, with what each sends or does not; the others at night.
BY_DAY = {"heat": True, "heat f8": False, "gray_scott": True, "life": False, "uneven": True,
          "lattice": False, "potential": True, "cube": False}  # fmt: skip
# Bytes that a kernel may keep in local memory beside what all registers hold: name, and whether it sends.
SPILLED = {("cube", False): 56, ("cube f8", False): 254, ("gray_scott", True): 20}


@pytest.mark.parametrize(
    ("name", "sends"),
    [
        pytest.param(name, sends, marks=[] if BY_DAY.get(name) is sends else [pytest.mark.nightly])
        for name in COMPILED
        for sends in (False, True)
    ],
)
def test_compiles_for_a_gpu_without_spills(name: str, sends: bool) -> None:
    case, (steps, tuning) = CASES[name], COMPILED[name]
    if sends and case.axes != 2:
        pytest.skip("over two axes only")
    kernel = build(case.program(), case.feeds, "reflect", 0, steps, tuning, sends=sends)
    log = log_of_text(kernel.source, kernel.name, ("--fmad=false",), "90")
    assert "warning" not in log, log
    registers = re.search(r"Used (\d+) registers", log)
    assert registers, log
    print(f"{name}: {registers[1]} registers, {kernel.registers} estimated")
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", log)
    assert stack, log
    most = SPILLED.get((name, sends), 0)
    assert int(stack[2]) <= most, log
    assert int(stack[1]) <= most, log  # with arrays and arguments that are indexed
