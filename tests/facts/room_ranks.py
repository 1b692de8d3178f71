"""Transforms between GPUs on ranks that are threads, with NumPy in place of cuFFT."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from host_copies import HostCopies, Queue
from numpy_lines import by_numpy
from thread_peers import ThreadPeers

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.transforms import rooms
from meshrun.runner.transforms.rooms import BoxChange, Rooms, open_rooms
from meshrun.runner.world.world import World, open_world

MESSAGES = "the ranks are on 2 hosts"


class Ranks:
    """Transforms on ranks that are threads.

    how: "messages"; "early" or "late" for copies that are done when they are issued or when a rank waits for
    them. slow: rank that begins each pass late.
    """

    def __init__(self, patch: pytest.MonkeyPatch, how: str, slow: int | None = None) -> None:
        self.how, self.slow, self.queue = how, slow, Queue() if how == "late" else None
        self.copies: dict[int, HostCopies] = {}
        patch.setattr(rooms, "PART_BYTES", 16)
        by_numpy(patch, self._before_pass)

    def _before_pass(self) -> None:
        copies = self.copies.get(threading.get_ident())
        if copies is not None:
            copies.issued += 1
            if copies.world.rank == self.slow:
                time.sleep(0.002)

    def made(self, world: World) -> Any:
        """Return a rank's copies."""
        copies = self.copies[threading.get_ident()] = HostCopies(world, self.queue)
        return copies

    def opened(
        self, world: World, changes: Mapping[int, Sequence[BoxChange]], copies: Any = None
    ) -> Rooms | None:
        peers: Any = MESSAGES if self.how == "messages" else ThreadPeers(world)
        return open_rooms(world, changes, copies or self.made(world), peers)

    def run(self, count: int, case: Callable[[World], Any]) -> list[Any]:
        return run_ranks(count, lambda control: case(open_world("cpu", control=control)), timeout=60)
