"""Remove shared memory left by a run that was ended.

MPICH always leaves some, Open MPI if its launcher is killed. It would fill /dev/shm, which is small in
containers, and later runs would die of SIGBUS.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

FOLDER = Path("/dev/shm")
ATTEMPTS = 20  # looks at segments that a process still uses; one second in total
LOOK_INTERVAL = 0.05  # seconds between two looks
OF_MPI = ("mpich_shm_", "mpich_shar_", "ucx_shm_", "sm_segment.", "vader_segment.")
NEW = 60.0  # seconds for which a segment that no process uses stays
NAMES = (*OF_MPI, "meshrun_")  # the last: flight recorders


def segments(folder: Path = FOLDER) -> set[Path]:
    """The shared memory segments of this user, from any MPI."""
    found = set()
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # removed in between
                if path.name.startswith(NAMES) and path.stat().st_uid == os.geteuid():
                    found.add(path)
    return found


def remove_orphans(before: set[Path], folder: Path = FOLDER) -> None:
    """Remove the segments created since `before`, except those that another run uses."""
    for _ in range(ATTEMPTS):
        new = segments(folder) - before
        used = _used(new) if new else set()
        for path in new - used:
            path.unlink(missing_ok=True)
        if not used:
            return
        time.sleep(LOOK_INTERVAL)  # used, most likely, by a killed rank that is still exiting


def remove_stale(found: set[Path]) -> None:
    """Remove those of MPI's segments `found` that no process uses, of runs whose command was killed.

    New ones stay: they may belong to a run that is starting.
    """
    now, old = time.time(), set()
    for path in found:
        with contextlib.suppress(OSError):  # removed in between
            if path.name.startswith(OF_MPI) and now - path.stat().st_mtime > NEW:
                old.add(path)
    for path in old - _used(old) if old else ():
        path.unlink(missing_ok=True)


def _used(paths: set[Path]) -> set[Path]:
    """Those that a process has open or maps, in this order: a rank creates a segment, maps it, closes it."""
    used = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended in between, or another user's
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):  # closed in between
                    used |= paths & {Path(os.readlink(descriptor))}
            text = (process / "maps").read_text(errors="replace")
            used |= {path for path in paths if str(path) in text}
    return used
