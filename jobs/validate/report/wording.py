"""Figures, names and sentences that all formats of a report share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshrun.jobs.validate.plan import RUNGS, RungName
from meshrun.jobs.validate.probe.api import LoadReadings
from meshrun.jobs.validate.report.model import Change, Drift, HardwareLimit, Member, Report
from meshrun.jobs.validate.verdict import Finding, RateUnit, RungResult, Verdict, unit_of
from meshrun.runner.report.units import counted

MOST = 20  # items of one kind that are shown


def printable(text: str) -> str:
    """Return the text on one line, with unprintable characters (line ends, terminal escapes, lone surrogates)
    escaped as in Python.
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in str(text)
    )


def rate_text(rate: float | None, unit: RateUnit) -> str:
    """Format a rate with three digits in `unit_name(unit)`; "-" if unknown."""
    if rate is None or not math.isfinite(rate):
        return "-"
    value = rate / (1e12 if unit == "FLOP/s" else 1e9)
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def gbps(rate: float | None) -> str:
    """Format a rate in GB/s (1e9 bytes a second)."""
    return rate_text(rate, "B/s")


def unit_name(unit: RateUnit) -> str:
    """Return the unit in tables: GB/s (1e9 B/s), for products TFLOP/s (1e12 FLOP/s)."""
    return "TFLOP/s" if unit == "FLOP/s" else "GB/s"


def percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    return f"{seconds:.0f} s" if seconds >= 99.5 else f"{seconds:.1f} s"


def byte_size(nbytes: int) -> str:
    """Format a size in powers of 1024."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.3g} {unit}"
    return f"{nbytes} B"


def counter_value(value: float | str) -> str:
    """Format a counter; integers without a decimal point."""
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if math.isfinite(value) and value == int(value) else f"{value:g}"


def not_shown(items: Sequence[object], shown: int = MOST) -> str:
    """State how many items are not shown; "" if all are."""
    return f"... and {len(items) - shown} more" if len(items) > shown else ""


# Names.


def part_name(one: Finding | Drift) -> str:
    """Return host, GPU and part as shown in tables."""
    return one.part.rstrip(":") or "the fleet"


def find_member(report: Report, rank: int) -> Member | None:
    return next((one for one in report.members if one.rank == rank), None)


OF_NICS = ("nic", "send", "receive", "flap", "stall")


def with_devices(verdict: Verdict, members: Sequence[Member]) -> Verdict:
    """Return the verdict with the GPUs of each finding by PCI bus id (UUID without one), and its NIC's ports.

    GPU numbers are those of nvidia-smi, which others than the driver count differently.
    """

    def devices(one: Finding) -> tuple[str, ...]:
        if one.kind in ("rail", "leaf", "path"):  # gpus: the rail's number
            return ()
        own = [each for each in members if each.host in one.hosts and each.gpu in one.gpus]
        known = [(each.gpu, each.bus_id or each.uuid) for each in own]
        found = [f"GPU {gpu} is {device}" for gpu, device in known if device]
        nics = dict.fromkeys(each.nic for each in own if each.nic) if one.kind in OF_NICS else ()
        return (*found, *(f"NIC: {nic}" for nic in nics))

    found = tuple(replace(one, devices=devices(one)) for one in verdict.findings)
    return replace(verdict, findings=found)


def rank_name(report: Report, rank: int) -> str:
    one = find_member(report, rank)
    if one is None:
        return f"rank {rank}"
    return f"rank {rank} (host {one.host}, {'CPU' if one.kind == 'cpu' else 'GPU'} {one.gpu})"


def fleet(report: Report) -> str:
    """Summarize the numbers of ranks and hosts, and the devices."""
    if not report.members:
        return "no rank"
    hosts = len({one.host for one in report.members})
    text = f"{counted(len(report.members), 'rank')} on {counted(hosts, 'host')}"
    devices = Counter(one.device for one in report.members if one.device).most_common()
    if len(devices) > 1:
        counts = ", ".join(f"{count} x {device}" for device, count in devices[:3])
        return f"{text}, {counts}{', ...' if len(devices) > 3 else ''}"
    return f"{text}, {devices[0][0]}" if devices else text


# Rates of the ladder, beside their limits.


@dataclass(frozen=True)
class RateRow:
    """One rate of a rung as shown in tables. share: of the limit; None without a limit."""

    what: str
    rate: str
    limit: str
    unit: str
    share: float | None


def rates(report: Report, rung: RungResult) -> list[RateRow]:
    known = limits_by_measurement(report)
    rows = []
    for what, rate in rung.rates.items():
        unit, limit = unit_of(what), known.get((rung.name, what))
        allowed = limit.rate if limit else None
        share = rate / allowed if allowed else None
        rows.append(RateRow(what, rate_text(rate, unit), rate_text(allowed, unit), unit_name(unit), share))
    return rows


def limits_by_measurement(report: Report) -> dict[tuple[RungName, str], HardwareLimit]:
    """Return the limits by rung and measurement."""
    return {(one.rung, one.what): one for one in report.limits}


def assumptions(report: Report) -> list[str]:
    """State the assumptions of the limits of measured rungs, and why others have no limit."""
    measured = {(rung.name, what) for rung in report.verdict.rungs for what in rung.rates}
    relevant = [one for one in report.limits if (one.rung, one.what) in measured]
    known = [f"limit of {one.rung}, {one.what}: {one.assumption}" for one in relevant if one.rate is not None]
    missing: dict[str, list[str]] = {}
    for one in relevant:
        if one.rate is None:
            missing.setdefault(one.assumption, []).append(f"{one.rung} {one.what}")
    return [*known, *(f"no limit of {', '.join(some)}: {why}" for why, some in missing.items())]


# Readings beside a load.

LOAD_COLUMNS = ("power W", "highest", "SM clock MHz", "lowest", "highest C", "memory C")


def load_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the GPU, and a cell for each of LOAD_COLUMNS, of each rank; the lowest clocks first."""

    members = {one.rank: one for one in report.members}

    def cells(one: LoadReadings) -> tuple[str, ...]:
        member = members.get(one.rank)
        name = f"{member.host}, GPU {member.gpu}" if member else f"rank {one.rank}"
        power, clock = (one.power, one.highest_power), (one.clock, one.lowest_clock)
        figures = (*power, *clock, one.highest_temperature, one.highest_memory_temperature)
        return (name, *("-" if figure is None else f"{figure:.0f}" for figure in figures))

    order = sorted(report.loads, key=lambda one: (one.clock or math.inf, one.rank))
    return [cells(one) for one in order]


# Sentences.


def headline(report: Report) -> str:
    """Return the verdict and its first reason in one line; an early end is the first reason."""
    verdict, ended = report.verdict, report.ended
    if verdict.status == "ok" and not ended:
        measured = sum(one.result != "not measured" for one in verdict.rungs)
        judged = "no slow part found" if len(report.members) > 1 else "nothing to compare it with"
        return printable(f"OK: {fleet(report)}; {measured} of {len(RUNGS)} rungs measured, {judged}")
    _, _, reason = verdict.line.partition(": ")
    reasons = [ended] if ended and ended not in reason else []
    reasons += [reason] if reason else []
    return printable(f"{verdict.status.upper()}: {'; '.join(reasons) or 'no reason was recorded'}")


def change_sentence(one: Change) -> str:
    before, after = counter_value(one.before), counter_value(one.after)
    return f"host {one.host}, {one.part}: {one.counter} {before} -> {after}"


def comparison(report: Report) -> list[str]:
    """Describe how the run differs from the baseline: rates, then environment."""
    return [*map(drift_sentence, report.drifts), *(f"changed: {one}" for one in report.changed)]


def drift_sentence(one: Drift) -> str:
    unit = unit_of(one.what)
    ratio = one.rate / one.usual if one.usual else math.nan
    score = f"{abs(one.score):.1f} deviations {'below' if one.score < 0 else 'above'}"
    if math.isnan(one.score):
        score = "too few for a deviation"
    return (
        f"{part_name(one)}: {one.rung} {one.what} at {percent(ratio)} of {counted(one.runs, 'earlier run')} "
        f"({rate_text(one.rate, unit)} of {rate_text(one.usual, unit)} {unit_name(unit)}, "
        f"{score})"
    )


def nccl_sentences(report: Report) -> list[str]:
    """Return what NCCL's diagnostics have found; a sentence if it is nothing."""
    if report.nccl is None:
        return []
    kinds = dict.fromkeys(sentence.partition(":")[0] for sentence in report.nccl.passed)
    return [*report.nccl.found] or [f"passed: {', '.join(kinds)}"]
