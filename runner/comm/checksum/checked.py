"""Communicators that check what arrives by checksums, so that no rank goes on with damaged cells.

A trailer follows each message that is checked, in a message of its own: the number of the message between
these two ranks, its bytes and its checksum before it was sent. The receiver computes the three again and
compares: a changed bit, a message of another time or another length differ. Which messages are checked
follows from the run's seed, the two ranks and the number, so that both sides choose the same ones.

An all-reduction has no bytes that are the same on both sides. Its results are compared instead: all ranks
must have the same bits, but for the sign of a zero and the payload of a NaN, which MPI leaves open. (It also
leaves open whether the maximum of a NaN and a number is the NaN: ranks with different ones are reported.)

Values that are pickled (`broadcast`, `allgather`) are not checked.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.comm.api import Arrays, Control, Message, Operation, Pending
from meshrun.runner.comm.checksum.sums import HostSums, Sums
from meshrun.runner.errors import RunError
from meshrun.runner.region import Array, HostArray

if TYPE_CHECKING:
    from meshrun.runner.comm.recorded import Trail

SHARE = {"sample": 64, "full": 1}  # one of so many messages is checked
HINT = "another GPU or host in place of these; `meshrun validate` tests the links between them"


class Damaged(RunError):
    """An array that has arrived is not what was sent."""


@dataclass
class Checksums:
    """Which messages of a run are checked, and what this rank has checked so far; of all its communicators.

    share: one of so many. seed: the same on every rank. names: of the run's ranks, for errors. step: whose
    cells the messages hold; None outside of steps. operation: what exchanges them, for errors. messages,
    nbytes: received and compared on this rank.
    """

    share: int
    seed: int
    names: Sequence[str]
    step: int | None = None
    operation: str = "an exchange"
    messages: int = 0
    nbytes: int = 0

    def chosen(self, sender: int, receiver: int, number: int) -> bool:
        """Return whether a message is checked; the same on both ranks."""
        if self.share == 1:
            return True
        return zlib.crc32(struct.pack("<4Q", self.seed, sender, receiver, number)) % self.share == 0

    def describe(self, operation: str) -> str:
        return operation if self.step is None else f"{operation} of step {self.step:,}"


@dataclass(frozen=True)
class Checked:
    """A message that is checked. number: of all between these two ranks in this direction, from 1."""

    peer: int
    array: Array
    number: int


class CheckedArrays:
    """`arrays`, with checksums computed by `sums`. members: the communicator's ranks, as ranks of the run;
    rank: this one's, in the communicator."""

    def __init__(
        self, arrays: Arrays, checksums: Checksums, sums: Sums, members: Sequence[int], rank: int
    ) -> None:
        self.arrays, self.checksums = arrays, checksums
        self._sums, self._members, self._here = sums, tuple(members), rank
        self._sent, self._received = Counter[int](), Counter[int]()  # messages, by the other rank
        self._reduced = 0

    @property
    def label(self) -> str:
        return self.arrays.label

    @property
    def capturable(self) -> bool:
        """False: the host compares what has arrived."""
        return False

    @property
    def peer_slots(self) -> None:
        """None: nobody compares what kernels store."""

    @property
    def is_open(self) -> bool:
        return self.arrays.is_open

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        """Start all messages, with their trailers.

        Waiting raises Damaged if an array is not what was sent, on this rank only; on a GPU, it waits for
        the arrays that are checked.
        """
        mine = [self._numbered(self._sent, peer, self._here, peer) for peer, _ in sends]
        theirs = [self._numbered(self._received, peer, peer, self._here) for peer, _ in receives]
        outgoing, incoming = _checked(sends, mine), _checked(receives, theirs)
        written = self._computed(outgoing)
        table = self._sums.trailers(2 * len(incoming)) if incoming else ()
        pending = self.arrays.exchange(
            _with_trailers(sends, mine, written), _with_trailers(receives, theirs, table)
        )
        if not incoming:
            return pending
        operation = self.checksums.describe(self.checksums.operation)
        return CheckedPending(self, pending, incoming, table, operation)

    def _numbered(self, counts: Counter[int], peer: int, sender: int, receiver: int) -> int | None:
        """Count a message; return its number if it is checked."""
        counts[peer] += 1
        number = counts[peer]
        return number if self.checksums.chosen(sender, receiver, number) else None

    def all_reduce(self, array: Array, operation: Operation) -> None:
        """Reduce, and compare the results of all ranks. Raises Damaged on the ranks that see a difference."""
        self.arrays.all_reduce(array, operation)
        self._reduced += 1
        size = len(self._members)
        if not self.checksums.chosen(size, size, self._reduced):
            return
        table = self._sums.trailers(size)
        self._sums.write(table[self._here], _comparable(array), self._reduced)
        self.arrays.all_reduce(table, "sum")
        rows = [tuple(map(int, row)) for row in self._sums.read(table)]
        self.checksums.messages += 1
        self.checksums.nbytes += int(array.nbytes)
        ((usual, _),) = Counter(rows).most_common(1)
        other = next((rank for rank, row in enumerate(rows) if row != usual), None)
        if other is not None:
            names = [self._name(rank) for rank in (rows.index(usual), other)]
            raise Damaged(
                f"{names[0]} and {names[1]} have different results of "
                f"{self.checksums.describe(f'all_reduce {self._reduced:,}')}",
                got=f"{_words(usual)} and {_words(rows[other])}",
                expected="the same bits on all ranks",
                hint=HINT,
            )

    def compare(self, incoming: Sequence[Checked], table: Array, operation: str) -> None:
        """Raise Damaged if an array that has arrived is not what was sent.

        table: a trailer for each that has arrived with it, and as many for those computed here.
        """
        for one, trailer in zip(incoming, table[len(incoming) :], strict=True):
            self._sums.write(trailer, one.array, one.number)
        rows = self._sums.read(table)
        for one, sent, found in zip(incoming, rows, rows[len(incoming) :], strict=False):
            self.checksums.messages += 1
            self.checksums.nbytes += int(one.array.nbytes)
            if not np.array_equal(sent, found):
                raise Damaged(
                    f"{self._name(self._here)} has not received what {self._name(one.peer)} has sent, in "
                    f"{operation}",
                    got=_words(found),
                    expected=_words(sent),
                    hint=HINT,
                )

    def _computed(self, outgoing: Sequence[Checked]) -> Array:
        """Return a trailer for each message."""
        table = self._sums.trailers(len(outgoing)) if outgoing else ()
        for one, trailer in zip(outgoing, table, strict=True):
            self._sums.write(trailer, one.array, one.number)
        return table

    def _name(self, rank: int) -> str:
        return self.checksums.names[self._members[rank]]

    def close(self) -> None:
        self.arrays.close()


class CheckedPending:
    """Messages in flight of which some are compared when they have arrived."""

    def __init__(
        self,
        arrays: CheckedArrays,
        pending: Pending,
        incoming: Sequence[Checked],
        table: Array,
        operation: str,
    ) -> None:
        self._arrays, self._pending = arrays, pending
        self._incoming, self._table, self._operation = incoming, table, operation

    def progress(self) -> None:
        self._pending.progress()

    def wait(self) -> None:
        self._pending.wait()
        self._arrays.compare(self._incoming, self._table, self._operation)


class CheckedControl(CheckedArrays):
    """`control`, with checksums of the host arrays that it moves, and the communicators split from it."""

    def __init__(self, control: Control, checksums: Checksums, members: Sequence[int] | None = None) -> None:
        ranks = range(control.size) if members is None else members
        super().__init__(control, checksums, HostSums(), ranks, control.rank)
        self.control = control
        self.rank, self.size = control.rank, control.size
        self.trail: Trail | None = None  # the communicator has one
        # What moves no arrays is the communicator's own.
        self.barrier, self.broadcast, self.allgather = control.barrier, control.broadcast, control.allgather
        self.shared_memory_size, self.counters = control.shared_memory_size, control.counters
        self.abort = control.abort

    @property
    def library(self) -> str:
        return self.control.library

    def split(self, color: int, key: int = 0) -> Control:
        part = self.control.split(color, key)
        return CheckedControl(part, self.checksums, part.allgather(self._members[self.rank]))

    def checked(self, arrays: Arrays, sums: Sums) -> CheckedArrays:
        """Return a communicator of device arrays among the same ranks, checked."""
        return CheckedArrays(arrays, self.checksums, sums, self._members, self.rank)


@contextmanager
def named(arrays: Arrays, operation: str) -> Iterator[None]:
    """Name what exchanges messages inside the block, for an error of what arrives."""
    if not isinstance(arrays, CheckedArrays):
        yield
        return
    checksums = arrays.checksums
    before, checksums.operation = checksums.operation, operation
    try:
        yield
    finally:
        checksums.operation = before


def _checked(messages: Sequence[Message], numbers: Sequence[int | None]) -> list[Checked]:
    return [
        Checked(peer, array, number)
        for (peer, array), number in zip(messages, numbers, strict=True)
        if number is not None
    ]


def _with_trailers(
    messages: Sequence[Message], numbers: Sequence[int | None], trailers: Sequence[Array]
) -> list[Message]:
    """Return the messages, each that has a number followed by the next trailer."""
    rows, found = iter(trailers), list[Message]()
    for message, number in zip(messages, numbers, strict=True):
        found.append(message)
        if number is not None:
            found.append((message[0], next(rows)))
    return found


def _comparable(array: Array) -> Array:
    """Return an array whose bits are equal on all ranks if they have reduced the same values.

    max(-0.0, 0.0) and NaN + NaN depend on the order of the operands, which differs between ranks.
    """
    if array.dtype.kind not in "fc":
        return array
    flat = array.reshape(-1)
    if array.dtype.kind == "c":
        flat = flat.view(f"f{array.dtype.itemsize // 2}")
    result = flat + flat.dtype.type(0)
    nans = ~(result >= 0) & ~(result < 0)
    result[nans] = np.nan
    return result


def _words(trailer: Sequence[Any] | HostArray) -> str:
    number, nbytes, value = map(int, trailer)
    return f"checksum {value:#x} of {nbytes:,} bytes (message {number:,})"
