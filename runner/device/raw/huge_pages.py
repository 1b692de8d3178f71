"""Host memory in huge pages, of which the kernel is asked whether they are."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.errors import UserError

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
ROLLUP = Path("/proc/self/smaps_rollup")
ENOUGH = 0.9  # of the bytes


def huge_array(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return zeros in huge pages. Raises UserError if the kernel gives too few."""
    page = page_bytes()
    size = -(-nbytes // page) * page
    before = bytes_in_huge_pages()
    memory = mmap.mmap(-1, size + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % page
    whole[start : start + size : mmap.PAGESIZE] = 0  # the first touch maps a page
    found = bytes_in_huge_pages() - before
    if found < ENOUGH * size:
        raise UserError(
            "the kernel keeps host memory in small pages",
            got=f"{max(found, 0):,} of {size:,} bytes in huge pages",
            hint=f"echo madvise > {SETTINGS / 'enabled'}; free memory may be in too small pieces",
        )
    return whole[start : start + nbytes]


def page_bytes() -> int:
    """Return the bytes of a huge page. Raises UserError if the kernel has none."""
    try:
        return int((SETTINGS / "hpage_pmd_size").read_text())
    except (OSError, ValueError) as reason:
        raise UserError("this kernel has no transparent huge pages", why=str(reason)) from reason


def bytes_in_huge_pages() -> int:
    """Return how much of this process's memory is in huge pages."""
    for line in ROLLUP.read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return 1024 * int(line.split()[1])
    raise UserError(f"{ROLLUP} does not say what is in huge pages")
