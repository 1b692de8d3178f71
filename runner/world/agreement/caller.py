"""Where the program is that has called meshrun."""

from __future__ import annotations

import functools
import sys
from types import CodeType, FrameType


def callers_line() -> tuple[CodeType | None, int]:
    """Return the code and the line of the program that called meshrun; no code if there is none."""
    frame = callers_frame()
    return (None, 0) if frame is None else (frame.f_code, frame.f_lineno)


def callers_frame() -> FrameType | None:
    """Return the frame of the program that called meshrun; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame


@functools.lru_cache(4096)
def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("meshrun", "numpy", "contextlib")


def told_line(code: CodeType | None, line: int) -> str:
    """Return the file and the line, for a message."""
    return "" if code is None else f" in {code.co_filename}, line {line}"
