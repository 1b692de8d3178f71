"""A validation in progress on rank 0: climb the ladder within its time, and report the results."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from meshrun.jobs.validate.baseline import compare as baseline
from meshrun.jobs.validate.health.alarms import add_fleet_alarms, least_rates, with_alarms, with_not_judged
from meshrun.jobs.validate.health.unequal_settings import unequal_settings, unread_logs
from meshrun.jobs.validate.ladder import costs
from meshrun.jobs.validate.ladder.budget import LOAD_SHARE, SOAK_LOAD_SECONDS, Deadline, TimeLimit, fit
from meshrun.jobs.validate.ladder.ladder import Ladder, OnRung
from meshrun.jobs.validate.ladder.part_rates import best_rates, matrices, part_rates
from meshrun.jobs.validate.ladder.soak import soak
from meshrun.jobs.validate.plan import Plan, RungName
from meshrun.jobs.validate.probe.api import LoadReadings, Probe
from meshrun.jobs.validate.probe.metered import MeteredProbe, TimeUpError
from meshrun.jobs.validate.report.model import HardwareLimit, Member, Report
from meshrun.jobs.validate.report.wording import duration, percent, with_devices
from meshrun.jobs.validate.run.early_end import NOTHING_MEASURED, with_early_end
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.topology import topology_of
from meshrun.jobs.validate.verdict import Alarm, Verdict
from meshrun.runner.errors import UserError
from meshrun.runner.spelling import command_option
from meshrun.runner.system.host_settings import Setting
from meshrun.runner.world.stuck.nccl_ras import NcclDiagnostics

BETWEEN = ("host pairs", "rails", "all")  # rungs


@dataclass
class Validation:
    """environment, members, limits, loads, nccl: as in Report. ladder: the current climb.

    notes: what the plan omits. unequal: alarms about settings in which hosts differ.
    """

    options: ValidateOptions
    environment: dict[str, Any]
    members: tuple[Member, ...] = ()
    limits: tuple[HardwareLimit, ...] = ()
    plan: Plan = field(default_factory=Plan)
    ladder: Ladder | None = None
    notes: list[str] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    begin: float = field(default_factory=time.monotonic)
    loads: tuple[LoadReadings, ...] = ()
    nccl: NcclDiagnostics | None = None
    unequal: tuple[Alarm, ...] = ()

    def compare_settings(self, hosts: Mapping[str, Mapping[Setting, str]]) -> None:
        """Note in which settings the hosts differ, and which logs cannot be read."""
        self.unequal = unequal_settings(hosts)
        self.notes += filter(None, [unread_logs(hosts)])

    def report(self, verdict: Verdict, ended: str = "") -> Report:
        """Return a report of everything so far. ended: why the run ended early, or ""."""
        ladder, sizes = self.ladder, costs.sizes(self.plan)
        if ladder:  # which moves fewer bytes between hosts if these take long
            sizes |= {key: size for key, size in costs.sizes(ladder.plan).items() if key.startswith(BETWEEN)}
        allowed = {one.rung: one.rate for one in self.limits if one.what == "ring"}
        curves = [replace(one, limit=allowed.get(one.rung)) for one in ladder.curves] if ladder else []
        noted = replace(verdict, not_judged=(*verdict.not_judged, *self.notes))
        return Report(
            with_devices(with_alarms(noted, self.unequal), self.members),
            self.members,
            self.started.isoformat(timespec="seconds"),
            time.monotonic() - self.begin,
            shlex.join(("meshrun", *self.options.words)),
            self.environment | {"bytes": sizes},
            self.options.simulate or "",
            self.limits,
            tuple(ladder.changes) if ladder else (),
            tuple(ladder.wrong) if ladder else (),
            matrices(ladder) if ladder else (),
            tuple(curves),
            ended=ended,
            loads=self.loads,
            nccl=self.nccl,
        )

    def interim_report(self, rung: RungName) -> Report:
        """Return a report of the rungs before this one, which remains if rank 0 is killed during it."""
        assert self.ladder is not None
        return self.report(with_not_judged(self.ladder.verdict(), f"the run ended while {rung} was measured"))

    def early_report(self, ended: str, critical: bool) -> Report:
        """Return a report of a run that ended early. critical: a rank failed, and `ended` names it."""
        if self.ladder is None:
            return with_early_end(self.report(NOTHING_MEASURED), ended, critical)
        self.ladder.end_early(ended, critical)
        return self.report(self.ladder.verdict(), ended if critical else "")


def measure(validation: Validation, probe: Probe, on_rung: OnRung, on_round: Callable[[str], None]) -> Report:
    """Climb once, or repeatedly for a soak, within the budget; compare with and save to the baseline.

    Without a budget, each climb ends after the plan's seconds.

    on_rung: called before each rung. on_round: called with a line about each round of a soak.
    """
    options = validation.options
    deadline = Deadline(options.budget, probe.clock) if options.budget else None
    limit = _fit_budget(validation, probe, deadline) if deadline else None

    least = least_rates(validation.limits, validation.members)

    def climb() -> Verdict:
        deadline = Deadline(validation.plan.seconds, probe.clock)
        usual = TimeLimit(deadline, even_shares=validation.plan.even_shares)
        validation.ladder = Ladder(probe, validation.plan, on_rung, limit or usual, least)
        return validation.ladder.climb()

    if options.soak:
        result = soak(climb, Deadline(options.soak, probe.clock), on_round)
        validation.environment["soak"] = result.line
        verdict = result.worst
    else:
        verdict = climb()
    assert validation.ladder is not None
    validation.loads, validation.nccl = tuple(probe.loads()), probe.nccl_diagnostics()
    report, ladder = validation.report(verdict), validation.ladder
    noted = (*report.verdict.not_judged, *unknown_rates(report), *undetectable(report, validation.plan))
    report = replace(report, verdict=replace(report.verdict, not_judged=noted))
    return _use_baseline(validation, report, ladder)


def unknown_rates(report: Report) -> Iterator[str]:
    """Yield which measurements have no known rate to be held against."""
    known = {(one.rung, one.what) for one in report.limits if one.rate and one.least is not None}
    measured = [(rung.name, what) for rung in report.verdict.rungs for what in rung.rates]
    unknown = [f"{rung} {what}" for rung, what in measured if (rung, what) not in known]
    if unknown:
        yield f"no known rate for {', '.join(unknown)}: only compared with siblings"


def undetectable(report: Report, plan: Plan) -> Iterator[str]:
    """Yield which slow GPUs and links these measurements cannot show, and how to see them."""
    measured = {(rung.name, what) for rung in report.verdict.rungs for what in rung.rates}
    if not measured or all(one.kind == "cpu" for one in report.members):
        return
    # A part that is slower by less than the tolerance.
    if len(report.members) > 1:
        yield (
            f"a part at {percent(math.exp(-plan.tolerance))} or more of its siblings' rate counts as "
            "healthy; a GPU with 17 of its 18 NVLinks has 94 %"
        )
    # A GPU that becomes slower when it is hot.
    seconds = max((rung.measured for rung in report.verdict.rungs if rung.name == "gpu"), default=0.0)
    loaded = plan.tensor_seconds if ("gpu", "tensor") in measured else seconds
    if loaded and loaded < SOAK_LOAD_SECONDS and "soak" not in report.environment:
        longer = command_option("soak", f"{SOAK_LOAD_SECONDS / LOAD_SHARE / 60:.0f}m")
        yield (
            f"GPUs were loaded for {duration(loaded)}: a slowdown by heat or power that begins later is not "
            f"seen; {longer} loads them for longer"
        )


def _fit_budget(validation: Validation, probe: Probe, deadline: Deadline) -> TimeLimit:
    """Fit the plan to the time. Returns the limit of the climbs."""
    topology = topology_of(probe)
    metered = MeteredProbe(probe)
    metered.left = deadline.left
    try:
        calibrated = costs.calibrate(metered, validation.plan)
    except TimeUpError:
        raise UserError(
            "the budget is too short to find out how long measurements take",
            got=f"{deadline.seconds:.4g} s",
            hint=f"--budget {math.ceil(4 * deadline.seconds)}s, or fewer --rungs",
        ) from None
    wanted = validation.plan
    reduced, cuts = fit(wanted, deadline.left(), lambda plan: costs.estimate(plan, topology, calibrated))
    if cuts:
        validation.notes.append(cuts)
    validation.plan = replace(reduced, rungs=wanted.rungs)
    expected = costs.estimate_rungs(reduced, topology, calibrated)  # without the rungs that were dropped

    return TimeLimit(deadline, expected)


def _use_baseline(validation: Validation, report: Report, ladder: Ladder) -> Report:
    """Compare a report with earlier runs and hardware limits, and save it if it is healthy.

    A baseline that cannot be read or written does not prevent the report; the status is then unknown.
    """
    options, trouble = validation.options, ""
    rates = part_rates(ladder) if options.baseline or options.save_baseline else {}
    if options.baseline is not None:
        try:
            drifts, changed = baseline.compare(options.baseline, report, rates)
            report = replace(report, baseline=str(options.baseline), drifts=drifts, changed=changed)
        except UserError as reason:
            trouble = f"not compared with earlier runs: {reason}"
    verdict = add_fleet_alarms(report, validation.plan, best_rates(ladder))
    if trouble:
        verdict = with_not_judged(verdict, trouble)
    report = replace(report, verdict=verdict)
    if options.save_baseline is not None:
        try:
            report.environment["saved"] = baseline.save(options.save_baseline, report, rates)
        except UserError as reason:
            report = replace(report, verdict=with_not_judged(report.verdict, f"not saved: {reason}"))
    return report
