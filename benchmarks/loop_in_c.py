"""Small sizes on GPUs: `meshrun bench`'s timed loop against collective_loop.c, the same loop in C.

    mpirun -n 2 python benchmarks/loop_in_c.py [--graph] [--rounds 41] [--json FILE]

Both work in the same processes, on the same communicator, buffers and stream, and take turns size by size.
"from Python" is meshrun's loop as it is where its helper in C was not compiled. Whole programs are compared
by nccl_tests.py; below 1 MiB an operation takes as long as the processor needs to start it, which differs
between two starts of either program by more than between the programs.

Needs a C compiler, or what it makes: `--loop collective_loop.so`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mpi4py import MPI
from side_by_side import OURS, Failed, in_turn, shown, spread

import meshrun
from meshrun import World
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.measure import at_size
from meshrun.jobs.bench.collectives.session import Bench, Point, opened
from meshrun.jobs.bench.collectives.timing import bound_call, clock
from meshrun.runner.comm import nccl
from meshrun.runner.comm.collectives import nccl_calls
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.comm.collectives.call_batch import BUILT
from meshrun.runner.report.record import write_json
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

THEIRS, PYTHON = "C loop", "from Python"
LOOPS = (OURS, PYTHON, THEIRS)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")  # C's order
NCCL = (
    "ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclAlltoAll", "ncclBroadcast", "ncclSend",
    "ncclRecv", "ncclGroupStart", "ncclGroupEnd", "ncclCommGetAsyncError",
)  # fmt: skip
CUDA = (
    "cuStreamQuery", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
    "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy",
)  # fmt: skip
Address = ctypes.c_void_p


class Measurement(ctypes.Structure):
    """collective_loop.c's measurement."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("operation", "rank", "ranks", "calls", "graph")),
        *((name, Address) for name in ("send", "recv")),
        *((name, ctypes.c_size_t) for name in ("count", "step", "turns")),
        *((name, Address) for name in ("comm", "stream")),
        ("everyone", ctypes.c_uint64),
    )


def main() -> None:
    options = arguments()
    if not BUILT:
        raise Failed("the helper in C was not compiled when meshrun was installed")
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(options.loop or compiled(Path(folder))))
    library.timed.restype = ctypes.c_double
    world = meshrun.open_world("cuda")
    rows = [row for name in options.ops for row in compare(world, library, name, options)]
    if world.rank == 0:
        print(f"{world.size} ranks; us, median (min .. max) of {options.rounds} rounds")
        print(f"{'':16}{'size (B)':>9}" + "".join(f"  {loop:>24}" for loop in LOOPS) + f"  {'ratio':>6}")
        for row in rows:
            cells = "".join(f"  {shown(row[loop]):>24}" for loop in LOOPS)
            print(f"{row['operation']:16}{row['size']:9}{cells}  {row['ratio']:6.3f}")
        if options.json:
            write_json(options.json, "benchmark", 1, {**facts(world, options), "sizes": rows})
    world.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", nargs="+", default=OPERATIONS, choices=OPERATIONS, metavar="OP")
    parser.add_argument("--graph", action="store_true", help="as -G 1")
    parser.add_argument("--calls", type=int, default=20, help="as -n")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--loop", type=Path, metavar="FILE.so", help="collective_loop.c, compiled before")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def compiled(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Failed("no C compiler to build the loop with: see --loop")
    source, library = Path(__file__).with_name("collective_loop.c"), folder / "collective_loop.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


def compare(
    world: World, library: ctypes.CDLL, name: str, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Per size: each loop's microseconds over the rounds, and ours over C's of medians."""
    chosen = SweepSettings(
        minbytes=32, maxbytes=512 << 10, stepfactor=4, iters=options.calls, cudagraph=int(options.graph)
    )
    colors = [0] * world.size
    asked = BenchOptions((name,), chosen)
    with opened(world, world.control, asked, name, MeasurementProgress(), colors) as session:
        bench = session.bench
        functions = (Address * (len(NCCL) + len(CUDA) + 1))(*map(address, loaded()))
        for size in bench.settings.sizes():
            counts = bench.counts(0, DATATYPES["float"])
            point = at_size(bench, Point(counts, DATATYPES["float"], "sum", 0, False, 0), size, False)
            if not point.bytes:
                continue
            measurement = as_in_c(bench, point, world, options)
            times: dict[str, list[float]] = {loop: [] for loop in LOOPS}
            for number in range(options.rounds):
                for loop in in_turn(LOOPS, number):
                    if loop == THEIRS:
                        mine = library.timed(functions, ctypes.byref(measurement))
                    else:
                        nccl_calls.BUILT = loop == OURS
                        mine = clock(bench, point).seconds
                    everyone = world.control.allgather(mine)
                    if min(everyone) < 0:
                        raise Failed(f"{name}: the loop in C failed on rank {everyone.index(min(everyone))}")
                    times[loop].append(1e6 * sum(everyone) / world.size)
            spreads = {loop: spread(found) for loop, found in times.items()}
            ratio = spreads[OURS]["median"] / spreads[THEIRS]["median"]
            yield {
                "operation": name, "size": point.bytes, "ratio": ratio, **spreads, "microseconds": times
            }  # fmt: skip


def as_in_c(bench: Bench, point: Point, world: World, options: argparse.Namespace) -> Measurement:
    """The same calls as `clock` makes of this point."""
    first, second = (bound_call(bench, point, i) for i in range(2))
    communicator: Any = bench.group
    return Measurement(
        operation=OPERATIONS.index(first.operation), rank=world.rank, ranks=world.size, calls=options.calls,
        graph=options.graph, send=first.send.address, recv=first.recv.address, count=first.count,
        step=second.send.address - first.send.address, turns=bench.settings.maxbytes // point.bytes,
        comm=int(communicator.comm.handle), stream=communicator.stream.ptr,
        everyone=word_of(MPI.COMM_WORLD),
    )  # fmt: skip


def loaded() -> Iterator[Any]:
    """The functions that collective_loop.c takes, of the libraries in this process."""
    nccl.load()
    library, driver, mpi = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
    if not hasattr(mpi, "MPI_Barrier"):
        maps = Path("/proc/self/maps").read_text().splitlines()
        mpi = ctypes.CDLL(next(line.split()[-1] for line in maps if "/libmpi." in line))
    yield from (getattr(library, name) for name in NCCL)
    yield from (getattr(driver, name) for name in CUDA)
    yield mpi.MPI_Barrier


def address(function: Any) -> int:
    return ctypes.cast(function, Address).value or 0


def word_of(communicator: MPI.Comm) -> int:
    """MPI_Comm's value: a pointer in Open MPI, an int in MPICH."""
    return int.from_bytes(
        ctypes.string_at(MPI._addressof(communicator), MPI._sizeof(communicator)), sys.byteorder
    )


def facts(world: World, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "loop_in_c",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "gpus": [rank.device.name for rank in world.ranks],
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "mpi": MPI.Get_library_version().partition(",")[0],
        "nccl": nccl.version(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("NCCL_")},
        "graph": options.graph,
        "calls": options.calls,
        "rounds": options.rounds,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("meshrun", "nccl4py", "mpi4py")},
        },
    }


if __name__ == "__main__":
    try:
        main()
    except Failed as reason:
        sys.exit(str(reason))
