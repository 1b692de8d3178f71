"""Write to a file through mapped pages, so that several threads can write at once: pwrite locks the file.

Used only if writes to allocated pages cannot fail: a failed write to a page raises a signal instead of an
error.
"""

from __future__ import annotations

import mmap
import os
from functools import cache
from pathlib import Path

import numpy as np

from meshrun.runner.files import open_file
from meshrun.runner.region import HostArray
from meshrun.runner.storage.file_errors import unclaimed

# File systems whose fallocate reserves the space that a page will need.
CLAIMING = ("tmpfs", "ext4", "xfs")


def claims(path: Path) -> bool:
    """Return whether the file is fully allocated, on a file system where writes to its pages cannot fail."""
    return unclaimed(path) is None and _file_system(os.stat(path).st_dev) in CLAIMING


def write(path: Path, offset: int, data: HostArray) -> None:
    """Write `data` at `offset`; the pages do not stay in this process's memory."""
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    with open_file(path, write=True) as file:
        pages = mmap.mmap(file.fileno(), skipped + data.nbytes, offset=offset - skipped)
    view = np.frombuffer(pages, np.uint8)
    view[skipped:] = data.reshape(-1).view(np.uint8)
    del view  # else the map cannot be closed
    pages.close()


@cache
def _file_system(device: int) -> str:
    """Return the type of the file system on a device, such as "ext4"; "" if it is not found."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == number:
                return kind.split()[0]
    return ""
