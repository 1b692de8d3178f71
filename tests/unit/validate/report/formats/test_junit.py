"""JUnit XML: the structure that readers expect, and a suite that fails unless the verdict is ok."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import made_report
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.validate.report.formats.junit import text
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.wording import printable

OUTCOMES = ("failure", "error", "skipped")
# The schema of Ant's and Jenkins' readers: element -> attributes it must have, children it may have.
SCHEMA = {
    "testsuites": (set(), {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "time", "timestamp", "hostname"},
        {"properties", "testcase"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, {*OUTCOMES, "system-out"}),
    "failure": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "skipped": ({"message"}, set()),
    "system-out": (set(), set()),
}  # fmt: skip


def suite(report: Report) -> ElementTree.Element:
    root = ElementTree.fromstring(text(report).encode("utf-8"))
    for element in root.iter():
        needed, inside = SCHEMA[element.tag]
        assert needed <= set(element.attrib)
        assert {child.tag for child in element} <= inside
    (found,) = root
    return found


def outcomes(report: Report) -> dict[str, str]:
    found = {}
    for case in suite(report).iter("testcase"):
        tags = [child.tag for child in case if child.tag in OUTCOMES]
        assert len(tags) <= 1
        found[case.attrib["name"]] = tags[0] if tags else "passed"
    return found


@pytest.mark.parametrize("name", made_report.ALL)
def test_structure_and_totals(name: str) -> None:
    report = made_report.ALL[name]()
    found, cases = suite(report), outcomes(report)
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    for attribute, outcome in counts.items():
        assert int(found.attrib[attribute]) == list(cases.values()).count(outcome)
    assert int(found.attrib["tests"]) == len(cases) == 9
    fails = {"failure", "error"} & set(cases.values())
    assert bool(fails) == (report.verdict.status != "ok")


def test_each_rung_says_what_became_of_it() -> None:
    assert outcomes(made_report.critical()) == {
        "gpu": "failure", "host": "passed", "pairs": "failure", "node": "passed", "host pairs": "failure",
        "rails": "skipped", "all": "skipped", "alarms": "failure", "verdict": "failure",
    }  # fmt: skip


def test_findings_of_one_rung_are_one_failure_with_all_of_them() -> None:
    (case,) = [
        one for one in suite(made_report.critical()).iter("testcase") if one.attrib["name"] == "host pairs"
    ]
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib["message"] == made_report.NIC.sentence
    assert (failure.text or "").splitlines() == [made_report.NIC.sentence, made_report.FLAP.sentence]


def test_a_warning_is_a_failure_and_not_skipped() -> None:
    found = outcomes(made_report.warned())
    assert (found["gpu"], found["verdict"]) == ("failure", "failure")


def test_what_is_not_measured_is_skipped_with_its_reason() -> None:
    (case,) = [one for one in suite(made_report.one_rank()).iter("testcase") if one.attrib["name"] == "all"]
    skipped = case.find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"] == "there is one rank"


def test_unknown_and_an_early_end_are_errors() -> None:
    found = outcomes(made_report.unknown())
    assert (found["all"], found["verdict"]) == ("error", "error")
    assert outcomes(made_report.ended())["verdict"] == "error"


@given(st.text())
def test_any_text_is_a_value(odd: str) -> None:
    report = made_report.critical()
    found = tuple(replace(one, hosts=(odd,)) for one in report.verdict.findings)
    report = replace(
        report, verdict=replace(report.verdict, findings=found), command=odd, environment={odd: odd}
    )
    properties = {one.attrib["name"]: one.attrib["value"] for one in suite(report).iter("property")}
    assert properties[printable(odd)] == printable(odd)
    (message,) = [
        one.attrib["message"] for one in suite(report).iter("failure") if one.attrib["type"] == "slow"
    ][:1]
    assert f"host {printable(odd)}, GPU 5" in message


@pytest.mark.parametrize("odd", ["<&\"']]>", "\x00\x1b[31m", "\ud800", "\ufffe", "名前", "a\nb"])
def test_characters_that_xml_forbids(odd: str) -> None:
    report = replace(made_report.healthy(), command=odd)
    assert suite(report).find(".//property").attrib["value"] == printable(odd)  # type: ignore[union-attr]
