"""Buffers of a rank's measurements, and the plan that fits the memory."""

from __future__ import annotations

from jobs.validate.plan import CPU_BYTES, Plan, at_most, for_cpus
from meshrun import World
from runner.comm.collectives.api import Buffer, Collectives
from runner.device.raw.memory import Box, Memory
from runner.errors import UserError

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
    most = dict.fromkeys(CPU_BYTES, room) | {"product_bytes": room // 2}
    return at_most(plan if cuda else for_cpus(plan), most)


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
