"""Remove what a run left on this host: processes, shared memory, the launcher's folder and files.

    python -I cleanup.py MARK FOLDER SECONDS TOKEN

Run by ssh on other hosts, after a run with that mark and token that began SECONDS ago. A killed launcher
leaves its ranks behind; one that ended normally still leaves a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

DAEMON = "hydra_pmi_proxy"  # of MPICH's launcher, on each host
RUN_MARK = "MESHRUN_RUN"  # environment variable that identifies the processes of a run


def clean_up(mark: str, folder: str, seconds: float, token: str, shared: Path = Path("/dev/shm")) -> None:
    """Remove what the run left. shared: the folder of shared memory."""
    from meshrun.launch.supervise.shared_memory import remove_orphans, segments
    from meshrun.runner.world.run_status import RunLines

    end_strays(mark)
    begun = time.time() - seconds
    older = set()
    for path in segments(shared):
        with contextlib.suppress(OSError):  # removed in between
            if path.stat().st_mtime < begun:
                older.add(path)
    remove_orphans(older, shared)
    remove_topologies()
    shutil.rmtree(folder, ignore_errors=True)
    RunLines(token).remove_claim()


def strays(mark: str, processes: Path = Path("/proc")) -> list[int]:
    """Process ids of the run `mark`, found by the variable RUN_MARK in their environment.

    Process groups and sessions cannot be used, because launchers create new ones for ranks.
    """
    wanted = f"{RUN_MARK}={mark}".encode()
    found = []
    for folder in processes.iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended in between, or another user's
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def end_strays(mark: str) -> None:
    """Kill the remaining processes of a run."""
    for _ in range(50):
        left = strays(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    print(f"meshrun: processes {left} of this run did not end when killed", file=sys.stderr)


def remove_topologies(folder: Path = Path("/tmp"), processes: Path = Path("/proc")) -> None:
    """Remove the descriptions of this host that killed daemons of MPICH's launcher have left.

    A daemon writes one for its ranks. No name leads from one to the other: while any daemon lives, all stay.
    """
    left = []
    for path in folder.glob("hydra_hwloc_xmlfile_*"):
        with contextlib.suppress(OSError):  # removed in between
            if path.lstat().st_uid == os.geteuid():
                left.append(path)
    if left and not _runs(DAEMON, processes):
        for path in left:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _runs(name: str, processes: Path) -> bool:
    from meshrun.runner.processes import process_stat

    found = (process_stat(int(folder.name), processes) for folder in processes.glob("[0-9]*"))
    return any(one is not None and one.name == name and not one.has_ended for one in found)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
    clean_up(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
