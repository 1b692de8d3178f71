"""Climb the ladder repeatedly, and report what degrades first and when.

A slow part counts only if it is slow again in the next round; a part that was slow in one round only is a
warning. Wrong data, or a rank that died, needs no confirmation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from meshrun.jobs.validate.ladder.budget import Deadline
from meshrun.jobs.validate.verdict import SEVERITY, Alarm, Finding, Verdict, measured_nothing
from meshrun.runner.report.units import counted

# Different names that one fault may get in different rounds.
FAMILY = {
    "send": "nic",
    "receive": "nic",
    "flap": "nic",
    "stall": "nic",
    "link one way": "link",
    "nvlink send": "nvlink",
    "nvlink receive": "nvlink",
}


@dataclass(frozen=True)
class SoakResult:
    """first: the first degradation: a finding that the next round confirmed, or a critical alarm. at: seconds
    until the end of the round that first showed it, or of the last round if none did.

    worst: the worst verdict; a round with unconfirmed findings counts as a warning at most. unconfirmed: the
    number of such rounds.
    """

    first: Finding | Alarm | None
    at: float
    rounds: int
    worst: Verdict
    unconfirmed: int = 0

    @property
    def line(self) -> str:
        """Describe the result in one line."""
        rounds = counted(self.rounds, "round")
        single = f"; bad in a single round: {counted(self.unconfirmed, 'time')}" if self.unconfirmed else ""
        if self.first is None:
            return f"no degradation in {self.at:.0f} s, {rounds}{single}"
        return f"first degradation after {self.at:.0f} s: {self.first.sentence} ({rounds}{single})"


@dataclass(frozen=True)
class SoakRound:
    """One climb. at: seconds until its end. confirmed: the round before had some of its findings."""

    number: int
    at: float
    verdict: Verdict
    confirmed: bool

    def judged(self, after: SoakRound | None) -> Verdict:
        """Return the verdict that counts. after: the next round, or None."""
        if not is_unconfirmed(self, after):
            return self.verdict
        why = f"bad in a single round, number {self.number} after {self.at:.0f} s"
        milder = self.verdict.status
        if milder == "critical" and not critical_alarms(self.verdict):
            milder = "warning"
        return replace(self.verdict, status=milder, not_judged=(*self.verdict.not_judged, why))


def soak(climb: Callable[[], Verdict], until: Deadline, on_round: Callable[[str], None]) -> SoakResult:
    """Climb until the deadline, at least once. on_round: called with a line about each round.

    The last round is finished, and repeated once more if it has unconfirmed findings. A round that measured
    nothing is the last one: the next would not either.
    """
    first: Finding | Alarm | None = None
    worst: Verdict | None = None
    last: SoakRound | None = None
    at, unconfirmed, over = 0.0, 0, False
    for number in itertools.count(1):
        verdict = climb()
        again = common_findings(last.verdict, verdict) if last else ()
        this = SoakRound(number, until.elapsed(), verdict, bool(again))
        on_round(describe(last, this))
        if last is not None:
            worst = worse(worst, last.judged(this))
            unconfirmed += is_unconfirmed(last, this)
            if again and first is None:
                first, at = again[0], last.at
        if first is None and (facts := critical_alarms(verdict)):
            first, at = facts[0], this.at
        last = this
        was_over, over = over, until.left() <= 0
        if was_over or (over and not is_unconfirmed(this, None)) or measured_nothing(verdict.rungs):
            break
    assert last is not None  # there was one round at least
    worst = worse(worst, last.judged(None))
    unconfirmed += is_unconfirmed(last, None)
    return SoakResult(first, at if first else last.at, last.number, worst, unconfirmed)


def describe(last: SoakRound | None, this: SoakRound) -> str:
    text = f"round {this.number}, {this.at:.0f} s: {this.verdict.line}"
    if this.verdict.findings:
        text += " (as in the round before)" if this.confirmed else " (once so far)"
    if last is not None and is_unconfirmed(last, this):
        text += f"; round {last.number} was bad once"
    return text


def is_unconfirmed(one: SoakRound, after: SoakRound | None) -> bool:
    """Return whether a round has findings that neither neighbouring round has."""
    return bool(one.verdict.findings) and not one.confirmed and not (after and after.confirmed)


def critical_alarms(verdict: Verdict) -> list[Alarm]:
    return [one for one in verdict.alarms if one.status == "critical"]


def common_findings(before: Verdict, after: Verdict) -> tuple[Finding, ...]:
    """Return the findings of `before` whose parts are slow in `after` too."""
    parts = {part_key(one) for one in after.findings}
    return tuple(one for one in before.findings if part_key(one) in parts)


def part_key(one: Finding) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    return FAMILY.get(one.kind, one.kind), one.hosts, one.gpus


def worse(one: Verdict | None, other: Verdict) -> Verdict:
    """Return the more severe verdict; of equals the one with the slowest part, then the earlier."""
    return other if one is None or severity(other) > severity(one) else one


def severity(verdict: Verdict) -> tuple[int, float]:
    return SEVERITY.index(verdict.status), -min((one.factor for one in verdict.findings), default=1.0)
