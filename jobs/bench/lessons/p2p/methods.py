"""Methods that move bytes from one rank's memory into another's, with one interface."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from meshrun import World
from meshrun.jobs import kernels
from meshrun.jobs.bench.copy.engines import ENGINES, Copies, Queue
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.measure.gate import Gate
from meshrun.runner.comm.peer_memory import PeerMemory, Unreachable, allocate_exportable
from meshrun.runner.device.raw.memory import Memory

HOST = "through host"  # label of that method
GUARD = 64  # bytes after the received data that must not change
THREADS, DEPTH, BLOCKS_PER_PROCESSOR = 256, 4, 8  # DEPTH: of kernels/peer.cu


class Method(Protocol):
    @property
    def label(self) -> str:
        """For tables."""

    @property
    def pipelined(self) -> bool:
        """Whether a transfer can be issued before the previous one is done."""

    def missing(self, source: int, target: int) -> str | None:
        """Return why it cannot move bytes from rank `source` to `target`, or None; the same on every rank."""

    def move(self, source: int, target: int, nbytes: int, count: int) -> None:
        """Do this rank's part of `count` consecutive transfers; returns when they are done.

        From `source`'s outgoing to `target`'s incoming memory. Every rank calls it; the others do nothing.
        """


@dataclass(frozen=True)
class RankMemory:
    """A rank's device memory, or another's as this rank's GPU reaches it; incoming is GUARD bytes longer."""

    outgoing: Memory
    incoming: Memory


@dataclass(frozen=True)
class RankArrays:
    """A rank's memory as flat uint8 arrays; incoming is GUARD bytes longer."""

    outgoing: Any
    incoming: Any


@dataclass(frozen=True)
class Messages:
    """Messages between ranks: NCCL's between GPUs, else MPI's."""

    world: World
    ends: RankArrays
    pipelined: bool = True

    @property
    def label(self) -> str:
        return self.world.arrays.label.replace(",", " ").split()[0]

    def missing(self, source: int, target: int) -> str | None:
        return None

    def move(self, source: int, target: int, nbytes: int, count: int) -> None:
        sends, receives = [], []
        if self.world.rank == source:
            sends = [(target, self.ends.outgoing[:nbytes])]
        if self.world.rank == target:
            receives = [(source, self.ends.incoming[:nbytes])]
        if sends or receives:
            for _ in range(count):
                self.world.arrays.exchange(sends, receives).wait()
            self.world.backend.synchronize()


class ThroughHost:
    """Device to pinned host memory, MPI, pinned host memory to device; no overlap of the steps."""

    label, pipelined = HOST, False

    def __init__(self, context: Context, own: RankMemory, pinned: Memory) -> None:
        self.world, self.box, self.own, self.pinned = context.world, context.required_box, own, pinned
        self.host = self.box.host_array(pinned)
        self.stream = self.box.stream(context.gpu)

    def missing(self, source: int, target: int) -> str | None:
        return None

    def move(self, source: int, target: int, nbytes: int, count: int) -> None:
        for _ in range(count):
            if self.world.rank == source:
                self._copy(self.pinned, self.own.outgoing, nbytes)
                self.world.control.exchange([(target, self.host[:nbytes])], []).wait()
            if self.world.rank == target:
                self.world.control.exchange([], [(source, self.host[:nbytes])]).wait()
                self._copy(self.own.incoming, self.pinned, nbytes)

    def _copy(self, target: Memory, source: Memory, nbytes: int) -> None:
        self.box.copy(target, source, nbytes, self.stream)
        self.box.synchronize(self.stream)


@dataclass(frozen=True)
class Reach:
    """own: this rank's memory. peers: that of other ranks which this rank's GPU reaches, by rank.

    reasons: of every rank, why it does not reach a peer, by the peer's rank.
    """

    own: RankMemory
    peers: dict[int, RankMemory]
    reasons: Sequence[dict[int, str]]


class DirectCopy:
    """Copies between GPUs without the host; `queue` issues them to a copy engine or to a kernel.

    pulls: the receiving GPU loads the data; else the sending one stores it.
    """

    pipelined = True

    def __init__(
        self, context: Context, reach: Reach, gate: Gate, label: str, queue: Queue, *, pulls: bool
    ) -> None:
        self.world, self.box = context.world, context.required_box
        self.gpu = self.box.gpus[context.gpu]
        self.reach, self.label, self.queue, self.pulls = reach, label, queue, pulls
        self.gate, self.stream = gate, self.box.stream(context.gpu)

    def missing(self, source: int, target: int) -> str | None:
        actor, peer = (target, source) if self.pulls else (source, target)
        return self.reach.reasons[actor].get(peer)

    def move(self, source: int, target: int, nbytes: int, count: int) -> None:
        if self._acts(source, target):
            self._issue(source, target, nbytes, count)
            self.finish()

    @contextmanager
    def queued(self, source: int, target: int, nbytes: int, count: int) -> Iterator[None]:
        """Queue the transfers of `move`; they start at the end of this context, and `finish` waits for them.

        Call `move` once before: no kernel may be loaded behind the closed gate.
        """
        if not self._acts(source, target):
            yield
            return
        with self.gate.closed():
            self.gate.hold(self.gpu.index, self.stream)
            self._issue(source, target, nbytes, count)
            yield

    def finish(self) -> None:
        self.box.synchronize(self.stream)
        self.gate.check()

    def _acts(self, source: int, target: int) -> bool:
        return self.world.rank == (target if self.pulls else source)

    def _issue(self, source: int, target: int, nbytes: int, count: int) -> None:
        if self.pulls:
            here, there = self.reach.peers[source].outgoing, self.reach.own.incoming
        else:
            here, there = self.reach.own.outgoing, self.reach.peers[target].incoming
        self.queue(Copies(self.box, self.gpu, there, here, nbytes, count, self.stream))


def peer_copies(asked: Copies) -> None:
    """Queue copies by a kernel of the GPU; both memories begin at a multiple of 16 bytes.

    Unlike the kernels of `bench copy`, which move multiples of 16 bytes, it moves any number of bytes.
    """
    blocks = math.ceil(asked.nbytes / (16 * THREADS * DEPTH))
    grid = min(blocks, asked.gpu.processors * BLOCKS_PER_PROCESSOR)
    numbers = (asked.source.address, asked.target.address, asked.nbytes)
    arguments = tuple(np.uint64(value) for value in numbers)
    with asked.box.on(asked.gpu.index):
        kernel = kernels.load("peer.cu", "peer_copy")
        for _ in range(asked.copies):  # nothing else between two launches
            kernel((grid,), (THREADS,), arguments, stream=asked.stream)


@contextmanager
def opened(context: Context) -> Iterator[tuple[Sequence[Method], RankArrays]]:
    """Open every available method, and this rank's memory; collective.

    Raises UserError, on every rank, if there is not enough memory.
    """
    world, box, nbytes = context.world, context.box, context.maxbytes + GUARD
    if box is None:
        needed = len(world.beside) * (context.maxbytes + nbytes)
        world.collective_call(lambda: context.require_host_memory(needed))
        ends = RankArrays(_touched(context.maxbytes), _touched(nbytes))
        yield (Messages(world, ends),), ends
        return

    def allocated() -> tuple[RankMemory, Memory, Gate]:
        out, into = (allocate_exportable(box, nbytes, context.gpu) for _ in range(2))
        gate, stream = Gate(box, context.gpu), box.stream(context.gpu)
        gate.hold(context.gpu, stream)  # while the gate is open: load its kernel
        box.synchronize(stream)
        return RankMemory(out, into), box.allocate("pinned", context.maxbytes, context.gpu), gate

    own, pinned, gate = world.collective_call(allocated)
    ends = RankArrays(box.array(own.outgoing), box.array(own.incoming))
    shared = PeerMemory(world.control, box)
    reach = _reach(context, shared, own)
    yield (
        (
            DirectCopy(context, reach, gate, "copy engine", ENGINES["ce"].queue, pulls=False),
            DirectCopy(context, reach, gate, "kernel stores", peer_copies, pulls=False),
            DirectCopy(context, reach, gate, "kernel loads", peer_copies, pulls=True),
            Messages(world, ends),
            ThroughHost(context, own, pinned),
        ),
        ends,
    )
    gate.release()
    shared.close()
    box.release(own.outgoing)
    box.release(own.incoming)


def _reach(context: Context, shared: PeerMemory, own: RankMemory) -> Reach:
    """Map the memory of the peers that this rank's GPU reaches, with reasons for the others; collective."""
    world, box = context.world, context.required_box
    handles = shared.publish({(world.rank, name): memory for name, memory in vars(own).items()})
    indices = {gpu.uuid: gpu.index for gpu in box.gpus}
    peers: dict[int, RankMemory] = {}
    reasons: dict[int, str] = {}
    for peer, there in enumerate(world.ranks):
        problem = "; ".join(dict.fromkeys(handles[peer, name].problem for name in vars(own)))
        index = indices.get(there.device.uuid)
        if peer == world.rank:
            continue
        if there.host_id != world.here.host_id:
            reasons[peer] = "on another host, whose memory cannot be accessed directly"
        elif problem:
            reasons[peer] = f"rank {peer}'s memory cannot be exported: {problem}"
        elif index is None:
            reasons[peer] = f"rank {world.rank}'s process does not see rank {peer}'s GPU"
        elif not box.connect(context.gpu, index):
            reasons[peer] = f"rank {world.rank}'s GPU has no peer access to rank {peer}'s"
        else:
            try:
                peers[peer] = RankMemory(
                    **{name: shared.open(handles[peer, name], context.gpu, index) for name in vars(own)}
                )
            except Unreachable as reason:
                reasons[peer] = f"rank {world.rank} cannot open rank {peer}'s memory: {reason}"
    return Reach(own, peers, world.control.allgather(reasons))


def _touched(nbytes: int) -> np.ndarray[Any, Any]:
    array = np.empty(nbytes, np.uint8)
    array[::4096] = 0  # the system backs a page when it is first written
    return array
