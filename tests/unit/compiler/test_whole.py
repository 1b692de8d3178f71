"""Functions of whole arrays: their programs compute what NumPy computes with the whole arrays, to the bit."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from whole_functions import (
    Arrays,
    compiled,
    coordinates,
    differences,
    field,
    heat,
    life,
    masked,
    overlapping,
    periodic_by_hand,
    programs,
    red_then_black,
    runge_kutta,
    traced,
    views,
    wave,
)
from whole_kernels import halo_of, in_blocks

from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.pieces import compute_piece, pieces_of
from meshrun.runner.compiler.whole.point_pass import point_writes, without_points
from meshrun.runner.compiler.whole.trace import WholeProgram
from tests.facts.whole_positions import evaluate, spread, spread_results


def check(
    function: Callable[..., Any],
    *arrays: Any,
    names: Sequence[str] = ("out",),
    axes: Any = None,
    **parameters: Any,
) -> None:
    """Compare the program with the function itself."""
    program = traced(function, arrays, names, axes, **parameters)
    mine = [one.copy() for one in arrays]
    returned = function(*mine, **parameters)
    if returned is None:
        returned = [mine[number] for number in program.changed]
    wanted = returned if isinstance(returned, (tuple, list)) else [returned]
    arrays = (*arrays, *(one.values for one in program.constants))
    for want, found in zip(wanted, evaluate(program, arrays), strict=True):
        assert (found.dtype, found.shape) == (want.dtype, want.shape)
        assert found.tobytes() == np.ascontiguousarray(want).tobytes(), f"{found}\n{want}"
    check_blocks(program, [spread(program, one) for one in arrays], spread_results(program, wanted))


def check_blocks(program: WholeProgram, arrays: Arrays, wanted: Arrays) -> None:
    """Compute blocks of the results with NumPy, each from its own cells and their halo."""
    plain, points = without_points(program.program), point_writes(program.program, halo_of(program.program))

    def run(blocks: Arrays, outs: Arrays, first: Sequence[int]) -> None:
        start = tuple(first)
        last = tuple(a + n for a, n in zip(start, outs[0].shape, strict=False))
        for piece in pieces_of(plain, start, last):
            cells = tuple(
                slice(a - at, b - at) for a, b, at in zip(piece.first, piece.last, start, strict=True)
            )
            results = compute_piece(np, plain, piece, blocks, halo_of(program.program), start)
            for whole, result in zip(outs, results, strict=True):
                whole[cells] = result
        if points is not None:
            points.fill(blocks, outs, start)

    in_blocks(program.program, run, arrays, wanted, wraps=any(program.wraps), beyond=0)


@pytest.mark.parametrize(
    "function", [heat, periodic_by_hand, life, red_then_black, runge_kutta, differences, views, overlapping]
)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "u1"])
def test_functions_of_one_field(function: Callable[..., Any], dtype: str) -> None:
    try:
        function(field(9, 10, dtype=dtype))
    except TypeError:
        pytest.skip("NumPy refuses it")
    check(function, field(19, 17, dtype=dtype))


def test_places_and_masks() -> None:
    check(masked, field(20, 17))
    check(coordinates, field(20, 17))
    check(wave, field(20, 17), field(20, 17, seed=1), names=("u", "before"))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("width", [1, 3, ((2, 0), (1, 4))])
def test_padding(mode: Any, width: Any) -> None:
    def padded(u):
        wide = np.pad(u, width, mode=mode)
        (top, _), (left, _) = np.broadcast_to(width, (2, 2)).tolist()
        cells = wide[top : top + u.shape[0], left : left + u.shape[1]]
        return cells + wide[: u.shape[0], : u.shape[1]] * wide[-u.shape[0] :, -u.shape[1] :]

    check(padded, field(12, 15))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_gradients(order: int, dtype: str) -> None:
    def slope(u):
        down, across = np.gradient(u, 0.1, 0.3, edge_order=order)
        return down * across

    check(slope, field(12, 15, dtype=dtype))
    check(lambda u: np.gradient(u, axis=1), field(12, 15, dtype=dtype))


K = np.random.default_rng(5).random((20, 17))
COLUMN, ROW, HOT = np.linspace(0, 1, 20)[:, None] ** 3, np.sqrt(np.arange(17.0)), K > 0.5


def scaled(u):
    return u * K + COLUMN * ROW - ROW


def varying(u):
    u[1:-1, 1:-1] += K[1:-1, 1:-1] * 0.5 * (u[2:, 1:-1] - u[:-2, 1:-1]) + K[2:, 1:-1] - K[:-2, 1:-1]


def placed(u):
    u[HOT] = 3
    u[::2] += K[::2]
    u[:, 1::3] *= ROW[1::3]
    u[0], u[:, 0] = ROW, COLUMN[:, 0]
    v = np.zeros_like(u)
    v[2:5] = K[7:10]
    return np.where(HOT, u, v) + np.sin(K)[5:6]


def grids(u):
    x, y = np.ogrid[0:20, 0:17]
    a, b = np.mgrid[0:1:20j, 0:2:17j]
    return u * x + y * a - b + np.fromfunction(lambda i, j: i * 2 + j, (20, 17)) + np.arange(17) * 0.3 * ROW


def only_constants(u):
    return K * 2


@pytest.mark.parametrize("function", [scaled, varying, placed, grids, only_constants])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_arrays_from_outside_are_inputs(function: Callable[..., Any], dtype: str) -> None:
    check(function, field(20, 17, dtype=dtype))


def test_small_arrays_from_outside_meet_axes_of_their_length() -> None:
    small = np.arange(8.0) ** 2
    check(lambda u: u * small + small[:, None], field(8, 8))
    weights = np.arange(3.0)
    check(lambda w: w * weights * small[:, None, None], field(8, 9, 3), axes=(0, 1))


def test_slices_of_an_array_from_outside_are_one_input() -> None:
    program = traced(lambda u: u[1:-1] * 0 + K[2:] - K[:-2], [field(20, 17)], ("out",))
    assert [one.name for one in program.constants] == ["K"]


def test_faces_beside_cells() -> None:
    def projected(u, p):
        u[1:-1] -= 0.1 * (p[1:] - p[:-1])
        return u, p - 0.2 * (u[1:] - u[:-1])

    check(projected, field(21, 17), field(20, 17, seed=1), names=("u", "p"))


def test_axes_that_are_none_of_space() -> None:
    def streamed(w):
        out = w.copy()
        out[1:, :, 0] = w[:-1, :, 0]
        out[..., 1] = np.roll(w[..., 1], 2, axis=1)
        out[0, :, 2] = 1
        return out / out.sum(axis=-1)[..., None]

    check(streamed, field(20, 17, 3), axes=(0, 1))


def test_helpers_make_arrays_with_places_and_nothing_stays_changed() -> None:
    globals_of = differences.__globals__
    before = dict(globals_of)
    check(differences, field(20, 17))
    assert {name: value for name, value in globals_of.items() if before.get(name) is not value} == {}


@settings(max_examples=60)
@given(programs())
def test_random_programs(text: str) -> None:
    check(compiled(text), field(11, 9), field(11, 9, dtype="f4", seed=1), names=("u", "v", "w"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("if u[0] > 0: u[0] = 1", "decides by the value"),
        ("u[1:] = u[0]", "one row of an array with all rows"),
        ("u[...] = u[3:4]", "one row of an array with all rows"),
        ("u[...] = u.T", "different axes|could not broadcast"),
        ("u[:6] = u[::2]", "every second"),
        ("u[[*range(9)]] = 3", "picks 9 rows of a field by an array"),
        ("u[...] = u[::-1]", "reverses"),
        ("return u[::-1]", "returns an array with a reversed axis"),
        ("return 2 * np.flip(u, 1)", "returns an array with a reversed axis"),
        ("return np.rot90(u, 2).copy()", "returns an array with a reversed axis"),
        ("return u + np.argmax(u[::-1])", "argmax along a reversed axis"),
        ("return u + np.argmin(u[:, ::-1], axis=1)[:, None]", "argmin along a reversed axis"),
        ("return np.fft.fft2(u[::-1]).real", "transforms a reversed array"),
        ("return u @ u[::-1]", "transforms a reversed array"),
        ("while u.max() > 1: u = u[::-1] / 2", "becomes .*reversed"),
        ("u[...] = np.sort(u)", r"numpy\.sort"),
        ("u += np.random.random((11, 11))", "something else at each call"),
        ("u += np.random.random()", "something else at each call"),
        ("u[11] = 1", "out of bounds"),
        ("u[1:, 2:] = u[1:]", "could not broadcast"),
        ("u.flat[3] = 1", "flat"),
        ("return float(u[0, 0])", "Python number"),
        ("u = 3", "returns nothing"),
    ],
)
def test_what_is_refused_has_its_line(line: str, says: str) -> None:
    function = compiled(f"def f(u):\n    pass\n    {line}\n")
    with pytest.raises(NotTraceable, match=says) as refused:
        traced(function, [field(11, 11)], ("out",))
    assert refused.value.line == 3


def test_a_coroutine_is_refused_and_nothing_is_said_of_it_later(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(NotTraceable, match="returns a coroutine"):
        traced(compiled("async def f(u):\n    return u\n"), [field(11, 11)], ("out",))
    gc.collect()  # other tests' objects, too, of which warnings may speak
    assert [str(one.message) for one in recwarn if "coroutine" in str(one.message)] == []


def test_a_program_is_shown_in_a_length_that_does_not_grow_with_its_uses() -> None:
    doubled = compiled("def f(u):\n    for _ in range(14):\n        u = u + u\n    return u\n")
    assert len(repr(traced(doubled, [field(11, 11)], ("out",)))) < 10_000


@pytest.mark.parametrize("mutant", ["edges of every array", "no wrap", "aliased late"])
def test_the_comparison_finds(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshrun.runner.compiler.whole import array
    from meshrun.runner.compiler.whole.graph import WholeGraph

    if mutant == "edges of every array":
        monkeypatch.setattr(array.Whole, "_conditions", lambda self: [])
    elif mutant == "no wrap":
        load = WholeGraph.load
        monkeypatch.setattr(
            WholeGraph, "load_at", lambda self, n, dtype, at, c=0: load(self, n, dtype, (0, 0), c)
        )
    else:
        monkeypatch.setattr(WholeGraph, "moved", lambda self, nodes, shift: list(nodes))
    with pytest.raises(AssertionError):
        check(periodic_by_hand, field(19, 17))
