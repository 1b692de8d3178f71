"""Slow parts of modelled runs are named, and nothing of healthy ones. The model shares no code with the
judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
import slow_runs
from slow_runs import HEALTHY, SLOWDOWNS, Run

from meshrun.runner.world.watch.judge import Judge, LatePart, RankInterval, RankPart, network_part, rank_part

SHAPES = ((4, 2), (2, 1), (1, 4), (2, 4), (8, 1))  # hosts, ranks of each
SHOWN = [name for name, (counter, _, scope) in SLOWDOWNS.items() if counter and scope == "rank"]
DEADLINE = 30.0  # seconds from the beginning of a slowdown to its name


@dataclass
class Score:
    """What became of runs with a slow part."""

    runs: int = 0
    named: int = 0  # in time
    kinds: int = 0
    findings: int = 0
    right: int = 0
    confidence: float = 0.0


def findings(run: Run, *, on_device: bool = False, begin: int = 0) -> list[tuple[float, LatePart]]:
    """Judge a run. on_device: GPUs wait for each other, which the ranks' processes do not see. begin:
    number of the first look."""
    parts = [RankPart(rank, host, "", run.peers[rank]) for rank, host in enumerate(run.hosts)]
    judge, found = Judge(parts), []
    for at, ranks in run.looks[begin:]:
        look = {}
        for rank, values in enumerate(ranks):
            own = {name: value for name, value in values.items() if name not in slow_runs.LOST}
            lost = {name: values.get(name, 0.0) for name in slow_runs.LOST}
            look[rank] = RankInterval(**{**own, "steps": round(values["steps"])}, lost=lost)
            if on_device:
                look[rank] = replace(look[rank], waited=0.0, transit=None)
        found += [(at, finding) for finding in judge.look(at, look)]
    return found


def is_right(run: Run, finding: LatePart) -> bool:
    return any(name in f"{finding.part} " for name in run.names)


def score(runs: Iterable[Run]) -> Score:
    total = Score()
    for run in runs:
        found = findings(run)
        total.runs += 1
        total.findings += len(found)
        for at, finding in found:
            right = is_right(run, finding) and at >= run.onset
            total.right += right
            total.confidence += finding.confidence
            if right and at <= run.onset + DEADLINE:
                total.named += 1
                total.kinds += finding.kind == run.kind
    return total


def shapes_of(slowdown: str) -> Sequence[tuple[int, int]]:
    """Return the shapes of runs in which a slowdown can be told: a host from others, a wire between hosts."""
    of_rank = slowdown == HEALTHY or SLOWDOWNS[slowdown][2] == "rank"
    return [shape for shape in SHAPES if of_rank or shape[0] > 1]


@pytest.mark.parametrize("slowdown", SLOWDOWNS)
def test_a_slow_part_is_named_in_time_with_its_kind(slowdown: str) -> None:
    hosts, per_host = shapes_of(slowdown)[len(slowdown) % len(shapes_of(slowdown))]
    total = score(slow_runs.runs(slowdown, 4, 5, hosts, per_host))
    assert total.findings == total.right
    assert total.named >= 3
    assert total.kinds == total.named


def test_healthy_runs_raise_no_alarm() -> None:
    for hosts, per_host in SHAPES[:2]:
        assert score(slow_runs.runs(HEALTHY, 8, 6, hosts, per_host)).findings == 0


@pytest.mark.nightly
def test_two_hundred_healthy_runs_raise_no_alarm() -> None:
    for hosts, per_host in SHAPES:
        assert score(slow_runs.runs(HEALTHY, 40, 7, hosts, per_host)).findings == 0


@pytest.mark.nightly
def test_names_are_precise_and_their_confidence_is_true() -> None:
    total = Score()
    for slowdown in SLOWDOWNS:
        for hosts, per_host in shapes_of(slowdown):
            more = score(slow_runs.runs(slowdown, 10, 8, hosts, per_host))
            total = Score(*(getattr(total, name) + getattr(more, name) for name in vars(total)))
    assert total.right >= 0.98 * total.findings
    assert total.named >= 0.95 * total.runs
    assert total.kinds >= 0.95 * total.named
    assert total.confidence / total.findings == pytest.approx(total.right / total.findings, abs=0.02)


@pytest.mark.parametrize("slowdown", SHOWN)
def test_counters_name_a_rank_whose_waits_are_not_seen(slowdown: str) -> None:
    for run in slow_runs.runs(slowdown, 3, 9):
        found = findings(run, on_device=True)
        assert [is_right(run, finding) for _, finding in found] == [True]
        assert found[0][1].kind == run.kind


def test_a_healthy_run_whose_waits_are_not_seen_raises_no_alarm() -> None:
    assert not any(findings(run, on_device=True) for run in slow_runs.runs(HEALTHY, 8, 10))


@pytest.mark.parametrize("slowdown", ["neighbour", "stopped", "swapping"])
def test_a_rank_that_was_never_fast_is_named_if_a_counter_shows_it(slowdown: str) -> None:
    for run in slow_runs.runs(slowdown, 3, 11):
        found = findings(run, begin=int(run.onset) + 2)
        assert [is_right(run, finding) for _, finding in found] == [True]
        assert found[0][1].kind == run.kind


def test_a_rank_with_more_work_from_the_start_is_not_named() -> None:
    for run in slow_runs.runs("hidden", 4, 12):
        assert findings(run, begin=int(run.onset) + 2) == []


def even(count: int, **victim: float) -> dict[int, RankInterval]:
    """Return a look at ranks that wait for rank 0."""
    ranks = {rank: RankInterval(1.0, 10, 0.5, transit=0.0) for rank in range(count)}
    return {**ranks, 0: replace(RankInterval(1.0, 10, 0.05, transit=0.0), **victim)}


def test_a_part_is_named_once() -> None:
    judge = Judge([RankPart(rank, f"n{rank}") for rank in range(4)])
    healthy = {rank: RankInterval(1.0, 20, 0.1, transit=0.0) for rank in range(4)}
    found = [judge.look(at, healthy if at < 30 else even(4)) for at in range(120)]
    assert [finding.part for each in found for finding in each] == ["rank 0 of host n0"]
    assert judge.findings[0].since == pytest.approx(30, abs=1)
    assert judge.findings[0].delay == pytest.approx(0.8, abs=0.1)  # 0.45 of a step are new


def test_a_run_that_does_not_become_slower_names_nobody() -> None:
    judge = Judge([RankPart(rank, "n1") for rank in range(4)])
    healthy = {rank: RankInterval(1.0, 10, 0.1, transit=0.0) for rank in range(4)}
    assert not any(judge.look(at, healthy if at < 30 else even(4)) for at in range(90))


def test_looks_without_steps_or_ranks_count_for_nothing() -> None:
    judge = Judge([RankPart(rank, "n1") for rank in range(2)])
    for at in range(90):
        assert judge.look(at, even(2, steps=0)) == []
        assert judge.look(at, {0: RankInterval(1.0, 5, 0.0)}) == []


PARTS = [
    RankPart(rank, f"n{rank // 2}", f"GPU {rank % 2}", frozenset({rank - 1, rank + 1} & set(range(10))))
    for rank in range(10)
]


@pytest.mark.parametrize(
    ("ranks", "part"),
    [
        ([3, 4], ("link", "the link between host n1 and host n2")),
        ([3, 4, 5, 6], ("NIC", "the network of host n2")),
        ([3], ("NIC", "the network of host n1")),
        (range(10), ("network", "the network between host n0, host n1, host n2, host n3, host n4")),
    ],
)
def test_the_part_of_a_network_follows_from_the_ends_of_late_messages(
    ranks: Sequence[int], part: tuple[str, str]
) -> None:
    assert network_part(PARTS, ranks) == part


@pytest.mark.parametrize(
    ("ranks", "part"),
    [
        ([3], ("GPU", "GPU 1 of host n1 (rank 3)")),
        ([2, 3], ("host", "host n1")),
        ([3, 4], ("rank", "ranks 3, 4")),
    ],
)
def test_slow_ranks_are_named_by_what_they_have_in_common(
    ranks: Sequence[int], part: tuple[str, str]
) -> None:
    assert rank_part(PARTS, ranks) == part
