"""Measure a case cell by cell; statistics of samples."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshrun.jobs.bench.copy.buffers import MatrixGpu
from meshrun.jobs.bench.copy.cases import (
    LATENCY,
    NEEDS_TMA,
    TMA_CAPABILITY,
    Case,
    CopyTransfer,
    CopyTransfers,
)
from meshrun.jobs.bench.copy.engines import ENGINES
from meshrun.jobs.bench.copy.latency import CHAIN, chase
from meshrun.jobs.bench.copy.transfers import TransferRunner, TransferSample

CellValues = tuple[float, ...]  # one for each matrix of a case


@dataclass(frozen=True)
class CopySettings:
    """Settings of a measurement.

    size: bytes of a buffer. copies, samples: copies of a sample, samples of a cell. mean: report the mean,
    not the median. check: verify data. accesses: loads of a latency sample. huge_pages: of host memory.
    pairs: how many pairs of GPUs to measure, drawn at random; None for all. pair: the only one to measure;
    None for all. near: allocate host memory near
    each GPU.
    """

    size: int = 512 << 20
    copies: int = 16
    samples: int = 3
    mean: bool = False
    check: bool = True
    accesses: int = 1_000_000
    huge_pages: bool = False
    pairs: int | None = None
    pair: tuple[int, int] | None = None
    near: bool = True

    def middle(self, values: Sequence[float]) -> float:
        return statistics.fmean(values) if self.mean else statistics.median(values)


@dataclass(frozen=True)
class MatrixCell:
    """values: GB/s or ns; None if not measured. transfers: those measured. why: why others were not."""

    row: int
    column: int
    transfers: CopyTransfers
    values: CellValues | None
    samples: tuple[CellValues, ...] = ()
    why: str = ""

    def variation(self, number: int) -> float | None:
        """Return the samples' standard deviation over their mean, in the case's matrix of this number.

        None if there are fewer than two, or none of that matrix.
        """
        values = [sample[number] for sample in self.samples if number < len(sample)]
        return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None


@dataclass(frozen=True)
class CaseResult:
    """gpus: number of columns. wrong: a sentence per mismatch. waived: why no cell was measured, or empty."""

    case: Case
    gpus: int
    cells: tuple[MatrixCell, ...]
    wrong: tuple[str, ...] = ()
    waived: str = ""

    def matrix(self, number: int) -> list[list[float | None]]:
        """Return the values of the case's matrix of this number."""
        return self._laid_out(lambda cell: None if cell.values is None else cell.values[number])

    def variations(self, number: int) -> list[list[float | None]]:
        """Return how much the samples of this matrix vary."""
        return self._laid_out(lambda cell: cell.variation(number))

    def _laid_out(self, figure: Callable[[MatrixCell], float | None]) -> list[list[float | None]]:
        rows = self.gpus if self.case.rows == "gpus" else 1
        matrix: list[list[float | None]] = [[None] * self.gpus for _ in range(rows)]
        for cell in self.cells:
            matrix[cell.row][cell.column] = figure(cell)
        return matrix


def measure(
    case: Case, transfer_runner: TransferRunner, settings: CopySettings, progress: Callable[[str], None]
) -> CaseResult:
    """Measure all cells of a case; collective over the host's ranks, the same result on all."""
    gpus, cells, wrong = len(transfer_runner.gpus), list[MatrixCell](), list[str]()
    if case.engine in NEEDS_TMA and (why := without_tma(transfer_runner.gpus)):
        return CaseResult(case, gpus, (), waived=why)
    for row, column, transfers in drawn(case, gpus, settings):
        progress(f"row {row}, column {column}")
        measured = _latency if case.engine in LATENCY else _rates
        cell, found = measured(case, transfer_runner, settings, row, column, transfers)
        cells.append(cell)
        wrong += [f"{case.name}, cell ({row}, {column}), {sentence}" for sentence in found]
    waived = ""
    if not cells and settings.pair is not None and gpus > 1:
        waived = f"there is no pair {settings.pair[0]},{settings.pair[1]} of {gpus} GPUs"
    elif not cells:
        waived = f"it needs two GPUs, and there is {gpus}"
    elif all(cell.values is None for cell in cells):
        waived = cells[0].why
    return CaseResult(case, gpus, tuple(cells), tuple(wrong), waived)


def without_tma(gpus: Sequence[MatrixGpu]) -> str:
    """Return why GPUs cannot make bulk copies; "" if all can."""
    for number, one in enumerate(gpus):
        if one.gpu.capability < TMA_CAPABILITY:
            return (
                f"bulk copies need compute capability {TMA_CAPABILITY / 10:g}, and GPU {number} "
                f"({one.gpu.name}) has {one.gpu.capability / 10:g}"
            )
    return ""


def drawn(case: Case, gpus: int, settings: CopySettings) -> list[tuple[int, int, CopyTransfers]]:
    """Return the cells to measure: of a matrix of pairs, those of one pair, or so many; the same ones in all
    cases and runs."""
    cells, pairs = list(case.cells(gpus)), settings.pairs
    if settings.pair is not None and case.rows == "gpus":
        return [cell for cell in cells if {*cell[:2]} == {*settings.pair}]
    if pairs is None or case.rows != "gpus" or pairs >= len(cells):
        return cells
    return [cells[number] for number in sorted(random.Random(0).sample(range(len(cells)), pairs))]


def _rates(
    case: Case,
    transfer_runner: TransferRunner,
    settings: CopySettings,
    row: int,
    column: int,
    transfers: CopyTransfers,
) -> tuple[MatrixCell, list[str]]:
    with transfer_runner.buffers.bound(transfers, settings.size) as binding:
        why = "; ".join(dict.fromkeys(binding.unavailable.values()))
        if not binding.transfers or (binding.unavailable and case.reports != "total"):
            return MatrixCell(row, column, (), None, why=why), []
        taken = [
            transfer_runner.run(binding.transfers, case.engine, settings.copies, settings.check)
            for _ in range(settings.samples)
        ]
    wrong = [f"sample {number}: {one}" for number, sample in enumerate(taken) for one in sample.mismatches]
    ran: tuple[CopyTransfer, ...] = tuple(one.transfer for one in binding.transfers)
    if any(not sample.total or not all(sample.seconds) for sample in taken):
        return MatrixCell(row, column, ran, None, why="below event resolution; increase -s"), wrong
    samples = tuple(reported(case, sample, settings.copies) for sample in taken)
    middles = tuple(settings.middle(column) for column in zip(*samples, strict=True))
    values = (*middles, sum(middles)) if case.reports == "each" else middles
    return MatrixCell(row, column, ran, values, samples, why), wrong


def reported(case: Case, sample: TransferSample, copies: int) -> CellValues:
    """Return the rates that a case reports for one sample, GB/s; for "each" without the sum."""
    if case.reports == "total":
        return (sum(sample.nbytes) * copies / sample.total / 1e9,)
    ways = 2 if ENGINES[case.engine].both_ways else 1  # reported in each direction
    rates = [
        nbytes * copies / seconds / 1e9 / ways
        for nbytes, seconds in zip(sample.nbytes, sample.seconds, strict=True)
    ]
    return tuple(rates) if case.reports == "each" else (rates[0],)


def _latency(
    case: Case,
    transfer_runner: TransferRunner,
    settings: CopySettings,
    row: int,
    column: int,
    transfers: CopyTransfers,
) -> tuple[MatrixCell, list[str]]:
    """Measure a single sample, which has a million loads."""
    with transfer_runner.buffers.bound(transfers, CHAIN, ends=("source",)) as binding:
        if binding.unavailable:
            return MatrixCell(row, column, (), None, why="; ".join(binding.unavailable.values())), []
        chased = chase(transfer_runner, binding.transfers[0], settings.accesses, case.engine)
    values = (chased.seconds * 1e9,)
    return MatrixCell(row, column, transfers, values, (values,)), [chased.mismatch] if chased.mismatch else []
