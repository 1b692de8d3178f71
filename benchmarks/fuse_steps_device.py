"""Several time steps in one kernel, on one GPU: the choices of runner/compiler/cuda/steps, and the fastest.

    python benchmarks/fuse_steps_device.py [--only NAME ...] [--size 2048x4096] [--quick] [--json FILE]

First the results of small arrays are compared with NumPy's, bit by bit, for each boundary. Then each case is
timed with all of its choices. A rate counts each cell of a fed input as read once and written once a step; it
is given beside the rate of the device's own copy.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from meshrun.runner.compiler.cuda.steps import tuning as step_tuning
from meshrun.runner.compiler.cuda.steps.kernel import arguments, build
from meshrun.runner.compiler.cuda.steps.layout import Axis, NotFusable, StepKernel, Tuning
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.device.cuda import kernel_of_text
from meshrun.runner.device.nvrtc import local_bytes_of, registers_of
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.form import parse_shape
from meshrun.runner.report.record import write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap", "constant": "constant"}


def heat3d(u: Any) -> Any:
    """Take one step of the heat equation in a cube."""
    centre = u[1:-1, 1:-1, 1:-1]
    sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    return centre + 0.1 * (sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * centre)


DIRECTIONS = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, -1), (-1, 1))
OPPOSITE = (0, 3, 4, 1, 2, 7, 8, 5, 6)


def lattice(
    f0: Any, f1: Any, f2: Any, f3: Any, f4: Any, f5: Any, f6: Any, f7: Any, f8: Any, solid: Any
) -> Any:
    """Take one step of a lattice-Boltzmann fluid, D2Q9: populations come from the cell that they leave, relax
    (P. L. Bhatnagar, E. P. Gross, M. Krook, Physical Review 94, 1954), and turn back where the mask is not 0.
    It computes in float32, whatever the populations are kept in."""
    shift = {1: slice(None, -2), 0: slice(1, -1), -1: slice(2, None)}
    given = (f0, f1, f2, f3, f4, f5, f6, f7, f8)
    f = [one[shift[y], shift[x]].astype(np.float32) for one, (y, x) in zip(given, DIRECTIONS, strict=True)]
    wall = solid[1:-1, 1:-1] != 0
    east, west = f[1] + f[5] + f[8], f[3] + f[6] + f[7]
    density = f[0] + east + west + f[2] + f[4]
    inverse = 1 / density
    u, v = (east - west) * inverse, (f[2] + f[5] + f[6] - f[4] - f[7] - f[8]) * inverse
    rest = 1 - 1.5 * (u * u + v * v)
    kept = [-0.7 * one for one in f]  # a relaxation rate of 1.7
    after = [kept[0] + density * (1.7 * 4 / 9) * rest, *f[1:]]
    for one, along, weight in ((1, u, 9), (2, v, 9), (5, u + v, 36), (6, v - u, 36)):
        even, odd, share = rest + 4.5 * (along * along), 3 * along, density * (1.7 / weight)
        after[one] = kept[one] + share * (even + odd)
        after[OPPOSITE[one]] = kept[OPPOSITE[one]] + share * (even - odd)
    return tuple(
        np.where(wall, f[opposite], one).astype(f0.dtype)
        for one, opposite in zip(after, OPPOSITE, strict=True)
    )


FED = {"heat3d": 1, "lattice": 9}  # functions of this file: how many of their inputs the outputs feed


@dataclass(frozen=True)
class Case:
    """A job of examples/, or a function of this file. sizes: of the arrays, when timed."""

    name: str
    dtype: str
    size: tuple[int, ...]
    boundary: str

    def function(self) -> tuple[Any, dict[str, Any], Sequence[str], Sequence[str | None], Sequence[str]]:
        """Return the function, its parameters, and the names of inputs, of what outputs feed, and outputs."""
        if self.name in FED:
            function = globals()[self.name]
            names = function.__code__.co_varnames[: function.__code__.co_argcount]
            fed = names[: FED[self.name]]
            return function, {}, names, fed, [f"next_{name}" for name in fed]
        job = getattr(importlib.import_module(self.name), self.name)
        return job.function, job.complete({}), job.arrays, job.feeds, job.output_names

    def program(self) -> tuple[Program, list[int]]:
        function, parameters, names, feeds, outputs = self.function()
        inputs = [Operand(name, np.dtype("u1" if name == "solid" else self.dtype)) for name in names]
        services = frozenset(["xp"]) if self.name == "diffusion3d" else frozenset()
        program = trace(function, inputs, ((1, 1),) * len(self.size), parameters, services, outputs)
        return program, [list(names).index(str(one)) for one in feeds]

    def start(self, shape: Sequence[int], seed: int = 0) -> list[Any]:
        """Return arrays in which something happens."""
        rng = np.random.default_rng(seed)
        scale = 0.15 if self.name == "diffusion3d" else 1
        return [
            (rng.random(shape) * (2 if one.dtype == np.uint8 else scale)).astype(one.dtype)
            for one in self.program()[0].inputs
        ]

    def expected(self, blocks: Sequence[Any], boundary: str, cval: float, steps: int) -> list[Any]:
        function, parameters, _, _, _ = self.function()
        if self.name == "diffusion3d":
            parameters = {**parameters, "xp": np}
        now, feeds = list(blocks), self.program()[1]
        more: dict[str, Any] = {"constant_values": cval} if boundary == "constant" else {}
        for _ in range(steps):
            with np.errstate(all="ignore"):
                results = function(
                    *(np.pad(one, 1, PAD[boundary], **more) for one in now),  # type: ignore[call-overload]
                    **parameters,
                )
            for place, one in zip(feeds, results if isinstance(results, tuple) else (results,), strict=True):
                now[place] = one
        return now


CASES = {
    "heat f4": Case("heat", "f4", (16384, 16384), "reflect"),
    "heat f8": Case("heat", "f8", (16384, 16384), "reflect"),
    "gray_scott 8192": Case("gray_scott", "f4", (8192, 8192), "wrap"),
    "gray_scott 16384": Case("gray_scott", "f4", (16384, 16384), "wrap"),
    "life": Case("life", "u1", (16384, 16384), "wrap"),
    "wave": Case("wave", "f4", (16384, 16384), "wrap"),
    "lattice f4": Case("lattice", "f4", (8192, 8192), "wrap"),
    "lattice f2": Case("lattice", "f2", (8192, 8192), "wrap"),
    "heat3d": Case("heat3d", "f4", (768, 768, 768), "reflect"),
    "diffusion3d": Case("diffusion3d", "f4", (768, 768, 768), "reflect"),
}


VECTORS = Tuning(vectors=True)


def some(steps: Sequence[int], **values: Sequence[Any]) -> list[tuple[int, Tuning]]:
    """Return numbers of steps, each with choices of all of these values."""
    kept = [dict(zip(values, one, strict=True)) for one in product(*values.values())]
    return [(count, replace(VECTORS, **one)) for count in steps for one in kept]


def tiles(steps: Sequence[int], *shapes: tuple[int, int, int]) -> list[tuple[int, Tuning]]:
    """Return tiles of columns and rows of a lane, and warps."""
    return [
        (count, replace(VECTORS, columns=columns, lane_rows=rows, warps=warps))
        for count in steps
        for columns, rows, warps in shapes
    ]


def choices(case: Case, quick: bool) -> list[tuple[int, Tuning]]:
    """Return numbers of steps, and choices that need a kernel of their own."""
    if len(case.size) < 3:
        predicted = step_tuning.choices(*case.program(), case.size)
        return [(one.steps, one.tuning) for one in (predicted[:3] if quick else predicted)]
    if case.name == "heat3d":
        return (
            tiles((3,), (2, 8, 12))
            if quick
            else tiles((2, 3, 4), (2, 8, 12), (2, 6, 16), (4, 4, 12), (2, 6, 12))
        )
    return tiles((2,), (2, 4, 12)) if quick else tiles((2, 3), (2, 4, 12), (2, 4, 16), (2, 6, 8), (2, 6, 12))


# Rows or planes of a strip; 0: as the launch chooses.
ROWS = {2: (0, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512), 3: (0, 64, 96, 128, 192, 384, 768)}


def compile_one(kernel: tuple[str, str, int]) -> None:
    """Compile a kernel, given as `text_of` returns it, into the user's cache of files."""
    source, name, shared = kernel
    kernel_of_text(source, name, shared=shared)


def text_of(kernel: StepKernel) -> tuple[str, str, int]:
    """Return a kernel's text, name and bytes of shared memory."""
    return kernel.source, kernel.name, kernel.shared


def compile_all(kernels: Sequence[StepKernel], pool: Executor) -> list[Any]:
    """Return the functions of kernels, which other processes compile side by side."""
    begin = time.perf_counter()
    texts = list(dict.fromkeys(map(text_of, kernels)))
    list(pool.map(compile_one, texts))
    functions = [kernel_of_text(kernel.source, kernel.name, shared=kernel.shared) for kernel in kernels]
    print(f"{len(texts)} kernels in {time.perf_counter() - begin:.0f} s", flush=True)
    return functions


def launched(function: Any, kernel: StepKernel, inputs: Any, outs: Any, axes: Sequence[Axis]) -> None:
    launch = arguments(kernel, inputs, outs, axes)
    function(launch.grid, launch.block, tuple(map(np.int64, launch.values)), shared_mem=launch.shared)


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Return an array whose rows begin at multiples of 128 bytes."""
    unit = 128 // dtype.itemsize
    pitch = -(-shape[-1] // unit) * unit
    return cupy.zeros((*shape[:-1], pitch), dtype)[..., : shape[-1]]


def whole(shape: Sequence[int]) -> list[Axis]:
    return [Axis(n, 0, n) for n in shape]


def check(cases: dict[str, Case], pool: Executor) -> list[str]:
    """Return what differs from NumPy."""
    wanted = []
    once = {(case.name, case.dtype): (name, case) for name, case in cases.items()}
    for number, ((name, case), boundary) in enumerate(product(once.values(), BOUNDARIES)):
        cval, vectors = 1 if case.dtype == "u1" else 0.25, number % 2 == 0
        program, feeds = case.program()
        tuning = Tuning(vectors=vectors, rows=0 if vectors else 37)
        if len(case.size) == 3:
            tuning = replace(tuning, columns=2, lane_rows=4, warps=12 if vectors else 8, rows=11)
        wanted.append((name, case, boundary, cval, feeds, build(program, feeds, boundary, cval, 3, tuning)))
    functions = compile_all([one[-1] for one in wanted], pool)
    wrong = []
    shapes = {2: ((5, 9), (61, 300), (300, 1111)), 3: ((4, 5, 6), (33, 40, 150))}
    for (name, case, boundary, cval, feeds, kernel), function in zip(wanted, functions, strict=True):
        for shape in shapes[len(case.size)]:
            host = case.start(shape)
            inputs, outs = [], []
            for one in host:
                inputs.append(aligned(shape, one.dtype))
                inputs[-1][...] = cupy.asarray(one)
            outs = [aligned(shape, host[place].dtype) for place in feeds]
            launched(function, kernel, inputs, outs, whole(shape))
            results = case.expected(host, boundary, cval, kernel.steps)
            for place, out in zip(feeds, outs, strict=True):
                got, want = cupy.asnumpy(out), results[place]
                if got.tobytes() != np.ascontiguousarray(want).tobytes():
                    count = int((got != want).sum())
                    wrong.append(f"{name} {boundary} {shape} vectors={kernel.tuning.vectors}: {count} cells")
    return wrong


def copy_rate() -> float:
    """Return bytes per second that a copy reads and writes."""
    source, target = (cupy.zeros((1 << 28,), np.float32) for _ in range(2))
    return 2 * source.nbytes / seconds(lambda: cupy.copyto(target, source))


def seconds(act: Any, rounds: int = 5) -> float:
    """Return the median of some rounds on the device, of launches one behind another for 2 ms or more."""
    act()
    once = lasted(act, 1)
    times = [lasted(act, math.ceil(2e-3 / once)) for _ in range(rounds)]
    return float(statistics.median(times))


def lasted(act: Any, launches: int) -> float:
    """Return the seconds of each of some launches that the device makes one behind another."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    for _ in range(launches):
        act()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3 / launches


def timed(name: str, case: Case, copy: float, quick: bool, pool: Executor) -> list[dict[str, Any]]:
    """Time all choices of a case."""
    program, feeds = case.program()
    kernels = []
    for steps, tuning in choices(case, quick):
        try:
            kernels.append(build(program, feeds, case.boundary, 0, steps, tuning))
        except NotFusable as reason:
            print(name, steps, tuning, reason)
    print(name, end=": ")
    functions = compile_all(kernels, pool)
    dtype = np.dtype(case.dtype)  # of the fed inputs
    part = [np.minimum(n, 512) for n in case.size]
    states = []
    for one in case.start(part):
        states.append(aligned(case.size, one.dtype))
        states[-1][...] = cupy.tile(
            cupy.asarray(one), [-(-n // m) for n, m in zip(case.size, part, strict=True)]
        )[tuple(slice(n) for n in case.size)]
    outs = [aligned(case.size, dtype) for _ in feeds]
    moved = 2 * math.prod(case.size) * dtype.itemsize * len(feeds)
    rows = []
    for kernel, function in zip(kernels, functions, strict=True):
        for height in ROWS[len(case.size)]:
            one = replace(kernel, tuning=replace(kernel.tuning, rows=height))
            launch = arguments(one, states, outs, whole(case.size), registers_of(function))
            given = (launch.grid, launch.block, tuple(map(np.int64, launch.values)))
            time_ = seconds(partial(function, *given, shared_mem=launch.shared), 3)
            rate = moved * kernel.steps / time_
            rows.append(
                {
                    "case": name,
                    "steps": kernel.steps,
                    **asdict(one.tuning),
                    "registers": registers_of(function),
                    "local_bytes": local_bytes_of(function),
                    "height": launch.values[0],
                    "seconds": time_,
                    "bytes_per_second": rate,
                    "of_copy": rate / copy,
                }
            )
    rows.sort(key=lambda row: -float(row["bytes_per_second"]))
    best: set[tuple[Any, ...]] = set()
    for row in rows:  # of each kernel, the best rows of a strip
        key = tuple(
            row[one] for one in ("steps", "columns", "warps", "ahead", "blocks", "vectors", "lane_rows")
        )
        if key in best:
            continue
        best.add(key)
        if len(best) <= 14 or not row["vectors"]:
            print(
                f"  K {key[0]:2} columns {key[1]} x {key[6]} warps {key[2]:2} ahead {key[3]} blocks {key[4]}"
                f" vectors {key[5]:d} rows {row['rows']} ({row['height']})"
                f" registers {row['registers']:3}"
                f" local {row['local_bytes']:4} {1e6 * row['seconds'] / row['steps']:8.1f} us a step"
                f" {row['bytes_per_second'] / 1e9:7.0f} GB/s {row['of_copy']:5.2f}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--size", type=parse_shape, help="only cases with as many axes, of this size")
    parser.add_argument("--quick", action="store_true", help="fewer choices")
    parser.add_argument("--compilers", type=int, default=14, help="processes that compile")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = {name: CASES[name] for name in options.only}
    if options.size is not None:
        alike = {name: one for name, one in cases.items() if len(one.size) == len(options.size)}
        cases = {name: replace(one, size=options.size) for name, one in alike.items()}
    with ProcessPoolExecutor(options.compilers, get_context("spawn")) as pool:
        wrong = check(cases, pool)
        print("WRONG" if wrong else "right", *wrong, sep="\n  ", flush=True)
        copy = copy_rate()
        print(f"copy {copy / 1e9:.0f} GB/s")
        rows = [row for name, case in cases.items() for row in timed(name, case, copy, options.quick, pool)]
    print("best:")
    for name in cases:
        row = next((one for one in rows if one["case"] == name), None)
        if row is None:
            print(f"  {name:18} single steps are predicted to be faster")
            continue
        print(f"  {name:18} K {row['steps']} {row['bytes_per_second'] / 1e9:7.0f} GB/s {row['of_copy']:.2f}")
    if options.json:
        record = {
            "benchmark": "fuse_steps_device",
            "copy_bytes_per_second": copy,
            "wrong": wrong,
            "rows": rows,
        }
        write_json(options.json, "benchmark", 1, record)


if __name__ == "__main__":
    main()
