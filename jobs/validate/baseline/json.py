"""A baseline as one JSON document, which people can read, compare and put under version control.

    {"format": ..., "version": 1, "runs": [{"number": 7, "started": ..., "hosts": {"c1": 8}, "devices": [...],
     "environment": {...}, "sizes": {...}, "figures": {rung: {what: {part: rate}}}}]}

Writers lock the file (flock(2); over NFS the server's lock) and replace it atomically, so readers need no
lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshrun.jobs.validate.baseline.baseline_run import (
    FORMAT,
    VERSION,
    BaselineRun,
    FigureRow,
    broken,
    header,
    newer,
    not_a_baseline,
    numbered,
    parse_run,
    unreadable,
    unwritable,
)
from meshrun.runner.errors import UserError
from meshrun.runner.files import write_file

TIMEOUT = 30.0  # seconds to wait for other writers
BUSY = (errno.EWOULDBLOCK, errno.EACCES)
UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # file systems without locks


def read(path: Path) -> list[BaselineRun]:
    """Return all runs, oldest first. Raises UserError."""
    try:
        return parsed(path, path.read_bytes())
    except OSError as reason:
        raise unreadable(path, reason) from reason


def add(path: Path, new: BaselineRun) -> BaselineRun:
    """Save a run. Returns it with its number. Raises UserError, in which case nothing has changed."""
    path = path.resolve()  # do not replace a symbolic link
    try:
        with locked(path) as file:
            with open(file, "rb", closefd=False) as stream:
                runs = parsed(path, stream.read())
            new, gone = numbered(runs, new)
            left = {(run.fleet, run.number) for run in gone}
            kept = [run for run in runs if (run.fleet, run.number) not in left]
            try:
                write_file(path, document([*kept, new]) + "\n", durable=True)
            except OSError:
                if not os.fstat(file).st_size:  # `locked` has made it
                    path.unlink()
                raise
    except OSError as reason:
        raise unwritable(path, reason) from reason
    return new


def parsed(path: Path, content: bytes) -> list[BaselineRun]:
    if not content:  # just created by a writer that holds the lock
        return []
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as reason:
        raise broken(path, reason) from reason
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise not_a_baseline(path)
    version = found.get("version")
    if not isinstance(version, int):
        raise broken(path, f"no version, but {version!r}")
    if version > VERSION:
        raise newer(path, version)
    try:
        return [parse_run(run, rows(run["figures"])) for run in found["runs"]]
    except (ValueError, TypeError, KeyError, AttributeError) as reason:
        raise broken(path, f"{type(reason).__name__}: {reason}") from reason


def rows(figures: Any) -> Iterator[FigureRow]:
    for rung, measured in figures.items():
        for what, parts in measured.items():
            for part, rate in parts.items():
                yield rung, what, part, rate


def document(runs: list[BaselineRun]) -> str:
    return json.dumps(
        {"format": FORMAT, "version": VERSION, "runs": [as_json(run) for run in runs]},
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )


def as_json(run: BaselineRun) -> dict[str, Any]:
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for (rung, what, part), rate in run.figures.items():
        figures.setdefault(rung, {}).setdefault(what, {})[part] = rate
    return {**header(run), "figures": figures}


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Open and lock the file; create it if there is none."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            wait_for_lock(path, file, deadline)
            if is_still(path, file):  # otherwise an earlier writer has replaced the file
                yield file
                return
        finally:
            os.close(file)


def wait_for_lock(path: Path, file: int, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            if reason.errno in UNLOCKABLE:
                raise UserError(
                    f"the file system of {path} has no locks: runs that save at the same time would be lost",
                    why=reason.strerror,
                    hint="a file on a local disk, or on a file system mounted with locks",
                ) from reason
            if reason.errno not in BUSY:
                raise
        if time.monotonic() >= deadline:
            raise UserError(
                f"another run has been writing {path} for {TIMEOUT:.0f} s", hint="later, or another file"
            )
        time.sleep(0.02)


def is_still(path: Path, file: int) -> bool:
    """Return whether the path still is the open file. Opens it again, as NFS may cache stat(2)."""
    try:
        other = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return os.path.sameopenfile(file, other)
    finally:
        os.close(other)
