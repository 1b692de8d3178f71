"""Curves of rates by size as SVG, with a line for what the hardware allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jobs.validate.report.formats.html_parts import escape, note, section
from jobs.validate.report.model import Curve, Report
from jobs.validate.report.wording import gbps, rest, size

DRAWN = 16
LEFT, RIGHT, TOP, BOTTOM = 44, 348, 12, 172  # the frame, in the drawing's own units
WIDE, HIGH = 360, 196


@dataclass(frozen=True)
class Frame:
    """Logarithms of bytes from low to high across, rates from 0 to top upwards."""

    low: float
    high: float
    top: float

    def x(self, nbytes: float) -> float:
        return LEFT + (math.log2(nbytes) - self.low) / ((self.high - self.low) or 1) * (RIGHT - LEFT)

    def y(self, rate: float) -> float:
        return BOTTOM - rate / self.top * (BOTTOM - TOP)


def curves(report: Report) -> str:
    drawn = [svg for svg in map(figure, report.curves) if svg]
    if not drawn:
        return ""
    return section(
        "Rates by size", f'<div class="maps">{"".join(drawn[:DRAWN])}</div>', note(rest(drawn, DRAWN))
    )


def figure(one: Curve) -> str:
    points = [(nbytes, rate) for nbytes, rate in one.points if nbytes > 0 and math.isfinite(rate)]
    if not points:
        return ""
    sizes, rates = [nbytes for nbytes, _ in points], [rate for _, rate in points]
    top = 1.1 * max([*rates, one.limit or 0.0])
    frame = Frame(math.log2(min(sizes)), math.log2(max(sizes)), top or 1.0)
    line = " ".join(f"{frame.x(nbytes):.1f},{frame.y(rate):.1f}" for nbytes, rate in points)
    dots = "".join(dot(frame, nbytes, rate) for nbytes, rate in points)
    said = f"{one.title}: up to {gbps(max(rates))} GB/s" + (f", limit {gbps(one.limit)}" if one.limit else "")
    return (
        f"<figure><figcaption>{escape(one.title)} (rung {one.rung}, GB/s)</figcaption>"
        f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(said)}">'
        f"{grid(frame, sizes)}{limit(frame, one.limit)}"
        f'<polyline class="line" points="{line}"/>{dots}</svg></figure>\n'
    )


def dot(frame: Frame, nbytes: int, rate: float) -> str:
    place = f'cx="{frame.x(nbytes):.1f}" cy="{frame.y(rate):.1f}"'
    return f'<circle {place} r="3.5"><title>{size(nbytes)}: {gbps(rate)} GB/s</title></circle>'


def limit(frame: Frame, rate: float | None) -> str:
    if not rate:
        return ""
    y = frame.y(rate)
    return (
        f'<line class="limit" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="limit-name" x="{LEFT + 4}" y="{y - 4:.1f}">limit {gbps(rate)}</text>'
    )


def grid(frame: Frame, sizes: list[int]) -> str:
    """Lines at round rates, and at most five of the sizes by name."""
    marks, step = "", round_step(frame.top / 4)
    for number in range(int(frame.top / step) + 1):
        y = frame.y(number * step)
        marks += f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        rate = f"{number * step / 1e9:g}"
        marks += f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rate}</text>'
    ordered = sorted(set(sizes))
    for nbytes in ordered[:: math.ceil(len(ordered) / 5)]:
        marks += f'<text x="{frame.x(nbytes):.1f}" y="{HIGH - 8}" text-anchor="middle">{size(nbytes)}</text>'
    return marks


def round_step(least: float) -> float:
    """The next one of 1, 2, 5, 10, 20, ... from `least` on."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))
