"""Kernels of whole-array programs, run on blocks of the arrays by the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from fused import Array, launchers, widths_of

from meshrun.runner.compiler.compiled import DeviceKernel
from meshrun.runner.compiler.cuda.single_pass import PassKernel, emit
from meshrun.runner.compiler.trace.graph import Extents, Program, merge_components
from meshrun.runner.region import Shape

Run = Callable[[Sequence[Array], Sequence[Array], Sequence[int]], None]


def halo_of(program: Program) -> Extents:
    return tuple((max(low, 0), max(high, 0)) for low, high in widths_of(program))


def block_of(array: Array, first: Sequence[int], last: Sequence[int], widths: Extents) -> Array:
    """Return a block with its halo; cells beyond the array's ends are those at the other end."""
    rows = [
        np.arange(a - low, b + high) % n
        for a, b, (low, high), n in zip(first, last, widths, array.shape, strict=False)
    ]
    return np.ascontiguousarray(array[np.ix_(*rows)])


def boxes(space: Shape, beyond: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the first and last + 1 cells of blocks that cover the array: two along each axis, of different
    lengths, and if wanted one that goes beyond both ends."""
    for bounds in product(*(((0, n // 3), (n // 3, n)) for n in space)):
        first, last = (tuple(side) for side in zip(*bounds, strict=True))
        yield first, last
    if beyond:
        yield tuple(-beyond for _ in space), tuple(n + beyond for n in space)


def in_blocks(
    program: Program,
    run: Run,
    arrays: Sequence[Array],
    wanted: Sequence[Array],
    *,
    wraps: bool,
    beyond: int = 2,
) -> None:
    """Assert that blocks of the results are those of the whole results, to the bit.

    wraps: whether cells beyond the array's ends are those at the other end, also cells to compute, of which a
    block has `beyond`; otherwise they have any value.
    """
    widths, space = halo_of(program), arrays[0].shape[: program.axes]
    for first, last in boxes(space, beyond if wraps else 0):
        blocks = [block_of(array, first, last, widths) for array in arrays]
        if not wraps:  # cells beyond the array may have any value
            for block, array in zip(blocks, arrays, strict=True):
                _spoil(block, first, widths, array.shape)
        own = tuple(b - a for a, b in zip(first, last, strict=True))
        outs = [np.full(own + one.trailing, 77).astype(one.dtype) for one in program.outputs]
        run(blocks, outs, first)
        for found, whole in zip(outs, wanted, strict=True):
            expected = block_of(whole, first, last, ((0, 0),) * program.axes)
            assert found.tobytes() == expected.tobytes(), f"{first} {last}\n{found}\n{expected}"


def _spoil(block: Array, first: Sequence[int], widths: Extents, shape: Shape) -> None:
    """Write a strange value to the cells of a block beyond the array."""
    for axis, (start, (low, _)) in enumerate(zip(first, widths, strict=True)):
        places = start - low + np.arange(block.shape[axis])
        beyond = (places < 0) | (places >= shape[axis])
        block[(slice(None),) * axis + (beyond,)] = 99


def compile_texts(folder: Path, programs: Sequence[Program], **options: Any) -> list[Run]:
    """Return what runs the CUDA text of each program by one host thread after the other."""
    made: list[tuple[DeviceKernel, dict[str, PassKernel]]] = []
    runs, kernels = [], []
    for program in programs:
        kernel = emit(merge_components(program)[0], **options)
        kernels.append(kernel)
    for program, kernel, launch in zip(programs, kernels, launchers(folder, kernels), strict=True):
        device = DeviceKernel(program, halo_of(program))
        setattr(device, "_pass", lambda *_, kernel=kernel, launch=launch: (kernel, launch))  # noqa: B010
        runs.append(device)
    del made
    return runs
