"""A fleet like ranks on a few processors that others use too: skewed noise, stragglers, hosts that are slower
for a while. A rank can be stopped for half of the time, a host sit behind a rate limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.jobs.validate.plan import CPU_BLIND, Plan
from meshrun.jobs.validate.probe.api import LoadReadings, RankPlace, Seconds, SingleRankOp, WrongData
from meshrun.jobs.validate.verdict import Unit

RATES = {"memory": 8e9, "product": 2e9, "to_device": 8e9, "to_host": 8e9}
INSIDE, OUTSIDE = 4e9, 2e9
MiB = 1 << 20
# A measurement takes some 10 ms, which is less than some stops last.
PLAN = Plan(
    blind=CPU_BLIND,
    quick_looks=0,
    rungs=("gpu", "pairs", "node", "host pairs", "rails", "all"),
    memory_bytes=64 * MiB,
    product_bytes=16 * MiB,
    pair_bytes=32 * MiB,
    nic_bytes=16 * MiB,
    ring_bytes=16 * MiB,
)


@dataclass
class NoisyFleet:
    """stopped: a rank, stopped (SIGSTOP) and going on (SIGCONT) in turns of `turn` seconds. limited: a host
    whose traffic with others has `limit` of the rate. sigma: of the log of each sample.
    """

    seed: int
    gpus: Sequence[int] = (2, 2, 2, 2)
    sigma: float = 0.3
    stopped: int | None = None
    turn: float = 0.02
    limited: int | None = None
    limit: float = 0.4
    unit: Unit = "CPU"
    hosts: list[str] = field(init=False)
    places: list[RankPlace] = field(init=False)

    def __post_init__(self) -> None:
        self.random, self.now = np.random.default_rng(self.seed), 0.0
        self.hosts = [f"n{host}" for host in range(len(self.gpus))]
        spots = [(host, gpu) for host, count in enumerate(self.gpus) for gpu in range(count)]
        self.places = [RankPlace(rank, host, gpu) for rank, (host, gpu) in enumerate(spots)]
        self.busy = np.zeros(len(self.hosts), int)  # rounds that a host is still slower for

    @property
    def unavailable(self) -> Mapping[Any, str]:
        return {"host": "the ranks are CPUs"}

    def nccl_diagnostics(self) -> None:
        return None

    def loads(self) -> Sequence[LoadReadings]:
        return ()

    def counters(self) -> Mapping[tuple[str, str, str], float | str]:
        return {}

    def wrong_data(self) -> Sequence[WrongData]:
        return ()

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        """Measurements take no time."""
        self.now += seconds

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        return self.measured(
            [nbytes / RATES[what]] * len(self.places), [{r.rank} for r in self.places], samples
        )

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        return self.measured(
            [nbytes / self.rate(a, b) for a, b in flows], [set(flow) for flow in flows], samples
        )

    def copies_unavailable(self) -> str:
        return "CPUs have no copy engines"

    def copies(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        raise NotImplementedError

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        slowest = [
            min(self.rate(a, b) for a, b in zip(group, [*group[1:], group[0]], strict=True))
            for group in groups
        ]
        share = [2 * (len(group) - 1) / len(group) for group in groups]
        seconds = [part * nbytes / rate for part, rate in zip(share, slowest, strict=True)]
        return self.measured(seconds, [set(group) for group in groups], samples)

    def rate(self, a: int, b: int) -> float:
        here, there = self.places[a].host, self.places[b].host
        if here == there:
            return INSIDE
        return OUTSIDE * (self.limit if self.limited in (here, there) else 1.0)

    def measured(self, seconds: Sequence[float], members: Sequence[set[int]], samples: int) -> Seconds:
        """members: ranks that take part in each row."""
        self.busy = np.maximum(self.busy - 1, 0)
        new = self.random.random(len(self.hosts)) < 0.03
        self.busy[new] = self.random.geometric(1 / 4, int(new.sum()))
        shape = (len(seconds), samples)
        slower = [
            1.2 if any(self.busy[self.places[rank].host] for rank in ranks) else 1.0 for ranks in members
        ]
        work = np.array(seconds)[:, None] * np.array(slower)[:, None]
        work = work * np.exp(self.sigma * self.random.standard_normal(shape))
        work = work * np.where(self.random.random(shape) < 0.02, 5.0, 1.0)
        halted = np.array([self.stopped in ranks for ranks in members])
        return np.where(halted[:, None], self.with_stops(work), work)

    def with_stops(self, work: Seconds) -> Seconds:
        """How long `work` takes that is begun at any moment of turns of going and standing."""
        turn, moment = self.turn, self.random.random(work.shape) * 2 * self.turn
        left = np.maximum(turn - moment, 0)  # until the next stop
        wait = np.where(moment < turn, 0, 2 * turn - moment)
        left = np.where(moment < turn, left, turn)
        return wait + work + turn * np.ceil(np.maximum(work - left, 0) / turn)
