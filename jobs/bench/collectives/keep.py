"""The file of -J while the run goes on: whole at every moment, whatever ends the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import runner
from jobs.bench.collectives.nccl_tests_json import open_exclusively
from jobs.bench.collectives.screen import Screen
from runner import World

SHARE = 0.05  # of the time, at most, for writing


class Kept:
    """A file that is replaced by a newer text in one step. path: None on ranks that write nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._due = path, 0.0

    def write(self, text: Callable[[], str], last: bool = False) -> None:
        """Write `text()`, or leave that for later where it was done just now; last: whatever it takes."""
        if self._path is None or (not last and time.monotonic() < self._due):
            return
        begin = time.monotonic()
        runner.write_file(self._path, text())
        end = time.monotonic()
        self._due = end + (end - begin) / SHARE


def opened_record(world: World, path: str | None, screen: Screen) -> Kept:
    """The file of -J, on rank 0; refused on every rank alike, before anything is measured."""
    if path is None:
        return Kept(None)

    def create() -> str:
        file, name = open_exclusively(path)
        file.close()
        return name

    name = world.once(create)
    screen.line(f"# Writing JSON output to {name}\n")
    return Kept(Path(name) if world.rank == 0 else None)


def refuse_unwritable(path: Path) -> None:
    """UserError for a file that cannot be written; nothing is left or changed."""
    try:
        runner.check_writable(path)
    except OSError as reason:
        raise runner.UserError(f"cannot write {path}", got=reason.strerror) from reason


def outputs(path: str | None, drawing: str | None) -> str | None:
    """Refuse, before anything is measured, what could not be written or drawn; the JSON file's name.

    Raises UserError. path: of -J, where it was given; drawing: of --plot.
    """
    if drawing:
        from jobs.bench.collectives import plots

        plots.check(drawing)
    if path is None:
        return None
    file, name = open_exclusively(path)
    file.close()
    return name
