"""The sentences for files that cannot be read or written."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.errors import RunError
from runner.region import Region
from runner.storage.paths import is_kept

LISTED = 8  # names in a sentence
BLOCK = 512  # bytes: the unit in which stat(2) counts a file's room
FULL = (errno.ENOSPC, errno.EDQUOT)


def check_part(array: np.ndarray[Any, Any], dtype: np.dtype[Any], region: Region) -> None:
    """ValueError unless `array` is as `region` of an array of `dtype` is: a mistake of the caller's."""
    if (array.dtype, array.shape) != (dtype, region.shape):
        raise ValueError(f"{array.dtype} {array.shape} is not {dtype} {region.shape}, region {region}")


def write_error(
    path: Path, reason: OSError, needed: int | None = None, what: str = "", partial: Path | None = None
) -> RunError:
    """The sentence for a failed write: a full disk is the common one.

    needed: bytes. what: they are for, where that is not the whole output. partial: what stays of it, or
    the folder that it is in.
    """
    detail = reason.strerror or str(reason)
    try:
        disk = os.statvfs(path.parent)
        free = disk.f_bavail * disk.f_frsize
    except OSError:
        return RunError(f"cannot write {path}", got=detail)
    expected = None if needed is None else f"{needed:,} bytes {what}".rstrip()
    goes_on = partial is not None and is_kept(partial) and reason.errno in FULL
    return RunError(
        f"cannot write {path}",
        got=f"{detail}, {free:,} bytes free there",
        expected=expected,
        hint="make room, then the same command with --resume" if goes_on else "an output on another disk",
    )


def unclaimed(file: Path) -> int | None:
    """Return how many bytes of a file have no room on the disk yet; None if all have, or it is unknown."""
    try:
        found = file.stat()
    except OSError:
        return None
    return max(found.st_size - found.st_blocks * BLOCK, 0) or None


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
