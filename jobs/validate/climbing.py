"""A validation under way on rank 0: ladders climbed within their time, what they found as a report."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import runner
from jobs.validate import costs
from jobs.validate.asked import Asked
from jobs.validate.baseline import compare as baseline
from jobs.validate.budget import Deadline, fitted
from jobs.validate.ended import NOTHING, cut_short
from jobs.validate.figures import Figures, figures, matrices
from jobs.validate.fleet import fleet_of
from jobs.validate.health.alarms import beside, unjudged
from jobs.validate.ladder import Ladder, always
from jobs.validate.plan import Plan, RungName
from jobs.validate.probe import Probe
from jobs.validate.report.model import Limit, Member, Report
from jobs.validate.soak import soak
from jobs.validate.verdict import Verdict

Told = Callable[[RungName], None]


@dataclass
class Climbing:
    """environment, limits: as in Report. plan: what is measured. ladder: the one under way."""

    asked: Asked
    environment: dict[str, Any]
    members: tuple[Member, ...] = ()
    limits: tuple[Limit, ...] = ()
    plan: Plan = field(default_factory=Plan)
    ladder: Ladder | None = None
    notes: list[str] = field(default_factory=list)  # what the plan leaves out
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    begin: float = field(default_factory=time.monotonic)

    def report(self, verdict: Verdict, ended: str = "") -> Report:
        """All that is known by now. ended: why the run ended before its time."""
        ladder = self.ladder
        allowed = {one.rung: one.rate for one in self.limits if one.what == "ring"}
        curves = [replace(one, limit=allowed.get(one.rung)) for one in ladder.curves] if ladder else []
        return Report(
            replace(verdict, not_judged=(*verdict.not_judged, *self.notes)),
            self.members,
            self.started.isoformat(timespec="seconds"),
            time.monotonic() - self.begin,
            shlex.join(("meshrun", *self.asked.words)),
            self.environment | {"bytes": costs.sizes(self.plan)},
            self.asked.simulate or "",
            self.limits,
            tuple(ladder.changes) if ladder else (),
            tuple(ladder.wrong) if ladder else (),
            matrices(ladder) if ladder else (),
            tuple(curves),
            ended=ended,
        )

    def so_far(self, rung: RungName) -> Report:
        """What was found before this rung, for whoever finds it when rank 0 does not live to its end."""
        assert self.ladder is not None
        return self.report(unjudged(self.ladder.verdict(), f"the run ended while {rung} was measured"))

    def cut_short(self, ended: str, guilty: bool) -> Report:
        """What was found before the run ended. guilty: `ended` names who is to blame for it."""
        if self.ladder is None:
            return cut_short(self.report(NOTHING), ended, guilty)
        self.ladder.cut_short(ended, guilty)
        return self.report(self.ladder.verdict(), ended if guilty else "")


def measured(climbing: Climbing, probe: Probe, told: Told, round_told: Callable[[str], None]) -> Report:
    """Climb once, or as long as asked for, within the budget; compared with the baseline and kept there.

    told: the rung that is under way. round_told: a line on each round of a soak.
    """
    asked = climbing.asked
    deadline = Deadline(asked.budget) if asked.budget else None
    spare = _within(climbing, probe, deadline) if deadline else always

    def climb() -> Verdict:
        climbing.ladder = Ladder(probe, climbing.plan, told, spare)
        return climbing.ladder.climb()

    if asked.soak:
        result = soak(climb, Deadline(asked.soak), round_told)
        climbing.environment["soak"] = result.line
        verdict = result.worst
    else:
        verdict = climb()
    assert climbing.ladder is not None
    return _compared(climbing, climbing.report(verdict), figures(climbing.ladder))


def _within(climbing: Climbing, probe: Probe, deadline: Deadline) -> Callable[[RungName], str]:
    """Fit the plan to the time; why a rung is not begun when too little of it is left."""
    fleet = fleet_of(probe)
    rates = costs.trial(probe, climbing.plan)
    asked = climbing.plan
    lean, given_up = fitted(asked, deadline.left(), lambda plan: costs.estimate(plan, fleet, rates))
    if given_up:
        climbing.notes.append(given_up)
    climbing.plan = replace(lean, rungs=asked.rungs)
    expected = costs.by_rung(lean, fleet, rates)  # without the rungs that were given up

    def spare(name: RungName) -> str:
        enough = expected.get(name, math.inf) <= deadline.left()
        return "" if enough else "no time is left in the budget"

    return spare


def _compared(climbing: Climbing, report: Report, found: Figures) -> Report:
    """With what earlier runs and the hardware's limits say of it; kept for later ones where it is healthy.

    What was measured is told, whatever happens to the files of earlier runs.
    """
    asked, trouble = climbing.asked, ""
    if asked.baseline is not None:
        try:
            drifts, changed = baseline.compare(asked.baseline, report, found)
            report = replace(report, baseline=str(asked.baseline), drifts=drifts, changed=changed)
        except runner.UserError as reason:
            trouble = f"not compared with earlier runs: {reason}"
    verdict = beside(report, climbing.plan)
    if trouble:
        verdict = unjudged(verdict, trouble)
    report = replace(report, verdict=verdict)
    if asked.save_baseline is not None:
        try:
            report.environment["saved"] = baseline.save(asked.save_baseline, report, found)
        except runner.UserError as reason:
            runner.tell(f"not saved: {reason}")
    return report
