"""What NCCL chooses for a collective operation, from its own debug log.

NCCL has no function that returns the algorithm, protocol and channels of an operation. The first rank of a
communicator logs them while it queues the operation (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING):

    AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}      2.24 and later, src/enqueue.cc
    AllReduce: 1024 Bytes -> Algo 1 proto 0 time 12.1                       2.23; without the name 2.21, 2.22
    AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1
                                                                            src/scheduler/symmetric_sched.cc
    AllGather [Copy Engine]: 1024 Bytes -> cudaMemcpyBatchAsync             2.29 and later

Messages (send, recv, and alltoall, gather and scatter, which consist of them) are not logged.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meshrun.runner.comm.collectives.api import NcclChoice
from meshrun.runner.system.launcher import variables

# As NCCL_ALGO and NCCL_PROTO spell them, in the order of NCCL's numbers (src/init.cc).
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")

CHOSEN = re.compile(
    r"\d+ Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<first>\d+)\.\.(?P<last>\d+)\})?"
)
SYMMETRIC = re.compile(r"\[Symmetric\]: \d+ Bytes -> Kernel \w+?_(?P<kernel>\w+) nchannels (?P<channels>\d+)")
COPIED = re.compile(r"\[(?:Hierarchical CE|Copy Engine)\]: \d+ Bytes -> (?P<call>.+)")


def choices(log: str) -> list[NcclChoice]:
    """Return the choices in the text of a log, in its order; other lines are skipped."""
    return [found for line in log.splitlines() if (found := _choice(line)) is not None]


def _choice(line: str) -> NcclChoice | None:
    if found := CHOSEN.search(line):
        channels = None if found["first"] is None else int(found["last"]) - int(found["first"]) + 1
        return NcclChoice(
            _name(found["algorithm"], ALGORITHMS), _name(found["protocol"], PROTOCOLS), channels
        )
    if found := SYMMETRIC.search(line):
        return NcclChoice("Symmetric", found["kernel"], int(found["channels"]))
    if found := COPIED.search(line):
        return NcclChoice("CopyEngine", found["call"].strip().replace(" ", ""), None)
    return None


def _name(logged: str, names: tuple[str, ...]) -> str:
    """The name as the variables spell it, from the log's "NVLS_TREE" or, in older versions, its number."""
    if logged.isdecimal():
        return names[int(logged)] if int(logged) < len(names) else logged
    plain = logged.replace("_", "").lower()
    return next((name for name in names if name.lower() == plain), logged)


@contextmanager
def logged_choices(reset: Callable[[], object]) -> Iterator[list[NcclChoice]]:
    """Turn NCCL's log on; at the end fill the list with what it says, and turn the log off.

    reset: ncclResetDebugInit, after which NCCL reads its NCCL_DEBUG variables again at its next message.
    """
    found: list[NcclChoice] = []
    with tempfile.TemporaryDirectory(prefix="meshrun-nccl-") as folder:
        log = Path(folder, "log")
        # %: NCCL expands %h and %p in the name.
        wanted = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}
        try:
            with variables(wanted | {"NCCL_DEBUG_FILE": str(log).replace("%", "%%")}):
                reset()
                yield found
        finally:
            reset()
        if log.exists():
            found += choices(log.read_text(encoding="utf-8", errors="replace"))
