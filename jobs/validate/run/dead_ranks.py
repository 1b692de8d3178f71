"""Find the ranks of this host that have died, when the launcher ends the others because of it."""

from __future__ import annotations

import time
from pathlib import Path

from meshrun import World

GRACE = 0.5  # seconds for rank 0 to look; launchers give a rank at least one second to end


def dead_ranks(world: World, proc: Path = Path("/proc")) -> list[str]:
    """Return the full names of the ranks on this host whose processes have ended.

    Processes on other hosts are not visible; the launcher names them.
    """
    mine = [rank for rank in world.ranks if rank.host_id == world.here.host_id]
    return [str(rank) for rank in mine if not _is_alive(proc / str(rank.pid) / "stat")]


def stay_alive() -> None:
    """Delay the end of a healthy rank, so that rank 0 does not count it as dead."""
    time.sleep(GRACE)


def _is_alive(stat: Path) -> bool:
    try:
        state = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"  # zombie, dead
