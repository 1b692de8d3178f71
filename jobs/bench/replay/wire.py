"""Which part of a run's time is the wire.

A rank that enters a collective early waits for the others, and that is their work, not the wire's. The wire's
part of an operation begins when the last rank whose data it needs has entered it. Of a message, that is when
both ranks have posted it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshrun.runner.comm.api import UFUNCS
from meshrun.runner.comm.collectives.api import DATATYPES, OPERATIONS, REDUCTIONS
from meshrun.runner.comm.recorded import MESSAGE
from meshrun.runner.recorder.operations import RAW, LoggedOperation, OperationRecord
from meshrun.runner.recorder.ring import WAIT

EXCHANGE = "exchange"
FROM_ROOT = ("broadcast", "scatter")  # every rank needs the root's data
TO_ROOT = ("reduce", "gather")  # the root needs every rank's data
# In their communicator, all ranks enter these in the same order.
COLLECTIVE = ("barrier", "broadcast", "allgather", "all_reduce", "split", "counters", "close")


@dataclass
class WireTime:
    """Operations of one kind and size. each: seconds on the wire of each call of each rank."""

    each: list[float] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.each)

    @property
    def seconds(self) -> float:
        return sum(self.each)

    @property
    def median(self) -> float:
        return statistics.median(self.each) if self.each else 0.0


@dataclass
class TimeParts:
    """Where the ranks' time went: seconds, the sum of all ranks.

    total: of the run. wire: in operations, once all ranks that take part had entered them. waiting: in
    operations, before that. kinds: of the wire, by name and bytes of an operation.
    """

    total: float
    wire: float = 0.0
    waiting: float = 0.0
    kinds: dict[tuple[str, int], WireTime] = field(default_factory=lambda: defaultdict(WireTime))

    @property
    def rest(self) -> float:
        return max(self.total - self.wire - self.waiting, 0.0)

    def add(self, operation: LoggedOperation, name: str, nbytes: int, ready: float) -> None:
        """Add an operation whose data the wire could carry from the time `ready` on."""
        begin = min(max(operation.began, ready), operation.ended)
        kind = self.kinds[name, nbytes]
        kind.each.append(operation.ended - begin)
        self.wire += operation.ended - begin
        self.waiting += begin - operation.began

    def add_exchange(self, posted: LoggedOperation, wait: LoggedOperation, ready: float) -> None:
        """Add an exchange and its wait; what the rank did in between hides the wire, and does not count."""
        self.add(wait, posted.name, posted.nbytes, ready)
        posting = posted.ended - posted.began
        self.kinds[posted.name, posted.nbytes].each[-1] += posting
        self.wire += posting


# By communicator, sender and receiver: bytes of a message and when it was posted.
Posted = dict[tuple[str, int, int], list[tuple[int, float]]]


class RanksDiffer(ValueError):
    """The ranks of a record do not fit together; the text says where."""


def is_collective(operation: LoggedOperation) -> bool:
    names = OPERATIONS if operation.group.endswith(RAW) else COLLECTIVE
    return operation.name in names


def messages_of(
    operation: LoggedOperation,
) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
    """Return the messages that an operation posts, as (rank, bytes): sent ones and received ones."""
    if operation.name == EXCHANGE:
        _, going, coming = operation.detail
        return going, coming
    if operation.name == MESSAGE:
        nbytes, to, source = operation.detail
        return [(to, nbytes)] if to is not None else [], [(source, nbytes)] if source is not None else []
    return [], []


def check_operations(record: OperationRecord) -> None:
    """Raise ValueError, TypeError, LookupError or AttributeError for an operation that no rank can make."""
    for label, members in record.groups.items():
        if len({*members}) != len(members) or not all(0 <= rank < len(record.ranks) for rank in members):
            raise ValueError(f"ranks {members} in {label!r}")
    for rank, one in enumerate(record.ranks):
        for operation in one.operations:
            members = record.groups[operation.group]
            members.index(rank)
            if operation.name == WAIT:
                (_,) = operation.detail
            elif operation.name in (EXCHANGE, MESSAGE):
                going, coming = messages_of(operation)
                if not all(0 <= peer < len(members) and nbytes >= 0 for peer, nbytes in (*going, *coming)):
                    raise ValueError(f"messages {going} and {coming}")
            elif not is_collective(operation):
                raise ValueError(f"an operation {operation.name!r}")
            elif operation.group.endswith(RAW):
                _check_raw(operation, len(members))
            elif operation.name == "all_reduce":
                dtype, reduction = operation.detail
                if reduction not in UFUNCS or operation.nbytes % np.dtype(dtype).itemsize:
                    raise ValueError(f"an all_reduce of {operation.nbytes} bytes, {operation.detail}")


def _check_raw(operation: LoggedOperation, ranks: int) -> None:
    count, datatype, reduction, root, traffic = operation.detail
    if datatype not in DATATYPES or reduction not in REDUCTIONS or count < 0 or not 0 <= root < ranks:
        raise ValueError(f"{operation.name} {operation.detail}")
    if (operation.name == "alltoallv") is (traffic is None):
        raise ValueError(f"{operation.name} with traffic {traffic}")
    for row in traffic or ():
        if len(row) != ranks or len(traffic) != ranks or min(row) < 0:
            raise ValueError(f"a row of traffic {row}")


def check(record: OperationRecord) -> None:
    """Raise RanksDiffer unless every collective has been entered by all of its ranks, and every message is
    both sent and received: a replay would wait for ever. record: one that `check_operations` accepts."""
    names = {
        label: [
            [one.name for one in record.ranks[rank].operations if one.group == label and is_collective(one)]
            for rank in members
        ]
        for label, members in record.groups.items()
    }
    for label, of_ranks in names.items():
        members = record.groups[label]
        for rank, listed in zip(members, of_ranks, strict=True):
            if listed != of_ranks[0]:
                raise RanksDiffer(
                    f"rank {members[0]} has {len(of_ranks[0])} collectives of {label!r} and rank {rank} has "
                    f"{len(listed)}, or others"
                )
    sent, received = _posted(record)
    for label, source, target in sent.keys() | received.keys():
        going, coming = sent.get((label, source, target), ()), received.get((label, source, target), ())
        if [nbytes for nbytes, _ in going] != [nbytes for nbytes, _ in coming]:
            raise RanksDiffer(
                f"rank {source} sends {len(going)} messages to rank {target} in {label!r}, and that receives "
                f"{len(coming)}, or others"
            )


def time_parts(record: OperationRecord) -> TimeParts:
    """Divide the time of all ranks. record: one that `check` accepts."""
    parts = TimeParts(sum(rank.seconds for rank in record.ranks))
    _add_collectives(record, parts)
    sent, received = _posted(record)
    for rank, one in enumerate(record.ranks):
        _add_messages(record, rank, one.operations, sent, received, parts)
    return parts


def _add_collectives(record: OperationRecord, parts: TimeParts) -> None:
    for label, members in record.groups.items():
        columns = zip(
            *(
                [one for one in record.ranks[rank].operations if one.group == label and is_collective(one)]
                for rank in members
            ),
            strict=True,
        )
        for calls in columns:
            first = calls[0]
            root = first.detail[3] if label.endswith(RAW) else 0
            last = max(one.began for one in calls)
            largest = max(one.nbytes for one in calls)
            for number, one in enumerate(calls):
                ready = last
                if first.name in FROM_ROOT:
                    ready = calls[root].began
                elif first.name in TO_ROOT and number != root:
                    ready = one.began
                parts.add(one, first.name, largest, ready)


def _posted(record: OperationRecord) -> tuple[Posted, Posted]:
    """Return all messages by communicator, sender and receiver: bytes and the time when they were posted, as
    their senders posted them and as their receivers did."""
    sent: Posted = defaultdict(list)
    received: Posted = defaultdict(list)
    for rank, one in enumerate(record.ranks):
        for operation in one.operations:
            members = record.groups[operation.group]
            going, coming = messages_of(operation)
            for peer, nbytes in going:
                sent[operation.group, rank, members[peer]].append((nbytes, operation.began))
            for peer, nbytes in coming:
                received[operation.group, members[peer], rank].append((nbytes, operation.began))
    return sent, received


def _add_messages(
    record: OperationRecord,
    rank: int,
    operations: Sequence[LoggedOperation],
    sent: Posted,
    received: Posted,
    parts: TimeParts,
) -> None:
    """Add one rank's exchanges, its waits for them, and its messages on raw memory."""
    counts: dict[tuple[str, int, int], int] = defaultdict(int)
    incoming: dict[tuple[str, int, int], int] = defaultdict(int)
    open_exchanges: dict[int, tuple[float, LoggedOperation]] = {}
    for operation in operations:
        if operation.name == WAIT:
            if operation.detail[0] in open_exchanges:
                ready, posted = open_exchanges.pop(operation.detail[0])
                parts.add_exchange(posted, operation, ready)
            continue
        going, coming = messages_of(operation)
        ready, members = operation.began, record.groups[operation.group]
        # The other rank of each message has to post it too.
        for peer, _ in going:
            key = (operation.group, rank, members[peer])
            ready = max(ready, received[key][counts[key]][1])
            counts[key] += 1
        for peer, _ in coming:
            key = (operation.group, members[peer], rank)
            ready = max(ready, sent[key][incoming[key]][1])
            incoming[key] += 1
        if operation.name == EXCHANGE:
            open_exchanges[operation.detail[0]] = (ready, operation)
        elif operation.name == MESSAGE:
            parts.add(operation, MESSAGE, operation.nbytes, ready)
