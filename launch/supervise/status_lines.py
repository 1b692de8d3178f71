"""Status lines: reports of ranks to the process that started them, mixed with their output."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshrun.runner.world.run_status import RunDirectory


class StatusLines:
    """Filter of one stream, in chunks of any size: status lines go to `run`, the rest is returned."""

    def __init__(self, run: RunDirectory, token: str) -> None:
        from meshrun.runner.world.run_status import LINE

        self.run = run
        self._mark = f"{LINE} {token} ".encode()
        self._pending = b""  # an unfinished status line, or the beginning of one

    def feed(self, chunk: bytes) -> bytes:
        """The part of `chunk`, and of withheld text before it, that is not a status line."""
        text, self._pending = self._pending + chunk, b""
        passed = b""
        while (start := text.find(self._mark)) >= 0:
            passed, line, rest = passed + text[:start], text[start:], b""
            line, newline, rest = line.partition(b"\n")
            if not newline:
                self._pending = line
                return passed
            self._receive(line)
            text = rest
        kept = self._beginning(text)
        self._pending = text[len(text) - kept :]
        return passed + text[: len(text) - kept]

    def finish(self) -> bytes:
        """The text withheld at the end of the stream."""
        rest, self._pending = self._pending, b""
        return rest

    def _receive(self, line: bytes) -> None:
        try:
            self.run.read_line(line.decode())
        except ValueError:  # truncated by a launcher that ended; without it the run counts as failed
            return

    def _beginning(self, text: bytes) -> int:
        """Number of last bytes that may begin a status line."""
        longest = min(len(text), len(self._mark) - 1)
        return next((n for n in range(longest, 0, -1) if self._mark.startswith(text[-n:])), 0)
