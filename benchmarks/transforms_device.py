"""Transposes, Fourier transforms and matrix products on 1, 2, 4, 8 GPUs, beside their bounds and beside JAX.

    python benchmarks/transforms_device.py [--gpus 1,2,4,8] [--rounds 3] [--side 32768] [--cells 1024]
        [--factors 32768] [--precisions bfloat16] [--device cuda] [--json FILE]

For each number of GPUs, meshrun's ranks and JAX (one process, if it is installed) are started in turn,
`rounds` times. A figure is the median over the rounds of medians of `REPEATS` calls of the slowest rank, of
fewer if they take more than `SECONDS`, on arrays in the GPUs' memory; every result is checked once. Bounds
are measured by the same ranks in the same sitting:

    all-to-all      the messages of a transpose, or of a transform, alone: `World.all_to_all`
    in turn         packing, all-to-all, unpacking and transposing, one after the other: `World.redistribute`
    local           the transforms of a rank's block along all axes, without any exchange
    own rows        a rank's rows of the product, with all of B in its memory

--device cpu runs the same on CPU ranks, to try the script; its figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from launch.mpi.launcher import find
from runner.report.record import write_json

AS_ROOT = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
REPEATS, FEWEST, SECONDS = 15, 3, 2.0
PRECISIONS = ("bfloat16", "float32", "float64")
PRIME = 40503
PART = 4096  # columns of a product that is checked
Figures = dict[str, float]


def are_enough(times: list[float]) -> bool:
    return len(times) >= FEWEST and sum(times) > SECONDS


def as_ranks(options: argparse.Namespace) -> Figures:
    """Measure on the ranks of this world; the figures are rank 0's."""
    import meshrun

    world = meshrun.open_world(options.device)
    found: Figures = {}

    def timed(name: str, work: Callable[[], Any]) -> None:
        times = []
        for number in range(REPEATS + 2):  # the first calls plan, compile and connect
            world.backend.synchronize()
            world.control.barrier()
            begin = time.perf_counter()
            work()
            world.backend.synchronize()
            taken = max(world.control.allgather(time.perf_counter() - begin))
            if number > 1:
                times.append(taken)
            if are_enough(times):
                break
        found[name] = statistics.median(times)

    transposes(world, options.side, timed)
    transforms(world, options.cells, timed)
    for precision in options.precisions:
        products(world, options.factors, precision, timed)
    world.close()
    return found


def transposes(world: Any, side: int, timed: Callable[[str, Callable[[], Any]], None]) -> None:
    import meshrun
    from jobs.transforms.direct import open_direct
    from jobs.transforms.transpose import permuted

    xp, mine = world.xp, world.part(side)
    rows = xp.arange(mine.start, mine.stop, dtype=np.int64)[:, None]
    columns = xp.arange(side, dtype=np.int64)[None, :]
    block = ((rows * PRIME + columns) % (1 << 24)).astype(np.float32)
    expected = ((columns * PRIME + rows) % (1 << 24)).astype(np.float32)

    def check(result: Any, how: str) -> None:
        if not bool((result == expected).all()):
            raise SystemExit(f"rank {world.rank}: wrong transpose, {how}")

    check(meshrun.transpose(block, world), "messages")
    timed("transpose: messages in parts", lambda: meshrun.transpose(block, world))
    whole = (side, side)
    if world.size > 1:
        timed("transpose: in turn", lambda: permuted(world.redistribute(block, 0, 1, whole), (1, 0)))
        send = xp.zeros((world.size, side**2 // world.size**2), np.float32)
        out = xp.empty_like(send)
        timed("transpose: all-to-all", lambda: world.all_to_all(send, out))
    direct = open_direct(world, whole, np.dtype(np.float32), (1, 0))
    if isinstance(direct, str):
        if world.rank == 0:
            print(f"no direct transpose: {direct}", file=sys.stderr)
        return
    check(direct(block, *whole), "direct")
    timed("transpose: direct", lambda: direct(block, *whole))
    direct.close()


def transforms(world: Any, cells: int, timed: Callable[[str, Callable[[], Any]], None]) -> None:
    import meshrun

    xp, mine = world.xp, world.part(cells)
    generator = xp.random.RandomState(world.rank)
    shape = (mine.stop - mine.start, cells, cells)
    block = (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(np.complex64)
    result, _ = meshrun.fft(block, world, keep_order=False)
    before, after = (float((abs(one.astype(np.complex128)) ** 2).sum()) for one in (block, result))
    before, after = (sum(world.control.allgather(one)) for one in (before, after))
    if not abs(after / (before * float(cells) ** 3) - 1) < 1e-4:
        raise SystemExit(f"rank {world.rank}: the transform has not the input's energy")
    del result
    timed("fft", lambda: meshrun.fft(block, world, keep_order=False))
    if world.size > 1:
        other = xp.zeros((cells, shape[0], cells), np.complex64)
        other[...] = block[:1].transpose(1, 0, 2)
        timed("fft: local", lambda: (xp.fft.fftn(block, axes=(1, 2)), xp.fft.fft(other, axis=0)))
        send = xp.zeros((world.size, cells**3 // world.size**2), np.complex64)
        out = xp.empty_like(send)
        timed("fft: all-to-all", lambda: world.all_to_all(send, out))
    else:
        timed("fft: local", lambda: xp.fft.fftn(block))


def products(world: Any, side: int, precision: Any, timed: Callable[[str, Callable[[], Any]], None]) -> None:
    import meshrun

    xp, mine = world.xp, world.part(side)
    dtype = np.float64 if precision == "float64" else np.float32
    generator = xp.random.RandomState(world.rank)
    a = generator.standard_normal((mine.stop - mine.start, side)).astype(dtype)
    b = generator.standard_normal((mine.stop - mine.start, side)).astype(dtype)
    whole = world.all_gather(b)
    got = meshrun.matmul(a, b, world=world, precision=precision)[:2]
    rows, columns = a[:2].astype(np.float64), range(0, side, PART)
    expected = xp.concatenate([rows @ whole[:, n : n + PART].astype(np.float64) for n in columns], axis=1)
    limit = {"bfloat16": 0.05, "float32": 1e-4, "float64": 1e-11}[precision]
    if not float(abs(got - expected).max()) < limit * side**0.5 * 10:
        raise SystemExit(f"rank {world.rank}: wrong product in {precision}")
    del got, expected
    timed(f"matmul {precision}", lambda: meshrun.matmul(a, b, world=world, precision=precision))
    timed(f"matmul {precision}: own rows", lambda: meshrun.matmul(a, whole, precision=precision))


def as_jax(options: argparse.Namespace) -> Figures:
    """The same of JAX, sharded over as many devices of this process; nothing if JAX is not installed."""
    try:
        import jax
    except ImportError:
        print("JAX is not installed", file=sys.stderr)
        return {}
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices()[: options.count]
    if len(devices) < options.count:
        raise SystemExit(f"JAX has {len(devices)} devices of {options.count}")
    mesh = Mesh(np.array(devices), ("ranks",))
    rows = NamedSharding(mesh, PartitionSpec("ranks"))

    def timed(work: Any, *arrays: Any) -> float:
        compiled, times = jax.jit(work, out_shardings=rows), []
        for number in range(REPEATS + 2):
            begin = time.perf_counter()
            compiled(*arrays).block_until_ready()
            if number > 1:
                times.append(time.perf_counter() - begin)
            if are_enough(times):
                break
        return statistics.median(times)

    def random(*shape: int, dtype: Any = "float32") -> Any:
        make = jax.jit(lambda key: jax.random.normal(key, shape, dtype), out_shardings=rows)
        return make(jax.random.key(0))

    def highest(a: Any, b: Any) -> Any:
        return jax.numpy.matmul(a, b, precision="highest")

    found = {"transpose": timed(lambda x: x.T, random(options.side, options.side))}
    cells = options.cells
    found["fft"] = timed(jax.numpy.fft.fftn, random(cells, cells, cells, dtype="complex64"))
    for precision in (one for one in options.precisions if one != "float64"):
        a, b = (random(options.factors, options.factors, dtype=precision) for _ in range(2))
        found[f"matmul {precision}"] = timed(highest, a, b)
    return found


def child(options: argparse.Namespace, count: int, part: str) -> Figures:
    """Start the ranks, or JAX, once; return their figures."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "figures.json"
        sizes = ("side", "cells", "factors", "device")
        words = [sys.executable, __file__, "--as", part, "--count", str(count), "--json", str(file)]
        words += [word for size in sizes for word in (f"--{size}", str(getattr(options, size)))]
        words += ["--precisions", *options.precisions]
        if part == "ranks":
            words = [str(find().path), "-n", str(count), *words]
            if options.device == "cpu":
                words.insert(1, "--oversubscribe")
        done = subprocess.run(words, env={**os.environ, **AS_ROOT}, check=False)
        if done.returncode and part == "jax":
            print(f"JAX on {count} ended with status {done.returncode}: no figures of it", file=sys.stderr)
            return {}
        if done.returncode:
            raise SystemExit(f"{part} on {count} ended with status {done.returncode}")
        figures: Figures = json.loads(file.read_text())["seconds"]
        return figures


def goals(of: Figures, jax: Figures) -> dict[str, float]:
    """Return each figure as a part of its bound; of JAX's time, where it was measured."""
    found = {}

    def add(name: str, bound: float | None, figure: str) -> None:
        if bound is not None and figure in of:
            found[name] = bound / of[figure]

    ways = [name for name in ("transpose: direct", "transpose: messages in parts") if name in of]
    best = min(ways, key=lambda name: of[name])
    add("transpose, of the all-to-all's rate", of.get("transpose: all-to-all"), best)
    add("transpose, times as fast as in turn", of.get("transpose: in turn"), best)
    add("transpose, times as fast as JAX", jax.get("transpose"), best)
    add("fft, of the overlapped bound", max(of["fft: local"], of.get("fft: all-to-all", 0)), "fft")
    add("fft, times as fast as JAX", jax.get("fft"), "fft")
    for precision in PRECISIONS:
        name = f"matmul {precision}"
        add(f"{name}, of its own rows' rate", of.get(f"{name}: own rows"), name)
        add(f"{name}, times as fast as JAX", jax.get(name), name)
    return found


def main() -> None:
    options = arguments()
    if options.part:
        figures = {"ranks": as_ranks, "jax": as_jax}[options.part](options)
        if options.part == "jax" or os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "0":
            write_json(options.json, "transforms_device_part", 1, {"seconds": figures})
        return
    found: dict[str, Any] = {}
    for count in (int(word) for word in options.gpus.split(",")):
        taken: dict[str, dict[str, list[float]]] = {"ranks": {}, "jax": {}}
        for _ in range(options.rounds):
            for part, of_part in taken.items():
                for name, seconds in child(options, count, part).items():
                    of_part.setdefault(name, []).append(seconds)
        medians = {
            part: {name: statistics.median(all_) for name, all_ in of_part.items()}
            for part, of_part in taken.items()
        }
        reached = goals(medians["ranks"], medians["jax"])
        print(f"{count} GPUs" if options.device == "cuda" else f"{count} CPU ranks")
        for part, of_part in medians.items():
            for name, seconds in of_part.items():
                print(f"  {'JAX, ' if part == 'jax' else ''}{name:32s} {1e3 * seconds:10.3f} ms")
        for name, ratio in reached.items():
            print(f"  {name:44s} {ratio:6.3f}")
        found[str(count)] = {"seconds": taken, "medians": medians, "reached": reached}
    if options.json:
        sizes = {"side": options.side, "cells": options.cells, "factors": options.factors}
        write_json(options.json, "transforms_device", 1, {**sizes, "device": options.device, "counts": found})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", default="1,2,4,8", help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", type=int, default=32768, help="of the transposed matrix")
    parser.add_argument("--cells", type=int, default=1024, help="of the transform, along each of three axes")
    parser.add_argument(
        "--factors", type=int, default=32768, help="rows and columns of the products' factors"
    )
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as", dest="part", choices=("ranks", "jax"), help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
