"""Alarms: problems other than parts slower than their siblings. Dead ranks, wrong data, increased error
counters, and slowdowns that all siblings share.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from meshrun.jobs.measure.outliers import LIMIT_SHARE, far_below_limit
from meshrun.jobs.validate.health.known_rates import on_known_path
from meshrun.jobs.validate.plan import Plan, RungName
from meshrun.jobs.validate.probe.api import RankPlace, WrongData
from meshrun.jobs.validate.report.model import Change, HardwareLimit, Member, Report
from meshrun.jobs.validate.report.wording import (
    change_sentence,
    drift_sentence,
    percent,
    rate_text,
    unit_name,
)
from meshrun.jobs.validate.verdict import SEVERITY, Alarm, Status, Unit, Verdict, unit_of

UNSHARED = ("gpu", "pairs")  # rungs whose ranks share no hardware, so each can reach its limit
SINGLE_GPU = ("host",)  # likewise if each host has one GPU; several share host memory, maybe slower than PCIe

SHOWN = 8  # names in a sentence
TCP_SHARE = 0.25  # of a network's rate, below which NCCL probably uses TCP


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


BestOfRanks = Mapping[tuple[RungName, str], Mapping[int, float]]


def add_fleet_alarms(report: Report, plan: Plan, best: BestOfRanks = MappingProxyType({})) -> Verdict:
    """Add alarms for slowdowns that siblings share: rates below earlier runs, or below what is known.

    best: each rank's best rate of a measurement. A measurement whose limit has no known share is far below it
    only under half of it, and only where ranks share no hardware.
    """
    slower = [
        Alarm("critical" if one.rate < plan.critical * one.usual and one.score < 0 else "warning", sentence)
        for one, sentence in zip(report.drifts, map(drift_sentence, report.drifts), strict=True)
        if one.rate < one.usual
    ]
    gpus = any(one.kind != "cpu" for one in report.members)
    limits = {
        (one.rung, one.what): one for one in report.limits if one.rate and is_reachable(one, report.members)
    }
    far = []
    for rung in report.verdict.rungs:
        for what, rate in rung.rates.items():
            if not gpus or (limit := limits.get((rung.name, what))) is None:
                continue
            ranks = best.get((rung.name, what), {})
            if limit.least is not None and ranks:
                far += below_known(report, limit, rung.rates, ranks)
            elif rate < (limit.least or LIMIT_SHARE) * (limit.rate or 0.0):
                far.append(
                    Alarm(
                        "warning" if limit.least is None else gravity(rate, limit),
                        far_below(rung.name, what, rung.rates, limit),
                    )
                )
    return with_alarms(report.verdict, [*slower, *far])


def least_rates(
    limits: Sequence[HardwareLimit], members: Sequence[Member]
) -> dict[tuple[RungName, str], float]:
    """Return the rates that healthy GPUs reach at least, by rung and measurement, where known."""
    if all(one.kind == "cpu" for one in members):
        return {}
    return {
        (one.rung, one.what): one.least * one.rate
        for one in limits
        if one.rate and one.least is not None and is_reachable(one, members)
    }


def is_reachable(limit: HardwareLimit, members: Sequence[Member]) -> bool:
    """Whether each rank can reach this limit while the others measure, too."""
    if limit.rung in SINGLE_GPU:
        return max(Counter(one.host for one in members).values(), default=0) == 1
    return limit.least is not None or (limit.rung in UNSHARED and on_known_path(limit))


def gravity(rate: float, limit: HardwareLimit) -> Literal["critical", "warning"]:
    return "critical" if far_below_limit(rate, limit.rate or 0.0) else "warning"


def below_known(
    report: Report, limit: HardwareLimit, rates: Mapping[str, float], best: Mapping[int, float]
) -> list[Alarm]:
    """Return an alarm for ranks that never reach the known share of a limit, unless findings explain them."""
    assert limit.rate is not None
    assert limit.least is not None
    explained = {rank for one in report.verdict.findings for rank in one.ranks}
    slow = {rank: rate for rank, rate in best.items() if rate < limit.least * limit.rate}
    if not slow.keys() - explained:
        return []
    rate = statistics.median(slow.values())
    if len(slow) == len(best):
        alike = {limit.what: rate} | {what: other for what, other in rates.items() if what != limit.what}
        sentence = far_below(limit.rung, limit.what, alike, limit)
    else:
        hosts = dict.fromkeys(member.host for member in report.members if member.rank in slow)
        shown = ", ".join(list(hosts)[:SHOWN]) + (", ..." if len(hosts) > SHOWN else "")
        on, reach = "host" if len(hosts) == 1 else "hosts", "reaches" if len(slow) == 1 else "reach"
        what, unit = f"{limit.rung} {limit.what}", unit_of(limit.what)
        sentence = (
            f"{len(slow)} of {len(best)} GPUs ({on} {shown}) {reach} {percent(rate / limit.rate)} of what "
            f"the hardware allows at best: {what} at {rate_text(rate, unit)} {unit_name(unit)} "
            f"({limit.assumption}); {percent(limit.least)} is usual at least"
        )
    return [Alarm(gravity(rate, limit), sentence)]


def with_alarms(verdict: Verdict, more: Sequence[Alarm]) -> Verdict:
    """Add alarms; the status becomes at least as severe as the worst of them."""
    every = worst_first((*verdict.alarms, *more))
    worst: Status = max((verdict.status, *(one.status for one in every)), key=SEVERITY.index)
    return replace(verdict, status=worst, alarms=every)


def worst_first(every: Iterable[Alarm]) -> tuple[Alarm, ...]:
    return tuple(sorted(every, key=lambda one: one.status != "critical"))


def with_not_judged(verdict: Verdict, why: str) -> Verdict:
    """Add a sentence on what could not be judged, as the first; the status is at least unknown."""
    status: Status = max(verdict.status, "unknown", key=SEVERITY.index)
    return replace(verdict, status=status, not_judged=(why, *verdict.not_judged))


def far_below(rung: RungName, what: str, rates: Mapping[str, float], limit: HardwareLimit) -> str:
    rate, unit = rates[what], unit_of(what)
    copies = rates.get("copies", 0.0) if what == "flows" else 0.0
    good = f"; copies reach {copies / 1e9:.3g} GB/s, so the links are not the cause"
    tcp = rung == "host pairs" and rates[what] < TCP_SHARE * (limit.rate or 0.0)
    socket = "; does NCCL use TCP instead of RDMA? NCCL_DEBUG=INFO names the network it uses" if tcp else ""
    return (
        f"all GPUs alike: {rung} {what} at {rate_text(rate, unit)} {unit_name(unit)}, "
        f"{percent(rate / (limit.rate or rate))} of what the hardware allows ({limit.assumption})"
        f"{good if far_below_limit(rate, copies) else ''}{socket}"
    )


def wrong_data_sentence(one: WrongData, name: Callable[[int], str]) -> str:
    origin = "" if one.source is None or one.source == one.rank else f" from {name(one.source)}"
    return (
        f"{name(one.rank)}: wrong data{origin} ({one.what}, {one.nbytes:,} bytes): {one.count:,} "
        f"byte{'s'[: one.count != 1]}, the "
        f"first at {one.offset:,}, {one.got} instead of {one.expected}"
    )
