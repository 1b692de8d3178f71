"""Remove shared memory left by a run that was ended.

MPICH always leaves some, Open MPI if its launcher is killed. It would fill /dev/shm, which is small in
containers, and later runs would die of SIGBUS.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
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
        used = [path for path in segments(folder) - before if not remove_unused(path)]
        if not used:
            return
        time.sleep(LOOK_INTERVAL)  # used, most likely, by a killed rank that is still exiting


def remove_stale(found: set[Path]) -> None:
    """Remove those of MPI's segments `found` that no process uses, of runs whose command was killed.

    New ones stay: they may belong to a run that is starting.
    """
    now = time.time()
    for path in found:
        with contextlib.suppress(OSError):  # removed in between
            if path.name.startswith(OF_MPI) and now - path.stat().st_mtime > NEW:
                remove_unused(path)


def remove_unused(path: Path) -> bool:
    """Remove a segment unless a process has it open or maps it to write; return whether it is gone.

    The kernel knows: it grants a lease only on a file that nobody can write. /proc does not show processes
    of other PID namespaces, nor what those of other user namespaces map, and containers may share /dev/shm.
    A rank creates a segment, maps it, and closes it, in this order, so it is never unused in between.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, file)
            # Who opens the file now waits until it is closed here. The signal that tells of it is ignored by
            # default; the usual one, SIGIO, ends a process.
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            path.unlink()
        except FileNotFoundError:
            return True
        except OSError:  # EAGAIN: used; or no leases here
            return False
    return True
