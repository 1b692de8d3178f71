"""Plot time and bandwidth against size, and bandwidth against the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.jobs.bench.collectives.output.reader import PLACEMENTS, BenchRecord, median
from meshrun.jobs.measure.plots import Sheet, from_zero, logarithmic_axis, save
from meshrun.runner.report.units import size_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND = 0.23  # inches per line of the legend
MARKERS = ".x^s"  # one for each ten records, as there are ten colours


@dataclass(frozen=True)
class PlotPoint:
    """size: bytes. time_us: microseconds of one operation. busbw: GB/s."""

    size: int
    time_us: float
    busbw: float


@dataclass(frozen=True)
class PlotSeries:
    """One line of each panel and placement, under one name and colour; points by size."""

    label: str
    out_of_place: tuple[PlotPoint, ...]
    in_place: tuple[PlotPoint, ...]


@dataclass(frozen=True)
class BandwidthLimit:
    """An upper limit of bandwidth, GB/s."""

    label: str
    busbw: float


@dataclass(frozen=True)
class Scaled:
    """One number of ranks. busbw, wire: GB/s. efficiency: a fraction. None if unknown."""

    ranks: int
    busbw: float | None
    efficiency: float | None = None
    wire: float | None = None


def series(record: BenchRecord, label: str | None = None) -> list[PlotSeries]:
    """Return the lines of a record: one for each datatype, reduction and root; medians over cycles."""
    name = Path(record.name).name if label is None else label
    kinds = list(dict.fromkeys((key.datatype, key.reduction, key.root) for key in record.rows))
    found = []
    for kind in kinds:
        keys = sorted(key for key in record.rows if (key.datatype, key.reduction, key.root) == kind)
        datatype, reduction, root = kind
        which = f" {datatype} {reduction}" + (f" root {root}" if root >= 0 else "") if len(kinds) > 1 else ""
        lines = [
            tuple(
                PlotPoint(key.size, median(cycles, "time_us"), median(cycles, "busbw"))
                for key in keys
                if (cycles := record.rows[key].get(placement))
            )
            for placement in PLACEMENTS
        ]
        found.append(PlotSeries(name + which, lines[0], lines[1]))
    return found


def plot(
    lines: Sequence[PlotSeries], target: str | Path, title: str = "", limits: Sequence[BandwidthLimit] = ()
) -> None:
    """Plot time and bus bandwidth against size on logarithmic axes; out of place solid, in place dashed.

    Points that a logarithmic axis cannot show (size or time 0) are left out of the panels, but not of the
    table of an .html file. Raises UserError as `jobs.measure.plots.save`.
    """

    def draw(figure: Figure) -> None:
        latency, bandwidth = figure.subplots(1, 2)
        for number, line in enumerate(lines):
            for placement, dash in (("out_of_place", "-"), ("in_place", "--")):
                points = _plottable(getattr(line, placement))
                if not points:
                    continue
                style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": dash}
                style["marker"] = MARKERS[number // 10 % len(MARKERS)]
                style["label"] = f"{line.label}, {PLACEMENTS[placement]}"
                sizes = [point.size for point in points]
                latency.plot(sizes, [point.time_us for point in points], **style)
                bandwidth.plot(sizes, [point.busbw for point in points], **style)
        for limit in limits:
            bandwidth.axhline(
                limit.busbw, color="0.4", linestyle=":", label=f"{limit.label}, {limit.busbw:.4g} GB/s"
            )
        latency.set_yscale("log")
        latency.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        latency.set_ylabel("time (us)")
        bandwidth.set_ylabel("bus bandwidth (GB/s)")
        from_zero(bandwidth)
        shown = (p for line in lines for p in _plottable((*line.out_of_place, *line.in_place)))
        places = sorted({point.size for point in shown})
        for axes in (latency, bandwidth):
            logarithmic_axis(axes, places, size_name, "size")
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


def plot_scaling(points: Sequence[Scaled], target: str | Path, title: str) -> None:
    """Plot bandwidth, wire rate and efficiency against the number of ranks; errors as for `plot`."""

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
            logarithmic_axis(axes, ranks, str, "number of ranks")
        figure.legend(*bandwidth.get_legend_handles_labels(), loc="outside lower center", ncols=3)

    titles = ("ranks", "busbw (GB/s)", "wire (GB/s)", "efficiency")
    cells = [(str(p.ranks), _number(p.busbw), _number(p.wire), _number(p.efficiency)) for p in points]
    save(draw, Path(target), title, [Sheet(titles, cells)])


def _plottable(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    return [point for point in points if point.size > 0 and 0 < point.time_us < math.inf]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _line(axes: Axes, points: Sequence[Scaled], of: Callable[[Scaled], float | None], label: str) -> None:
    known = [(point.ranks, value) for point in points if (value := of(point)) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), marker=".", label=label)
