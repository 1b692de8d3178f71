"""What the command's options say of a streamed run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.errors import UserError

DEPTH = 3
DEPTH_MOST = 1024  # chunks under way: each has a thread, and buffers of its own
SIZE_MOST = (1 << 63) - 1  # bytes: what a file's offset can say


@dataclass(frozen=True)
class StreamOptions:
    """chunk_bytes: of a chunk's input with its halo. host_memory, device_memory: bytes, of each rank.

    depth: chunks under way. None, of these: chosen. resume: go on with an unfinished run. static: no rank
    takes over chunks of another. timeline: a file to draw the run in.
    """

    chunk_bytes: int | None = None
    host_memory: int | None = None
    device_memory: int | None = None
    depth: int | None = None
    resume: bool = False
    static: bool = False
    timeline: str | None = None

    @property
    def under_way(self) -> int:
        """Chunks under way at once."""
        return self.depth or DEPTH

    @property
    def named(self) -> str | None:
        """An option that only a streamed run has, if one was given."""
        given = {
            "--chunk-bytes": self.chunk_bytes is not None,
            "--host-memory": self.host_memory is not None,
            "--device-memory": self.device_memory is not None,
            "--depth": self.depth is not None,
            "--resume": self.resume,
            "--static": self.static,
            "--timeline": self.timeline is not None,
        }
        return next((name for name, here in given.items() if here), None)


def parse_size(text: str) -> int:
    """A number of bytes: 64M, 1.5G; K, M, G and T are powers of 1024. UserError for what is none."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UserError(f"{text!r} is not a size", expected="a number of bytes such as 64M or 1.5G")
    whole, unit = found[1], 1024 ** " KMGT".index(found[2].upper() or " ")
    return check_size(int(whole) * unit if whole.isdecimal() else int(float(whole) * unit), text)


def check_size(size: int, text: object) -> int:
    """`size`, where it can be one of a file or a memory; `text`: as it was given."""
    if size < 1:
        raise UserError(f"{text!r} is not a size", expected="a number of bytes such as 64M or 1.5G")
    if size > SIZE_MOST:
        raise UserError(
            f"{text!r} is more than any file or memory has", expected=f"at most {SIZE_MOST} bytes"
        )
    return size
