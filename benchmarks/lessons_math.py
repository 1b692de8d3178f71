"""One GPU: all variants of the vectorised transpose beside cuBLAS geam and a copy; products beside gemm.

    python benchmarks/lessons_math.py [--shape 8192x8192 ...] [--dtype float32 ...] [--side 8192]
        [--json FILE]

All in one process, in turns, so that clocks and temperature are the same for all; medians over rounds.
GB/s are read plus written. Results are checked: of transposes every element, once.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.jobs.bench.lessons import pseudorandom
from meshrun.jobs.bench.lessons.matmul import freivalds
from meshrun.jobs.bench.lessons.matmul.methods import PRECISIONS, GpuProducts
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.bench.lessons.transpose import lesson as transpose
from meshrun.jobs.bench.lessons.transpose.methods import GpuTransposes, launch, variants
from meshrun.runner.device.cuda import CudaBackend
from meshrun.runner.device.raw import blas
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.report.record import write_json
from meshrun.runner.world.world import single_rank_world

ROUNDS = 15
ENOUGH = 2e-3  # seconds of each way in a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", action="append")
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--side", type=int, default=8192, help="of the products; 0: none")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    world, box = single_rank_world(CudaBackend(0)), open_box()
    context = Context(world, box, 0)
    rows: list[dict[str, Any]] = []
    for dtype in map(np.dtype, options.dtype or ["float32", "float64", "float16"]):
        for text in options.shape or ["8192x8192", "32768x32768", "65536x512", "512x65536"]:
            rows += transposes(context, dtype, transpose.parse(text))
    products = all_products(context, options.side) if options.side else []
    box.close()
    if options.json:
        record = {
            "benchmark": "lessons_math", "device": world.here.device.name, "rounds": ROUNDS,
            "versions": world.versions(), "transposes": rows, "products": products,
        }  # fmt: skip
        write_json(options.json, "benchmark", 1, record)


def transposes(context: Context, dtype: np.dtype[Any], shape: tuple[int, int]) -> list[dict[str, Any]]:
    place, box = GpuTransposes(context), context.required_box
    nbytes = shape[0] * shape[1] * dtype.itemsize
    source, target = (box.allocate("device", nbytes, context.gpu) for _ in range(2))
    words = [box.array(memory).view(f"u{dtype.itemsize}") for memory in (source, target)]
    pseudorandom.fill(context.world.xp, words[0])
    place.settle()
    actions: dict[str, Callable[[], object]] = {
        "copy": lambda: box.copy(target, source, nbytes, place.stream),
        **{
            way: place.kernel(launch(way, shape, dtype.itemsize, source.address), source, target, shape)
            for way in ("naive", "tiled")
        },
    }
    if dtype.itemsize > 2:
        actions["cuBLAS geam"] = lambda: blas.geam(
            *shape, dtype, source.address, target.address, place.stream
        )
    for variant in variants(dtype.itemsize):
        planned = launch("vectorised", shape, dtype.itemsize, source.address, target.address, variant=variant)
        actions[planned.instance] = place.kernel(planned, source, target, shape)
    wrong = {}
    for name, action in actions.items():
        words[1].view(np.uint8)[...] = 0xA5
        place.settle()
        action()
        place.settle()
        whole = (shape[0] * shape[1], 1) if name == "copy" else shape
        wrong[name], _ = transpose.count_mismatches(context.world.xp, words[1], whole)
    seconds = interleaved(context, place.stream, actions)
    place.settle()
    box.release(source)
    box.release(target)
    rows = [
        {
            "dtype": dtype.name, "shape": shape, "way": name, "seconds": taken, "wrong": wrong[name],
            "bytes_per_second": 2 * nbytes / taken, "of_copy": seconds["copy"] / taken,
            "of_geam": seconds["cuBLAS geam"] / taken if "cuBLAS geam" in seconds else None,
        }
        for name, taken in seconds.items()
    ]  # fmt: skip
    print(f"\n{dtype.name}, {shape[0]} x {shape[1]}")
    for row in sorted(rows, key=lambda row: row["seconds"]):
        geam = f"{100 * row['of_geam']:6.1f} % of geam" if row["of_geam"] else ""
        fault = f"  {row['wrong']:,} WRONG" if row["wrong"] else ""
        print(
            f"{row['way']:66} {row['bytes_per_second'] / 1e9:7.0f} GB/s "
            f"{100 * row['of_copy']:6.1f} % of copy {geam}{fault}",
            flush=True,
        )
    return rows


def all_products(context: Context, side: int) -> list[dict[str, Any]]:
    place, shape = GpuProducts(context), (side, side, side)
    rows = []
    for precision in (PRECISIONS[known] for known in place.PRECISIONS):
        with place.matrices(shape, precision) as matrices:
            freivalds.fill(context.world.xp, matrices, shape, precision, exact=False)
            place.settle()
            seconds = interleaved(context, place.stream, matrices.operations)
            for way, taken in seconds.items():
                matrices.c.view(np.uint8)[...] = 0xA5
                place.settle()
                matrices.operations[way]()
                place.settle()
                error = freivalds.error(context.world.xp, matrices, shape, precision)
                row = {
                    "precision": precision.name, "side": side, "way": way, "seconds": taken,
                    "flops_per_second": 2 * side**3 / taken, "of_cublas": seconds["cuBLAS"] / taken,
                    "error": error, "bound": freivalds.bound(shape, precision),
                }  # fmt: skip
                rows.append(row)
                print(
                    f"{precision.name:9} {way:9} {row['flops_per_second'] / 1e12:8.2f} TFLOP/s "
                    f"{100 * row['of_cublas']:6.1f} % of cuBLAS  error {error:.2g} of {row['bound']:.2g}",
                    flush=True,
                )
    return rows


def interleaved(context: Context, stream: Any, actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each action, some of each a round."""
    box, turns = context.required_box, {}

    def sample(action: Callable[[], object], count: int) -> float:
        begin = box.mark(stream)
        for _ in range(count):
            action()
        end = box.mark(stream)
        box.synchronize(stream)
        return box.elapsed(begin, end) / count

    for name, action in actions.items():
        sample(action, 1)
        turns[name] = math.ceil(ENOUGH / sample(action, 1))
    rounds = [{name: sample(action, turns[name]) for name, action in actions.items()} for _ in range(ROUNDS)]
    return {name: statistics.median(taken[name] for taken in rounds) for name in actions}


if __name__ == "__main__":
    main()
