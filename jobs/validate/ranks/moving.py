"""What ranks do together: copies and flows from rank to rank, and rings of several."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jobs.measure import check
from jobs.measure.patterns import Contributed, Copied, Reduced, Segment
from jobs.validate.probe import Wrong
from jobs.validate.ranks.buffers import Buffers
from jobs.validate.ranks.landing import Landings
from jobs.validate.ranks.part import BYTES, FLOAT, IDLE, Part, compared, often
from runner import Call, Collectives, Control, Place, World

Flows = Sequence[tuple[int, int]]
Groups = tuple[tuple[int, ...], ...]
Ends = tuple[int | None, int | None]  # the ranks that one sends to and receives from
NOBODY: Ends = (None, None)
SIGNAL = 16  # bytes of a message that goes before the timed one, in memory of its own
KEPT = 4  # sets of groups whose communicators stay open: each takes memory of the GPU


def flow(buffers: Buffers, group: Collectives, flows: Flows, nbytes: int) -> Part:
    """This rank's part of flows on the group of all ranks; IDLE where it is in none. Collective."""
    buffers.hold(nbytes + SIGNAL, nbytes + SIGNAL)
    ends = ends_of(group.rank, flows)
    if ends == NOBODY:
        return IDLE
    run = clocked(
        group, message(buffers, group, ends, nbytes, SIGNAL), message(buffers, group, ends, 0, nbytes)
    )
    return carried("flows", buffers, ends, buffers.into.array[:nbytes], run)


def copy(buffers: Buffers, landings: Landings, group: Collectives, flows: Flows, nbytes: int) -> Part:
    """This rank's part of copies: it writes into the memory of its target by its own copy engine. IDLE where
    it is in none. Collective.
    """
    buffers.hold(nbytes + SIGNAL, nbytes + SIGNAL)
    landings.hold(nbytes)
    ends = target, _ = ends_of(group.rank, flows)
    if ends == NOBODY:
        return IDLE
    signal = message(buffers, group, ends, nbytes, SIGNAL)
    queue: Callable[[], object] = nothing
    if target is not None:
        there, stream = landings.reached[target], buffers.world.backend.stream
        queue = partial(landings.box.copy, there, buffers.device(buffers.out), nbytes, stream)
    # The second signal says that the copies have arrived.
    run = clocked(group, signal, queue, signal)
    return carried("copies", buffers, ends, landings.array[:nbytes], run)


def nothing() -> None:
    pass


def ends_of(rank: int, flows: Flows) -> Ends:
    target = next((b for a, b in flows if a == rank), None)
    return target, next((a for a, b in flows if b == rank), None)


def senders_receivers(flows: Flows) -> tuple[list[int], list[int]]:
    """Senders and receivers. ValueError where a rank would send to two, or to itself, or receive from two."""
    senders, receivers = ([int(flow[end]) for flow in flows] for end in (0, 1))
    twice = any(len({*ends}) < len(ends) for ends in (senders, receivers))
    if twice or any(a == b for a, b in zip(senders, receivers, strict=True)):
        raise ValueError("each rank sends to one other at most, and receives from one")
    return senders, receivers


def message(
    buffers: Buffers, group: Collectives, ends: Ends, offset: int, count: int
) -> Callable[[], object]:
    places = Place(buffers.out, offset), Place(buffers.into, offset)
    return group.message(Call("sendrecv", *places, count, BYTES), send_to=ends[0], receive_from=ends[1])


def carried(what: str, buffers: Buffers, ends: Ends, into: Any, run: Callable[[int], float]) -> Part:
    """What `run` carries from this rank's buffer to its target's `into`."""
    world, rank, nbytes = buffers.world, buffers.world.rank, len(into)
    target, source = ends

    def segment(seed: int, sender: int) -> Segment:
        return Segment(0, nbytes, Copied(seed * world.size + sender, 0), sender)

    def prepare(seed: int) -> None:
        if target is not None:
            check.fill(buffers.out.array, BYTES, [segment(seed, rank)])
        if source is not None:
            check.poison(into)
        world.backend.synchronize()

    def checked(seed: int) -> Wrong | None:
        if source is None:
            return None
        return compared(what, rank, nbytes, into, BYTES, segment(seed, source))

    return Part(prepare, run, checked, often(nbytes))


def ring(buffers: Buffers, group: Collectives | None, number: int, nbytes: int) -> Part:
    """This rank's part of an all_reduce of float32 in group `number`; IDLE without a group. Collective."""
    world = buffers.world
    buffers.hold(nbytes + SIGNAL, nbytes + SIGNAL)
    if group is None:
        return IDLE
    ranks, rank, count = group.size, group.rank, nbytes // FLOAT.itemsize
    end = count * FLOAT.itemsize

    def reduce(offset: int, count: int) -> Callable[[], object]:
        places = Place(buffers.out, offset), Place(buffers.into, offset)
        return group.bind(Call("all_reduce", *places, count, FLOAT))

    def prepare(seed: int) -> None:
        own = Contributed(seed * world.size + number, 0, "sum", ranks, rank)
        check.fill(buffers.out.array, FLOAT, [Segment(0, count, own)])
        check.poison(buffers.into.array[:end])
        world.backend.synchronize()

    def checked(seed: int) -> Wrong | None:
        total = Segment(0, count, Reduced(seed * world.size + number, 0, "sum", ranks))
        return compared("rings", world.rank, nbytes, buffers.into.array, FLOAT, total)

    return Part(prepare, clocked(group, reduce(end, 1), reduce(0, count)), checked, often(nbytes))


def clocked(
    group: Collectives,
    signal: Callable[[], object],
    timed: Callable[[], object],
    after: Callable[[], object] | None = None,
) -> Callable[[int], float]:
    """What makes the first call, so many of the second, and the last: seconds of a second one on this rank's
    device.

    After the first, the partners are in step, and on a GPU the second is in the queue already: neither who
    left the barrier late nor what it takes to launch a kernel is timed.
    """
    begin, end = group.marks(2)
    packed: dict[int, Sequence[Callable[[], object]]] = {}

    def run(count: int) -> float:
        if count not in packed:
            calls = [signal, begin.record, *[timed] * count, end.record]
            packed[count] = group.packed(calls if after is None else [*calls, after])
        group.issue(packed[count])
        group.wait()
        return group.elapsed(begin, end) / count

    return run


class Rings:
    """Communicators of groups, opened when first asked for; the last few sets of groups stay open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: OrderedDict[Groups, tuple[Control, Collectives | None]] = OrderedDict()

    @property
    def groups(self) -> list[Collectives]:
        """This rank's, the last one used first."""
        return [group for _, group in reversed(self._open.values()) if group is not None]

    def __contains__(self, groups: Groups) -> bool:
        """Whether these are open."""
        return groups in self._open

    def of(self, groups: Groups) -> Collectives | None:
        """This rank's group, its ranks in the order given; None where it is in none. Collective."""
        if groups not in self._open:
            # Before another is opened: there may be no memory for both.
            while len(self._open) >= KEPT:
                self._close(*self._open.popitem(last=False)[1])
            mine = number_of(groups, self.world.rank)
            place = 0 if mine is None else groups[mine].index(self.world.rank)
            control = self.world.control.split(len(groups) if mine is None else mine, place)
            group = None if mine is None else self.world.collectives(control)
            self._open[groups] = control, group
        self._open.move_to_end(groups)
        return self._open[groups][1]

    def close(self) -> None:
        """Collective."""
        while self._open:
            self._close(*self._open.popitem(last=False)[1])

    def _close(self, control: Control, group: Collectives | None) -> None:
        if group is not None:
            group.close()
        control.close()


def number_of(groups: Groups, rank: int) -> int | None:
    """The group that a rank is in."""
    return next((number for number, group in enumerate(groups) if rank in group), None)
