"""Host memory in huge pages, on this kernel and on those that give none."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest

from meshrun.runner.device.raw import huge_pages
from meshrun.runner.errors import UserError


def given() -> bool:
    """Whether this kernel gives huge pages to those who ask, and has some now."""
    size = 1 << 24

    def in_huge_pages() -> int:
        found = re.search(r"AnonHugePages: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
        return int(found[1]) if found else 0

    try:
        before = in_huge_pages()
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory[::4096] = bytes(size // 4096)
            return in_huge_pages() - before > size // 2048  # kB: half of it
    except OSError:
        return False


@pytest.mark.skipif(not given(), reason="no transparent huge pages")
@pytest.mark.parametrize("nbytes", [1, 4096, 5_000_001])
def test_memory_is_in_huge_pages(nbytes: int) -> None:
    page, before = huge_pages.page_bytes(), huge_pages.bytes_in_huge_pages()
    array = huge_pages.huge_array(nbytes)
    assert (array.nbytes, array.ctypes.data % page) == (nbytes, 0)
    assert huge_pages.bytes_in_huge_pages() - before >= -(-nbytes // page) * page * huge_pages.ENOUGH
    array[...] = 7  # all of it is ours to write
    assert int(array.sum()) == 7 * nbytes


def test_small_pages_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take the wish and not follow it."""
    rollup = tmp_path / "smaps_rollup"
    rollup.write_text("Rss: 100 kB\nAnonHugePages:    2048 kB\n")
    (tmp_path / "hpage_pmd_size").write_text("2097152\n")
    monkeypatch.setattr(huge_pages, "ROLLUP", rollup)
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    with pytest.raises(UserError, match=r"small pages: got 0 of 4,194,304 bytes.*echo madvise > "):
        huge_pages.huge_array(3 << 20)


@pytest.mark.parametrize("text", [None, "", "many"])
def test_a_kernel_without_huge_pages(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "hpage_pmd_size").write_text(text)
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    with pytest.raises(UserError, match="this kernel has no transparent huge pages"):
        huge_pages.huge_array(1)
