"""Results: a row for each size, with two placements. Plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshrun.runner.comm.collectives.api import NcclChoice


@dataclass(frozen=True)
class RankMismatch:
    """Wrong data in one rank's result.

    rank: in the world. host: of that rank. device: its display name, such as "GPU 3". count: wrong elements.
    offset: of the first wrong element, in elements from the start of the rank's result; outside it, negative
    or at least its length, for what a call wrote beyond it. got, expected: that element. source: the world
    rank whose data is expected there; None if all ranks' data is combined. flipped_bits: of that element.
    timed_call: number of the timed call, from 0; None for the call that is made only to be checked.
    """

    rank: int
    host: str
    device: str
    count: int
    offset: int
    got: str
    expected: str
    source: int | None
    flipped_bits: int
    timed_call: int | None = None


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


@dataclass(frozen=True)
class Iterations:
    """Times of single iterations, seconds.

    slowest: of each iteration, the longest over ranks. by_rank: [rank][iteration]. skipped: leading
    iterations that the summary leaves out.
    """

    slowest: tuple[float, ...]
    by_rank: tuple[tuple[float, ...], ...]
    skipped: int = 0

    def summary(self) -> TimeStatistics:
        """Compute statistics of the slowest rank's times, without the skipped ones."""
        return time_statistics(self.slowest[self.skipped :])


@dataclass(frozen=True)
class SplitGroup:
    """One group's figures, if the ranks were split. color: nccl-tests' group number.

    ranks: world ranks in it. seconds: averaged, as -a says, over its own ranks only. busbw: GB/s.
    wrong: as in PlacementResult.
    """

    color: int
    ranks: tuple[int, ...]
    seconds: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True, order=True)
class WireTraffic:
    """Bytes that one operation sent and received through one wire, and wherever else its counter counts.

    kind: "nvlink", "rdma" or "ip". owner: the GPU whose NVLink it is, such as "rank 3"; else the host. wire:
    such as "NVLink 11", "mlx5_0 port 1", "eth0".
    """

    kind: str
    owner: str
    wire: str
    sent: float
    received: float


@dataclass(frozen=True)
class PlacementResult:
    """One size and placement.

    seconds: of one operation, over the ranks as -a says. cpu_seconds: until it was queued. algbw, busbw: GB/s
    (1e9 bytes). wrong: elements, over all ranks; None if the result was not checked. by_rank: each rank's
    seconds. arrival_skew: of each rank, seconds by which it began its iterations after the median rank, on a
    common clock, median over iterations; empty if not measured. groups: empty if the ranks were not split.
    wire, wire_percent: GB/s on the limiting link and its share of the nominal rate; None if unknown. choices:
    the library's, for one step; empty if it does not report them, None without --show-tuning. traffic: of
    every wire with a counter; None without --wires.
    """

    seconds: float
    cpu_seconds: float
    algbw: float
    busbw: float
    wrong: int | None
    by_rank: tuple[float, ...] = ()
    findings: tuple[RankMismatch, ...] = ()
    iterations: Iterations | None = None
    arrival_skew: tuple[float, ...] = ()
    groups: tuple[SplitGroup, ...] = ()
    wire: float | None = None
    wire_percent: float | None = None
    choices: tuple[NcclChoice, ...] | None = None
    traffic: tuple[WireTraffic, ...] | None = None


@dataclass(frozen=True)
class ResultRow:
    """One size: the first five columns, and both placements. count: elements, as NCCL's function takes them.

    finished: seconds since the epoch when both placements were done.
    """

    size: int
    count: int
    datatype: str
    reduction: str
    root: int
    out_of_place: PlacementResult
    in_place: PlacementResult
    finished: float = 0.0


@dataclass(frozen=True)
class RankDevice:
    """One rank's line in the header. group: its color. bus_id: "0000:00:00" if the device has none."""

    rank: int
    group: int
    pid: int
    host: str
    device: int
    bus_id: str
    name: str


@dataclass(frozen=True)
class GpuMemoryUse:
    """Bytes of GPU memory used, the maximum over ranks (-M)."""

    initialization: int
    buffers: int
    collective: int


@dataclass(frozen=True)
class Header:
    """Facts printed before the first row.

    program: such as "all_reduce_perf". library: NCCL's version as a number, such as 22809; 0 without NCCL.
    backend: the transport, as text. assumptions: sentences about how wire rates are computed.
    """

    program: str
    library: int
    backend: str
    ranks: tuple[RankDevice, ...]
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Footer:
    """Facts printed after the last row.

    failures: checks that found wrong values, summed over ranks as in nccl-tests. average_busbw: GB/s, over
    all rows and placements. minimum_busbw: of --min-busbw, GB/s.
    """

    failures: int
    average_busbw: float
    minimum_busbw: float | None = None
    memory: GpuMemoryUse | None = None
    errors: tuple[str, ...] = field(default=())
