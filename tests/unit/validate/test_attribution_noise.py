"""Noise makes nobody guilty, and hides nobody who is slow: fleets like busy processors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from noisy_fleet import PLAN, NoisyFleet

from jobs.validate.ladder import validate
from jobs.validate.plan import Plan
from jobs.validate.rungs.visits import effort
from jobs.validate.verdict import Verdict


def verdict_of(fleet: NoisyFleet) -> Verdict:
    return validate(fleet, replace(PLAN, seed=fleet.seed))


@pytest.mark.parametrize("sigma", [0.3, 0.5])
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


def test_more_noise_means_more_samples_up_to_a_limit() -> None:
    plan = Plan()
    counts = [effort(noise, 5, plan) for noise in (0.0, 0.03, 0.06, 0.1, 3.0)]
    assert counts[:2] == [1, 1]
    assert counts == sorted(counts)
    assert counts[-1] == Plan().effort
