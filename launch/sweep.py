"""Remove what a run has left on this host: its processes, its shared memory, its launcher's folder.

    python -I sweep.py MARK FOLDER SECONDS TOKEN

For hosts that ssh reaches, after a run with that mark and token, which began so many seconds ago. A
launcher that was killed leaves its ranks, one that ended in order still a folder.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path


def sweep(mark: str, folder: str, seconds: float, token: str) -> None:
    from launch.shm import remove_orphans, segments
    from launch.watch import end_strays
    from runner.run_status import RunLines

    end_strays(mark)
    begun = time.time() - seconds
    older = set()
    for path in segments():
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.stat().st_mtime < begun:
                older.add(path)
    remove_orphans(older)
    shutil.rmtree(folder, ignore_errors=True)
    RunLines(token).remove_claim()


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    sweep(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
