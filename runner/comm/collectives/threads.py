"""Collectives among ranks that are threads, and of a single process, without MPI.

Every message is copied when it is sent. Reductions combine in rank order, rounding to the element's
own type after each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial

from meshrun.runner.comm.api import Message
from meshrun.runner.comm.collectives.api import Call, Function, Pointer, hypercube
from meshrun.runner.comm.collectives.host import (
    COMBINE,
    HostMemory,
    averaged,
    combine,
    copied,
    in_turn,
    premultiplied,
)
from meshrun.runner.comm.threads import ThreadComm
from meshrun.runner.region import Array

Part = tuple[int, int, int]  # (peer, first element, elements)


class ThreadCollectives(HostMemory):
    """One rank of a group. control: the group's communicator."""

    def __init__(self, control: ThreadComm) -> None:
        super().__init__()
        self.control, self.rank, self.size = control, control.rank, control.size
        self._everyone = range(control.size)

    @property
    def label(self) -> str:
        return f"{'one process' if self.size == 1 else 'threads of one process'}, host memory"

    def message(self, call: Call, *, send_to: int | None = None, receive_from: int | None = None) -> Function:
        sends = [] if send_to is None else [(send_to, 0, call.count)]
        receives = [] if receive_from is None else [(receive_from, 0, call.count)]
        return in_turn(self._moved(call, sends, receives))

    def issue(self, calls: Sequence[Function]) -> None:
        for call in calls:
            call()

    def abort(self) -> None:
        self.control.hub.fail()

    def close(self) -> None:
        pass

    def _all_gather(self, call: Call) -> list[Function]:
        return self._moved(call, self._whole(call), self._blocks(call))

    def _alltoall(self, call: Call) -> list[Function]:
        return self._moved(call, self._blocks(call), self._blocks(call))

    def _alltoallv(self, call: Call) -> list[Function]:
        traffic = call.traffic or ()
        going, coming = traffic[self.rank], [row[self.rank] for row in traffic]
        return self._moved(call, _packed(going), _packed(coming))

    def _broadcast(self, call: Call) -> list[Function]:
        sends = self._whole(call) if self.rank == call.root else []
        return self._moved(call, sends, [(call.root, 0, call.count)])

    def _gather(self, call: Call) -> list[Function]:
        receives = self._blocks(call) if self.rank == call.root else []
        return self._moved(call, [(call.root, 0, call.count)], receives)

    def _scatter(self, call: Call) -> list[Function]:
        sends = self._blocks(call) if self.rank == call.root else []
        return self._moved(call, sends, [(call.root, 0, call.count)])

    def _sendrecv(self, call: Call) -> list[Function]:
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        return [self.message(call, send_to=after, receive_from=before)]

    def _hypercube(self, call: Call) -> list[Function]:
        nbytes = call.count * call.datatype.itemsize
        blocks = [call.recv.bytes(self.size * nbytes)[rank * nbytes :][:nbytes] for rank in self._everyone]
        steps = copied(blocks[self.rank], call.send.bytes(nbytes))
        for peer, mine, theirs, count in hypercube(self.rank, self.size):
            sends = [(peer, block) for block in blocks[mine : mine + count]]
            receives = [(peer, block) for block in blocks[theirs : theirs + count]]
            steps.append(partial(self._exchange, sends, [], receives))
        return steps

    def _all_reduce(self, call: Call) -> list[Function]:
        return self._reduced(call, self._whole(call), call.count, receives=True)

    def _reduce(self, call: Call) -> list[Function]:
        return self._reduced(call, [(call.root, 0, call.count)], call.count, self.rank == call.root)

    def _reduce_scatter(self, call: Call) -> list[Function]:
        return self._reduced(call, self._blocks(call), call.count * self.size, receives=True)

    def _whole(self, call: Call) -> list[Part]:
        return [(peer, 0, call.count) for peer in self._everyone]

    def _blocks(self, call: Call) -> list[Part]:
        return [(peer, peer * call.count, call.count) for peer in self._everyone]

    # Move and combine data.

    def _moved(self, call: Call, sends: Iterable[Part], receives: Iterable[Part]) -> list[Function]:
        outgoing, incoming = _messages(call, call.send, sends), _messages(call, call.recv, receives)
        local = [
            step
            for _, source in self._own(outgoing)
            for _, target in self._own(incoming)
            for step in copied(target, source)
        ]
        others = self._others(outgoing), self._others(incoming)
        return [partial(self._exchange, others[0], local, others[1])] if any(others) else local

    def _exchange(self, sends: list[Message], local: list[Function], receives: list[Message]) -> None:
        # Sent data is copied first and received data written last, so that the two may share memory.
        pending = self.control.exchange(sends, receives)
        for step in local:
            step()
        pending.wait()

    def _reduced(self, call: Call, sends: list[Part], count: int, receives: bool) -> list[Function]:
        """count: elements in this rank's send buffer. receives: whether this rank gets a result."""
        steps, call = premultiplied(call, self.rank, count, self.scratch)
        outgoing = _messages(call, call.send, sends)
        if others := self._others(outgoing):
            steps.append(partial(self.control.exchange, others, []))
        if not receives:
            return steps
        [(_, own)] = self._own(outgoing)
        dtype, ufunc = call.datatype.dtype, COMBINE[call.reduction]
        result = call.recv.bytes(own.nbytes)
        # In place, the result would overwrite this rank's part before it is combined.
        total = self._scratch_bytes("total", own.nbytes) if call.in_place and self.rank else result
        inbox = self._scratch_bytes("inbox", own.nbytes)
        for peer in self._everyone:
            part = own if peer == self.rank else inbox
            if peer != self.rank:
                steps.append(partial(self._exchange, [], [], [(peer, inbox)]))
            if peer == 0:
                steps += copied(total, part)
            else:
                steps.append(partial(combine, ufunc, total.view(dtype), part.view(dtype)))
        return [*steps, *copied(result, total), *averaged(call, self.size)]

    def _scratch_bytes(self, use: str, nbytes: int) -> Array:
        return self.scratch.pointer(use, nbytes).bytes(nbytes)

    def _own(self, messages: list[Message]) -> list[Message]:
        return [message for message in messages if message[0] == self.rank]

    def _others(self, messages: list[Message]) -> list[Message]:
        return [message for message in messages if message[0] != self.rank]


def _packed(counts: Sequence[int]) -> list[Part]:
    """Consecutive parts with these counts of elements, in rank order."""
    ends = itertools.accumulate(counts)
    return [(peer, end - count, count) for peer, (end, count) in enumerate(zip(ends, counts, strict=True))]


def _messages(call: Call, pointer: Pointer, parts: Iterable[Part]) -> list[Message]:
    size = call.datatype.itemsize
    return [
        (peer, Pointer(pointer.buffer, pointer.offset + first * size).bytes(count * size))
        for peer, first, count in parts
    ]
