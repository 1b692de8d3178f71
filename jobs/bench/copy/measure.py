"""A case measured cell by cell, and the statistics of its samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobs.bench.copy.cases import Case
from jobs.bench.copy.engines import ENGINES
from jobs.bench.copy.latency import CHAIN, chase
from jobs.bench.copy.patterns import Flow, Flows
from jobs.bench.copy.transfers import Moved, Mover

Values = tuple[float, ...]  # one for each matrix of a case


@dataclass(frozen=True)
class Settings:
    """How cells are measured.

    size: bytes of a buffer. copies: in a sample. mean: instead of the median. accesses: loads of a chain.
    """

    size: int = 512 << 20
    copies: int = 16
    samples: int = 3
    mean: bool = False
    check: bool = True
    accesses: int = 1_000_000

    def middle(self, values: Sequence[float]) -> float:
        return statistics.fmean(values) if self.mean else statistics.median(values)


@dataclass(frozen=True)
class Cell:
    """values: in GB/s or ns; None where not measured. flows: what was measured. why: something was not."""

    row: int
    column: int
    flows: Flows
    values: Values | None
    samples: tuple[Values, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Result:
    """gpus: how many columns. wrong: sentences. waived: why there is nothing, empty where there is."""

    case: Case
    gpus: int
    cells: tuple[Cell, ...]
    wrong: tuple[str, ...] = ()
    waived: str = ""

    def matrix(self, number: int) -> list[list[float | None]]:
        """The values of the case's matrix of this number."""
        rows = self.gpus if self.case.rows == "gpus" else 1
        matrix: list[list[float | None]] = [[None] * self.gpus for _ in range(rows)]
        for cell in self.cells:
            matrix[cell.row][cell.column] = None if cell.values is None else cell.values[number]
        return matrix


def measure(case: Case, mover: Mover, settings: Settings, progress: Callable[[str], None]) -> Result:
    """All cells of a case; collective over the host's ranks, with the same result on all."""
    gpus, cells, wrong = len(mover.seats), list[Cell](), list[str]()
    for row, column, flows in case.cells(gpus):
        progress(f"row {row}, column {column}")
        measured = _latency if case.engine == "chase" else _rates
        cell, found = measured(case, mover, settings, row, column, flows)
        cells.append(cell)
        wrong += [f"{case.name}, cell ({row}, {column}), {sentence}" for sentence in found]
    waived = ""
    if not cells:
        waived = f"it takes two GPUs, and there is {gpus}"
    elif all(cell.values is None for cell in cells):
        waived = cells[0].why
    return Result(case, gpus, tuple(cells), tuple(wrong), waived)


def _rates(
    case: Case, mover: Mover, settings: Settings, row: int, column: int, flows: Flows
) -> tuple[Cell, list[str]]:
    with mover.lender.lent(flows, settings.size) as lent:
        why = "; ".join(dict.fromkeys(lent.barred.values()))
        if not lent.lanes or (lent.barred and case.reports != "total"):
            return Cell(row, column, (), None, why=why), []
        taken = [
            mover.run(lent.lanes, case.engine, settings.copies, settings.check)
            for _ in range(settings.samples)
        ]
    wrong = [f"sample {number}: {one}" for number, moved in enumerate(taken) for one in moved.wrong]
    ran: tuple[Flow, ...] = tuple(lane.flow for lane in lent.lanes)
    if any(not moved.total or not all(moved.seconds) for moved in taken):
        return Cell(row, column, ran, None, why="the GPU's clock saw no time pass; -s asks for more"), wrong
    samples = tuple(reported(case, moved, settings.copies) for moved in taken)
    middles = tuple(settings.middle(column) for column in zip(*samples, strict=True))
    values = (*middles, sum(middles)) if case.reports == "each" else middles
    return Cell(row, column, ran, values, samples, why), wrong


def reported(case: Case, moved: Moved, copies: int) -> Values:
    """GB/s of what a case reports of one sample; of the "each" kind without their sum."""
    if case.reports == "total":
        return (sum(moved.nbytes) * copies / moved.total / 1e9,)
    ways = 2 if ENGINES[case.engine].both_ways else 1  # reported in each direction
    rates = [
        nbytes * copies / seconds / 1e9 / ways
        for nbytes, seconds in zip(moved.nbytes, moved.seconds, strict=True)
    ]
    return tuple(rates) if case.reports == "each" else (rates[0],)


def _latency(
    case: Case, mover: Mover, settings: Settings, row: int, column: int, flows: Flows
) -> tuple[Cell, list[str]]:
    """One sample, which is a million loads already."""
    with mover.lender.lent(flows, CHAIN, ends=("source",)) as lent:
        if lent.barred:
            return Cell(row, column, (), None, why="; ".join(lent.barred.values())), []
        chased = chase(mover, lent.lanes[0], settings.accesses)
    values = (chased.seconds * 1e9,)
    return Cell(row, column, flows, values, (values,)), [chased.wrong] if chased.wrong else []
