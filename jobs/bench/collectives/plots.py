"""Plots: latency and bandwidth against size, and how bandwidth scales with ranks.

matplotlib is an extra (`meshrun[plot]`) and is imported when something is drawn. Figures are built without
pyplot, so no display is needed and nothing global is left behind; the same values give the same bytes.
"""

from __future__ import annotations

import html
import importlib
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import runner
from jobs.bench.collectives.reader import PLACEMENTS, Record, median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Place = TypeVar("Place", int, float)

SUFFIXES = (".html", ".png", ".svg")
TICKS = 9  # labels on an axis, about
LEGEND = 0.23  # inches that a line of the legend takes
MARKERS = ".x^s"  # of ten records each, as there are ten colours
WIDTH = 110  # characters of a title's line
PAGE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Point:
    """size: bytes. time_us: microseconds of one operation. busbw: GB/s."""

    size: int
    time_us: float
    busbw: float


@dataclass(frozen=True)
class Series:
    """One line of each panel and placement, under one name and colour; points by size."""

    label: str
    out_of_place: tuple[Point, ...]
    in_place: tuple[Point, ...]


@dataclass(frozen=True)
class Limit:
    """A rate that bandwidth cannot pass, GB/s."""

    label: str
    busbw: float


@dataclass(frozen=True)
class Scaled:
    """One number of ranks. busbw, wire: GB/s. efficiency: a fraction. None where not known."""

    ranks: int
    busbw: float | None
    efficiency: float | None = None
    wire: float | None = None


def series(record: Record, label: str | None = None) -> list[Series]:
    """A record as lines, one for each datatype, reduction and root in it; cycles by their medians."""
    name = Path(record.name).name if label is None else label
    kinds = list(dict.fromkeys((key.datatype, key.reduction, key.root) for key in record.rows))
    found = []
    for kind in kinds:
        keys = sorted(key for key in record.rows if (key.datatype, key.reduction, key.root) == kind)
        datatype, reduction, root = kind
        which = f" {datatype} {reduction}" + (f" root {root}" if root >= 0 else "") if len(kinds) > 1 else ""
        lines = [
            tuple(
                Point(key.size, median(cycles, "time_us"), median(cycles, "busbw"))
                for key in keys
                if (cycles := record.rows[key].get(placement))
            )
            for placement in PLACEMENTS
        ]
        found.append(Series(name + which, lines[0], lines[1]))
    return found


def plot(lines: Sequence[Series], target: str | Path, title: str = "", limits: Sequence[Limit] = ()) -> None:
    """Latency and bus bandwidth against size, log axes; out of place solid, in place dashed.

    What a logarithm cannot show (size 0, one rank's bandwidth 0) is left out of the panels, not of the
    table of numbers under an .html figure. Raises UserError for other suffixes than .html, .png and .svg,
    without matplotlib, or where the file cannot be written.
    """

    def draw(figure: Figure) -> None:
        latency, bandwidth = figure.subplots(1, 2)
        for number, line in enumerate(lines):
            for placement, dash in (("out_of_place", "-"), ("in_place", "--")):
                points = _on_logarithms(getattr(line, placement))
                if not points:
                    continue
                look: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": dash}
                look["marker"] = MARKERS[number // 10 % len(MARKERS)]
                look["label"] = f"{line.label}, {PLACEMENTS[placement]}"
                sizes = [point.size for point in points]
                latency.plot(sizes, [point.time_us for point in points], **look)
                bandwidth.plot(sizes, [point.busbw for point in points], **look)
        for limit in limits:
            bandwidth.axhline(limit.busbw, color="0.4", linestyle=":", label=_limit(limit))
        latency.set_yscale("log")
        latency.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        latency.set_ylabel("time (us)")
        bandwidth.set_ylabel("bus bandwidth (GB/s)")
        from_zero(bandwidth)
        shown = (p for line in lines for p in _on_logarithms((*line.out_of_place, *line.in_place)))
        places = sorted({point.size for point in shown})
        for axes in (latency, bandwidth):
            against(axes, places, size_name, "size")
        named = bandwidth.get_legend_handles_labels()
        figure.set_figheight(figure.get_figheight() + LEGEND * max(0, len(named[1]) // 3 - 2))
        figure.legend(*named, loc="outside lower center", ncols=3)

    titles = ("record", "placement", "size", "time (us)", "busbw (GB/s)")
    cells = [
        (line.label, PLACEMENTS[placement], size_name(p.size), f"{p.time_us:.2f}", _number(p.busbw))
        for line in lines
        for placement in PLACEMENTS
        for p in getattr(line, placement)
    ]
    cells += [("limit", limit.label, "", "", _number(limit.busbw)) for limit in limits]
    save(draw, Path(target), title, [Sheet(titles, cells)])


def plot_scaling(points: Sequence[Scaled], target: str | Path, title: str = "") -> None:
    """Bandwidth, wire rate and efficiency against the number of ranks; errors as for `plot`."""

    def draw(figure: Figure) -> None:
        bandwidth, efficiency = figure.subplots(1, 2)
        ranks = sorted({point.ranks for point in points})
        _line(bandwidth, points, lambda point: point.busbw, "bus bandwidth")
        _line(bandwidth, points, lambda point: point.wire, "wire")
        _line(efficiency, points, lambda point: point.efficiency, "efficiency")
        bandwidth.set_ylabel("bandwidth (GB/s)")
        efficiency.set_ylabel("efficiency (1: as on the fewest ranks)")
        efficiency.axhline(1, color="0.4", linestyle=":")
        for axes in (bandwidth, efficiency):
            from_zero(axes)
            against(axes, ranks, str, "number of ranks")
        figure.legend(*bandwidth.get_legend_handles_labels(), loc="outside lower center", ncols=3)

    titles = ("ranks", "busbw (GB/s)", "wire (GB/s)", "efficiency")
    cells = [(str(p.ranks), _number(p.busbw), _number(p.wire), _number(p.efficiency)) for p in points]
    save(draw, Path(target), title, [Sheet(titles, cells)])


def check(target: str | Path) -> None:
    """Refuse, before anything is measured, what could not be drawn: raises UserError as `plot` does."""
    suffix = Path(target).suffix.lower()
    if suffix not in SUFFIXES:
        raise runner.UserError("the plot's file has no known suffix", got=target, expected=" ".join(SUFFIXES))
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as reason:
        raise runner.UserError(
            "plots need matplotlib", got=str(reason), hint="pip install 'meshrun[plot]'"
        ) from reason


def size_name(size: int) -> str:
    """Such as "8 B", "1 KiB", "1.5 MiB"."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} B"


def _on_logarithms(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.size > 0 and 0 < point.time_us < math.inf]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _limit(limit: Limit) -> str:
    return f"{limit.label}, {limit.busbw:.4g} GB/s"


def _line(axes: Axes, points: Sequence[Scaled], of: Callable[[Scaled], float | None], label: str) -> None:
    known = [(point.ranks, value) for point in points if (value := of(point)) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), marker=".", label=label)


def from_zero(axes: Axes) -> None:
    """A vertical axis that begins at 0."""
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def against(axes: Axes, places: Sequence[Place], name: Callable[[Place], str], label: str) -> None:
    """A logarithmic horizontal axis, with some of the measured places as its labels."""
    axes.set_xscale("log", base=2)
    ticks = apart(places)
    names(axes, ticks, [name(place) for place in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    axes.grid(True, color="0.9")


def apart(places: Sequence[Place]) -> list[Place]:
    """Of places on a logarithmic axis those whose labels do not touch, powers of two first."""
    if len(places) < 2:
        return list(places)
    least = 0.99 * math.log2(places[-1] / places[0]) / (TICKS - 0.5)
    found: list[Place] = []
    for place in sorted(places, key=lambda one: (not math.log2(one).is_integer(), one)):
        if all(abs(math.log2(place / other)) >= least for other in found):
            found.append(place)
    return sorted(found)


def names(axes: Axes, places: Sequence[float], words: Sequence[str]) -> None:
    """Label these places of the horizontal axis, aslant where the words are long."""
    aslant: dict[str, Any] = {"rotation": 45, "ha": "right"} if max(map(len, words), default=0) > 3 else {}
    axes.set_xticks(places, words, **aslant)


@dataclass(frozen=True)
class Sheet:
    """Numbers below a drawing. caption: above them, where there are several."""

    titles: Sequence[str]
    rows: Iterable[Iterable[str]]
    caption: str = ""


def save(draw: Callable[[Figure], None], target: Path, title: str, sheets: Iterable[Sheet]) -> None:
    """Write what `draw` draws, in .html with the numbers below it; errors as for `plot`.

    The title is in the image, of .html above it.
    """
    check(target)
    suffix = target.suffix.lower()
    image = _render(draw, "" if suffix == ".html" else title, "png" if suffix == ".png" else "svg")
    if suffix == ".html":
        drawing = image.decode()
        parts = {
            "title": html.escape(title),
            "figure": drawing[drawing.index("<svg") :].strip(),  # without the XML prologue
            "tables": "\n".join(map(_table, sheets)),
        }
        page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], PAGE.read_text(encoding="utf-8"))
        image = page.encode()
    try:
        runner.write_file(target, image)
    except OSError as reason:
        raise runner.UserError(f"cannot write {target}", got=reason.strerror or reason) from reason


def _render(draw: Callable[[Figure], None], title: str, form: str) -> bytes:
    from matplotlib import style
    from matplotlib.figure import Figure

    nothing = {"Software": None} if form == "png" else dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # The defaults, whatever the user's matplotlibrc says; ids and dates that differ between runs left out.
    settings = {"svg.hashsalt": "meshrun", "svg.fonttype": "none", "text.parse_math": False}
    with style.context(["default", settings]):
        figure = Figure(figsize=(11, 4.5), layout="constrained")
        draw(figure)
        if title:
            figure.suptitle(textwrap.fill(title, WIDTH))
        stream = io.BytesIO()
        figure.savefig(stream, format=form, dpi=150, metadata=nothing)
    return stream.getvalue()


def _table(sheet: Sheet) -> str:
    def row(tag: str, values: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values) + "</tr>"

    caption = f"<caption>{html.escape(sheet.caption)}</caption>" if sheet.caption else ""
    rows = [row("th", sheet.titles), *(row("td", values) for values in sheet.rows)]
    return "\n".join([f'<div tabindex="0"><table>{caption}', *rows, "</table></div>"])
