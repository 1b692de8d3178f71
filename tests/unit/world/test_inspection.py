"""The preflight of simulated ranks: every failure on every rank alike, before any of them works."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.system.launcher import BY_HAND, Started
from meshrun.runner.world.preflight import checks, inspection
from meshrun.runner.world.preflight.inspection import PreflightFailed, find_problems, gather_surveys
from meshrun.runner.world.preflight.problem import Problem
from meshrun.runner.world.preflight.survey import Interface, Survey
from meshrun.runner.world.world import Rank, open_world

GIB = 1 << 30
CPU = CpuBackend()
SIZE = 4  # ranks, on two hosts
Change = Callable[[Survey], dict[str, Any]]


def survey(rank: int) -> Survey:
    """A sound one."""
    host, local = divmod(rank, 2)
    return Survey(
        rank, f"n{host}", f"n{host}/boot{host}", local, 100 + rank,
        mpi="Open MPI 5.0.11", meshrun="0.1.0", python="3.11.7", cpus=tuple(range(8)), numa=(0,),
        interfaces=(Interface("lo", "127.0.0.1", True), Interface("eth0", f"10.0.0.{host}", True)),
        shm_total=64 * GIB, shm_free=60 * GIB,
    )  # fmt: skip


def ranks() -> list[Rank]:
    sound = map(survey, range(SIZE))
    return [Rank(one.rank, one.host, one.host_id, one.local_rank, one.pid, CPU.device) for one in sound]


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Have ranks find what is sound, but for these changes."""

    def found(change: Change) -> None:
        def look(here: Rank, *_: object, **__: object) -> Survey:
            return replace(survey(here.number), **change(survey(here.number)))

        monkeypatch.setattr(inspection, "survey", look)

    return found


def each(size: int, function: Callable[[ThreadComm], Any]) -> list[Any]:
    """What it returns or raises on every rank, all of which come to its end."""

    def attempt(control: ThreadComm) -> Any:
        try:
            outcome = function(control)
        except UserError as failure:
            outcome = failure
        control.barrier()
        return outcome

    return run_ranks(size, attempt)


def checked(started: Started = BY_HAND, **more: Any) -> list[Any]:
    check = inspection.preflight(started, **more)
    return each(SIZE, lambda control: check(control, ranks(), CPU))


def nothing(_: Survey) -> dict[str, Any]:
    return {}


def test_nothing_is_wrong_with_ranks_that_are_alike(facts: Callable[[Change], None]) -> None:
    facts(nothing)
    assert checked(Started(ranks=4, hosts=2, per_host=2, network="eth0")) == [[]] * SIZE


FAILURES: list[tuple[Started, Change, str]] = [
    (Started(ranks=8), nothing, "a different number of ranks than planned"),
    (Started(hosts=3), nothing, "a different number of hosts than planned"),
    (Started(per_host=4), nothing, "hosts have a different number of ranks than planned"),
    (Started(network="ib0"), nothing, "hosts cannot be reached on the chosen network, ib0"),
    (BY_HAND, lambda one: {"meshrun": f"0.1.{one.local_rank}"}, "different versions of meshrun"),
    (BY_HAND, lambda one: {"mpi": f"MPICH {one.rank}"}, "different versions of the MPI library"),
    (BY_HAND, lambda one: {"settings": {"NCCL_ALGO": one.host}}, "different settings of NCCL_ALGO"),
    (BY_HAND, lambda one: {"mpi": "MPICH 5.0.2", "shm_total": 1 << 20}, "/dev/shm is too small"),
    (
        BY_HAND,
        lambda one: {"host_id": "n/boot", "interfaces": (Interface("eth0", f"10.0.0.{one.rank}", True),)},
        "two hosts or network namespaces have the same identity",
    ),
]


@pytest.mark.parametrize(("started", "change", "what"), FAILURES, ids=[what for *_, what in FAILURES])
def test_a_failure_is_raised_by_every_rank_alike(
    facts: Callable[[Change], None], started: Started, change: Change, what: str
) -> None:
    facts(change)
    raised = checked(started)
    assert [type(one) for one in raised] == [PreflightFailed] * SIZE
    assert len({str(one) for one in raised}) == 1
    assert what in str(raised[0])
    assert ". Try: " in str(raised[0])
    assert all(one.everywhere and one.exit_code == 2 for one in raised)


def test_all_failures_are_told_each_with_its_fix(facts: Callable[[Change], None]) -> None:
    facts(lambda one: {"meshrun": f"0.1.{one.local_rank}", "python": f"3.{one.rank}"})
    (unfit, *_) = checked(Started(ranks=8, hosts=1))
    lines = str(unfit).split("\n")
    assert [line.partition(":")[0] for line in lines] == [
        "the launcher started a different number of ranks than planned",
        "  also",
        "  also",
    ]
    assert all(". Try: " in line for line in lines)
    assert not any(problem.warning for problem in unfit.failures), "Python's version is only a warning"
    first = unfit.failures[0]
    assert (unfit.what, unfit.got, unfit.hint) == (first.what, first.got, first.hint)


def test_it_travels_between_ranks_whole(facts: Callable[[Change], None]) -> None:
    facts(lambda one: {"meshrun": f"0.1.{one.rank}"})
    (unfit, *_) = checked(Started(ranks=8))
    copy = pickle.loads(pickle.dumps(unfit))
    assert type(copy) is PreflightFailed
    assert (str(copy), copy.failures, copy.everywhere) == (str(unfit), unfit.failures, True)


def test_warnings_are_returned_on_every_rank(facts: Callable[[Change], None]) -> None:
    facts(lambda one: {"python": f"3.{11 + one.local_rank}.0", "one_core": one.rank == 3})
    outcomes = checked()
    assert outcomes == [outcomes[0]] * SIZE
    assert [warning.partition(":")[0] for warning in outcomes[0]] == [
        "ranks have different versions of Python",
        "ranks are bound to a single core, which their MPI, NCCL and CuPy threads share",
    ]


def test_one_rank_that_cannot_look_fails_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that has loaded two copies of NCCL; the others must not wait for its facts."""

    def look(here: Rank, *_: object, **__: object) -> Survey:
        if here.number == 2:
            raise UserError("two copies of libnccl are loaded", hint="pip uninstall one")
        return survey(here.number)

    monkeypatch.setattr(inspection, "survey", look)
    raised = checked()
    assert [type(one) for one in raised] == [UserError] * SIZE
    assert {str(one) for one in raised} == {
        "[rank 2, host n1, CPU] two copies of libnccl are loaded. Try: pip uninstall one"
    }
    assert all(one.everywhere for one in raised)


def test_a_rank_alone_is_not_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "survey", lambda *_, **__: pytest.fail("it was"))
    check = inspection.preflight(Started(ranks=8, hosts=3))
    assert check(ThreadComm(), ranks()[:1], CPU) == []


def test_only_rank_0_judges(facts: Callable[[Change], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of ranks need not each go through the facts of thousands."""
    found = [Problem("something", "this", "that", "do so", (1,), warning=True)]
    asked: list[tuple[int, Started, bool]] = []

    def problems(surveys: Sequence[Survey], expected: Started, *, oversubscribe: bool) -> list[Problem]:
        asked.append((len(surveys), expected, oversubscribe))
        return found

    monkeypatch.setattr(checks, "check_surveys", problems)
    started = Started(4, "/run", 15.0, 2, 2, "eth0")
    surveys = [survey(rank) for rank in range(SIZE)]
    assert (
        each(SIZE, lambda control: find_problems(control, surveys, started, oversubscribe=True))
        == [found] * SIZE
    )
    assert asked == [(SIZE, started, True)]


def test_every_rank_gets_the_facts_of_all_in_order() -> None:
    """This process's own, where ranks differ in what they were given."""
    everyone = each(SIZE, lambda control: gather_surveys(control, ranks(), CPU))
    assert everyone == [everyone[0]] * SIZE
    assert [one.rank for one in everyone[0]] == [0, 1, 2, 3]
    assert [(one.host, one.local_rank) for one in everyone[0]] == [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]
    here = everyone[0][0]
    assert (here.pid, here.cpus) == (100, tuple(sorted(os.sched_getaffinity(0))))
    assert here.gpu is None


def test_it_is_asked_before_communicators_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.world.world.open_arrays", lambda *_, **__: pytest.fail("they were"))
    check = inspection.preflight(Started(hosts=3))
    raised = each(2, lambda control: open_world("cpu", control=control, check=check))
    assert [type(one) for one in raised] == [PreflightFailed] * 2


def test_its_warnings_are_the_worlds(facts: Callable[[Change], None]) -> None:
    facts(lambda one: {"one_core": True})
    check = inspection.preflight(BY_HAND)
    worlds = each(2, lambda control: open_world("cpu", control=control, check=check))
    assert ["single core" in world.warnings[-1] for world in worlds] == [True, True]
