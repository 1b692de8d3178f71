"""The cells of a matrix that are slower than the others, and how near the best one comes to its peak."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.bench.copy.measure import CaseResult, Cell
from runner.device.raw.memory import GpuProperties
from runner.system.links import gpu_links

SLOW, LATE = 0.9, 1.1  # times the median of all cells of a matrix: below for rates, above for latencies
MOST_DESCRIBED = 6  # outliers that are described one by one


@dataclass(frozen=True)
class Outlier:
    """factor: the cell's value over the median of its matrix."""

    cell: Cell
    value: float
    factor: float


@dataclass(frozen=True)
class Peak:
    """The nominal rate of one direction of a transfer, GB/s, and its source; None and why if unknown."""

    rate: float | None
    source: str


@dataclass(frozen=True)
class Peaks:
    """Nominal rates of one GPU. memory: copied GB/s, half of what its memory reads and writes."""

    link: Peak
    pcie: Peak
    memory: Peak


def measured_cells(result: CaseResult, number: int) -> list[tuple[Cell, float]]:
    """The cells of a matrix that have a value, and that value."""
    return [(cell, cell.values[number]) for cell in result.cells if cell.values is not None]


def find_outliers(result: CaseResult, number: int) -> list[Outlier]:
    """Cells more than a tenth slower than the median of their matrix, the slowest first."""
    cells = measured_cells(result, number)
    if len(cells) < 2:
        return []
    median = statistics.median(value for _, value in cells)
    latency = result.case.unit == "ns"
    found = [Outlier(cell, value, value / median) for cell, value in cells]
    slow = [one for one in found if (one.factor > LATE if latency else one.factor < SLOW)]
    return sorted(slow, key=lambda one: -one.factor if latency else one.factor)


def messages(result: CaseResult, number: int) -> list[str]:
    """A sentence for each outlier, and for what they have in common; empty if there is none."""
    found, cells = find_outliers(result, number), measured_cells(result, number)
    if not found:
        return []
    median = statistics.median(value for _, value in cells)
    unit = result.case.unit
    lines = [
        f"{cell_name(one.cell, result, number)}: {one.value:.2f} {unit}, {abs(one.factor - 1):.0%} "
        f"{'above' if unit == 'ns' else 'below'} the median of {len(cells)}, {median:.2f}"
        for one in found[:MOST_DESCRIBED]
    ]
    if len(found) > MOST_DESCRIBED:
        lines.append(f"and {len(found) - MOST_DESCRIBED} more of {len(cells)}")
    common = set.intersection(*({one.cell.row, one.cell.column} for one in found))
    if result.case.rows == "gpus" and len(found) > 1 and result.gpus > 2 and common:
        lines.append(f"all {len(found)} of these involve GPU {min(common)}")
    return lines


def cell_name(cell: Cell, result: CaseResult, number: int) -> str:
    """The cell of a matrix by its GPUs, such as "GPU 2 -> GPU 1 by GPU 1"."""
    if result.case.engine == "chase":
        transfer = cell.transfers[0]
        return f"GPU {transfer.gpu} loading from {transfer.source} memory"
    if result.case.engine == "host":
        return f"rank {cell.column} of the host"
    if result.case.reports == "total":
        return f"GPU {cell.column} and {len(cell.transfers)} others"
    if number == 2:  # both directions together
        return f"GPU {cell.row} <-> GPU {cell.column}"
    return str(cell.transfers[number])


def peaks_of(gpu: GpuProperties) -> Peaks:
    """The nominal rates that NVML and CUDA report of a GPU of this host."""
    links = gpu_links(gpu.uuid)
    pcie = Peak(links.pcie.rate, links.pcie.source)
    nvlink = Peak(links.nvlink.rate, links.nvlink.source)
    rate = gpu.bandwidth and gpu.bandwidth / 2e9
    memory = Peak(rate or None, "half of memory clock x bus width")
    return Peaks(nvlink if links.nvlinks_active else pcie, pcie, memory)


def peak(result: CaseResult, number: int, cell: Cell, limits: Sequence[Peaks]) -> Peak | None:
    """The nominal rate of a cell; None for latencies and for host memory."""
    case = result.case
    if not case.needs_gpu or case.unit == "ns" or not cell.transfers:
        return None
    first = cell.transfers[0]
    if case.path == "local":
        return limits[first.gpu].memory
    if case.path == "host":
        return limits[cell.column].pcie
    if case.reports == "total":
        return limits[cell.column].link
    two = [limits[place.gpu].link for place in (first.source, first.target)]
    unknown = [one for one in two if one.rate is None]
    if unknown:
        return unknown[0]
    least = min(two, key=lambda one: one.rate or 0.0)
    directions = 2 if case.reports == "each" and number == 2 else 1
    return Peak(
        (least.rate or 0.0) * directions, least.source + (", both directions" if directions == 2 else "")
    )


def best_of_peak(result: CaseResult, number: int, limits: Sequence[Peaks]) -> str:
    """How near the best cell comes to its peak; empty if it has none, or nothing was measured."""
    found = [(value, peak(result, number, cell, limits)) for cell, value in measured_cells(result, number)]
    known = [(value / one.rate, value, one) for value, one in found if one is not None and one.rate]
    if known:
        share, value, one = max(known, key=lambda entry: entry[0])
        text = f"the best, {value:.2f}, is {share:.0%} of {one.rate:.2f} GB/s ({one.source})"
        return text + ("; above this link's peak, so traffic uses another path" if share > 1.02 else "")
    why = next((one.source for _, one in found if one is not None), "")
    return f"peak unknown ({why})" if why else ""
