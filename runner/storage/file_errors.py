"""Errors for files that cannot be read or written."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.spelling import option
from meshrun.runner.storage.paths import is_kept

LISTED = 8  # names in a message
BLOCK = 512  # bytes: the unit of a file's allocated size in stat(2)
FULL = (errno.ENOSPC, errno.EDQUOT)


def check_room(
    folder: Path, needed: int, what: str, path: Path, hint: str | None = None, taken: int = 0
) -> None:
    """Raise UserError if `needed` bytes do not fit the disk of `folder`.

    what, path: what they are, and the path that the user named. taken: bytes there that will be free.
    """
    free = shutil.disk_usage(folder).free + taken
    if needed > free:
        raise UserError(
            f"{what} do not fit the disk of {path}",
            got=f"{free:,} bytes free there",
            expected=f"at least {needed:,} bytes",
            hint=hint,
        )


def write_error(
    path: Path, reason: OSError, needed: int | None = None, what: str = "", partial: Path | None = None
) -> RunError:
    """Build the error for a failed write; a full disk is the usual cause.

    needed: bytes. what: what they are for, if not for the whole output. partial: the unfinished output, or
    the folder that it is in.
    """
    detail = reason.strerror or str(reason)
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return RunError(f"cannot write {path}", why=detail)
    expected = None if needed is None else f"{needed:,} bytes {what}".rstrip()
    goes_on = partial is not None and is_kept(partial) and reason.errno in FULL
    return RunError(
        f"cannot write {path}",
        why=f"{detail}, {free:,} bytes free there",
        expected=expected,
        hint=f"make room, then the same command with {option('resume', True)}"
        if goes_on
        else "an output on another disk",
    )


def unclaimed(file: Path) -> int | None:
    """Return how many bytes of a file are not allocated on the disk yet; None if all are, or if unknown."""
    try:
        found = file.stat()
    except OSError:
        return None
    return max(found.st_size - found.st_blocks * BLOCK, 0) or None


def not_shared(path: Path, reason: OSError) -> RunError:
    """Build the error for a file that rank 0 can open and this rank cannot."""
    return RunError(
        f"rank 0 has {path}, this rank cannot open it",
        why=reason.strerror or reason,
        hint="a file system that all hosts share, with the same path on each",
    )


def listing(names: Sequence[str]) -> str:
    """Return names for a message: the first ones, and their number if there are more."""
    shown = ", ".join(names[:LISTED])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > LISTED else shown
