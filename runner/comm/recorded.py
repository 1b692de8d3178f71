"""The operations of a communicator in its rank's flight recorder, so that a stuck run can say who is missing.

A communicator has an optional `trail`, and its methods are marked with `recorded` or `recorded_exchange`.
An operation that raises stays open in the record: the rank is about to end, and that is where it failed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from meshrun.runner.comm.api import Message, Pending
from meshrun.runner.recorder.ring import ON_DEVICE, WAIT, Recorder

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Self = TypeVar("Self", bound="HasTrail")
Exchange = Callable[[Self, Sequence[Message], Sequence[Message]], Pending]


class HasTrail(Protocol):
    """A communicator that can be recorded."""

    trail: Trail | None


class Trail:
    """Records the operations of one communicator.

    label: names the communicator on all of its ranks. members: these ranks.
    """

    def __init__(self, recorder: Recorder, label: str, members: Sequence[int]) -> None:
        self.recorder, self.label, self.members = recorder, label, tuple(members)
        self.group = recorder.group(label, self.members)
        self._sequence = self._parts = 0

    def enter(self, name: str, moved: int = 0) -> int:
        """Record that a collective is entered; returns its number for `Recorder.leave`. moved: bytes."""
        self._sequence += 1
        return self.recorder.enter(self.recorder.name(name), moved, self.group, self._sequence)

    def part(self, color: int, members: Sequence[int]) -> Trail:
        """Return the trail of the ranks with the same color. members: their numbers in this communicator."""
        self._parts += 1
        ranks = [self.members[rank] for rank in members]
        return Trail(self.recorder, f"{self.label}/{self._parts}.{color}", ranks)

    def on_device(self) -> Trail:
        """Return the trail of a communicator of device arrays among the same ranks."""
        return Trail(self.recorder, f"{self.label} {ON_DEVICE}", self.members)


def recorded(
    name: str,
) -> Callable[
    [Callable[Concatenate[Self, Parameters], Result]], Callable[Concatenate[Self, Parameters], Result]
]:
    """Mark a communicator's method as a collective of this name, which its trail records."""

    def mark(
        method: Callable[Concatenate[Self, Parameters], Result],
    ) -> Callable[Concatenate[Self, Parameters], Result]:
        @functools.wraps(method)
        def call(self: Self, /, *values: Parameters.args, **named: Parameters.kwargs) -> Result:
            trail = self.trail
            if trail is None:
                return method(self, *values, **named)
            moved: int = getattr(values[0], "nbytes", 0) if name == "all_reduce" else 0
            entry = trail.enter(name, moved)
            result = method(self, *values, **named)
            trail.recorder.leave(entry)
            return result

        return call

    return mark


def recorded_exchange(method: Exchange[Self]) -> Exchange[Self]:
    """Mark a communicator's `exchange`: its trail counts the messages, and records the wait for them."""

    @functools.wraps(method)
    def exchange(self: Self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        trail = self.trail
        if trail is None:
            return method(self, sends, receives)
        recorder, group, members = trail.recorder, trail.group, trail.members
        moved = 0
        for peer, array in sends:
            recorder.count(group, members[peer], 1, 0)
            moved += array.nbytes
        for peer, array in receives:
            recorder.count(group, members[peer], 0, 1)
            moved += array.nbytes
        entry = recorder.enter(recorder.name("exchange"), moved, group)
        pending = method(self, sends, receives)
        recorder.leave(entry)
        return RecordedPending(pending, trail)

    return exchange


class RecordedPending:
    """Messages in flight whose wait is recorded."""

    def __init__(self, pending: Pending, trail: Trail) -> None:
        self._pending, self._trail = pending, trail
        self.progress: Callable[[], Any] = pending.progress

    def wait(self) -> None:
        recorder = self._trail.recorder
        entry = recorder.enter(recorder.name(WAIT), 0, self._trail.group)
        self._pending.wait()
        recorder.leave(entry)
