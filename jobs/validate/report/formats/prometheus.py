"""A report as metrics for node_exporter's textfile collector, in Prometheus' text format 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime

from jobs.validate.report.model import Report
from jobs.validate.report.wording import printable
from jobs.validate.verdict import EXIT, unit_of

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, float]


def text(report: Report) -> str:
    """Whole lines. No sample comes twice: the collector would refuse the whole file."""
    return "".join(
        line for name, (said, samples) in metrics(report).items() for line in lines(name, said, samples)
    )


def lines(name: str, said: str, samples: Samples) -> Iterator[str]:
    """One metric; HELP and TYPE also where there is no sample, so that it can be found."""
    yield f"# HELP meshrun_validate_{name} {said}\n# TYPE meshrun_validate_{name} gauge\n"
    for labels, number in samples.items():
        inside = ",".join(f'{key}="{escaped(value)}"' for key, value in labels)
        yield f"meshrun_validate_{name}{f'{{{inside}}}' if inside else ''} {value_text(number)}\n"


def metrics(report: Report) -> dict[str, tuple[str, Samples]]:
    """By name: what it is, and its samples."""
    verdict = report.verdict
    rates: dict[Labels, float] = {}
    products: dict[Labels, float] = {}
    broken: dict[Labels, float] = {}
    for rung in verdict.rungs:
        if rung.result != "not measured":
            broken[(("rung", rung.name),)] = float(rung.result == "broken")
        for what, rate in rung.rates.items():
            of = products if unit_of(what) == "FLOP/s" else rates
            of[("rung", rung.name), ("what", what)] = rate
    allowed: dict[Labels, float] = {
        (("rung", one.rung), ("what", one.what)): one.rate for one in report.limits if one.rate is not None
    }
    alarms: dict[Labels, float] = {
        (("status", status),): float(sum(one.status == status for one in verdict.alarms))
        for status in ("warning", "critical")
    }
    status: Labels = (("status", verdict.status),)
    return {
        "status": (
            "The verdict: 0 ok, 1 warning, 2 critical, 3 unknown.",
            {status: float(EXIT[report.verdict.status])},
        ),
        "timestamp_seconds": ("When the validation ended, since the epoch.", {(): ended_at(report)}),
        "duration_seconds": ("How long the validation took.", {(): report.seconds}),
        "simulated": ("1: a model was measured, no machines.", {(): float(bool(report.simulated))}),
        "ended_early": ("1: the validation ended before its end.", {(): float(bool(report.ended))}),
        "ranks": ("Ranks that took part.", {(): float(len(report.members))}),
        "rung_broken": ("1: broken, 0: good; rungs that were not measured are absent.", broken),
        "rung_rate_bytes_per_second": ("Median rate of the siblings.", rates),
        "rung_rate_flops_per_second": ("Median rate of the siblings' matrix products.", products),
        "rung_limit_bytes_per_second": ("What the hardware allows, where that is known.", allowed),
        "finding": ("A slow part: its rate over its siblings'.", findings(report)),
        "alarms": ("What is wrong beside slow parts: wrong data, error counters, a dead rank.", alarms),
    }


def findings(report: Report) -> dict[Labels, float]:
    """Several hosts or GPUs of one part: joined by commas. Of equal labels, the slowest."""
    found: dict[Labels, float] = {}
    for one in report.verdict.findings:
        labels = (
            ("kind", one.kind),
            ("host", ",".join(one.hosts)),
            ("gpu", ",".join(map(str, one.gpus))),
            ("rung", one.rung),
        )
        found[labels] = min(one.factor, found.get(labels, one.factor))
    return found


def ended_at(report: Report) -> float:
    """Seconds since the epoch; NaN for a start that is no ISO 8601."""
    try:
        started = datetime.fromisoformat(report.started.replace("Z", "+00:00"))
    except ValueError:
        return math.nan
    return started.timestamp() + report.seconds


def escaped(label: str) -> str:
    """A label's value; what UTF-8 lines cannot hold is told as Python escapes it."""
    return printable(label).replace("\\", r"\\").replace('"', r"\"")


def value_text(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return repr(float(number)) if math.isfinite(number) else f"{'+' if number > 0 else '-'}Inf"
