"""A report for Nagios and what speaks its language: one line, performance data, an exit code.

As in the Monitoring Plugins' guidelines: 'label'=value;warn;crit;min;max, U for a value that is not known.
"""

from __future__ import annotations

import math

from jobs.validate.plan import RUNGS, RungName
from jobs.validate.report.model import Report
from jobs.validate.report.wording import headline, limits
from jobs.validate.verdict import EXIT

# What each rung measures. Every run has the same labels: graphs are kept by them.
MEASURED: dict[RungName, tuple[str, ...]] = {
    "gpu": ("memory", "product"),
    "host": ("to_device", "to_host"),
    "pairs": ("copies", "flows"),
    "node": ("ring",),
    "host pairs": ("flows",),
    "rails": ("ring",),
    "all": ("ring",),
}


def exit_code(report: Report) -> int:
    """0 ok, 1 warning, 2 critical, 3 unknown."""
    return EXIT[report.verdict.status]


def text(report: Report) -> str:
    """One line. Rates are B/s, of products FLOP/s, without a unit: the guidelines have none for rates."""
    said = headline(report).partition(": ")[2].replace("|", "/")
    return f"MESHRUN {report.verdict.status.upper()} - {said} | {performance(report)}\n"


def performance(report: Report) -> str:
    verdict, allowed = report.verdict, limits(report)
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
    """A number as the guidelines have it, digits and a point; U: not known."""
    return f"{number:.9f}".rstrip("0").rstrip(".") if math.isfinite(number) else "U"
