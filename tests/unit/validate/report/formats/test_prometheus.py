"""Prometheus' text format, checked by a parser of its grammar with arbitrary host names."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import made_report
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.validate.report.formats.prometheus import text
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.wording import printable

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
Key = tuple[str, frozenset[tuple[str, str]]]


def samples(report: Report) -> dict[Key, float]:
    output = text(report)
    output.encode("utf-8")
    assert output.endswith("\n")
    found: dict[Key, float] = {}
    described: list[str] = []
    for line in output.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            described.append(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {described[-1]} gauge"
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            name, labels, number = sample.groups()
            assert name == described[-1]
            key = (name.removeprefix("meshrun_validate_"), frozenset(read_labels(labels or "")))
            assert key not in found, "the collector refuses a file with one sample twice"
            found[key] = float(number)
    assert len(described) == len(set(described))
    return found


def read_labels(inside: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(inside):
        label = LABEL.match(inside, at)
        assert label, inside
        value = re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], label[2])
        found.append((label[1], value))
        at = label.end()
    return found


def key(name: str, **labels: str) -> Key:
    return name, frozenset(labels.items())


@pytest.mark.parametrize(
    ("name", "code"), [("healthy", 0), ("warned", 1), ("critical", 2), ("ended", 2), ("unknown", 3)]
)
def test_status(name: str, code: int) -> None:
    report = made_report.ALL[name]()
    found = samples(report)
    assert [value for (metric, _), value in found.items() if metric == "status"] == [code]
    assert found[key("ended_early")] == (name == "ended")


def test_figures() -> None:
    found = samples(made_report.critical())
    assert found[key("rung_rate_bytes_per_second", rung="host pairs", what="flows")] == 48.13e9
    assert found[key("rung_limit_bytes_per_second", rung="host pairs", what="flows")] == 50e9
    assert found[key("rung_broken", rung="host pairs")] == 1
    assert found[key("rung_broken", rung="node")] == 0
    assert key("rung_broken", rung="rails") not in found
    assert found[key("finding", kind="nic", host="c7", gpu="3", rung="host pairs")] == 0.609
    assert found[key("finding", kind="pair", host="c4", gpu="0,6", rung="pairs")] == 0.553
    assert found[key("alarms", status="critical")] == 1
    assert found[key("timestamp_seconds")] == pytest.approx(1795310625 + 163.7)
    assert found[key("simulated")] == 0
    assert samples(made_report.simulated())[key("simulated")] == 1


def test_a_rate_that_is_missing_is_nan() -> None:
    assert math.isnan(
        samples(made_report.unknown())[key("rung_rate_bytes_per_second", rung="all", what="ring")]
    )


def test_a_start_that_is_no_time_is_nan() -> None:
    assert math.isnan(samples(replace(made_report.healthy(), started="yesterday"))[key("timestamp_seconds")])


def test_a_part_found_twice_is_one_sample() -> None:
    report = made_report.critical()
    twice = (made_report.NIC, replace(made_report.NIC, factor=0.5))
    found = samples(replace(report, verdict=replace(report.verdict, findings=twice)))
    assert found[key("finding", kind="nic", host="c7", gpu="3", rung="host pairs")] == 0.5


def test_hosts_that_differ_in_what_cannot_be_printed_are_one_sample() -> None:
    report = made_report.critical()
    alike = (replace(made_report.NIC, hosts=("c\n",)), replace(made_report.NIC, hosts=("c\\n",), factor=0.5))
    found = samples(replace(report, verdict=replace(report.verdict, findings=alike)))
    assert found[key("finding", kind="nic", host="c\\n", gpu="3", rung="host pairs")] == 0.5


@given(st.text())
def test_any_host_name_is_a_label(host: str) -> None:
    report = made_report.critical()
    one = replace(made_report.NIC, hosts=(host,))
    found = samples(replace(report, verdict=replace(report.verdict, findings=(one,))))
    assert found[key("finding", kind="nic", host=printable(host), gpu="3", rung="host pairs")] == 0.609
