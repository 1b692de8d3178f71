"""A slow rail is bisected until its slow part is found, or cleared."""

from __future__ import annotations

import numpy as np
import pytest
from toy_fleet import ToyFleet

from jobs.validate.localize.findings import findings
from jobs.validate.localize.retest import localize
from jobs.validate.measurements.allreduce import AllReduce
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Seconds
from jobs.validate.topology import topology_of
from jobs.validate.verdict import Finding


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
