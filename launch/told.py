"""Lines that ranks tell whoever started them, taken out of what they print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.run_status import RunDirectory


class Told:
    """One stream, in chunks of any size; what its lines tell goes to `run`."""

    def __init__(self, run: RunDirectory, token: str) -> None:
        from runner.run_status import LINE

        self._run = run
        self._mark = f"{LINE} {token} ".encode()
        self._pending = b""  # an unfinished line of ours, or what may become one

    def feed(self, chunk: bytes) -> bytes:
        """What of `chunk`, and of what was held back before it, is for people."""
        text, self._pending = self._pending + chunk, b""
        passed = b""
        while (start := text.find(self._mark)) >= 0:
            passed, line, rest = passed + text[:start], text[start:], b""
            line, newline, rest = line.partition(b"\n")
            if not newline:
                self._pending = line
                return passed
            self._hear(line)
            text = rest
        kept = self._beginning(text)
        self._pending = text[len(text) - kept :]
        return passed + text[: len(text) - kept]

    def finish(self) -> bytes:
        rest, self._pending = self._pending, b""
        return rest

    def _hear(self, line: bytes) -> None:
        try:
            self._run.read_line(line.decode())
        except ValueError:  # cut in two by a launcher that was ending: without it the run counts as failed
            return

    def _beginning(self, text: bytes) -> int:
        """How many of the last bytes may begin a line of ours."""
        longest = min(len(text), len(self._mark) - 1)
        return next((n for n in range(longest, 0, -1) if self._mark.startswith(text[-n:])), 0)
