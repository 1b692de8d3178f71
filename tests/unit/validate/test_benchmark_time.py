"""The table of simulated times in docs/validate.md is what its command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import load

ROOT = Path(__file__).parents[3]
ROWS = dict(
    re.findall(r"^(?=\| `(hosts=[^`]*)`)(.*)$", (ROOT / "docs" / "validate.md").read_text(), re.MULTILINE)
)
LARGE = [pytest.param(fleet, marks=pytest.mark.nightly) for fleet in ROWS if not fleet.startswith("hosts=16")]


@pytest.mark.parametrize("fleet", [*(fleet for fleet in ROWS if fleet.startswith("hosts=16")), *LARGE])
def test_a_row_is_what_the_command_prints(
    fleet: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["validate_time.py", fleet])
    load(ROOT / "benchmarks" / "validate_time.py").main()
    assert capsys.readouterr().out.splitlines()[-1] == ROWS[fleet]
