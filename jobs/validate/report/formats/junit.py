"""A report as JUnit XML: a suite with a test case for each rung, one for the alarms, one for the verdict.

A test case has at most one outcome, as every reader's schema allows: failure (a part is slow), error (a
figure is missing) or skipped (not measured). The suite fails unless the verdict is ok.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree

from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.wording import fleet, headline, printable, rates
from meshrun.jobs.validate.verdict import RungResult

CLASS = "meshrun.validate"


def text(report: Report) -> str:
    """Return an XML document in UTF-8, with its declaration."""
    cases = [rung_case(report, one) for one in report.verdict.rungs]
    cases += [alarm_case(report), verdict_case(report)]
    suite = ElementTree.Element("testsuite", {"name": CLASS, **totals(cases), **when(report)})
    properties = ElementTree.SubElement(suite, "properties")
    known = {"command": report.command, "fleet": fleet(report), "simulated": report.simulated}
    for key, value in {**known, **report.environment}.items():
        attributes = {"name": printable(key), "value": printable(str(value))}
        ElementTree.SubElement(properties, "property", attributes)
    suite.extend(cases)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def when(report: Report) -> dict[str, str]:
    host = printable(report.members[0].host) if report.members else ""
    # The schema's ISO 8601 has no time zone; started is UTC.
    stamp = printable(report.started).removesuffix("Z").removesuffix("+00:00")
    return {"time": time(report.seconds), "timestamp": stamp, "hostname": host}


def totals(cases: Sequence[ElementTree.Element]) -> dict[str, str]:
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {key: sum(case.find(tag) is not None for case in cases) for key, tag in kinds.items()}
    return {"tests": str(len(cases)), **{key: str(count) for key, count in counts.items()}}


def rung_case(report: Report, one: RungResult) -> ElementTree.Element:
    """Return the test case of a rung; a slow part fails it even if it is only a warning."""
    case = new_case(one.name, one.measured)
    slow = [found.sentence for found in report.verdict.findings if found.rung == one.name]
    if one.result == "not measured":
        ElementTree.SubElement(case, "skipped", {"message": printable(one.why)})
    elif slow or one.result == "broken":
        outcome(case, "failure", "slow" if slow else "broken", slow or ["broken: see the alarms"])
    elif not one.rates or not all(map(math.isfinite, one.rates.values())):
        outcome(case, "error", "unknown", ["some of its figures are missing"])
    if one.rates:
        lines = [f"{row.what}: {row.rate} {row.unit}" for row in rates(report, one)]
        ElementTree.SubElement(case, "system-out").text = printable("; ".join(lines))
    return case


def alarm_case(report: Report) -> ElementTree.Element:
    case = new_case("alarms", 0.0)
    raised = report.verdict.alarms
    if raised:
        outcome(case, "failure", "alarm", [f"{one.status}: {one.sentence}" for one in raised])
    return case


def verdict_case(report: Report) -> ElementTree.Element:
    case = new_case("verdict", 0.0)
    status = report.verdict.status
    if status == "unknown" or report.ended:
        outcome(case, "error", status, [headline(report), *report.verdict.not_judged])
    elif status != "ok":
        outcome(case, "failure", status, [headline(report)])
    return case


def new_case(name: str, seconds: float) -> ElementTree.Element:
    return ElementTree.Element("testcase", {"classname": CLASS, "name": name, "time": time(seconds)})


def outcome(case: ElementTree.Element, tag: str, kind: str, sentences: Sequence[str]) -> None:
    """Add an outcome: the first sentence as its message, all sentences as its text."""
    lines = [printable(one) for one in sentences]
    ElementTree.SubElement(case, tag, {"type": kind, "message": lines[0]}).text = "\n".join(lines)


def time(seconds: float) -> str:
    return f"{seconds:.3f}" if math.isfinite(seconds) else "0"
