"""What meshrun adds to a call of NCCL: `meshrun bench`'s own loops over calls that end in a stub of NCCL.

    python benchmarks/call_overhead.py [--ranks 8] [--calls 2000] [--rounds 51] [--nccl 22809] [--json FILE]

The stub (tests/unit/comm/stub_nccl.c) returns at once, so what is left is the loop, nccl4py and the calls'
own arguments. "a call" is one operation as bench makes it; "a function" is that, divided by how many of
NCCL's functions the operation takes: an operation made of messages makes two a peer, and two more round
them. "from C": the same calls packed, as bench makes them where its helper was compiled.

Needs nccl4py and a C compiler, no GPU and no CuPy.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from side_by_side import Failed, spread

from meshrun.runner.comm.collectives.api import DATATYPES, OPERATIONS, Call, Function, Pointer
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.report.record import write_json

SOURCE = Path(__file__).parents[1] / "tests" / "unit" / "comm" / "stub_nccl.c"
OLD = 22700  # an NCCL without alltoall, gather and scatter of its own


def main() -> None:
    options = arguments()
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


def shown(times: dict[str, float]) -> str:
    return f"{times['median']:.0f} ({times['min']:.0f} .. {times['max']:.0f})"


if __name__ == "__main__":
    try:
        main()
    except Failed as reason:
        sys.exit(str(reason))
