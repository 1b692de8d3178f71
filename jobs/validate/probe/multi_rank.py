"""What ranks do together: flows and copies from rank to rank, and ring all-reduces of several."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jobs.measure import check
from jobs.measure.patterns import Contributed, Copied, Reduced, Segment
from jobs.validate.probe.api import Wrong
from jobs.validate.probe.buffers import Buffers
from jobs.validate.probe.peer_buffers import PeerBuffers
from jobs.validate.probe.sampling import BYTES, FLOAT, IDLE, Workload, compare, repeats_for
from meshrun import World
from runner.comm.api import Control
from runner.comm.collectives.api import Call, Collectives, Pointer

Flows = Sequence[tuple[int, int]]
Groups = tuple[tuple[int, ...], ...]
Endpoints = tuple[int | None, int | None]  # the ranks that a rank sends to and receives from
NOBODY: Endpoints = (None, None)
SIGNAL = 16  # bytes of a message that goes before the timed one, in memory of its own
OPEN_SETS = 4  # of groups, whose communicators stay open: each takes memory of the GPU


def flow(buffers: Buffers, group: Collectives, flows: Flows, nbytes: int) -> Workload:
    """This rank's workload in flows on the group of all ranks; IDLE where it is in none. Collective."""
    buffers.reserve(nbytes + SIGNAL, nbytes + SIGNAL)
    endpoints = endpoints_of(group.rank, flows)
    if endpoints == NOBODY:
        return IDLE
    run = timed_calls(
        group,
        message(buffers, group, endpoints, nbytes, SIGNAL),
        message(buffers, group, endpoints, 0, nbytes),
    )
    return transfer("flows", buffers, endpoints, buffers.into.array[:nbytes], run)


def copy(
    buffers: Buffers, peer_memory: PeerBuffers, group: Collectives, flows: Flows, nbytes: int
) -> Workload:
    """This rank's workload in copies: it writes into its target's memory by its own copy engine.

    IDLE where it is in none. Collective.
    """
    buffers.reserve(nbytes + SIGNAL, nbytes + SIGNAL)
    peer_memory.reserve(nbytes)
    endpoints = target, _ = endpoints_of(group.rank, flows)
    if endpoints == NOBODY:
        return IDLE
    signal = message(buffers, group, endpoints, nbytes, SIGNAL)
    queue: Callable[[], object] = nothing
    if target is not None:
        there, stream = peer_memory.peers[target], buffers.world.backend.stream
        queue = partial(peer_memory.box.copy, there, buffers.device(buffers.out), nbytes, stream)
    # The second signal says that the copies have arrived.
    run = timed_calls(group, signal, queue, signal)
    return transfer("copies", buffers, endpoints, peer_memory.array[:nbytes], run)


def nothing() -> None:
    pass


def endpoints_of(rank: int, flows: Flows) -> Endpoints:
    target = next((b for a, b in flows if a == rank), None)
    return target, next((a for a, b in flows if b == rank), None)


def senders_receivers(flows: Flows) -> tuple[list[int], list[int]]:
    """Senders and receivers. Raises ValueError where a rank has two of either, or is its own partner."""
    senders, receivers = ([int(flow[end]) for flow in flows] for end in (0, 1))
    twice = any(len({*ranks}) < len(ranks) for ranks in (senders, receivers))
    if twice or any(a == b for a, b in zip(senders, receivers, strict=True)):
        raise ValueError("each rank sends to one other at most, and receives from one")
    return senders, receivers


def message(
    buffers: Buffers, group: Collectives, endpoints: Endpoints, offset: int, count: int
) -> Callable[[], object]:
    places = Pointer(buffers.out, offset), Pointer(buffers.into, offset)
    return group.message(
        Call("sendrecv", *places, count, BYTES), send_to=endpoints[0], receive_from=endpoints[1]
    )


def transfer(
    what: str, buffers: Buffers, endpoints: Endpoints, into: Any, run: Callable[[int], float]
) -> Workload:
    """The workload of `run`, which moves this rank's buffer into its target's `into`."""
    world, rank, nbytes = buffers.world, buffers.world.rank, len(into)
    target, source = endpoints

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
        return compare(what, rank, nbytes, into, BYTES, segment(seed, source))

    return Workload(prepare, run, checked, repeats_for(nbytes))


def ring(buffers: Buffers, group: Collectives | None, number: int, nbytes: int) -> Workload:
    """This rank's workload in a float32 all_reduce of group `number`; IDLE without a group. Collective."""
    world = buffers.world
    buffers.reserve(nbytes + SIGNAL, nbytes + SIGNAL)
    if group is None:
        return IDLE
    ranks, rank, count = group.size, group.rank, nbytes // FLOAT.itemsize
    end = count * FLOAT.itemsize

    def reduce(offset: int, count: int) -> Callable[[], object]:
        places = Pointer(buffers.out, offset), Pointer(buffers.into, offset)
        return group.bind(Call("all_reduce", *places, count, FLOAT))

    def prepare(seed: int) -> None:
        own = Contributed(seed * world.size + number, 0, "sum", ranks, rank)
        check.fill(buffers.out.array, FLOAT, [Segment(0, count, own)])
        check.poison(buffers.into.array[:end])
        world.backend.synchronize()

    def checked(seed: int) -> Wrong | None:
        total = Segment(0, count, Reduced(seed * world.size + number, 0, "sum", ranks))
        return compare("rings", world.rank, nbytes, buffers.into.array, FLOAT, total)

    return Workload(
        prepare, timed_calls(group, reduce(end, 1), reduce(0, count)), checked, repeats_for(nbytes)
    )


def timed_calls(
    group: Collectives,
    signal: Callable[[], object],
    timed: Callable[[], object],
    after: Callable[[], object] | None = None,
) -> Callable[[int], float]:
    """A function of a count that issues `signal`, `timed` so many times, and `after`.

    It returns the seconds of one `timed` on this rank's device. After the signal the partners are in step,
    and on a GPU the timed calls are queued already: neither a late departure from the barrier nor the launch
    of a kernel is timed.
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


class RingCommunicators:
    """Communicators of groups, opened on first use; the sets of groups used last stay open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: OrderedDict[Groups, tuple[Control, Collectives | None]] = OrderedDict()

    @property
    def groups(self) -> list[Collectives]:
        """This rank's groups, the one used last first."""
        return [group for _, group in reversed(self._open.values()) if group is not None]

    def __contains__(self, groups: Groups) -> bool:
        """Whether the communicators of these groups are open."""
        return groups in self._open

    def of(self, groups: Groups) -> Collectives | None:
        """This rank's group, its ranks in the order given; None where it is in none. Collective."""
        if groups not in self._open:
            # Close before opening another: there may be no memory for both.
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
        """Collective."""
        while self._open:
            self._close(*self._open.popitem(last=False)[1])

    def _close(self, control: Control, group: Collectives | None) -> None:
        if group is not None:
            group.close()
        control.close()


def group_of(groups: Groups, rank: int) -> int | None:
    """The number of the group that a rank is in."""
    return next((number for number, group in enumerate(groups) if rank in group), None)
