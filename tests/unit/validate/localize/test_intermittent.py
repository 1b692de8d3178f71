"""Parts that are slow part of the time: what looks at them show, and who is named with one partner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.measure.outliers import INTERMITTENT_FROM, intermittence, partners_needed
from meshrun.jobs.validate.ladder.budget import quick
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.localize.intermittent import SlowShares, shares_of_nics
from meshrun.jobs.validate.localize.observations import Observations
from meshrun.jobs.validate.localize.retest import (
    ChangingLooks,
    RungMeasurement,
    changing_looks,
    confirmed,
    confirmed_intermittent,
    is_steady,
    usual_lates,
)
from meshrun.jobs.validate.localize.set_cover import Cover, Mask, Suspect, numbered_kind
from meshrun.jobs.validate.measurements.inter_node import InterNode
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.topology import Ints, topology_of

ALL = "oversubscription=2,ecmp=8,spread=0.02,drift=0.005,noise=0.06,hostnoise=0.03,neighbours=0.03"


def looks(*flows: tuple[int, int, int, int]) -> Observations:
    """Retested flows (a, b, look, slow samples of 6); slow samples take 1.6 times as long."""
    a, b, look, slow = np.array(flows, np.int64).T
    count, size = np.full(len(a), 6), len(a)
    return Observations(
        a, b, np.where(slow > 3, 0.47, 0.0), np.ones(size), np.ones(size), slow, (count - slow) // 2,
        np.where(slow > 0, 0.47, 0.0), np.where(slow > 4, 0.47, 0.0), count, np.full(size, 0.2), look,
        np.ones(size, bool), np.zeros(size, bool), np.full(size, 0.1), frozenset(),
    )  # fmt: skip


def pair(look: int, *slow: int) -> list[tuple[int, int, int, int]]:
    """Measurements between ranks 0 and 8 in one look, there and back in turn."""
    return [((0, 8)[way % 2], (8, 0)[way % 2], look, some) for way, some in enumerate(slow)]


def test_a_look_at_a_part_with_one_partner_changes_if_the_part_is_slow_and_fast() -> None:
    table = looks(*pair(0, 6, 6, 6, 6), *pair(1, 0, 0, 0, 0), *pair(2, 6, 4, 0, 0), *pair(3, 0, 2, 0, 0))
    assert changing_looks(table, np.ones(len(table), bool)) == ChangingLooks(1, 4)


def test_a_look_at_a_part_with_several_partners_changes_if_two_of_them_see_it_slow() -> None:
    load_of_one = [(0, 8, 0, 5), (8, 0, 0, 5), (0, 9, 0, 0), (9, 0, 0, 0)]
    of_the_part = [(0, 8, 1, 4), (8, 0, 1, 0), (0, 9, 1, 0), (9, 0, 1, 5)]
    table = looks(*load_of_one, *of_the_part)
    assert changing_looks(table, np.ones(len(table), bool)) == ChangingLooks(1, 2)


def flapping(
    partners: tuple[int, ...], others: list[tuple[int, int, int, int]]
) -> tuple[Suspect, Observations]:
    rows = [(0, other, look, (6, 0, 1, 3)[look % 4]) for look in range(4) for other in partners]
    table = looks(*rows, *[(b, a, look, slow) for a, b, look, slow in rows], *others)
    through = (table.a == 0) | (table.b == 0)
    return Suspect("flap", 0, through, np.inf), table


def test_of_two_that_only_met_each_other_either_may_be_the_one() -> None:
    suspect, table = flapping((8,), [(4, 12, look, 0) for look in range(8)])
    found = confirmed_intermittent(suspect, suspect.rows, table)
    assert found is not None
    assert found.ties == (("flap", 8),)
    suspect, table = flapping((8, 9), [(4, 12, look, 0) for look in range(8)])
    found = confirmed_intermittent(suspect, suspect.rows, table)
    assert found is not None
    assert found.ties == ()


def test_a_part_that_is_hardly_ever_fast_is_not_slow_at_times() -> None:
    """Of a mild constant loss, noise makes some measurements late."""
    suspect, table = flapping((8, 9), [(4, 12, look, 0) for look in range(8)])
    assert not is_steady(suspect.rows, table)
    never_fastest = replace(table, fast=np.zeros(len(table), np.int64))
    assert not is_steady(suspect.rows, never_fastest)  # as fast as others while it is good
    assert is_steady(suspect.rows, replace(never_fastest, level=np.maximum(table.level, 0.11)))


def test_a_nic_behind_scarce_uplinks_is_seen_coming_and_going() -> None:
    """Only the flows to seven other hosts of 24 show it: these have all of a NIC's samples.

    One in 20 is not: looks that cannot tell it from a load are not ok.
    """
    seen = []
    for seed in range(10):
        fleet = SimulatedFleet(parse_fleet(f"hosts=24,gpus=8,leaf=8,seed={seed},{ALL},fault=flap:h17:4:0.7"))
        verdict = climb_ladder(fleet, Plan(seed=seed, rungs=("host pairs",)))
        found = [(one.kind, one.hosts, one.gpus) for one in verdict.findings]
        assert found == [("flap", ("h17",), (4,))] or (found, verdict.status) == ([], "unknown")
        seen += found
    assert len(seen) >= 8


def first_measurement(slow: Callable[[int, int, int], int]) -> Cover:
    """16 NICs, each pair measured once, both ways, in 45 samples. slow: of them, by pair and direction."""
    pairs = [(a, b) for a in range(16) for b in range(a)]
    rows = [(*ends, 0, slow(a, b, way)) for a, b in pairs for way, ends in enumerate(((a, b), (b, a)))]
    some = looks(*rows)
    table = replace(some, count=np.full(len(some), 45), retested=np.zeros(len(some), bool))
    table = replace(table, good_level=np.where(some.slow > 0.75 * 45, 0.47, 0.0))
    return Cover(table, [numbered_kind("nic", 16, table.a, table.b)], 0.75, 0.07)


def shares(cover: Cover, loaded: Sequence[int] = ()) -> list[SlowShares]:
    all_rows, nics = np.ones(len(cover.table), bool), np.arange(len(cover.kinds[0].keys))
    return shares_of_nics(cover, nics, (all_rows, all_rows), 0.05, 0.07, loaded)


def suspect_of(cover: Cover, loaded: Sequence[int] = ()) -> Suspect | None:
    """Return the suspect of any share."""
    return next(filter(None, (each.suspect(4) for each in shares(cover, loaded))), None)


def test_a_load_of_one_host_makes_no_suspects_of_those_that_met_it() -> None:
    """NIC 3 was loaded for all of its samples with six partners: a third of theirs is no sign of a flap."""
    cover = first_measurement(lambda a, b, way: 45 if {a, b} & {3} and (a + b) % 5 < 2 else a % 3)
    assert suspect_of(cover) is None


def test_a_nic_that_comes_and_goes_is_a_suspect_beside_a_load() -> None:
    def slow(a: int, b: int, way: int) -> int:
        if {a, b} & {3} and (a + b) % 5 < 2:
            return 45
        return 12 + (a + b) % 5 if 7 in (a, b) else 0

    suspect = suspect_of(first_measurement(slow))
    assert suspect is not None
    assert suspect.name == ("flap", 7)
    assert suspect.ties == ()


@pytest.mark.parametrize(("slow_with", "suspected"), [((3,), False), ((3, 9), True)])
def test_one_of_several_partners_makes_no_nic_a_suspect(slow_with: tuple[int, ...], suspected: bool) -> None:
    """Two thirds of the samples are slow: of a load of either, for a while."""
    cover = first_measurement(lambda a, b, way: 30 if 7 in (a, b) and {a, b} & {*slow_with} else 0)
    kept = np.flatnonzero(np.isin(cover.table.a, (3, 7, 9, 12)) & np.isin(cover.table.b, (3, 7, 9, 12)))
    found = suspect_of(
        Cover(cover.table.of(kept), [numbered_kind("nic", 16, *ends(cover, kept))], 0.75, 0.07)
    )
    assert (found and found.name) == (("flap", 7) if suspected else None)


def test_shares_of_open_rows_are_kept_up_while_rows_are_closed() -> None:
    random = np.random.default_rng(0)
    cover = first_measurement(lambda *_: int(random.integers(0, 46)))
    (kept,) = shares(cover)
    for closed in np.array_split(random.permutation(len(cover.table)), 9):
        cover.open[closed] = False
        kept.update()
        (anew,) = shares(cover)
        np.testing.assert_array_equal(kept.slow, anew.slow)
        np.testing.assert_array_equal(kept.count, anew.count)
    assert kept.count.sum() == 0


def beside_collisions(samples: int, flap: int | None, seed: int) -> Cover:
    """64 NICs, each pair measured once, both ways. Of the pairs 15 % collide: all of their few samples are
    slow, or of many about half, since they are as slow as noise allows, and none is good. flap: a NIC that is
    slow for 30 % of the time, in episodes of 8 samples on average.
    """
    random = np.random.default_rng(seed)
    a, b = np.triu_indices(64, 1)
    a, b = (np.stack(ends, axis=1).ravel() for ends in ((a, b), (b, a)))
    collides = np.repeat(random.random(len(a) // 2) < 0.15, 2)
    often = 1.0 if samples < 15 else 0.5
    slow = np.repeat(random.binomial(samples, np.where(collides, often, 0.01)[::2]), 2)
    good = np.where(collides, 0.15, 0.0)
    on = random.random() < 0.3
    for row in np.flatnonzero((a == flap) | (b == flap))[::2].tolist():
        states = []
        for _ in range(samples):
            on = random.random() >= 1 / 8 if on else random.random() < 0.3 / 0.7 / 8
            states.append(on)
        slow[row : row + 2] = max(sum(states), slow[row])
        good[row : row + 2] = 0.47 if samples - sum(states) <= (samples - 1) // 4 else good[row]
    table = replace(
        looks(*zip(a.tolist(), b.tolist(), np.zeros(len(a), int).tolist(), slow.tolist(), strict=True)),
        good_level=good, count=np.full(len(a), samples), retested=np.zeros(len(a), bool),
    )  # fmt: skip
    return Cover(table, [numbered_kind("nic", 64, a, b)], 0.75, 0.07)


@pytest.mark.parametrize("samples", [7, 17])
def test_flows_that_collide_make_no_nic_a_suspect_and_hide_none(samples: int) -> None:
    seen = 0
    for seed in range(20):
        assert suspect_of(beside_collisions(samples, None, seed)) is None
        suspect = suspect_of(beside_collisions(samples, 5, seed))
        assert suspect is None or (suspect.name, suspect.ties) == (("flap", 5), ())
        seen += suspect is not None
    assert seen >= 19


def ends(cover: Cover, rows: Ints) -> tuple[Ints, Ints]:
    return cover.table.a[rows], cover.table.b[rows]


def test_few_samples_that_are_all_slow_may_be_an_episode() -> None:
    cover = first_measurement(lambda a, b, way: 45 if 3 in (a, b) and (a + b) % 2 else 0)
    short = replace(cover.table, count=np.full(len(cover.table), 6), slow=np.minimum(cover.table.slow, 6))
    suspect = suspect_of(Cover(short, cover.kinds, 0.75, 0.07))
    assert suspect is not None
    assert suspect.name == ("flap", 3)


def test_of_many_suspects_one_must_change_in_more_looks() -> None:
    assert ChangingLooks(4, 6, 0.005).is_sure
    assert not ChangingLooks(4, 6, 0.005, suspects=33).is_sure
    assert ChangingLooks(7, 8, 0.005, suspects=33).is_sure


def test_slow_flows_of_other_suspects_do_not_clear_a_part() -> None:
    healthy, slow = [(4, 12, look, 0) for look in range(8)], [(5, 13, look, 6) for look in range(6)]
    suspect, table = flapping((8, 9), [*healthy, *slow])
    assert confirmed_intermittent(suspect, suspect.rows, table) is not None


@pytest.mark.parametrize(
    ("seed", "fault"),
    [(3001, "flap:h0:3:0.635:0.3"), (3002, "flap:h0:4:0.65:0.3"), (3006, "stall:h1:5:10.0:0.05")],
)
def test_a_nic_of_two_hosts_whose_flows_across_rails_are_slower(seed: int, fault: str) -> None:
    """Only the flows of one rail show it: it is named with its partner, and later retests change nothing."""
    _, host, gpu, *_ = fault.split(":")
    fleet = SimulatedFleet(parse_fleet(f"hosts=2,gpus=8,leaf=8,seed={seed},{ALL},fault={fault}"))
    verdict = climb_ladder(fleet, Plan(seed=seed, rungs=("host pairs",)))
    (found,) = [one for one in verdict.findings if one.kind in ("flap", "stall")]
    assert found.gpus == (int(gpu),)
    assert host in found.hosts or f"host {host}, GPU {gpu}: its NIC" in found.instead
    assert verdict.status == "critical"
    assert found.evidence.p99 is not None
    own, usual = found.evidence.p99
    assert own > usual  # by chance, loads of others slow some of the siblings' flows as much
    assert f"p99 {1e3 * own:.3g} ms, siblings' {1e3 * usual:.3g} ms" in found.sentence


@pytest.mark.parametrize(
    ("seed", "fault", "part"),
    [
        # Its partner was looked at first, and called flapping beside it.
        (1, "send:h1:3:0.81", "host h1, GPU 3: its NIC when it sends"),
        (3, "send:h1:3:0.81", "host h1, GPU 3: its NIC when it sends"),
        # Not all samples of the slow direction are slow.
        (2, "receive:h1:6:0.78", "host h1, GPU 6: its NIC when it receives"),
        # Less was seen of it than of other flows' noise; its median is slow too.
        (10, "flap:h0:2:0.78", "host h0, GPU 2: its NIC"),
        (6, "flap:h0:2:0.78", "host h0, GPU 2: its NIC"),
    ],
)
def test_a_mild_fault_of_two_hosts_in_noise_is_called_what_it_is(seed: int, fault: str, part: str) -> None:
    fleet = SimulatedFleet(parse_fleet(f"hosts=2,gpus=8,leaf=8,seed={seed},{ALL},fault={fault}"))
    verdict = climb_ladder(fleet, Plan(seed=seed, rungs=("host pairs",)))
    (found,) = verdict.findings
    assert part in (found.part.rstrip(":"), *found.instead)
    assert (found.kind == "flap") == fault.startswith("flap")


@pytest.mark.parametrize("seed", [41, 111])  # 111: also found to be slow part of the time
def test_a_stalling_nic_is_not_called_slow_in_one_direction(seed: int) -> None:
    """A stall of one call in 20 slows most flows in both directions; in one, a few more by chance."""
    fleet = SimulatedFleet(parse_fleet(f"hosts=5,gpus=8,seed={seed},leaf=2,fault=stall:h1:0:5"))
    (found,) = climb_ladder(fleet, quick()).findings
    assert (found.hosts, found.gpus) == (("h1",), (0,))
    assert found.kind in ("nic", "stall")


def test_a_mild_loss_that_only_one_pair_shows_is_named_with_both_nics() -> None:
    rows = [(0, 8, look, 0) for look in range(10)] + [(8, 0, look, 0) for look in range(10)]
    table = looks(*rows, *[(1, 9, look, 0) for look in range(20)])
    table.level[:20] = 0.09  # less than a row's threshold, more than the tolerance
    found = Cover(table, [numbered_kind("nic", 16, table.a, table.b)], 0.75, 0.07).mildest()
    assert found is not None
    assert (found.name, found.ties) == (("nic", 0), (("nic", 8),))


def test_what_looks_could_not_decide_is_not_ok() -> None:
    """Of 14 looks, 5 were slow: likelier of a NIC that flaps than of a loaded one, but not sure."""
    assert 0 < intermittence(5, 14, 0.01) < INTERMITTENT_FROM
    seed, fault = 3100000, "flap:h0:2:0.832:0.3"
    fleet = SimulatedFleet(parse_fleet(f"hosts=2,gpus=8,leaf=8,seed={seed},{ALL},fault={fault}"))
    verdict = climb_ladder(fleet, Plan(seed=seed))
    assert verdict.status in ("unknown", "critical")


def test_the_tail_is_that_of_the_flows_on_the_nics_rail() -> None:
    fleet = ToyFleet([2] * 4)
    measured = InterNode(fleet, topology_of(fleet), Plan(), {})
    measured.flows = [np.array([[0, 2], [4, 6]]), np.array([[4, 0], [2, 6], [0, 3]])]
    ramp = np.arange(100) / 100
    measured.seconds = [np.stack([1 + ramp, 3 + ramp]), np.stack([2 + ramp, 3 + ramp, 9 + ramp])]
    assert measured.tails(0) == pytest.approx((2.98, 3.98), abs=0.011)


def test_how_many_changing_looks_are_enough_depends_on_the_noise() -> None:
    assert intermittence(4, 4, 0.0) >= INTERMITTENT_FROM > intermittence(3, 4, 0.0)
    assert intermittence(5, 6, 0.06) >= INTERMITTENT_FROM > intermittence(5, 7, 0.06)


def test_more_partners_must_see_a_part_slow_the_more_often_healthy_flows_are_late() -> None:
    assert partners_needed(0.0, 7) == (2, 0.0)
    assert partners_needed(0.12, 7) == (3, pytest.approx(0.042, abs=0.001))
    assert partners_needed(0.25, 7) == (5, pytest.approx(0.013, abs=0.001))
    assert partners_needed(0.5, 2)[0] == 3  # both may be slow by chance


def noisy(look: int, late: int, rank: int, others: range) -> list[tuple[int, int, int, int]]:
    """Flows between a rank and others, there and back, in a look: so many of the others see it slow, there
    or back in turn."""
    slow = [2 if number < late else 0 for number in range(len(others))]
    rows = [
        (rank, other, look, some * (n % 2)) for n, (other, some) in enumerate(zip(others, slow, strict=True))
    ]
    back = [
        (other, rank, look, some * (1 - n % 2))
        for n, (other, some) in enumerate(zip(others, slow, strict=True))
    ]
    return rows + back


def test_a_look_does_not_change_if_as_few_partners_see_a_part_slow_as_see_healthy_ones_slow() -> None:
    """Each look, 2 of 7 partners: of healthy flows 1 in 14 is late, so that 2 of 7 are in 23 % of looks."""
    healthy = [row for look in range(8) for row in noisy(look, 1, 20, range(30, 37))]
    few = looks(*[row for look in range(8) for row in noisy(look, 2, 0, range(10, 17))], *healthy)
    found = changing_looks(few, few.a * few.b == 0)
    assert (found.changing, found.looks) == (0, 8)
    assert 0.01 < found.by_noise < 0.06
    most = looks(*[row for look in range(8) for row in noisy(look, 4, 0, range(10, 17))], *healthy)
    assert changing_looks(most, most.a * most.b == 0).changing == 8
    # Flows of other suspects are no measure of it.
    others = looks(*zip(most.a, most.b, most.look, most.slow, strict=True), *noisy(0, 7, 5, range(40, 47)))
    healthy_rows = (others.a >= 10) & (others.b >= 10)
    assert changing_looks(others, others.a * others.b == 0, trusted=healthy_rows).changing == 8


def test_a_part_that_is_late_in_one_direction_only_is_not_slow_at_times() -> None:
    """A NIC that is slow at times is so in both. Of a mild loss, not all samples are slow."""
    healthy = [row for look in range(8) for row in noisy(look, 1, 20, range(30, 37))]
    one_way = [(0, other, look, 4) for look in range(8) for other in range(10, 14)]
    one_way += [(other, 0, look, 0) for look in range(8) for other in range(10, 14)]
    table = looks(*one_way, *healthy)
    found = changing_looks(table, table.a * table.b == 0)
    assert (found.changing, found.looks) == (0, 8)


def test_a_look_in_which_all_are_late_is_no_measure_of_noise() -> None:
    look, late = np.array([0] * 8 + [1] * 8), np.array([True] * 8 + [False] * 7 + [True])
    assert usual_lates(look, late, ~late) == (1.5 / 9, 0.5 / 9)
    assert usual_lates(look, late, late) == (0.5 / 9, 1.5 / 9)
    assert usual_lates(look[:8], late[:8], late[:8]) == (0, 0)


def test_a_load_slows_all_flows_of_a_partner_and_counts_once() -> None:
    """One healthy flow in 11 is loaded. As noise of each flow, that would be one partner in six."""
    loads = [
        (a, a + 30, look, 6 * (look in (0, 2, 3, 5, 6) and a == 10 + look))
        for look in range(8)
        for a in range(10, 17)
    ]
    several = [(0, other, look, 3 * (other < 23)) for look in range(8) for other in range(20, 27)]
    table = looks(*several, *[(b, a, look, slow) for a, b, look, slow in several], *loads)
    assert changing_looks(table, table.a * table.b == 0).changing == 8
    own_load = [(0, other, look, 6 * (other < 22)) for look in range(8) for other in range(20, 27)]
    table = looks(*own_load, *[(b, a, look, slow) for a, b, look, slow in own_load], *loads)
    assert changing_looks(table, table.a * table.b == 0).changing == 0


def test_one_of_many_paths_that_is_somewhat_slow_is_not_named() -> None:
    """Flows of a pair share uplinks with others for good."""
    random = np.random.default_rng(0)
    some = looks(*[(0, 8, number, 0) for number in range(10)], *[(8, 0, number, 0) for number in range(10)])
    table = replace(some, level=random.normal(0.08, 0.02, 20), threshold=np.full(20, 0.15))
    for kind in ("nic", "path"):
        cover = Cover(table, [numbered_kind(kind, 1, np.zeros(20, np.int64))], 0.75, 0.07)
        assert (cover.mildest() is None) == (kind == "path")
        suspect = Suspect(kind, 0, np.ones(20, bool), 0.08)
        found = confirmed(suspect, cover, Plan(), cast(RungMeasurement, Steady()))
        assert (found is None) == (kind == "path")


class Steady:
    def is_erratic(self, suspect: Suspect, rows: Mask, table: Observations) -> bool:
        return False


def test_a_mild_loss_is_not_called_worse_than_it_is() -> None:
    """Of rows around a level of 0.08, those above the threshold alone are critical."""
    random = np.random.default_rng(0)
    level = random.normal(0.08, 0.03, 40)
    some = looks(*[(0, 1 + number % 8, number // 8, 0) for number in range(40)])
    table = replace(some, level=level, threshold=np.full(40, 0.1), retested=np.ones(40, bool))
    cover = Cover(table, [numbered_kind("nic", 9, table.a)], 0.75, 0.07)
    suspect = cover.mildest()
    assert suspect is not None
    found = confirmed(suspect, cover, Plan(), cast(RungMeasurement, Steady()))
    assert found is not None
    assert found.effect == pytest.approx(float(np.median(level)))


def test_looks_at_a_nic_decide_whether_it_is_intermittent() -> None:
    fleet = ToyFleet([4] * 8)
    flows = InterNode(fleet, topology_of(fleet), Plan(), {})
    flows.measure()
    flows.retest([("nic", 12)])
    of_nic = flows.looked
    flows.retest([("flap", 12)])
    assert of_nic > 0
    alone = InterNode(fleet, topology_of(fleet), Plan(), {})
    alone.measure()
    alone.retest([("flap", 12)])
    assert flows.looked == alone.looked > of_nic


def test_a_part_that_is_slow_beside_a_steady_nic_is_intermittent() -> None:
    """Slow for all of 4 looks of 16: of a load, unless another NIC of the host was fast in these."""
    pairs = [(a, b) for one in (4, 5, 6) for a, b in ((0, one), (one, 0))]
    slow = {2, 7, 12, 15}
    through = [(a, b, look, 6 * (look in slow)) for look in range(16) for a, b in pairs]
    others = [(8, 9, look, 0) for look in range(16)] * 4
    table = looks(*through, *others)
    rows = np.arange(len(table)) < len(through)
    assert not changing_looks(table, rows).is_sure
    assert changing_looks(table, rows, steady=range(16)).is_sure
    assert not changing_looks(table, rows, steady=set(range(16)) - slow).is_sure


def test_retests_of_a_loaded_nic_make_no_suspects_of_its_partners() -> None:
    """NICs 2 and 3 were slow in all of a retest with NICs 4 to 7, because others loaded them."""
    first = [(a, b, 0, 0) for a in range(16) for b in range(16) if a != b and not {2, 3} & {a, b}]
    again = [
        (a, b, 0, 6) for one in (2, 3) for other in (4, 5, 6, 7) for a, b in ((one, other), (other, one))
    ]
    some = looks(*first, *again * 12)
    table = replace(some, retested=np.arange(len(some)) >= len(first))
    cover = Cover(table, [numbered_kind("nic", 16, table.a, table.b)], 0.75, 0.07)
    cover.excluded |= {("flap", 2), ("flap", 3)}
    assert suspect_of(cover) is not None
    assert suspect_of(cover, [2, 3]) is None
