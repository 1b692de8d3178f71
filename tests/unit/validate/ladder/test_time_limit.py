"""A climb ends in time, and what it could not judge by then is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from jobs.validate.ladder.budget import Deadline, TimeLimit
from jobs.validate.ladder.ladder import Ladder, climb_ladder
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Seconds
from jobs.validate.report.model import Report
from jobs.validate.run.options import ValidateOptions
from jobs.validate.run.run import measure_simulated
from jobs.validate.simulation.fleet import SimulatedFleet
from jobs.validate.simulation.spec import parse_fleet
from jobs.validate.verdict import Finding
from runner.errors import UserError

BUSY = "oversubscription=2,ecmp=8,spread=0.02,hostnoise=0.05,noise=0.08,neighbours=0.1"


class Timed(SimulatedFleet):
    """longest: seconds of the longest call. waited: of all waits."""

    longest = waited = 0.0

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        super().wait(seconds)

    def timed(self, call: Callable[[], Seconds]) -> Seconds:
        begin = self.now
        found = call()
        self.longest = max(self.longest, self.now - begin)
        return found

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: super(Timed, self).flows(flows, nbytes, samples))

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        return self.timed(lambda: super(Timed, self).rings(groups, nbytes, samples))


def validated(words: str, budget: float | None = None, plan: Plan | None = None) -> tuple[Timed, Report]:
    fleet = Timed(parse_fleet(words))
    options = ValidateOptions(plan or Plan(), budget=budget, simulate=words)
    return fleet, measure_simulated(fleet, options, lambda rung: None, lambda line: None)


@pytest.mark.parametrize(
    "words",
    [
        "hosts=16,gpus=8",
        f"hosts=16,gpus=8,leaf=4,{BUSY}",
        "hosts=16,gpus=8,leaf=4,fault=nic:h3:1:0.6,fault=link:h1:h9:0.7",
    ],
)
@pytest.mark.parametrize("budget", [20.0, 60.0])
def test_a_budget_holds_whatever_the_fleet(words: str, budget: float) -> None:
    fleet, _ = validated(words, budget)
    assert fleet.now <= budget + fleet.longest


def test_a_budget_shorter_than_its_calibration_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"too short to find out.*got 2 s.*Try: --budget 8s, or fewer --rungs"
    ):
        validated(f"hosts=16,gpus=8,leaf=4,{BUSY}", 2.0)


def test_what_a_budget_leaves_unjudged_is_unknown() -> None:
    # Confirming a slow NIC takes `retest_span`.
    _, report = validated("hosts=16,gpus=8,leaf=4,fault=nic:h3:1:0.6", 25.0)
    assert report.verdict.status == "unknown"
    assert any("not retested" in one for one in report.verdict.not_judged)


def test_rungs_without_time_are_not_measured() -> None:
    fleet = SimulatedFleet(parse_fleet("hosts=16,gpus=8"))
    limit = TimeLimit(Deadline(2.0, fleet.clock))
    verdict = Ladder(fleet, Plan(), limit=limit).climb()
    assert verdict.status == "unknown"
    results = {rung.name: rung.result for rung in verdict.rungs}
    assert results["gpu"] == "ok"
    assert results["host pairs"] == results["all"] == "not measured"
    assert any("no time" in one for one in verdict.not_judged)


def test_suspects_that_are_not_retested_make_the_verdict_unknown() -> None:
    plan = Plan(rungs=("host pairs",))
    words = "hosts=64,gpus=8,leaf=8"
    assert climb_ladder(SimulatedFleet(parse_fleet(words)), plan).status == "ok"
    verdict = climb_ladder(SimulatedFleet(parse_fleet(words)), replace(plan, max_retests=0))
    assert verdict.status == "unknown"
    assert any("suspects of flows not retested" in one for one in verdict.not_judged)


def test_a_healthy_fleet_waits_for_nothing() -> None:
    fleet, report = validated("hosts=16,gpus=8")
    assert report.verdict.status == "ok"
    assert fleet.waited == 0
    fleet, report = validated("hosts=16,gpus=8,fault=nic:h3:1:0.6")
    assert report.verdict.status == "critical"
    assert fleet.waited > 0


class CutShort(Ladder):
    """After the full load, there is time for so many calls."""

    calls = 0

    def leaf_switches(self, rates: dict[str, float]) -> list[Finding]:
        found = super().leaf_switches(rates)
        self.probe.reset()
        self.probe.left = lambda: self.calls - self.probe.rounds
        return found


@pytest.mark.parametrize(("calls", "status"), [(0, "unknown"), (1, "ok"), (3, "ok")])
def test_a_curve_of_its_largest_size_only_is_enough(calls: int, status: str) -> None:
    """Rates by size are reported, not judged, so what is judged is measured before them."""
    ladder = CutShort(SimulatedFleet(parse_fleet("hosts=8,gpus=8")), Plan(rungs=("all",)))
    ladder.calls = calls
    assert ladder.climb().status == status
    assert len(ladder.curves[-1].points) == calls
