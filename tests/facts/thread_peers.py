"""Memory that the ranks of one process can open, as GPUs can of one host."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from meshrun.runner.comm.peer_memory import Unreachable
from meshrun.runner.world.world import World


class ThreadPeers:
    """Arrays begin with -1. blind: ranks that cannot open others. closed: calls of `close`."""

    closed = 0

    def __init__(self, world: World, blind: Collection[int] = ()) -> None:
        self.world, self.blind = world, blind
        self.kept: list[np.ndarray] = []

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        array = np.full(shape, np.array(-1).astype(dtype))
        self.kept.append(array)
        return array

    def open(self, arrays: Sequence[Any], peers: Collection[int]) -> dict[int, list[int]]:
        every = self.world.control.allgather([array.ctypes.data for array in arrays])
        if self.world.rank in self.blind:
            raise Unreachable(f"rank {self.world.rank} cannot open rank 0's memory")
        return {peer: every[peer] for peer in peers}

    def close(self) -> None:
        type(self).closed += 1
