"""The JSON file of -J: created before anything is measured, replaced atomically, without secrets.

`-` is standard output: the document goes there once, at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from meshrun import World
from meshrun.jobs.measure import plots
from meshrun.runner.errors import RunError, UserError, show
from meshrun.runner.files import check_writable, write_file
from meshrun.runner.report.record import STDOUT, stdout
from meshrun.runner.system.launcher import is_secret

Json = dict[str, Any]  # a JSON object
PREFIXES = ("NCCL_", "UCX_", "FI_")
NAMES = {
    "CUDA_VISIBLE_DEVICES",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_LOCALID",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_STEP_ID",
}
WRITING_SHARE = 0.05  # of the run's time, at most


def recorded_environment(environment: Mapping[str, str]) -> list[str]:
    """List the variables that configure NCCL and the network or identify the Slurm job, as "NAME=value"."""
    return [
        f"{name}={value}"
        for name, value in sorted(environment.items())
        if (name.startswith(PREFIXES) or name in NAMES) and not is_secret(name)
    ]


class RecordFile:
    """A file that each write replaces atomically. path: None on ranks that write nothing; "-": stdout."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._due = path, 0.0
        self._to_stdout, self._document = str(path) == STDOUT, ""

    def write(self, text: Callable[[], str], last: bool = False) -> None:
        """Replace the file with `text()`; skip it if writing would take more than WRITING_SHARE of the time.

        last: always write; for standard output, keep the text for `close`. Raises RunError if it cannot be
        written; what was in it stays, and an empty file goes.
        """
        if self._path is None or (not last and time.monotonic() < self._due):
            return
        if self._to_stdout:
            self._document = text() if last else self._document
            return
        begin = time.monotonic()
        content = text()
        try:
            write_file(self._path, content)
        except OSError as reason:
            if self._path.is_file() and self._path.stat().st_size == 0:  # as `create_record` made it
                self._path.unlink()
            raise RunError(f"cannot write {self._path}", why=reason.strerror or reason) from reason
        end = time.monotonic()
        self._due = end + (end - begin) / WRITING_SHARE

    def close(self) -> None:
        """Write the last document to standard output, if it goes there."""
        if self._document:
            show(self._document, stdout())
            self._document = ""


def write_record(path: str, text: str) -> None:
    """Write a finished document to the file, or to standard output for "-". Raises RunError."""
    record_file = RecordFile(Path(path))
    record_file.write(lambda: text, last=True)
    record_file.close()


def create_record(path: str | Path) -> str:
    """Create an empty file and return its name: the path or, if it exists, path.0, path.1 (as nccl-tests).

    "-" is standard output, and nothing is created.
    Raises UserError if the path does not end in .json or cannot be written.
    """
    if str(path) == STDOUT:
        return STDOUT
    if Path(path).suffix.lower() != ".json":
        expected = "a name ending in .json, or - for standard output"
        raise UserError("the output file is not JSON", got=str(path), expected=expected)
    name, number = str(path), 0
    while True:
        try:
            with open(name, "x", encoding="utf-8"):
                return name
        except FileExistsError:
            name, number = f"{path}.{number}", number + 1
        except OSError as reason:
            raise UserError(f"cannot write {name}", why=reason.strerror or reason) from reason


def open_record(world: World, path: str | None, announce: Callable[[str], None]) -> RecordFile:
    """Create rank 0's file of -J and announce its name; collective. Raises UserError on every rank."""
    if path is None:
        return RecordFile(None)
    name = world.on_root(lambda: create_record(path))
    if name != STDOUT:
        announce(f"# Writing JSON output to {name}\n")
    return RecordFile(Path(name) if world.rank == 0 else None)


def create_outputs(path: str | None, plot: str | None) -> str | None:
    """Check that the plot can be drawn, create the record and return its name. Raises UserError.

    path: of -J, plot: of --plot; None if not given.
    """
    if plot:
        plots.check(plot)
    return None if path is None else create_record(path)


def text_stream(output_file: str | None) -> TextIO:
    """Return the stream of the tables: standard error if the record goes to standard output."""
    return sys.stderr if output_file == STDOUT else sys.stdout


def print_table(text: str, stream: TextIO) -> None:
    """Write tables to their stream; RunError if that is a full disk, or a pipe that nobody reads any more."""
    try:
        show(text, stream)
    except BrokenPipeError as reason:
        raise RunError("cannot write to the standard output", why=reason.strerror) from reason


def refuse_unwritable(path: Path) -> None:
    """Raise UserError if the file cannot be written; changes nothing."""
    try:
        check_writable(path)
    except OSError as reason:
        raise UserError(f"cannot write {path}", why=reason.strerror) from reason
