"""A report for Nagios and compatible monitors: one line with performance data.

As in the Monitoring Plugins' guidelines: 'label'=value;warn;crit;min;max, U for an unknown value.
"""

from __future__ import annotations

import math

from meshrun.jobs.validate.plan import RUNGS, RungName
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.wording import headline, limits_by_measurement

# Measurements of each rung. Every run has the same labels, because graphs are stored by label.
MEASURED: dict[RungName, tuple[str, ...]] = {
    "gpu": ("memory", "product", "tensor"),
    "host": ("to_device", "to_host"),
    "pairs": ("copies", "flows"),
    "node": ("ring",),
    "host pairs": ("flows",),
    "rails": ("ring",),
    "all": ("ring",),
}


def text(report: Report) -> str:
    """Return one line. Rates are B/s, or FLOP/s for products, without a unit: the guidelines have none."""
    summary = headline(report).partition(": ")[2].replace("|", "/")
    return f"MESHRUN {report.verdict.status.upper()} - {summary} | {performance(report)}\n"


def performance(report: Report) -> str:
    verdict, allowed = report.verdict, limits_by_measurement(report)
    values = [
        f"findings={len(verdict.findings)};0;;0;",
        f"alarms={len(verdict.alarms)};0;;0;",
        f"time={value(report.seconds)}{'s' * math.isfinite(report.seconds)};;;0;",
    ]
    rates = {one.name: one.rates for one in verdict.rungs}
    for rung in RUNGS:
        for what in MEASURED[rung]:
            limit = allowed.get((rung, what))
            most = value(limit.rate) if limit and limit.rate else ""
            rate = value(rates.get(rung, {}).get(what, math.nan))
            values.append(f"'{rung} {what}'={rate};;;0;{most.strip('U')}")
    return " ".join(values)


def value(number: float) -> str:
    """Format with digits and a point, as the guidelines require; U if unknown."""
    return f"{number:.9f}".rstrip("0").rstrip(".") if math.isfinite(number) else "U"
