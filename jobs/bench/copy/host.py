"""Copies inside the host's memory by each rank: one at a time, then all at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import runner
from jobs.bench.copy.cases import HOST
from jobs.bench.copy.measure import Cell, Result, Settings
from jobs.bench.copy.transfers import ELEMENT, WIDTH
from jobs.measure import check
from jobs.measure.patterns import Copied, Segment
from runner import Control

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def measure(group: Control, settings: Settings, progress: Callable[[str], None]) -> Result:
    """A column for each of the host's ranks; collective over them, with the same result on all."""
    source, target = (np.empty(settings.size, np.uint8) for _ in range(2))
    source[...] = target[...] = 0  # pages have their place once they are touched
    taken: list[list[tuple[float, ...]]] = [[] for _ in range(group.size)]
    wrong: list[str] = []
    for sample in range(settings.samples):
        progress(f"sample {sample}")
        with _checked(source, target, settings, 2 * sample, group.rank, wrong):
            for turn in range(group.size):
                group.barrier()
                if turn == group.rank:
                    alone = _seconds(source, target, settings)
            group.barrier()
        with _checked(source, target, settings, 2 * sample + 1, group.rank, wrong):
            group.barrier()
            together = _seconds(source, target, settings)
            group.barrier()
        for rank, seconds in enumerate(group.allgather((alone, together))):
            taken[rank].append(tuple(settings.size * settings.copies / one / 1e9 for one in seconds))
    cells = []
    for column, samples in enumerate(taken):
        values = tuple(settings.middle(one) for one in zip(*samples, strict=True))
        (_, _, flows) = next(cell for cell in HOST.cells(group.size) if cell[1] == column)
        cells.append(Cell(0, column, flows, values, tuple(samples)))
    found = tuple(sentence for some in group.allgather(wrong) for sentence in some)
    return Result(HOST, group.size, tuple(cells), found)


def copy(target: Bytes, source: Bytes) -> None:
    np.copyto(target, source)


def _seconds(source: Bytes, target: Bytes, settings: Settings) -> float:
    """Of one sample's copies, after one that does not count."""
    copy(target, source)
    begin = time.perf_counter()
    for _ in range(settings.copies):
        copy(target, source)
    return max(time.perf_counter() - begin, 1e-9)


@contextmanager
def _checked(
    source: Bytes, target: Bytes, settings: Settings, seed: int, rank: int, wrong: list[str]
) -> Iterator[None]:
    """Data to copy before, and what arrived of it looked at afterwards."""
    kind = runner.DATATYPES[ELEMENT]
    segments = [Segment(0, settings.size // WIDTH, Copied(seed, rank))]
    if settings.check:
        check.fill(source, kind, segments)
        check.poison(target)
    yield
    found = check.verify(target, kind, segments) if settings.check else None
    if found is not None:
        wrong.append(
            f"{HOST.name}, rank {rank} of the host: byte {found.offset * WIDTH} of the target: "
            f"got {check.text(found.got_bits, kind)}, expected {check.text(found.expected_bits, kind)}; "
            f"{found.count} wrong elements of {WIDTH} bytes"
        )
