"""Which ranks of this host are no more, when the launcher ends the others for it."""

from __future__ import annotations

import time
from pathlib import Path

from runner import World

LOOK = 0.5  # seconds in which rank 0 looks; launchers leave a rank that they end one at least


def fallen(world: World, proc: Path = Path("/proc")) -> list[str]:
    """The ranks on this rank's host whose processes have ended, as people know them.

    Those on other hosts cannot be seen: the launcher names them.
    """
    mine = [rank for rank in world.ranks if rank.host_id == world.here.host_id]
    return [str(rank) for rank in mine if not _lives(proc / str(rank.pid) / "stat")]


def stay() -> None:
    """On the other ranks, when all are told to end: be seen alive a little longer, so as not to be blamed."""
    time.sleep(LOOK)


def _lives(stat: Path) -> bool:
    try:
        state = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"  # zombie, dead
