"""Results of measured allocators."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobs.bench.lessons.pool.workload import Account


@dataclass(frozen=True)
class AllocationTimes:
    """Seconds of one call; settled: until the device has completed it.

    first: an allocation from an empty pool. again: one of a size that was released just before.
    """

    first: float
    first_settled: float
    again: float
    again_settled: float
    release: float
    release_settled: float


@dataclass(frozen=True)
class PassTimes:
    """Seconds of the workload. first: from an empty pool. again, alone: repeated; alone is not settled."""

    first: float
    again: float
    alone: float


@dataclass(frozen=True)
class PoolResults:
    """requested, most: bytes allocated at a time, as requested and as used. pools: labels; the driver's or
    the system's own calls come first. allocations: in the workload. times: by pool and bytes. passes,
    accounts: by pool. mismatches: a sentence for each overlap of two allocations.
    """

    on_gpu: bool
    requested: int
    most: int
    pools: tuple[str, ...]
    sizes: tuple[int, ...]
    allocations: int
    times: dict[tuple[str, int], AllocationTimes] = field(default_factory=dict)
    passes: dict[str, PassTimes] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)
