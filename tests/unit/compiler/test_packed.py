"""Small elements that are computed in words: all bits of NumPy's, for all values of a byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused import GXX, check_in_memory, example, host, same, widths_of
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import BOOL, SMALL, of_floats, of_integers, of_neighbours, of_sums, program_of
from random_programs import programs

from meshrun.runner.compiler.cuda.single_pass import emit
from meshrun.runner.compiler.passes.strips import MOST, Strips, operand_bound
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Graph, Program

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")


def body_of(program: Program, columns: int) -> str:
    return emit(program, tile=(2, columns)).source.partition("__global__")[2]


def check(folder: Path, program: Program, blocks: list[Any], columns: int = 8) -> None:
    kernel = emit(program, tile=(2, columns))
    (run,) = host(folder, [kernel])
    widths = widths_of(program)
    expected = evaluate(program, blocks, widths)
    outs = [np.empty_like(one) for one in expected]
    run(kernel, blocks, outs, widths)
    for out, one, node in zip(outs, expected, program.outputs, strict=True):
        try:
            same(out, one)
        except AssertionError as wrong:
            raise AssertionError(f"{node.name}: {wrong}") from None


@needs_compiler
@pytest.mark.parametrize("dtype", SMALL)
def test_each_operation_on_words_gives_numpys_bits(dtype: str, tmp_path: Path) -> None:
    program, blocks = of_integers(dtype)
    assert "numpy::" not in body_of(program, 8)
    check(tmp_path, program, blocks)


@needs_compiler
@pytest.mark.parametrize(("dtype", "columns"), [("uint8", 4), ("int8", 16), ("uint16", 4), ("int16", 8)])
def test_neighbours_along_the_row_are_any_number_of_cells_away(
    dtype: str, columns: int, tmp_path: Path
) -> None:
    check(tmp_path, *of_neighbours(dtype), columns)


@needs_compiler
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_sums_of_many_bytes_stay_apart(dtype: str, tmp_path: Path) -> None:
    """Sums in 16 bits are taken back to a byte before they could carry into the next element."""
    program, blocks = of_sums(dtype)
    check(tmp_path, program, blocks)
    strips = Strips(packed=True, components=[1, 1])
    strips.of(program.nodes)
    assert max(strip.bound for strip in strips.all) <= MOST
    pairs = [(strip, one) for strip in strips.all for one, _ in strip.operands if strip.bound]
    assert any(operand_bound(strip, one) < one.bound for strip, one in pairs)


@needs_compiler
@pytest.mark.parametrize("trailing", [(), (3,)])
def test_small_integers_become_floats_exactly(trailing: tuple[int, ...], tmp_path: Path) -> None:
    program, blocks = of_floats(trailing)
    assert "numpy::" not in body_of(program, 4)
    check(tmp_path, program, blocks, columns=4)


@needs_compiler
def test_bytes_that_are_no_bools_are_true(tmp_path: Path) -> None:
    graph = Graph()
    a, b = graph.load(0, BOOL, (0, -1)), graph.load(0, BOOL, (0, 1))
    both = graph.operation("logical_and", BOOL, (a, b))
    program = program_of(graph, [both, graph.operation("cast", np.dtype(np.uint8), (both,))], BOOL)
    bytes_ = np.random.default_rng(3).choice(np.array([0, 1, 2, 128, 255], np.uint8), (5, 50))
    kernel = emit(program, tile=(1, 8))
    (run,) = host(tmp_path, [kernel])
    outs = [np.empty((5, 48), bool), np.empty((5, 48), np.uint8)]
    run(kernel, [bytes_.view(bool)], outs, widths_of(program))
    expected = (bytes_[:, :-2] != 0) & (bytes_[:, 2:] != 0)
    for out in outs:
        np.testing.assert_array_equal(out.view(np.uint8), expected.view(np.uint8))


@needs_compiler
@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(program=programs(("bool", "int8", "uint8", "int16", "uint16", "float16")), data=st.data())
def test_any_program_of_small_elements_gives_numpys_bits(
    program: Program, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tile = tuple(data.draw(st.sampled_from([4, 8, 16] if axis == program.axes - 1 else [1, 2]))
                 for axis in range(program.axes))  # fmt: skip
    kernel = emit(program, tile=tile)
    (run,) = host(tmp_path_factory.mktemp("host"), [kernel])
    for own in [(2, 2, 16), (3, 2, 17), (2, 5, 70)]:
        for odd in (0, 1, 3):
            check_in_memory(program, run, kernel, own[-program.axes :], odd)


def test_life_is_computed_four_cells_at_a_time() -> None:
    body = body_of(example("life", "uint8"), 8)
    assert "numpy::" not in body
    assert not re.search("packed::(flag|element|gather)", body)


def test_halves_are_computed_two_at_a_time() -> None:
    body = body_of(example("heat", "float16"), 8)
    assert "numpy::" not in body.replace("numpy::bits", "")
    assert {"add", "subtract", "multiply"} <= set(re.findall("packed::([a-z]+)<Half>", body))
