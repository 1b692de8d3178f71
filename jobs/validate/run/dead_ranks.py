"""Which ranks of this host have died, when the launcher ends the others for it."""

from __future__ import annotations

import time
from pathlib import Path

from meshrun import World

GRACE = 0.5  # seconds in which rank 0 looks; launchers give a rank that they end one second at least


def dead_ranks(world: World, proc: Path = Path("/proc")) -> list[str]:
    """The ranks on this rank's host whose processes have ended, by their full names.

    Those on other hosts cannot be seen: the launcher names them.
    """
    mine = [rank for rank in world.ranks if rank.host_id == world.here.host_id]
    return [str(rank) for rank in mine if not _is_alive(proc / str(rank.pid) / "stat")]


def stay_alive() -> None:
    """On the other ranks, when all are told to end: live a little longer, so as not to be taken for dead."""
    time.sleep(GRACE)


def _is_alive(stat: Path) -> bool:
    try:
        state = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"  # zombie, dead
