"""One halo exchange between GPUs by face size: stored directly or by messages, in a CUDA graph or launched.

    mpirun -n 2 python benchmarks/halo_device.py [--exchanges 200] [--rounds 5] [--json FILE]

A field of float32 is split in rows, one block a rank, without wrapping around: each rank exchanges one row
with each neighbour. A figure is the time of one exchange of a loop of so many, in microseconds: the median
of several rounds of the slowest rank. Every method's halo is compared with NumPy's first.

direct: `runner.arrays.halo.direct`; handshake: with flags that the neighbour is ready, as several steps
per exchange need. packed: `runner.arrays.halo.packed`, messages of whole rows. slices: `runner.arrays.halo.exchange`, as on CPUs. Ranks that share a GPU (no NCCL) wait for
each other's time slices of milliseconds: their figures say nothing of a link.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo import boxes as halo_boxes
from meshrun.runner.arrays.halo.boxes import FieldHalos
from meshrun.runner.arrays.halo.direct import DirectHalos
from meshrun.runner.arrays.halo.exchange import HaloPlan, exchange
from meshrun.runner.arrays.halo.packed import PackedHalos
from meshrun.runner.comm.peer_arrays import DeviceTables, PeerArrays
from meshrun.runner.plan.grid import Partition
from meshrun.runner.world.world import World, clashes, open_world

FACES = (256, 4 << 10, 64 << 10, 128 << 10, 1 << 20, 2 << 20, 8 << 20)  # bytes
ROWS = 8  # of a block
METHODS = ("direct", "direct, handshake", "packed", "slices")
Fill = Callable[[list[Any]], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--exchanges", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    world = open_world("cuda", oversubscribe=True)
    shared = bool(clashes(world.ranks))
    exchanges = 20 if shared else options.exchanges
    found: list[dict[str, Any]] = []
    if world.rank == 0:
        print(f"{world.size} ranks, {'sharing a GPU' if shared else 'a GPU each'}, {world.arrays.label}")
        print(f"{'face':>10}  {'method':<20}{'launched':>10}{'in a graph':>12}   microseconds")
    for nbytes in FACES:
        for method in METHODS:
            fill, pair, close = opened(world, method, nbytes)
            check(world, method, nbytes, fill, pair)
            times = {"launched": timed(world, launched(fill, pair, exchanges), exchanges, options.rounds)}
            if method.startswith("direct") or (method == "packed" and not shared):
                times["graph"] = timed(world, graph(fill, pair, exchanges), exchanges, options.rounds)
            close()
            found.append({"face": nbytes, "method": method, **times})
            if world.rank == 0:
                in_graph = f"{times['graph']:12.1f}" if "graph" in times else f"{'-':>12}"
                print(f"{nbytes:>10}  {method:<20}{times['launched']:10.1f}{in_graph}", flush=True)
    if world.rank == 0 and options.json:
        facts = {"ranks": world.size, "shared": shared, "arrays": world.arrays.label, "exchanges": exchanges}
        options.json.write_text(json.dumps({**facts, "microseconds": found}, indent=1) + "\n")
    world.close()


def opened(world: World, method: str, nbytes: int) -> tuple[Fill, tuple[Any, Any], Callable[[], None]]:
    """A method's exchange, this rank's two blocks, and what ends it."""
    partition = Partition((ROWS * world.size, nbytes // 4), (world.size, 1))
    widths = ((1, 1), (0, 0))
    field = FieldHalos(partition, widths, "nearest", 4)
    peers, tables = PeerArrays(world.control, [rank.device for rank in world.ranks]), DeviceTables()
    shape = field.layout(world.rank).shape
    pair = (peers.empty(shape, np.dtype(np.float32)), peers.empty(shape, np.dtype(np.float32)))
    cells = halo_boxes.constant_cells(world.backend, [np.float32], "nearest", 0)
    for block in pair:
        block.fill(np.nan)
    if method == "slices":
        plan = HaloPlan(partition, world.rank, widths, "nearest")

        def slices(blocks: list[Any]) -> None:
            exchange([DistributedArray(plan, block, world) for block in blocks])

        return slices, pair, lambda: None
    if method == "packed":
        return PackedHalos(world, [field], [pair], cells, tables).fill, pair, lambda: None
    direct = DirectHalos(
        world, [field], [pair], cells, tables, peers, handshake=method.endswith("handshake"), patience=30
    )

    def fill(blocks: list[Any]) -> None:
        direct.fill(blocks)

    def close() -> None:
        world.backend.synchronize()
        direct.check()
        direct.close()

    return fill, pair, close


def check(world: World, method: str, nbytes: int, fill: Fill, pair: tuple[Any, Any]) -> None:
    """Fail unless the halo of both blocks is NumPy's, several times over with other values."""
    rows, columns = ROWS * world.size, nbytes // 4
    for number in range(4):
        whole = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) + number
        block, first = pair[number % 2], ROWS * world.rank
        block[1:-1] = cupy.asarray(whole[first : first + ROWS])
        fill([block])
        expected = np.pad(whole, ((1, 1), (0, 0)), "edge")[first : first + ROWS + 2]
        if not np.array_equal(block.get(), expected):
            raise SystemExit(f"rank {world.rank}: wrong halo of {nbytes} bytes, {method}, exchange {number}")


def launched(fill: Fill, pair: tuple[Any, Any], exchanges: int) -> Callable[[], None]:
    def loop() -> None:
        for number in range(exchanges):
            fill([pair[number % 2]])

    return loop


def graph(fill: Fill, pair: tuple[Any, Any], exchanges: int) -> Callable[[], None]:
    stream = cupy.cuda.get_current_stream()
    stream.begin_capture()
    launched(fill, pair, exchanges)()
    captured = stream.end_capture()
    return lambda: captured.launch(stream)


def timed(world: World, work: Callable[[], None], exchanges: int, rounds: int) -> float:
    """Microseconds of an exchange, of the slowest rank."""
    found = []
    for _ in range(rounds + 1):
        world.backend.synchronize()
        world.control.barrier()
        begin = time.perf_counter()
        work()
        world.backend.synchronize()
        found.append((time.perf_counter() - begin) / exchanges * 1e6)
    slowest: float = max(world.control.allgather(statistics.median(found[1:])))
    return slowest


if __name__ == "__main__":
    main()
