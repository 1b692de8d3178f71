"""What was measured: a row for each size, two placements a row. Plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobs.measure.time_statistics import TimeStatistics, time_statistics


@dataclass(frozen=True)
class Wrong:
    """What one rank found wrong in its result.

    rank: in the world. host: of it. device: its name for people, such as "GPU 3". count: elements.
    offset: of the first wrong element, in elements from the start of the rank's result. got, expected:
    that element. source: the world rank whose data belongs at that offset; None where every
    rank's data is combined. flipped_bits: of that element.
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


@dataclass(frozen=True)
class Iterations:
    """Times of single iterations, seconds.

    slowest: per iteration, the longest over ranks. by_rank: [rank][iteration]. skipped: how many leading
    ones a summary leaves out.
    """

    slowest: tuple[float, ...]
    by_rank: tuple[tuple[float, ...], ...]
    skipped: int = 0

    def summary(self) -> TimeStatistics:
        """Statistics of the slowest rank's times, without the leading ones to skip."""
        return time_statistics(self.slowest[self.skipped :])


@dataclass(frozen=True)
class Group:
    """One group's own figures, where the ranks were split. color: nccl-tests' group number.

    ranks: world ranks in it. seconds: averaged, as -a says, over its own ranks only. busbw: GB/s.
    wrong: as in Measured.
    """

    color: int
    ranks: tuple[int, ...]
    seconds: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Measured:
    """One size and placement.

    seconds: of one operation, over the ranks as -a says. cpu_seconds: until it was queued. algbw, busbw:
    GB/s (1e9 bytes). wrong: elements, over all ranks; None where the result was not checked.
    by_rank: each rank's own seconds. lateness: per rank, seconds by which it began its iterations after the
    median rank, on a common clock, median over iterations; empty where arrivals were not stamped.
    groups: one for each group; empty where the ranks were not split. wire, wire_percent: GB/s on the
    tightest link and its share of that link's nominal rate; None where not known.
    """

    seconds: float
    cpu_seconds: float
    algbw: float
    busbw: float
    wrong: int | None
    by_rank: tuple[float, ...] = ()
    findings: tuple[Wrong, ...] = ()
    iterations: Iterations | None = None
    lateness: tuple[float, ...] = ()
    groups: tuple[Group, ...] = ()
    wire: float | None = None
    wire_percent: float | None = None


@dataclass(frozen=True)
class Row:
    """One size: the first five columns, and both placements. count: elements, as NCCL's function takes it.

    finished: seconds since the epoch when both were done.
    """

    size: int
    count: int
    datatype: str
    reduction: str
    root: int
    out_of_place: Measured
    in_place: Measured
    finished: float = 0.0


@dataclass(frozen=True)
class Seat:
    """One rank's line in the header. group: its color. bus_id: "0000:00:00" where there is none."""

    rank: int
    group: int
    pid: int
    host: str
    device: int
    bus_id: str
    name: str


@dataclass(frozen=True)
class Memory:
    """Bytes of GPU memory used, the most over ranks (-M)."""

    initialization: int
    buffers: int
    collective: int


@dataclass(frozen=True)
class Header:
    """What is known before the first row.

    program: such as "all_reduce_perf". library: NCCL's version as a number, such as 22809; 0 without NCCL.
    backend: how the bytes travel, for people. assumptions: sentences on how wire rates are worked out.
    """

    program: str
    library: int
    backend: str
    seats: tuple[Seat, ...]
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Footer:
    """What is known after the last row.

    failures: how many rows and placements held wrong values, over ranks as nccl-tests counts them.
    average_busbw: GB/s, over all rows and placements. minimum_busbw: what NCCL_TESTS_MIN_BW asks for.
    """

    failures: int
    average_busbw: float
    minimum_busbw: float | None = None
    memory: Memory | None = None
    errors: tuple[str, ...] = field(default=())
