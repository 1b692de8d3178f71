"""Errors for files that cannot be read or written."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.spelling import option
from meshrun.runner.storage.paths import is_kept

LISTED = 8  # names in a message
BLOCK = 512  # bytes: the unit of a file's allocated size in stat(2)
# How files begin, and how their names end.
SIGNATURES = {
    b"\x93NUMPY": (".npy",),
    b"\x89HDF": (".h5", ".hdf5"),
    b"\x89PNG": (".png",),
    b"\xff\xd8\xff": (".jpg", ".jpeg"),
    b"BM": (".bmp",),
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), (".tif", ".tiff")),
}
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


def not_numbers(array: Path | str, dtype: np.dtype[Any]) -> UserError:
    """Build the error for an array whose elements are not numbers."""
    hint = "numpy.save of an array of numbers"
    if dtype.names is not None:
        hint = f"numpy.save of one field: array[{dtype.names[0]!r}]"
    elif dtype.kind in "mM":
        hint = "numpy.save of array.astype('int64')"
    got, expected = f"dtype {dtype}", "a numeric dtype"
    return UserError(f"{array} does not hold numbers", got=got, expected=expected, hint=hint)


def no_array(path: Path, name: str, names: Sequence[str]) -> UserError:
    """Build the error for an array that a file of several arrays does not hold. names: what it holds."""
    close = get_close_matches(name, names, 1) or names[:1]
    hint = f"{path}:{close[0]}".rstrip(":") if close else None
    return UserError(f"{path} holds no array {name}", got=listing(names) or "no arrays of numbers", hint=hint)


def other_format(path: Path, own: str) -> str | None:
    """Return the hint for a file whose first bytes are of another format than its suffix; None for others.

    own: the suffix.
    """
    with open(path, "rb") as file:
        begin = file.read(8)
    endings = next((endings for start, endings in SIGNATURES.items() if begin.startswith(start)), (own,))
    return None if own in endings else f"mv {path} {path.with_suffix(endings[0])}"


def listing(names: Sequence[str]) -> str:
    """Return names for a message: the first ones, and their number if there are more."""
    shown = ", ".join(names[:LISTED])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > LISTED else shown
