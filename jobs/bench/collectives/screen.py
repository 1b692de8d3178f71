"""What rank 0 shows while it measures: nccl-tests' text, coloured and with a progress line on a terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

import runner
from jobs.bench.collectives import names, nccl_tests_text
from jobs.bench.collectives.asked import Asked
from jobs.bench.collectives.config import Settings
from jobs.bench.collectives.results import Footer, Header, Row

TOLD = 8  # ranks with wrong data that are named on standard error, for each row
CLEAR = "\r\x1b[K"


@dataclass
class Screen:
    """shows: whether this is rank 0. colour: standard output is a terminal. columns: the width of the
    terminal that standard error is, None where it is none."""

    shows: bool
    asked: Asked
    colour: bool = False
    columns: int | None = None

    def line(self, text: str) -> None:
        """A line, or several, with their ends."""
        if self.shows:
            sys.stdout.write((CLEAR if self.colour else "") + text)
            sys.stdout.flush()

    def header(self, settings: Settings, header: Header) -> None:
        self.line(nccl_tests_text.header(settings, header, wide=self.asked.wide))

    def row(self, settings: Settings, header: Header, row: Row) -> None:
        if not self.shows:
            return
        text = nccl_tests_text.row(settings, row, wide=self.asked.wide)
        shown = nccl_tests_text.colour(text, row) if self.colour else text
        self.clear()
        self.line(shown + (names.names(row, header) if self.asked.names else ""))
        for sentence in names.wrong(row)[:TOLD]:
            runner.tell(sentence)

    def footer(self, settings: Settings, footer: Footer, program: str) -> None:
        self.clear()
        self.line(nccl_tests_text.footer(settings, footer, program))

    def progress(self, doing: str, done: int, total: int) -> None:
        """A line that the next output replaces; nothing where there is no terminal."""
        if self.shows and self.columns:
            of = f"/{total}" if total else ""
            text = f"[{done}{of}] {doing}"[: self.columns - 1]
            self._status.write(f"{CLEAR}{text}")
            self._status.flush()

    def clear(self) -> None:
        if self.shows and self.columns:
            self._status.write(CLEAR)
            self._status.flush()

    @property
    def _status(self) -> TextIO:
        # On one terminal, one stream: two would not arrive in order.
        return sys.stdout if self.colour else sys.stderr
