"""Fused kernels on a GPU: what NumPy computes, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fused import EXAMPLES, cases, example, same, widths_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import programs

from runner.fuse.evaluate import evaluate
from runner.fuse.graph import Program, merge_components
from runner.fuse.single_pass import PassKernel, emit, launch_arguments

cupy = pytest.importorskip("cupy", reason="needs CuPy")


def launch(kernel: PassKernel, blocks: list[Any], outs: list[Any], widths: Any) -> None:
    from runner.device.cuda import kernel_of_text

    compiled = kernel_of_text(kernel.source, kernel.name, kernel.options)
    call = launch_arguments(kernel, blocks, outs, widths)
    compiled(call.grid, call.block, call.arguments)


def check(program: Program, kernel: PassKernel, own: tuple[int, ...], odd: int) -> None:
    """Compare all outputs of own cells, and that nothing else is written."""
    blocks, outs = cases(program, own, odd, cupy)
    widths = widths_of(program)
    launch(kernel, blocks, outs, widths)
    for out, expected in zip(outs, evaluate(program, [one.get() for one in blocks], widths), strict=True):
        same(out.get(), expected)
        out[...] = 1
        base = out.base if out.base is not None else out
        assert int((base != 1).sum()) == int((base == 0).sum())


@pytest.mark.parametrize(("name", "dtype", "axes", "trailing"), EXAMPLES)
def test_an_example_gives_the_bits_of_its_function(
    name: str, dtype: str, axes: int, trailing: tuple[int, ...]
) -> None:
    program, _ = merge_components(example(name, dtype, axes, trailing))
    kernel = emit(program, width=5)
    for own in [(1, 2, 3, 5), (3, 1, 9, 17), (2, 3, 5, 301), (2, 2, 67, 5001)]:
        for odd in (0, 1, 2, 3):
            check(program, kernel, own[-axes:], odd)
    own = (2, 2, 131, 4099)[-axes:]
    check(program, emit(program), own, 0)
    check(program, emit(program), own, 1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(program=programs(), data=st.data())
def test_any_program_gives_the_bits_of_numpy(program: Program, data: st.DataObject) -> None:
    tile = tuple(data.draw(st.sampled_from([1, 2, 4] if axis else [1, 2])) for axis in range(program.axes))
    threads = data.draw(st.sampled_from([(32, 1), (8, 8), (128, 1)]))
    for kernel in (emit(program, width=3), emit(program, tile=tile, threads=threads)):
        for own in [(1, 1, 4), (3, 2, 7), (2, 5, 70), (3, 40, 611)]:
            for odd in (0, 1, 3):
                check(program, kernel, own[-program.axes :], odd)


def test_more_cells_than_32_bits_count() -> None:
    program = example("life", "uint8")
    side = 47000  # 2.2e9 cells
    if cupy.cuda.runtime.memGetInfo()[0] < 3 * side**2:
        pytest.skip("needs 7 GB of memory")
    block = cupy.zeros((side + 2, side + 2), cupy.uint8)
    block[-5:, -9:] = cupy.arange(45, dtype=cupy.uint8).reshape(5, 9) % 2
    out = cupy.ones((side, side), cupy.uint8)
    launch(emit(program), [block], [out], ((1, 1), (1, 1)))
    (expected,) = evaluate(program, [block[-40:, -40:].get()], ((1, 1), (1, 1)))
    np.testing.assert_array_equal(out[-38:, -38:].get(), expected)
    assert int(out.sum(dtype=cupy.int64)) == int(expected.sum())


ROOTS = """
__global__ void roots(unsigned first, unsigned* wrong) {
    const unsigned pattern = first + blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(pattern);
    const float got = numpy::sqrt(x), exact = __fsqrt_rn(x);
    const bool same = __float_as_uint(got) == __float_as_uint(exact) || (got != got && exact != exact);
    if (!same) atomicAdd(wrong, 1u);
}
"""


def test_the_square_root_of_every_float_is_correctly_rounded() -> None:
    from runner.device.cuda import kernel_of_text
    from runner.fuse.operations import HEADER

    roots = kernel_of_text(HEADER.read_text().replace("#pragma once", "") + ROOTS, "roots")
    wrong = cupy.zeros(1, cupy.uint32)
    for first in range(0, 1 << 32, 1 << 28):
        roots((1 << 20,), (256,), (np.uint32(first), wrong))
    assert int(wrong[0]) == 0


def test_numbers_below_the_normal_range_are_kept() -> None:
    program = example("heat", "float32")
    block = (np.random.default_rng(2).random((70, 90)) * 1e-40).astype(np.float32)
    out = cupy.zeros((68, 88), np.float32)
    launch(emit(program), [cupy.asarray(block)], [out], ((1, 1), (1, 1)))
    (expected,) = evaluate(program, [block], ((1, 1), (1, 1)))
    assert expected.max() < np.finfo(np.float32).tiny
    same(out.get(), expected)
