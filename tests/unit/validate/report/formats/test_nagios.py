"""Nagios: one line, exit codes, performance data by the Monitoring Plugins' grammar."""

from __future__ import annotations

import re
from dataclasses import replace

import made_report
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.validate.report.formats.nagios import text
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.verdict import EXIT

DATUM = re.compile(
    r"(?:'([^'=]+)'|([^'=\s]+))=(U|-?[0-9.]+)(s|%|B|c)?;([-0-9.:@~]*);([-0-9.:@~]*);([-0-9.]*);([-0-9.]*)"
)


def data(report: Report) -> dict[str, tuple[str, str]]:
    """Return value and maximum by label."""
    output = text(report)
    assert output.endswith("\n")
    assert output.count("\n") == 1
    line, _, performance = output.removesuffix("\n").partition(" | ")
    assert "|" not in line + performance
    found = {}
    at = 0
    for one in DATUM.finditer(performance):
        assert performance[at : one.start()].strip() == ""
        found[one[1] or one[2]] = (one[3], one[8])
        at = one.end()
    assert at == len(performance)
    return found


@pytest.mark.parametrize(
    ("name", "code", "word"),
    [("healthy", 0, "OK"), ("warned", 1, "WARNING"), ("critical", 2, "CRITICAL"), ("ended", 2, "CRITICAL"),
     ("unknown", 3, "UNKNOWN")],
)  # fmt: skip
def test_exit_codes_and_first_words(name: str, code: int, word: str) -> None:
    report = made_report.ALL[name]()
    assert EXIT[report.verdict.status] == code
    assert text(report).startswith(f"MESHRUN {word} - ")


@pytest.mark.parametrize("name", made_report.ALL)
def test_every_run_has_the_same_labels(name: str) -> None:
    assert list(data(made_report.ALL[name]())) == [
        "findings", "alarms", "time", "gpu memory", "gpu product", "gpu tensor", "host to_device",
        "host to_host", "pairs copies", "pairs flows", "node ring", "host pairs flows", "rails ring",
        "all ring",
    ]  # fmt: skip


def test_figures_and_limits() -> None:
    found = data(made_report.critical())
    assert found["host pairs flows"] == ("48130000000", "50000000000")
    assert found["gpu product"] == ("41820000000000", "")
    assert found["findings"][0] == "4"


def test_what_is_missing_is_unknown_and_no_zero() -> None:
    assert data(made_report.critical())["rails ring"][0] == "U"
    assert data(made_report.unknown())["all ring"][0] == "U"
    assert data(replace(made_report.healthy(), seconds=float("nan")))["time"][0] == "U"


@given(st.text())
def test_no_text_breaks_the_line(odd: str) -> None:
    data(replace(made_report.ended(), ended=f"rank 3 on {odd} died"))
