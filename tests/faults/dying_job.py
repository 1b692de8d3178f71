"""A job that is killed, hangs, raises or errs at one place of a streamed run; copied to where a test runs.

The variable STAGE is "STAGE,RANK,CALL": where, on which rank, at which call. A variable, because a parameter
or another file would make it another run, which nobody resumes.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import meshrun
import meshrun.runner.maps.streamed.streaming
from meshrun.runner.storage.formats.flat import FlatSink, FlatSource
from meshrun.runner.storage.journal import Journal, Log, Syncer
from meshrun.runner.storage.transaction import OutputTransaction

notes = Path(os.environ["MESHRUN_TEST_RUN"])
told = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
place, victim, when = os.environ.get("STAGE", "nowhere,0,0").split(",")
# The others do one chunk, so that they do not do all of them before the victim has got that far.
held = told != int(victim) and place not in ("nowhere", "begin", "rename", "renamed", "wrong")
if told != int(victim):
    place = "nowhere"
calls, chunks = itertools.count(1), itertools.count(1)
(notes / f"pid-{told}").write_text(str(os.getpid()))
pause = float(os.environ.get("PAUSE", "0.01"))  # so that every rank gets some chunks
pause *= float(os.environ.get("SLOWER", "1")) if told == 0 else 1


@atexit.register
def note_peak() -> None:
    """The most memory that this process has had; not ru_maxrss, which has that of whoever started it too."""
    (found,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    (notes / f"peak-{told}").write_text(str(int(found.split()[1]) << 10))


def due() -> bool:
    return next(calls) == int(when)


def finished() -> bool:
    """Whether this rank has noted a chunk."""
    return any(b" done " in path.read_bytes() for path in Path().glob(f"*.journal/*-{told}.log"))


def hold() -> None:
    while not (notes / "go").exists():
        time.sleep(0.01)


def die() -> None:
    (notes / f"failing-{told}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def write_half(sink: FlatSink, region: Any, array: Any) -> None:
    half = region.shape[0] // 2
    whole_write(sink, region.rows(0, half), array[:half])


def append_torn(log: Any, text: str) -> None:
    os.write(log._file, f"0badc0de {text}"[:-2].encode())


def nothing(*_: Any) -> None:
    pass


def after_one() -> bool:
    return threading.current_thread().name == "journal" and finished()


# What is called there, at which of its calls the rank dies, and what it has done of it by then.
PLACES: dict[str, tuple[Any, str, Callable[[], bool], Callable[..., Any]]] = {
    "begin": (Journal, "begin", due, nothing),
    "read": (FlatSource, "read", due, nothing),
    "write": (FlatSink, "write", due, write_half),
    "before its line": (Log, "done", due, nothing),
    "in its line": (Log, "_append", finished, append_torn),
    "after its line": (Log, "done", due, Log.done),
    "sync": (FlatSink, "sync", after_one, nothing),
    "synced": (Log, "synced", after_one, nothing),
    "rename": (OutputTransaction, "commit", due, nothing),
    "renamed": (OutputTransaction, "commit", due, OutputTransaction.commit),
}
whole_write = FlatSink.write
in_sync = place in ("sync", "synced")
if in_sync:
    meshrun.runner.maps.streamed.streaming.Syncer = partial(Syncer, seconds=0.02)
if place in PLACES:
    owner, name, now, first = PLACES[place]
    original = getattr(owner, name)

    def planted(*arguments: Any) -> Any:
        if now():
            first(*arguments)
            die()
        return original(*arguments)

    setattr(owner, name, planted)


@meshrun.map_blocks(halo=1, boundary="nearest", split_dependent=True)
def smooth(block: Any, *, out: Any, here: Any, gain: float = 2.0) -> None:
    with open(notes / "calls", "a") as lines:
        lines.write(f"{here.offset[0]}\n")
    if held and next(chunks) > 1:
        hold()
    time.sleep(pause)
    if place in ("kernel", "raise", "hold") and due():
        if place == "kernel":
            die()
        (notes / f"failing-{told}").touch()
        if place == "raise":
            raise ValueError("no such number")
        hold()
    if in_sync and finished():
        hold()  # the thread that syncs will die
    out[...] = gain * block[1:-1, 1:-1] - block[:-2, 1:-1] - block[1:-1, 2:]
    if place == "wrong" and due():
        out[0, 7] += 1
