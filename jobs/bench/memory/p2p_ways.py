"""The ways that bytes take from one rank's memory into another's, behind one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from jobs import kernels
from jobs.bench.memory.lesson import Stage
from jobs.bench.memory.timed import refuse_beyond
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
class Peer:
    """Another rank's device memory, as this process reaches it."""

    outgoing: Memory
    incoming: Memory


@dataclass(frozen=True)
class Links:
    """How a rank's GPU reaches the others' memory.

    own: its own, as it is here. peers: by rank. reasons: of every rank, why it does not reach a peer, by
    the peer's rank.
    """

    own: Peer
    peers: dict[int, Peer]
    reasons: Sequence[dict[int, str]]


@dataclass(frozen=True)
class Opened:
    """links: None on a CPU."""

    ways: Sequence[Way]
    ends: Ends
    links: Links | None = None


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

    def __init__(self, stage: Stage, links: Links, label: str, *, engine: bool, pulls: bool) -> None:
        self.world, self.box, self.gpu = stage.world, stage.gpus, stage.gpus.gpus[stage.gpu]
        self.links, self.label, self.engine, self.pulls = links, label, engine, pulls
        self.stream = self.box.stream(stage.gpu)

    def missing(self, source: int, target: int) -> str | None:
        actor, peer = (target, source) if self.pulls else (source, target)
        return self.links.reasons[actor].get(peer)

    def move(self, source: int, target: int, nbytes: int, count: int) -> None:
        if self.world.rank != (target if self.pulls else source):
            return
        if self.pulls:
            here, there = self.links.peers[source].outgoing, self.links.own.incoming
        else:
            here, there = self.links.own.outgoing, self.links.peers[target].incoming
        if self.engine:
            for _ in range(count):
                self.box.copy(there, here, nbytes, self.stream)
        else:
            peer_copies(self.box, self.gpu, there, here, nbytes, count, self.stream)
        self.box.synchronize(self.stream)


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

    def allocated() -> tuple[Peer, Memory]:
        room = math.ceil((stage.maxbytes + GUARD) / PAGE) * PAGE
        out, into = (box.allocate("device", room, stage.gpu) for _ in range(2))
        return Peer(out, into), box.allocate("pinned", stage.maxbytes, stage.gpu)

    own, pinned = stage.world.together(allocated)
    ends = Ends(box.array(own.outgoing), box.array(own.incoming))
    peers, why = _attached(stage, own)
    links = Links(own, peers, stage.world.control.allgather(why))
    ways = (
        Direct(stage, links, "copy engine", engine=True, pulls=False),
        Direct(stage, links, "kernel stores", engine=False, pulls=False),
        Direct(stage, links, "kernel loads", engine=False, pulls=True),
        Exchanged(stage.world, ends),
        ThroughHost(stage, own, pinned),
    )
    return Opened(ways, ends, links)


def close(stage: Stage, opened: Opened) -> None:
    """Give up what is attached, then, when every rank has, this rank's own memory; collective."""
    if opened.links is None:
        return
    for peer in opened.links.peers.values():
        stage.gpus.release(peer.outgoing)
        stage.gpus.release(peer.incoming)
    stage.world.control.barrier()
    stage.gpus.release(opened.links.own.outgoing)
    stage.gpus.release(opened.links.own.incoming)


def _attached(stage: Stage, own: Peer) -> tuple[dict[int, Peer], dict[int, str]]:
    """The peers whose memory this rank's GPU reaches, and why not the others; collective."""
    world, box = stage.world, stage.gpus
    handles: tuple[bytes, bytes] | str
    try:
        handles = box.export(own.outgoing), box.export(own.incoming)
    except RuntimeError as reason:  # CUDA's errors are RuntimeErrors
        handles = f"rank {world.rank}'s memory cannot be exported: {_first_line(reason)}"
    indices = {gpu.uuid: gpu.index for gpu in box.gpus}
    peers: dict[int, Peer] = {}
    reasons: dict[int, str] = {}
    for peer, handle in enumerate(world.control.allgather(handles)):
        there = world.ranks[peer]
        index = indices.get(there.device.uuid)
        if peer == world.rank:
            continue
        if there.host_id != world.here.host_id:
            reasons[peer] = "on another host, where memory of this one is not reached"
        elif isinstance(handle, str):
            reasons[peer] = handle
        elif index is None:
            reasons[peer] = f"rank {world.rank}'s process does not see rank {peer}'s GPU"
        elif not box.connect(stage.gpu, index):
            reasons[peer] = f"rank {world.rank}'s GPU has no peer access to rank {peer}'s"
        else:
            try:
                peers[peer] = _attach(stage, handle, own, index)
            except RuntimeError as reason:
                sentence = f"rank {world.rank} cannot attach rank {peer}'s memory"
                reasons[peer] = f"{sentence}: {_first_line(reason)}"
    return peers, reasons


def _attach(stage: Stage, handles: tuple[bytes, bytes], own: Peer, index: int) -> Peer:
    # Into the address space of the GPU that is to reach it, not of the one whose memory it is.
    with stage.gpus.on(stage.gpu):
        outgoing = stage.gpus.attach(handles[0], own.outgoing.nbytes, index)
        incoming = stage.gpus.attach(handles[1], own.incoming.nbytes, index)
    return Peer(outgoing, incoming)


def _touched(nbytes: int) -> np.ndarray[Any, Any]:
    array = np.empty(nbytes, np.uint8)
    array[::4096] = 0  # a page has its place once it is touched
    return array


def _first_line(reason: Exception) -> str:
    return (str(reason).strip() or type(reason).__name__).splitlines()[0]
