"""The operations of a communicator in its rank's flight recorder, so that a stuck run can say who is missing.

A communicator has an optional `trail`, and its methods are marked with `recorded` or `recorded_exchange`.
An operation that raises stays open in the record: the rank is about to end, and that is where it failed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from meshrun.runner.recorder.ring import ON_DEVICE, WAIT, Recorder

Method = TypeVar("Method", bound=Callable[..., Any])
COLLECTIVES = ("barrier", "broadcast", "allgather", "all_reduce", "split", "counters", "close")


class Trail:
    """Records the operations of one communicator.

    label: names the communicator on all of its ranks. members: these ranks. sequence: collectives so far.
    """

    def __init__(self, recorder: Recorder, label: str, members: Sequence[int]) -> None:
        self.recorder, self.label, self.members = recorder, label, tuple(members)
        self.group = recorder.group(label, self.members)
        self.names = {name: recorder.name(name) for name in (WAIT, "exchange", *COLLECTIVES)}
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


def recorded(name: str) -> Callable[[Method], Method]:
    """Mark a communicator's method as a collective, which its trail records. name: one of COLLECTIVES."""
    reduces = name == "all_reduce"

    def mark(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *values: Any) -> Any:
            trail: Trail | None = self.trail
            if trail is None:
                return method(self, *values)
            trail.sequence += 1
            moved = values[0].nbytes if reduces else 0
            entry = trail.enter(trail.names[name], moved, trail.group, trail.sequence)
            result = method(self, *values)
            trail.leave(entry)
            return result

        return cast(Method, call)

    return mark


def recorded_exchange(method: Method) -> Method:
    """Mark a communicator's `exchange`: its trail counts the messages, and records the wait for them."""

    @functools.wraps(method)
    def exchange(self: Any, sends: Any, receives: Any) -> Any:
        trail: Trail | None = self.trail
        if trail is None:
            return method(self, sends, receives)
        count, group, members = trail.recorder.count, trail.group, trail.members
        moved = 0
        for peer, array in sends:
            count(group, members[peer], 1, 0)
            moved += array.nbytes
        for peer, array in receives:
            count(group, members[peer], 0, 1)
            moved += array.nbytes
        entry = trail.enter(trail.names["exchange"], moved, group)
        pending = method(self, sends, receives)
        trail.leave(entry)
        return RecordedPending(pending, trail)

    return cast(Method, exchange)


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
