"""Writing to a file's pages directly, so that several threads can: pwrite lets one at a time into a file.

Only where what was claimed can be written: to a page, a failed write is a signal and no error.
"""

from __future__ import annotations

import mmap
import os
from functools import cache
from pathlib import Path

import numpy as np

from runner.files import open_file
from runner.region import HostArray
from runner.storage.file_errors import unclaimed

# File systems whose fallocate claims the room that a page will need.
CLAIMING = ("tmpfs", "ext4", "xfs")


def claims(path: Path) -> bool:
    """Whether what was claimed of this file, if anything was, is written to its pages without fail."""
    return unclaimed(path) is None and _file_system(os.stat(path).st_dev) in CLAIMING


def write(path: Path, offset: int, data: HostArray) -> None:
    """Write bytes from `offset` on; the pages do not stay in this process's memory."""
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    with open_file(path, write=True) as file:
        pages = mmap.mmap(file.fileno(), skipped + data.nbytes, offset=offset - skipped)
    view = np.frombuffer(pages, np.uint8)
    view[skipped:] = data.reshape(-1).view(np.uint8)
    del view  # or the map could not be closed
    pages.close()


@cache
def _file_system(device: int) -> str:
    """The type of the file system that is this device: "ext4"; "" where it is not found."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == number:
                return kind.split()[0]
    return ""
