"""The rows of --csv: the columns of the table with full precision, in a form that spreadsheets read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.results import Header, ResultRow

KEYS = ("program", "backend", "ranks", "size_bytes", "count", "type", "redop", "root")
PLACEMENTS = ("out_of_place", "in_place")


def titles(settings: SweepSettings) -> str:
    """Return the first line. With -C, times are those until the calls were queued, under another title."""
    time = "cputime_us" if settings.report_cputime else "time_us"
    figures = (time, "algbw_gb_per_s", "busbw_gb_per_s", "wrong")
    return _joined([*KEYS, *(f"{placement}_{figure}" for placement in PLACEMENTS for figure in figures)])


def line(settings: SweepSettings, header: Header, row: ResultRow) -> str:
    """Return one size, both placements. A result that was not checked has no number of wrong elements."""
    cells: list[object] = [header.program, header.backend, len(header.ranks)]
    cells += [row.size, row.count, row.datatype, row.reduction, row.root]
    for measured in (row.out_of_place, row.in_place):
        seconds = measured.cpu_seconds if settings.report_cputime else measured.seconds
        cells += [seconds * 1e6, measured.algbw, measured.busbw, measured.wrong]
    return _joined(cells)


def _joined(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
