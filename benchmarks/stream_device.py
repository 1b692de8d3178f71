"""A streamed map on GPUs against bare copies, and against one step after another; taking turns.

    mpirun -n RANKS python benchmarks/stream_device.py --dir /dev/shm [--gib 8] [--rounds 5] [--json FILE]

The job doubles float32 numbers and adds 1. Its input lies in the page cache, and the output's room is
claimed before the clock starts. In each round, in turn, all in GB/s of input and output together:

bare          every rank copies pinned memory to its GPU and back, both directions at once
pinned        `meshrun run`'s pipeline between pinned buffers: no file is read or written
bare files    the input read and the output written by as many threads, in the same pieces, without a GPU
streamed      the whole: from the first chunk's begin to the last one's end
in turn       per chunk: memory-mapped input, pageable copy up, kernel, pageable copy down, memory-mapped
              output; one rank only, at a quarter of the size
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

import numpy as np

import meshrun
from meshrun.runner.device.api import Backend
from meshrun.runner.forecast.calibrate import Nothing
from meshrun.runner.maps.streamed.endpoints import PIECE, Endpoints
from meshrun.runner.maps.streamed.gpu_engine import DeviceEngine
from meshrun.runner.maps.streamed.loop import stream
from meshrun.runner.maps.streamed.streaming import threads_of
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.grid import bounds
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.region import Region
from meshrun.runner.report.record import write_json
from meshrun.runner.report.spans import Spans
from meshrun.runner.run.execute import Options, run
from meshrun.runner.storage.formats.registry import Source, open_sink, open_source
from meshrun.runner.world.world import World, open_world

ROW = 1 << 20  # bytes


@meshrun.map_blocks()
def light(block: Any, *, out: Any, xp: Any) -> None:
    xp.multiply(block, 2, out=out)
    xp.add(out, 1, out=out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--gib", type=float, default=8.0, help="of input, for each rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--depth", type=int, nargs="+", default=[3])
    parser.add_argument("--chunk-mib", type=int, nargs="+", default=[64])
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    world = open_world("cuda")
    nbytes = int(options.gib * (1 << 30)) // ROW * ROW
    source, target = options.dir / "stream_in.npy", options.dir / "stream_out.npy"
    world.on_root(lambda: fill(source, nbytes * world.size))
    cases = [(depth, chunk) for depth in options.depth for chunk in options.chunk_mib]
    found: list[dict[str, Any]] = []
    try:
        for number in range(options.rounds + 1):
            row: dict[str, Any] = {"bare": bare(world, nbytes)}
            row["bare files"] = bare_files(world, source, target)
            for depth, chunk in cases:
                case = f"depth {depth}, {chunk} MiB"
                row[f"pinned, {case}"] = pinned(world, source, depth, chunk << 20)
                row[f"streamed, {case}"] = streamed(world, source, target, depth, chunk << 20)
            if options.in_turn and world.rank == 0:
                row["in turn"] = in_turn(world, source, target, nbytes // 4)
            world.control.barrier()
            if number:  # the first is for warming up
                found.append(row)
    finally:
        world.control.barrier()
        if world.rank == 0:
            source.unlink(missing_ok=True)
            target.unlink(missing_ok=True)
    if world.rank == 0:
        report(world, options, found)
    world.close()


def report(world: World, options: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    medians = {name: statistics.median(rate(row[name]) for row in found) for name in found[0]}
    details = {name: value for name, value in found[-1].items() if isinstance(value, dict)}
    print(f"{world.size} GPU(s), {options.gib:g} GiB each, {options.dir}; GB/s in and out, medians")
    for name, median in medians.items():
        share = f"{median / medians['bare']:7.1%} of bare" if name != "bare" else ""
        more = details.get(name, {}).get("stages", "")
        print(f"  {name:30} {median:8.1f}  {share}  {more}")
    if options.json:
        record = {
            "benchmark": "stream_device",
            "command": " ".join(sys.argv),
            "cpus": len(os.sched_getaffinity(0)),
            "devices": world.places(),
            "versions": world.versions(),
            "gigabytes_per_second": medians,
            "rounds": found,
        }
        write_json(options.json, "benchmark", 1, record)


def rate(value: Any) -> float:
    return float(value["rate"] if isinstance(value, dict) else value)


def fill(path: Path, nbytes: int) -> None:
    row = np.random.default_rng(0).random(ROW // 4, np.float32)
    array = np.lib.format.open_memmap(path, "w+", np.float32, (nbytes // ROW, ROW // 4))
    array[...] = row
    array.flush()


def bare(world: World, nbytes: int) -> float:
    """GB/s of all ranks together, in both directions at once."""
    backend: Backend = world.backend
    piece = 256 << 20
    raw = np.dtype(np.uint8)
    up, down = (backend.host_empty((piece,), raw) for _ in range(2))
    there, back = (backend.empty((piece,), raw) for _ in range(2))
    copies = backend.copy_streams()
    up[:] = 1
    times = []
    for _ in range(2):
        world.control.barrier()
        begin = time.perf_counter()
        for _ in range(nbytes // piece):
            ends = copies.send(up, there), copies.fetch(back, down, copies.mark())
        for _, end in ends:
            copies.passed(end)
        world.control.barrier()
        times.append(time.perf_counter() - begin)
    return 2 * (nbytes // piece) * piece * world.size / min(times) / 1e9


def shares(world: World, path: Path, rows: int) -> tuple[Source, Task, list[Region]]:
    """An open input, the job's task on it, and this rank's regions of `rows` rows."""
    source = open_source(path)
    task = plan_task(light, {}, [(source.shape, source.dtype)], 1)
    regions = Chunks(task.partition, rows)
    first, last = bounds(len(regions), world.size, world.rank)
    return source, task, [regions[number] for number in range(first, last)]


def bare_files(world: World, path: Path, target: Path) -> float:
    source, _, regions = shares(world, path, PIECE // ROW)
    sink = open_sink(target, source.shape, source.dtype, "bare")
    sink.threads = threads_of(world)
    world.on_root(sink.create)
    mine = local()

    def copy(region: Region) -> None:
        if not hasattr(mine, "buffer"):
            mine.buffer = np.empty((PIECE // ROW, ROW // 4), np.float32)
        part = mine.buffer[: region.shape[0]]
        source.read(region, part)
        sink.write(region, part)

    world.control.barrier()
    begin = time.perf_counter()
    with ThreadPoolExecutor(sink.threads) as pool:
        list(pool.map(copy, regions))
    world.control.barrier()
    seconds = time.perf_counter() - begin
    world.on_root(sink.partial.unlink)
    return 2 * int(np.prod(source.shape)) * 4 / seconds / 1e9


def pinned(world: World, path: Path, depth: int, chunk: int) -> float:
    source, task, _ = shares(world, path, 1)
    chunks = Chunks(task.partition, chunk // ROW)
    nothing: Any = Nothing(source.shape, source.dtype)
    endpoints = Endpoints(world, task, chunks, [nothing], [nothing], Spans())
    engine = DeviceEngine(endpoints)
    world.control.barrier()
    stream(
        engine,
        endpoints.spans,
        range(*bounds(len(chunks), world.size, world.rank)),
        depth=depth,
        threads=threads_of(world),
        finished=lambda number: None,
        idle=lambda: None,
    )
    copies = [span for span in endpoints.spans.found if span.stage in ("to device", "from device")]
    seconds = max(span.end for span in copies) - min(span.begin for span in copies)
    return 2 * int(np.prod(source.shape)) * 4 / max(world.control.allgather(seconds)) / 1e9


def streamed(world: World, source: Path, target: Path, depth: int, chunk: int) -> dict[str, Any]:
    stream = StreamOptions(chunk_bytes=chunk, depth=depth)
    begin = time.perf_counter()
    record = run(light, source, target, {}, Options(device="cuda", stream=stream), world=world)
    whole = time.perf_counter() - begin
    limits = record["stream"]["limits"]
    moved = 2 * int(np.prod(record["shape"])) * 4
    stages = {name: round(stage["seconds"], 3) for name, stage in limits["stages"].items()}
    return {
        "rate": moved / limits["wall_seconds"] / 1e9,
        "seconds": limits["wall_seconds"],
        "whole_run_seconds": whole,
        "stages": stages,
        "limited_by": record["stream"]["limited_by"],
    }


def in_turn(world: World, source: Path, target: Path, nbytes: int) -> float:
    """GB/s of one rank, pageable, each step after the one before."""
    xp = world.backend.xp
    given = np.load(source, mmap_mode="r")
    made = np.lib.format.open_memmap(target, "r+")
    rows = nbytes // ROW
    step = 64
    made[:rows] = 0
    begin = time.perf_counter()
    for first in range(0, rows, step):
        block = xp.empty(given[first : first + step].shape, xp.float32)
        block.set(np.asarray(given[first : first + step]))
        out = xp.empty_like(block)
        light.function(block, out=out, xp=xp)
        made[first : first + step] = out.get()
    return 2 * nbytes / (time.perf_counter() - begin) / 1e9


if __name__ == "__main__":
    main()
