"""Workloads of several ranks: flows and copies from rank to rank, and ring all-reduces."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jobs.measure.patterns import Contributed, Copied, Reduced, Segment
from jobs.measure.timers import collective_timer, nothing
from jobs.validate.probe.buffers import IpcBuffers, ProbeBuffers
from jobs.validate.probe.sampling import BYTES, FLOAT, IDLE, Workload, checked_workload
from meshrun import World
from runner.comm.api import Control
from runner.comm.collectives.api import Call, Collectives, Pointer

Flows = Sequence[tuple[int, int]]
Groups = tuple[tuple[int, ...], ...]
Partners = tuple[int | None, int | None]  # the ranks that a rank sends to and receives from
NO_PARTNERS: Partners = (None, None)
SIGNAL = 16  # bytes of the untimed message before the timed one; not part of its buffer
OPEN_SETS = 4  # sets of groups whose communicators stay open; each uses GPU memory


def flow(buffers: ProbeBuffers, group: Collectives, flows: Flows, nbytes: int) -> Workload:
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
    buffers: ProbeBuffers, peer_memory: IpcBuffers, group: Collectives, flows: Flows, nbytes: int
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


def partners_of(rank: int, flows: Flows) -> Partners:
    target = next((b for a, b in flows if a == rank), None)
    return target, next((a for a, b in flows if b == rank), None)


def senders_receivers(flows: Flows) -> tuple[list[int], list[int]]:
    """Return senders and receivers. Raises ValueError if a rank has two of either, or sends to itself."""
    senders, receivers = ([int(flow[end]) for flow in flows] for end in (0, 1))
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
    """Communicators of groups, opened on first use; the most recently used sets of groups stay open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: OrderedDict[Groups, tuple[Control, Collectives | None]] = OrderedDict()

    @property
    def groups(self) -> list[Collectives]:
        """This rank's groups, most recently used first."""
        return [group for _, group in reversed(self._open.values()) if group is not None]

    def __contains__(self, groups: Groups) -> bool:
        """Return whether the communicators of these groups are open."""
        return groups in self._open

    def of(self, groups: Groups) -> Collectives | None:
        """Return this rank's group, with ranks in the order given, or None. Collective."""
        if groups not in self._open:
            # Close first: there may be too little memory for both.
            while len(self._open) >= OPEN_SETS:
                self._close(*self._open.popitem(last=False)[1])
            mine = group_of(groups, self.world.rank)
            place = 0 if mine is None else groups[mine].index(self.world.rank)
            control = self.world.control.split(len(groups) if mine is None else mine, place)
            group = None if mine is None else self.world.collectives(control)
            self._open[groups] = control, group
        self._open.move_to_end(groups)
        return self._open[groups][1]

    def close(self) -> None:
        """Close all communicators. Collective."""
        while self._open:
            self._close(*self._open.popitem(last=False)[1])

    def _close(self, control: Control, group: Collectives | None) -> None:
        if group is not None:
            group.close()
        control.close()


def group_of(groups: Groups, rank: int) -> int | None:
    """Return the number of a rank's group, or None."""
    return next((number for number, group in enumerate(groups) if rank in group), None)
