"""A report as metrics for node_exporter's textfile collector, in Prometheus' text format."""

from __future__ import annotations

import math
from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.wording import printable
from meshrun.jobs.validate.verdict import EXIT, unit_of


def text(report: Report) -> str:
    """Return the metrics. Metrics without a sample are described too, so that they can be found."""
    registry = CollectorRegistry()

    def gauge(name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, namespace="meshrun_validate", registry=registry)

    status, alarms = report.verdict.status, [one.status for one in report.verdict.alarms]
    code = gauge("status", "The verdict: 0 ok, 1 warning, 2 critical, 3 unknown.", "status")
    code.labels(status).set(EXIT[status])
    gauge("timestamp_seconds", "When the validation ended, since the epoch.").set(end_time(report))
    gauge("duration_seconds", "How long the validation took.").set(report.seconds)
    gauge("simulated", "1: a model was measured instead of machines.").set(bool(report.simulated))
    gauge("ended_early", "1: the validation ended early.").set(bool(report.ended))
    gauge("ranks", "Ranks that took part.").set(len(report.members))

    broken = gauge("rung_broken", "1: broken, 0: good; rungs that were not measured are absent.", "rung")
    per_rung = ("rung", "what")
    rates = gauge("rung_rate_bytes_per_second", "Median rate of the siblings.", *per_rung)
    products = gauge("rung_rate_flops_per_second", "Median rate of the siblings' matrix products.", *per_rung)
    for rung in report.verdict.rungs:
        if rung.result != "not measured":
            broken.labels(rung.name).set(rung.result == "broken")
        for what, rate in rung.rates.items():
            (products if unit_of(what) == "FLOP/s" else rates).labels(rung.name, what).set(rate)
    limits = gauge("rung_limit_bytes_per_second", "What the hardware allows, if known.", *per_rung)
    peaks = gauge("rung_limit_flops_per_second", "What the hardware allows a matrix product.", *per_rung)
    for limit in report.limits:
        if limit.rate is not None:
            allowed = peaks if unit_of(limit.what) == "FLOP/s" else limits
            allowed.labels(limit.rung, limit.what).set(limit.rate)

    findings = gauge("finding", "A slow part: its rate over its siblings'.", "kind", "host", "gpu", "rung")
    # The slowest last: it replaces others with the same labels. Several hosts or GPUs are joined by commas.
    for one in sorted(report.verdict.findings, key=lambda one: -one.factor):
        hosts, gpus = printable(",".join(one.hosts)), ",".join(map(str, one.gpus))
        findings.labels(one.kind, hosts, gpus, one.rung).set(one.factor)
    other = "Parts of a host that has another number of them than its siblings, or than expected."
    uneven = gauge("uneven_host_parts", other, "host", "part", "usual")
    for host in report.verdict.uneven_hosts:
        uneven.labels(printable(host.host), host.part, host.usual).set(host.count)
    wrong = "Problems other than slow parts: wrong data, error counters, a dead rank, an uneven host."
    raised = gauge("alarms", wrong, "status")
    for severity in ("warning", "critical"):
        raised.labels(severity).set(alarms.count(severity))
    return generate_latest(registry).decode()


def end_time(report: Report) -> float:
    """Return the end in seconds since the epoch; NaN if the start is not ISO 8601."""
    try:
        started = datetime.fromisoformat(report.started.replace("Z", "+00:00"))
    except ValueError:
        return math.nan
    return started.timestamp() + report.seconds
