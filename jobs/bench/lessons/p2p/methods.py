"""The ways that bytes take from one rank's memory into another's, behind one call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from jobs import kernels
from jobs.bench.lessons.p2p.peer_memory import Links, Peer, attached
from jobs.bench.lessons.protocol import Stage
from jobs.bench.lessons.timers import refuse_beyond
from jobs.measure.gate import Gate
from runner import Box, Gpu, Memory, World

HOST = "through host"  # the label of that way
GUARD = 64  # bytes behind what arrives, which nothing may touch
# Memory that is exported is allocated in whole pages of the GPU's, so that a peer sees nothing else with it.
PAGE = 2 << 20
THREADS, DEPTH, BLOCKS_PER_PROCESSOR = 256, 4, 8  # DEPTH: of kernels/peer.cu


class Way(Protocol):
    """How bytes get from one rank's memory into another's."""

    @property
    def label(self) -> str:
        """For tables."""

    @property
    def series(self) -> bool:
        """Whether a transfer can be issued before the last one is done."""

    def missing(self, source: int, target: int) -> str | None:
        """Why this way does not lead from rank `source` to `target`; the same on every rank."""

    def move(self, source: int, target: int, nbytes: int, count: int) -> None:
        """This rank's part of `count` transfers, one after another; returns when that is done.

        Every rank calls it; those of other numbers do nothing. What arrives is `source`'s outgoing memory.
        """


@dataclass(frozen=True)
class Ends:
    """A rank's memory, flat uint8 arrays: what it sends, and where it receives, GUARD bytes longer."""

    outgoing: Any
    incoming: Any


@dataclass(frozen=True)
class Opened:
    """links, gate: None on a CPU."""

    ways: Sequence[Way]
    ends: Ends
    links: Links | None = None
    gate: Gate | None = None


@dataclass(frozen=True)
class Exchanged:
    """Messages between ranks: NCCL's where they have a GPU each, else MPI's."""

    world: World
    ends: Ends
    series: bool = True

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
    """Device to pinned host memory, MPI, pinned host memory to device: each step when the last is done."""

    label, series = HOST, False

    def __init__(self, stage: Stage, own: Peer, pinned: Memory) -> None:
        self.world, self.box, self.own, self.pinned = stage.world, stage.gpus, own, pinned
        self.host = self.box.host_array(pinned)
        self.stream = self.box.stream(stage.gpu)

    def missing(self, source: int, target: int) -> str | None:
        return None

    def move(self, source: int, target: int, nbytes: int, count: int) -> None:
        for _ in range(count):
            if self.world.rank == source:
                self._copied(self.pinned, self.own.outgoing, nbytes)
                self.world.control.exchange([(target, self.host[:nbytes])], []).wait()
            if self.world.rank == target:
                self.world.control.exchange([], [(source, self.host[:nbytes])]).wait()
                self._copied(self.own.incoming, self.pinned, nbytes)

    def _copied(self, target: Memory, source: Memory, nbytes: int) -> None:
        self.box.copy(target, source, nbytes, self.stream)
        self.box.synchronize(self.stream)


class Direct:
    """Without the host: by a GPU's copy engine, or by its threads.

    pulls: the GPU that receives does it, by loads; else the one that sends, by stores.
    """

    series = True

    def __init__(
        self, stage: Stage, links: Links, gate: Gate, label: str, *, engine: bool, pulls: bool
    ) -> None:
        self.world, self.box, self.gpu = stage.world, stage.gpus, stage.gpus.gpus[stage.gpu]
        self.links, self.label, self.engine, self.pulls = links, label, engine, pulls
        self.gate, self.stream = gate, self.box.stream(stage.gpu)

    def missing(self, source: int, target: int) -> str | None:
        actor, peer = (target, source) if self.pulls else (source, target)
        return self.links.reasons[actor].get(peer)

    def move(self, source: int, target: int, nbytes: int, count: int) -> None:
        if self._acts(source, target):
            self._issue(source, target, nbytes, count)
            self.finish()

    @contextmanager
    def queued(self, source: int, target: int, nbytes: int, count: int) -> Iterator[None]:
        """As `move`, but what is issued begins at the end of this, and `finish` waits for it.

        After a `move` of the same way: nothing may be loaded for this one.
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
            here, there = self.links.peers[source].outgoing, self.links.own.incoming
        else:
            here, there = self.links.own.outgoing, self.links.peers[target].incoming
        if self.engine:
            for _ in range(count):
                self.box.copy(there, here, nbytes, self.stream)
        else:
            peer_copies(self.box, self.gpu, there, here, nbytes, count, self.stream)


def peer_copies(
    box: Box, gpu: Gpu, target: Memory, source: Memory, nbytes: int, count: int, stream: Any
) -> None:
    """Queue copies by threads of `gpu`; both memories begin at a multiple of 16 bytes."""
    blocks = math.ceil(nbytes / (16 * THREADS * DEPTH))
    grid = min(blocks, gpu.processors * BLOCKS_PER_PROCESSOR)
    arguments = tuple(np.uint64(value) for value in (source.address, target.address, nbytes))
    with box.on(gpu.index):
        kernel = kernels.load("peer.cu", "peer_copy")
        for _ in range(count):  # with nothing else between two launches
            kernel((grid,), (THREADS,), arguments, stream=stream)


def opened(stage: Stage) -> Opened:
    """Memory of both ends, and every way there is between them; collective.

    Raises UserError, on every rank, where there is not enough memory.
    """
    if stage.box is None:
        here = [rank.host_id for rank in stage.world.ranks].count(stage.world.here.host_id)
        stage.world.together(lambda: refuse_beyond(stage, here * (2 * stage.maxbytes + GUARD)))
        ends = Ends(_touched(stage.maxbytes), _touched(stage.maxbytes + GUARD))
        return Opened((Exchanged(stage.world, ends),), ends)
    box = stage.box

    def allocated() -> tuple[Peer, Memory, Gate]:
        room = math.ceil((stage.maxbytes + GUARD) / PAGE) * PAGE
        out, into = (box.allocate("device", room, stage.gpu) for _ in range(2))
        gate, stream = Gate(box, stage.gpu), box.stream(stage.gpu)
        gate.hold(stage.gpu, stream)  # it is open: its kernel is loaded now
        box.synchronize(stream)
        return Peer(out, into), box.allocate("pinned", stage.maxbytes, stage.gpu), gate

    own, pinned, gate = stage.world.together(allocated)
    ends = Ends(box.array(own.outgoing), box.array(own.incoming))
    peers, why = attached(stage, own)
    links = Links(own, peers, stage.world.control.allgather(why))
    ways = (
        Direct(stage, links, gate, "copy engine", engine=True, pulls=False),
        Direct(stage, links, gate, "kernel stores", engine=False, pulls=False),
        Direct(stage, links, gate, "kernel loads", engine=False, pulls=True),
        Exchanged(stage.world, ends),
        ThroughHost(stage, own, pinned),
    )
    return Opened(ways, ends, links, gate)


def close(stage: Stage, opened: Opened) -> None:
    """Give up what is attached, then, when every rank has, this rank's own memory; collective."""
    if opened.links is None or opened.gate is None:
        return
    opened.gate.release()
    for peer in opened.links.peers.values():
        stage.gpus.release(peer.outgoing)
        stage.gpus.release(peer.incoming)
    stage.world.control.barrier()
    stage.gpus.release(opened.links.own.outgoing)
    stage.gpus.release(opened.links.own.incoming)


def _touched(nbytes: int) -> np.ndarray[Any, Any]:
    array = np.empty(nbytes, np.uint8)
    array[::4096] = 0  # a page has its place once it is touched
    return array
