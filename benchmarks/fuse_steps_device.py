"""Several time steps in one kernel, on one GPU: the choices of `runner.fuse.step_kernel`, and the fastest ones.

    python benchmarks/fuse_steps_device.py [--only NAME ...] [--quick] [--json FILE]

First the results of small arrays are compared with NumPy's, bit by bit, for each boundary. Then each case is
timed with all of its choices. A rate counts each cell of a fed input as read once and written once a step; it is
given beside the rate of the device's own copy.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from runner.fuse.graph import Operand, Program
from runner.fuse.operations import KERNELS
from runner.fuse.step_kernel import Axis, NotFusable, StepKernel, Tuning, arguments, build, retuned
from runner.fuse.trace import trace
from runner.plan.halo import BOUNDARIES
from runner.report.record import write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap", "constant": "constant"}
OPTIONS = ("-std=c++17", "--fmad=false", f"-I{KERNELS}")


def heat3d(u: Any) -> Any:
    """Take one step of the heat equation in a cube."""
    centre = u[1:-1, 1:-1, 1:-1]
    sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    return centre + 0.1 * (sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * centre)


@dataclass(frozen=True)
class Case:
    """A job of examples/, or a function of this file. sizes: of the arrays, when timed."""

    name: str
    dtype: str
    size: tuple[int, ...]
    boundary: str

    def function(self) -> tuple[Any, dict[str, Any], Sequence[str], Sequence[str | None], Sequence[str]]:
        """Return the function, its parameters, and the names of inputs, of what outputs feed, and outputs."""
        if self.name in globals():
            return globals()[self.name], {}, ["u"], ["u"], ["next_u"]
        job = getattr(importlib.import_module(self.name), self.name)
        return job.function, job.complete({}), job.arrays, job.feeds, job.output_names

    def program(self) -> tuple[Program, list[int]]:
        function, parameters, names, feeds, outputs = self.function()
        inputs = [Operand(name, np.dtype(self.dtype)) for name in names]
        services = frozenset(["xp"]) if self.name == "diffusion3d" else frozenset()
        program = trace(function, inputs, ((1, 1),) * len(self.size), parameters, services, outputs)
        return program, [list(names).index(str(one)) for one in feeds]

    def start(self, shape: Sequence[int], seed: int = 0) -> list[Any]:
        """Return arrays in which something happens."""
        rng = np.random.default_rng(seed)
        count = len(self.program()[0].inputs)
        scale = 2 if self.dtype == "u1" else 0.15 if self.name == "diffusion3d" else 1
        return [(rng.random(shape) * scale).astype(self.dtype) for _ in range(count)]

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
}


def choices(name: str, quick: bool) -> Iterator[tuple[int, Tuning]]:
    """Yield numbers of steps, and choices that need a kernel of their own."""
    base = Tuning(vectors=True)
    if name == "heat f4":
        for steps, (columns, blocks), ahead in product(
            (5, 6, 7, 8, 10), ((4, 1), (4, 3), (4, 4), (8, 1), (8, 2)), (1, 2)
        ):
            if not (quick and (ahead > 1 or steps in (5, 7, 10))):
                yield steps, replace(base, columns=columns, blocks=blocks, ahead=ahead)
        for steps in (4, 8):
            yield steps, replace(base, vectors=False, blocks=3)
        for warps, blocks in ((1, 12), (2, 6), (8, 2)):
            yield 8, replace(base, warps=warps, blocks=blocks)
    elif name == "heat f8":
        for steps, (columns, blocks) in product((3, 4, 5, 6), ((2, 4), (4, 2), (4, 3))):
            yield steps, replace(base, columns=columns, blocks=blocks)
    elif name.startswith("gray_scott"):
        for steps, (columns, blocks) in product((3, 4, 5, 6), ((2, 4), (4, 1), (4, 3), (4, 4))):
            yield steps, replace(base, columns=columns, blocks=blocks)
    elif name == "life":
        for steps, (columns, blocks) in product((4, 6, 8), ((4, 4), (8, 1), (8, 2))):
            yield steps, replace(base, columns=columns, blocks=blocks)
    else:
        for steps, (columns, blocks) in product((3, 4, 5, 6), ((4, 1), (4, 3), (4, 4))):
            yield steps, replace(base, columns=columns, blocks=blocks)


ROWS = (0, 128, 256, 512, 1024)


def compiled(kernel: StepKernel) -> Any:
    """Return the function of a kernel, on this device."""
    return cupy.RawModule(code=kernel.source, options=OPTIONS).get_function(kernel.name)


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


def check(cases: dict[str, Case]) -> list[str]:
    """Return what differs from NumPy."""
    wanted = []
    for (name, case), boundary, vectors in product(cases.items(), BOUNDARIES, (False, True)):
        cval = 1 if case.dtype == "u1" else 0.25
        program, feeds = case.program()
        tuning = Tuning(vectors=vectors, rows=0 if vectors else 37)
        wanted.append((name, case, boundary, cval, feeds, build(program, feeds, boundary, cval, 3, tuning)))
    with ThreadPoolExecutor(12) as pool:
        functions = list(pool.map(lambda one: compiled(one[-1]), wanted))
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
    """Return the median of some rounds on the device."""
    act()
    times = []
    for _ in range(rounds):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        act()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    return statistics.median(times)


def timed(name: str, case: Case, copy: float, quick: bool) -> list[dict[str, Any]]:
    """Time all choices of a case."""
    program, feeds = case.program()
    kernels = []
    for steps, tuning in choices(name, quick):
        try:
            kernels.append(build(program, feeds, case.boundary, 0, steps, tuning))
        except NotFusable as reason:
            print(name, steps, tuning, reason)
    begin = time.perf_counter()
    with ThreadPoolExecutor(14) as pool:
        functions = list(pool.map(compiled, kernels))
    print(f"{name}: {len(kernels)} kernels in {time.perf_counter() - begin:.0f} s", flush=True)
    dtype = np.dtype(case.dtype)
    part = [np.minimum(n, 512) for n in case.size]
    states = []
    for one in case.start(part):
        states.append(aligned(case.size, dtype))
        states[-1][...] = cupy.tile(
            cupy.asarray(one), [-(-n // m) for n, m in zip(case.size, part, strict=True)]
        )[tuple(slice(n) for n in case.size)]
    outs = [aligned(case.size, dtype) for _ in feeds]
    moved = 2 * math.prod(case.size) * dtype.itemsize * len(feeds)
    rows = []
    for kernel, function in zip(kernels, functions, strict=True):
        for height in ROWS:
            one = retuned(kernel, height)
            launch = arguments(one, states, outs, whole(case.size))
            values = tuple(map(np.int64, launch.values))
            time_ = seconds(
                lambda: function(launch.grid, launch.block, values, shared_mem=launch.shared),
                3,
            )
            rate = moved * kernel.steps / time_
            rows.append(
                {
                    "case": name,
                    "steps": kernel.steps,
                    **asdict(one.tuning),
                    "registers": function.num_regs,
                    "local_bytes": function.local_size_bytes,
                    "height": launch.values[0],
                    "seconds": time_,
                    "bytes_per_second": rate,
                    "of_copy": rate / copy,
                }
            )
    rows.sort(key=lambda row: -float(row["bytes_per_second"]))
    best: set[tuple[Any, ...]] = set()
    for row in rows:  # of each kernel, the best rows of a strip
        key = tuple(row[one] for one in ("steps", "columns", "warps", "ahead", "blocks", "vectors"))
        if key in best:
            continue
        best.add(key)
        if len(best) <= 14 or not row["vectors"]:
            print(
                f"  K {key[0]:2} columns {key[1]} warps {key[2]} ahead {key[3]} blocks {key[4]:2} vectors {key[5]:d}"
                f" rows {row['rows']:4} ({row['height']:5}) registers {row['registers']:3}"
                f" local {row['local_bytes']:4} {1e6 * row['seconds'] / row['steps']:8.1f} us a step"
                f" {row['bytes_per_second'] / 1e9:7.0f} GB/s {row['of_copy']:5.2f}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--quick", action="store_true", help="fewer choices")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = {name: CASES[name] for name in options.only}
    begin = time.perf_counter()
    wrong = check(cases)
    print(
        f"{'WRONG' if wrong else 'right'} ({time.perf_counter() - begin:.0f} s)",
        *wrong,
        sep="\n  ",
        flush=True,
    )
    copy = copy_rate()
    print(f"copy {copy / 1e9:.0f} GB/s")
    rows = [row for name, case in cases.items() for row in timed(name, case, copy, options.quick)]
    print("best:")
    for name in cases:
        row = next(one for one in rows if one["case"] == name)
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
