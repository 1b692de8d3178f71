"""Noise causes no false alarms and hides no slow part, on fleets like busy processors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from noisy_fleet import PLAN, NoisyFleet

from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.measurements.repeats import repeats_needed
from meshrun.jobs.validate.plan import CPU_SHARE, Plan
from meshrun.jobs.validate.probe.api import Seconds
from meshrun.jobs.validate.verdict import Verdict


def verdict_of(fleet: NoisyFleet) -> Verdict:
    return climb_ladder(fleet, replace(PLAN, seed=fleet.seed))


@pytest.mark.parametrize("sigma", [0.5, pytest.param(0.3, marks=pytest.mark.nightly)])
def test_nobody_is_blamed_of_noise(sigma: float) -> None:
    verdicts = [verdict_of(NoisyFleet(seed, sigma=sigma)) for seed in range(40)]
    assert [one.line for one in verdicts if one.status != "ok"] == []


def test_a_rank_that_is_stopped_half_of_the_time() -> None:
    random = np.random.default_rng(5)
    for seed in range(20):
        rank = int(random.integers(8))
        fleet = NoisyFleet(seed, stopped=rank, turn=float(random.uniform(0.005, 0.05)))
        verdict = verdict_of(fleet)
        place = fleet.places[rank]
        found = [(one.kind, one.hosts, one.gpus) for one in verdict.findings]
        assert found == [("gpu", (fleet.hosts[place.host],), (place.gpu,))]
        assert verdict.status == "critical"
        assert verdict.findings[0].factor == pytest.approx(0.5, abs=0.2)


def test_a_host_behind_a_rate_limit() -> None:
    random = np.random.default_rng(6)
    for seed in range(20):
        host, limit = int(random.integers(4)), float(random.uniform(0.25, 0.5))
        fleet = NoisyFleet(seed, limited=host, limit=limit)
        verdict = verdict_of(fleet)
        assert [(one.kind, one.hosts) for one in verdict.findings] == [("host", (fleet.hosts[host],))]
        assert verdict.findings[0].factor == pytest.approx(limit, rel=0.15)


class Stalling(NoisyFleet):
    """Some flows of the limited host wait for a retransmission during one repeat."""

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        seconds = super().flows(flows, nbytes, samples)
        lossy = [self.limited in (self.places[a].host, self.places[b].host) for a, b in flows]
        stalled = np.array(lossy) & (self.random.random(len(flows)) < 0.03)
        return np.where(stalled[:, None], 4 * seconds, seconds)


def test_a_stall_of_one_visit_asks_no_more_questions() -> None:
    """The other repeats, which the slow host explains, count against an even slower part of it."""
    plan = replace(PLAN, tolerance=-math.log(CPU_SHARE), critical=CPU_SHARE)
    for seed in range(20):
        fleets = [kind(seed, sigma=0.05, limited=seed % 4) for kind in (NoisyFleet, Stalling)]
        verdicts = [climb_ladder(fleet, plan) for fleet in fleets]
        for verdict in verdicts:
            assert [(one.kind, one.hosts) for one in verdict.findings] == [("host", (f"n{seed % 4}",))]
        steady, stalling = ({rung.name: rung.rounds for rung in one.rungs} for one in verdicts)
        assert stalling["host pairs"] <= 3 * steady["host pairs"]  # looks at a host that may come and go


def test_more_noise_means_more_samples_up_to_a_limit() -> None:
    plan = Plan()
    counts = [repeats_needed(noise, 5, plan) for noise in (0.0, 0.03, 0.06, 0.1, 3.0)]
    assert counts[:2] == [1, 1]
    assert counts == sorted(counts)
    assert counts[-1] == Plan().max_repeats
