"""Transposes, Fourier transforms and matrix products on 1, 2, 4, 8 GPUs, beside their bounds and beside JAX.

    python benchmarks/transforms_device.py [--gpus 1,2,4,8] [--rounds 3] [--only transpose fft matmul]
        [--side 32768] [--cells 1024] [--factors 32768] [--precisions bfloat16] [--device cuda] [--json FILE]

In each round, meshrun's ranks and JAX (one process, if it is installed) are started in turn, for each number
of GPUs. A figure is the median over the rounds of medians of `REPEATS` calls of the slowest rank, of fewer if
they take more than `SECONDS`, on arrays in the GPUs' memory; every result is checked once. The JSON is
written after each figure. Bounds are measured by the same ranks in the same sitting, alone, by library calls
(device_bounds.py):

    all-to-all      the messages of a transpose, or of a transform: NCCL's, as of `meshrun bench`
    in turn         packing, all-to-all, unpacking and transposing, one after the other: `World.redistribute`
    local           a rank's share of the transforms, along all axes: cuFFT's plans
    own rows        a rank's rows of the product, with all of B in its memory, rounded before: cuBLAS

A bound of several is the largest of them. --device cpu runs the same on CPU ranks, to try the script; its
figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from device_bounds import all_to_all, product, transforms

from meshrun.launch.mpi.launcher import find
from meshrun.runner.report.record import write_json

AS_ROOT = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
REPEATS, FEWEST, SECONDS = 15, 3, 2.0
POLL = 1.0  # seconds between two looks for new figures
JOBS = ("transpose", "fft", "matmul")
PRECISIONS = ("bfloat16", "float32", "float64")
PRIME = 40503
PART = 4096  # columns of a product that is checked
Figures = dict[str, float]
# Times calls in turn, so that a GPU that grows warm and slow counts for all.
Timed = Callable[[Mapping[str, Callable[[], Any]]], None]


def are_enough(times: list[float]) -> bool:
    return len(times) >= FEWEST and sum(times) > SECONDS


def as_ranks(options: argparse.Namespace, found: Figures) -> None:
    """Measure on the ranks of this world; rank 0 writes the figures."""
    import meshrun

    world = meshrun.open_world(options.device)

    def timed(works: Mapping[str, Callable[[], Any]]) -> None:
        times: dict[str, list[float]] = {name: [] for name in works}
        for number in range(REPEATS + 2):  # the first calls plan, compile and connect
            for name, work in works.items():
                taken = seconds_of(world, work)
                if number > 1:
                    times[name].append(taken)
            if all(map(are_enough, times.values())):
                break
        found.update({name: statistics.median(some) for name, some in times.items()})
        if world.rank == 0:
            write_figures(options.json, found)

    if "transpose" in options.only:
        measure_transposes(world, options.side, timed)
        world.backend.release_memory()
    if "fft" in options.only:
        measure_transforms(world, options.cells, timed)
        world.backend.release_memory()
    for precision in options.precisions if "matmul" in options.only else ():
        measure_products(world, options.factors, precision, timed)
        world.backend.release_memory()
    world.close()


def seconds_of(world: Any, work: Callable[[], Any]) -> float:
    """Return the seconds of one call with its work on the device, of the slowest rank. Collective."""
    world.backend.synchronize()
    world.control.barrier()
    begin = time.perf_counter()
    work()
    world.backend.synchronize()
    return float(max(world.control.allgather(time.perf_counter() - begin)))


def write_figures(file: Path, found: Figures) -> None:
    write_json(file, "transforms_device_part", 1, {"seconds": found})


def measure_all_to_all(world: Any, name: str, nbytes: int, timed: Timed) -> None:
    if world.size > 1:
        work, close = all_to_all(world, nbytes)
        timed({name: work})
        close()


def measure_transposes(world: Any, side: int, timed: Timed) -> None:
    import meshrun
    from meshrun.jobs.transforms.direct import open_direct
    from meshrun.jobs.transforms.transpose import permuted

    xp, mine = world.xp, world.part(side)
    rows = xp.arange(mine.start, mine.stop, dtype=np.uint32)[:, None]
    columns = xp.arange(side, dtype=np.uint32)[None, :]
    few = np.uint32((1 << 24) - 1)  # so that float32 holds them
    block = ((rows * np.uint32(PRIME) + columns) & few).astype(np.float32)
    expected = ((columns * np.uint32(PRIME) + rows) & few).astype(np.float32)

    def check(result: Any, expected: Any, how: str) -> None:
        if not bool((result == expected).all()):
            raise SystemExit(f"rank {world.rank}: wrong transpose, {how}")

    check(meshrun.transpose(block, world), expected, "messages")
    works = {"transpose: messages in parts": partial(meshrun.transpose, block, world)}
    whole = (side, side)
    if world.size > 1:

        def in_turn(block: Any) -> None:
            permuted(world.redistribute(block, 0, 1, whole), (1, 0))

        works["transpose: in turn"] = partial(in_turn, block)
    direct = open_direct(world, whole, np.dtype(np.float32), (1, 0))
    if not isinstance(direct, str):
        check(direct(block, *whole), expected, "direct")
        works["transpose: direct"] = partial(direct, block, *whole)
    elif world.rank == 0:
        print(f"no direct transpose: {direct}", file=sys.stderr)
    timed(works)
    if not isinstance(direct, str):
        direct.close()
    nbytes = block.nbytes
    del block, expected, works
    world.backend.release_memory()
    measure_all_to_all(world, "transpose: all-to-all", nbytes, timed)


def measure_transforms(world: Any, cells: int, timed: Timed) -> None:
    import meshrun

    block = random_block(world, (cells,) * 3, 0)
    result, _ = meshrun.fft(block, world, keep_order=False)
    before = energy(world, block)
    check_energy(world, result, before * float(cells) ** 3)
    some, most = result[::8, ::8, ::8].copy(), float(abs(result).max())
    del result
    messages = partial(meshrun.fft, block, world, keep_order=False)
    if world.size == 1:
        timed({"fft": messages, "fft: local": transforms(world, block)})
        return
    # By themselves: 2048^3 on four GPUs leaves a plan no memory that others keep for work areas and messages.
    timed({"fft": messages})
    world.backend.release_memory()
    timed({"fft: local": transforms(world, block)})
    world.backend.release_memory()
    with meshrun.FourierPlan(world, (cells,) * 3) as plan:
        if world.rank == 0:
            measured = ", ".join(f"{name} {1e3 * one:.3g} ms" for name, one in plan.seconds.items())
            why = f" ({plan.reason})" if plan.reason else ""
            print(
                f"the plan exchanges by {plan.exchange}{why}; there and back: {measured or 'not measured'}",
                file=sys.stderr,
            )
        spectrum = plan.forward(block)
        check_energy(world, spectrum, before * float(cells) ** 3)
        if not float(abs(spectrum[::8, ::8, ::8] - some).max()) < 1e-5 * most:
            raise SystemExit(f"rank {world.rank}: the plan's transform is another one")
        del spectrum
        timed({"fft: plan": partial(plan.forward, block)})
        spectrum, nbytes = plan.forward(block), block.nbytes
        del block, messages
        timed({"fft: plan, inverse": partial(plan.inverse, spectrum)})
        check_energy(world, plan.inverse(spectrum), before)
        del spectrum
    world.backend.release_memory()
    measure_all_to_all(world, "fft: all-to-all", nbytes, timed)


def random_block(world: Any, shape: tuple[int, ...], split: int) -> Any:
    """Return this rank's block, complex64, of an array that is split along an axis."""
    part = world.part(shape[split])
    block = world.xp.empty((*shape[:split], part.stop - part.start, *shape[split + 1 :]), np.complex64)
    generator = world.xp.random.default_rng(world.rank)
    for cells in block:  # one after the other: what is drawn needs memory, too
        cells.real = generator.standard_normal(cells.shape, dtype=np.float32)
        cells.imag = generator.standard_normal(cells.shape, dtype=np.float32)
    return block


def energy(world: Any, array: Any) -> float:
    """Return the sum of squares of all ranks' arrays."""
    mine = sum(
        float((one.real**2).sum(dtype=np.float64) + (one.imag**2).sum(dtype=np.float64)) for one in array
    )
    return float(sum(world.control.allgather(mine)))


def check_energy(world: Any, array: Any, expected: float) -> None:
    if not abs(energy(world, array) / expected - 1) < 1e-4:
        raise SystemExit(f"rank {world.rank}: the transform has not the input's energy")


def measure_products(world: Any, side: int, precision: Any, timed: Timed) -> None:
    import meshrun
    from meshrun.jobs.linalg.matmul.precision import choose
    from meshrun.jobs.linalg.matmul.products import open_products

    xp, mine = world.xp, world.part(side)
    dtype = np.dtype(np.float64 if precision == "float64" else np.float32)
    generator = xp.random.default_rng(world.rank)
    shape = (mine.stop - mine.start, side)
    a, b = (generator.standard_normal(shape, dtype=dtype.name) for _ in range(2))
    multiply = partial(meshrun.matmul, a, b, world=world, precision=precision)
    got = multiply()[:2].copy()
    world.backend.release_memory()
    whole = world.all_gather(b)
    rows, columns = a[:2].astype(np.float64), range(0, side, PART)
    expected = xp.concatenate([rows @ whole[:, n : n + PART].astype(np.float64) for n in columns], axis=1)
    limit = {"bfloat16": 0.05, "float32": 1e-4, "float64": 1e-11}[precision]
    if not float(abs(got - expected).max()) < limit * side**0.5 * 10:
        raise SystemExit(f"rank {world.rank}: wrong product in {precision}")
    gpu = world.backend.device.kind == "cuda"
    products = open_products(world.backend, choose(dtype, dtype, precision, gpu=gpu))
    own = product(world, precision, products.stored(a), products.stored(whole))
    del whole
    timed({f"matmul {precision}": multiply, f"matmul {precision}: own rows": own})


def as_jax(options: argparse.Namespace, found: Figures) -> None:
    """The same of JAX, sharded over as many devices of this process; nothing if JAX is not installed."""
    try:
        import jax
    except ImportError:
        print("JAX is not installed", file=sys.stderr)
        return
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices()[: options.count]
    if len(devices) < options.count:
        raise SystemExit(f"JAX has {len(devices)} devices of {options.count}")
    mesh = Mesh(np.array(devices), ("ranks",))
    rows = NamedSharding(mesh, PartitionSpec("ranks"))

    def timed(name: str, work: Any, *arrays: Any) -> None:
        compiled, times = jax.jit(work, out_shardings=rows), []
        for number in range(REPEATS + 2):
            begin = time.perf_counter()
            compiled(*arrays).block_until_ready()
            if number > 1:
                times.append(time.perf_counter() - begin)
            if are_enough(times):
                break
        found[name] = statistics.median(times)
        write_figures(options.json, found)

    def random(*shape: int, dtype: Any = "float32") -> Any:
        make = jax.jit(lambda key: jax.random.normal(key, shape, dtype), out_shardings=rows)
        return make(jax.random.key(0))

    def highest(a: Any, b: Any) -> Any:
        return jax.numpy.matmul(a, b, precision="highest")

    if "transpose" in options.only:
        timed("transpose", lambda x: x.T, random(options.side, options.side))
    cells = options.cells
    if "fft" in options.only:
        timed("fft", jax.numpy.fft.fftn, random(cells, cells, cells, dtype="complex64"))
    for precision in options.precisions if "matmul" in options.only else ():
        if precision != "float64":
            a, b = (random(options.factors, options.factors, dtype=precision) for _ in range(2))
            timed(f"matmul {precision}", highest, a, b)


def child(options: argparse.Namespace, count: int, part: str, follow: Callable[[Figures], None]) -> int:
    """Start the ranks, or JAX, once; call `follow` with the figures so far as they come. Returns the exit
    status."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "figures.json"
        write_figures(file, {})
        sizes = ("side", "cells", "factors", "device")
        words = [sys.executable, __file__, "--as", part, "--count", str(count), "--json", str(file)]
        words += [word for size in sizes for word in (f"--{size}", str(getattr(options, size)))]
        words += ["--precisions", *options.precisions, "--only", *options.only]
        if part == "ranks":
            words = [str(find().path), "-n", str(count), *words]
            if options.device == "cpu":
                words.insert(1, "--oversubscribe")
        with subprocess.Popen(words, env={**os.environ, **AS_ROOT}) as process:
            status = None
            try:
                while status is None:
                    with suppress(subprocess.TimeoutExpired):
                        status = process.wait(POLL)
                    follow(json.loads(file.read_text())["seconds"])
            except BaseException:
                process.terminate()
                raise
        if status:
            print(f"{part} on {count} ended with status {status}", file=sys.stderr)
        return status


def goals(of: Figures, jax: Figures) -> dict[str, float]:
    """Return each figure as a part of its bound; of JAX's time, where it was measured."""
    found = {}

    def add(name: str, bound: float | None, figure: str) -> None:
        if bound is not None and figure in of:
            found[name] = bound / of[figure]

    ways = [name for name in ("transpose: direct", "transpose: messages in parts") if name in of]
    best = min(ways, key=lambda name: of[name], default="")
    add("transpose, of the all-to-all's rate", of.get("transpose: all-to-all"), best)
    add("transpose, times as fast as in turn", of.get("transpose: in turn"), best)
    add("transpose, times as fast as JAX", jax.get("transpose"), best)
    if "fft: local" in of:
        bound = max(of["fft: local"], of.get("fft: all-to-all", 0))
        for name in ("fft", "fft: plan", "fft: plan, inverse"):
            add(f"{name}, of the overlapped bound", bound, name)
    for name in ("fft", "fft: plan"):
        add(f"{name}, times as fast as JAX", jax.get("fft"), name)
    for precision in PRECISIONS:
        name = f"matmul {precision}"
        add(f"{name}, of its own rows' rate", of.get(f"{name}: own rows"), name)
        add(f"{name}, times as fast as JAX", jax.get(name), name)
    return found


def main() -> int:
    options = arguments()
    if options.part:
        {"ranks": as_ranks, "jax": as_jax}[options.part](options, {})
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the ranks end, too
    counts = [int(word) for word in options.gpus.split(",")]
    taken: dict[int, dict[str, list[Figures]]] = {count: {"ranks": [], "jax": []} for count in counts}
    failed = False
    for _ in range(options.rounds):
        for count, of_count in taken.items():
            for part, rounds in of_count.items():
                rounds.append({})

                def follow(figures: Figures, rounds: list[Figures] = rounds) -> None:
                    rounds[-1] = figures
                    if options.json:
                        write(options, taken)

                status = child(options, count, part, follow)
                failed |= part == "ranks" and status != 0
    for count, of_count in taken.items():
        print(f"{count} GPUs" if options.device == "cuda" else f"{count} CPU ranks")
        medians, reached = summary(of_count)
        for part, of_part in medians.items():
            for name, seconds in of_part.items():
                print(f"  {'JAX, ' if part == 'jax' else ''}{name:32s} {1e3 * seconds:10.3f} ms")
        for name, ratio in reached.items():
            print(f"  {name:44s} {ratio:6.3f}")
    return 1 if failed else 0


def gathered(rounds: list[Figures]) -> dict[str, list[float]]:
    """Return each figure's seconds in all rounds that have it."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {name: [figures[name] for figures in rounds if name in figures] for name in names}


def summary(of_count: dict[str, list[Figures]]) -> tuple[dict[str, Figures], Figures]:
    """Return the medians over the rounds, by part, and what they reach."""
    medians = {
        part: {name: statistics.median(all_) for name, all_ in gathered(rounds).items()}
        for part, rounds in of_count.items()
    }
    return medians, goals(medians["ranks"], medians["jax"])


def write(options: argparse.Namespace, taken: dict[int, dict[str, list[Figures]]]) -> None:
    """Write all figures so far."""
    found = {}
    for count, of_count in taken.items():
        medians, reached = summary(of_count)
        seconds = {part: gathered(rounds) for part, rounds in of_count.items()}
        found[str(count)] = {"seconds": seconds, "medians": medians, "reached": reached}
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
    parser.add_argument("--only", nargs="+", default=JOBS, choices=JOBS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as", dest="part", choices=("ranks", "jax"), help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
