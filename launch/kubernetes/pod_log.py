"""Forward a pod's log exactly once, even if the connection to the cluster breaks."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable

from meshrun.launch.supervise.launcher_output import OutputFilter
from meshrun.launch.supervise.status_lines import StatusLines
from meshrun.launch.supervise.supervisor import TAIL, pass_on

REST = 20.0  # seconds for the rest of the log after the pod's program has ended
SHORT = 5.0  # seconds; a stream that lasted longer is not counted as a failure when it breaks


class PodLog:
    """Forwards a pod's output to standard output, without status lines and mpiexec's own messages.

    stream: opens the log at its beginning or at a time; each line begins with its time and a space. failures:
    number of consecutive streams that broke immediately without output; reason: of the last failure.
    """

    def __init__(
        self, stream: Callable[[str | None], subprocess.Popen[bytes]], status_lines: StatusLines
    ) -> None:
        self._stream, self._status_lines, self._filter = stream, status_lines, OutputFilter()
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""  # an unfinished line
        self._last = b""  # the time of the last line; times are of one form, and in order
        self._tail = b""
        self._opened = 0.0
        self.failures = 0
        self.reason = ""

    @property
    def launcher_output(self) -> str:
        return self._filter.withheld.decode(errors="replace")

    @property
    def output_tail(self) -> str:
        return self._tail.decode(errors="replace")

    def relay(self, seconds: float) -> bool:
        """Forward the log for so many seconds; False as soon as the stream has ended."""
        if self._process is None:
            self._process = self._stream(self._last.decode() or None)
            self._opened = time.monotonic()
            self._pending = b""  # a line cut by a break is sent again
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._process.stdout], [], [], left)[0]:
                return True
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                self._ended()
                return False
            self._feed(chunk)
        return True

    def rest(self) -> None:
        """Forward the rest of the log of a pod whose program has ended."""
        if self._process is not None:
            self.relay(REST)
            self.close()
        # That stream may have broken before the last lines, which matter most.
        self.relay(REST)
        self._show(self._without_time(self._pending))

    def finish(self) -> None:
        """Forward withheld output."""
        self.close()
        self._pass_on(self._filter.feed(self._status_lines.finish()) + self._filter.finish())

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ended(self) -> None:
        assert self._process is not None
        _, errors = self._process.communicate()
        short = time.monotonic() - self._opened < SHORT
        self.failures = self.failures + 1 if short and self._process.returncode else 0
        self.reason = " ".join(errors.decode(errors="replace").split())
        self._process = None

    def _feed(self, chunk: bytes) -> None:
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            self._show(self._without_time(line + b"\n"))
        if lines:
            self.failures = 0

    def _without_time(self, line: bytes) -> bytes:
        """A line's text; empty for a line that has already been forwarded."""
        when, _, text = line.partition(b" ")
        if when <= self._last:
            return b""
        self._last = when
        return text

    def _show(self, text: bytes) -> None:
        self._pass_on(self._filter.feed(self._status_lines.feed(text)))

    def _pass_on(self, text: bytes) -> None:
        self._tail = (self._tail + text)[-TAIL:]
        pass_on(1, text)
