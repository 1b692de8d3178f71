"""A slow rail is bisected until its slow part is found, or cleared."""

from __future__ import annotations

import numpy as np
import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.measure.outliers import looks_of_loaded
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.localize.findings import findings
from meshrun.jobs.validate.localize.retest import localize
from meshrun.jobs.validate.measurements.allreduce import AllReduce
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import Seconds
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.topology import topology_of
from meshrun.jobs.validate.verdict import Finding, Verdict

ALL = "oversubscription=2,ecmp=8,spread=0.02,drift=0.005,noise=0.06,hostnoise=0.03,neighbours=0.03"


class RingFleet(ToyFleet):
    """Rings on rail 1 through all `slow` hosts are slow; first: only in this many rounds."""

    slow: frozenset[int] = frozenset()
    first = 10**9

    def rings(self, groups, nbytes: int, samples: int) -> Seconds:  # type: ignore[no-untyped-def]
        self.first -= 1
        late = [
            self.first >= 0
            and self.places[group[0]].gpu == 1
            and self.slow <= {self.places[rank].host for rank in group}
            for group in groups
        ]
        return super().rings(groups, nbytes, samples) * np.where(late, 1.5, 1.0)[:, None]


def found_in(fleet: RingFleet) -> list[Finding]:
    plan, topology = Plan(), topology_of(fleet)
    located = localize(AllReduce(fleet, topology, plan, "rail", {}), plan)
    return findings(located, topology, "rails", "ring", plan.ring_bytes)


@pytest.mark.parametrize(
    ("slow", "hosts"),
    [
        ({5}, ("n4", "n5")),  # a ring needs two
        ({0}, ("n0", "n1")),
        ({6, 7}, ("n6", "n7")),
        ({2, 5}, ()),  # neither half is slow: the rail, all of it
        (set(), ()),
    ],
)
def test_the_slow_part_of_a_rail(slow: set[int], hosts: tuple[str, ...]) -> None:
    fleet = RingFleet([4] * 8)
    fleet.slow = frozenset(slow)
    (found,) = found_in(fleet)
    assert (found.kind, found.gpus, found.hosts) == ("rail", (1,), hosts)
    assert found.factor == pytest.approx(1 / 1.5, rel=0.05)
    on_rail = [place.rank for place in fleet.places if place.gpu == 1]
    wanted = [rank for rank in on_rail if not hosts or fleet.hosts[fleet.places[rank].host] in hosts]
    assert list(found.ranks) == wanted


def test_a_rail_that_is_fast_when_halved_is_acquitted() -> None:
    fleet = RingFleet([4] * 8)
    fleet.first = 1 + 5 * 4  # slow together with the others, and alone: then no more
    assert found_in(fleet) == []


def test_one_slow_visit_of_a_ring_is_not_enough() -> None:
    fleet = RingFleet([4] * 8)
    fleet.first = 1 + 4
    assert found_in(fleet) == []


def test_more_looks_are_needed_the_more_often_siblings_are_loaded() -> None:
    assert [looks_of_loaded(slow, 40, 8) for slow in (0, 2, 8, 20)] == [3, 4, 7, 17]
    assert looks_of_loaded(8, 40, 128) > looks_of_loaded(8, 40, 8)
    assert looks_of_loaded(40, 40, 8) > 100  # siblings that are always slow show nothing


@pytest.mark.parametrize(("slow", "hosts"), [({40}, range(40, 48)), (set(), ())])
def test_the_slow_part_of_a_long_rail(slow: set[int], hosts: tuple[int, ...]) -> None:
    """Arcs of 16 hosts, cut twice, tell eight hosts from the others."""
    fleet = RingFleet([4] * 64)
    fleet.slow = frozenset(slow)
    (found,) = found_in(fleet)
    assert (found.kind, found.gpus, found.hosts) == ("rail", (1,), tuple(f"n{host}" for host in hosts))


def climbed(seed: int, fault: str = "", hosts: int = 128) -> Verdict:
    fleet = SimulatedFleet(parse_fleet(f"hosts={hosts},gpus=8,leaf=8,seed={seed},{ALL}{fault}"))
    return climb_ladder(fleet, Plan(seed=seed, rungs=("rails",)))


@pytest.mark.parametrize("seed", [4, 8, 17, 28])
def test_a_long_rail_that_others_load_in_most_looks_is_not_slow(seed: int) -> None:
    assert climbed(seed).findings == ()


@pytest.mark.parametrize("seed", [8, 24, 29])
def test_a_slow_rail_among_loaded_ones(seed: int) -> None:
    (found,) = climbed(seed, ",fault=rail:3:0.6").findings
    assert (found.kind, found.gpus, found.hosts) == ("rail", (3,), ())


@pytest.mark.parametrize("seed", [1, 5])
def test_rails_so_long_that_some_host_is_always_loaded_are_judged(seed: int) -> None:
    """Rings through all hosts differ too much; shorter ones are clear, each in some look."""
    verdict = climbed(seed, hosts=256)
    assert (verdict.status, verdict.findings, verdict.not_judged) == ("ok", (), ())


@pytest.mark.parametrize("seed", [5, 6])
def test_a_mild_loss_of_a_long_rail(seed: int) -> None:
    (found,) = climbed(seed, ",fault=rail:3:0.75", hosts=256).findings
    assert (found.kind, found.gpus, found.hosts) == ("rail", (3,), ())
