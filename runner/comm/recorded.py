"""Communicators whose operations are recorded, so that a stuck run can say who is missing in which.

A wrapper, so that communicators know nothing of it and ranks that are threads pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from meshrun.runner.comm.api import Arrays, Control, Counters, ForwardedControl, Message, Operation, Pending
from meshrun.runner.recorder.ring import ON_DEVICE, WAIT, Recorder

Result = TypeVar("Result")


class RecordedPending:
    """Messages in flight whose wait is recorded."""

    def __init__(self, pending: Pending, recorder: Recorder, name: int, group: int) -> None:
        self._pending, self._recorder, self._name, self._group = pending, recorder, name, group

    def progress(self) -> None:
        self._pending.progress()

    def wait(self) -> None:
        entry = self._recorder.enter(self._name, 0, self._group)
        self._pending.wait()
        self._recorder.leave(entry)


class RecordedArrays:
    """`arrays`, recorded. label: names the communicator on all of its ranks; members: these ranks.

    An operation that raises stays open in the record: the rank is about to end, and that is where it failed.
    """

    def __init__(self, arrays: Arrays, recorder: Recorder, label: str, members: Sequence[int]) -> None:
        self.arrays, self._recorder = arrays, recorder
        self._members = tuple(members)
        self._path = label
        self._group = recorder.group(label, self._members)
        self._sequence = 0
        self._wait = recorder.name(WAIT)
        self._exchange = recorder.name("exchange")
        self._all_reduce = recorder.name("all_reduce")
        self._close = recorder.name("close")

    @property
    def label(self) -> str:
        return self.arrays.label

    @property
    def capturable(self) -> bool:
        return self.arrays.capturable

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        recorder, group, members = self._recorder, self._group, self._members
        moved = 0
        for peer, array in sends:
            recorder.count(group, members[peer], 1, 0)
            moved += array.nbytes
        for peer, array in receives:
            recorder.count(group, members[peer], 0, 1)
            moved += array.nbytes
        entry = recorder.enter(self._exchange, moved, group)
        pending = self.arrays.exchange(sends, receives)
        recorder.leave(entry)
        return RecordedPending(pending, recorder, self._wait, group)

    def all_reduce(self, array: Any, operation: Operation) -> None:
        entry = self._enter(self._all_reduce, array.nbytes)
        self.arrays.all_reduce(array, operation)
        self._recorder.leave(entry)

    def close(self) -> None:
        entry = self._enter(self._close)
        self.arrays.close()
        self._recorder.leave(entry)

    def _enter(self, name: int, moved: int = 0) -> int:
        self._sequence += 1
        return self._recorder.enter(name, moved, self._group, self._sequence)


class RecordedControl(RecordedArrays, ForwardedControl):
    """`control`, recorded, and the communicators that are split from it."""

    def __init__(
        self, control: Control, recorder: Recorder, label: str = "world", members: Sequence[int] | None = None
    ) -> None:
        super().__init__(control, recorder, label, range(control.size) if members is None else members)
        self.control = control
        self._splits = 0
        self._barrier = recorder.name("barrier")
        self._broadcast = recorder.name("broadcast")
        self._allgather = recorder.name("allgather")
        self._split = recorder.name("split")
        self._counters = recorder.name("counters")

    def barrier(self) -> None:
        self._recorded(self._barrier, super().barrier)

    def broadcast(self, value: Any) -> Any:
        return self._recorded(self._broadcast, super().broadcast, value)

    def allgather(self, value: Any) -> list[Any]:
        return self._recorded(self._allgather, super().allgather, value)

    def shared_memory_size(self) -> int | None:
        return self._recorded(self._split, super().shared_memory_size)

    def counters(self) -> Counters:
        return self._recorded(self._counters, super().counters)

    def _recorded(self, name: int, call: Callable[..., Result], *values: Any) -> Result:
        entry = self._enter(name)
        result = call(*values)
        self._recorder.leave(entry)
        return result

    def split(self, color: int, key: int = 0) -> Control:
        entry = self._enter(self._split)
        self._splits += 1
        part = self.control.split(color, key)
        members = part.allgather(self._members[self.rank])
        self._recorder.leave(entry)
        return RecordedControl(part, self._recorder, f"{self._path}/{self._splits}.{color}", members)

    def recorded(self, arrays: Arrays) -> RecordedArrays:
        """Return a communicator of device arrays among the same ranks, recorded."""
        return RecordedArrays(arrays, self._recorder, f"{self._path} {ON_DEVICE}", self._members)


def unrecorded(control: Control) -> Control:
    """Return the communicator itself, for what is not called through its methods."""
    return control.control if isinstance(control, RecordedControl) else control
