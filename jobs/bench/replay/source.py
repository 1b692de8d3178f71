"""Read what a run has sent: a record of meshrun, or a log of NCCL."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from meshrun.jobs.bench.replay.wire import RanksDiffer, check, check_operations
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS, Datatype
from meshrun.runner.errors import UserError
from meshrun.runner.recorder.operations import (
    RAW,
    BadRecord,
    LoggedOperation,
    OperationRecord,
    RankOperations,
    read_record,
)

RECORDER = b"meshrun1"  # the first bytes of a flight recorder's memory
# NCCL's line about a call (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=COLL), with or without a time before it.
CALL = re.compile(
    r"(?P<process>\S+:\d+):\d+ \[(?P<device>\d+)\] NCCL INFO (?P<name>\w+): opCount \S+ "
    r"sendbuff \S+ recvbuff \S+ (?:acc \S+ )?count (?P<count>\d+) datatype (?P<datatype>\d+) "
    r"op (?P<op>\d+) root (?P<root>-?\d+) comm (?P<comm>\S+) \[nranks=(?P<ranks>\d+)\]"
)
# A line of the start of a communicator (NCCL_DEBUG_SUBSYS=INIT, in NCCL's default), which has its rank.
JOINED = re.compile(
    r"(?P<process>\S+:\d+):\d+ \[(?P<device>\d+)\] NCCL INFO .*\bcomm (?P<comm>0x[0-9a-f]+) "
    r"rank (?P<rank>\d+) n[Rr]anks (?P<ranks>\d+)"
)
NAMES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllToAll": "alltoall",
    "AlltoAll": "alltoall",
    "Gather": "gather",
    "Scatter": "scatter",
}
TYPES = {datatype.code: datatype for datatype in DATATYPES.values()}
# ncclRedOp_t: sum, prod, max, min, avg; larger numbers are a program's own, such as a sum with a factor.
OWN_REDUCTION = "mulsum"
HOW_TO_RECORD = (
    "meshrun --record-operations FILE -n 4 run ..., or NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL"
)


def read_source(path: Path) -> OperationRecord:
    """Read and check a record. Raises UserError."""
    try:
        content = path.read_bytes()
    except OSError as reason:
        raise UserError(f"cannot read {path}", why=reason.strerror, hint=f"ls -l {path}") from reason
    if content.startswith(RECORDER):
        raise UserError(
            f"{path} is the memory of a flight recorder, which has the last operations of one rank only",
            hint=HOW_TO_RECORD,
        )
    text = content.decode(errors="replace")
    if not text.strip():
        raise UserError(f"{path} is empty", expected="a record of a run", hint=HOW_TO_RECORD)
    try:
        record = read_record(path, text) if text.lstrip().startswith("{") else read_log(path, text)
        if not any(rank.operations for rank in record.ranks):
            raise BadRecord(f"{path} has no operations: its run has sent nothing")
        check_operations(record)
        check(record)
    except BadRecord as reason:
        raise UserError(str(reason), hint=HOW_TO_RECORD) from reason
    except RanksDiffer as reason:
        raise UserError(f"{path} is not whole", why=reason, hint=HOW_TO_RECORD) from reason
    except (ValueError, TypeError, LookupError, AttributeError) as reason:
        raise UserError(f"{path} has an entry that is not valid", why=reason, hint=HOW_TO_RECORD) from reason
    return record


@dataclass
class LoggedRank:
    """One process's side of a communicator. rank: None if the log does not say."""

    size: int
    rank: int | None = None
    calls: list[tuple[str, int, Datatype, int, int]] = field(default_factory=list)


def read_log(path: Path, text: str) -> OperationRecord:
    """Read a log of NCCL. Raises BadRecord.

    Communicators of the same number of ranks follow one another: the ranks of each are numbered by the lines
    of its start or, without these, in the order in which they appear. If the log has one rank of a
    communicator only, the others make the same collectives.
    """
    sides: dict[tuple[str, str, str], LoggedRank] = {}
    for line in text.splitlines():
        joined = JOINED.search(line)
        call = None if joined else CALL.search(line)
        match = joined or call
        if match is None:
            continue
        key = (match["process"], match["device"], match["comm"])
        side = sides.setdefault(key, LoggedRank(int(match["ranks"])))
        if joined:
            side.rank = int(joined["rank"])
        elif call:
            side.calls.append(_call(path, call))
    used = [side for side in sides.values() if side.calls]
    if not used:
        raise BadRecord(f"{path} is neither a record of meshrun nor a log of NCCL with collectives")
    return _record(path, used)


def _call(path: Path, call: re.Match[str]) -> tuple[str, int, Datatype, int, int]:
    name = call["name"]
    if name not in NAMES and name not in ("Send", "Recv"):
        raise BadRecord(f"{path} has {name}, which a replay cannot repeat")
    datatype = TYPES.get(int(call["datatype"]))
    if datatype is None:
        raise BadRecord(f"{path} has datatype {call['datatype']}, which this meshrun does not know")
    return name, int(call["count"]), datatype, int(call["op"]), int(call["root"])


def _record(path: Path, used: list[LoggedRank]) -> OperationRecord:
    sizes = sorted({side.size for side in used})
    if len(sizes) > 1:
        raise BadRecord(
            f"{path} has communicators of {', '.join(map(str, sizes))} ranks, and does not say who is in "
            "which: keep the lines of one communicator"
        )
    size, by_rank = sizes[0], defaultdict[int, list[LoggedRank]](list)
    for position, side in enumerate(used):
        by_rank[position if side.rank is None else side.rank].append(side)
    if any(len(listed) > 1 for listed in by_rank.values()) or max(by_rank) >= size:
        raise BadRecord(
            f"{path} has more than one communicator of {size} ranks: keep the lines of one of them"
        )
    label = f"NCCL{RAW}"
    has_messages = any(name in ("Send", "Recv") for side in used for name, *_ in side.calls)
    if has_messages and len(by_rank) < size:
        raise BadRecord(
            f"{path} has messages (Send, Recv) of {len(by_rank)} of {size} ranks: join the logs of all"
        )
    first = next(iter(by_rank.values()))[0]
    ranks = []
    for rank in range(size):
        side = by_rank[rank][0] if rank in by_rank else first
        operations = _operations(label, side)
        ranks.append(RankOperations("", 0.0, 0.0, operations))
    return OperationRecord(path.name, ranks, {label: tuple(range(size))}, timed=False)


def _operations(label: str, side: LoggedRank) -> list[LoggedOperation]:
    """Return a rank's calls. Messages that follow one another are one exchange, as NCCL groups them."""
    operations: list[LoggedOperation] = []
    going: list[tuple[int, int]] = []
    coming: list[tuple[int, int]] = []
    exchanges = 0

    def end_exchange() -> None:
        nonlocal exchanges
        if going or coming:
            exchanges += 1
            sent = sum(nbytes for _, nbytes in going)
            detail = (exchanges, list(going), list(coming))
            operations.append(LoggedOperation(0.0, 0.0, "exchange", label, sent, detail))
            operations.append(LoggedOperation(0.0, 0.0, "wait for messages", label, 0, (exchanges,)))
            going.clear()
            coming.clear()

    for name, count, datatype, op, root in side.calls:
        nbytes = count * datatype.itemsize
        if name in ("Send", "Recv"):
            (going if name == "Send" else coming).append((root, nbytes))
            continue
        end_exchange()
        reduction = REDUCTIONS[op] if op < REDUCTIONS.index(OWN_REDUCTION) else OWN_REDUCTION
        detail = (count, datatype.name, reduction, max(root, 0), None)
        operations.append(LoggedOperation(0.0, 0.0, NAMES[name], label, nbytes, detail))
    end_exchange()
    return operations
