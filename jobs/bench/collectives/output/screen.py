"""Output of rank 0 during a measurement: nccl-tests' text; on a terminal with colour and a progress line."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.output import names, nccl_tests_text
from meshrun.jobs.bench.collectives.results import Footer, Header, ResultRow
from meshrun.jobs.measure.record_file import print_table, text_stream
from meshrun.jobs.measure.status_line import CLEAR, StatusLine
from meshrun.runner.errors import tell

MAX_NAMED = 8  # ranks with wrong data that are named on standard error, for each row


@dataclass
class Screen:
    """Output of rank 0; nothing on other ranks.

    shows: whether this is rank 0. colour: whether standard output is a terminal. columns: width of the
    terminal on standard error; None without one. With `-J -` the text goes to standard error, without colour.
    """

    shows: bool
    options: BenchOptions
    colour: bool = False
    columns: int | None = None

    def __post_init__(self) -> None:
        self._stream = text_stream(self.options.output_file)
        self.colour = self.colour and self._stream is sys.stdout

    def line(self, text: str) -> None:
        """Print one or several lines, given with their line ends."""
        if self.shows:
            print_table((CLEAR if self.colour else "") + text, self._stream)

    def header(self, settings: SweepSettings, header: Header) -> None:
        self.line(nccl_tests_text.header(settings, header, self._further))

    def row(self, settings: SweepSettings, header: Header, row: ResultRow) -> None:
        if not self.shows:
            return
        text = nccl_tests_text.row(settings, row, self._further)
        shown = nccl_tests_text.colour(text, row) if self.colour else text
        self._status.clear()
        self.line(shown + (names.names(row, header) if self.options.names else ""))
        for sentence in names.mismatches(row)[:MAX_NAMED]:
            tell(sentence)

    def footer(self, settings: SweepSettings, footer: Footer, program: str) -> None:
        self._status.clear()
        self.line(nccl_tests_text.footer(settings, footer, program))

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far the run is; total: rows, 0 if the run is endless."""
        self._status.show(f"[{done}{f'/{total}' if total else ''}] {what}")

    @property
    def _further(self) -> list[nccl_tests_text.FurtherColumns]:
        options = self.options
        shown = (
            (options.wide, nccl_tests_text.WIDE),
            (options.show_tuning, nccl_tests_text.TUNING),
            (options.wires, nccl_tests_text.WIRES),
        )
        return [columns for chosen, columns in shown if chosen]

    @property
    def _status(self) -> StatusLine:
        return StatusLine(self.columns if self.shows else None, on_stdout=self.colour)
