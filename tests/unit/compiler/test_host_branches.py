"""Host kernels leave out what no cell of a segment needs, with the bits of NumPy."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fused import BOOL, F4, U1, Array, cases, masked, same, widths_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import with_choices

from meshrun.runner.compiler.cpp.host import FLAGS, HostProgram, library
from meshrun.runner.compiler.cpp.source import source
from meshrun.runner.compiler.passes import branches
from meshrun.runner.compiler.passes.branches import common_path
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Graph, Node, Operand, Program
from meshrun.runner.system.compiler import Compiler

SEGMENT = 32  # of host.cpp, or twice as many
LENGTHS = (1, SEGMENT - 1, SEGMENT, 3 * SEGMENT + 5, 7 * SEGMENT + 7)


def ops(program: Program) -> list[str]:
    return [node.op for node in program.nodes if node.op not in ("load", "constant")]


def test_the_common_path_leaves_out_what_few_cells_need() -> None:
    common = common_path(masked())
    assert common is not None
    assert ops(common.program) == ["add"]
    assert [node.op for node in common.test.operands] == ["load", "constant"]
    assert common_path(masked(shared=True)) is None  # all cells need all of it


def test_a_test_that_costs_much_is_not_made() -> None:
    graph = Graph()
    a = condition = graph.load(0, F4, (0,))
    for factor in range(2, 6):
        condition = graph.operation("multiply", F4, [condition, graph.constant(factor, F4)])
    costly: Node = a
    for number in range(16):
        costly = graph.operation("add", F4, [costly, graph.constant(number, F4)])

    def program(condition: Node) -> Program:
        chosen = graph.operation("where", F4, [graph.operation("less", BOOL, [condition, a]), costly, a])
        return Program(1, (Operand("a", F4),), (Operand("b", F4),), ((chosen,),), graph)

    assert common_path(program(graph.constant(0, F4))) is not None
    assert common_path(program(condition)) is None


@pytest.mark.parametrize(("op", "taken"), [("exp", False), ("floor", True)])
def test_no_function_of_a_constant_is_left_to_another_library(op: str, taken: bool) -> None:
    """A cell has the same bits in any segment."""
    masks = masked()
    (where,) = masks.results[0]
    chosen, costly, _ = where.operands
    found = masks.graph.operation("where", F4, [chosen, costly, masks.graph.constant(2.5, F4)])
    results = ((masks.graph.operation(op, F4, [found]),),)
    program = Program(1, masks.inputs, masks.outputs, results, masks.graph)
    assert (common_path(program) is not None) == taken


def evened(blocks: list[Array]) -> list[Array]:
    """Make the middle of all rows equal: no cell there selects a side, or all of them do."""
    for block in blocks:
        columns = block.shape[-1]
        if columns > 3 * SEGMENT:
            block[..., 2 : columns - SEGMENT] = block[..., 2:3]
    return blocks


@settings(max_examples=max(settings.default.max_examples // 20, 1))
@given(programs=st.lists(with_choices(), min_size=6, max_size=6), even=st.booleans())
def test_any_program_gives_the_bits_of_numpy(compiler: Compiler, programs: list[Program], even: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branches, "LEAST", 0.5)
        patch.setattr(branches, "LEAST_SAVED", 0)
        loaded = library(source(programs), compiler, None)
    for number, program in enumerate(programs):
        widths = widths_of(program)
        for length in LENGTHS:
            own = (2, 3, length)[-program.axes :]
            blocks, outs = cases(program, own, 0)
            if even and not program.inputs[0].trailing:
                blocks = evened(blocks)
            HostProgram(program, loaded, number).run(blocks, outs, widths)
            for out, expected in zip(outs, evaluate(program, blocks, widths), strict=True):
                same(out, expected)


@pytest.fixture(scope="module")
def mutants(compiler: Compiler) -> dict[str, HostProgram]:
    """The program of a mask, and its text with faults."""
    text = source([masked()])
    changes = {
        "": ("", ""),
        "only the last cell of a segment is tested": ("any |=", "any ="),
        "the rest of a row is not tested": (
            "return selects(x < tail ? x : tail",
            "return x < tail && selects(x",
        ),
        "a run begins late": ("        first = last;\n", "        first = last + SEGMENT;\n"),
        "the last cells are not computed": (
            "if (last > n && last > first) loop",
            "if (last > n + SEGMENT) loop",
        ),
    }
    assert all(old in text for old, _ in changes.values())
    return {
        name: HostProgram(masked(), library(text.replace(old, new) if old else text, compiler, None))
        for name, (old, new) in changes.items()
    }


def masks() -> list[Array]:
    """Masks of rows: nothing, everything, one cell at any place, and ranges."""
    found = []
    for length in LENGTHS:
        none = np.zeros(length, U1)
        single = [none.copy() for _ in range(length)]
        for place, one in enumerate(single):
            one[place] = 1
        ranges = []
        for first, last in pairwise(range(0, length + 1, 7)):
            ranges.append(none.copy())
            ranges[-1][first : last + SEGMENT] = 1
        found += [none, none + 1, *single, *ranges]
    return found


def wrong_masks(kernel: HostProgram) -> int:
    wrong = 0
    for mask in masks():
        a = np.linspace(1, 9, len(mask), dtype=F4)
        out = np.full_like(a, np.nan)
        kernel.run([a, mask], [out], ((0, 0),))
        (expected,) = evaluate(masked(), [a, mask], ((0, 0),))
        wrong += not np.array_equal(out, expected)
    return wrong


def test_every_cell_of_a_segment_decides(mutants: dict[str, HostProgram]) -> None:
    assert {name for name, kernel in mutants.items() if not wrong_masks(kernel)} == {""}


def test_all_loops_are_vectorised(compiler: Compiler, tmp_path: Path) -> None:
    if "Free Software Foundation" not in subprocess.check_output([compiler.path, "--version"], text=True):
        pytest.skip("another compiler than GCC")
    text = source([masked()])
    lines = [n for n, part in enumerate(text.splitlines(), 1) if "for (int64 x = " in part]
    assert len(lines) == 3  # all cells, common cells, the test
    command = [compiler.path, *FLAGS, "-fopt-info-vec-optimized", "-o", str(tmp_path / "a.so"), "-"]
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stderr
    for line in lines:
        assert re.search(rf":{line}:\d+: optimized: loop vectorized", said), said
