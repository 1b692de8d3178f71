"""Ranks below a known rate are looked at again, before their rates count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.measure.outliers import looks_below_limit
from meshrun.jobs.validate.ladder.budget import Deadline, TimeLimit
from meshrun.jobs.validate.ladder.ladder import Ladder
from meshrun.jobs.validate.localize.observations import Observations, Siblings, tabulate
from meshrun.jobs.validate.measurements.below_limit import best_pairs, look_again
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import Probe, Seconds
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.run import measure_simulated
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.topology import Ints, topology_of
from meshrun.jobs.validate.verdict import Verdict

ALL = "oversubscription=2,ecmp=8,spread=0.02,drift=0.005,noise=0.06,hostnoise=0.03,neighbours=0.03"
LEAST = 40.0


def table(*rows: tuple[int, int, float]) -> Observations:
    """Rows (a, b, rate), for a work of 1."""
    pairs = np.array([row[:2] for row in rows], np.int64)
    seconds = 1 / np.array([[row[2]] * 3 for row in rows])
    return tabulate([pairs], [seconds], lambda a, b: Siblings(np.zeros(len(a), np.int64), None, 0.5), Plan())


@dataclass
class Looks:
    """rates: of ranks 0, 1, ... in each look; the last one stays."""

    rates: Sequence[Sequence[float]]
    probe: Probe = field(default_factory=lambda: ToyFleet([2, 2]))
    plan: Plan = field(default_factory=Plan)
    taken: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topology = topology_of(self.probe)

    def again(self, pairs: Ints, samples: int) -> Iterable[tuple[Ints, Seconds]]:
        now = self.rates[min(len(self.taken), len(self.rates) - 1)]
        self.taken.append(pairs[:, 0].tolist())
        yield pairs, np.array([[1 / now[rank]] * samples for rank in pairs[:, 0].tolist()])


ALONE = table(*[(rank, rank, 35.0) for rank in range(4)])


def test_a_rank_is_clear_once_it_has_reached_the_rate_in_half_of_its_looks() -> None:
    fleet = Looks([[45, 35], [35, 35], [35, 44], [35, 43], [35, 38]])
    found = look_again(fleet, ALONE, 1, {0: 35.0, 1: 35.0}, LEAST)
    assert fleet.taken == [[0, 1], [1], [1], [1]]
    assert found.best == pytest.approx({0: 45, 1: 44})
    assert found.undecided == ()


def test_a_rank_that_is_below_in_all_looks_falls_short() -> None:
    fleet = Looks([[39]])
    found = look_again(fleet, ALONE, 1, {0: 35.0}, LEAST)
    assert len(fleet.taken) == looks_below_limit(4) == 12
    assert found.best == pytest.approx({0: 39})
    assert found.undecided == ()
    assert fleet.probe.clock() == pytest.approx(fleet.plan.retest_span)


def test_what_is_far_below_needs_no_more_looks_than_it_takes_a_load_to_pass() -> None:
    fleet = Looks([[18]])
    assert look_again(fleet, ALONE, 1, {0: 19.0}, LEAST).best == pytest.approx({0: 19})
    assert len(fleet.taken) == 5
    assert fleet.probe.clock() == pytest.approx(fleet.plan.retest_span)
    # Once it was faster, it needs as many as others.
    fleet = Looks([[18], [30], [18]])
    assert look_again(fleet, ALONE, 1, {0: 19.0}, LEAST).undecided == ()
    assert len(fleet.taken) == 12


def test_a_rank_that_reaches_the_rate_at_times_is_undecided() -> None:
    found = look_again(Looks([[35], [35], [41], [35]]), ALONE, 1, {0: 35.0}, LEAST)
    assert found.undecided == (0,)
    assert found.best == pytest.approx({0: 41})


def test_a_rate_at_the_limit_is_seldom_below_in_all_looks() -> None:
    assert [looks_below_limit(figures) for figures in (1, 16, 512)] == [10, 14, 19]


def test_pairs_show_as_many_ranks_as_they_can_and_each_with_a_good_partner() -> None:
    rows = table((0, 1, 50), (2, 3, 48), (0, 2, 49), (1, 3, 20), (4, 0, 47), (4, 5, 30), (5, 1, 47))
    assert best_pairs(rows, range(4), 0.07).tolist() == [[0, 1], [2, 3]]
    # Ranks 4 and 5 are slow together, though not with others.
    assert best_pairs(rows, [4, 5], 0.07).tolist() == [[4, 0], [5, 1]]
    assert best_pairs(ALONE, [1, 3], 0.07).tolist() == [[1, 1], [3, 3]]


def test_without_time_to_look_again_the_status_is_unknown() -> None:
    fleet = ToyFleet([2, 2])
    limit = TimeLimit(Deadline(10.0, fleet.clock))
    plan = Plan(rungs=("host pairs",))
    ladder = Ladder(fleet, plan, limit=limit, least={("host pairs", "flows"): 60e9})
    verdict = ladder.climb()
    assert verdict.status == "unknown"
    assert "host pairs: flows not measured to the end: no time was left" in verdict.not_judged
    assert ladder.rates_again == {}


def verdict_of(words: str) -> Verdict:
    fleet = SimulatedFleet(parse_fleet(f"hosts=2,gpus=8,leaf=8,{words}"))
    options = ValidateOptions(Plan(rungs=("host pairs",)), simulate=words)
    return measure_simulated(fleet, options, lambda rung: None, lambda line: None).verdict


@pytest.mark.parametrize("seed", [778030, 778140])
def test_a_fleet_that_was_slow_for_a_moment_raises_no_alarm(seed: int) -> None:
    """Noise that all flows of a call share; a load by others for the whole first measurement."""
    plan, words = Plan(seed=seed, rungs=("host pairs",)), f"hosts=2,gpus=8,leaf=8,seed={seed},{ALL}"
    report = measure_simulated(
        SimulatedFleet(parse_fleet(words)),
        ValidateOptions(plan, simulate=words),
        lambda _: None,
        lambda _: None,
    )
    assert (report.verdict.status, report.verdict.alarms) == ("ok", ())


@pytest.mark.parametrize(
    ("fault", "status"), [("fault=all-nics:0.5", "critical"), ("fault=all-nics:0.8", "warning")]
)
@pytest.mark.parametrize("condition", ["noise=0.03", ALL])
def test_a_fleet_whose_nics_are_all_slow_raises_one(fault: str, status: str, condition: str) -> None:
    verdict = verdict_of(f"{condition},{fault}")
    assert [one.status for one in verdict.alarms] == [status]
    assert verdict.alarms[0].sentence.startswith("all GPUs alike: host pairs flows")
