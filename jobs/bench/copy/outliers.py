"""Find the cells of a matrix that are slower than the others; compare the best cell with its peak."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from meshrun.jobs.bench.copy.measure import CaseResult, MatrixCell
from meshrun.jobs.measure.outliers import deviating
from meshrun.runner.device.raw.memory import GpuProperties
from meshrun.runner.system.links import Reading, gpu_links

MAX_DESCRIBED = 6  # outliers that are described one by one


@dataclass(frozen=True)
class Outlier:
    """factor: the cell's value over the median of its matrix."""

    cell: MatrixCell
    value: float
    factor: float


@dataclass(frozen=True)
class Peaks:
    """Nominal rates of one GPU. memory: copied GB/s, half of what its memory reads and writes."""

    link: Reading
    pcie: Reading
    memory: Reading


def measured_cells(result: CaseResult, number: int) -> list[tuple[MatrixCell, float]]:
    """Return the cells of a matrix that have a value, and that value."""
    return [(cell, cell.values[number]) for cell in result.cells if cell.values is not None]


def find_outliers(result: CaseResult, number: int) -> list[Outlier]:
    """Find the cells more than a tenth slower than the median of their matrix, the slowest first."""
    cells = measured_cells(result, number)
    values = [value for _, value in cells]
    slow = deviating(values, larger_is_slower=result.case.unit == "ns")
    return [Outlier(*cells[at], values[at] / statistics.median(values)) for at in slow]


def messages(result: CaseResult, number: int) -> list[str]:
    """Return a sentence for each outlier, and one for a link or a GPU that they have in common."""
    found, cells = find_outliers(result, number), measured_cells(result, number)
    if not found:
        return []
    median = statistics.median(value for _, value in cells)
    unit = result.case.unit
    lines = [
        f"{cell_name(one.cell, result, number)}: {one.value:.2f} {unit}, {abs(one.factor - 1):.0%} "
        f"{'above' if unit == 'ns' else 'below'} the median of {len(cells)}, {median:.2f}"
        for one in found[:MAX_DESCRIBED]
    ]
    if len(found) > MAX_DESCRIBED:
        lines.append(f"and {len(found) - MAX_DESCRIBED} more of {len(cells)}")
    if result.case.rows == "gpus" and len(found) > 1 and result.gpus > 2:
        lines += in_common([one.cell for one in found], [cell for cell, _ in cells])
    return lines


def in_common(slow: Sequence[MatrixCell], cells: Sequence[MatrixCell]) -> list[str]:
    """Return a sentence on what the slow cells share: the link between two GPUs, or one GPU.

    A GPU is named only if most of its cells are slow: otherwise single links of it are.
    """
    common = set.intersection(*({one.row, one.column} for one in slow))
    if len(common) == 2:
        first, second = sorted(common)
        return [f"all {len(slow)} of these are between GPU {first} and GPU {second}"]
    for gpu in common:
        of_gpu = sum(gpu in (one.row, one.column) for one in cells)
        most = "" if 2 * len(slow) > of_gpu else f", {of_gpu - len(slow)} others with it are not slow"
        return [f"all {len(slow)} of these involve GPU {gpu}{most}"]
    return []


def cell_name(cell: MatrixCell, result: CaseResult, number: int) -> str:
    """Name the cell of a matrix by its GPUs, such as "GPU 2 -> GPU 1 by GPU 1"."""
    if result.case.unit == "ns":
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
    """Return the nominal rates that NVML and CUDA report for a GPU of this host."""
    links = gpu_links(gpu.uuid)
    rate = gpu.bandwidth and gpu.bandwidth / 2e9
    memory = Reading(rate or None, "half of memory clock x bus width")
    return Peaks(links.nvlink if links.nvlinks_active else links.pcie, links.pcie, memory)


def peak(result: CaseResult, number: int, cell: MatrixCell, limits: Sequence[Peaks]) -> Reading | None:
    """Return the nominal rate of a cell; None for latencies and for host memory."""
    case = result.case
    if not case.needs_gpu or case.unit == "ns" or not cell.transfers:
        return None
    first = cell.transfers[0]
    if case.path == "local":
        memory = limits[first.gpu].memory
        if case.engine not in ("read", "write") or memory.rate is None:
            return memory
        return Reading(2 * memory.rate, "memory clock x bus width")
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
    return Reading(
        (least.rate or 0.0) * directions, least.source + (", both directions" if directions == 2 else "")
    )


def best_of_peak(result: CaseResult, number: int, limits: Sequence[Peaks]) -> str:
    """Compare the best cell with its peak; empty without a peak, or if nothing was measured."""
    found = [(value, peak(result, number, cell, limits)) for cell, value in measured_cells(result, number)]
    known = [(value / one.rate, value, one) for value, one in found if one is not None and one.rate]
    if known:
        share, value, one = max(known, key=lambda entry: entry[0])
        text = f"the best, {value:.2f}, is {share:.0%} of {one.rate:.2f} GB/s ({one.source})"
        return text + ("; above this link's peak, so traffic uses another path" if share > 1.02 else "")
    why = next((one.source for _, one in found if one is not None), "")
    return f"peak unknown ({why})" if why else ""
