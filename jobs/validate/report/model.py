"""The results of a validation, which every format of the report shows.

Rates are in bytes per second, those of a matrix product in floating-point operations per second (`unit_of`);
times in seconds; None is unknown. A rate counts: for a single GPU, bytes read plus written in its memory,
2 n^3 operations of a product, or bytes copied; for a pair, bytes sent; for a ring, bytes that pass each link
(2 (n - 1) / n of the data).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.probe.api import LoadReadings, WrongData
from meshrun.jobs.validate.verdict import Verdict
from meshrun.runner.world.stuck.nccl_ras import NcclDiagnostics

SCHEMA = 2  # of the JSON document


@dataclass(frozen=True)
class Member:
    """One rank. device: its name, such as "NVIDIA H200". gpu: its number on its host, and of its rail. kind:
    "cuda", "cpu" or "simulated". nic: network ports that it uses, such as "mlx5_3 port 1"; "" unknown.
    """

    rank: int
    host: str
    gpu: int
    device: str
    uuid: str = ""
    bus_id: str = ""
    kind: str = "cuda"
    nic: str = ""


@dataclass(frozen=True)
class HardwareLimit:
    """A hardware limit. what: the measurement, as in `RungResult.rates`. assumption: a phrase.

    least: the share of it that healthy machines reach at least; None if unknown.
    """

    rung: RungName
    what: str
    rate: float | None
    assumption: str
    least: float | None = None


@dataclass(frozen=True)
class Change:
    """A counter or a state that changed while a rung was measured.

    part: of the host, such as "GPU 3", "GPU 3, NVLink 11", "mlx5_0 port 1", "eth0". weight: "fault" indicates
    a bad part (errors, a link that went down, throttling by heat), "note" does not (retransmits on a shared
    network, clocks). meaning: one line that explains the counter.
    """

    rung: RungName
    host: str
    part: str
    counter: str
    before: float | str
    after: float | str
    weight: Literal["fault", "note"]
    meaning: str


@dataclass(frozen=True)
class RateMatrix:
    """Median rates from each row to each column, None if not measured. what: the operation.

    rung "pairs": one matrix for each host and operation, labels are its GPUs. rung "host pairs": one for each
    rail, labels are the hosts.
    """

    rung: RungName
    what: str
    title: str
    labels: tuple[str, ...]
    rates: tuple[tuple[float | None, ...], ...]

    def measured(self) -> Iterator[tuple[int, int, float]]:
        """Yield row, column and rate of each measured cell."""
        for row, rates in enumerate(self.rates):
            for column, rate in enumerate(rates):
                if rate is not None and math.isfinite(rate):
                    yield row, column, rate


@dataclass(frozen=True)
class RateCurve:
    """Rates by size. points: (bytes, rate)."""

    rung: RungName
    title: str
    points: tuple[tuple[int, float], ...]
    limit: float | None = None


@dataclass(frozen=True)
class Drift:
    """A measurement that differs from earlier healthy runs of the same fleet.

    part: as in `Finding.part`, or "" for the fleet's median. usual: the median of the earlier runs. score:
    robust standard deviations above (faster) or below it, NaN if there were too few `runs`.
    """

    rung: RungName
    what: str
    part: str
    rate: float
    usual: float
    score: float
    runs: int


@dataclass(frozen=True)
class Report:
    """started: ISO 8601, UTC. seconds: from start to end. command: as typed.

    environment: versions and settings (plain values; the same keys on every run). simulated: the fleet as
    `parse_fleet` reads it; "" for a real one. ended: why the run ended early, in one sentence that names the
    rank, or "". baseline: the file compared with; drifts: the rates that differ from it; changed: sentences
    on other differences. loads: what was read of each GPU beside the load on its tensor cores; of a soak, in
    all rounds. nccl: NCCL's own diagnostics; None if it has none.
    """

    verdict: Verdict
    members: tuple[Member, ...]
    started: str
    seconds: float
    command: str
    environment: dict[str, Any] = field(default_factory=dict)
    simulated: str = ""
    limits: tuple[HardwareLimit, ...] = ()
    changes: tuple[Change, ...] = ()
    wrong: tuple[WrongData, ...] = ()
    matrices: tuple[RateMatrix, ...] = ()
    curves: tuple[RateCurve, ...] = ()
    baseline: str = ""
    drifts: tuple[Drift, ...] = ()
    changed: tuple[str, ...] = ()
    ended: str = ""
    loads: tuple[LoadReadings, ...] = ()
    nccl: NcclDiagnostics | None = None
