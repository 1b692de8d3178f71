"""A report as metrics for node_exporter's textfile collector, in Prometheus' text format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from jobs.validate.report.model import Report
from jobs.validate.report.wording import printable
from jobs.validate.verdict import EXIT, unit_of

Sample = tuple[tuple[str, ...], float]  # the values of the labels, and of the metric


def text(report: Report) -> str:
    """Whole lines."""
    registry = CollectorRegistry()
    registry.register(Metrics(report))
    return generate_latest(registry).decode()


@dataclass(frozen=True, eq=False)
class Metrics(Collector):
    """The metrics of a report. Even those without a sample are described, so that they can be found."""

    report: Report

    def collect(self) -> Iterator[GaugeMetricFamily]:
        report, verdict = self.report, self.report.verdict
        status, alarms = verdict.status, [one.status for one in verdict.alarms]
        yield gauge(
            "status",
            "The verdict: 0 ok, 1 warning, 2 critical, 3 unknown.",
            ("status",),
            [((status,), EXIT[status])],
        )
        yield single("timestamp_seconds", "When the validation ended, since the epoch.", end_time(report))
        yield single("duration_seconds", "How long the validation took.", report.seconds)
        yield single("simulated", "1: a model was measured, no machines.", bool(report.simulated))
        yield single("ended_early", "1: the validation ended before its end.", bool(report.ended))
        yield single("ranks", "Ranks that took part.", len(report.members))
        yield gauge(
            "rung_broken",
            "1: broken, 0: good; rungs that were not measured are absent.",
            ("rung",),
            [((one.name,), one.result == "broken") for one in verdict.rungs if one.result != "not measured"],
        )
        rates = [(rung.name, what, rate) for rung in verdict.rungs for what, rate in rung.rates.items()]
        yield gauge(
            "rung_rate_bytes_per_second",
            "Median rate of the siblings.",
            ("rung", "what"),
            [((rung, what), rate) for rung, what, rate in rates if unit_of(what) == "B/s"],
        )
        yield gauge(
            "rung_rate_flops_per_second",
            "Median rate of the siblings' matrix products.",
            ("rung", "what"),
            [((rung, what), rate) for rung, what, rate in rates if unit_of(what) == "FLOP/s"],
        )
        yield gauge(
            "rung_limit_bytes_per_second",
            "What the hardware allows, where that is known.",
            ("rung", "what"),
            [((one.rung, one.what), one.rate) for one in report.limits if one.rate is not None],
        )
        yield gauge(
            "finding",
            "A slow part: its rate over its siblings'.",
            ("kind", "host", "gpu", "rung"),
            [
                ((one.kind, ",".join(one.hosts), ",".join(map(str, one.gpus)), one.rung), one.factor)
                for one in verdict.findings
            ],
        )
        yield gauge(
            "alarms",
            "What is wrong beside slow parts: wrong data, error counters, a dead rank.",
            ("status",),
            [((one,), alarms.count(one)) for one in ("warning", "critical")],
        )


def single(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return gauge(name, meaning, (), [((), value)])


def gauge(name: str, meaning: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> GaugeMetricFamily:
    """Of samples with the same labels, the lowest: for a duplicate the collector rejects the whole file."""
    lowest: dict[tuple[str, ...], float] = {}
    for texts, number in samples:
        values = tuple(map(printable, texts))
        lowest[values] = min(number, lowest.get(values, number))
    family = GaugeMetricFamily(f"meshrun_validate_{name}", meaning, labels=labels)
    for values, number in lowest.items():
        family.add_metric(values, number)
    return family


def end_time(report: Report) -> float:
    """Seconds since the epoch; NaN where the start is not ISO 8601."""
    try:
        started = datetime.fromisoformat(report.started.replace("Z", "+00:00"))
    except ValueError:
        return math.nan
    return started.timestamp() + report.seconds
