"""Compute statistics of single iterations, by nccl-tests' rules (computeIterStats in util.cu)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeStatistics:
    """All in seconds, except cv: the standard deviation in percent of the average."""

    min: float
    max: float
    avg: float
    p50: float
    p95: float
    p99: float
    stdev: float
    cv: float


def time_statistics(times: Sequence[float]) -> TimeStatistics:
    """Compute the statistics of at least one time, in seconds.

    Percentiles are samples, not interpolated. Of n sorted samples p50 is number n // 2 counted from zero, the
    upper of two middle ones; p95 is number ceil(0.95 n), counted from one, and p99 alike. stdev divides by n.
    """
    ordered = sorted(times)
    count = len(ordered)
    average = sum(ordered) / count
    deviation = math.sqrt(sum((time - average) ** 2 for time in ordered) / count)
    return TimeStatistics(
        min=ordered[0],
        max=ordered[-1],
        avg=average,
        p50=ordered[count // 2],
        p95=ordered[_position(count, 95)],
        p99=ordered[_position(count, 99)],
        stdev=deviation,
        cv=100 * deviation / average if average > 0 else 0.0,
    )


def _position(count: int, percentile: int) -> int:
    return min(count - 1, (count * percentile + 99) // 100 - 1)
