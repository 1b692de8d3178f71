"""The operations of a communicator in its rank's flight recorder, so that a stuck run can say who is missing.

`record_operations` replaces the methods of a communicator; one without a `trail` keeps its own. An operation
that raises stays open in the record: the rank is about to end, and that is where it failed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.errors import RunError
from meshrun.runner.files import write_file
from meshrun.runner.recorder.operations import (
    MOST,
    RAW,
    LoggedOperation,
    OperationLog,
    RankOperations,
    now,
    rank_text,
    record_text,
)
from meshrun.runner.recorder.ring import ON_DEVICE, WAIT, Recorder

OPERATIONS = ("barrier", "broadcast", "allgather", "all_reduce", "split", "counters", "close")  # collective
MESSAGE = "message"  # between two ranks, on raw memory
METHODS = {**{name: name for name in OPERATIONS}, "shared_memory_size": "split"}  # with their operations


class Trail:
    """Records the operations of one communicator.

    label: names the communicator on all of its ranks. members: these ranks. sequence: collectives so far.
    log: also keeps every operation, for a replay; None if none is wanted.
    """

    def __init__(
        self, recorder: Recorder, label: str, members: Sequence[int], log: OperationLog | None = None
    ) -> None:
        self.recorder, self.label, self.members, self.log = recorder, label, tuple(members), log
        if log is not None:
            log.groups[label] = self.members
        self.group = recorder.group(label, self.members)
        self.names = {name: recorder.name(name) for name in (WAIT, "exchange", *OPERATIONS)}
        self.enter, self.leave = recorder.enter, recorder.leave
        self.sequence = self._parts = 0

    def part(self, color: int, members: Sequence[int]) -> Trail:
        """Return the trail of the ranks with the same color. members: their numbers in this communicator."""
        self._parts += 1
        ranks = [self.members[rank] for rank in members]
        return Trail(self.recorder, f"{self.label}/{self._parts}.{color}", ranks, self.log)

    def on_device(self) -> Trail:
        """Return the trail of a communicator of device arrays among the same ranks."""
        return Trail(self.recorder, f"{self.label} {ON_DEVICE}", self.members, self.log)


def record_operations(communicator: Any, trail: Trail | None) -> None:
    """Have a trail record a communicator's operations, instead of an earlier trail, if it has one.

    trail: None: they are not recorded, and cost nothing more.
    """
    if communicator.trail is not None:
        for name in (*METHODS, "exchange"):
            vars(communicator).pop(name, None)
    communicator.trail = trail
    if trail is None:
        return
    for name, operation in METHODS.items():
        if hasattr(communicator, name):
            setattr(communicator, name, _collective(trail, operation, getattr(communicator, name)))
    communicator.exchange = _exchange(trail, communicator.exchange)


def _collective(trail: Trail, operation: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a collective that is recorded under the name of its operation."""
    reduces = operation == "all_reduce"

    def call(*values: Any) -> Any:
        trail.sequence += 1
        moved = values[0].nbytes if reduces else 0
        entry = trail.enter(trail.names[operation], moved, trail.group, trail.sequence)
        result = method(*values)
        trail.leave(entry)
        return result

    log = trail.log
    if log is None:
        return call

    def logged(*values: Any) -> Any:
        began = now()
        result = call(*values)
        ended = now()
        nbytes, detail = 0, tuple[Any, ...]()
        if reduces:
            nbytes, detail = values[0].nbytes, (values[0].dtype.str, values[1])
        elif operation in ("broadcast", "allgather") and len(trail.members) > 1:
            nbytes = len(pickle.dumps(result if operation == "broadcast" else values[0]))
        log.add(LoggedOperation(began, ended, operation, trail.label, nbytes, detail))
        return result

    return logged


def _exchange(trail: Trail, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recorded `exchange`, which counts the messages and records the wait for them."""

    def post(sends: Any, receives: Any) -> Any:
        count, group, members = trail.recorder.count, trail.group, trail.members
        moved = 0
        for peer, array in sends:
            count(group, members[peer], 1, 0)
            moved += array.nbytes
        for peer, array in receives:
            count(group, members[peer], 0, 1)
            moved += array.nbytes
        entry = trail.enter(trail.names["exchange"], moved, group)
        pending = method(sends, receives)
        trail.leave(entry)
        return pending

    def exchange(sends: Any, receives: Any) -> RecordedPending:
        return RecordedPending(post(sends, receives), trail)

    log = trail.log
    if log is None:
        return exchange

    def logged(sends: Any, receives: Any) -> LoggedPending:
        began = now()
        pending = post(sends, receives)
        ended = now()
        log.exchanges += 1
        going, coming = ([(peer, array.nbytes) for peer, array in part] for part in (sends, receives))
        nbytes, detail = sum(size for _, size in going), (log.exchanges, going, coming)
        log.add(LoggedOperation(began, ended, "exchange", trail.label, nbytes, detail))
        return LoggedPending(pending, trail, log)

    return logged


class RecordedPending:
    """Messages in flight whose wait is recorded."""

    def __init__(self, pending: Any, trail: Trail) -> None:
        self._pending, self._trail = pending, trail

    def progress(self) -> None:
        self._pending.progress()

    def wait(self) -> None:
        trail = self._trail
        entry = trail.enter(trail.names[WAIT], 0, trail.group)
        self._pending.wait()
        trail.leave(entry)


class LoggedPending(RecordedPending):
    """Messages in flight whose wait is logged too, as that of the log's last exchange."""

    def __init__(self, pending: Any, trail: Trail, log: OperationLog) -> None:
        super().__init__(pending, trail)
        self._log, self._number = log, log.exchanges

    def wait(self) -> None:
        began = now()
        super().wait()
        self._log.add(LoggedOperation(began, now(), WAIT, self._trail.label, 0, (self._number,)))


def log_calls(collectives: Any) -> None:
    """Have the log of a group, if it keeps one, also keep its collectives on raw host memory.

    Those of a device return before they are done, so that their times would not be known.
    """
    trail: Trail | None = collectives.control.trail
    log = None if trail is None else trail.log
    if trail is None or log is None or collectives.asynchronous:
        return
    bind, message, label = collectives.bind, collectives.message, trail.label + RAW
    log.groups[label] = trail.members

    def logged(name: str, function: Callable[[], object], nbytes: int, detail: tuple[Any, ...]) -> Any:
        def call() -> None:
            began = now()
            function()
            log.add(LoggedOperation(began, now(), name, label, nbytes, detail))

        return call

    def logged_bind(call: Any) -> Any:
        nbytes = call.count * call.datatype.itemsize
        if call.traffic is not None:
            nbytes = sum(call.traffic[collectives.rank]) * call.datatype.itemsize
        detail = (call.count, call.datatype.name, call.reduction, call.root, call.traffic)
        return logged(call.operation, bind(call), nbytes, detail)

    def logged_message(call: Any, *, send_to: int | None = None, receive_from: int | None = None) -> Any:
        function = message(call, send_to=send_to, receive_from=receive_from)
        nbytes = call.count * call.datatype.itemsize
        return logged(MESSAGE, function, nbytes, (nbytes, send_to, receive_from))

    collectives.bind, collectives.message = logged_bind, logged_message


def write_operations(control: Any, rank: RankOperations, offset: float, command: str, path: Path) -> None:
    """Write what all ranks have logged into one file. Collective.

    control: has a trail with a log. rank: this rank's host and times. offset: of its clock to rank 0's,
    seconds (`comm.clock`). Raises RunError, on all ranks, if the file cannot be written, or if a rank has
    made more operations than a log holds.
    """
    log: OperationLog = control.trail.log
    operations, groups = list(log.operations), dict(log.groups)
    text = rank_text(replace(rank, operations=operations), offset).encode()
    gathered = control.allgather((len(text), groups, log.others, log.lost))
    if any(lost for *_, lost in gathered):
        raise RunError(
            f"cannot write {path}: a rank has made more operations than a record holds",
            expected=f"at most {MOST:,}",
            hint="a run of fewer steps",
            everywhere=True,
        )
    if control.rank:
        control.exchange([(0, np.frombuffer(text, np.uint8))], []).wait()
    failure = None
    if control.rank == 0:
        arrived = [np.empty(size, np.uint8) for size, *_ in gathered[1:]]
        control.exchange([], list(enumerate(arrived, start=1))).wait()
        ranks = [text.decode(), *(part.tobytes().decode() for part in arrived)]
        merged = {label: members for _, part, *_ in gathered for label, members in part.items()}
        try:
            write_file(path, record_text(command, merged, sum(others for _, _, others, _ in gathered), ranks))
        except OSError as reason:
            failure = RunError(
                f"cannot write {path}",
                why=reason.strerror or reason,
                hint=f"ls -ld {path.parent}",
                everywhere=True,
            )
    failure = control.broadcast(failure)
    if failure is not None:
        raise failure
