"""Tests of faults say that nothing was left running: they would see it. What they read of stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import random_faults
from processes import MARK, alive, left_running, own_lines

from meshrun.runner.report import progress, stream_progress
from meshrun.runner.report.progress import ProgressBar
from meshrun.runner.report.stream_progress import StreamProgress


def test_a_process_that_was_left_is_seen(tmp_path: Path) -> None:
    environment = {**os.environ, MARK: str(tmp_path)}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    left = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
    assert left.stdout is not None
    left.stdout.readline()  # /proc has no environment of a process that is about to be made
    try:
        assert left_running(tmp_path) == [left.pid]
        assert alive(left.pid)
        assert left_running(tmp_path / "other") == []
    finally:
        left.kill()
        os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(left.pid), "ended, and nobody has asked for its status"
    assert left_running(tmp_path) == []
    left.communicate()


def test_the_progress_of_a_run_on_a_busy_machine_is_not_what_a_test_is_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (progress, stream_progress):
        monkeypatch.setattr(module, "QUIET", -1.0)
    rows, flow = ProgressBar("march", None), StreamProgress("smooth", None)
    rows(1, 3)
    rows.steps(7, 30, 5400)
    rows.proof(1, 3)
    flow.update(1000, 8000, dict)
    flow.update(7000, 8000, lambda: {"read": 1e5})
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 5
    told = "meshrun: [rank 1, host n1, CPU] cannot write out.npy: got 5 % of it"
    for lines_of in (own_lines, random_faults.own_lines):
        assert lines_of(f"{errors}{told}\n") == [told]
