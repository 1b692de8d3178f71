"""Alarms: problems other than parts slower than their siblings. Dead ranks, wrong data, increased error
counters, and slowdowns that all siblings share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jobs.measure.outliers import far_below_limit
from jobs.validate.plan import Plan, RungName
from jobs.validate.probe.api import RankPlace, WrongData
from jobs.validate.report.model import Change, HardwareLimit, Report
from jobs.validate.report.wording import change_sentence, drift_sentence, percent, rate_text, unit_name
from jobs.validate.verdict import SEVERITY, Alarm, Status, Unit, Verdict, unit_of

UNSHARED = ("gpu", "pairs")  # rungs whose ranks share no hardware, so each can reach its limit
SINGLE_GPU = ("host",)  # likewise if each host has one GPU; several share host memory, maybe slower than PCIe


def alarms(
    ended: str,
    wrong: Sequence[WrongData],
    changes: Sequence[Change],
    places: Sequence[RankPlace],
    hosts: Sequence[str],
    unit: Unit = "GPU",
) -> tuple[Alarm, ...]:
    """Return the alarms of a climb, worst first. ended: why the run ended early, or ""."""

    def name(rank: int) -> str:
        place = places[rank]
        return f"rank {rank} (host {hosts[place.host]}, {unit} {place.gpu})"

    dead = [Alarm("critical", ended)] if ended else []
    data = [Alarm("critical", wrong_data_sentence(one, name)) for one in wrong]
    faults = [
        Alarm("warning", f"{change_sentence(one)} ({one.meaning})")
        for one in changes
        if one.weight == "fault"
    ]
    return (*dead, *data, *faults)


def add_fleet_alarms(report: Report, plan: Plan) -> Verdict:
    """Add alarms for slowdowns that all siblings share: rates below earlier runs, or far below limits."""
    slower = [
        Alarm("critical" if one.rate < plan.critical * one.usual and one.score < 0 else "warning", sentence)
        for one, sentence in zip(report.drifts, map(drift_sentence, report.drifts), strict=True)
        if one.rate < one.usual
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
    """Add alarms; the status becomes at least as severe as the worst of them."""
    every = sorted((*verdict.alarms, *more), key=lambda one: one.status != "critical")
    worst: Status = max((verdict.status, *(one.status for one in every)), key=SEVERITY.index)
    return replace(verdict, status=worst, alarms=tuple(every))


def with_not_judged(verdict: Verdict, why: str) -> Verdict:
    """Add a sentence on what could not be judged, as the first; the status is at least unknown."""
    status: Status = max(verdict.status, "unknown", key=SEVERITY.index)
    return replace(verdict, status=status, not_judged=(why, *verdict.not_judged))


def far_below(rung: RungName, what: str, rates: Mapping[str, float], limit: HardwareLimit) -> str:
    rate, unit = rates[what], unit_of(what)
    copies = rates.get("copies", 0.0) if what == "flows" else 0.0
    good = f"; copies reach {copies / 1e9:.3g} GB/s, so the links are not the cause"
    return (
        f"all GPUs alike: {rung} {what} at {rate_text(rate, unit)} {unit_name(unit)}, "
        f"{percent(rate / (limit.rate or rate))} of what the hardware allows ({limit.assumption})"
        f"{good if far_below_limit(rate, copies) else ''}"
    )


def wrong_data_sentence(one: WrongData, name: Callable[[int], str]) -> str:
    origin = "" if one.source is None or one.source == one.rank else f" from {name(one.source)}"
    return (
        f"{name(one.rank)}: wrong data{origin} ({one.what}, {one.nbytes:,} bytes): {one.count:,} bytes, the "
        f"first at {one.offset:,}, {one.got} instead of {one.expected}"
    )
