"""Climb the ladder round after round: what degrades first, and when.

A slow part must be slow again in the next round to count: what was slow in one round only is a warning. Wrong
data, or a rank that died, needs no second round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from jobs.validate.ladder.budget import Deadline
from jobs.validate.verdict import SEVERITY, Alarm, Finding, Verdict

# Names that one fault may be given in one round and in the next.
FAMILY = {"send": "nic", "receive": "nic", "flap": "nic", "nvlink send": "nvlink", "nvlink receive": "nvlink"}


@dataclass(frozen=True)
class SoakResult:
    """first: the first degradation, a finding that the next round confirmed or a critical alarm. at: seconds
    since the deadline began, to the end of the round that first showed it; of all rounds when none did.

    worst: of all rounds; of a round whose findings did not come again, a warning at most. once: how many of
    those there were.
    """

    first: Finding | Alarm | None
    at: float
    rounds: int
    worst: Verdict
    once: int = 0

    @property
    def line(self) -> str:
        """The result in one line."""
        rounds = f"{self.rounds} round{'s'[: self.rounds != 1]}"
        single = f"; bad in a single round: {self.once} times" if self.once else ""
        if self.first is None:
            return f"no degradation in {self.at:.0f} s, {rounds}{single}"
        return f"first degradation after {self.at:.0f} s: {self.first.sentence} ({rounds}{single})"


@dataclass(frozen=True)
class SoakRound:
    """One climb. at: when it ended, in seconds. upheld: some of its findings were there before."""

    number: int
    at: float
    verdict: Verdict
    upheld: bool

    def judged(self, after: SoakRound | None) -> Verdict:
        """The verdict that counts. after: the next round, None when there was none."""
        if not single(self, after):
            return self.verdict
        why = f"bad in a single round, number {self.number} after {self.at:.0f} s"
        milder = self.verdict.status
        if milder == "critical" and not grave(self.verdict):
            milder = "warning"
        return replace(self.verdict, status=milder, not_judged=(*self.verdict.not_judged, why))


def soak(climb: Callable[[], Verdict], until: Deadline, on_round: Callable[[str], None]) -> SoakResult:
    """Climb until the time is over, at least once. on_round: called with a line on each round.

    A round that has begun is finished, and a last one that found something new is followed by one to confirm
    it.
    """
    first: Finding | Alarm | None = None
    worst: Verdict | None = None
    last: SoakRound | None = None
    at, once, over = 0.0, 0, False
    for number in itertools.count(1):
        verdict = climb()
        again = common(last.verdict, verdict) if last else ()
        this = SoakRound(number, until.elapsed(), verdict, bool(again))
        on_round(describe(last, this))
        if last is not None:
            worst = worse(worst, last.judged(this))
            once += single(last, this)
            if again and first is None:
                first, at = again[0], last.at
        if first is None and (facts := grave(verdict)):
            first, at = facts[0], this.at
        last = this
        was_over, over = over, until.left() <= 0
        if was_over or (over and not single(this, None)):
            break
    assert last is not None  # there was one round at least
    worst = worse(worst, last.judged(None))
    once += single(last, None)
    return SoakResult(first, at if first else last.at, last.number, worst, once)


def describe(last: SoakRound | None, this: SoakRound) -> str:
    text = f"round {this.number}, {this.at:.0f} s: {this.verdict.line}"
    if this.verdict.findings:
        text += " (as in the round before)" if this.upheld else " (once so far)"
    if last is not None and single(last, this):
        text += f"; round {last.number} was bad once"
    return text


def single(one: SoakRound, after: SoakRound | None) -> bool:
    """Whether its findings were there in this round only."""
    return bool(one.verdict.findings) and not one.upheld and not (after and after.upheld)


def grave(verdict: Verdict) -> list[Alarm]:
    return [one for one in verdict.alarms if one.status == "critical"]


def common(before: Verdict, after: Verdict) -> tuple[Finding, ...]:
    """Findings of the one that the other has as well."""
    parts = {part(one) for one in after.findings}
    return tuple(one for one in before.findings if part(one) in parts)


def part(one: Finding) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    return FAMILY.get(one.kind, one.kind), one.hosts, one.gpus


def worse(one: Verdict | None, other: Verdict) -> Verdict:
    """The more severe, of equals the one with the slowest part, of those the earlier."""
    return other if one is None or severity(other) > severity(one) else one


def severity(verdict: Verdict) -> tuple[int, float]:
    return SEVERITY.index(verdict.status), -min((one.factor for one in verdict.findings), default=1.0)
