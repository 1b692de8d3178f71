"""Workloads of several ranks: flows and copies from rank to rank, and ring all-reduces."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshrun import World
from meshrun.jobs.measure.patterns import Contributed, Copied, Reduced, Segment
from meshrun.jobs.measure.timers import collective_timer, nothing
from meshrun.jobs.validate.probe.api import Flows
from meshrun.jobs.validate.probe.buffers import IpcBuffers, ProbeBuffers
from meshrun.jobs.validate.probe.sampling import BYTES, FLOAT, IDLE, Workload, checked_workload
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.collectives.api import Call, Collectives, Pointer

FlowPairs = Sequence[tuple[int, int]]
Ranks = tuple[int, ...]
Groups = tuple[Ranks, ...]
Partners = tuple[int | None, int | None]  # the ranks that a rank sends to and receives from
NO_PARTNERS: Partners = (None, None)
SIGNAL = 16  # bytes of the untimed message before the timed one; not part of its buffer
OPEN_GROUPS = 4  # groups of a rank whose communicators stay open; each uses GPU memory


def flow(buffers: ProbeBuffers, group: Collectives, flows: FlowPairs, nbytes: int) -> Workload:
    """Return this rank's workload in flows on the group of all ranks; IDLE if it has none. Collective."""
    buffers.reserve(nbytes + SIGNAL, nbytes + SIGNAL)
    partners = partners_of(group.rank, flows)
    if partners == NO_PARTNERS:
        return IDLE
    run = collective_timer(
        group,
        message(buffers, group, partners, nbytes, SIGNAL),
        message(buffers, group, partners, 0, nbytes),
    )
    return transfer("flows", buffers, partners, buffers.into.array[:nbytes], run)


def copy(
    buffers: ProbeBuffers, peer_memory: IpcBuffers, group: Collectives, flows: FlowPairs, nbytes: int
) -> Workload:
    """Return this rank's workload in copies into its target's memory by its copy engine. Collective.

    IDLE if it has none.
    """
    buffers.reserve(nbytes + SIGNAL, nbytes + SIGNAL)
    peer_memory.reserve(nbytes)
    partners = target, _ = partners_of(group.rank, flows)
    if partners == NO_PARTNERS:
        return IDLE
    signal = message(buffers, group, partners, nbytes, SIGNAL)
    queue: Callable[[], object] = nothing
    if target is not None:
        there, stream = peer_memory.peers[target], buffers.world.backend.stream
        queue = partial(peer_memory.box.copy, there, buffers.device(buffers.out), nbytes, stream)
    # The second signal tells the receiver that the copies have arrived.
    run = collective_timer(group, signal, queue, signal)
    return transfer("copies", buffers, partners, peer_memory.array[:nbytes], run)


def partners_of(rank: int, flows: FlowPairs) -> Partners:
    target = next((b for a, b in flows if a == rank), None)
    return target, next((a for a, b in flows if b == rank), None)


def senders_receivers(flows: Flows) -> tuple[list[int], list[int]]:
    """Return senders and receivers. Raises ValueError if a rank has two of either, or sends to itself."""
    senders, receivers = np.asarray(flows, np.int64).reshape(-1, 2).T.tolist()
    twice = any(len({*ranks}) < len(ranks) for ranks in (senders, receivers))
    if twice or any(a == b for a, b in zip(senders, receivers, strict=True)):
        raise ValueError("each rank sends to at most one other rank and receives from at most one")
    return senders, receivers


def message(
    buffers: ProbeBuffers, group: Collectives, partners: Partners, offset: int, count: int
) -> Callable[[], object]:
    places = Pointer(buffers.out, offset), Pointer(buffers.into, offset)
    return group.message(
        Call("sendrecv", *places, count, BYTES), send_to=partners[0], receive_from=partners[1]
    )


def transfer(
    what: str, buffers: ProbeBuffers, partners: Partners, into: Any, run: Callable[[int], float]
) -> Workload:
    """Return the workload of `run`, which moves this rank's buffer into its target's `into`."""
    world, rank, nbytes = buffers.world, buffers.world.rank, len(into)
    target, source = partners

    def segment(seed: int, sender: int) -> Segment:
        return Segment(0, nbytes, Copied(seed * world.size + sender, 0), sender)

    given = None if target is None else lambda seed: segment(seed, rank)
    expected = None if source is None else lambda seed: segment(seed, source)
    return checked_workload(world, what, BYTES, run, buffers.out.array, given, into, expected)


def ring(buffers: ProbeBuffers, group: Collectives | None, number: int, nbytes: int) -> Workload:
    """Return this rank's workload in a float32 all_reduce of group `number`; IDLE without one. Collective."""
    world = buffers.world
    buffers.reserve(nbytes + SIGNAL, nbytes + SIGNAL)
    if group is None:
        return IDLE
    ranks, rank, count = group.size, group.rank, nbytes // FLOAT.itemsize
    end = count * FLOAT.itemsize

    def reduce(offset: int, count: int) -> Callable[[], object]:
        places = Pointer(buffers.out, offset), Pointer(buffers.into, offset)
        return group.bind(Call("all_reduce", *places, count, FLOAT))

    def own(seed: int) -> Segment:
        return Segment(0, count, Contributed(seed * world.size + number, 0, "sum", ranks, rank))

    def total(seed: int) -> Segment:
        return Segment(0, count, Reduced(seed * world.size + number, 0, "sum", ranks))

    run = collective_timer(group, reduce(end, 1), reduce(0, count))
    out, into = buffers.out.array, buffers.into.array[:end]
    return checked_workload(world, "rings", FLOAT, run, out, own, into, total)


class RingCommunicators:
    """Communicators of groups of ranks, opened on first use and kept for the next.

    A rank keeps those of the OPEN_GROUPS groups that it was in last; all ranks in rank order are `everyone`,
    which is open and is not closed. Every rank knows which groups of the world are open, so that their
    members close one in the same order without a message.
    """

    def __init__(self, world: World, everyone: Collectives) -> None:
        self.world, self.everyone = world, everyone
        self._used: OrderedDict[Ranks, None] = OrderedDict()  # least recently used first, same on all ranks
        self._mine: dict[Ranks, tuple[Control, Collectives]] = {}

    @property
    def groups(self) -> list[Collectives]:
        """This rank's groups, most recently used first."""
        return [self._mine[ranks][1] for ranks in reversed(self._used) if ranks in self._mine]

    def __contains__(self, groups: Groups) -> bool:
        """Return whether the communicators of these groups are open."""
        return not self._missing(groups)

    def of(self, groups: Groups) -> Collectives | None:
        """Return this rank's group, with ranks in the order given, or None. Collective.

        groups: disjoint.
        """
        if missing := self._missing(groups):
            # Close first: there may be too little memory for both.
            self._make_room(missing)
            self._open(missing)
        for ranks in groups:
            if ranks in self._used:
                self._used.move_to_end(ranks)
        number = group_of(groups, self.world.rank)
        if number is None:
            return None
        return self._mine[groups[number]][1] if groups[number] in self._mine else self.everyone

    def close(self) -> None:
        """Close all communicators that were opened here. Collective."""
        for ranks in list(self._used):
            self._close(ranks)

    def _missing(self, groups: Groups) -> Groups:
        everyone = tuple(range(self.world.size))
        return tuple(ranks for ranks in groups if ranks not in self._used and ranks != everyone)

    def _make_room(self, missing: Groups) -> None:
        kept = Counter(rank for ranks in self._used for rank in ranks)
        for rank in (rank for ranks in missing for rank in ranks):
            while kept[rank] >= OPEN_GROUPS:
                oldest = next(ranks for ranks in self._used if rank in ranks)
                self._close(oldest)
                kept.subtract(oldest)

    def _open(self, missing: Groups) -> None:
        mine = group_of(missing, self.world.rank)
        place = 0 if mine is None else missing[mine].index(self.world.rank)
        control = self.world.control.split(len(missing) if mine is None else mine, place)
        if mine is None:
            control.close()
        else:
            self._mine[missing[mine]] = control, self.world.collectives(control)
        self._used.update(dict.fromkeys(missing))

    def _close(self, ranks: Ranks) -> None:
        del self._used[ranks]
        if ranks in self._mine:
            control, group = self._mine.pop(ranks)
            group.close()
            control.close()


def group_of(groups: Groups, rank: int) -> int | None:
    """Return the number of a rank's group, or None."""
    return next((number for number, group in enumerate(groups) if rank in group), None)
