"""What the tests of streamed runs share: a folder with a job that dies where it is told to, and its runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import (
    DEADLOCK,
    Place,
    launcher_problem,
    left_running,
    own_lines,
    place_below,
    promised,
    wait_for,
)

from meshrun.launch.mpi.rank_command import PROGRAM

PROMISE = 10  # seconds from a rank's failure to the end of the command
HOST = os.uname().nodename
ROWS, COLUMNS, CHUNKS = 48, 500, 24
CUT = ("--chunk-bytes", "16K")  # two rows of 4,000 bytes, and two of the halo
KEPT = "meshrun: finished chunks are kept; continue with the same command and --resume"
UNFINISHED = "meshrun: an earlier run of out.npy is unfinished. Try: the same command with --resume"
PARTIAL, JOURNAL = ".out.npy.stream.partial", "out.npy.journal"

needs_mpi = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))


class Site(Place):
    """With an input, an old output and the job."""

    def words(self, ranks: int, *more: str, output: str = "out.npy", cut: tuple[str, ...] = CUT) -> list[str]:
        files = ["in.npy", output, "--json", "record.json"]
        return ["-n", str(ranks), "run", "job.py:smooth", *files, *cut, *more]

    def begin(self, words: list[str], **changes: str) -> subprocess.Popen[str]:
        (self.notes / "calls").write_text("")
        for name in ("failing", "go"):
            for note in self.notes.glob(f"{name}*"):
                note.unlink()
        return self.start([*PROGRAM, *words], **changes)

    def end(self, process: subprocess.Popen[str]) -> tuple[int, list[str]]:
        """The exit status and the lines on stderr; soon after a rank's failure, and no process is left."""
        wait_for(lambda: process.poll() is not None or self.failing)
        _, errors = process.communicate(timeout=promised(PROMISE, self.begun) if self.failing else DEADLOCK)
        assert left_running(self.notes) == []
        assert list(self.temporary.iterdir()) == []
        assert "Traceback" not in errors
        return process.returncode, own_lines(errors)

    def run(self, words: list[str], **changes: str) -> tuple[int, list[str]]:
        return self.end(self.begin(words, **changes))

    def refused(self, words: list[str]) -> str:
        """The sentence of a run that is refused before any work."""
        before = content(self.work)
        status, lines = self.run(words)
        assert status == 2, lines
        assert content(self.work) == before
        assert self.calls == []
        (sentence,) = lines
        return sentence

    def finish(self, words: list[str], **changes: str) -> dict[str, Any]:
        """The record of a run that succeeds and leaves nothing unfinished."""
        status, lines = self.run(words, **changes)
        assert status == 0, lines
        assert list(self.work.glob("*.journal")) + list(self.work.glob(".*")) == []
        record: dict[str, Any] = json.loads((self.work / "record.json").read_text())
        return record

    @property
    def failing(self) -> bool:
        return any(self.notes.glob("failing-*"))

    @property
    def calls(self) -> list[int]:
        """The first row of each block that the function was called for."""
        return sorted(map(int, (self.notes / "calls").read_text().split()))

    @property
    def done(self) -> set[int]:
        """The chunks that the journal has as finished."""
        logs = (path.read_text() for path in (self.work / JOURNAL).glob("*.log"))
        return {int(found) for text in logs for found in re.findall(r"^[0-9a-f]{8} done (\d+)$", text, re.M)}


@contextlib.contextmanager
def site_at(folder: Path) -> Iterator[Site]:
    with place_below(folder, Site) as made:
        np.save(made.work / "in.npy", np.random.default_rng(0).random((ROWS, COLUMNS)))
        np.save(made.work / "out.npy", np.arange(7))
        shutil.copy(Path(__file__).with_name("dying_job.py"), made.work / "job.py")
        yield made


def content(folder: Path) -> dict[str, bytes]:
    """Every file by name, hidden ones too, without what Python compiles, and without the lock, which a
    process that is killed with nobody to see it leaves, and the next run takes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".lock")
    }


def smoothed(array: np.ndarray[Any, Any], gain: float = 2.0) -> np.ndarray[Any, Any]:
    """What the job makes of a whole array, by NumPy."""
    padded = np.pad(array, 1, mode="edge")
    return gain * array - padded[:-2, 1:-1] - padded[1:-1, 2:]
