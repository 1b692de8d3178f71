"""Remove what a run has left on this host: its processes, its shared memory, its launcher's folder.

    python -I cleanup.py MARK FOLDER SECONDS TOKEN

For hosts that ssh reaches, after a run with that mark and token, which began so many seconds ago. A
launcher that was killed leaves its ranks, one that ended in order still a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

RUN_MARK = "MESHRUN_RUN"  # in the environment of every process of a run: how strays are found


def sweep(mark: str, folder: str, seconds: float, token: str) -> None:
    from launch.supervise.shared_memory import remove_orphans, segments
    from runner.verdict import RunLines

    end_strays(mark)
    begun = time.time() - seconds
    older = set()
    for path in segments():
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.stat().st_mtime < begun:
                older.add(path)
    remove_orphans(older)
    shutil.rmtree(folder, ignore_errors=True)
    RunLines(token).forget()


def strays(mark: str, processes: Path = Path("/proc")) -> list[int]:
    """The processes with `mark` as the run's mark in their environment.

    Process groups and sessions do not do: launchers give their ranks new ones.
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
    """Kill what is left of a run; the launcher first, so that it starts no more."""
    for _ in range(50):
        left = strays(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    print(f"meshrun: processes {left} of this run do not end, even when killed", file=sys.stderr)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sweep(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
