"""What meshrun adds to a call of NCCL: `meshrun bench`'s own loops over calls that end in a stub of NCCL.

    python benchmarks/call_overhead.py [--ranks 8] [--calls 2000] [--rounds 51] [--nccl 22809] [--json FILE]

The stub (tests/unit/comm/stub_nccl.c) returns at once, so what is left is the loop, nccl4py and the calls'
own arguments. "a call" is one operation as bench makes it; "a function" is that, divided by how many of
NCCL's functions the operation takes: an operation made of messages makes two a peer, and two more round
them. "from C": the same calls packed, as bench makes them where its helper was compiled.

Needs nccl4py and a C compiler, no GPU and no CuPy.

    python benchmarks/call_overhead.py --arrays [--side 64] [--json FILE]
    mpirun -n 2 python benchmarks/call_overhead.py --arrays [--json FILE]

With --arrays: what an operation on distributed arrays of a main program takes. The arrays are small,
so that the operation's overhead is what counts; NumPy's own time for it is shown too.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import operator
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from side_by_side import Failed, spread

import meshrun
from meshrun.runner.comm.collectives.api import DATATYPES, OPERATIONS, Call, Function, Pointer
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.report.record import write_json

SOURCE = Path(__file__).parents[1] / "tests" / "unit" / "comm" / "stub_nccl.c"
WARM_UP, IN_A_ROUND = 20, 50  # operations on arrays
OLD = 22700  # an NCCL without alltoall, gather and scatter of its own


def main() -> None:
    options = arguments()
    if options.arrays:
        measure_arrays(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        stand_in(compiled(Path(folder)))
        rows = [measured(options, operation) for operation in OPERATIONS]
    print(f"{options.ranks} ranks; nanoseconds, median (min .. max) of {options.rounds} rounds")
    print(f"{'operation':<15}{'functions':>10}{'a call':>32}{'a function':>12}{'a call from C':>32}")
    for row in rows:
        each = row["nanoseconds"]["median"] / row["functions"]
        told = f"{shown(row['nanoseconds']):>32}{each:>12.0f}{shown(row['nanoseconds_c']):>32}"
        print(f"{row['operation']:<15}{row['functions']:>10}{told}")
    if options.json:
        record = {
            "benchmark": "call_overhead",
            "machine": f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
            "ranks": options.ranks,
            "calls": options.calls,
            "rounds": options.rounds,
            "operations": rows,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("meshrun", "nccl4py")},
            },
        }
        write_json(options.json, "benchmark", 1, record)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8, help="a power of two, for hypercube")
    parser.add_argument("--calls", type=int, default=2000, help="calls in a round")
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--nccl", type=int, default=22809, help=f"NCCL's version; {OLD}: messages instead")
    parser.add_argument("--arrays", action="store_true", help="operations on distributed arrays instead")
    parser.add_argument("--side", type=int, default=64, help="cells of these along each of two axes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    os.environ["STUB_NCCL_VERSION"] = str(options.nccl)
    return options


def compiled(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Failed("no C compiler to build the stub with")
    library = folder / "libnccl.so.2"
    flags = ("-shared", "-fPIC", "-O2", "-Wl,-soname,libnccl.so.2")
    subprocess.run([compiler, *flags, SOURCE, "-o", library], check=True)
    return library


def stand_in(library: Path) -> None:
    """The stub, and a CuPy that is asked for nothing but the version of CUDA."""
    ctypes.CDLL(str(library))  # nccl4py takes the libnccl.so.2 that is loaded already
    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(runtimeGetVersion=lambda: 13000))
    sys.modules["cupy"] = cupy


@dataclass(frozen=True)
class Apart:
    """Rank 1 of ranks that are not there: what it hears is what it says."""

    size: int
    rank: int = 1

    def allgather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def broadcast(self, value: Any) -> bytes:
        return bytes(128)


def measured(options: argparse.Namespace, operation: str) -> dict[str, Any]:
    from meshrun.runner.comm.collectives.nccl import NcclCollectives

    group = NcclCollectives(Apart(options.ranks), SimpleNamespace(ptr=77))
    calls = [group.bind(call(operation, options.ranks, turn)) for turn in range(options.calls)]
    packed = group.packed(calls)
    group.issue(calls)
    group.issue(packed)
    rounds = [
        (nanoseconds(group, calls, options.calls), nanoseconds(group, packed, options.calls))
        for _ in range(options.rounds)
    ]
    return {
        "operation": operation,
        "functions": functions(group, operation, options.ranks),
        "nanoseconds": spread(python for python, _ in rounds),
        "nanoseconds_c": spread(c for _, c in rounds),
    }


def call(operation: str, ranks: int, turn: int) -> Call:
    """Call number `turn`, each of another place as bench's are."""
    buffer = SimpleNamespace(address=(1 << 40) + (turn << 20))
    recv = Pointer(buffer)
    send = (
        Pointer(buffer, 4096) if operation == "hypercube" else Pointer(buffer, 1 << 30)
    )  # in place: no copy
    traffic = ((1024,) * ranks,) * ranks
    return Call(operation, send, recv, 1024, DATATYPES["float"], in_place=True, traffic=traffic)


def functions(group: Any, operation: str, ranks: int) -> int:
    """How many of NCCL's functions one operation calls."""
    native = {"alltoall", "gather", "scatter"} if group.library >= 22800 else set[str]()
    pieces = {
        "alltoall": 2 * ranks + 2,
        "alltoallv": 2 * ranks + 2,
        "gather": 1 + 2,
        "scatter": 1 + 2,
        "sendrecv": 2 + 2,
        "hypercube": 4 * (ranks.bit_length() - 1),
    }
    return 1 if operation in native else pieces.get(operation, 1)


def nanoseconds(group: Any, calls: Sequence[Function], count: int) -> float:
    """A call's share of one issue of them all, which are `count`."""
    gc.disable()  # as while bench measures
    start = time.perf_counter_ns()
    group.issue(calls)
    spent = time.perf_counter_ns() - start
    gc.enable()
    return spent / count


# Operations on arrays u, v and w, also on NumPy's.
ARRAY_OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "u + v": lambda u, v, w: u + v,
    "u * 2": lambda u, v, w: u * 2,
    "np.sqrt(u)": lambda u, v, w: np.sqrt(u),
    "w += v": lambda u, v, w: operator.iadd(w, v),
    "u[1:-1, 1:-1]": lambda u, v, w: u[1:-1, 1:-1],
    "w[1:-1, 1:-1] = u[:-2, 1:-1]": lambda u, v, w: operator.setitem(w, INSIDE, u[:-2, 1:-1]),
    "u[2:, 1:-1] + u[:-2, 1:-1]": lambda u, v, w: u[2:, 1:-1] + u[:-2, 1:-1],
    "np.roll(u, 1, 0)": lambda u, v, w: np.roll(u, 1, 0),
    "np.roll(u, 1, 1)": lambda u, v, w: np.roll(u, 1, 1),
    "np.sum(u)": lambda u, v, w: np.sum(u),
    "np.max(u)": lambda u, v, w: np.max(u),
    "np.sum(u, axis=0)": lambda u, v, w: np.sum(u, axis=0),
    "u[3, 4]": lambda u, v, w: u[3, 4],
    "a function": lambda u, v, w: smoothed(u),
}
INSIDE = (slice(1, -1), slice(1, -1))


@meshrun.distribute
def smoothed(u: Any) -> Any:
    v = u.copy()
    v[1:-1, 1:-1] = (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4
    return v


def measure_arrays(options: argparse.Namespace) -> None:
    """Print, and record, the microseconds of operations on distributed arrays."""
    shape = options.side, options.side
    with meshrun.open_world("cpu") as world:
        rows = []
        for name, operation in ARRAY_OPERATIONS.items():
            ours = [world.ones(shape) for _ in range(3)]
            numpys = [np.ones(shape) for _ in range(3)]
            times = [microseconds(operation, arrays, options.rounds) for arrays in (ours, numpys)]
            rows.append({"operation": name, "microseconds": times[0], "microseconds_numpy": times[1]})
        if world.rank:
            return
        ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
        print(f"{ranks}; microseconds, median (min .. max) of {options.rounds} rounds; NumPy's median")
        for row in rows:
            ours_told = "{median:.1f} ({min:.1f} .. {max:.1f})".format(**row["microseconds"])
            print(f"{row['operation']:<30}{ours_told:>28}{row['microseconds_numpy']['median']:>10.1f}")
        if options.json:
            record = {
                "benchmark": "call_overhead_arrays",
                "machine": f"{world.backend.device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
                "ranks": world.size,
                "shape": shape,
                "rounds": options.rounds,
                "operations": rows,
                "versions": world.versions(),
            }
            write_json(options.json, "benchmark", 1, record)


def microseconds(operation: Callable[..., Any], arrays: Sequence[Any], rounds: int) -> dict[str, float]:
    for _ in range(WARM_UP):
        operation(*arrays)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(IN_A_ROUND):
            operation(*arrays)
        times.append(1e6 * (time.perf_counter() - start) / IN_A_ROUND)
    return spread(times)


def shown(times: dict[str, float]) -> str:
    return f"{times['median']:.0f} ({times['min']:.0f} .. {times['max']:.0f})"


if __name__ == "__main__":
    try:
        main()
    except Failed as reason:
        sys.exit(str(reason))
