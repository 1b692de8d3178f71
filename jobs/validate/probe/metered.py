"""A probe wrapper that counts and times calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from jobs.validate.plan import RungName
from jobs.validate.probe.api import CounterKey, Probe, RankPlace, Seconds, SingleRankOp, WrongData
from jobs.validate.verdict import Unit


class MeteredProbe:
    """rounds: calls. messages: (flows + ring members) x samples. seconds: time spent measuring."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.reset()

    def reset(self) -> None:
        self.rounds, self.messages, self.seconds = 0, 0, 0.0

    @property
    def hosts(self) -> Sequence[str]:
        return self.probe.hosts

    @property
    def places(self) -> Sequence[RankPlace]:
        return self.probe.places

    @property
    def unit(self) -> Unit:
        return self.probe.unit

    @property
    def unavailable(self) -> Mapping[RungName, str]:
        return self.probe.unavailable

    def counters(self) -> Mapping[CounterKey, float | str]:
        return self.probe.counters()

    def wrong_data(self) -> Sequence[WrongData]:
        return self.probe.wrong_data()

    def single_rank(self, what: SingleRankOp, nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.single_rank(what, nbytes, samples), 0)

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.flows(flows, nbytes, samples), len(flows) * samples)

    def copies_unavailable(self) -> str:
        return self.probe.copies_unavailable()

    def copies(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.copies(flows, nbytes, samples), len(flows) * samples)

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.rings(groups, nbytes, samples), sum(map(len, groups)) * samples)

    def timed(self, call: Callable[[], Seconds], messages: int) -> Seconds:
        begin = time.perf_counter()
        result = call()
        self.seconds += time.perf_counter() - begin
        self.rounds += 1
        self.messages += messages
        return result
