"""Sample reports in every format, compared character by character.

To update the files after checking the changes:

    PYTHONPATH=tests/facts python tests/unit/validate/report/formats/test_golden.py --write
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import made_report
import pytest

from meshrun.jobs.validate.report.formats import json as json_format
from meshrun.jobs.validate.report.formats import junit as junit_format
from meshrun.jobs.validate.report.formats import nagios as nagios_format
from meshrun.jobs.validate.report.formats import prometheus as prometheus_format
from meshrun.jobs.validate.report.formats import terminal
from meshrun.jobs.validate.report.model import Report

GOLDEN = Path(__file__).with_name("golden")


def metrics(report: Report) -> str:
    """Return the metrics with numbers as Python writes them; prometheus_client's digits vary by version."""
    return re.sub(
        r"^([^#].*) (\d\S*)$",
        lambda line: f"{line[1]} {float(line[2])}",
        prometheus_format.text(report),
        flags=re.M,
    )


FORMS = {
    "txt": terminal.text,
    "json": json_format.text,
    "xml": junit_format.text,
    "prom": metrics,
    "nagios": nagios_format.text,
}
CASES = [(name, form) for name in made_report.ALL for form in FORMS]


def rendered(name: str, form: str) -> str:
    return FORMS[form](made_report.ALL[name]())


@pytest.mark.parametrize(("name", "form"), CASES)
def test_as_it_was(name: str, form: str) -> None:
    assert rendered(name, form) == (GOLDEN / f"{name}.{form}").read_text(encoding="utf-8")


def test_every_golden_file_is_compared() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.{form}" for name, form in CASES}


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    GOLDEN.mkdir(exist_ok=True)
    for made, kind in CASES:
        (GOLDEN / f"{made}.{kind}").write_text(rendered(made, kind), encoding="utf-8")
