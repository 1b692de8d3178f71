"""A probe wrapper that counts and times calls, and makes none after its time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from meshrun.jobs.validate.probe.api import Flows, Probe, Seconds, SingleRankOp


class TimeUpError(Exception):
    """No time is left for a measurement; it was not made."""


class MeteredProbe:
    """rounds: calls. messages: (flows + ring members) x samples. seconds: time that measurements took by the
    probe's clock; computed: by this process's.

    left: returns the seconds left; without any, calls raise TimeUpError. A call that has begun is finished.
    """

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.hosts, self.places = probe.hosts, probe.places
        self.unit, self.unavailable = probe.unit, probe.unavailable
        self.counters, self.wrong_data, self.clock = probe.counters, probe.wrong_data, probe.clock
        self.copies_unavailable, self.loads = probe.copies_unavailable, probe.loads
        self.nccl_diagnostics = probe.nccl_diagnostics
        self.left: Callable[[], float] = lambda: math.inf
        self.reset()

    def reset(self) -> None:
        self.rounds, self.messages, self.seconds, self.computed = 0, 0, 0.0, 0.0

    def wait(self, seconds: float) -> None:
        """Wait, unless the time would be up before the end."""
        if seconds >= self.left():
            raise TimeUpError
        self.probe.wait(seconds)

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        return self.timed(lambda: self.probe.single_rank(what, nbytes, samples, ranks), 0)

    def flows(self, flows: Flows, nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.flows(flows, nbytes, samples), len(flows) * samples)

    def copies(self, flows: Flows, nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.copies(flows, nbytes, samples), len(flows) * samples)

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: self.probe.rings(groups, nbytes, samples), sum(map(len, groups)) * samples)

    def timed(self, call: Callable[[], Seconds], messages: int) -> Seconds:
        if self.left() <= 0:
            raise TimeUpError
        begin, computing = self.clock(), time.perf_counter()
        result = call()
        self.seconds += self.clock() - begin
        self.computed += time.perf_counter() - computing
        self.rounds += 1
        self.messages += messages
        return result
