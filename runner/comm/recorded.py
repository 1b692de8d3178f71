"""The operations of a communicator in its rank's flight recorder, so that a stuck run can say who is missing.

`record_operations` replaces the methods of a communicator; one without a `trail` keeps its own. An operation
that raises stays open in the record: the rank is about to end, and that is where it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrun.runner.recorder.ring import ON_DEVICE, WAIT, Recorder

OPERATIONS = ("barrier", "broadcast", "allgather", "all_reduce", "split", "counters", "close")  # collective
METHODS = {**{name: name for name in OPERATIONS}, "shared_memory_size": "split"}  # with their operations


class Trail:
    """Records the operations of one communicator.

    label: names the communicator on all of its ranks. members: these ranks. sequence: collectives so far.
    """

    def __init__(self, recorder: Recorder, label: str, members: Sequence[int]) -> None:
        self.recorder, self.label, self.members = recorder, label, tuple(members)
        self.group = recorder.group(label, self.members)
        self.names = {name: recorder.name(name) for name in (WAIT, "exchange", *OPERATIONS)}
        self.enter, self.leave = recorder.enter, recorder.leave
        self.sequence = self._parts = 0

    def part(self, color: int, members: Sequence[int]) -> Trail:
        """Return the trail of the ranks with the same color. members: their numbers in this communicator."""
        self._parts += 1
        ranks = [self.members[rank] for rank in members]
        return Trail(self.recorder, f"{self.label}/{self._parts}.{color}", ranks)

    def on_device(self) -> Trail:
        """Return the trail of a communicator of device arrays among the same ranks."""
        return Trail(self.recorder, f"{self.label} {ON_DEVICE}", self.members)


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

    return call


def _exchange(trail: Trail, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recorded `exchange`, which counts the messages and records the wait for them."""

    def exchange(sends: Any, receives: Any) -> RecordedPending:
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
        return RecordedPending(pending, trail)

    return exchange


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
