"""A report as one self-contained HTML page: no network, no other file.

The templates in page/ define the layout and escape every value. The page's policy (CSP) loads nothing and
runs only the page's own script, so host names cannot inject code.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.report import wording
from meshrun.jobs.validate.report.formats import json as json_format
from meshrun.jobs.validate.report.model import RateCurve, RateMatrix, Report
from meshrun.jobs.validate.report.remedies import remedies
from meshrun.jobs.validate.report.wording import byte_size, gbps, not_shown

PAGE = Path(__file__).with_name("page")
SIGN = {"ok": "✓", "warning": "!", "critical": "✕", "unknown": "?"}
RANKS = 64  # ranks that are listed
DRAWN = 16  # drawings of one kind

COLOUR_STEPS = (0.95, 0.9, 0.75, 0.5)  # shares of the median rate
SLOW = 0.9  # share of the median rate below which a pair is shown as slow
LARGEST_TABLE = 16  # labels; a larger matrix is drawn on a canvas
TITLES: dict[tuple[RungName, str], str] = {
    ("pairs", "copies"): "GPU pairs, copies",
    ("pairs", "flows"): "GPU pairs, flows",
    ("host pairs", "flows"): "Host pairs",
}

WIDTH, HEIGHT = 360, 196  # of a drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 44, 348, 12, 172  # the frame of a curve


def text(report: Report) -> str:
    """Return the page, which declares UTF-8."""
    script = (PAGE / "heat.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    context = {
        "report": report,
        "verdict": report.verdict,
        "headline": wording.headline(report),
        "sign": SIGN[report.verdict.status],
        "remedies": remedies(report),
        "assumptions": wording.assumptions(report),
        "heat_sections": list(heat_sections(report)),
        "drawings": [drawing(one) for one in report.curves if measured_points(one)],
        "loads": wording.load_rows(report),
        "load_columns": wording.LOAD_COLUMNS,
        "changes": sorted(report.changes, key=lambda one: one.weight != "fault"),
        "nccl": wording.nccl_sentences(report),
        "comparison": wording.comparison(report),
        "style": Markup((PAGE / "style.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "script_hash": Markup(f"sha256-{digest}"),
        # A "<" in the data could end the script element.
        "json": Markup(json_format.text(report).replace("<", "\\u003c")),
    }
    return templates().get_template("page.html").render(context)


@cache
def templates() -> Environment:
    """Load the templates of the page, with their filters and globals."""
    found = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        finalize=printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for shared in (
        wording.counter_value,
        wording.duration,
        wording.fleet,
        wording.gbps,
        wording.not_shown,
        wording.part_name,
        wording.percent,
        wording.rate_text,
        wording.unit_name,
    ):
        found.filters[shared.__name__] = shared
    found.tests["measured"] = measured
    found.globals.update(
        {"rates": wording.rates, "colour_step": colour_step, "zip": zip}
        | {"most": wording.MOST, "ranks": RANKS, "drawn": DRAWN}
        | {"colour_steps": COLOUR_STEPS, "slow": SLOW, "largest_table": LARGEST_TABLE}
        | {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT}
    )
    return found


def printable(value: object) -> object:
    """Format a value before it is escaped: on one line, with a no-break space before each unit."""
    if isinstance(value, Markup):
        return value
    line = wording.printable(str(value))
    for unit in ("%", "GB/s", "TFLOP/s"):
        line = line.replace(f" {unit}", f"\N{NO-BREAK SPACE}{unit}")
    return line


# Heat maps of GPU pairs and of host pairs.


@dataclass(frozen=True)
class HeatMap:
    """number: index of the matrix in the report. slowest: row, column and rate of its slowest pairs."""

    number: int
    matrix: RateMatrix
    slowest: list[tuple[int, int, float]]

    @property
    def least(self) -> float:
        return self.slowest[0][2]


@dataclass(frozen=True)
class HeatSection:
    """The matrices of one operation, the one with the slowest pair first.

    usual: the median of all rates. slow: matrices with a slow pair, at least one. good: the others.
    """

    title: str
    usual: float
    slow: list[HeatMap]
    good: list[HeatMap]
    not_shown: str


def heat_sections(report: Report) -> Iterator[HeatSection]:
    for measurement, title in TITLES.items():
        maps, rates = [], []
        for number, matrix in enumerate(report.matrices):
            if (matrix.rung, matrix.what) == measurement and (pairs := list(matrix.measured())):
                maps.append(HeatMap(number, matrix, heapq.nsmallest(5, pairs, key=lambda pair: pair[2])))
                rates += [rate for *_, rate in pairs]
        if maps:
            maps.sort(key=lambda one: one.least)
            usual = statistics.median(rates)
            slow = max(sum(one.least < SLOW * usual for one in maps), 1)
            yield HeatSection(title, usual, maps[:DRAWN][:slow], maps[:DRAWN][slow:], not_shown(maps, DRAWN))


def measured(rate: float | None) -> bool:
    return rate is not None and math.isfinite(rate)


def colour_step(rate: float, usual: float) -> int:
    """Return the number of `COLOUR_STEPS` that a rate is below."""
    return sum(rate < least * usual for least in COLOUR_STEPS)


# Curves of rates by size.


class PlotMark(NamedTuple):
    """A point in a drawing, and its label."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Drawing:
    """A curve in a frame. best: its highest rate, as text. rates, sizes: axis labels."""

    title: str
    rung: RungName
    best: str
    points: list[PlotMark]
    rates: list[PlotMark]
    sizes: list[PlotMark]
    limit: PlotMark | None


def drawing(curve: RateCurve) -> Drawing:
    """Draw a curve: sizes on a logarithmic axis, rates from 0 to 10 % above the highest rate or limit."""
    points = measured_points(curve)
    sizes = sorted({nbytes for nbytes, _ in points})
    best = max(rate for _, rate in points)
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])
    top = 1.1 * max(best, curve.limit or 0.0) or 1.0
    step = round_step(top / 4)

    def mark(nbytes: int, rate: float, label: str) -> PlotMark:
        x = LEFT + (math.log2(nbytes) - low) / ((high - low) or 1) * (RIGHT - LEFT)
        return PlotMark(round(x, 1), round(BOTTOM - rate / top * (BOTTOM - TOP), 1), label)

    return Drawing(
        curve.title,
        curve.rung,
        gbps(best),
        [mark(nbytes, rate, f"{byte_size(nbytes)}: {gbps(rate)} GB/s") for nbytes, rate in points],
        [mark(sizes[0], n * step, f"{n * step / 1e9:g}") for n in range(int(top / step) + 1)],
        [mark(nbytes, 0.0, byte_size(nbytes)) for nbytes in sizes[:: math.ceil(len(sizes) / 5)]],
        mark(sizes[0], curve.limit, gbps(curve.limit)) if curve.limit else None,
    )


def measured_points(curve: RateCurve) -> list[tuple[int, float]]:
    return [(nbytes, rate) for nbytes, rate in curve.points if nbytes > 0 and math.isfinite(rate)]


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))
