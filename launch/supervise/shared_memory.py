"""Shared memory that outlives a run that was ended: MPICH's always, Open MPI's when its launcher is killed.

Left alone, it fills /dev/shm, which in a container is small, and a full one ends later runs with SIGBUS.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

FOLDER = Path("/dev/shm")
LAST_BREATHS = 20  # looks at what is mapped still, a second in all
NAMES = ("mpich_shm_", "sm_segment.", "vader_segment.")


def segments(folder: Path = FOLDER) -> set[Path]:
    """This user's segments of any MPI."""
    found = set()
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # gone meanwhile
                if path.name.startswith(NAMES) and path.stat().st_uid == os.geteuid():
                    found.add(path)
    return found


def remove_orphans(before: set[Path], folder: Path = FOLDER) -> None:
    """Remove the segments that are new since `before`, save those that another run has mapped."""
    for _ in range(LAST_BREATHS):
        new = segments(folder) - before
        mapped = _mapped(new) if new else set()
        for path in new - mapped:
            path.unlink(missing_ok=True)
        if not mapped:
            return
        time.sleep(0.05)  # by a rank that was killed and is not quite gone, most likely


def _mapped(paths: set[Path]) -> set[Path]:
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            text = maps.read_text(errors="replace")
            mapped |= {path for path in paths if str(path) in text}
    return mapped
