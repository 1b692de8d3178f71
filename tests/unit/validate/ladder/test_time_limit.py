"""A climb ends in time, and what it could not judge by then is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.validate.ladder.budget import Deadline, TimeLimit, quick
from meshrun.jobs.validate.ladder.ladder import Ladder, climb_ladder
from meshrun.jobs.validate.measurements.repeats import measure_first
from meshrun.jobs.validate.plan import Plan, for_cpus
from meshrun.jobs.validate.probe.api import Seconds
from meshrun.jobs.validate.probe.metered import MeteredProbe
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.run import measure_simulated
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.topology import Ints
from meshrun.jobs.validate.verdict import Finding, Verdict
from meshrun.runner.errors import UserError

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


def test_a_healthy_fleet_waits_only_in_the_first_measurement_between_hosts() -> None:
    fleet, report = validated("hosts=16,gpus=8")
    waited = fleet.waited
    assert report.verdict.status == "ok"
    assert 0 < waited < Plan().first_span
    fleet, report = validated("hosts=16,gpus=8,fault=nic:h3:1:0.6")
    assert report.verdict.status == "critical"
    assert fleet.waited > waited


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


class SlowCpus(ToyFleet):
    """Ranks on CPUs whose calls take seconds each, as of many on few cores."""

    longest = 2.0

    def noisy(
        self, seconds: Sequence[float], samples: int, random: np.random.Generator | None = None
    ) -> Seconds:
        self.waited += self.longest
        return super().noisy(seconds, samples, random)


class SharedCores(ToyFleet):
    """Ranks that wait for their core for up to as long as the others on it take."""

    sharing = 4.0

    def noisy(
        self, seconds: Sequence[float], samples: int, random: np.random.Generator | None = None
    ) -> Seconds:
        waits = self.random.uniform(1, self.sharing, (len(seconds), samples))
        self.waited += 0.05 * samples
        return super().noisy(seconds, samples, random) * waits


def quick_on_cpus(fleet: ToyFleet, sharing: float = 1.0) -> tuple[ToyFleet, Verdict]:
    fleet.unit, fleet.unavailable = "CPU", {"host": "none"}
    plan = for_cpus(replace(quick(), quick=True), sharing)
    limit = TimeLimit(Deadline(plan.seconds, fleet.clock), even_shares=plan.even_shares)
    return fleet, Ladder(fleet, plan, limit=limit).climb()


@pytest.mark.parametrize("gpus", [[2], [8], [4, 4], [2, 2, 2, 2]])
def test_quick_on_cpus_ends_in_its_time_and_lists_what_it_could_not_see(gpus: list[int]) -> None:
    fleet, verdict = quick_on_cpus(SlowCpus(gpus, noise=0.3))
    assert fleet.waited <= for_cpus(replace(Plan(), quick=True)).seconds + SlowCpus.longest
    unseen = [one.name for one in verdict.rungs if one.why.startswith("no time")]
    assert all(any(note.startswith(f"{name}: ") for note in verdict.not_judged) for name in unseen)
    assert not unseen or verdict.status == "unknown"


@pytest.mark.parametrize("gpus", [[2], [8]])
def test_no_rung_of_quick_on_cpus_uses_up_the_time_of_later_ones(gpus: list[int]) -> None:
    """Noise makes each of them measure again; calls take so long that the first could go on for ever."""
    fleet = SlowCpus(gpus, noise=0.3)
    fleet.longest = 0.2
    _, verdict = quick_on_cpus(fleet)
    assert [one.name for one in verdict.rungs if one.rates] == ["gpu", "pairs", "node", "all"]


def test_suspects_of_quick_on_cpus_are_unknown_at_once() -> None:
    """They would be measured again over 20 s, for which there is no time."""
    fleet, verdict = quick_on_cpus(
        ToyFleet([4], single_rank_factor=lambda _, place: 0.3 + 0.7 * (place.gpu != 1))
    )
    assert fleet.waited == 0.0
    assert verdict.status == "unknown"
    assert verdict.line == "unknown: gpu: 1 suspect of memory not retested"


def test_healthy_cpus_are_ok_with_quick() -> None:
    _, verdict = quick_on_cpus(ToyFleet([4]))
    assert verdict.status == "ok"


def test_repeats_that_were_complete_when_time_was_up_count() -> None:
    """Of ten more repeats, there is time for two."""
    fleet = MeteredProbe(ToyFleet([2], noise=0.5))
    fleet.left = lambda: 3 - fleet.rounds

    def measure(flows: Ints, samples: int) -> Seconds:
        return fleet.flows(flows, 1 << 20, samples)

    flows = np.array([(0, 1), (1, 0)])
    (seconds,), _ = measure_first(measure, [flows], 3, replace(Plan(), max_repeats=11))
    assert seconds.shape == (2, 9)


@pytest.mark.parametrize("gpus", [[4], [8]])
def test_quick_on_cpus_is_not_unknown_because_ranks_share_cores(gpus: list[int]) -> None:
    verdicts = [
        quick_on_cpus(SharedCores(gpus, seed=seed), SharedCores.sharing)[1].status for seed in range(5)
    ]
    assert verdicts == ["ok"] * 5
    # The tolerance of ranks with a core each would not do.
    assert quick_on_cpus(SharedCores(gpus))[1].status == "unknown"


def test_quick_on_shared_cores_does_not_pass_a_part_that_is_slower_than_sharing_explains() -> None:
    for seed in range(5):
        fleet = SharedCores([8], seed=seed, single_rank_factor=lambda what, place: 0.05 ** (place.rank == 3))
        assert quick_on_cpus(fleet, SharedCores.sharing)[1].status == "unknown"


def test_quick_on_cpus_without_shared_cores_is_as_strict_as_a_whole_climb() -> None:
    plan, whole = for_cpus(replace(quick(), quick=True)), for_cpus(Plan(), 4.0)
    assert (plan.tolerance, plan.critical, plan.blind) == (whole.tolerance, whole.critical, whole.blind)


def test_quick_with_a_budget_moves_as_few_bytes_on_cpus_as_without() -> None:
    """Most of the time of a call is that of generating and checking its data, also to find out its cost."""
    with_budget, alone = for_cpus(quick()), for_cpus(replace(quick(), quick=True))
    assert with_budget.memory_bytes == alone.memory_bytes < for_cpus(Plan()).memory_bytes
    assert with_budget.max_retests > alone.max_retests == 0
