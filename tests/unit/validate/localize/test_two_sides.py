"""Two sides of a rail that are slow with each other only."""

from __future__ import annotations

import numpy as np
import pytest

from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.localize.host_groups import slow_side
from meshrun.jobs.validate.localize.two_sides import is_either, two_sides
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet

ALL = "oversubscription=2,ecmp=8,spread=0.02,drift=0.005,noise=0.06,hostnoise=0.03,neighbours=0.03"


@pytest.mark.parametrize("known", [1.0, 0.2])
@pytest.mark.parametrize("of_first", [3, 8])
def test_two_sides_are_those_that_are_slow_with_each_other(of_first: int, known: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        inside = rng.permutation(np.arange(16) < of_first)
        count = np.triu(rng.poisson(4 * known, (16, 16)), 1)
        across = inside[:, None] != inside
        slow = rng.binomial(count, np.where(across, 0.95, 0.1))
        found = two_sides(slow + slow.T, count + count.T)
        assert (found == inside).all() or (of_first == 8 and (found == ~inside).all())


def test_either_side_unless_the_other_has_uplinks_inside() -> None:
    inside, none = np.arange(12) < 4, np.zeros((12, 12))
    assert is_either(np.arange(12) < 6, none)
    assert not is_either(inside, none)  # there is room for two more switches
    leaf = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    assert not is_either(inside, 1.0 * (leaf[:, None] != leaf))
    assert is_either(inside, 1.0 * (inside[:, None] != inside))  # all others are behind one


@pytest.mark.parametrize("start", [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7, 15]])
def test_a_mild_loss_of_uplinks_is_that_of_all_hosts_behind_them(start: list[int]) -> None:
    """Flows between other hosts collide, those of host 15 in most cases."""
    rng = np.random.default_rng(0)
    leaf, late = np.arange(24) // 8, np.full((24, 24), 0.25)
    late[15], late[:, 15] = 0.6, 0.6
    late[:8, 8:] = late[8:, :8] = 0.9
    known = 2.0 * (leaf[:, None] != leaf)
    for _ in range(10):
        slow = np.triu(rng.binomial(2, late) * (known > 0))
        inside = slow_side(np.isin(np.arange(24), start), slow + slow.T, known)
        assert np.flatnonzero(inside).tolist() == list(range(8))


@pytest.mark.parametrize("conditions", [ALL, "ecmp=8"])
@pytest.mark.parametrize(
    ("fault", "seed"), [("leaf:9:0.589", 12000000), ("leaf:12:0.806", 12000015), ("leaf:3:0.65", 1)]
)
def test_of_two_leaf_switches_either_is_named(conditions: str, fault: str, seed: int) -> None:
    verdict = climb_ladder(
        SimulatedFleet(parse_fleet(f"hosts=16,gpus=8,leaf=8,seed={seed},{conditions},fault={fault}"))
    )
    (found,) = verdict.findings
    rail = int(fault.split(":")[1]) % 8
    assert (found.kind, found.gpus, found.hosts) == ("leaf", (rail,), tuple(f"h{host}" for host in range(8)))
    assert found.instead == (f"rail {rail}, 8 hosts (h8 to h15): their leaf switch",)
