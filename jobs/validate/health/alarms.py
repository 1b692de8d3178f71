"""Alarms: what is wrong besides slow parts. A rank that died, wrong data, error counters that increased, and
what no comparison of siblings shows because they have it in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from jobs.measure.outliers import far_below_limit
from jobs.validate.plan import Plan, RungName
from jobs.validate.probe.api import RankPlace, WrongData
from jobs.validate.report.model import Change, Drift, HardwareLimit, Report
from jobs.validate.report.wording import change_sentence, drift_sentence, percent, rate_text, unit_name
from jobs.validate.verdict import SEVERITY, Alarm, Status, Unit, Verdict, unit_of

UNSHARED = ("gpu", "pairs")  # rungs whose ranks share no hardware, so that each can reach its limit
SINGLE_GPU = ("host",)  # likewise where a host has one GPU: several share its memory, maybe slower than PCIe


def alarms(
    ended: str,
    wrong: Sequence[WrongData],
    changes: Sequence[Change],
    places: Sequence[RankPlace],
    hosts: Sequence[str],
    unit: Unit = "GPU",
) -> tuple[Alarm, ...]:
    """The worst first. ended: why the run ended early; "": it did not."""

    def name(rank: int) -> str:
        place = places[rank]
        return f"rank {rank} (host {hosts[place.host]}, {unit} {place.gpu})"

    dead = [Alarm("critical", ended)] if ended else []
    data = [Alarm("critical", wrong_data(one, name)) for one in wrong]
    faults = [
        Alarm("warning", f"{change_sentence(one)} ({one.meaning})")
        for one in changes
        if one.weight == "fault"
    ]
    return (*dead, *data, *faults)


def add_fleet_alarms(report: Report, plan: Plan) -> Verdict:
    """The verdict with alarms for what siblings cannot show, since all have it: rates below those of earlier
    runs, or far below the hardware's limits.
    """
    slower = [
        Alarm(drift_status(one, plan), drift_sentence(one)) for one in report.drifts if one.rate < one.usual
    ]
    shared = max(Counter(one.host for one in report.members).values(), default=0) > 1
    within = UNSHARED if shared else UNSHARED + SINGLE_GPU
    limits = {(one.rung, one.what): one for one in report.limits if one.rung in within and one.rate}
    gpus = any(one.kind != "cpu" for one in report.members)
    far = [
        Alarm("warning", far_below(rung.name, what, rung.rates, limits[rung.name, what]))
        for rung in report.verdict.rungs
        for what, rate in rung.rates.items()
        if gpus and (rung.name, what) in limits and far_below_limit(rate, limits[rung.name, what].rate or 0)
    ]
    return with_alarms(report.verdict, [*slower, *far])


def with_alarms(verdict: Verdict, more: Sequence[Alarm]) -> Verdict:
    every = sorted((*verdict.alarms, *more), key=lambda one: one.status != "critical")
    worst: Status = max((verdict.status, *(one.status for one in every)), key=SEVERITY.index)
    return replace(verdict, status=worst, alarms=tuple(every))


def with_not_judged(verdict: Verdict, why: str) -> Verdict:
    """The verdict with one more thing that could not be judged, as the first of them: unknown at least."""
    status: Status = max(verdict.status, "unknown", key=SEVERITY.index)
    return replace(verdict, status=status, not_judged=(why, *verdict.not_judged))


def drift_status(one: Drift, plan: Plan) -> Literal["critical", "warning"]:
    return "critical" if one.rate < plan.critical * one.usual and one.score < 0 else "warning"


def far_below(rung: RungName, what: str, rates: Mapping[str, float], limit: HardwareLimit) -> str:
    rate, unit = rates[what], unit_of(what)
    copies = rates.get("copies", 0.0) if what == "flows" else 0.0
    good = f"; copies reach {copies / 1e9:.3g} GB/s, so the links are not the cause"
    return (
        f"all GPUs alike: {rung} {what} at {rate_text(rate, unit)} {unit_name(unit)}, "
        f"{percent(rate / (limit.rate or rate))} of what the hardware allows ({limit.assumption})"
        f"{good if far_below_limit(rate, copies) else ''}"
    )


def wrong_data(one: WrongData, name: Callable[[int], str]) -> str:
    origin = "" if one.source is None or one.source == one.rank else f" from {name(one.source)}"
    return (
        f"{name(one.rank)}: wrong data{origin} ({one.what}, {one.nbytes:,} bytes): {one.count:,} bytes, the "
        f"first at {one.offset:,}, {one.got} instead of {one.expected}"
    )
