"""Fit plans to a time, with a probe whose calls advance its clock."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_fleet import ToyFleet

from meshrun.jobs.validate.ladder.budget import (
    FLOORS,
    RETEST_SHARE,
    Deadline,
    load_seconds,
    parse_duration,
    quick,
)
from meshrun.jobs.validate.ladder.budget import fit as fit_plan
from meshrun.jobs.validate.ladder.costs import (
    SIZES,
    calibrate,
    estimate,
    estimate_rungs,
    probe_calls,
    sizes,
    work,
)
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.plan import RUNGS, Plan, RungName
from meshrun.jobs.validate.probe.api import CounterKey, Probe, RankPlace, Seconds, SingleRankOp, WrongData
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.topology import topology_of
from meshrun.runner.errors import UserError


@dataclass
class Costly(ToyFleet):
    """A fleet with a clock (now). slow: seconds per byte. jitter: share of each call's time."""

    noise: float = 0.0

    now: float = 0.0
    slow: float = 1 / 20e9
    jitter: float = 0.0
    unavailable: dict[RungName, str] = field(default_factory=dict)
    requested: list[tuple[str, int, int]] = field(default_factory=list)

    def counters(self) -> Mapping[CounterKey, float | str]:
        return {}

    def wrong_data(self) -> Sequence[WrongData]:
        return ()

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def pass_time(self, what: str, nbytes: int, samples: int) -> None:
        self.requested.append((what, nbytes, samples))
        setup = 0.3 if what == "rings" else 0.002
        each = 30e-6 + self.slow * nbytes
        if what == "product":
            each = 30e-6 + 2 * (nbytes / 4) ** 1.5 / 50e12
        wobble = 1 + self.jitter * abs(random.gauss(0, 1))
        self.now += wobble * (setup + 0.1e-9 * nbytes + samples * each)

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        self.pass_time(what, nbytes, samples)
        return super().single_rank(what, nbytes, samples, ranks)

    def copies(self, flows: Any, nbytes: int, samples: int) -> Seconds:
        self.pass_time("copies", nbytes, samples)
        return super().flows(flows, nbytes, samples)

    def flows(self, flows: Any, nbytes: int, samples: int) -> Seconds:
        self.pass_time("flows", nbytes, samples)
        return super().flows(flows, nbytes, samples)

    def rings(self, groups: Any, nbytes: int, samples: int) -> Seconds:
        self.pass_time("rings", nbytes, samples)
        return super().rings(groups, nbytes, samples)


# --- durations


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("60s", 60),
        ("1h", 3600),
        ("90", 90),
        ("1.5m", 90),
        ("2d", 172800),
        (".5", 0.5),
        (" 10 s ", 10),
        ("7.", 7),
    ],
)
def test_a_duration(text: str, value: float) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize(
    "text", ["", "s", "0", "0s", "-5", "1h30m", "1e3", "nan", "inf", "5 min", "1,5h", "9" * 400, "٣s٣"]
)
def test_no_duration(text: str) -> None:
    with pytest.raises(UserError, match=r"invalid duration: got .*, expected seconds, or 90s, 30m, 2h, 1d"):
        parse_duration(text)


def test_a_deadline_counts_from_when_it_was_made() -> None:
    now = [5.0]
    end = Deadline(60, lambda: now[0])
    assert (end.left(), end.elapsed()) == (60, 0)
    now[0] = 75.0
    assert (end.left(), end.elapsed()) == (-10, 70)


def test_a_deadline_by_the_real_clock_passes() -> None:
    begin = time.monotonic()
    end = Deadline(1e6)
    elapsed, left = end.elapsed(), end.left()
    assert 0 <= elapsed <= time.monotonic() - begin
    time.sleep(0.01)
    assert end.elapsed() >= elapsed + 0.01
    assert end.left() <= left - 0.01


# --- how many calls


GPUS = [[1], [4], [1] * 3, [2, 2], [4, 2, 3], [8] * 5, [2] * 70]


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("plan", [Plan(), quick(), Plan(samples=3, samples_per_nic=3, all_pairs_hosts=65)])
def test_calls_are_those_that_the_ladder_makes(gpus: list[int], plan: Plan) -> None:
    fleet = Costly(gpus)
    verdict = climb_ladder(fleet, plan)
    assert verdict.findings == ()
    expected = list(probe_calls(plan, topology_of(fleet)))
    for rung in verdict.rungs:
        assert sum(one.count for one in expected if one.key[0] == rung.name) == rung.rounds
    requested = [
        ({"ring": "rings"}.get(one.key[1], one.key[1]), one.nbytes, one.samples)
        for one in expected
        for _ in range(one.count)
    ]
    assert sorted(fleet.requested) == sorted(requested)


def test_every_measurement_has_a_size() -> None:
    assert set(sizes(Plan())) == {" ".join(key) for key in SIZES}
    assert sizes(Plan(nic_bytes=5))["host pairs flows"] == 5
    assert {rung for rung, _ in SIZES} == set(RUNGS)
    # The load on tensor cores takes less time by its seconds, not by its size.
    assert set(FLOORS) == {name for name in vars(Plan()) if name.endswith("_bytes")} - {"tensor_bytes"}


@pytest.mark.parametrize(
    ("quick", "budget", "soak", "seconds"),
    [
        (False, None, None, 3.0),
        (True, None, None, 1.5),
        (False, 60.0, None, 3.0),
        (False, 20.0, None, 2.0),
        (True, 12.0, None, 1.2),
        (False, 9.0, None, 0.0),  # no time for two samples
        (False, None, 3600.0, 60.0),
        (False, None, 200.0, 20.0),
        (False, None, 10.0, 3.0),
        (True, 60.0, 3600.0, 6.0),
    ],
)
def test_a_load_lasts_longer_in_a_soak_and_fits_a_budget(
    quick: bool, budget: float | None, soak: float | None, seconds: float
) -> None:
    assert load_seconds(quick, budget, soak) == pytest.approx(seconds)


def test_a_load_is_expected_to_take_its_seconds() -> None:
    fleet = Costly([4])
    plan = Plan(rungs=("gpu",), samples=5)
    costs = calibrate(fleet, plan, fleet.clock)
    without = estimate(plan, topology_of(fleet), costs)
    for seconds, longer in ((3.0, 3.0), (1.2, 2.5), (60.0, 60.0)):  # at least 5 samples of 0.5 s
        loaded = replace(plan, tensor_seconds=seconds)
        assert estimate(loaded, topology_of(fleet), costs) == pytest.approx(without + longer)
        assert sizes(loaded) == {**sizes(plan), "gpu tensor": 2 * 8192**3}
    assert estimate(replace(loaded, rungs=("host",)), topology_of(fleet), costs) == 0.0


# --- what they cost


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("plan", [Plan(), quick()])
def test_a_climb_takes_what_was_estimated(gpus: list[int], plan: Plan) -> None:
    fleet = Costly(gpus)
    rates = calibrate(fleet, plan, fleet.clock)
    begin = fleet.now
    climb_ladder(fleet, plan)
    assert estimate(plan, topology_of(fleet), rates) == pytest.approx(fleet.now - begin, rel=1e-6)


def test_a_trial_is_short_and_of_small_sizes() -> None:
    fleet = Costly([8] * 8)
    calibrate(fleet, Plan(), fleet.clock)
    assert len(fleet.requested) == 5 * len(SIZES)
    begin, short = fleet.now, fleet.now
    climb_ladder(fleet, Plan())
    assert short < 0.6 * (fleet.now - begin)
    small = Plan(nic_bytes=1000)
    fleet.requested.clear()
    calibrate(fleet, replace(small, rungs=("host pairs",)), fleet.clock)
    assert {nbytes for _, nbytes, _ in fleet.requested} == {250, 1000}


def test_a_trial_with_noise_does_not_promise_too_little() -> None:
    random.seed(1)
    fleet = Costly([4, 4], jitter=0.2)
    ratios = []
    for _ in range(20):
        rates = calibrate(fleet, Plan(), fleet.clock)
        begin = fleet.now
        climb_ladder(fleet, Plan())
        ratios.append(estimate(Plan(), topology_of(fleet), rates) / (fleet.now - begin))
    assert 0.8 < np.median(ratios) < 1.3
    assert min(ratios) > 0.5


def test_calls_whose_time_is_none_cost_nothing_and_are_finite() -> None:
    fleet = Costly([2, 2])
    assert estimate(Plan(), topology_of(fleet), calibrate(fleet, Plan(), lambda: 7.0)) == 0.0


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.15])
def test_noise_makes_a_climb_longer_and_that_is_expected(sigma: float) -> None:
    ratios = []
    for seed in range(8):
        fleet = Costly([8] * 4, noise=sigma, seed=seed)
        rates = calibrate(fleet, Plan(), fleet.clock)
        begin = fleet.now
        climb_ladder(fleet, Plan(max_retests=0))  # no retests
        ratios.append(estimate(Plan(), topology_of(fleet), rates) / (fleet.now - begin))
    assert 0.5 < np.median(ratios) < 1.6  # longer looks at what noise hides are not expected


def test_rungs_that_are_absent_are_neither_tried_nor_counted() -> None:
    fleet = Costly([2, 2], unavailable={"host": "CPUs have no host-to-GPU link"})
    rates = calibrate(fleet, Plan(), fleet.clock)
    assert not {"to_device", "to_host"} & {what for what, _, _ in fleet.requested}
    assert estimate_rungs(Plan(), topology_of(fleet), rates)["host"] == 0.0
    assert estimate_rungs(Plan(), topology_of(fleet), rates)["gpu"] > 0.0


def test_a_product_is_no_copy() -> None:
    assert work(("gpu", "product"), 4 << 20) == 8 * work(("gpu", "product"), 1 << 20)


# --- what gives way


def fit(fleet: Costly, plan: Plan, budget: float) -> tuple[Plan, str]:
    rates = calibrate(fleet, plan, fleet.clock)
    return fit_plan(plan, budget, lambda one: estimate(one, topology_of(fleet), rates))


def test_a_plan_that_fits_is_left_as_it_is() -> None:
    assert fit(Costly([4]), Plan(), 600) == (Plan(), "")


@pytest.mark.parametrize("budget", [1000, 300, 100, 60, 30, 20, 15, 10])
@pytest.mark.parametrize("gpus", [[8] * 4, [4]])
def test_a_climb_fits_its_budget(budget: float, gpus: list[int]) -> None:
    fleet = Costly(gpus, slow=1 / 2e9)
    plan, text = fit(fleet, Plan(), budget)
    begin = fleet.now
    climb_ladder(fleet, plan)
    assert fleet.now - begin <= (1 - RETEST_SHARE) * budget * 1.000001
    assert (text == "") == (plan == Plan())
    assert f"s expected of a budget of {budget} s; given up: " in text or not text


def test_repeats_give_way_before_sizes_and_sizes_before_rungs() -> None:
    fleet = Costly([8] * 4, slow=1 / 2e9)
    found = [fit(fleet, Plan(), 400 * 0.9**step) for step in range(45)]
    whole = [plan == Plan() for plan, _ in found]
    repeats = [plan.samples < 5 or plan.samples_per_nic < 400 for plan, _ in found]
    smaller = [plan.ring_bytes < Plan().ring_bytes for plan, _ in found]
    fewer = [len(plan.rungs) < len(RUNGS) for plan, _ in found]
    assert whole[0]
    assert any(fewer)
    for one, other in ((repeats, smaller), (smaller, fewer)):  # each starts later, and none stops
        assert one.index(True) < other.index(True)
        assert all(one[one.index(True) :])
    for plan, text in found:
        assert plan.samples >= 3
        assert all(getattr(plan, name) >= floor for name, floor in FLOORS.items())
        assert plan.rungs == RUNGS[: len(plan.rungs)]
        for rung in RUNGS[len(plan.rungs) :]:
            assert rung in text.split("not measured, no time in the budget: ")[1]
        assert ("samples 3 instead of 5" in text) == (plan.samples == 3)
        assert ("nic 4 MiB instead of 64 MiB" in text) == (plan.nic_bytes == 4 << 20)
        assert (
            f"samples of each NIC {plan.samples_per_nic} instead of 400" in text
            or plan.samples_per_nic == 400
        )


def test_rungs_that_cost_nothing_are_not_given_up() -> None:
    """One host never measures `host pairs` and `rails`; of the other rungs the last is dropped."""
    cost = {"gpu": 1.0, "node": 2.0, "all": 4.0}
    plan, text = fit_plan(Plan(), 4.0, lambda one: sum(cost.get(rung, 0.0) for rung in one.rungs))
    assert plan.rungs == RUNGS[:-1]
    assert text.endswith("not measured, no time in the budget: all")


def test_a_plan_smaller_than_the_floors_does_not_grow() -> None:
    small = Plan(samples=2, samples_per_nic=1, nic_bytes=1 << 20)
    plan, _ = fit_plan(small, 10.0, lambda one: 1.0 if one.rungs != RUNGS else 100.0)
    assert (plan.samples, plan.samples_per_nic, plan.nic_bytes) == (2, 1, 1 << 20)


def test_no_time_for_anything_is_said_with_what_it_takes() -> None:
    with pytest.raises(UserError, match=r"too short for any rung: got 1 s\. Try: --budget 12s"):
        fit_plan(Plan(), 1.0, lambda one: 10.0)


@given(st.floats(0.01, 1e4), st.sets(st.sampled_from(RUNGS), min_size=1), st.booleans())
def test_what_is_fitted_fits_and_keeps_what_else_was_asked(
    budget: float, rungs: set[RungName], keep_going: bool
) -> None:
    plan = Plan(rungs=tuple(name for name in RUNGS if name in rungs), keep_going=keep_going, seed=4)

    def cost(one: Plan) -> float:
        return sum(one.samples * 0.1 * (1 + one.nic_bytes / (8 << 20)) for _ in one.rungs)

    try:
        found, _ = fit_plan(plan, budget, cost)
    except UserError:
        assert budget * (1 - RETEST_SHARE) < 3 * 0.1 * 1.5
        return
    assert cost(found) <= budget * (1 - RETEST_SHARE)
    assert (found.keep_going, found.seed, found.retest_samples) == (keep_going, 4, plan.retest_samples)
    assert set(found.rungs) <= rungs


# --- quick


def test_quick_keeps_the_sizes_of_nvlink() -> None:
    plan, full = quick(), Plan()
    assert (plan.pair_bytes, plan.ring_bytes) == (full.pair_bytes, full.ring_bytes)
    assert all(getattr(plan, name) >= floor for name, floor in FLOORS.items())
    probe = Costly([4])
    fleet, rates = topology_of(probe), calibrate(probe, full, probe.clock)
    assert estimate(plan, fleet, rates) <= estimate(full, fleet, rates)


@pytest.mark.parametrize("gpus", [[4], [2, 2], [8] * 9])
def test_quick_still_judges(gpus: list[int]) -> None:
    def slowed(what: SingleRankOp, place: RankPlace) -> float:
        return 0.7 if what == "memory" and (place.host, place.gpu) == (0, 1) else 1.0

    for seed in range(10):
        assert climb_ladder(Costly(gpus, noise=0.02, seed=seed), quick()).status == "ok"
        verdict = climb_ladder(Costly(gpus, noise=0.02, seed=seed, single_rank_factor=slowed), quick())
        assert [(one.kind, one.hosts, one.gpus) for one in verdict.findings] == [("gpu", ("n0",), (1,))]


def test_a_probe_is_what_is_tried() -> None:
    probe: Probe = SimulatedFleet(parse_fleet("hosts=8,gpus=2"))
    rates = calibrate(probe, Plan())
    assert set(rates) == set(SIZES)
    assert all(np.isfinite(cost.seconds(1e6, 3)) for cost in rates.values())
