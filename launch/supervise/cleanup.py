"""Remove what a run left on this host: its processes, its shared memory, its launcher's folder.

    python -I cleanup.py MARK FOLDER SECONDS TOKEN

Run by ssh on other hosts, after a run with that mark and token, which began SECONDS ago. A killed launcher
leaves its ranks behind; one that ended in order still leaves a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

RUN_MARK = "MESHRUN_RUN"  # the variable by which processes of a run are found


def clean_up(mark: str, folder: str, seconds: float, token: str) -> None:
    from launch.supervise.shared_memory import remove_orphans, segments
    from runner.world.run_status import RunLines

    end_strays(mark)
    begun = time.time() - seconds
    older = set()
    for path in segments():
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.stat().st_mtime < begun:
                older.add(path)
    remove_orphans(older)
    shutil.rmtree(folder, ignore_errors=True)
    RunLines(token).remove_claim()


def strays(mark: str, processes: Path = Path("/proc")) -> list[int]:
    """Process ids of the run `mark`, by the variable RUN_MARK in their environment.

    Process groups and sessions do not help: launchers give their ranks new ones.
    """
    wanted = f"{RUN_MARK}={mark}".encode()
    found = []
    for folder in processes.iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def end_strays(mark: str) -> None:
    """Kill the processes that are left of a run."""
    for _ in range(50):
        left = strays(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    print(f"meshrun: processes {left} of this run did not end when killed", file=sys.stderr)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    clean_up(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
