"""Format results in nvbandwidth's layout, with outliers marked and described below."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from meshrun.jobs.bench.copy.buffers import MatrixGpu
from meshrun.jobs.bench.copy.measure import CaseResult
from meshrun.jobs.bench.copy.outliers import Peaks, best_of_peak, find_outliers, measured_cells, messages

WIDTH = 10  # of a column
RED, PLAIN = "\x1b[31m", "\x1b[0m"


def devices(host: str, gpus: Sequence[MatrixGpu]) -> str:
    """List the host and its GPUs, as whole lines."""
    lines = [f"Device {number}: {one.gpu.name} ({bus(one.gpu.bus_id)})" for number, one in enumerate(gpus)]
    return "\n".join([host, *lines, ""]) + "\n"


def bus(identity: str) -> str:
    """Format a PCI bus ID with eight digits of domain, without the function."""
    domain, _, rest = identity.rpartition(":")[0].rpartition(":")
    device = identity.rpartition(":")[2].partition(".")[0]
    return f"{int(domain or '0', 16):08x}:{rest.lower()}:{device.lower()}"


def text(result: CaseResult, peaks: Sequence[Peaks] = (), colour: bool = False) -> str:
    """Format a case's matrices and the messages about them, as whole lines."""
    if result.waived:
        return ""
    lines = [f"Running {result.case.name}."]
    for number, (key, title) in enumerate(result.case.matrices):
        lines += [title, *matrix(result, number, colour), "", *summary(result, number, key)]
        best = best_of_peak(result, number, peaks) if peaks else ""
        lines += [f"# {best}"] if best else []
        lines += [f"# {mark(colour)}{sentence}" for sentence in messages(result, number)]
        lines.append("")
    for cell in result.cells:
        if cell.why:
            lines.append(f"# cell ({cell.row}, {cell.column}): {cell.why}")
    lines += [f"# wrong data: {sentence}" for sentence in result.wrong]
    return "\n".join(lines) + "\n"


def mark(colour: bool) -> str:
    return "" if colour else "* "


def matrix(result: CaseResult, number: int, colour: bool = False, *, marked: bool = True) -> list[str]:
    """Format a matrix in nvbandwidth's layout. Outliers are red or, without colour, marked with a star.

    marked: whether to mark them.
    """
    slow = find_outliers(result, number) if marked else []
    outliers = {(one.cell.row, one.cell.column) for one in slow}
    values = result.matrix(number)
    lines = ["  " + "".join(f"{column:>{WIDTH}}" for column in range(result.gpus))]
    for row, cells in enumerate(values):
        line = f"{row:>2}"
        for column, value in enumerate(cells):
            word = "N/A" if value is None else f"{value:.2f}"
            is_slow = (row, column) in outliers
            # The star of the cell before takes one character of this column.
            starred = not colour and (row, column - 1) in outliers
            padded = word.rjust(WIDTH - starred)
            if is_slow:
                padded = f"{RED}{padded}{PLAIN}" if colour else padded + "*"
            line += padded
        lines.append(line)
    return lines


def summary(result: CaseResult, number: int, key: str) -> list[str]:
    """Format nvbandwidth's sum, and the spread."""
    values = [value for _, value in measured_cells(result, number)]
    if not values:
        return []
    spread = f"min {min(values):.2f}, median {statistics.median(values):.2f}, max {max(values):.2f}"
    lines = [f"SUM {key} {sum(values):.2f}", f"# {spread} {result.case.unit}"]
    varying = [(share, cell) for cell in result.cells if (share := cell.variation(number)) is not None]
    if varying:
        most, cell = max(varying, key=lambda one: one[0])
        middle = statistics.median(share for share, _ in varying)
        where = f"cell ({cell.row}, {cell.column})"
        lines.append(
            f"# samples vary by {middle:.1%} (median; standard deviation / mean), {most:.1%} in {where}"
        )
    return lines
