"""The line on a terminal that says what is being measured; the next output replaces it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

CLEAR = "\r\x1b[K"


@dataclass(frozen=True)
class StatusLine:
    """columns: the terminal's width; None shows nothing.

    on_stdout: write to standard output, which is the same terminal: two streams would not arrive in order.
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
