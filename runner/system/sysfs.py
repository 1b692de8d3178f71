"""Read files of /sys and /proc, which may be missing or unreadable."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """The file's text, stripped; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def numbers(listed: str) -> tuple[int, ...]:
    """Parse the kernel's list format: "0-2,8" is 0, 1, 2, 8; ascending."""
    found: set[int] = set()
    for part in filter(None, listed.replace("\n", "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
