"""Format a lesson as text, JSON and plots."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from meshrun.jobs.bench.lessons.protocol import Chart, Lesson, LessonTable, TableCell, Timeline
from meshrun.jobs.measure import plots
from meshrun.runner.report.record import plain
from meshrun.runner.report.table import table as aligned
from meshrun.runner.report.units import size_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 100


def text(lesson: Lesson) -> str:
    """Format the tables, then the explanation, as whole lines."""
    lines = [f"# {lesson.title}", ""]
    for table in lesson.tables:
        lines += [*([table.title] if table.title else ()), *columns(table), ""]
    for sentence in lesson.explanation:
        lines += textwrap.wrap(sentence, WIDTH, break_on_hyphens=False)
    return "\n".join(lines).rstrip("\n") + "\n"


def columns(table: LessonTable) -> list[str]:
    """Align the first column to the left, the others to the right; units have a line of their own."""
    titles = [title.partition(" (") for title in table.titles]
    heads = tuple(head for head, _, _ in titles)
    units = tuple(f"({unit}" if unit else "" for _, _, unit in titles)
    rows = [*([units] if any(units) else []), *(tuple(map(cell, row)) for row in table.rows)]
    return aligned(heads, rows, indent=0)


def cell(value: TableCell) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10000 else f"{value:.0f}"
    return str(value)


def record(lesson: Lesson, environment: Sequence[str]) -> str:
    """Return all measurements as JSON. environment: NAME=value."""
    whole = {
        "version": version("meshrun"),
        "lesson": lesson.name,
        "title": lesson.title,
        "tables": [asdict(table) for table in lesson.tables],
        "explanation": lesson.explanation,
        "mismatches": lesson.mismatches,
        **lesson.facts,
        "environment": list(environment),
    }
    return json.dumps(plain(whole, texts=False), indent=1, allow_nan=False) + "\n"


def draw(lesson: Lesson, target: str | Path) -> None:
    """Draw the charts side by side, in .html with the tables below. Raises UserError as `plots.save`."""

    def figure(canvas: Figure) -> None:
        panels = canvas.subplots(1, len(lesson.charts), squeeze=False)[0] if lesson.charts else ()
        for axes, chart in zip(panels, lesson.charts, strict=True):
            if isinstance(chart, Timeline):
                _timeline(axes, chart)
            else:
                _chart(axes, chart)

    sheets = [
        plots.Sheet(one.titles, [map(cell, row) for row in one.rows], one.title) for one in lesson.tables
    ]
    plots.save(figure, Path(target), lesson.title, sheets)


def _chart(axes: Axes, chart: Chart) -> None:
    axes.set_ylabel(chart.y)
    (_groups if chart.names else _lines)(axes, chart)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize="small")


def _groups(axes: Axes, chart: Chart) -> None:
    """Draw a group of bars for each name, one bar per line."""
    wide = 0.8 / max(len(chart.lines), 1)
    for number, line in enumerate(chart.lines):
        known = [(x + (number + 0.5) * wide - 0.4, y) for x, y in line.points if y is not None]
        axes.bar([x for x, _ in known], [y for _, y in known], wide, label=line.label)
    plots.label_ticks(axes, range(len(chart.names)), chart.names)
    plots.from_zero(axes)
    axes.set_xlabel(chart.x)
    axes.grid(True, axis="y", color="0.9")
    axes.set_axisbelow(True)


def _lines(axes: Axes, chart: Chart) -> None:
    for line in chart.lines:
        points = [(x, y) for x, y in line.points if y is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker=".", label=line.label)
    places = sorted({x for line in chart.lines for x, _ in line.points})
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        plots.from_zero(axes)
    if chart.log_x:
        plots.logarithmic_axis(
            axes, places, lambda x: size_name(round(x)) if chart.bytes else f"{x:g}", chart.x
        )
    else:
        axes.set_xlabel(chart.x)
        axes.grid(True, color="0.9")


def _timeline(axes: Axes, chart: Timeline) -> None:
    rows = list(dict.fromkeys(row for row, *_ in chart.spans))
    labels = list(dict.fromkeys(label for _, label, *_ in chart.spans))
    zero = min((begin for *_, begin, _ in chart.spans), default=0.0)
    for row, label, begin, end in chart.spans:
        colour = f"C{labels.index(label) % 10}"
        axes.barh(rows.index(row), (end - begin) * 1e3, left=(begin - zero) * 1e3, color=colour, height=0.6)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("time (ms)")
    axes.set_title(chart.title)
    for number, label in enumerate(labels):
        axes.barh(0, 0, color=f"C{number % 10}", label=label)
    if labels:  # below the bars, which fill the panel
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(labels))
