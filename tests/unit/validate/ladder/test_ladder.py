"""Parts that are slow by construction are named; what cannot be judged is reported."""

from __future__ import annotations

import numpy as np
import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.validate.ladder.ladder import Ladder, climb_ladder
from meshrun.jobs.validate.plan import RUNGS, Plan
from meshrun.jobs.validate.probe.api import RankPlace, SingleRankOp
from meshrun.jobs.validate.verdict import Evidence, Finding, Verdict


def parts(verdict: Verdict) -> list[tuple[object, ...]]:
    return [(one.kind, one.hosts, one.gpus) for one in verdict.findings]


def result(verdict: Verdict) -> dict[str, str]:
    return {rung.name: rung.result for rung in verdict.rungs}


def near(place: RankPlace, host: int, gpu: int) -> bool:
    return (place.host, place.gpu) == (host, gpu)


@pytest.mark.parametrize("gpus", [[8], [2, 2], [4, 2, 3], [8] * 9, [1] * 5])
def test_nobody_is_blamed_of_a_healthy_fleet(gpus: list[int]) -> None:
    verdict = climb_ladder(ToyFleet(gpus))
    assert (verdict.status, verdict.findings) == ("ok", ())
    assert verdict.line == "ok"


@pytest.mark.parametrize("gpus", [[2, 2], [8] * 3, [8] * 9, [4, 2, 3, 3]])
@pytest.mark.parametrize("ways", ["nic", "send", "receive"])
def test_a_nic_and_its_direction(gpus: list[int], ways: str) -> None:
    def slowed(a: RankPlace, b: RankPlace) -> float:
        sends, receives = ways != "receive" and near(a, 1, 1), ways != "send" and near(b, 1, 1)
        return 0.6 if a.host != b.host and (sends or receives) else 1.0

    verdict = climb_ladder(ToyFleet(gpus, flow_factor=slowed))
    assert parts(verdict) == [(ways, ("n1",), (1,))]
    (found,) = verdict.findings
    assert found.factor == pytest.approx(0.6, rel=0.03)
    assert result(verdict)["host pairs"] == "broken"
    assert result(verdict)["rails"] == "ok"  # what is named explains the slow rail
    assert found.sentence.startswith("host n1, GPU 1: its NIC")
    assert f"at {100 * found.factor:.0f} % of its siblings (" in found.sentence


@pytest.mark.parametrize("hosts", [3, 9, 20])
def test_a_link_between_two_hosts(hosts: int) -> None:
    def slowed(a: RankPlace, b: RankPlace) -> float:
        return 0.7 if {a.host, b.host} == {0, 2} else 1.0

    plan = Plan(full_mesh_hosts=16)  # each pair of 20 hosts meets on one rail
    assert parts(climb_ladder(ToyFleet([4] * hosts, flow_factor=slowed), plan)) == [
        ("link", ("n0", "n2"), ())
    ]


@pytest.mark.parametrize("hosts", [2, 3, 9])
def test_a_rail(hosts: int) -> None:
    def slowed(a: RankPlace, b: RankPlace) -> float:
        return 0.7 if a.host != b.host and 2 in (a.gpu, b.gpu) else 1.0

    assert parts(climb_ladder(ToyFleet([4] * hosts, flow_factor=slowed))) == [("rail", (), (2,))]


@pytest.mark.parametrize(
    ("what", "kind", "rung"),
    [("memory", "gpu", "gpu"), ("product", "gpu", "gpu"), ("to_host", "pcie", "host")],
)
@pytest.mark.parametrize("gpus", [[2], [8], [4, 4], [8] * 7])
def test_a_gpu_alone(what: SingleRankOp, kind: str, rung: str, gpus: list[int]) -> None:
    def slowed(operation: SingleRankOp, place: RankPlace) -> float:
        return 0.7 if operation == what and near(place, 0, 1) else 1.0

    verdict = climb_ladder(ToyFleet(gpus, single_rank_factor=slowed))
    assert parts(verdict) == [(kind, ("n0",), (1,))]
    assert result(verdict)[rung] == "broken"
    assert verdict.findings[0].evidence.what == what


@pytest.mark.parametrize("gpus", [[2], [8], [4, 4], [8] * 7])
def test_a_gpu_that_is_slow_under_load(gpus: list[int]) -> None:
    def slowed(operation: SingleRankOp, place: RankPlace) -> float:
        return 0.7 if operation == "tensor" and near(place, 0, 1) else 1.0

    fleet = ToyFleet(gpus, single_rank_factor=slowed)
    verdict = climb_ladder(fleet, Plan(tensor_seconds=10.0))
    assert parts(verdict) == [("gpu", ("n0",), (1,))]
    assert result(verdict)["gpu"] == "broken"
    assert (verdict.findings[0].evidence.what, verdict.findings[0].evidence.unit) == ("tensor", "FLOP/s")
    assert climb_ladder(ToyFleet(gpus, single_rank_factor=slowed)).status in ("ok", "warning")


def test_a_load_has_as_many_samples_as_fit_its_seconds() -> None:
    fleet, asked = ToyFleet([2]), []
    measure = fleet.single_rank
    fleet.single_rank = lambda what, *rest: (asked.append((what, rest[1])), measure(what, *rest))[1]  # type: ignore
    climb_ladder(fleet, Plan(rungs=("gpu",), samples=5, tensor_seconds=10.0))
    assert asked == [("memory", 5), ("product", 5), ("tensor", 20)]


@pytest.mark.parametrize("hosts", [2, 3, 9])
def test_all_gpus_of_a_host_are_the_host(hosts: int) -> None:
    fleet = ToyFleet(
        [4] * hosts, single_rank_factor=lambda what, place: 0.8 if "to_" in what and place.host == 1 else 1.0
    )
    assert parts(climb_ladder(fleet)) == [("host", ("n1",), ())]


@pytest.mark.parametrize("hosts", [1, 2, 9])
def test_nvlink_of_a_gpu_and_of_a_pair(hosts: int) -> None:
    def one(a: RankPlace, b: RankPlace) -> float:
        return 0.6 if a.host == b.host and (near(a, 0, 2) or near(b, 0, 2)) else 1.0

    def pair(a: RankPlace, b: RankPlace) -> float:
        return 0.6 if a.host == b.host == 0 and {a.gpu, b.gpu} == {1, 3} else 1.0

    assert parts(climb_ladder(ToyFleet([4] * hosts, flow_factor=one))) == [("nvlink", ("n0",), (2,))]
    assert parts(climb_ladder(ToyFleet([4] * hosts, flow_factor=pair))) == [("pair", ("n0",), (1, 3))]


def test_copies_tell_the_link_from_the_library() -> None:
    def slow(a: RankPlace, b: RankPlace) -> float:
        return 0.6 if a.host == b.host and {a.gpu, b.gpu} == {1, 3} else 1.0

    def good(a: RankPlace, b: RankPlace) -> float:
        return 1.0

    found = {}
    for copies, flows in ((slow, slow), (slow, good), (good, slow)):
        (finding,) = climb_ladder(ToyFleet([4], flow_factor=flows, copy_factor=copies)).findings
        assert (finding.kind, finding.gpus) == ("pair", (1, 3))
        found[copies is slow, flows is slow] = finding.evidence.what
    assert found == {(True, True): "copies, flows", (True, False): "copies", (False, True): "flows"}


def test_where_gpus_do_not_reach_each_other_flows_are_judged_alone() -> None:
    verdict = climb_ladder(ToyFleet([4], barred="rank 1 does not reach the memory of rank 0"))
    assert verdict.status == "ok"
    assert (
        "pairs: no copies from GPU to GPU: rank 1 does not reach the memory of rank 0" in verdict.not_judged
    )
    (pairs,) = (rung for rung in verdict.rungs if rung.name == "pairs")
    assert set(pairs.rates) == {"flows"}
    cpus = climb_ladder(ToyFleet([4], unit="CPU"))
    assert not any("copies" in note for note in cpus.not_judged)
    assert all("copies" not in rung.rates for rung in cpus.rungs)


def test_the_fault_of_a_higher_rung_is_found_too() -> None:
    def slowed(a: RankPlace, b: RankPlace) -> float:
        return 0.6 if a.host != b.host and (near(a, 3, 0) or near(b, 3, 0)) else 1.0

    fleet = ToyFleet(
        [4] * 6, single_rank_factor=lambda _, place: 0.7 if near(place, 1, 2) else 1.0, flow_factor=slowed
    )
    stopped = climb_ladder(fleet, Plan(keep_going=False))
    assert set(result(stopped).values()) == {"broken", "not measured"}
    fleet.random = np.random.default_rng(1)
    verdict = climb_ladder(fleet)
    assert parts(verdict) == [("gpu", ("n1",), (2,)), ("pcie", ("n1",), (2,)), ("nic", ("n3",), (0,))]
    assert "not measured" not in result(verdict).values()


@pytest.mark.parametrize(("episode", "kind"), [(1, "stall"), (8, "flap")])
def test_a_nic_that_is_slow_at_times_is_named_with_its_share_of_the_time(episode: int, kind: str) -> None:
    """episode: samples that it stays slow, on average."""
    fleet = ToyFleet([4] * 5)
    turns = np.random.default_rng(3)

    def slowed(a: RankPlace, b: RankPlace) -> float:
        return 0.6 if a.host != b.host and (near(a, 2, 1) or near(b, 2, 1)) else 1.0

    steady, state = fleet.flows, [False]
    taken: list[bool] = []

    def now_and_then(flows, nbytes, samples):  # type: ignore[no-untyped-def]
        seconds = steady(flows, nbytes, samples)
        slow = np.zeros(samples, bool)
        for sample in range(samples):
            if turns.random() < 1 / episode:  # a new state, whatever the last one was
                state[0] = bool(turns.random() < 0.3)
            slow[sample] = state[0]
        taken.extend(slow)
        factor = np.array([slowed(fleet.places[a], fleet.places[b]) for a, b in flows])
        return np.where(slow, seconds / factor[:, None], seconds)

    fleet.flows = now_and_then  # type: ignore[method-assign]
    (found,) = climb_ladder(fleet).findings
    assert (found.kind, found.hosts, found.gpus) == (kind, ("n2",), (1,))
    assert found.time == pytest.approx(np.mean(taken), abs=0.1)
    assert "of the time" in found.sentence


def test_what_was_slow_once_is_not_blamed() -> None:
    """Only the first flow between two NICs is slow."""
    fleet = ToyFleet([2] * 6)
    seen: set[tuple[int, int]] = set()
    steady = fleet.flows

    def once(flows, nbytes, samples):  # type: ignore[no-untyped-def]
        seconds = steady(flows, nbytes, samples)
        pairs = [(int(a), int(b)) for a, b in flows]
        new = np.array([pair not in seen and 3 in pair for pair in pairs])
        seen.update(pairs)
        return np.where(new[:, None], 2 * seconds, seconds)

    fleet.flows = once  # type: ignore[method-assign]
    verdict = climb_ladder(fleet)
    assert not [
        one for one in verdict.findings if one.kind in ("nic", "flap", "send", "receive", "host", "link")
    ]


def test_one_rank_says_that_nothing_can_be_judged() -> None:
    verdict = climb_ladder(ToyFleet([1]))
    assert verdict.findings == ()
    assert verdict.not_judged == (
        "one rank: nothing to compare it with; its figures are reported, not judged",
    )
    assert {name for name, outcome in result(verdict).items() if outcome == "not measured"} == set(RUNGS[2:])


def test_two_hosts_say_what_they_cannot_show() -> None:
    verdict = climb_ladder(ToyFleet([4, 4], flow_factor=lambda a, b: 0.5 if a.host != b.host else 1.0))
    assert verdict.findings == ()
    assert any("two hosts" in note for note in verdict.not_judged)


@pytest.mark.parametrize("gpus", [[4], [4] * 3])
def test_a_missing_measurement_is_never_ok(gpus: list[int]) -> None:
    fleet = ToyFleet(
        gpus, single_rank_factor=lambda what, place: np.nan if what == "to_host" and place.rank == 2 else 1.0
    )
    verdict = climb_ladder(fleet)
    assert verdict.status == "unknown"
    assert any("to_host could not be measured with rank 2" in note for note in verdict.not_judged)
    assert verdict.line.startswith("unknown: ")


def test_nothing_measured_at_all_is_unknown() -> None:
    fleet = ToyFleet([2, 2], single_rank_factor=lambda *_: np.nan, flow_factor=lambda *_: np.nan)
    assert climb_ladder(fleet).status == "unknown"


def test_rungs_that_this_fleet_does_not_have_are_not_ok() -> None:
    verdict = climb_ladder(ToyFleet([4]), Plan(rungs=("host pairs", "rails"), by_name=True))
    assert verdict.status == "unknown"
    assert verdict.line == (
        "unknown: named by --rungs and not measured: host pairs: there is one host; rails: there is one host"
    )
    assert climb_ladder(ToyFleet([4])).status == "ok"


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_rung_that_was_named_and_not_measured_is_not_ok(factor: float) -> None:
    fleet = ToyFleet([4], single_rank_factor=lambda what, place: factor if place.rank == 2 else 1.0)
    verdict = climb_ladder(fleet, Plan(rungs=("gpu", "host pairs"), by_name=True))
    assert verdict.status == ("unknown" if factor == 1 else "critical")
    sentence = "named by --rungs and not measured: host pairs: there is one host"
    assert verdict.not_judged[0] == sentence
    assert (verdict.line == f"unknown: {sentence}") == (factor == 1)


def test_a_rung_after_a_broken_one_is_left_out_as_asked() -> None:
    fleet = ToyFleet([4], single_rank_factor=lambda what, place: 0.5 if place.rank == 2 else 1.0)
    verdict = climb_ladder(fleet, Plan(rungs=("gpu", "node"), by_name=True, keep_going=False))
    assert verdict.status == "critical"
    assert not any("named" in one for one in verdict.not_judged)


def test_more_slow_paths_than_hosts_are_no_faults() -> None:
    ladder = Ladder(ToyFleet([2] * 3), Plan())
    evidence = Evidence("flows", 1.0, 2.0, 3, (), 1.0)
    nic = Finding("nic", ("n0",), (1,), 0.5, "host pairs", evidence)
    path = Finding("path", ("n0", "n1"), (1,), 0.5, "host pairs", evidence)
    assert ladder.named("host pairs", [nic, *[path] * 3]) == [nic, *[path] * 3]
    assert not ladder.incomplete
    assert ladder.named("host pairs", [nic, *[path] * 4]) == [nic]
    assert ladder.incomplete
    assert "4 paths between hosts are slow again" in ladder.not_judged[-1]
