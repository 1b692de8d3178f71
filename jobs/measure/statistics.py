"""Statistics of single iterations, by nccl-tests' rules (computeIterStats in util.cu)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.bench.collectives.results import Iterations


@dataclass(frozen=True)
class Statistics:
    """Seconds, but for cv: the standard deviation in percent of the average."""

    min: float
    max: float
    avg: float
    p50: float
    p95: float
    p99: float
    stdev: float
    cv: float


def statistics(times: Sequence[float]) -> Statistics:
    """Of at least one time, in seconds.

    Percentiles are samples, not interpolated: number n // 2 of the sorted ones for p50 (the upper of two
    middle ones), number ceil(n p / 100) counted from one for the others. stdev divides by n.
    """
    ordered = sorted(times)
    count = len(ordered)
    average = sum(ordered) / count
    deviation = math.sqrt(sum((time - average) ** 2 for time in ordered) / count)
    return Statistics(
        min=ordered[0],
        max=ordered[-1],
        avg=average,
        p50=ordered[count // 2],
        p95=ordered[_place(count, 95)],
        p99=ordered[_place(count, 99)],
        stdev=deviation,
        cv=100 * deviation / average if average > 0 else 0.0,
    )


def summary(iterations: Iterations) -> Statistics:
    """Of the slowest rank's times, without the leading ones to be skipped."""
    return statistics(iterations.slowest[iterations.skipped :])


def _place(count: int, percentile: int) -> int:
    return min(count - 1, (count * percentile + 99) // 100 - 1)
