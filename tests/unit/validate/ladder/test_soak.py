"""Rounds of a soak, by made verdicts and a clock that is moved by hand."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.validate.ladder.budget import Deadline
from meshrun.jobs.validate.ladder.soak import SoakResult, soak
from meshrun.jobs.validate.verdict import Alarm, Evidence, Finding, FindingKind, RungResult, Status, Verdict

EVIDENCE = Evidence("flows", 30e9, 48e9, 20, (), 1.0)
OK = Verdict("ok", (), (), ())
LOST = Verdict("unknown", (), (), ("rails: ring could not be measured with rank 3",))


def bad(
    kind: FindingKind = "nic",
    host: str = "c7",
    gpu: int = 3,
    factor: float = 0.61,
    status: Status = "critical",
) -> Verdict:
    return Verdict(status, (Finding(kind, (host,), (gpu,), factor, "host pairs", EVIDENCE),), (), ())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def soaked(verdicts: Iterator[Verdict], seconds: float, each: float = 10.0) -> tuple[SoakResult, list[str]]:
    clock, lines = Clock(), list[str]()

    def climb() -> Verdict:
        clock.now += each
        return next(verdicts)

    return soak(climb, Deadline(seconds, clock), lines.append), lines


def test_healthy_rounds_until_the_time_is_over() -> None:
    result, lines = soaked(iter([OK] * 6), 60)
    assert result == SoakResult(None, 60, 6, OK)
    assert lines[0] == "round 1, 10 s: ok"
    assert len(lines) == 6
    assert result.line == "no degradation in 60 s, 6 rounds"


def test_one_round_at_least() -> None:
    assert soaked(iter([OK]), 0.001)[0].rounds == 1


def test_a_round_that_measured_nothing_is_the_last_one() -> None:
    """Rounds of nothing take no time: on a model they would go on for ever."""
    nothing = replace(LOST, rungs=(RungResult("rails", "not measured", "there is one host"),))
    result, _ = soaked(iter([OK, nothing]), 60, each=0.0)
    assert (result.rounds, result.worst) == (2, nothing)


def test_the_first_degradation_is_named_with_the_time_of_its_first_round() -> None:
    result, lines = soaked(iter([OK, OK, bad(), bad(factor=0.5), bad("gpu"), OK]), 60)
    assert result.first == bad().findings[0]
    assert (result.at, result.rounds, result.worst.status) == (30, 6, "critical")
    assert result.worst.findings[0].factor == 0.5
    assert lines[2].endswith("(once so far)")
    assert lines[3].endswith("(as in the round before)")
    assert result.line.startswith("first degradation after 30 s: host c7, GPU 3: its NIC at 61 %")


@pytest.mark.parametrize("second", ["send", "receive", "flap"])
def test_a_nic_is_the_same_nic_in_whatever_direction(second: FindingKind) -> None:
    assert soaked(iter([bad(), bad(second), OK]), 30)[0].first == bad().findings[0]


@pytest.mark.parametrize("other", [bad(gpu=2), bad(host="c8"), bad("gpu"), LOST])
def test_another_part_does_not_confirm(other: Verdict) -> None:
    result, lines = soaked(iter([OK, bad(), other, OK]), 40)
    assert result.first is None
    assert "round 2 was bad once" in lines[2]
    assert result.unconfirmed == (1 if other is LOST else 2)


def test_a_single_bad_round_is_a_warning_with_its_time() -> None:
    result, lines = soaked(iter([OK, bad(), OK, OK]), 40)
    assert (result.first, result.at, result.unconfirmed) == (None, 40, 1)
    assert result.worst.status == "warning"
    assert result.worst.findings == bad().findings
    assert result.worst.not_judged == ("bad in a single round, number 2 after 20 s",)
    assert "round 2 was bad once" in lines[2]
    assert result.line == "no degradation in 40 s, 4 rounds; bad in a single round: 1 time"


def test_every_other_round_bad_is_no_degradation_but_counted() -> None:
    result, _ = soaked(iter([OK, bad()] * 4 + [OK]), 80)
    assert (result.first, result.unconfirmed, result.worst.status) == (None, 4, "warning")


def test_a_last_round_that_is_bad_is_followed_by_one_that_confirms() -> None:
    result, _ = soaked(iter([OK, bad(), bad(), bad()]), 20)
    assert (result.first, result.at, result.rounds) == (bad().findings[0], 20, 3)
    result, _ = soaked(iter([OK, bad(), OK]), 20)
    assert (result.first, result.rounds, result.worst.status) == (None, 3, "warning")
    result, _ = soaked(iter([OK, bad(), bad("gpu"), bad("gpu")]), 20)  # but only one of them
    assert (result.first, result.rounds, result.unconfirmed) == (None, 3, 2)


def test_what_is_bad_from_the_start_degraded_in_the_first_round() -> None:
    result, _ = soaked(iter([bad(), bad(), bad()]), 30)
    assert (result.at, result.unconfirmed) == (10, 0)


def test_a_missing_measurement_is_never_ok() -> None:
    result, _ = soaked(iter([OK, LOST, OK, bad(), OK]), 50)
    assert result.worst == LOST  # worse than what was bad once
    assert soaked(iter([LOST, bad(), bad()]), 30)[0].worst.status == "critical"


def test_wrong_data_needs_no_second_round() -> None:
    alarm = Alarm("critical", "host c7, GPU 3: 1 byte of flows was wrong")
    wrong = Verdict("critical", (), (), (), (alarm,))
    result, _ = soaked(iter([OK, bad(), wrong, OK]), 40)
    assert (result.first, result.at, result.worst, result.unconfirmed) == (alarm, 30, wrong, 1)
    assert result.line.startswith("first degradation after 30 s: host c7, GPU 3: 1 byte")
    both = replace(bad(), alarms=(alarm,))  # not downgraded by a part that was slow once
    assert soaked(iter([OK, both, OK]), 30)[0].worst.status == "critical"
    light = Verdict("warning", (), (), (), (Alarm("warning", "host c7: retransmits"),))
    assert soaked(iter([OK, light, OK]), 30)[0].first is None


def test_a_mild_degradation_is_one_too() -> None:
    mild = bad(factor=0.92, status="warning")
    result, _ = soaked(iter([mild, mild]), 20)
    assert (result.first, result.worst.status) == (mild.findings[0], "warning")


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_confirmed_is_what_two_rounds_in_a_row_show(rounds: list[bool]) -> None:
    made = [bad() if one else OK for one in rounds]
    result, lines = soaked(iter([*made, OK]), 10.0 * len(rounds))
    pairs = [n for n in range(len(rounds) - 1) if rounds[n] and rounds[n + 1]]
    assert (result.first is not None) == bool(pairs)
    assert result.at == (10.0 * (pairs[0] + 1) if pairs else 10.0 * result.rounds)
    assert result.worst.status == ("critical" if pairs else "warning" if any(rounds) else "ok")
    padded = [False, *rounds, False]
    alone = [n for n in range(1, len(padded) - 1) if padded[n - 1 : n + 2] == [False, True, False]]
    assert result.unconfirmed == len(alone)
    assert len(lines) == result.rounds


def test_an_error_of_a_round_ends_the_soak() -> None:
    def fails() -> Verdict:
        raise RuntimeError("rank 3 was killed")

    with pytest.raises(RuntimeError, match="rank 3"):
        soak(fails, Deadline(10, Clock()), print)


def test_verdicts_of_past_rounds_are_let_go() -> None:
    clock, alive, most = Clock(), weakref.WeakSet[Finding](), [0]

    class Held(Finding):
        """A finding with weak references."""

    def climb() -> Verdict:
        clock.now += 1
        most[0] = max(most[0], len(alive))
        found = Held("nic", (f"c{clock.now}",), (1,), 0.6, "host pairs", EVIDENCE)
        alive.add(found)
        return Verdict("critical", (found,), (), ())

    result = soak(climb, Deadline(200, clock), lambda line: None)
    assert result.rounds > 200
    assert most[0] <= 4


def test_it_stays_cheap(capsys: pytest.CaptureFixture[str]) -> None:
    on_round: Callable[[str], None] = print
    clock = Clock()

    def climb() -> Verdict:
        clock.now += 0.01
        return OK

    assert soak(climb, Deadline(100, clock), on_round).rounds == pytest.approx(10_000, abs=2)
    assert capsys.readouterr().out.count("\n") == pytest.approx(10_000, abs=2)
