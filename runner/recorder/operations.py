"""The record of a run's communication: every operation of every rank, with its times and sizes, in one file.

The flight recorder (`ring`) keeps the last operations for whoever looks at a stuck run. This record keeps all
of them, with what is needed to repeat them: the messages of an exchange, the type of a reduction. It is kept
in memory while the run works and written at its end, as JSON; `meshrun bench replay` reads it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.recorder.ring import members_of, runs_of

FORMAT = "meshrun operations"
VERSION = 1
MOST = 1 << 20  # operations of a rank
RAW = " raw"  # end of the label of collectives on raw memory

now = time.perf_counter


class BadRecord(ValueError):
    """A file that is no record of operations; the text says why."""


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """One operation of one rank.

    began, ended: seconds on rank 0's clock. name: as in `comm.recorded`, or of `comm.collectives.api`. group:
    label of the communicator. nbytes: that this rank sends, or contributes. detail: what a replay needs, by
    name: see `OperationLog`.
    """

    began: float
    ended: float
    name: str
    group: str
    nbytes: int = 0
    detail: tuple[Any, ...] = ()


class OperationLog:
    """Collects this rank's operations.

    The detail is, for `all_reduce`: dtype and reduction; for `exchange`: its number among the exchanges of
    the rank, then messages to send and to receive, as pairs of rank and bytes; for `wait for messages`: the
    number of the exchange. Of collectives on raw memory: count, datatype, reduction, root, traffic; of
    messages there: bytes, the rank to send to and the rank to receive from, None for none. Ranks are those of
    the communicator.

    Operations of other threads than the one that made the log are counted in `others`, and not kept: their
    order among the ranks is not known.
    """

    def __init__(self) -> None:
        self.operations: list[LoggedOperation] = []
        self.groups: dict[str, tuple[int, ...]] = {}
        self.exchanges = self.others = self.lost = 0
        self._thread = threading.get_ident()

    def add(self, operation: LoggedOperation) -> None:
        if threading.get_ident() != self._thread:
            self.others += 1
        elif len(self.operations) == MOST:
            self.lost += 1
        else:
            self.operations.append(operation)


@dataclass(frozen=True)
class RankOperations:
    """One rank's operations, in the order in which they began. began, ended: of the record, seconds."""

    host: str
    began: float
    ended: float
    operations: Sequence[LoggedOperation] = ()

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True)
class OperationRecord:
    """What all ranks of a run did. groups: ranks of each communicator by its label. timed: whether the record
    knows when operations began and ended. others: operations of threads, which are not in it."""

    command: str
    ranks: Sequence[RankOperations]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    timed: bool = True
    others: int = 0


def rank_text(rank: RankOperations, offset: float) -> str:
    """Return a rank's line of the file. offset: of its clock to rank 0's, seconds."""
    operations = [
        [one.began - offset, one.ended - offset, one.name, one.group, one.nbytes, *one.detail]
        for one in rank.operations
    ]
    return json.dumps(
        {
            "host": rank.host,
            "began": rank.began - offset,
            "ended": rank.ended - offset,
            "operations": operations,
        }
    )


def record_text(
    command: str, groups: Mapping[str, tuple[int, ...]], others: int, ranks: Sequence[str]
) -> str:
    """Return the text of the file. ranks: as of `rank_text`, in rank order."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "command": command,
        "others": others,
        "groups": {label: runs_of(members) for label, members in groups.items()},
    }
    lines = ",\n".join(ranks)
    return f'{json.dumps(head)[:-1]}, "ranks": [\n{lines}\n]}}\n'


def read_record(path: Path, text: str) -> OperationRecord:
    """Read the text of a record. Raises BadRecord."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise BadRecord(f"{path} is damaged or cut off: {reason}") from reason
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadRecord(f"{path} is JSON, but no record of operations")
    if document.get("version") != VERSION:
        raise BadRecord(
            f"{path} is a record of version {document.get('version')}, and this meshrun reads version "
            f"{VERSION}"
        )
    try:
        groups = {label: members_of(runs) for label, runs in document["groups"].items()}
        ranks = [_rank(values) for values in document["ranks"]]
        record = OperationRecord(str(document["command"]), ranks, groups, others=int(document["others"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as reason:
        raise BadRecord(f"{path} has an entry that is not valid: {reason!r}") from reason
    return record


def _rank(values: Mapping[str, Any]) -> RankOperations:
    operations = [
        LoggedOperation(float(began), float(ended), str(name), str(group), int(nbytes), tuple(detail))
        for began, ended, name, group, nbytes, *detail in values["operations"]
    ]
    if any(one.nbytes < 0 or not one.began <= one.ended for one in operations):
        raise ValueError("an operation of negative size or duration")
    return RankOperations(str(values["host"]), float(values["began"]), float(values["ended"]), operations)
