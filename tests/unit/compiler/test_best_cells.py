"""Kernels that combine what they compute, to the largest, the smallest, the sum; run by the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whole_functions as whole
from fused import GXX, launchers
from nvrtc_log import log_of
from whole_kernels import TextKernel, block_of, boxes, compile_texts, halo_of

from meshrun.runner.arrays import exact_sum
from meshrun.runner.compiler.cuda import values
from meshrun.runner.compiler.cuda.pass_launch import key_of
from meshrun.runner.compiler.cuda.single_pass import emit
from meshrun.runner.compiler.cuda.values import SUM_COPIES, SUM_WORDS, BestKey, SumKey
from meshrun.runner.compiler.trace.graph import Graph, Operand, Program, slot_of

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")
WAYS = ("maximum", "minimum")


def line(u):
    new = u * 2
    new[0] = 5
    return new


# Without ends, with ends, a march through planes with ends, one axis; whole numbers
CASES: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "pointwise": (lambda u: abs(u) + 1, (13, 40), "f4"),
    "rolled": (lambda u: u - np.roll(u, 1, 0), (13, 40), "f8"),
    "edges": (whole.heat, (23, 41), "f4"),
    "cube": (whole.cube, (12, 11, 19), "f4"),
    "line": (line, (300,), "f8"),
    "signed": (lambda u: u * 3, (13, 40), "i4"),
    "unsigned": (lambda u: u + u, (13, 40), "u8"),
}


def keeping(name: str) -> tuple[Program, Any]:
    """Return a program that also combines its results, in three ways, and what it is given."""
    function, shape, dtype = CASES[name]
    given = (whole.field(*shape) * 100).astype(dtype)
    program = whole.traced(function, [given], ["out"]).program
    kept = tuple(Operand(way, program.outputs[0].dtype, combine=way) for way in (*WAYS, "add"))
    return replace(program, outputs=(*program.outputs, *kept), results=program.results * 4), given


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("best")
    return dict(zip(CASES, compile_texts(folder, [keeping(name)[0] for name in CASES]), strict=True))


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """decode(dtype, keys, sums) -> the largest cell, the smallest, the sum; keys and sums are set back."""
    dtypes = [np.dtype(name) for name in ("f4", "f8", "i4", "u8")]
    emitted = []
    for one in dtypes:
        best = [(n, BestKey(n, way, one, one)) for n, way in enumerate(WAYS)]
        alone, total = (SumKey(0, one, one, added=added) for added in (False, True))
        emitted += [
            values.emit([*best, (2, alone)]),
            values.emit_totals([total]),
            values.emit([*best, (2, total)]),
        ]
    made: Any = launchers(tmp_path_factory.mktemp("decode"), emitted)  # type: ignore[arg-type]

    def decoded(dtype: np.dtype[Any], keys: Any, sums: Any, *, totals: bool = False) -> list[Any]:
        slots, at = np.zeros(3, np.uint64), 3 * dtypes.index(dtype)
        given = [np.uint64(one.ctypes.data) for one in (slots, keys, sums[1:], sums)]  # the total comes first
        for number in (at + 1, at + 2) if totals else (at,):
            made[number]((1,), (emitted[number].threads, 1), given)
            assert not sums[1:].any()
        assert not keys.any()
        assert not sums.any()
        return [slot_of(slots, n, dtype)[()] for n in range(3)]

    return decoded


def best(kernel: TextKernel, program: Program, given: Any, decode: Any, **options: Any) -> list[Any]:
    """Return what all blocks' cells are combined to, each computed by itself into the same keys and sum."""
    keys, sums = np.zeros(2, np.uint64), np.zeros((SUM_COPIES + 1, SUM_WORDS), np.uint64)
    widths = halo_of(program)
    for first, last in boxes(given.shape, 0):
        own = tuple(b - a for a, b in zip(first, last, strict=True))
        kept = [*(key_of(np, keys, n, own) for n in range(2)), key_of(np, sums[1:].reshape(-1), 0, own)]
        block, out = block_of(given, first, last, widths), np.empty(own, program.outputs[0].dtype)
        kernel.bind([block], [out, *kept], first)()
    found: list[Any] = decode(program.outputs[0].dtype, keys, sums, **options)
    return found


def total(cells: Any) -> Any:
    """Return the exact sum of cells, rounded once; of integers, NumPy's."""
    if cells.dtype.kind != "f":
        return cells.sum(dtype=cells.dtype)
    words = exact_sum.zero_words()
    exact_sum.add_cells(words, np, cells)
    return exact_sum.rounded(words, cells.dtype)


@needs_compiler
@pytest.mark.parametrize("totals", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_the_cells_of_all_blocks_are_combined_to(
    name: str, totals: bool, kernels: Any, decode: Any
) -> None:
    program, given = keeping(name)
    wanted = CASES[name][0](given.copy())
    found = best(kernels[name], program, given, decode, totals=totals)
    expected = [wanted.max(), wanted.min(), total(wanted)]
    assert [one.tobytes() for one in found] == [one.tobytes() for one in expected]


@needs_compiler
@pytest.mark.parametrize("name", ["pointwise", "edges", "cube"])
def test_a_sum_of_cells_of_every_size_is_rounded_once(name: str, kernels: Any, decode: Any) -> None:
    program, given = keeping(name)
    power = np.random.default_rng(5).integers(-120, 100, given.shape)
    given[...] = given * 2.0**power
    wanted = CASES[name][0](given.copy())
    assert best(kernels[name], program, given, decode)[2].tobytes() == total(wanted).tobytes()


@needs_compiler
def test_sums_of_infinities(kernels: Any, decode: Any) -> None:
    program, given = keeping("rolled")
    given[3, 5] = np.inf
    assert np.isnan(best(kernels["rolled"], program, given, decode)[2])  # of both signs
    program, given = keeping("pointwise")
    given[3, 5] = -np.inf
    assert best(kernels["pointwise"], program, given, decode)[2] == np.inf


@needs_compiler
@pytest.mark.parametrize("place", [(0, 0), (7, 20), (22, 40)])
def test_nan_is_the_largest_and_the_smallest(place: Any, kernels: Any, decode: Any) -> None:
    program, given = keeping("pointwise")
    given[place[0] % 13, place[1] % 40] = np.nan
    assert np.isnan(best(kernels["pointwise"], program, given, decode)).all()


@needs_compiler
def test_infinities_and_zeros(kernels: Any, decode: Any) -> None:
    program, given = keeping("rolled")
    given[:] = -0.0
    found = best(kernels["rolled"], program, given, decode)
    assert [one.tobytes() for one in found] == [bytes(8)] * 3
    program, given = keeping("pointwise")
    given[:] = -np.inf
    assert best(kernels["pointwise"], program, given, decode) == [np.inf, np.inf, np.inf]


@needs_compiler
def test_values_from_values(tmp_path: Path) -> None:
    graph, f4 = Graph(), np.dtype("f4")
    first = graph.operation("divide", f4, [graph.constant(1, f4), graph.scalar(0, f4)])
    second = graph.operation("add", f4, [graph.scalar(1, f4), graph.constant(2, f4)])
    emitted = values.emit([(0, BestKey(0, "maximum", np.dtype("i4"), f4)), (1, first), (2, second)])
    (launch,) = launchers(tmp_path, [emitted])  # type: ignore[list-item]
    slots, keys = np.zeros(3, np.uint64), np.array([(1 << 31) + 4], np.uint64)
    launch(
        (1,), (1, 1), (np.uint64(slots.ctypes.data), np.uint64(keys.ctypes.data), np.uint64(0), np.uint64(0))
    )
    assert [float(slot_of(slots, n, f4)) for n in range(3)] == [4, 0.25, 2.25]


@pytest.mark.parametrize("architecture", ["80", "90", "100"])
@pytest.mark.parametrize("name", ["edges", "rolled", "cube", "unsigned"])
def test_they_compile_for_gpus_and_spill_nothing(name: str, architecture: str) -> None:
    log = log_of(emit(keeping(name)[0]), architecture)
    assert "warning" not in log
    assert " 0 bytes spill stores" in log


def test_a_kernel_of_values_compiles_for_gpus() -> None:
    f4 = np.dtype("f4")
    kernel = values.emit([(0, BestKey(0, "minimum", f4, f4)), (1, SumKey(1, f4, np.dtype("f8")))])
    assert "warning" not in log_of(kernel, "90")  # type: ignore[arg-type]
