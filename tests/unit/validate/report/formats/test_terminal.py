"""The terminal: the verdict first, 80 columns, bounded length, colours only on request."""

from __future__ import annotations

import re
from dataclasses import replace

import made_report
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from meshrun.jobs.validate.report.formats.terminal import text
from meshrun.jobs.validate.report.wording import MOST, printable

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("name", made_report.ALL)
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_only_the_first_line_is_longer_than_the_terminal(name: str, columns: int) -> None:
    first, *others = text(made_report.ALL[name](), columns).splitlines()
    assert first.split(":")[0] == made_report.ALL[name]().verdict.status.upper()
    assert [line for line in others if cell_len(line) > columns] == []


def test_a_fleet_of_4096_hosts_does_not_flood_the_terminal() -> None:
    output = text(made_report.crowd())
    assert len(output.splitlines()) < 250
    assert output.count("its NIC  ") == MOST
    assert f"... and {4096 - MOST} more" in output


def test_a_counter_of_many_parts_is_one_line() -> None:
    report = made_report.healthy()
    parts = [replace(made_report.CHANGES[2], part=f"eth{n}", after=12.0 + n) for n in range(1, 40)]
    clock = replace(made_report.CHANGES[1], weight="note")
    output = text(replace(report, changes=(*parts, clock)), 200)
    assert output.count("tcp retransmits") == 1
    assert "- rails: host c0, eth39: tcp retransmits 12 -> 51, the most of 39 parts (segments sent" in output
    assert "- gpu: host c2, GPU 5: throttle reasons none -> hardware thermal slowdown (the GPU" in output


def test_colours_only_when_asked_for() -> None:
    report = made_report.critical()
    assert "\x1b" not in text(report)
    coloured = text(report, colour=True)
    assert coloured.startswith("\x1b[1;31mCRITICAL")
    bare = [line.rstrip() for line in ESCAPES.sub("", coloured).splitlines()]
    assert bare == text(report).splitlines()


def test_a_dead_rank_is_told_first_also_where_the_verdict_does_not_say_so() -> None:
    report = made_report.ended()
    assert text(report).splitlines()[0] == f"CRITICAL: {report.ended}"
    silent = replace(made_report.warned(), ended=report.ended)
    assert text(silent).startswith(f"WARNING: {report.ended}; host c2, GPU 5: at 92 %")
    fine = replace(made_report.healthy(), ended=report.ended)
    assert text(fine).startswith(f"OK: {report.ended}")


@given(st.text(min_size=1))
def test_a_host_cannot_speak_to_the_terminal(host: str) -> None:
    report = made_report.critical()
    found = tuple(replace(one, hosts=(host,)) for one in report.verdict.findings)
    report = replace(report, verdict=replace(report.verdict, findings=found, alarms=()))
    output = text(report)
    assert not [one for one in output.replace("\n", "") if not one.isprintable()]
    assert f"host {printable(host)}, GPU 5".replace(" ", "") in re.sub(r"\s", "", output)
    output.encode("utf-8")


def test_what_is_not_known_is_a_dash_and_no_zero() -> None:
    (line,) = [line for line in text(made_report.unknown()).splitlines() if line.startswith("all ")]
    assert line.split()[2:7] == ["ring", "-", "-", "GB/s", "-"]
