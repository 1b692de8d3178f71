"""Values that few cells need: computed in branches, with the bits of NumPy."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from fused import GXX, check_in_memory, host, masked
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import with_choices

from runner.fuse import branches
from runner.fuse.graph import Program
from runner.fuse.single_pass import emit

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")
F4, U1 = np.dtype("f4"), np.dtype("u1")


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
