"""Kernels of whole-array programs, run on blocks of the arrays by the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from fused import Array, Launch, launchers, widths_of

from meshrun.runner.compiler.compiled import HostKernel
from meshrun.runner.compiler.cpp import host
from meshrun.runner.compiler.cpp import source as host_source
from meshrun.runner.compiler.cuda.single_pass import PassKernel, emit
from meshrun.runner.compiler.device_kernel import DeviceKernel, PassVariant
from meshrun.runner.compiler.passes.real_parts import in_real_parts
from meshrun.runner.compiler.trace.graph import Extents, Program, merge_components, with_units
from meshrun.runner.region import Shape
from meshrun.runner.system.compiler import find_compiler

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
    widths = halo_of(program)
    space = arrays[0].shape[: program.axes]
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


def compile_texts(
    folder: Path, programs: Sequence[Program], *, ends: str = "", row: int = 0, **options: Any
) -> list[Run]:
    """Return what runs the CUDA text of each program, one thread after the other.

    ends: the boundary of rows of `row` cells, whose cells beyond the ends are not in memory. options: of
    `emit`. Blocks that are smaller than the tile are computed cell by cell.
    """
    merged = [with_units(merge_components(in_real_parts(program))[0]) for program in programs]
    kernels = [
        [emit(one, ends=ends, **options), emit(one, ends=ends, lengths=(1,) * one.axes)] for one in merged
    ]
    launches = iter(launchers(folder, [one for each in kernels for one in each]))
    runs: list[Run] = []
    for program, each in zip(programs, kernels, strict=True):
        compiled = [(one, next(launches)) for one in each]
        runs.append(TextKernel(program, compiled, ends, row))
    return runs


class TextKernel(DeviceKernel):
    """A kernel of one pass whose texts are compiled for the host."""

    def __init__(
        self, program: Program, compiled: Sequence[tuple[PassKernel, Launch]], ends: str, row: int
    ) -> None:
        super().__init__(program, halo_of(program), boundary=ends or "none", row=row)
        self.compiled = compiled

    def _pass(self, shape: Shape, variant: PassVariant) -> tuple[PassKernel, Launch]:
        lengths = (*shape[: self.program.axes - 1], math.prod(shape[self.program.axes - 1 :]))
        return next(
            (kernel, launch)
            for kernel, launch in self.compiled
            if all(a <= b for a, b in zip(kernel.least, lengths, strict=True))
        )


def compile_loops(folder: Path, programs: Sequence[Program]) -> list[Run]:
    """Return what runs the C++ of each program."""
    compiler = find_compiler()
    assert compiler is not None
    real = [in_real_parts(program) for program in programs]
    loaded = host.library(host_source.source(real), compiler, folder)
    return [
        HostKernel(program, halo_of(program), host.HostProgram(parts, loaded, number))
        for number, (program, parts) in enumerate(zip(programs, real, strict=True))
    ]
