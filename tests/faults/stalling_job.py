"""A job that gets stuck in a chosen way, on a chosen rank, after some steps: for test_stalls.py."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import meshrun


def spin() -> None:
    while True:
        pass


def sleep_for_ever() -> None:
    time.sleep(3600)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def receive_first(world: Any, peer: int) -> None:
    world.receive(np.empty(8), peer)


def send_first(world: Any, peer: int) -> None:
    world.send(np.zeros(1 << 20), peer)


@meshrun.job
def stalling(world: Any, *, fault: str = "spin", rank: int = 0, steps: int = 3) -> dict[str, int]:
    """Exchange and reduce for some steps, and get stuck.

    fault: how. rank: the one that gets stuck; a deadlock is with the next one. steps: before that.
    """
    if notes := os.environ.get("MESHRUN_TEST_RUN"):
        Path(notes, f"pid-{world.rank}").write_text(str(os.getpid()))
    total, arrived = np.ones(1000), np.empty(1000)
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for step in range(steps + 5):
        if step == steps:
            peer = (rank + 1) % world.size
            if world.rank == rank and fault in ("spin", "sleep_for_ever", "stop"):
                globals()[fault]()
            if world.rank == rank and fault == "missing":
                world.control.barrier()
            if world.rank in (rank, peer) and fault in ("receive_first", "send_first"):
                globals()[fault](world, peer if world.rank == rank else rank)
        world.exchange([(right, total)], [(left, arrived)])
        world.all_reduce(total)
        total /= world.size
    return {}
