"""Values that few cells need: computed in branches, with the bits of NumPy."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fused import GXX, check_in_memory, host, masked
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import with_choices

from meshrun.runner.compiler.cuda.pass_tile import fills_words
from meshrun.runner.compiler.cuda.single_pass import emit
from meshrun.runner.compiler.passes import branches
from meshrun.runner.compiler.trace.graph import Graph, Operand, Program

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")
F4, U1, BOOL = np.dtype("f4"), np.dtype("u1"), np.dtype(bool)


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
@given(program=with_choices(), data=st.data())
def test_any_program_with_branches_gives_the_bits_of_numpy(
    program: Program, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tile = tuple(data.draw(st.sampled_from([1, 2, 4] if axis else [1, 2])) for axis in range(program.axes))
    wide = (*tile[:-1], 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branches, "LEAST", 0.5)
        kernels = [emit(program, tile=tile), emit(program, tile=(3, *tile[1:]), march=program.axes > 1)]
        if fills_words(program, 4):
            kernels.append(emit(program, tile=wide, sweep=True))
    for run, kernel in zip(host(tmp_path_factory.mktemp("host"), kernels), kernels, strict=True):
        for own in [(3, 2, 7), (4, 4, 17)]:
            if all(a <= b for a, b in zip(kernel.tile, own[-program.axes :], strict=True)):
                check_in_memory(program, run, kernel, own[-program.axes :], 1)


def test_a_branch_is_written_once_for_each_side() -> None:
    source = emit(masked(), tile=(4,)).source
    names = Counter(re.findall(r"numpy::(divide|add)<float>", source))
    assert names["divide"] == 7 * 4  # in the branch alone
    assert names["add"] == 2 * 4  # in the branch, and without it


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16", "bool"])
def test_what_only_a_branch_reads_is_read_there(dtype: str, tmp_path: Path) -> None:
    """The element before the own one, which only the divisions need."""
    graph, kind = Graph(), np.dtype(dtype)
    own, before = (
        graph.operation("cast", F4, [graph.load(0, kind, at)]) if kind != F4 else graph.load(0, kind, at)
        for at in ((0,), (-1,))
    )
    costly = before
    for factor in range(3, 10):
        costly = graph.operation("divide", F4, [costly, graph.constant(factor, F4)])
    condition = graph.operation("equal", BOOL, [graph.load(1, U1, (0,)), graph.constant(1, U1)])
    chosen = graph.operation("where", F4, [condition, costly, own])
    inputs, outputs = (Operand("a", kind), Operand("kind", U1)), (Operand("b", F4),)
    program = Program(1, inputs, outputs, ((chosen,),), graph)
    kernel = emit(program, tile=(1,))
    before_test, in_branch = kernel.source.split("single_pass(")[1].split("if ((", maxsplit=1)
    reads = re.compile(r"__ldg\(|fetch_few<1>\(")
    assert len(reads.findall(before_test)) == 2  # the own element and its kind
    assert len(reads.findall(in_branch)) == 1
    kernels = [kernel]
    if kind != F4:  # in a loop over the cells, too: the row moves on
        stored = graph.operation("cast", kind, [chosen])
        program = Program(1, inputs, (Operand("b", kind),), ((stored,),), graph)
        kernels.append(emit(program, tile=(4,), sweep=True))
    for one, run in zip(kernels, host(tmp_path, kernels), strict=True):
        for odd in (0, 1, 3):
            check_in_memory(one.program, run, one, (70,), odd)
