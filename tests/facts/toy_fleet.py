"""The smallest fleet that a probe can be: every path as fast as its slowest part, a little normal noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.probe.api import (
    CounterKey,
    LoadReadings,
    RankPlace,
    Seconds,
    SingleRankOp,
    WrongData,
)
from meshrun.jobs.validate.verdict import Unit

RATES = {"memory": 2e12, "product": 1e10, "tensor": 1e11, "to_device": 55e9, "to_host": 55e9}

Slowed = Callable[[RankPlace, RankPlace], float]


@dataclass
class ToyFleet:
    """gpus: of each host. alone_factor(what, place), flow_factor(from, to): share of the speed left.

    copy_factor: as flow_factor, of copies where they differ. barred: why there are none.
    """

    gpus: Sequence[int]
    noise: float = 0.02
    seed: int = 0
    single_rank_factor: Callable[[SingleRankOp, RankPlace], float] = lambda what, place: 1.0
    flow_factor: Slowed = lambda a, b: 1.0
    copy_factor: Slowed | None = None
    barred: str = ""
    calls: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    unavailable: Mapping[RungName, str] = field(default_factory=dict)
    unit: Unit = "GPU"
    found_wrong: list[WrongData] = field(default_factory=list)  # by the next rung
    counted: list[Mapping[CounterKey, float | str]] = field(default_factory=list)  # by the next readings

    def __post_init__(self) -> None:
        self.random, self.waited = np.random.default_rng(self.seed), 0.0
        self.copying = np.random.default_rng((self.seed, 1))  # of its own: copies change no other figure
        self.hosts = [f"n{host}" for host in range(len(self.gpus))]
        spots = [(host, gpu) for host, count in enumerate(self.gpus) for gpu in range(count)]
        self.places = [RankPlace(rank, host, gpu) for rank, (host, gpu) in enumerate(spots)]

    def noisy(
        self, seconds: Sequence[float], samples: int, random: np.random.Generator | None = None
    ) -> Seconds:
        wobble = 1 + self.noise * (random or self.random).standard_normal((len(seconds), samples))
        return np.array(seconds)[:, None] * wobble

    def wrong_data(self) -> Sequence[WrongData]:
        found, self.found_wrong = self.found_wrong, []
        return found

    def nccl_diagnostics(self) -> None:
        return None

    def loads(self) -> Sequence[LoadReadings]:
        return ()

    def counters(self) -> Mapping[CounterKey, float | str]:
        return self.counted.pop(0) if self.counted else {}

    def clock(self) -> float:
        return self.waited

    def wait(self, seconds: float) -> None:
        """Measurements take no time."""
        self.waited += seconds

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        return self.noisy(
            [nbytes / RATES[what] / self.single_rank_factor(what, at) for at in self.places], samples
        )

    def flow(self, a: int, b: int) -> float:
        here, there = self.places[a], self.places[b]
        rate = 400e9 if here.host == there.host else 48e9
        return 1 / (rate * self.flow_factor(here, there))

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        self.calls.append(tuple(flows))
        return self.noisy([nbytes * self.flow(a, b) for a, b in flows], samples)

    def copies_unavailable(self) -> str:
        return self.barred or ("" if self.unit == "GPU" else "CPUs have no copy engines")

    def copies(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        assert not self.copies_unavailable()
        assert all(self.places[a].host == self.places[b].host for a, b in flows)
        rate = self.copy_factor or self.flow_factor
        places = [(self.places[a], self.places[b]) for a, b in flows]
        return self.noisy([nbytes / (400e9 * rate(*ends)) for ends in places], samples, self.copying)

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        hops = [list(zip(group, [*group[1:], group[0]], strict=True)) for group in groups]
        share = [2 * (len(group) - 1) / len(group) for group in groups]
        slowest = [max(self.flow(a, b) for a, b in ring) for ring in hops]
        return self.noisy([nbytes * part * hop for part, hop in zip(share, slowest, strict=True)], samples)
