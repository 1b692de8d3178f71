"""A probe wrapper that counts and times calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jobs.validate.probe.api import Probe, Seconds, SingleRankOp


class MeteredProbe:
    """rounds: calls. messages: (flows + ring members) x samples. seconds: time spent measuring."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.hosts, self.places = probe.hosts, probe.places
        self.unit, self.unavailable = probe.unit, probe.unavailable
        self.counters, self.wrong_data, self.wait = probe.counters, probe.wrong_data, probe.wait
        self.copies_unavailable = probe.copies_unavailable
        self.reset()

    def reset(self) -> None:
        self.rounds, self.messages, self.seconds = 0, 0, 0.0

    def single_rank(self, what: SingleRankOp, nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.single_rank(what, nbytes, samples), 0)

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.flows(flows, nbytes, samples), len(flows) * samples)

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
