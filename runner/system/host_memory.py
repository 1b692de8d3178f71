"""Host memory, total and free, and processors, within the limits of this process's control groups."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from meshrun.runner.system.launcher import environment

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")
ROOM = 1.25  # times the bytes of files in memory that must be free
# Of glibc's mallopt(3): memory that is freed stays with the process, up to TRIM bytes at the end of its heap;
# blocks of up to MMAP bytes, the most that it allows, come from there; the heap grows by PAD bytes.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
TRIM, PAD, MMAP = 512 << 20, 16 << 20, 32 << 20
TUNED = "MALLOC_"  # the environment variables of a user who has chosen otherwise


@functools.cache
def keep_freed_memory() -> bool:
    """Have temporary arrays of megabytes reuse memory; return whether this C library can.

    glibc gives such memory back to the kernel when it is freed, and the kernel fills each page with zeros
    when it is touched again: that takes twice as long as a NumPy expression over data in a cache.
    """
    if any(name.startswith(TUNED) for name in environment()):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    chosen = ((M_TRIM_THRESHOLD, TRIM), (M_TOP_PAD, PAD), (M_MMAP_THRESHOLD, MMAP))
    return all(mallopt(what, value) == 1 for what, value in chosen)


def host_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes of this host's memory, or the limit of its container or job if that is lower."""
    return min([_meminfo(proc, "MemTotal"), *(limit for limit, _ in _groups(proc, cgroup))])


def free_host_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes of available host memory, or what is left of the limit of its container or job if that is less.

    Inactive file pages do not count as used by a control group: the kernel reclaims them.
    """
    left = [max(limit - used, 0) for limit, used in _groups(proc, cgroup)]
    return min([_meminfo(proc, "MemAvailable"), *left])


def memory_folder(needed: int) -> Path | None:
    """Return /dev/shm if files of `needed` bytes fit it and the free memory, with some room to spare."""
    try:
        free = min(shutil.disk_usage(SHARED_MEMORY).free, free_host_memory())
    except OSError:
        return None
    return SHARED_MEMORY if free > ROOM * needed else None


def _meminfo(proc: Path, name: str) -> int:
    with open(proc / "meminfo") as lines:
        found = next(line for line in lines if line.startswith(f"{name}:"))
    return int(found.split()[1]) << 10


def host_processors(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Number of this host's processors, or the limit of its container or job if that is lower."""
    found = os.cpu_count() or 1
    for group, unified in _folders("cpu", proc, cgroup):
        with suppress(OSError, ValueError):  # "max" is not a number
            if unified:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:
                found = min(found, max(int(quota) // int(period), 1))
    return found


def _groups(proc: Path, cgroup: Path) -> Iterator[tuple[int, int]]:
    """Limit and usage, in bytes, of this process's control group and its parents, for those with a limit."""
    for group, unified in _folders("memory", proc, cgroup):
        limit, used, files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if unified:
            limit, used, files = "memory.max", "memory.current", "inactive_file"
        with suppress(OSError, ValueError):  # "max" is not a number
            yield int((group / limit).read_text()), _used(group, used, files)


def _folders(kind: str, proc: Path, cgroup: Path) -> Iterator[tuple[Path, bool]]:
    """Folders of this process's control group and its parents, and whether they are of version 2.

    kind: the controller, for version 1.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, kinds, name = line.split(":", 2)
        if number != "0" and kind not in kinds.split(","):
            continue
        top = cgroup if number == "0" else cgroup / kind
        group = top / name.lstrip("/")
        for path in (group, *group.parents):
            if path == top.parent:
                break
            yield path, number == "0"


def _used(group: Path, used: str, files: str) -> int:
    """Bytes in use; 0 if the group does not report them."""
    found = 0
    with suppress(OSError, ValueError):
        found = int((group / used).read_text())
        words = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        found -= int(words.get(files, 0))
    return found
