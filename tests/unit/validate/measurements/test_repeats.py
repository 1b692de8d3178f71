"""Repeats over time: a temporary disturbance is not a fault."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from noisy_fleet import PLAN, NoisyFleet
from toy_fleet import ToyFleet

from meshrun.jobs.measure.outliers import MEDIAN_ERROR, samples_needed
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.localize import retest
from meshrun.jobs.validate.measurements import repeats
from meshrun.jobs.validate.measurements.inter_node import first_samples
from meshrun.jobs.validate.plan import CPU_SHARE, Plan
from meshrun.jobs.validate.probe.api import RankPlace, Seconds, SingleRankOp

SAMPLE = 0.1  # seconds


@pytest.mark.parametrize(
    ("span", "takes", "at"), [(0, 1, [0, 1, 2, 3]), (20, 1, [5, 10, 15, 20]), (20, 7, [5, 12, 19, 26])]
)
def test_repeats_are_spread_over_a_time_by_the_probes_clock(
    span: float, takes: float, at: list[float]
) -> None:
    probe, seen = NoisyFleet(0), []
    for number in repeats.spaced_repeats(4, span, probe):
        assert number == len(seen)
        seen.append(probe.now)
        probe.now += takes
    assert seen == at


class Crowded(NoisyFleet):
    """For the first seconds, another process has the core of each host's last rank."""

    until: float = 8.0

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        columns = []
        for _ in range(samples):
            column = super().single_rank(what, nbytes, 1, ranks)
            if self.now < self.until:
                column[[place.gpu == 1 for place in self.places]] *= 2
            columns.append(column)
            self.now += SAMPLE
        return np.concatenate(columns, axis=1)


@pytest.mark.parametrize(("span", "status"), [(0, "critical"), (20, "ok")])
def test_a_core_that_something_else_has_for_a_while(span: float, status: str) -> None:
    plan = replace(PLAN, tolerance=-math.log(CPU_SHARE), critical=CPU_SHARE, retest_span=span)
    for seed in range(10):
        verdict = climb_ladder(Crowded(seed, sigma=0.05), replace(plan, seed=seed))
        assert verdict.status == status, verdict.line


@pytest.mark.parametrize(
    ("share", "others", "spans"),
    [(0.2, False, 1), (0.2, True, 2), (0.91, False, 2)],
    ids=["alone", "with another suspect", "so far a warning"],
)
@pytest.mark.parametrize("quick_looks", [0, 2])
def test_what_an_operation_of_the_rung_has_named_is_not_waited_for_again(
    share: float, others: bool, spans: int, quick_looks: int
) -> None:
    """others: after the first operation, something else loads another GPU for a while."""

    def factor(what: SingleRankOp, at: RankPlace) -> float:
        loaded = others and what == "product" and fleet.waited < 50
        return share if at.rank == 2 else 0.2 if at.rank == 4 and loaded else 1.0

    fleet = ToyFleet([2] * 4, noise=0.005, single_rank_factor=factor)
    plan = Plan(rungs=("gpu",), quick_looks=quick_looks, retest_span=40)
    (found,) = climb_ladder(fleet, plan).findings
    assert (found.kind, found.hosts, found.gpus) == ("gpu", ("n1",), (0,))
    assert found.evidence.what == "memory, product"
    assert found.factor == pytest.approx(share, rel=0.02)
    assert fleet.waited == spans * plan.retest_span


def test_a_load_after_an_operation_has_named_a_part_adds_no_other() -> None:
    """Of one GPU's pairs, copies are slow for good; while flows are measured, so are another's."""

    def copied(a: RankPlace, b: RankPlace) -> float:
        return 0.5 if 1 in (a.gpu, b.gpu) else 1.0

    def flowed(a: RankPlace, b: RankPlace) -> float:
        return 0.3 if 2 in (a.gpu, b.gpu) and fleet.waited < 50 else copied(a, b)

    fleet = ToyFleet([4], noise=0.005, flow_factor=flowed, copy_factor=copied)
    (found,) = climb_ladder(fleet, Plan(rungs=("pairs",))).findings
    assert (found.kind, found.gpus) == ("nvlink", (1,))


class Lucky(NoisyFleet):
    """During one repeat, some ranks get more of their cores than others; one always gets half."""

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        seconds = super().single_rank(what, nbytes, samples, ranks)
        luck = np.exp(0.25 * self.random.standard_normal(len(self.places)))
        luck[2] *= 2
        return seconds * luck[:, None]


def named(seeds: int) -> int:
    """Return in how many fleets the slow rank is named."""
    plan = replace(PLAN, rungs=("gpu",), tolerance=-math.log(CPU_SHARE), critical=CPU_SHARE, max_repeats=4)
    fleets = [Lucky(seed, gpus=(4,), sigma=0.05) for seed in range(seeds)]
    findings = [climb_ladder(fleet, replace(plan, seed=fleet.seed)).findings for fleet in fleets]
    return sum([(one.kind, one.gpus) for one in found] == [("gpu", (2,))] for found in findings)


def test_a_longer_look_where_noise_hides_who_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert named(20) == 20
    monkeypatch.setattr(retest, "HIDDEN", 0)
    assert named(20) < 15


def test_load_of_a_neighbour_is_no_fault() -> None:
    """For some seconds another job loads a host's NICs, from before the first measurement on."""

    class Loaded(NoisyFleet):
        def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
            seconds = super().flows(flows, nbytes, samples)
            busy = [1 in (self.places[a].host, self.places[b].host) for a, b in flows]
            return np.where(np.array(busy)[:, None] & (self.now < 7), 2 * seconds, seconds)

    plan = replace(PLAN, rungs=("host pairs",), retest_span=20.0, first_span=0.0)
    assert climb_ladder(Loaded(0, sigma=0.02), plan).findings == ()
    assert climb_ladder(Loaded(0, sigma=0.02), replace(plan, retest_span=0.0)).findings != ()


def test_a_longer_measurement_takes_as_many_samples_as_the_noise_between_repeats_needs() -> None:
    """The samples of one repeat agree, as of rings whose flows collide for a whole call."""
    random, calls = np.random.default_rng(1), list[int]()

    def measure(_: str, samples: int) -> Seconds:
        calls.append(samples)
        common = np.exp(random.normal(0, 0.1, (8, 1)))
        return common * np.exp(random.normal(0, 0.01, (8, samples)))

    _, noise = repeats.measure_first(measure, ["rings"], 5, Plan(), longer=True)
    assert noise == pytest.approx(0.1 * math.sqrt(5) / MEDIAN_ERROR, rel=0.5)
    assert sum(calls) >= samples_needed(noise, -math.log(Plan().critical)) / 2
    assert sum(calls) <= repeats.MOST_SAMPLES + 5


def test_what_slows_most_rows_at_one_moment_is_removed_and_no_more() -> None:
    random = np.random.default_rng(3)
    own = np.exp(0.02 * random.standard_normal((8, 400)))
    own[0] *= 1.3  # always slow
    own[1, 100:150] *= 1.5  # slow for a while
    moments = np.exp(0.1 * random.standard_normal(400))
    found = repeats.without_common(own * moments)
    np.testing.assert_allclose(np.median(found, axis=1), np.median(own, axis=1), rtol=0.01)
    assert np.std(np.log(found[2])) < 0.03
    assert np.median(found[1, 100:150]) == pytest.approx(1.5, rel=0.02)
    half = own.copy()
    half[:4, ::2] *= 2  # no more than half of the rows
    np.testing.assert_allclose(np.median(repeats.without_common(half)[4:, ::2], axis=1), 1, rtol=0.03)
    np.testing.assert_array_equal(repeats.without_common(own[:7]), own[:7])


def test_a_first_look_with_few_rounds_is_more_than_one_moment() -> None:
    at_once = replace(Plan(), first_span=0.0)
    assert first_samples(1, at_once) == (80, 5)
    assert first_samples(3, at_once) == (67, 2)
    assert first_samples(7, at_once) == (58, 1)
    assert first_samples(1, Plan()) == (34, 12)
    assert first_samples(7, Plan()) == (6, 11)
    assert first_samples(63, Plan()) == (7, 1)
    assert first_samples(1000, Plan()) == (Plan().samples, 1)
