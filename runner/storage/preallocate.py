"""Room on the disk for a file, claimed before the file is written."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from typing import Any

UNCLAIMING = (errno.EOPNOTSUPP, errno.ENOSYS)  # file systems that give a file its room block by block


def allocate(descriptor: int, size: int) -> None:
    """Claim room for `size` bytes on the disk, or only the size where a file system cannot."""
    try:
        if size:
            fallocate(descriptor, size)
    except OSError as reason:
        if reason.errno not in UNCLAIMING:
            raise
        os.ftruncate(descriptor, max(size, os.fstat(descriptor).st_size))


def fallocate(descriptor: int, size: int) -> None:
    """fallocate(2). Python has posix_fallocate(3), which without that call writes every block."""
    while _system_call()(descriptor, 0, 0, size):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _system_call() -> Callable[[int, int, int, int], int]:
    """Of descriptor, mode, offset and length; not 0 when it failed."""
    library = ctypes.CDLL(None, use_errno=True)
    call: Any = getattr(library, "fallocate64", None) or library.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    found: Callable[[int, int, int, int], int] = call
    return found
