"""Options of streamed runs, and the parser of sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshrun.runner.errors import UserError
from meshrun.runner.options.spelling import option

DEPTH = 3
DEPTH_MOST = 1024  # chunks in flight: each has a thread and buffers of its own
DIGITS_MOST = 40  # that the value of a size depends on
LENGTH_DIGITS = 19  # of an int64
SIZE_MOST = (1 << 63) - 1  # bytes: the largest file offset


@dataclass(frozen=True)
class StreamOptions:
    """Options of a streamed run; None: chosen by the planner.

    chunk_bytes: bytes of a chunk's input including its halo. host_memory, device_memory: bytes per rank.
    depth: chunks in flight. resume: continue an unfinished run. static: disable work stealing. timeline:
    file to draw the run in.
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
        """Chunks in flight at once."""
        return self.depth or DEPTH

    @property
    def named(self) -> str | None:
        """The first given option that applies only to streamed runs, as `option` spells it."""
        given = {
            "chunk_bytes": self.chunk_bytes is not None,
            "host_memory": self.host_memory is not None,
            "device_memory": self.device_memory is not None,
            "depth": self.depth is not None,
            "resume": self.resume,
            "static": self.static,
            "timeline": self.timeline is not None,
        }
        return next((option(name) for name, here in given.items() if here), None)


def is_length(word: str) -> bool:
    """Return whether a word is the digits of a length; Python refuses to convert thousands of them."""
    return word.isascii() and word.isdecimal() and len(word) <= LENGTH_DIGITS


def parse_size(text: str) -> int:
    """Parse a size such as 64M or 1.5G into bytes (K, M, G, T: powers of 1024); raises UserError."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UserError(f"{text!r} is not a size", expected="a number of bytes such as 64M or 1.5G")
    whole, unit = found[1], 1024 ** " KMGT".index(found[2].upper() or " ")
    if len(whole) > DIGITS_MOST:  # more than Python or a float converts
        whole = whole.partition(".")[0].lstrip("0")[:DIGITS_MOST] or "0"
    return check_size(int(whole) * unit if whole.isdecimal() else int(float(whole) * unit), text)


def check_size(size: int, text: object) -> int:
    """Return `size` if a file or memory can have it, else raise UserError. text: the size as given."""
    if size < 1:
        raise UserError(f"{text!r} is not a size", expected="a number of bytes such as 64M or 1.5G")
    if size > SIZE_MOST:
        raise UserError(
            f"{text!r} is more than any file or memory has", expected=f"at most {SIZE_MOST} bytes"
        )
    return size
