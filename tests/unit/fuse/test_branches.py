"""Values that few cells need: computed in branches, with the bits of NumPy."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from fused import GXX, check_in_memory, host
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import programs

from runner.fuse import branches
from runner.fuse.graph import Graph, Node, Operand, Program
from runner.fuse.single_pass import emit

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")
F4, U1, BOOL = np.dtype("f4"), np.dtype("u1"), np.dtype(bool)


def masked(shared: bool = False) -> Program:
    """where(kind == 1, 7 divisions, a + 1); with `shared`, the divisions are a result, too."""
    graph = Graph()
    a, kind = graph.load(0, F4, (0,)), graph.load(1, U1, (0,))
    costly: Node = a
    for factor in range(3, 10):
        costly = graph.operation("divide", F4, [costly, graph.constant(factor, F4)])
    cheap = graph.operation("add", F4, [a, graph.constant(1, F4)])
    condition = graph.operation("equal", BOOL, [kind, graph.constant(1, U1)])
    chosen = graph.operation("where", F4, [condition, costly, cheap])
    results = ((chosen,), (costly,)) if shared else ((chosen,),)
    outputs = tuple(Operand(f"b{number}", F4) for number in range(len(results)))
    return Program(1, (Operand("a", F4), Operand("kind", U1)), outputs, results, graph)


def test_what_few_cells_need_is_no_operation_of_the_others() -> None:
    assert masked().operations == 10
    assert branches.common_operations(masked()) == 2  # the addition and the comparison
    assert branches.common_operations(masked(shared=True)) == masked(shared=True).operations == 10


@needs_compiler
def test_any_cell_of_a_thread_decides(tmp_path_factory: pytest.TempPathFactory) -> None:
    kernel = emit(masked(), tile=(4,))
    test = re.search(r"if \(\((\(.*?\)) \| .*\)\) {", kernel.source)
    assert test
    mutant = replace(kernel, source=kernel.source.replace(test[0], f"if ({test[1]}) {{"))
    runs = host(tmp_path_factory.mktemp("host"), [kernel, mutant])
    kind = np.zeros(64, U1)
    kind[[3, 17, 33, 62]] = 1
    a = np.linspace(1, 9, 64, dtype=F4)
    costly = a
    for factor in range(3, 10):
        costly = costly / F4.type(factor)
    wanted = np.where(kind == 1, costly, a + F4.type(1))
    for run, one, right in zip(runs, (kernel, mutant), (True, False), strict=True):
        out = np.empty_like(a)
        run(one, [a, kind], [out], ((0, 0),))
        assert np.array_equal(out, wanted) == right


@needs_compiler
@settings(max_examples=max(settings.default.max_examples // 8, 1))
@given(program=programs(), data=st.data())
def test_any_program_with_branches_gives_the_bits_of_numpy(
    program: Program, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    graph = program.graph
    conditions = [node for node in program.nodes if node.dtype == BOOL]
    known = {one.dtype: [node for node in program.nodes if node.dtype == one.dtype] for one in program.nodes}
    results = []
    for result in program.results:  # nested choices among all that the program computes
        cells = []
        for first in result:
            node = first
            for _ in range(data.draw(st.integers(1, 3)) if conditions else 0):
                other = data.draw(st.sampled_from(known[node.dtype]))
                pair = data.draw(st.permutations([node, other]))
                node = graph.operation("where", node.dtype, [data.draw(st.sampled_from(conditions)), *pair])
            cells.append(node)
        results.append(tuple(cells))
    program = replace(program, results=tuple(results))
    tile = tuple(data.draw(st.sampled_from([1, 2, 4] if axis else [1, 2])) for axis in range(program.axes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branches, "LEAST", 0.5)
        kernels = [emit(program, tile=tile), emit(program, tile=(3, *tile[1:]), march=program.axes > 1)]
    for run, kernel in zip(host(tmp_path_factory.mktemp("host"), kernels), kernels, strict=True):
        for own in [(3, 2, 7), (4, 4, 17)]:
            if all(a <= b for a, b in zip(kernel.tile, own[-program.axes :], strict=True)):
                check_in_memory(program, run, kernel, own[-program.axes :], 1)


def test_a_branch_is_written_once_for_each_side() -> None:
    source = emit(masked(), tile=(4,)).source
    names = Counter(re.findall(r"numpy::(divide|add)<float>", source))
    assert names["divide"] == 7 * 4  # in the branch alone
    assert names["add"] == 2 * 4  # in the branch, and without it
