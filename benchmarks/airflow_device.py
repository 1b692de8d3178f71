"""One GPU: the kernels of the job airflow, one step at a time and several steps in a kernel.

    python benchmarks/airflow_device.py [--only 2d 3d ...] [--fluid] [--most 6] [--fuse-math fast]
        [--json FILE]

A tunnel with a cylinder or a sphere, an inlet, damped columns, an outflow and walls without friction. Forces
are not sampled and the surface is made of cells. A rate counts each cell once a step; it is given beside the
rate at which a copy would read and write the populations and the kinds of cells.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from fuse_steps_device import aligned, compile_one, launched, seconds, text_of, whole

from meshrun.jobs.airflow.lattice import LATTICES
from meshrun.jobs.airflow.shapes import shape as shapes
from meshrun.jobs.airflow.step import step_job
from meshrun.jobs.airflow.tunnel import Tunnel
from meshrun.runner.arrays.block_layout import BlockLayout
from meshrun.runner.compiler.cuda.pass_launch import launch_arguments
from meshrun.runner.compiler.cuda.single_pass import PassKernel, emit
from meshrun.runner.compiler.cuda.steps import tuning as step_tuning
from meshrun.runner.compiler.cuda.steps.kernel import build
from meshrun.runner.compiler.cuda.steps.layout import NotFusable
from meshrun.runner.compiler.operations import compiler_options
from meshrun.runner.compiler.trace.graph import Operand, Program, merge_components
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.device.cuda import CudaBackend, kernel_of_text
from meshrun.runner.device.nvrtc import local_bytes_of, registers_of
from meshrun.runner.plan.steps import LINE
from meshrun.runner.region import Region
from meshrun.runner.report.record import write_json

ROUNDS = 7
BLOCKS = [(128, 1), (32, 4), (16, 8)]  # threads
HEIGHTS = (0, 64, 96, 128, 192, 256)  # rows of a strip; 0: as the launch chooses


@dataclass(frozen=True)
class Case:
    lattice: str
    shape: str
    size: str
    storage: str

    def tunnel(self) -> Tunnel:
        body = shapes.read(self.shape, shapes.Placement(self.size, None, None, "z"))
        return Tunnel(body, LATTICES[self.lattice], "slip", "uniform", 0.1, np.dtype(self.storage))

    def program(self, tunnel: Tunnel) -> tuple[Program, list[int]]:
        job = step_job(tunnel.lattice, tunnel.kinds, "trt", self.storage, damping="factors")
        kinds = {name: np.dtype("u1" if name == "cells" else self.storage) for name in job.arrays}
        inputs = [Operand(name, kind) for name, kind in kinds.items()]
        known = {"omega": 1.9, "omega_minus": 1.1, "velocity_x": 0.1, "outflow": 0.67, "anchor": 0.02}
        widths = ((1, 1),) * tunnel.lattice.axes
        program = trace(
            job.function, inputs, widths, job.complete(known), frozenset(["xp"]), job.output_names
        )
        return program, list(range(tunnel.lattice.size))


CASES = {
    "2d": Case("D2Q9", "cylinder", "8192x8192", "float32"),
    "2d-large": Case("D2Q9", "cylinder", "16384x16384", "float32"),
    "2d16": Case("D2Q9", "cylinder", "8192x8192", "float16"),
    "3d": Case("D3Q19", "sphere", "512x384x384", "float32"),
    "3d16": Case("D3Q19", "sphere", "512x384x384", "float16"),
}


def passes(program: Program) -> list[PassKernel]:
    """Return kernels of one step: the chosen one, the same in other blocks, and others that are unrolled."""
    chosen = emit(program)
    cells = [(1, 1), (1, 2), (2, 2), (1, 4)] if program.axes == 2 else [(1, 1), (1, 2), (1, 4), (2, 1)]
    tiles = [((1,) * program.axes + one)[-program.axes :] for one in cells]
    return [
        chosen,
        *(emit(program, threads=one) for one in BLOCKS if one != chosen.threads),
        *(emit(program, tile=tile, threads=BLOCKS[0]) for tile in tiles),
    ]


def compile_pass(kernel: PassKernel, fuse_math: str) -> None:
    """Compile a kernel into the user's cache of files."""
    kernel_of_text(kernel.source, kernel.name, compiler_options(fuse_math))


def copied(nbytes: int) -> float:
    """Return the seconds of a copy that reads and writes this many bytes in all."""
    source, target = (cupy.zeros(nbytes // 2, np.uint8) for _ in range(2))
    return seconds(lambda: target.data.copy_from_device_async(source.data, target.nbytes), ROUNDS)


def measured(
    name: str, case: Case, fluid: bool, most: int, fuse_math: str, pool: Executor
) -> list[dict[str, Any]]:
    tunnel = case.tunnel()
    program, feeds = case.program(tunnel)
    size = tunnel.shape
    box = Region((0,) * len(size), size)
    cells = math.prod(size)
    kinds = tunnel.cells(box) * np.uint8(not fluid)
    host = [tunnel.population(one, box) for one in range(tunnel.lattice.size)] + [kinds]
    nbytes = cells * (2 * tunnel.lattice.size * np.dtype(case.storage).itemsize + 1)
    copy = copied(nbytes)
    about = {"case": name, "cells": cells, "copy_cells_per_second": cells / copy}
    print(f"{name}: a copy of {nbytes / 1e9:.1f} GB would make {cells / copy / 1e9:.1f} Gcell/s", flush=True)
    rows = []

    def row(steps: int, time: float, function: Any, **more: Any) -> None:
        rate = cells * steps / time
        rows.append(
            {
                **about, "steps": steps, **more, "registers": registers_of(function),
                "fuse_math": fuse_math if steps == 1 else "strict",
                "local_bytes": local_bytes_of(function), "seconds": time, "cells_per_second": rate,
            }
        )  # fmt: skip
        words = " ".join(f"{key} {value}" for key, value in more.items())
        spilled = f"registers {registers_of(function)} local {local_bytes_of(function)}"
        print(
            f"  K {steps} {words} {spilled} {rate / 1e9:.1f} Gcell/s ({rate * copy / cells:.2f})", flush=True
        )

    padded = [np.pad(one, 1, "wrap") for one in host]
    widths = ((1, 1),) * len(size)
    merged, _ = merge_components(program)
    kernels_of_one = passes(merged)
    list(pool.map(partial(compile_pass, fuse_math=fuse_math), kernels_of_one))
    layout = BlockLayout(box, size, (False,) * len(size), widths, "wrap")
    layout.aligned = LINE
    blocks = [layout.empty(cupy, one.dtype) for one in padded]
    for block, one in zip(blocks, padded, strict=True):
        block[...] = cupy.asarray(one)
    outs = [layout.empty(cupy, np.dtype(case.storage))[layout.core] for _ in feeds]
    for one_pass in kernels_of_one:
        function = kernel_of_text(one_pass.source, one_pass.name, compiler_options(fuse_math))
        call = launch_arguments(one_pass, blocks, outs, widths)
        time = seconds(partial(function, call.grid, call.block, call.arguments), ROUNDS)
        row(
            1,
            time,
            function,
            tile="x".join(map(str, one_pass.tile)),
            threads="x".join(map(str, one_pass.threads)),
            loop=one_pass.sweep,
        )
    del blocks, outs, padded
    cupy.get_default_memory_pool().free_all_blocks()
    kernels = []
    for one in step_tuning.choices(program, feeds)[:most]:
        try:
            kernels.append(build(program, feeds, "wrap", 0, one.steps, one.tuning))
        except NotFusable as reason:
            print(f"  K {one.steps}: {reason}")
    list(pool.map(compile_one, list(dict.fromkeys(map(text_of, kernels)))))
    inputs = []
    for array in host:
        inputs.append(aligned(size, array.dtype))
        inputs[-1][...] = cupy.asarray(array)
    outs = [aligned(size, np.dtype(case.storage)) for _ in feeds]
    for kernel in kernels:
        function = kernel_of_text(kernel.source, kernel.name, shared=kernel.shared)
        for height in HEIGHTS if len(size) == 2 else (0,):
            one = replace(kernel, tuning=replace(kernel.tuning, rows=height))
            act = partial(launched, function, one, inputs, outs, whole(size))
            tuning = kernel.tuning
            row(
                kernel.steps,
                seconds(act, ROUNDS),
                function,
                columns=tuning.columns,
                blocks=tuning.blocks,
                rows=height,
            )
    return rows


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--fluid", action="store_true", help="cells of fluid alone, by the same kernels")
    parser.add_argument("--most", type=int, default=6, help="choices of kernels of several steps")
    parser.add_argument("--fuse-math", default="strict", choices=("strict", "fast"), help="of single passes")
    parser.add_argument("--compilers", type=int, default=14, help="processes that compile")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    CudaBackend(0)
    with ProcessPoolExecutor(options.compilers, get_context("spawn")) as pool:
        rows = [
            row
            for name in options.only
            for row in measured(name, CASES[name], options.fluid, options.most, options.fuse_math, pool)
        ]
    print("best:")
    for name in options.only:
        for single in (True, False):
            of_case = [one for one in rows if one["case"] == name and (one["steps"] == 1) == single]
            if of_case:
                best = max(of_case, key=lambda one: float(one["cells_per_second"]))
                print(f"  {name:6} K {best['steps']} {best['cells_per_second'] / 1e9:6.1f} Gcell/s")
    if options.json:
        write_json(
            options.json,
            "benchmark",
            1,
            {"benchmark": "airflow_device", "fluid": options.fluid, "rows": rows},
        )


if __name__ == "__main__":
    main()
