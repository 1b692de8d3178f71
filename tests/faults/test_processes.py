"""Tests of faults say that nothing was left running: they would see it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from processes import MARK, alive, left_running


def test_a_process_that_was_left_is_seen(tmp_path: Path) -> None:
    environment = {**os.environ, MARK: str(tmp_path)}
    left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
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
