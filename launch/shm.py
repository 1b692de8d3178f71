"""Shared memory that outlives a run that was ended: MPICH's always, Open MPI's when its launcher is killed.

Left alone, it fills /dev/shm, which in a container is small, and a full one ends later runs with SIGBUS.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = Path("/dev/shm")
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
    new = segments(folder) - before
    if new:
        for path in new - _mapped(new):
            path.unlink(missing_ok=True)


def _mapped(paths: set[Path]) -> set[Path]:
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            text = maps.read_text(errors="replace")
            mapped |= {path for path in paths if str(path) in text}
    return mapped
