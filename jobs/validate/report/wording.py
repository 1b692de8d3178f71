"""Figures, names and the first line, which every way of telling a report shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from jobs.validate.plan import RUNGS, RungName
from jobs.validate.report.model import Change, Drift, Limit, Member, Report
from jobs.validate.verdict import Finding, RateUnit, unit_of

MOST = 20  # lines of one kind; how many more there are is said


def plain(text: str) -> str:
    """On one line and printable: what is neither (line ends, terminal escapes, half a surrogate) as Python
    escapes it.
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in str(text)
    )


def gbps(rate: float | None) -> str:
    """GB/s (1e9 bytes) with three digits; "-" for what is not known."""
    return digits(rate, 1e9)


def figure(rate: float | None, unit: RateUnit) -> str:
    """As a table has it, in `unit_name(unit)`."""
    return digits(rate, 1e12 if unit == "FLOP/s" else 1e9)


def unit_name(unit: RateUnit) -> str:
    """Of tables: GB/s (1e9 bytes a second), of products TFLOP/s (1e12 floating-point operations a second)."""
    return "TFLOP/s" if unit == "FLOP/s" else "GB/s"


def digits(rate: float | None, scale: float) -> str:
    if rate is None or not math.isfinite(rate):
        return "-"
    value = rate / scale
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def seconds(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f} s" if value >= 99.5 else f"{value:.1f} s"


def size(count: int) -> str:
    """Bytes, by powers of 1024 as measurements are."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.3g} {unit}"
    return f"{count} B"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def number(value: float | str) -> str:
    """A counter's value: whole numbers without a point."""
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if math.isfinite(value) and value == int(value) else f"{value:g}"


def name(one: Finding | Drift) -> str:
    """Host, GPU and part, as names stand in a table."""
    return one.part.rstrip(":") or "the fleet"


def member(report: Report, rank: int) -> Member | None:
    return next((one for one in report.members if one.rank == rank), None)


def rank_name(report: Report, rank: int) -> str:
    one = member(report, rank)
    if one is None:
        return f"rank {rank}"
    return f"rank {rank} (host {one.host}, {'CPU' if on_cpu(one) else 'GPU'} {one.gpu})"


def on_cpu(one: Member) -> bool:
    return one.kind == "cpu"


def fleet(report: Report) -> str:
    """How many ranks on how many hosts, and of what."""
    if not report.members:
        return "no rank"
    hosts = len({one.host for one in report.members})
    text = f"{counted(len(report.members), 'rank')} on {counted(hosts, 'host')}"
    kinds = Counter(one.device for one in report.members if one.device).most_common()
    if len(kinds) > 1:
        kinds_text = ", ".join(f"{count} x {device}" for device, count in kinds[:3])
        return f"{text}, {kinds_text}{', ...' if len(kinds) > 3 else ''}"
    return f"{text}, {kinds[0][0]}" if kinds else text


def limits(report: Report) -> dict[tuple[RungName, str], Limit]:
    return {(one.rung, one.what): one for one in report.limits}


def assumptions(report: Report) -> list[str]:
    """What the limits of the rungs that were measured assume, and why there is none for others."""
    measured = {(rung.name, what) for rung in report.verdict.rungs for what in rung.rates}
    told = [one for one in report.limits if (one.rung, one.what) in measured]
    known = [f"limit of {one.rung}, {one.what}: {one.assumption}" for one in told if one.rate is not None]
    missing: dict[str, list[str]] = {}
    for one in told:
        if one.rate is None:
            missing.setdefault(one.assumption, []).append(f"{one.rung} {one.what}")
    return [*known, *(f"no limit of {', '.join(some)}: {why}" for why, some in missing.items())]


def share(rate: float, limit: Limit | None) -> float | None:
    """Of what the hardware allows; None where that is not known."""
    return rate / limit.rate if limit is not None and limit.rate else None


def change(one: Change) -> str:
    return f"host {one.host}, {one.part}: {one.counter} {number(one.before)} -> {number(one.after)}"


def drift(one: Drift) -> str:
    """A measurement against earlier runs in one sentence."""
    unit = unit_of(one.what)
    side = "below" if one.score < 0 else "above"
    ratio = one.rate / one.usual if one.usual else math.nan
    return (
        f"{name(one)}: {one.rung} {one.what} at {percent(ratio)} of {counted(one.runs, 'earlier run')} "
        f"({figure(one.rate, unit)} of {figure(one.usual, unit)} {unit_name(unit)}, "
        f"{abs(one.score):.1f} deviations {side})"
    )


def headline(report: Report) -> str:
    """The verdict and its first reason in one line; a run that ended early says so first."""
    verdict, ended = report.verdict, report.ended
    if verdict.status == "ok" and not ended:
        measured = sum(one.result != "not measured" for one in verdict.rungs)
        judged = "no slow part found" if len(report.members) > 1 else "nothing to compare it with"
        return plain(f"OK: {fleet(report)}; {measured} of {len(RUNGS)} rungs measured, {judged}")
    _, _, reason = verdict.line.partition(": ")
    told = [ended] if ended and ended not in reason else []
    told += [reason] if reason else []
    return plain(f"{verdict.status.upper()}: {'; '.join(told) or 'no reason was recorded'}")


def rest(items: Sequence[object], shown: int = MOST) -> str:
    """How many are not shown; "" when all are."""
    return f"... and {len(items) - shown} more" if len(items) > shown else ""
