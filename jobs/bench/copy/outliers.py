"""What a matrix says: which of its cells are odd, and how near the best come to what the hardware allows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import runner
from jobs.bench.copy.measure import Cell, Result
from runner import Gpu

SLOW, LATE = 0.9, 1.1  # times the median of all cells of a matrix: below for rates, above for latencies
TOLD = 6  # odd cells that are described one by one


@dataclass(frozen=True)
class Odd:
    """factor: the cell's value over the median of its matrix."""

    cell: Cell
    value: float
    factor: float


@dataclass(frozen=True)
class Peak:
    """What hardware allows of one direction of a flow, GB/s; None and why where that is not known."""

    rate: float | None
    source: str


@dataclass(frozen=True)
class Limits:
    """Of one GPU. memory: copied bytes per second in GB/s, half of what its memory reads and writes."""

    link: Peak
    pcie: Peak
    memory: Peak


def measured(result: Result, number: int) -> list[tuple[Cell, float]]:
    """The cells of a matrix that have a value, with it."""
    return [(cell, cell.values[number]) for cell in result.cells if cell.values is not None]


def odd(result: Result, number: int) -> list[Odd]:
    """Cells that are slower than their siblings by more than a tenth, the slowest first."""
    cells = measured(result, number)
    if len(cells) < 2:
        return []
    median = statistics.median(value for _, value in cells)
    late = result.case.unit == "ns"
    found = [Odd(cell, value, value / median) for cell, value in cells]
    slow = [one for one in found if (one.factor > LATE if late else one.factor < SLOW)]
    return sorted(slow, key=lambda one: -one.factor if late else one.factor)


def sentences(result: Result, number: int) -> list[str]:
    """What is odd, in words; nothing where nothing is."""
    found, cells = odd(result, number), measured(result, number)
    if not found:
        return []
    median = statistics.median(value for _, value in cells)
    unit = result.case.unit
    told = [
        f"{described(one.cell, result, number)}: {one.value:.2f} {unit}, {abs(one.factor - 1):.0%} "
        f"{'above' if unit == 'ns' else 'below'} the median of {len(cells)}, {median:.2f}"
        for one in found[:TOLD]
    ]
    if len(found) > TOLD:
        told.append(f"and {len(found) - TOLD} more of {len(cells)}")
    common = set.intersection(*({one.cell.row, one.cell.column} for one in found))
    if result.case.rows == "gpus" and len(found) > 1 and result.gpus > 2 and common:
        told.append(f"all {len(found)} of these are with GPU {min(common)}")
    return told


def described(cell: Cell, result: Result, number: int) -> str:
    """The cell of a matrix by its GPUs, such as "GPU 2 -> GPU 1 by GPU 1"."""
    if result.case.engine == "chase":
        flow = cell.flows[0]
        return f"GPU {flow.gpu} loading from {flow.source} memory"
    if result.case.engine == "host":
        return f"rank {cell.column} of the host"
    if result.case.reports == "total":
        return f"GPU {cell.column} and {len(cell.flows)} others"
    if number == 2:  # both directions together
        return f"GPU {cell.row} <-> GPU {cell.column}"
    return str(cell.flows[number])


def limits_of(gpu: Gpu) -> Limits:
    """What NVML and CUDA say of a GPU of this host."""
    links = runner.gpu_links(gpu.uuid)
    pcie = Peak(links.pcie.rate, links.pcie.source)
    nvlink = Peak(links.nvlink.rate, links.nvlink.source)
    rate = gpu.bandwidth and gpu.bandwidth / 2e9
    memory = Peak(rate or None, "half of memory clock x bus width")
    return Limits(nvlink if links.nvlinks_active else pcie, pcie, memory)


def peak(result: Result, number: int, cell: Cell, limits: Sequence[Limits]) -> Peak | None:
    """What a cell's value could be; None for latencies and for the host's own memory."""
    case = result.case
    if not case.needs_gpu or case.unit == "ns" or not cell.flows:
        return None
    first = cell.flows[0]
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


def nearest(result: Result, number: int, limits: Sequence[Limits]) -> str:
    """How near the best cell comes to its peak; empty where that has no meaning, or nothing was measured."""
    found = [(value, peak(result, number, cell, limits)) for cell, value in measured(result, number)]
    known = [(value / one.rate, value, one) for value, one in found if one is not None and one.rate]
    if known:
        share, value, one = max(known, key=lambda entry: entry[0])
        text = f"the best, {value:.2f}, is {share:.0%} of {one.rate:.2f} GB/s ({one.source})"
        return text + ("; bytes take another way than that" if share > 1.02 else "")
    why = next((one.source for _, one in found if one is not None), "")
    return f"peak not known ({why})" if why else ""
