"""One GPU: fused kernels of one pass against the device's own copy of as many bytes.

    python benchmarks/fuse_device.py [--side 16384] [--seconds 110] [--only life] [--json FILE]

First each program with its default tile, for blocks of three layouts: `block`, C-contiguous with its halo
(rows begin at any address); `pitched`, own cells begin at multiples of 256 bytes; `odd`, as `block`, with
outputs one cell shorter than `side`. Then a sweep over ROWS x COLUMNS x threads of layout `block`, as long as
seconds are left. Inputs count as read once, outputs as written once. Kernel and copy take turns; medians.
Each kernel's results are compared with NumPy's to the bit.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from meshrun.runner.compiler.cuda.pass_launch import PassLaunch, launch_arguments
from meshrun.runner.compiler.cuda.single_pass import PassKernel, emit
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Program, merge_components
from meshrun.runner.device.cuda import CudaBackend, kernel_of_text
from meshrun.runner.device.nvrtc import local_bytes_of, registers_of
from meshrun.runner.report.record import write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "facts"))
from fused import cases, example, noise, same, widths_of

CASES = [
    ("axpy", "float32", 2), ("axpy", "float64", 2), ("axpy", "uint8", 2), ("axpy", "uint16", 2),
    ("edges", "float32", 2), ("edges", "uint8", 2), ("heat", "float32", 2), ("heat", "float64", 2),
    ("heat", "float16", 2), ("life", "uint8", 2), ("life", "uint16", 2), ("wave", "float32", 2),
    ("wave", "float64", 2), ("gray_scott", "float32", 2), ("gray_scott", "float64", 2),
    ("edges", "uint16", 2), ("grayscale", "uint8", 2), ("diffusion3d", "float32", 3),
    ("diffusion3d", "float64", 3), ("seven_point", "float32", 3), ("seven_point", "float64", 3),
    ("lattice", "float32", 2), ("lattice", "float16", 2), ("lattice", "float32", 3),
    ("lattice", "float16", 3),
]  # fmt: skip
TRAILING = {"grayscale": (3,)}
THREADS = [(128, 1), (256, 1), (64, 2), (32, 4), (32, 8)]
ROWS = (1, 2, 4, 8)
PLANES = (1, 4, 8)
TURNS = (16, 32, 64)  # of a march
MOST_CELLS = 128  # of a thread
ROUNDS, SWEPT = 15, 5


class Measured:
    """A program, its arrays on the device and a copy of as many bytes."""

    def __init__(self, program: Program, own: tuple[int, ...], layout: str) -> None:
        self.program, self.widths = program, widths_of(program)
        own = (*own[:-1], own[-1] - (layout == "odd"))
        grid = tuple(n + a + b for n, (a, b) in zip(own, self.widths, strict=True))
        self.blocks = [
            pitched(grid, one.dtype, self.widths)
            if layout == "pitched" and not one.trailing
            else cupy.empty(grid + one.trailing, one.dtype)
            for one in program.inputs
        ]
        for number, block in enumerate(self.blocks):
            sample = cupy.asarray(noise((4099,), block.dtype, number))
            place = cupy.arange(block.size, dtype=np.int64).reshape(block.shape) % len(sample)
            block[...] = sample[place]
            del place
        self.outs = [cupy.empty(own + one.trailing, one.dtype) for one in program.outputs]
        operands = (*program.inputs, *program.outputs)
        self.bytes = math.prod(own) * sum(one.dtype.itemsize * one.components for one in operands)
        self.source, self.target = (cupy.empty(self.bytes // 2, np.uint8) for _ in range(2))

    def copy(self) -> None:
        self.target.data.copy_from_device_async(self.source.data, self.target.nbytes)

    def action(self, kernel: PassKernel) -> tuple[Callable[[], None], Any]:
        """Return what launches the kernel, and the compiled kernel."""
        compiled = kernel_of_text(kernel.source, kernel.name, ())
        call = launch_arguments(kernel, self.blocks, self.outs, self.widths)
        return (lambda: launch(compiled, call)), compiled

    def check(self, kernel: PassKernel) -> None:
        """Compare small arrays of odd pitches, and a corner of the large ones, with NumPy."""
        compiled = kernel_of_text(kernel.source, kernel.name, ())
        small = tuple(map(max, (5, 37, 531)[-self.program.axes :], kernel.tile))
        for odd in (0, 1):
            blocks, outs = cases(self.program, small, odd, cupy)
            launch(compiled, launch_arguments(kernel, blocks, outs, self.widths))
            self._compare(blocks, outs)
        for out in self.outs:
            out[...] = 1
        self.action(kernel)[0]()
        near = tuple(slice(-40, None) for _ in range(self.program.axes))
        inner = tuple(slice(-40 + a + b, None) for a, b in self.widths)
        self._compare([block[near] for block in self.blocks], [out[inner] for out in self.outs])

    def _compare(self, blocks: list[Any], outs: list[Any]) -> None:
        expected = evaluate(self.program, [block.get() for block in blocks], self.widths)
        for out, one in zip(outs, expected, strict=True):
            same(out.get(), one)


def pitched(grid: tuple[int, ...], dtype: Any, widths: Any) -> Any:
    """Return an array with a halo whose rows are 256 bytes or a multiple apart, and own cells aligned."""
    each, before = 256 // dtype.itemsize, widths[-1][0]
    pitch = -(-(each + grid[-1]) // each) * each
    memory = cupy.empty((*grid[:-1], pitch), dtype)
    return memory[..., each - before : each - before + grid[-1]]


def launch(compiled: Any, call: PassLaunch) -> None:
    compiled(call.grid, call.block, call.arguments)


def interleaved(backend: CudaBackend, rounds: int, *actions: Callable[[], None]) -> list[float]:
    """Return median seconds of each action, one of each a round."""
    times: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    for _ in range(rounds):
        marks = [backend.mark()]
        for action in actions:
            action()
            marks.append(backend.mark())
        backend.synchronize()
        for taken, begin, end in zip(times, marks, marks[1:], strict=False):
            taken.append(backend.elapsed(begin, end))
    return [statistics.median(taken) for taken in times]


def variants(program: Program) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield the tiles of the sweep, and whether a thread marches."""
    smallest = min(one.dtype.itemsize for one in (*program.inputs, *program.outputs))
    largest = max(one.dtype.itemsize for one in (*program.inputs, *program.outputs))
    columns = sorted({max(1, size // itemsize) for size in (8, 16) for itemsize in (smallest, largest)})
    for rows, column in product(ROWS, columns):
        if rows * column > MOST_CELLS:
            continue
        if program.axes == 2:
            yield (rows, column), False
            continue
        yield from (
            ((planes, rows, column), False) for planes in PLANES if planes * rows * column <= MOST_CELLS
        )
        yield from (((turns, rows, column), True) for turns in TURNS)


def shape(axes: int, side: int) -> tuple[int, ...]:
    """Return own cells: side^2, or (side / 32)^3 of 3 axes."""
    return (side, side) if axes == 2 else (side // 32,) * 3


def row(
    case: tuple[str, str, int], layout: str, kernel: PassKernel, compiled: Any, times: list[float], size: int
) -> dict[str, Any]:
    name, dtype, _ = case
    seconds, copying = times
    return {
        "program": name,
        "dtype": dtype,
        "layout": layout,
        "tile": kernel.tile,
        "march": kernel.march,
        "threads": kernel.threads,
        "registers": registers_of(compiled),
        "local_bytes": local_bytes_of(compiled),
        "bytes_per_second": size / seconds,
        "copy_bytes_per_second": size / copying,
        "fraction_of_copy": copying / seconds,
        "description": asdict(kernel.description),
    }


def show(one: dict[str, Any]) -> None:
    tile = "x".join(map(str, one["tile"])) + ("m" if one["march"] else "")
    threads = "x".join(map(str, one["threads"]))
    print(
        f"{one['program']:12} {one['dtype']:8} {one['layout']:8} {tile:>7} {threads:>6} "
        f"{one['registers']:4} regs {one['local_bytes']:4} local {one['bytes_per_second'] / 1e9:6.0f} GB/s "
        f"{100 * one['fraction_of_copy']:6.1f} % of copy",
        flush=True,
    )


def layouts(backend: CudaBackend, case: tuple[str, str, int], side: int) -> Iterator[dict[str, Any]]:
    """Measure a program with its default tile, for blocks of each layout."""
    name, dtype, axes = case
    program, _ = merge_components(example(name, dtype, axes, TRAILING.get(name, ())))
    kernel = emit(program)
    for layout in ("block", "pitched", "odd"):
        measured = Measured(program, shape(axes, side), layout)
        measured.check(kernel)
        action, compiled = measured.action(kernel)
        times = interleaved(backend, ROUNDS, action, measured.copy)
        yield row(case, layout, kernel, compiled, times, measured.bytes)
        del measured, action
        cupy.get_default_memory_pool().free_all_blocks()


def sweep(
    backend: CudaBackend, case: tuple[str, str, int], side: int, until: float
) -> Iterator[dict[str, Any]]:
    """Measure a program with other tiles and threads, until that time."""
    name, dtype, axes = case
    program, _ = merge_components(example(name, dtype, axes, TRAILING.get(name, ())))
    measured = Measured(program, shape(axes, side), "block")
    for tile, march in variants(program):
        if time.monotonic() > until:
            print(f"{name} {dtype}: no time for {tile} and further tiles")
            break
        whole = emit(program, tile=tile, march=march, threads=(256, 1))
        try:
            measured.check(whole)
        except AssertionError as wrong:
            print(f"{name} {dtype} {tile}: WRONG{wrong}")
            continue
        for threads in THREADS:
            kernel = replace(whole, threads=threads)
            action, compiled = measured.action(kernel)
            times = interleaved(backend, SWEPT, action, measured.copy)
            yield row(case, "block", kernel, compiled, times, measured.bytes)
    del measured
    cupy.get_default_memory_pool().free_all_blocks()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=110, help="for all, the sweep included")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--all", action="store_true", help="print each variant of the sweep, not the best 3")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    backend, begin = CudaBackend(0), time.monotonic()
    chosen = [case for case in CASES if options.only in case[0]]
    rows: list[dict[str, Any]] = []
    for case in chosen:
        for one in layouts(backend, case, options.side):
            show(one)
            rows.append(one)
    print(f"{time.monotonic() - begin:.0f} s. The sweep: the best of each program")
    swept: list[dict[str, Any]] = []
    for place, case in enumerate(chosen):
        share = (options.seconds - (time.monotonic() - begin)) / (len(chosen) - place)
        found = [*sweep(backend, case, options.side, time.monotonic() + share)]
        found.sort(key=lambda one: one["bytes_per_second"], reverse=True)
        for one in found if options.all else found[:3]:
            show(one)
        swept += found
    print(f"{time.monotonic() - begin:.0f} s")
    if options.json:
        record = {
            "benchmark": "fuse_device",
            "device": backend.device.name,
            "cupy": cupy.__version__,
            "side": options.side,
            "rounds": ROUNDS,
            "rounds_of_sweep": SWEPT,
            "rows": rows,
            "sweep": swept,
        }
        write_json(options.json, "benchmark", 1, record)


if __name__ == "__main__":
    main()
