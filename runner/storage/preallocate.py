"""Allocate space on the disk for a file before the file is written."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from typing import Any

UNCLAIMING = (errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems that allocate only block by block


def allocate(descriptor: int, size: int) -> None:
    """Allocate `size` bytes on the disk; only set the file's size if the file system cannot allocate."""
    try:
        if size:
            fallocate(descriptor, size)
    except OSError as reason:
        if reason.errno not in UNCLAIMING:
            raise
        os.ftruncate(descriptor, max(size, os.fstat(descriptor).st_size))


def fallocate(descriptor: int, size: int) -> None:
    """Call fallocate(2). Python's posix_fallocate(3) would write every block if a file system lacks it."""
    while _system_call()(descriptor, 0, 0, size):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _system_call() -> Callable[[int, int, int, int], int]:
    """Return the function of descriptor, mode, offset and length; its result is not 0 if it failed."""
    library = ctypes.CDLL(None, use_errno=True)
    call: Any = getattr(library, "fallocate64", None) or library.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    found: Callable[[int, int, int, int], int] = call
    return found
