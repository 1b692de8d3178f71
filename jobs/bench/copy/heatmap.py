"""Draw matrices as heat maps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshrun.jobs.bench.copy.measure import CaseResult
from meshrun.jobs.bench.copy.outliers import find_outliers, measured_cells
from meshrun.jobs.measure import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 4  # heat maps side by side
Panel = tuple[str, CaseResult, int]  # (host, or "" if there is only one; result; number of the matrix)


def draw(results: Sequence[tuple[str, CaseResult]], target: str) -> None:
    """Draw a heat map of each matrix. results: (host, result). Raises UserError as `plots.save`."""
    several = len({host for host, _ in results}) > 1
    panels: list[Panel] = [
        (host if several else "", result, number)
        for host, result in results
        if not result.waived
        for number in range(len(result.case.matrices))
    ]

    def figure(canvas: Figure) -> None:
        across = min(ACROSS, max(len(panels), 1))
        down = math.ceil(len(panels) / across) or 1
        canvas.set_size_inches(3.8 * across, 1.2 + sum(map(_height, _rows(panels, across))))
        ratios = [_height(row) for row in _rows(panels, across)] or [1.0]
        grid = canvas.subplots(down, across, squeeze=False, height_ratios=ratios)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid.flat, panels, strict=False):
            _map(axes, panel)

    titles = ("host", "matrix", "row", "column", "value", "unit")
    plots.save(figure, Path(target), "Copies inside a host", [plots.Sheet(titles, _cells(results))])


def _rows(panels: Sequence[Panel], across: int) -> list[Sequence[Panel]]:
    return [panels[begin : begin + across] for begin in range(0, len(panels), across)]


def _height(row: Sequence[Panel]) -> float:
    return max(1.1 + 0.35 * len(result.matrix(number)) for _, result, number in row)


def _map(axes: Axes, panel: Panel) -> None:
    host, result, number = panel
    values = result.matrix(number)
    shown = [[math.nan if value is None else value for value in row] for row in values]
    latency = result.case.unit == "ns"
    # From 0, so that nearly equal values look equal.
    image = axes.imshow(shown, cmap="viridis_r" if latency else "viridis", aspect="auto", vmin=0)
    axes.figure.colorbar(image, ax=axes, label=result.case.unit, fraction=0.08, pad=0.03)
    marked = {(one.cell.row, one.cell.column) for one in find_outliers(result, number)}
    for row, cells in enumerate(values):
        for column, value in enumerate(cells):
            if value is not None:
                look = {"color": "white", "backgroundcolor": "red"} if (row, column) in marked else {}
                word = f"{value:.4g}"
                axes.text(column, row, word, ha="center", va="center", fontsize="x-small", **(look or PALE))
    axes.set_xticks(range(result.gpus))
    axes.set_yticks(range(len(values)))
    key = result.case.matrices[number][0]
    axes.set_title(f"{host} {key}".strip(), fontsize="small")
    for unit, place in re.findall(r"(\w+)\((row|column)\)", result.case.arrow):
        (axes.set_ylabel if place == "row" else axes.set_xlabel)(unit)


PALE = {"color": "white", "backgroundcolor": (0.0, 0.0, 0.0, 0.35)}


def _cells(results: Sequence[tuple[str, CaseResult]]) -> Iterator[list[str]]:
    for host, result in results:
        for number, (key, _) in enumerate(result.case.matrices):
            for cell, value in measured_cells(result, number):
                yield [host, key, str(cell.row), str(cell.column), f"{value:.4g}", result.case.unit]
