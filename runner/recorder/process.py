"""What the kernel knows of a rank's process, and the line where its Python stands.

The line comes from `faulthandler`: its signal handler runs in C in the rank's main thread, also while that
thread is inside MPI, NCCL or a device call, and appends the traceback to the rank's recorder file.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshrun.runner.processes import PROCESSES, process_stat
from meshrun.runner.recorder.ring import FOLDER, SIZE, TRACEBACK_SIGNAL, about_of, files_of, namespace

State = Literal["running", "waiting", "disk", "stopped", "dead"]
# Letters of /proc/PID/stat; D is a sleep that no signal ends, usually in a disk or a driver.
STATES: dict[str, State] = {"R": "running", "S": "waiting", "D": "disk", "T": "stopped", "t": "stopped"}
ANSWER_TIMEOUT = 1.0  # seconds for the ranks of a host to append their tracebacks
QUIET = 0.2  # seconds without another frame, after which a traceback is whole
WHOLE = ("in <module>\n", "  ...\n")  # ends of whole tracebacks
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
HERE = str(Path(__file__).parents[2])
# Files that are not the user's: the runner and the door, and what is installed or comes with Python.
INTERNAL = (f"{HERE}/runner/", f"{HERE}/launch/", f"{HERE}/__", f"{os.path.dirname(os.__file__)}/")
INSTALLED = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class Frame:
    """A line of Python that is being executed."""

    file: str
    line: int
    function: str

    @property
    def is_internal(self) -> bool:
        """Whether the file belongs to meshrun's runner, to Python or to an installed package."""
        return (
            self.file.startswith(INTERNAL)
            or self.file.startswith("<")
            or any(p in self.file for p in INSTALLED)
        )

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} in {self.function}"


def process_state(pid: int, began: int | None = None, processes: Path = PROCESSES) -> State:
    """Return the state of a process. began: its start in clock ticks after boot, as `start_time` returns it:
    another process with the same number is another process, and this one dead."""
    found = process_stat(pid, processes)
    if found is None or found.has_ended or (began is not None and found.start != began):
        return "dead"
    return STATES.get(found.state, "waiting")


def remove_stale(folder: Path = FOLDER) -> None:
    """Remove what killed ranks of this user have left on this host, seen from their own namespace."""
    here = namespace()
    for path in files_of(folder=folder):
        about = about_of(path)
        if about and about["namespace"] == here and process_state(about["pid"], about["start"]) == "dead":
            path.unlink(missing_ok=True)


def tracebacks(ranks: Sequence[tuple[Path, int]], seconds: float = ANSWER_TIMEOUT) -> list[list[Frame]]:
    """Return where ranks' Python stands, the innermost frame first; [] for a rank that does not answer.

    ranks: the recorder file and the process of each, which must be alive and not stopped: a stopped process
    would answer when it goes on.
    """
    waiting = set()
    for index, (path, pid) in enumerate(ranks):
        with contextlib.suppress(OSError):  # ended in between
            os.truncate(path, SIZE)
            os.kill(pid, TRACEBACK_SIGNAL)
            waiting.add(index)
    found: list[list[Frame]] = [[] for _ in ranks]
    seen: dict[int, tuple[int, float]] = {}  # size of the text, and since when
    until = time.monotonic() + seconds
    while waiting and time.monotonic() < until:
        time.sleep(0.02)
        for index in sorted(waiting):
            text = _appended(ranks[index][0])
            size, since = seen.get(index, (0, 0.0))
            if size != len(text):
                seen[index] = (len(text), time.monotonic())
            elif text and (text.endswith(WHOLE) or time.monotonic() - since > QUIET):
                found[index] = frames(text)
                waiting.discard(index)
    return found


def _appended(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(SIZE)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def frames(text: str) -> list[Frame]:
    """Return the frames of faulthandler's text, the innermost first."""
    return [Frame(file, int(line), function) for file, line, function in FRAME.findall(text)]


def place(found: Sequence[Frame]) -> Frame | None:
    """Return the frame to name: the innermost of the user or the job, else the caller of a communicator."""
    named = [frame for frame in found if not frame.is_internal]
    callers = [frame for frame in found if not frame.file.startswith(f"{HERE}/runner/comm/")]
    return next(iter([*named, *callers, *found]), None)
