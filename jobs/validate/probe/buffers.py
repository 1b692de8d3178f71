"""Buffers of a rank's measurements, also for writes of other GPUs, and the plan that fits the memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from meshrun import World
from meshrun.jobs.validate.plan import CPU_BYTES, Plan, at_most, for_cpus
from meshrun.runner.comm.collectives.api import Buffer, Collectives
from meshrun.runner.comm.peer_memory import PAGE, PeerMemory, Unreachable, allocate_exportable
from meshrun.runner.device.raw.memory import Memory
from meshrun.runner.errors import UserError
from meshrun.runner.system.host_memory import host_processors

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box

MIB, GIB = 1 << 20, 1 << 30
RESERVE = 4 * GIB  # of a GPU's memory, for communicators, kernels and checks
SMALLEST = 64 * MIB  # free memory below which nothing is measured
SHARES = 4  # of a host's free memory: two buffers, one for checks, one left free


class ProbeBuffers:
    """out: source; into: destination; pinned: host memory for copies. All grow on demand.

    group: collectives whose library allocates `out` and `into`. box: the GPUs of the process; None on a CPU.
    Every rank makes the same calls.
    """

    def __init__(self, world: World, group: Collectives, box: Box | None) -> None:
        self.world, self.group, self.box = world, group, box
        self.out: Buffer = group.allocate(0)
        self.into: Buffer = group.allocate(0)
        self._pinned: Memory | None = None
        self._held = [0, 0, 0]  # bytes that every rank has; if memory was short, some have more

    @property
    def pinned(self) -> Memory:
        assert self._pinned is not None, "reserve before use"
        return self._pinned

    def reserve(self, out: int, into: int, pinned: int = 0) -> None:
        """Grow each buffer to at least this many bytes. Collective.

        Raises UserError on every rank if one rank has too little memory.
        """
        most = [max(pair) for pair in zip((out, into, pinned), self._held, strict=True)]
        if most != self._held:
            self.world.collective_call(lambda: self._grow(out, into, pinned))
            self._held = most

    def _grow(self, out: int, into: int, pinned: int) -> None:
        # Replaced buffers are freed only with the group; plans use their largest sizes first.
        more = sum(wanted for wanted, held in ((out, self.out), (into, self.into)) if wanted > held.nbytes)
        free = free_memory(self.world)
        if more > free:
            raise not_enough_memory(self.world, self.world.rank, more, free)
        try:
            if out > self.out.nbytes:
                self.out = self.group.allocate(out)
            if into > self.into.nbytes:
                self.into = self.group.allocate(into)
        except MemoryError as reason:
            raise not_enough_memory(self.world, self.world.rank, more, free) from reason
        have = self._pinned.nbytes if self._pinned else 0
        if self.box is not None and pinned > have:
            if self._pinned is not None:
                self.box.release(self._pinned)
                self._pinned = None
            self._pinned = self.box.allocate("pinned", pinned, self.world.here.device.index)

    def device(self, buffer: Buffer) -> Memory:
        """Return a buffer of this rank's GPU as Memory."""
        return Memory(buffer.address, buffer.nbytes, "device", self.world.here.device.index)


def fit_to_devices(world: World, plan: Plan) -> Plan:
    """Reduce the plan's sizes to the memory of every rank; on CPUs, also its samples.

    Collective. Raises UserError on every rank if memory is too small for any size.
    """
    cuda = any(rank.device.kind == "cuda" for rank in world.ranks)
    everyone = world.control.allgather(free_memory(world))
    free = min(everyone)
    room = (free - min(RESERVE, free // 2)) // 2 if cuda else free // SHARES
    room = room // MIB * MIB
    if free < SMALLEST:
        failure = not_enough_memory(world, everyone.index(free), SMALLEST, free)
        failure.everywhere = True
        raise failure
    # Both operands of a product are in one buffer.
    most = dict.fromkeys(CPU_BYTES, room) | {"product_bytes": room // 2, "tensor_bytes": room // 2}
    return at_most(plan if cuda else for_cpus(plan, ranks_per_core(world)), most)


def ranks_per_core(world: World) -> float:
    """Return how many ranks share a core, at least 1, on the host with most of them. Collective."""
    allowed = world.control.allgather((os.sched_getaffinity(0), host_processors()))
    hosts: dict[str, list[tuple[set[int], int]]] = {}
    for rank, own in zip(world.ranks, allowed, strict=True):
        hosts.setdefault(rank.host_id, []).append(own)
    # Ranks that a launcher has bound to a core each have the cores of all of them.
    cores = {
        host: min(len(set().union(*(own for own, _ in ranks))), *(most for _, most in ranks))
        for host, ranks in hosts.items()
    }
    return max(1.0, *(len(ranks) / cores[host] for host, ranks in hosts.items()))


def free_memory(world: World) -> int:
    """Return the free bytes of its device that this rank may use; ranks on one device share them."""
    here = world.here
    places = [(rank.host_id, rank.device.uuid) for rank in world.ranks]
    return world.backend.free_memory() // places.count((here.host_id, here.device.uuid))


def not_enough_memory(world: World, rank: int, wanted: int, free: int) -> UserError:
    place = world.ranks[rank]
    cuda = place.device.kind == "cuda"
    return UserError(
        f"[{place}] not enough memory to measure",
        got=f"{free:,} bytes free",
        expected=f"{wanted:,}",
        hint="nvidia-smi lists the processes on the GPU" if cuda else "fewer ranks on the host",
    )


class IpcBuffers:
    """A buffer on each rank's GPU, open in the other ranks of its host. All methods are collective.

    peers: buffers of the other ranks of this host, by rank. unreachable: why some rank cannot open another's
    buffer; "" if all can.
    """

    def __init__(self, world: World, box: Box) -> None:
        self.world, self.box = world, box
        self.peers: dict[int, Memory] = {}
        self.unreachable = ""
        self._own: Memory | None = None
        self._opened = PeerMemory(world.control, box)

    @property
    def array(self) -> Any:
        """This rank's own buffer, flat uint8."""
        assert self._own is not None, "reserve before use"
        return self.box.array(self._own)

    def reserve(self, nbytes: int = PAGE) -> None:
        """Grow each buffer to at least `nbytes`. Raises UserError on every rank if one lacks memory."""
        if self._own is None or self._own.nbytes < nbytes:
            self.close()
            self._own = self.world.collective_call(lambda: self._allocated(nbytes))
            self._open()

    def close(self) -> None:
        self.peers.clear()
        if self._own is not None:
            self._opened.close()
            self.box.release(self._own)
            self._own = None

    def _allocated(self, nbytes: int) -> Memory:
        return allocate_exportable(self.box, nbytes, self.world.here.device.index)

    def _open(self) -> None:
        assert self._own is not None
        here, failed = self.world.here, ""
        handles = self._opened.publish({here.number: self._own})
        if handles[here.number].problem:
            failed = f"{here} cannot share its memory: {handles[here.number].problem}"
        for other in self.world.ranks:
            handle = handles[other.number]
            if handle.problem or other.number == here.number or other.host_id != here.host_id:
                continue
            try:
                self.peers[other.number] = self._opened.open(handle, here.device.index)
            except Unreachable as reason:
                failed = failed or f"{here} cannot open the memory of {other}: {reason}"
        self.unreachable = next(filter(None, self.world.control.allgather(failed)), "")
