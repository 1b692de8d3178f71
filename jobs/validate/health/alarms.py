"""What is wrong beside slow parts, in sentences: a rank that died, wrong data, errors that counters told, and
what siblings cannot show because they have it in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from jobs.validate.plan import Plan, RungName
from jobs.validate.probe import Place, Wrong
from jobs.validate.report.model import Change, Drift, Limit, Report
from jobs.validate.verdict import SEVERITY, Alarm, Status, Unit, Verdict, unit_of

LOCAL = ("gpu", "pairs")  # rungs whose measurements nothing shares: the limit is within reach
ALONE = ("host",)  # where a host has one GPU: several share its memory, which may be slower than PCIe
FAR = 0.5  # of the limit, below which all siblings must be slow together


def alarms(
    ended: str,
    wrong: Sequence[Wrong],
    changes: Sequence[Change],
    places: Sequence[Place],
    hosts: Sequence[str],
    unit: Unit = "GPU",
) -> tuple[Alarm, ...]:
    """The worst first. ended: why the run ended before its time."""

    def name(rank: int) -> str:
        place = places[rank]
        return f"rank {rank} (host {hosts[place.host]}, {unit} {place.gpu})"

    dead = [Alarm("critical", ended)] if ended else []
    data = [Alarm("critical", wrong_data(one, name)) for one in wrong]
    told = [Alarm("warning", counted(one)) for one in changes if one.weight == "fault"]
    return (*dead, *data, *told)


def beside(report: Report, plan: Plan) -> Verdict:
    """The verdict with what earlier runs and the hardware's limits say: what siblings have in common."""
    slower = [Alarm(drift_status(one, plan), drifted(one)) for one in report.drifts if one.rate < one.usual]
    shared = max(Counter(one.host for one in report.members).values(), default=0) > 1
    within = LOCAL if shared else LOCAL + ALONE
    limits = {(one.rung, one.what): one for one in report.limits if one.rung in within and one.rate}
    gpus = any(one.kind != "cpu" for one in report.members)
    far = [
        Alarm("warning", far_below(rung.name, what, rung.rates, limits[rung.name, what]))
        for rung in report.verdict.rungs
        for what, rate in rung.rates.items()
        if gpus and (rung.name, what) in limits and rate < FAR * (limits[rung.name, what].rate or 0)
    ]
    return with_alarms(report.verdict, [*slower, *far])


def with_alarms(verdict: Verdict, more: Sequence[Alarm]) -> Verdict:
    every = sorted((*verdict.alarms, *more), key=lambda one: one.status != "critical")
    worst: Status = max((verdict.status, *(one.status for one in every)), key=SEVERITY.index)
    return replace(verdict, status=worst, alarms=tuple(every))


def unjudged(verdict: Verdict, why: str) -> Verdict:
    """The verdict where something that was asked for could not be judged, the first of what was not."""
    status: Status = max(verdict.status, "unknown", key=SEVERITY.index)
    return replace(verdict, status=status, not_judged=(why, *verdict.not_judged))


def drift_status(one: Drift, plan: Plan) -> Literal["critical", "warning"]:
    return "critical" if one.rate < plan.critical * one.usual and one.score < 0 else "warning"


def drifted(one: Drift) -> str:
    part = one.part or "the fleet"
    share = 100 * one.rate / one.usual
    return (
        f"{part}: {one.rung} {one.what} at {one.rate / 1e9:.3g} G{unit_of(one.what)}, {share:.0f} % of what "
        f"{one.runs} earlier run{'s'[: one.runs != 1]} had"
    )


def far_below(rung: RungName, what: str, rates: Mapping[str, float], limit: Limit) -> str:
    rate = rates[what]
    share = 100 * rate / (limit.rate or rate)
    copies = rates.get("copies", 0.0) if what == "flows" else 0.0
    good = f"; copies reach {copies / 1e9:.3g} GB/s, so the links are not why" if rate < FAR * copies else ""
    return (
        f"all GPUs alike: {rung} {what} at {rate / 1e9:.3g} G{unit_of(what)}, {share:.0f} % of what the "
        f"hardware allows ({limit.assumption}){good}"
    )


def wrong_data(one: Wrong, name: Callable[[int], str]) -> str:
    whence = "" if one.source is None or one.source == one.rank else f" from {name(one.source)}"
    return (
        f"{name(one.rank)}: wrong data{whence} ({one.what}, {one.nbytes:,} bytes): {one.count:,} bytes, the "
        f"first at {one.offset:,}, {one.got} instead of {one.expected}"
    )


def counted(one: Change) -> str:
    return f"host {one.host}, {one.part}: {one.counter} went from {one.before} to {one.after} ({one.meaning})"
