"""Arrays whose split moves from one axis to another, between GPUs: prepared once, issued without waiting.

A rank computes its block of the former split in parts. As soon as a part is issued, what other ranks need of
it is carried to their blocks of the latter split, in a stream of its own, while the GPU goes on with other
work. Where the GPUs of one host reach each other's memory, copy engines carry it to where it is read next:
nothing is packed. Elsewhere it is packed, sent by messages and unpacked.

Both blocks lie in one array of bytes of each rank, its room. Of two ranks, a room has the whole array, and
each cell its place in it: cells that a rank keeps never move. Of more, one block lies behind the other, and
a rank copies the cells that it keeps.

An exchange ends with an all-reduction of one word behind the copies: all copies have arrived when it ends.
Copies into a room must follow the reads of its former cells. With three sets of rooms that is so by itself:
between a transform and the third one after it, each rank has read the rooms of the former before it comes to
the end of the exchange in between. Otherwise, and for the first transforms of a step, another all-reduction
comes before the copies, for which ranks wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.comm.checksum.checked import named
from meshrun.runner.device.api import Mark
from meshrun.runner.plan.grid import bounds, split_along
from meshrun.runner.region import Array, Region, Shape, address_of, overlap
from meshrun.runner.transforms.peers import find_peers, open_everywhere, opened
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import PeerArrays, PeerCopies

SETS = 3  # of rooms, which transforms use in turn
PARTS = 4  # most parts of an exchange while which nothing else is computed
PART_BYTES = 8 << 20  # of a part; smaller ones take longer than the time that they hide
LINE_CELLS = 16  # multiple of cells from a row of a matrix to the next
ALIGNMENT = 256  # bytes, of rooms and messages in memory
MOST_PITCH = (1 << 31) - 1  # bytes from a row to the next that CUDA copies as rows

# The address of the target and of the source, bytes between their rows, bytes of a row, and number of rows.
Rows = tuple[int, int, tuple[int, int], int, int]


@dataclass(frozen=True)
class Block:
    """Where a rank's block lies in its room.

    region: of the whole array. start: element of the room with which an array in C order begins. lengths: of
    that array. corner: of the block's first cell in it.
    """

    region: Region
    start: int
    lengths: Shape
    corner: Shape

    @cached_property
    def strides(self) -> Shape:
        """Elements from a cell to the next along each axis."""
        return tuple(math.prod(self.lengths[axis + 1 :]) for axis in range(len(self.lengths)))

    def element(self, index: Shape) -> int:
        """Return the element of the room that a cell of the whole array is."""
        places = zip(index, self.region.start, self.corner, self.strides, strict=True)
        return self.start + sum((at - first + corner) * stride for at, first, corner, stride in places)

    def view(self, room: Array, dtype: np.dtype[Any]) -> Array:
        """Return the block's cells in a room, an array of bytes."""
        stop = self.start + math.prod(self.lengths)
        cells = room[self.start * dtype.itemsize : stop * dtype.itemsize].view(dtype).reshape(self.lengths)
        pairs = zip(self.corner, self.region.shape, strict=True)
        return cells[tuple(slice(first, first + length) for first, length in pairs)]


@dataclass(frozen=True)
class BoxChange:
    """A change of the boxes of an array that the ranks have.

    before, after: of each rank; of two ranks, parts of one array. along: axis along which boxes are cut into
    the parts in which they are computed and sent. most: number of parts.
    """

    shape: Shape
    dtype: np.dtype[Any]
    before: tuple[Region, ...]
    after: tuple[Region, ...]
    along: int
    most: int

    @property
    def ranks(self) -> int:
        return len(self.before)

    def blocks(self, rank: int) -> tuple[Block, Block]:
        """Return where a rank's box before lies in its room, and that after."""
        first, second = self.before[rank], self.after[rank]
        if self.ranks == 2:
            # Columns of a matrix that are a rank's block begin at whole lines, too.
            *outer, start = map(max, first.start, second.start)
            shift = -start % LINE_CELLS if len(outer) == 1 else 0
            whole = _padded((*self.shape[:-1], self.shape[-1] + shift))
            before, after = ((*one.start[:-1], one.start[-1] + shift) for one in (first, second))
            return Block(first, 0, whole, before), Block(second, 0, whole, after)
        origin = (0,) * len(self.shape)
        behind = max(math.prod(_padded(one.shape)) for one in self.before)
        return (
            Block(first, 0, _padded(first.shape), origin),
            Block(second, behind, _padded(second.shape), origin),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of a room, the same on every rank."""
        ends = (self.blocks(rank)[1] for rank in range(self.ranks))
        return max(one.start + math.prod(one.lengths) for one in ends) * self.dtype.itemsize

    @cached_property
    def parts(self) -> int:
        """Number of parts of each rank's box; some may have no cells."""
        size = max(one.size for one in self.before)
        length = max(one.shape[self.along] for one in self.before)
        return max(min(self.most, length, size * self.dtype.itemsize // PART_BYTES), 1)

    def part(self, rank: int, number: int) -> Region:
        """Return a part of a rank's box before."""
        region = self.before[rank]
        length = region.shape[self.along]
        unit = LINE_CELLS if length >= self.parts * LINE_CELLS else 1
        cuts = bounds(-(-length // unit), self.parts, number)
        first, last = (min(cut * unit, length) for cut in cuts)
        start, stop = list(region.start), list(region.stop)
        start[self.along], stop[self.along] = start[self.along] + first, start[self.along] + last
        return Region(tuple(start), tuple(stop))

    def box(self, sender: int, receiver: int, number: int) -> Region:
        """Return the cells of a rank's part that a rank has after the change."""
        return overlap(self.part(sender, number), self.after[receiver])

    @property
    def problem(self) -> str:
        """Why cells cannot be copied as rows; "" if they can."""
        pitch = max(max(one.strides) for one in self.blocks(0)) * self.dtype.itemsize
        return f"rows {pitch:,} bytes apart, more than CUDA copies" if pitch > MOST_PITCH else ""


def split_change(
    shape: Shape, dtype: np.dtype[Any], axes: tuple[int, int], ranks: int, most: int
) -> BoxChange:
    """Return the change from a split along one axis to one along another. most: number of parts."""
    old, new = axes
    before, after = (tuple(split_along(shape, axis, ranks)) for axis in (old, new))
    return BoxChange(shape, dtype, before, after, old, most)


class PeerExchange:
    """Copies of this rank's parts to where other ranks read them. Every method is collective.

    first, second: this rank's blocks, to be written and to be read. parts: of `first`, in the order in which
    they are computed.
    """

    def __init__(
        self,
        change: BoxChange,
        rank: int,
        room: Array,
        rooms: Sequence[int],
        copies: PeerCopies,
        *,
        waits: bool,
    ):
        """rooms: of each rank, the address of its room. waits: whether copies wait until every rank has read
        its room."""
        self._copies, self._waits, source = copies, waits, change.blocks(rank)[0]
        self._arrived: Mark = None
        self.first, self.second = (one.view(room, change.dtype) for one in change.blocks(rank))
        self.parts = _parts_of(change, rank)
        # From the next rank on: each is sent to by one rank at a time. Of two ranks, kept cells are there.
        targets = [(rank + step) % change.ranks for step in range(1, change.ranks + (change.ranks > 2))]
        self._rows: list[list[Rows]] = []
        for number in range(change.parts):
            rows: list[Rows] = []
            for other in targets:
                box = change.box(rank, other, number)
                ends = (rooms[other], change.blocks(other)[1]), (rooms[rank], source)
                rows += copied_rows(box, *ends, change.dtype.itemsize)
            self._rows.append(rows)

    def send(self, number: int) -> None:
        """Send a part, whose computation has been issued."""
        copies = self._copies
        copies.follow()
        if number == 0 and self._waits:
            copies.arrived()  # every rank has come here
        for rows in self._rows[number]:
            copies.rows(*rows)
        if number == len(self.parts) - 1:
            self._arrived = copies.arrived()

    def wait(self) -> None:
        """Let later work of the current stream find the second block complete."""
        self._copies.wait(self._arrived)


@dataclass(frozen=True)
class MessageMemory:
    """Memory of the messages of one part, as arrays of bytes."""

    sent: Array
    received: Array


def messages_of(world: World, changes: Sequence[BoxChange]) -> MessageMemory:
    """Allocate memory for the messages of each part of several changes, of which one is under way."""
    most, rank = 0, world.rank
    for change in changes:
        others = [other for other in range(change.ranks) if other != rank]
        for number in range(change.parts):
            sent = sum(change.box(rank, other, number).size for other in others)
            received = sum(change.box(other, rank, number).size for other in others)
            nbytes = max(sent, received) * change.dtype.itemsize + change.ranks * ALIGNMENT
            most = max(most, nbytes)
    return MessageMemory(*(world.backend.empty((most,), np.dtype(np.uint8)) for _ in range(2)))


class MessageExchange:
    """As `PeerExchange`, by messages between ranks that do not reach each other's memory."""

    def __init__(
        self,
        change: BoxChange,
        world: World,
        ends: tuple[Array, Array],
        copies: PeerCopies,
        buffers: MessageMemory | None = None,
    ):
        """ends: this rank's cells before the change and after it. buffers: memory of messages; None: of its
        own."""
        self._arrays, self._copies, rank = world.arrays, copies, world.rank
        self._arrived: Mark = None
        self.first, self.second = ends
        self.parts = _parts_of(change, rank)
        before, after = change.before[rank], change.after[rank]
        buffers = messages_of(world, [change]) if buffers is None else buffers
        # What is copied and sent of each part, received, and copied from there.
        self._steps = []
        for number in range(change.parts):
            packed, unpacked, sends, receives = [], [], list[tuple[int, Array]](), list[tuple[int, Array]]()
            places = [0, 0]
            for other in range(change.ranks):
                going, coming = change.box(rank, other, number), change.box(other, rank, number)
                if going.size:
                    source = self.first[going.slices_in(before)]
                    if other == rank:
                        message = self.second[going.slices_in(after)]
                    else:
                        message, places[0] = _message(buffers.sent, places[0], going.shape, change.dtype)
                        sends.append((other, message))
                    # Of two blocks of one array, cells that this rank keeps are there.
                    if address_of(message) != address_of(source):
                        packed.append((source, message))
                if coming.size and other != rank:
                    message, places[1] = _message(buffers.received, places[1], coming.shape, change.dtype)
                    unpacked.append((message, self.second[coming.slices_in(after)]))
                    receives.append((other, message))
            self._steps.append((packed, sends, receives, unpacked))

    def send(self, number: int) -> None:
        """Send a part, whose computation has been issued, and receive those of the other ranks."""
        packed, sends, receives, unpacked = self._steps[number]
        self._copies.follow()
        with self._copies.issuing():
            for source, message in packed:
                message[...] = source
            with named(self._arrays, "redistribute"):
                self._arrays.exchange(sends, receives).wait()
            for message, target in unpacked:
                target[...] = message
        if number == len(self.parts) - 1:
            self._arrived = self._copies.mark()

    def wait(self) -> None:
        """Let later work of the current stream find the second block complete."""
        self._copies.wait(self._arrived)


Exchange = PeerExchange | MessageExchange


class Rooms:
    """The rooms of the exchanges of several transforms, which use them in turn.

    world: all ranks. sets: number of transforms that have rooms of their own. most: exchanges of a transform.
    peers: memory that every rank can open; otherwise, why there is none. Collective.
    """

    def __init__(
        self,
        world: World,
        changes: Sequence[BoxChange],
        counts: tuple[int, int],
        peers: PeerArrays | str,
        copies: PeerCopies,
    ) -> None:
        """Allocate rooms for the largest change. Raises Unreachable, on ranks that cannot open others' rooms.

        counts: `sets` and `most`.
        """
        self._world, self._peers, self.copies = world, peers, copies
        self.sets, self.most = counts
        nbytes = -(-max(one.nbytes for one in changes) // ALIGNMENT) * ALIGNMENT
        number, byte = self.sets * self.most, np.dtype(np.uint8)
        if isinstance(peers, str):
            memory = world.backend.empty((number * nbytes,), byte)
            self._messages = messages_of(world, changes)
            self._addresses: list[list[int]] = []
        else:
            memory, addresses = open_everywhere(world, peers, number * nbytes, byte)
            self._addresses = [[one + room * nbytes for one in addresses] for room in range(number)]
        self._rooms = [memory[room * nbytes : (room + 1) * nbytes] for room in range(number)]

    @property
    def reason(self) -> str:
        """Why cells are sent by messages; "" if copy engines carry them."""
        return self._peers if isinstance(self._peers, str) else ""

    def exchanges(self, turn: int, changes: Sequence[BoxChange], *, in_loops: bool = False) -> list[Exchange]:
        """Return the exchanges of a transform, prepared.

        turn: its number among a step's transforms that have exchanges. in_loops: whether some of these are
        issued again within a step.
        """
        waits = self.sets < SETS or turn < SETS or in_loops
        found: list[Exchange] = []
        for number, change in enumerate(changes):
            place = turn % self.sets * self.most + number
            room, rank = self._rooms[place], self._world.rank
            if isinstance(self._peers, str):
                first, second = (one.view(room, change.dtype) for one in change.blocks(rank))
                ends, copies = (first, second), self.copies
                found.append(MessageExchange(change, self._world, ends, copies, self._messages))
            else:
                addresses, copies = self._addresses[place], self.copies
                found.append(PeerExchange(change, rank, room, addresses, copies, waits=waits))
        return found

    def close(self) -> None:
        """Forget the other ranks' rooms. Collective."""
        if not isinstance(self._peers, str):
            self._peers.close()


def open_rooms(
    world: World,
    changes: Mapping[int, Sequence[BoxChange]],
    copies: PeerCopies,
    peers: PeerArrays | str | None = None,
) -> Rooms | None:
    """Return rooms for the exchanges of transforms; None if there are none. Collective.

    changes: of each transform. peers: instead of the GPUs' memory; or why copy engines are not to be used.
    """
    every = [change for one in changes.values() for change in one]
    if not every:
        return None
    # With several sets, one transform's cells travel while the next transform is computed.
    most = max(len(one) for one in changes.values())
    free = min(world.control.allgather(world.backend.free_memory()))
    fitting = free // (2 * most * max(one.nbytes for one in every))
    counts = max(min(fitting, SETS), 1), most
    memory = find_peers(world) if peers is None else peers
    if isinstance(memory, str):
        return Rooms(world, every, counts, memory, copies)
    problem = next((one.problem for one in every if one.problem), "")
    if problem:
        memory.close()
        return Rooms(world, every, counts, problem, copies)
    rooms = opened(world, memory, lambda: Rooms(world, every, counts, memory, copies))
    return rooms if isinstance(rooms, Rooms) else Rooms(world, every, counts, rooms, copies)


def peer_copies(world: World) -> PeerCopies:
    """Return copies by the copy engines of this rank's GPU."""
    from meshrun.runner.comm.peer_arrays import PeerCopies

    return PeerCopies(world.arrays)


def copied_rows(
    box: Region, target: tuple[int, Block], source: tuple[int, Block], itemsize: int
) -> Iterator[Rows]:
    """Yield the copies of rows that copy a box between two blocks, as few as there are.

    target, source: addresses of the rooms, and the blocks in them.
    """
    if box.size == 0:
        return
    # Axes that lie behind each other in both blocks are one: first the bytes of a cell.
    groups = [(itemsize, 1, 1)]
    for axis in reversed(range(len(box.shape))):
        if box.shape[axis] == 1:
            continue
        steps = target[1].strides[axis] * itemsize, source[1].strides[axis] * itemsize
        count, *former = groups[-1]
        if steps == (count * former[0], count * former[1]):
            groups[-1] = count * box.shape[axis], former[0], former[1]
        else:
            groups.append((box.shape[axis], *steps))
    (width, *_), *rest = groups
    rows, *pitches = rest[0] if rest else (1, width, width)
    starts = [address + block.element(box.start) * itemsize for address, block in (target, source)]
    for places in product(*(range(count) for count, *_ in rest[1:])):
        moved = [
            start + sum(place * steps[side] for place, (_, *steps) in zip(places, rest[1:], strict=True))
            for side, start in enumerate(starts)
        ]
        yield moved[0], moved[1], (pitches[0], pitches[1]), width, rows


def _padded(lengths: Shape) -> Shape:
    """Return the lengths in memory of a block: the rows of a matrix begin at whole lines."""
    if len(lengths) != 2:
        return lengths
    return lengths[0], -(-lengths[1] // LINE_CELLS) * LINE_CELLS


def _parts_of(change: BoxChange, rank: int) -> list[tuple[slice, ...]]:
    """Return the slices of the parts in a rank's box before, up to the axis that is cut."""
    box, along = change.before[rank], change.along
    parts = (change.part(rank, number).slices_in(box) for number in range(change.parts))
    return [(*(slice(None),) * along, part[along]) for part in parts]


def _message(buffer: Array, place: int, shape: Shape, dtype: np.dtype[Any]) -> tuple[Array, int]:
    """Return an array in a buffer that begins at byte `place`, and where the next one may begin."""
    stop = place + math.prod(shape) * dtype.itemsize
    return buffer[place:stop].view(dtype).reshape(shape), -(-stop // ALIGNMENT) * ALIGNMENT
