"""A report as one HTML page that needs nothing but a browser: no network, no other file.

Its policy (CSP) lets nothing be loaded and no script run but the page's own, whatever a host is called.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from jobs.validate.report.formats import json as json_format
from jobs.validate.report.formats.html_curves import curves
from jobs.validate.report.formats.html_heat import heat_maps
from jobs.validate.report.formats.html_parts import (
    alarms,
    counters,
    drifts,
    environment,
    escape,
    findings,
    ladder,
    next_steps,
    not_judged,
)
from jobs.validate.report.model import Report
from jobs.validate.report.wording import fleet, headline, seconds

PAGE = Path(__file__).with_name("page")
SIGN = {"ok": "✓", "warning": "!", "critical": "✕", "unknown": "?"}
SECTIONS = (
    findings,
    alarms,
    next_steps,
    ladder,
    heat_maps,
    curves,
    counters,
    drifts,
    not_judged,
    environment,
)


def text(report: Report) -> str:
    """The page, in UTF-8 as it says itself."""
    status, said = report.verdict.status, headline(report)
    script = (PAGE / "heat.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": escape(f"meshrun validate: {said}"),
        "style": (PAGE / "style.css").read_text(encoding="utf-8"),
        "script": script,
        "script_hash": f"sha256-{digest}",
        "status": status,
        "sign": SIGN[status],
        "headline": escape(said.partition(": ")[2]),
        "simulated": simulated(report),
        "facts": facts(report),
        "sections": "\n".join(filter(None, (section(report) for section in SECTIONS))),
        # "<" would let a text in the data end the script element.
        "report": json_format.text(report).replace("<", "\\u003c"),
    }
    page = (PAGE / "template.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)


def simulated(report: Report) -> str:
    if not report.simulated:
        return ""
    said = f"Simulated: no real machine was measured. <code>{escape(report.simulated)}</code>"
    return f'<p class="simulated">{said}</p>'


def facts(report: Report) -> str:
    known = {
        "fleet": escape(fleet(report)),
        "started": escape(report.started),
        "took": seconds(report.seconds),
        "command": f"<code>{escape(report.command)}</code>",
    }
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in known.items())
