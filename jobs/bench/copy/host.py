"""Measure copies inside the host's memory by each rank: one at a time, then all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from meshrun.jobs.bench.copy.cases import HOST
from meshrun.jobs.bench.copy.measure import CaseResult, CopySettings, MatrixCell
from meshrun.jobs.bench.copy.transfers import ELEMENT, WIDTH
from meshrun.jobs.measure import check
from meshrun.jobs.measure.patterns import Copied, Segment
from meshrun.jobs.measure.timers import host_seconds
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.device.raw.huge_pages import huge_array
from meshrun.runner.report.units import counted

ByteArray = np.ndarray[tuple[int], np.dtype[np.uint8]]


def measure(group: Control, settings: CopySettings, progress: Callable[[str], None]) -> CaseResult:
    """Measure a column for each of the host's ranks; collective over them, the same result on all."""
    source, target = _buffer(settings), _buffer(settings)
    source[...] = target[...] = 0  # the first touch maps the pages
    samples_of: list[list[tuple[float, ...]]] = [[] for _ in range(group.size)]
    mismatches: list[str] = []
    for sample in range(settings.samples):
        progress(f"sample {sample}")
        with _checked(source, target, settings, 2 * sample, group.rank, mismatches):
            for turn in range(group.size):
                group.barrier()
                if turn == group.rank:
                    single = _seconds(source, target, settings)
            group.barrier()
        with _checked(source, target, settings, 2 * sample + 1, group.rank, mismatches):
            group.barrier()
            concurrent = _seconds(source, target, settings)
            group.barrier()
        for rank, seconds in enumerate(group.allgather((single, concurrent))):
            samples_of[rank].append(tuple(settings.size / one / 1e9 for one in seconds))
    cells = []
    for column, samples in enumerate(samples_of):
        values = tuple(settings.middle(one) for one in zip(*samples, strict=True))
        (_, _, transfers) = next(cell for cell in HOST.cells(group.size) if cell[1] == column)
        cells.append(MatrixCell(0, column, transfers, values, tuple(samples)))
    found = tuple(sentence for some in group.allgather(mismatches) for sentence in some)
    return CaseResult(HOST, group.size, tuple(cells), found)


def copy(target: ByteArray, source: ByteArray) -> None:
    np.copyto(target, source)


def _buffer(settings: CopySettings) -> ByteArray:
    return huge_array(settings.size) if settings.huge_pages else np.empty(settings.size, np.uint8)


def _seconds(source: ByteArray, target: ByteArray, settings: CopySettings) -> float:
    """Return mean seconds per copy of a sample, after one warm-up copy."""
    copy(target, source)
    return max(host_seconds(lambda: copy(target, source), settings.copies), 1e-12)


@contextmanager
def _checked(
    source: ByteArray, target: ByteArray, settings: CopySettings, seed: int, rank: int, mismatches: list[str]
) -> Iterator[None]:
    """Fill the source before the copies inside, verify the target after them."""
    kind = DATATYPES[ELEMENT]
    segments = [Segment(0, settings.size // WIDTH, Copied(seed, rank))]
    if settings.check:
        check.fill(source, kind, segments)
        check.poison(target)
    yield
    found = check.verify(target, kind, segments) if settings.check else None
    if found is not None:
        mismatches.append(
            f"{HOST.name}, rank {rank} of the host: byte {found.offset * WIDTH} of the target: "
            f"got {found.got}, expected {found.expected}; "
            f"{counted(found.count, 'wrong element')} of {WIDTH} bytes"
        )
