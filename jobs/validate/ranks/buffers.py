"""The memory that a rank measures with, and the sizes that it has room for."""

from __future__ import annotations

import dataclasses
import math

import runner
from jobs.validate.plan import Plan
from runner import Buffer, Collectives, World

MIB, GIB = 1 << 20, 1 << 30
RESERVE = 4 * GIB  # of a GPU: what communicators, kernels and checks need
SMALLEST = 64 * MIB  # less than this is no room
SHARES = 4  # of a host's memory that is free, for two buffers, what is checked, and one that stays free
# A CPU's sizes: beyond most caches, and a few milliseconds long.
LARGEST = {
    "memory_bytes": 32 * MIB, "product_bytes": 4 * MIB, "copy_bytes": 32 * MIB,
    "pair_bytes": 4 * MIB, "nic_bytes": MIB, "ring_bytes": 4 * MIB,
}  # fmt: skip
# Of its siblings' rate, what a CPU may have without being at fault: ranks share cores, caches and memory with
# each other and with whatever else runs.
USUAL = 0.75
LONGER = 4  # a sample there is long, so fewer have to be enough
PATIENT = 2  # for the same reason: of the times that noise may make it longer
PASSING = 20.0  # seconds: others' work on a core comes and goes, and is no fault


class Buffers:
    """out: what is sent, or read; into: where results arrive; pinned: of the host, for copies. All grow.

    group: whose library allocates the first two, as it likes memory best. box: None on a CPU. Every rank
    makes the same calls.
    """

    def __init__(self, world: World, group: Collectives, box: runner.Box | None) -> None:
        self.world, self.group, self.box = world, group, box
        self.out: Buffer = group.allocate(0)
        self.into: Buffer = group.allocate(0)
        self._pinned: runner.Memory | None = None
        self._held = [0, 0, 0]  # bytes, on all ranks: where memory is short, some have more

    @property
    def pinned(self) -> runner.Memory:
        assert self._pinned is not None, "held before it is used"
        return self._pinned

    def hold(self, out: int, into: int, pinned: int = 0) -> None:
        """At least that many bytes in each. UserError, on every rank, where one has too little memory."""
        most = [max(pair) for pair in zip((out, into, pinned), self._held, strict=True)]
        if most != self._held:
            self.world.collective_call(lambda: self._grow(out, into, pinned))
            self._held = most

    def _grow(self, out: int, into: int, pinned: int) -> None:
        # What is outgrown is only freed with the group, and plans ask for their largest sizes first.
        more = sum(asked for asked, held in ((out, self.out), (into, self.into)) if asked > held.nbytes)
        free = free_memory(self.world)
        if more > free:
            raise too_little(self.world, self.world.rank, more, free)
        try:
            if out > self.out.nbytes:
                self.out = self.group.allocate(out)
            if into > self.into.nbytes:
                self.into = self.group.allocate(into)
        except MemoryError as reason:
            raise too_little(self.world, self.world.rank, more, free) from reason
        have = self._pinned.nbytes if self._pinned else 0
        if self.box is not None and pinned > have:
            if self._pinned is not None:
                self.box.release(self._pinned)
                self._pinned = None
            self._pinned = self.box.allocate("pinned", pinned, self.world.here.device.index)

    def device(self, buffer: Buffer) -> runner.Memory:
        """A buffer of this rank's GPU, for copies."""
        return runner.Memory(buffer.address, buffer.nbytes, "device", self.world.here.device.index)


def suited(world: World, plan: Plan) -> Plan:
    """The plan with sizes that every rank has memory and, on CPUs, time for, and as strict as they allow;
    collective.

    Raises UserError, on every rank, where there is not even room for small ones.
    """
    cuda = any(rank.device.kind == "cuda" for rank in world.ranks)
    everyone = world.control.allgather(free_memory(world))
    free = min(everyone)
    room = (free - min(RESERVE, free // 2)) // 2 if cuda else free // SHARES
    room = room // MIB * MIB
    if free < SMALLEST:
        failure = too_little(world, everyone.index(free), SMALLEST, free)
        failure.everywhere = True
        raise failure
    # Of a product, two operands are in one buffer.
    most = dict.fromkeys(LARGEST, room) | {"product_bytes": room // 2}
    if not cuda:
        most = {name: min(size, LARGEST[name]) for name, size in most.items()}
        plan = dataclasses.replace(
            plan,
            tolerance=-math.log(USUAL),
            critical=USUAL,
            enough=max(plan.enough // LONGER, plan.samples),
            effort=max(plan.effort // PATIENT, 1),
            span=PASSING,
        )
    return dataclasses.replace(plan, **{name: min(getattr(plan, name), size) for name, size in most.items()})


def free_memory(world: World) -> int:
    """Bytes of its device that this rank may have: a host's memory is for all of its ranks."""
    here = world.here
    places = [(rank.host_id, rank.device.uuid) for rank in world.ranks]
    return world.backend.free_memory() // places.count((here.host_id, here.device.uuid))


def too_little(world: World, rank: int, asked: int, free: int) -> runner.UserError:
    place = world.ranks[rank]
    cuda = place.device.kind == "cuda"
    return runner.UserError(
        f"[{place}] there is not enough memory to measure with",
        got=f"{free:,} bytes free",
        expected=f"{asked:,}",
        hint="nvidia-smi names who uses the GPU" if cuda else "fewer ranks on the host",
    )
