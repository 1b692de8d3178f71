"""A run of minutes says what it measures: lines in a log, one changing line on a terminal."""

from __future__ import annotations

import re
import threading

import pytest

from meshrun.jobs.validate.plan import RUNGS
from meshrun.jobs.validate.run import progress
from meshrun.jobs.validate.run.progress import Progress


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REFRESH", "FIRST_LINE", "LONGEST_PAUSE"):
        monkeypatch.setattr(progress, name, 1e-3)


class Said:
    """A stream that tells when some words have been written to it."""

    def __init__(self, words: str) -> None:
        self.text, self.words, self.enough = "", words, threading.Event()

    def write(self, text: str) -> None:
        self.text += text
        if self.words in self.text:
            self.enough.set()

    def flush(self) -> None:
        pass


def test_a_log_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said("validate: 28 %; measuring pairs, ")
    monkeypatch.setattr("sys.stderr", said)
    with Progress(None, RUNGS) as lines:
        lines.show("pairs")
        assert said.enough.wait(60), said.text
    assert re.fullmatch(r"(meshrun: validate: \d+ %; measuring [a-z ]+, \d+ s so far\n)+", said.text)


def test_a_terminal_gets_one_line_that_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said("validate: 57 %; measuring host pairs, ")
    monkeypatch.setattr("sys.stderr", said)
    with Progress(80, RUNGS) as lines:
        lines.show("host pairs")
        assert said.enough.wait(60), said.text
    assert "\n" not in said.text
    assert said.text.endswith("\r\x1b[K")


@pytest.mark.parametrize("columns", [None, 80])
def test_a_monitoring_plugin_gets_none(columns: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with Progress(columns, RUNGS, silent=True) as lines:
        lines.show("gpu")
        assert threading.active_count() == before
    assert "measuring" not in capsys.readouterr().err


def test_nothing_comes_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with Progress(None, RUNGS) as lines:
        lines.show("gpu")
    assert threading.active_count() == before
