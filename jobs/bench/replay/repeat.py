"""Repeat the operations of a record on these ranks, with the same sizes, order and gaps."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshrun import World
from meshrun.jobs.bench.replay.wire import EXCHANGE
from meshrun.runner.comm.api import Arrays, Control, Pending
from meshrun.runner.comm.collectives.api import DATATYPES, Call, Collectives, Pointer
from meshrun.runner.comm.recorded import MESSAGE
from meshrun.runner.recorder.operations import RAW, LoggedOperation, OperationRecord, RankOperations, now
from meshrun.runner.recorder.ring import ON_DEVICE, WAIT
from meshrun.runner.region import Array
from meshrun.runner.world.binding import open_arrays
from meshrun.runner.world.world import clashes

SLEEP = 0.002  # seconds of a gap from which on most of it is slept; the rest is spent looking at the clock


class Repeater:
    """One rank's communicators and memory for a record. Opening and closing it is collective.

    record: of at most as many ranks as the world has; the others only take part in opening.
    """

    def __init__(self, world: World, record: OperationRecord) -> None:
        self.world, self.record = world, record
        self.has_part = world.rank < len(record.ranks)
        self._controls: dict[tuple[int, ...], Control] = {}
        self._arrays: dict[str, Arrays] = {}
        self._opened: list[Arrays] = []
        self._raw: dict[str, Collectives] = {}
        self._free: dict[int, list[Array]] = defaultdict(list)
        for label, members in sorted(record.groups.items()):
            control = self._control(members)
            if world.rank not in members:
                continue
            self._arrays[label] = control
            if label.endswith(RAW):
                self._raw[label] = world.collectives(control)
            if label.endswith((RAW, ON_DEVICE)):
                self._arrays[label] = self._device_arrays(control)
        size = max((self._needed(one) for one in self._operations), default=0)
        self._memory = {
            label: (raw.allocate(max(size, 1)), raw.allocate(max(size, 1)))
            for label, raw in self._raw.items()
        }
        for pair in self._memory.values():
            for buffer in pair:
                buffer.array[:] = 0  # its pages exist before anything is timed

    @property
    def _operations(self) -> Sequence[LoggedOperation]:
        return self.record.ranks[self.world.rank].operations if self.has_part else ()

    def _control(self, members: tuple[int, ...]) -> Control:
        if members not in self._controls:
            inside = self.world.rank in members
            key = members.index(self.world.rank) if inside else 0
            self._controls[members] = self.world.control.split(0 if inside else 1, key)
        return self._controls[members]

    def _device_arrays(self, control: Control) -> Arrays:
        if control.size == self.world.size:
            return self.world.arrays
        opened = open_arrays(control, self.world.backend, shared_gpu=bool(clashes(self.world.ranks)))
        if opened is not control:
            self._opened.append(opened)
        return opened

    def _needed(self, operation: LoggedOperation) -> int:
        """Return the bytes of the larger buffer of an operation on raw memory."""
        if not operation.group.endswith(RAW):
            return 0
        if operation.name == MESSAGE:
            return int(operation.detail[0])
        count, datatype, _, _, traffic = operation.detail
        elements = count * len(self.record.groups[operation.group])
        if traffic is not None:
            elements = max(*map(sum, traffic), *map(sum, zip(*traffic, strict=True)))
        return int(elements * DATATYPES[datatype].itemsize)

    def run(self, gaps: bool) -> RankOperations:
        """Repeat this rank's operations; returns their new times.

        gaps: also wait between them as long as the recorded job did other things.
        """
        mine = self._operations
        steps = self._steps(mine)
        own = self.record.ranks[self.world.rank] if self.has_part else None
        pending: dict[int, tuple[Pending, list[Array]]] = {}
        times: list[tuple[float, float]] = []
        synchronize = self.world.backend.synchronize if self.world.backend.asynchronous else None
        self.world.control.barrier()
        begin = previous = now()
        recorded = own.began if own is not None else 0.0
        for operation, step in zip(mine, steps, strict=True):
            if gaps:
                wait_until(previous + operation.began - recorded)
            began = now()
            if operation.name == EXCHANGE:
                pending[operation.detail[0]] = self._exchange(operation)
            elif operation.name == WAIT:
                self._finish(pending.pop(operation.detail[0], None))
            else:
                step()
            if synchronize is not None:
                synchronize()
            previous, recorded = now(), operation.ended
            times.append((began, previous))
        if gaps and own is not None:
            wait_until(previous + own.ended - recorded)
        end = now()
        for messages in list(pending.values()):
            self._finish(messages)
        return RankOperations(
            self.world.here.host,
            begin,
            end,
            [replace(one, began=first, ended=last) for one, (first, last) in zip(mine, times, strict=True)],
        )

    def close(self) -> None:
        """Free the communicators. Collective."""
        for raw in self._raw.values():
            raw.close()
        for arrays in self._opened:
            arrays.close()
        for control in self._controls.values():
            control.close()

    def _steps(self, operations: Sequence[LoggedOperation]) -> list[Callable[[], object]]:
        """Return a function for each operation; those that are alike share it and its memory."""
        known: dict[tuple[str, str, int, str], Callable[[], object]] = {}
        steps = []
        for one in operations:
            key = (one.name, one.group, one.nbytes, "" if one.name in (EXCHANGE, WAIT) else repr(one.detail))
            if key not in known:
                known[key] = self._step(one)
            steps.append(known[key])
        return steps

    def _step(self, operation: LoggedOperation) -> Callable[[], object]:
        """Return a function that repeats an operation other than an exchange and its wait."""
        name, control = operation.name, self._control(self.record.groups[operation.group])
        if operation.group.endswith(RAW):
            return self._raw_step(operation)
        if name == "all_reduce":
            dtype = np.dtype(operation.detail[0])
            array = self._zeros(operation.nbytes // dtype.itemsize, dtype)
            return partial(self._arrays[operation.group].all_reduce, array, operation.detail[1])
        if name == "broadcast":
            value = bytes(operation.nbytes) if control.rank == 0 else None
            return lambda: control.broadcast(value)
        if name == "allgather":
            value = bytes(operation.nbytes)
            return lambda: control.allgather(value)
        if name == "split":
            return lambda: control.split(0).close()
        if name == "counters":
            return lambda: control.counters().close()
        if name == "barrier":
            return control.barrier
        return lambda: None  # closing a communicator sends nothing

    def _raw_step(self, operation: LoggedOperation) -> Callable[[], object]:
        raw, (send, recv) = self._raw[operation.group], self._memory[operation.group]
        if operation.name == MESSAGE:
            nbytes, to, source = operation.detail
            call = Call(MESSAGE, Pointer(send), Pointer(recv), nbytes, DATATYPES["uint8"])
            step = raw.message(call, send_to=to, receive_from=source)
        else:
            count, datatype, reduction, root, traffic = operation.detail
            table = None if traffic is None else tuple(map(tuple, traffic))
            call = Call(
                operation.name, Pointer(send), Pointer(recv), count, DATATYPES[datatype], reduction, root,
                traffic=table,
            )  # fmt: skip
            step = raw.bind(call)
        return partial(_issue, raw, [step])

    def _exchange(self, operation: LoggedOperation) -> tuple[Pending, list[Array]]:
        _, going, coming = operation.detail
        arrays = [(peer, self._take(nbytes)) for peer, nbytes in (*going, *coming)]
        pending = self._arrays[operation.group].exchange(arrays[: len(going)], arrays[len(going) :])
        return pending, [array for _, array in arrays]

    def _finish(self, messages: tuple[Pending, list[Array]] | None) -> None:
        """Wait for messages, and keep their memory for later ones. None: they have been waited for."""
        if messages is not None:
            messages[0].wait()
            for array in messages[1]:
                self._free[array.nbytes].append(array)

    def _take(self, nbytes: int) -> Array:
        free = self._free[nbytes]
        return free.pop() if free else self._zeros(nbytes, np.dtype(np.uint8))

    def _zeros(self, elements: int, dtype: np.dtype[Any]) -> Array:
        array = self.world.backend.empty((elements,), dtype)
        array[...] = 0  # its pages exist before anything is timed
        return array


def _issue(raw: Collectives, calls: Sequence[Callable[[], object]]) -> None:
    raw.issue(calls)
    raw.wait()


def wait_until(moment: float) -> None:
    """Return at a time of `now`. Short waits keep the core busy, as the job did."""
    left = moment - now()
    if left > SLEEP:
        time.sleep(left - SLEEP)
    while now() < moment:
        pass
