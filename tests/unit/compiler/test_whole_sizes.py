"""Whole arrays of several sizes: faces beside cells, coarse grids beside fine ones. To the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.runner.compiler.whole.sizes import space_of, subgrid_of
from meshrun.runner.region import Region, Subgrid
from tests.unit.compiler.test_whole import check, compiled, field, traced


def acoustic(u, v, p, *, dt=0.1):
    """Velocities on faces, pressure in cells."""
    u[1:-1] -= dt * (p[1:] - p[:-1])
    v[:, 1:-1] -= dt * (p[:, 1:] - p[:, :-1])
    u[0] = u[-1] = 0
    v[:, 0] = v[:, -1] = 0
    p -= dt * (u[1:] - u[:-1] + v[:, 1:] - v[:, :-1])
    return u, v, p


def maxwell(ex, ey, hz, *, dt=0.3):
    """Yee's cells: ex (n, m+1), ey (n+1, m), hz (n, m); a perfect conductor around them."""
    ex[:, 1:-1] += dt * (hz[:, 1:] - hz[:, :-1])
    ey[1:-1, :] -= dt * (hz[1:, :] - hz[:-1, :])
    hz += dt * ((ex[:, 1:] - ex[:, :-1]) - (ey[1:] - ey[:-1]))


def periodic_faces(u, p):
    """The first face is the last; pressure around the end."""
    u[1:-1] -= 0.1 * (p[1:] - p[:-1])
    u[0] -= 0.1 * (p[0] - p[-1])
    u[-1] = u[0]
    p = p - 0.2 * (u[1:] - u[:-1]) + np.roll(p, 1, axis=1)
    return u, p


def inner_faces(u, p):
    """n - 1 faces between n cells."""
    u = u - 0.5 * np.diff(p, axis=0)
    p[1:] += u
    p[:-1] -= u
    return u, p


def gradient(p):
    """Results of other sizes than the input: n + 1 faces, n - 1 faces, ghost cells around."""
    u = np.zeros((p.shape[0] + 1, p.shape[1]))
    u[1:-1] = p[1:] - p[:-1]
    u[0], u[-1] = p[0], -p[-1]
    ghost = np.zeros((p.shape[0] + 2, p.shape[1] + 2))
    ghost[1:-1, 1:-1] = p
    ghost[0] = ghost[1]
    return u, np.diff(p, axis=1), ghost[:-2, 1:-1] + ghost[2:, 1:-1]


def every_second(a):
    return a[::2], a[1::2], a[::2, ::2] * 2, a[1::4, 2::4]


def restricted(a):
    c = 0.25 * (a[::2, ::2] + a[1::2, ::2] + a[::2, 1::2] + a[1::2, 1::2])
    return c, c[1:-1, 1:-1] - c[2:, 1:-1]


def prolonged(c, fine):
    fine[::2, ::2] = c
    fine[1::2, ::2] = c
    fine[:, 1::2] = fine[:, ::2] * 2
    c[1:-1] = c[2:] - c[:-2]
    return fine, c


def cycle(u, c):
    """A residual to a coarse grid, and a correction from it."""
    r = u.copy()
    r[1:-1, 1:-1] -= u[2:, 1:-1] + u[:-2, 1:-1]
    c += r[::2, ::2]
    u[::2, ::2] += 0.5 * c
    u[1:-1:2] = 0.5 * (u[:-2:2] + u[2::2])


@pytest.mark.parametrize(("rows", "columns"), [(20, 17), (11, 16)])
def test_faces_beside_cells(rows: int, columns: int) -> None:
    n, m = rows, columns
    check(acoustic, field(n + 1, m), field(n, m + 1, seed=1), field(n, m, seed=2), names=("u", "v", "p"))
    check(maxwell, field(n, m + 1), field(n + 1, m, seed=1), field(n, m, seed=2), names=("ex", "ey", "hz"))
    check(periodic_faces, field(n + 1, m), field(n, m, seed=1), names=("u", "p"))
    check(inner_faces, field(n - 1, m), field(n, m, seed=1), names=("u", "p"))
    check(gradient, field(n, m), names=("u", "v", "w"))


@pytest.mark.parametrize(("rows", "columns"), [(20, 16), (21, 17), (22, 19)])
def test_coarse_beside_fine(rows: int, columns: int) -> None:
    check(every_second, field(rows, columns), names=("even", "odd", "both", "fourth"))
    check(cycle, field(21, 17), field(11, 9, seed=1), names=("u", "c"))
    if rows % 2 == columns % 2 == 0:
        check(restricted, field(rows, columns), names=("c", "d"))
        coarse = field(rows // 2, columns // 2, seed=1)
        check(prolonged, coarse, field(rows, columns), names=("fine", "c"))


@pytest.mark.parametrize(
    ("shapes", "space"),
    [
        ([(21, 16), (20, 17), (20, 16)], (21, 17)),
        ([(9, 8), (8, 8)], (9, 8)),
        ([(20, 17, 3), (20, 17)], (20, 17)),
        ([(20, 17, 8), (20, 17, 16)], (20, 17)),
        ([(40, 40), (20, 20), (10, 10)], (40, 40)),
        ([(20, 17), (13, 17)], ()),
        ([(20, 17), ()], (20, 17)),
    ],
)
def test_space_of_shapes(shapes: list[tuple[int, ...]], space: tuple[int, ...]) -> None:
    assert space_of(shapes) == space


@given(
    length=st.integers(1, 40), step=st.sampled_from([1, 2, 4]), less=st.integers(0, 1),
    first=st.integers(0, 45), more=st.integers(0, 45),
)  # fmt: skip
def test_cells_of_a_subgrid_are_at_their_places(
    length: int, step: int, less: int, first: int, more: int
) -> None:
    subgrid = Subgrid((max(-(-length // step) - less, 1),), (step,))
    whole = np.full(100, -1)
    whole[: step * subgrid.shape[0] : step] = np.arange(subgrid.shape[0])
    region = Region((first,), (first + more,))
    part, cells = whole[first : first + more], subgrid.cells(region)
    assert part[subgrid.places(region)].tolist() == list(range(cells.start[0], cells.stop[0]))
    assert set(part[part >= 0]) == set(range(cells.start[0], cells.stop[0]))


STATEMENTS = (
    "u[1:-1] {op} p[1:] - p[:-1]",
    "p {op} u[1:] - u[:-1]",
    "p {op} v[:, 1:] + 2 * v[:, :-1]",
    "v[:, 1:-1] {op} np.diff(p, axis=1)",
    "u[{i}] = u[{j}]",
    "v[:, {i}] = {k}",
    "p[{i}] {op} u[{j}] * 0.5",
    "p = np.roll(p, {i}, axis={x})",
    "u = np.roll(u, {i}, axis={x})",
    "p = np.where(u[1:] > {k}, p, v[:, :-1])",
    "c {op} p[::2, ::2]",
    "p[::2, ::2] {op} c",
    "p[1::2, ::2] = p[::2, ::2] - c",
    "c[1:] {op} c[:-1]",
    "c[{i}] = {k}",
    "u[p.shape[0]:] = {k}",
    "u, p = u * 1, p + {k}",
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A function of faces, cells and a coarse grid, as text."""
    lines = ["def f(u, v, p, c):"]
    for _ in range(draw(st.integers(1, 6))):
        words = {
            "op": draw(st.sampled_from(["=", "+=", "-="])), "i": draw(st.integers(-4, 3)),
            "j": draw(st.integers(-4, 3)), "k": draw(st.sampled_from(["0", "1.5"])),
            "x": draw(st.integers(0, 1)),
        }  # fmt: skip
        line = draw(st.sampled_from(STATEMENTS)).format(**words)
        lines.append("    " + line.replace("p = u[", "p[...] = u[").replace("c = p[", "c[...] = p["))
    return "\n".join([*lines, "    return u, v, p, c", ""])


@settings(max_examples=40)
@given(programs())
def test_random_programs(text: str) -> None:
    arrays = [field(13, 10), field(12, 11, seed=1, dtype="f4"), field(12, 10, seed=2), field(6, 5, seed=3)]
    check(compiled(text), *arrays, names=tuple("uvpc"))


@pytest.mark.parametrize("mutant", ["wrap around the array's own end", "junk beyond"])
def test_the_comparison_finds(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshrun.runner.compiler.whole import graph, trace

    if mutant == "wrap around the array's own end":
        load = graph.WholeGraph.load_at
        shorter = (20, 17)

        def own(self, number, dtype, at, component=0):
            kept, self.lengths = self.lengths, [(21, 17), shorter]
            try:
                return load(self, number, dtype, at, component)
            finally:
                self.lengths = kept

        monkeypatch.setattr(graph.WholeGraph, "load_at", own)
    else:
        monkeypatch.setattr(trace, "only_own", lambda graph, nodes, subgrid, space: nodes)
    with pytest.raises(AssertionError):
        check(periodic_faces, field(21, 17), field(20, 17, seed=1), names=("u", "p"))


def test_sizes_of_a_program() -> None:
    program = traced(acoustic, [field(13, 10), field(12, 11), field(12, 10)], ("u", "v", "p"))
    assert program.space == (13, 11)
    assert program.sizes is not None
    assert program.sizes.inputs == tuple(subgrid_of(s, (13, 11)) for s in [(13, 10), (12, 11), (12, 10)])
    assert traced(lambda u: u * 2, [field(13, 10)], ("u",)).sizes is None
