"""Ranks' device memory, as the other ranks' GPUs reach it: exported, attached, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.bench.lessons.protocol import Stage
from runner import Memory


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


def attached(stage: Stage, own: Peer) -> tuple[dict[int, Peer], dict[int, str]]:
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


def _first_line(reason: Exception) -> str:
    return (str(reason).strip() or type(reason).__name__).splitlines()[0]
