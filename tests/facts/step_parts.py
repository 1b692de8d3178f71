"""Run a kernel of several steps for one rank's part of whole arrays, and compare the bits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import host_steps
import numpy as np

from meshrun.runner.compiler.cuda.steps.kernel import arguments
from meshrun.runner.compiler.cuda.steps.layout import Axis, StepKernel


@dataclass(frozen=True)
class Part:
    """The cells of one axis that a rank owns."""

    start: int
    stop: int


def run(
    folder: Path, kernel: StepKernel, inputs: Any, outs: Any, axes: Sequence[Axis], scalars: Any = None
) -> None:
    launch = arguments(kernel, inputs, outs, axes, scalars=scalars)
    values = (ctypes.c_longlong * len(launch.values))(*launch.values)
    grid = (ctypes.c_uint * 3)(*launch.grid)
    host_steps.library(folder, kernel.source).run(grid, launch.block[0], launch.shared, values)


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(np.uint8)


def compare(
    folder: Path,
    kernel: StepKernel,
    whole: Sequence[Any],
    wanted: Sequence[Any],
    halo: Sequence[tuple[int, int]],
    wraps: bool,
    parts: Sequence[Part] | None = None,
    *,
    aligned: bool = False,
    exact_nan: bool = True,
    scalars: Any = None,
) -> None:
    """Compare what a rank with the cells of `parts`, and their neighbours' cells, gets.

    whole: the arrays. wanted: whole results, of each output. halo: of one step, per axis. wraps: whether
    cells beyond the array are those of its other side. parts: None: the rank has all cells.
    """
    feeds, dimensions = kernel.feeds, len(halo)
    shape, axes, own = whole[0].shape[:dimensions], [], []
    for (low, high), length, part in zip(halo, shape, parts or [Part(0, n) for n in shape], strict=True):
        cut = part.stop - part.start < length
        before, after = (kernel.steps * low, kernel.steps * high) if parts else (0, 0)
        if not wraps:
            before, after = min(before, part.start), min(after, length - part.stop)
        axes.append(Axis(part.stop - part.start, part.start, length, *((before, after) if cut else (0, 0))))
        own.append(slice(part.start, part.stop))
    blocks = []
    for one in whole:
        cells = one
        for axis, (place, length) in enumerate(zip(axes, shape, strict=True)):
            first = place.start - place.before
            cells = cells.take(np.arange(first, place.start + place.own + place.after) % length, axis)
        blocks.append(cells)

    def laid_out(cells: Any) -> Any:
        """Return a copy in a larger block, aligned or not."""
        lead = [16 + -place.before % 16 if aligned else 3 for place in axes]
        tail = [-(a + n) % 16 + 16 if aligned else 5 for a, n in zip(lead, cells.shape, strict=False)]
        full = [a + n + b for a, n, b in zip(lead, cells.shape, tail, strict=False)]
        full += cells.shape[dimensions:]
        memory = np.zeros(int(np.prod(full)) + 64, cells.dtype)
        skip = (-memory.ctypes.data % 64) // cells.dtype.itemsize if aligned else 0
        block = memory[skip : skip + int(np.prod(full))].reshape(full)
        if cells.dtype.kind == "f":
            block[...] = np.nan
        block[tuple(slice(a, a + n) for a, n in zip(lead, cells.shape, strict=False))] = cells
        inner = [
            slice(a + place.before, a + place.before + place.own) for a, place in zip(lead, axes, strict=True)
        ]
        return block, tuple(inner)

    views, results = [], []
    for cells in blocks:
        block, inner = laid_out(cells)
        views.append(block[inner])
    for place in feeds:
        block, inner = laid_out(blocks[place])
        block[...] = 77
        results.append((block, inner))
    run(folder, kernel, views, [block[inner] for block, inner in results], axes, scalars)
    for result, (block, inner) in zip(wanted, results, strict=True):
        got, want = block[inner].copy(), result[tuple(own)]
        if not exact_nan and want.dtype.kind == "f":  # a NaN is a NaN
            got[np.isnan(got)], want[np.isnan(want)] = np.nan, np.nan
        wrong = np.argwhere((bits(got) != bits(want)).reshape((*want.shape, -1)).any(-1))
        assert not len(wrong), (len(wrong), wrong[:4], wrong[-4:])
        block[inner] = 77
        assert (block == 77).all(), "cells beside the own ones were written"
