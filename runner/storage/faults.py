"""The sentences for files that cannot be read or written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from runner.errors import RunError

LISTED = 8  # names in a sentence


def write_error(path: Path, reason: OSError, needed: int | None = None) -> RunError:
    """The sentence for a failed write: a full disk is the common one."""
    detail = reason.strerror or str(reason)
    try:
        disk = os.statvfs(path.parent)
        free = disk.f_bavail * disk.f_frsize
    except OSError:
        return RunError(f"cannot write {path}", got=detail)
    expected = None if needed is None else f"{needed:,} bytes"
    return RunError(
        f"cannot write {path}",
        got=f"{detail}, {free:,} bytes free there",
        expected=expected,
        hint="an output on another disk",
    )


def not_shared(path: Path, reason: OSError) -> RunError:
    """The sentence for a file that rank 0 has and this rank has not."""
    return RunError(
        f"rank 0 has {path}, this rank cannot open it",
        got=reason.strerror or reason,
        hint="a file system that all hosts share, with the same path on each",
    )


def listing(names: Sequence[str]) -> str:
    """Names for a sentence: the first ones, and how many there are where there are more."""
    shown = ", ".join(names[:LISTED])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > LISTED else shown
