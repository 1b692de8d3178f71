"""The progress line on a terminal, which the next output replaces."""

from __future__ import annotations

import sys
from dataclasses import dataclass

CLEAR = "\r\x1b[K"


@dataclass(frozen=True)
class StatusLine:
    """columns: the terminal's width; None shows nothing.

    on_stdout: write to standard output, the same terminal, because two streams would not stay in order.
    """

    columns: int | None
    on_stdout: bool = False

    def show(self, text: str) -> None:
        if self.columns:
            self._write(f"{CLEAR}{text[: self.columns - 1]}")

    def clear(self) -> None:
        if self.columns:
            self._write(CLEAR)

    def _write(self, text: str) -> None:
        stream = sys.stdout if self.on_stdout else sys.stderr
        stream.write(text)
        stream.flush()
