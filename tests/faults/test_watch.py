"""Real ranks that are watched: the record says so, and a rank that is made slow is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from processes import DEADLOCK, launcher_problem

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.runner.recorder import ring

ROOT = Path(mpi_launcher.__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "__main__.py")]
JOB = """
import meshrun

@meshrun.map_blocks(halo=1, boundary="wrap")
def smooth(u):
    return (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4
"""
pytestmark = pytest.mark.skipif(bool(launcher_problem()), reason=launcher_problem() or "")
SLOW_AFTER, SLOW_FOR = 30.0, 45.0  # seconds of steps


def start(folder: Path, steps: int, cells: int, *words: str) -> subprocess.Popen[str]:
    (folder / "smooth.py").write_text(JOB)
    np.save(folder / "in.npy", np.ones((cells, cells), np.float32))
    run = ["-n", "2", *words, "run", "smooth.py:smooth", "in.npy", "out.npy", "--json", "record.json"]
    return subprocess.Popen(
        [*COMMAND, *run, "--steps", str(steps), "--fuse", "off", "--device", "cpu", "-v"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("words", [(), ("--watch",), ("--watch", "--stall-timeout", "0")])
def test_the_record_of_a_watched_run_says_that_no_part_was_slow(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    with start(tmp_path, 20, 64, *words) as process:
        text = process.communicate(timeout=DEADLOCK)[1]
        assert process.returncode == 0, text
    record = json.loads((tmp_path / "record.json").read_text())
    assert record.get("slow") == ([] if words else None)
    assert ("watched: no rank, GPU or host was slow" in text) == bool(words)


@pytest.mark.nightly
def test_a_rank_that_is_stopped_half_of_the_time_is_named(tmp_path: Path) -> None:
    with start(tmp_path, 1_000_000, 512, "--watch") as process:
        try:
            pid = stepping(rank=1)
            time.sleep(SLOW_AFTER)
            until = time.monotonic() + SLOW_FOR
            while time.monotonic() < until:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGINT)
            text = process.communicate(timeout=DEADLOCK)[1]
    named = [line for line in text.splitlines() if "meshrun: slow: " in line]
    assert len(named) == 1, text
    assert "slow: rank 1 of host" in named[0]
    assert ": host, its process was stopped for" in named[0]


def stepping(rank: int) -> int:
    """Return the process of a rank once it takes time steps."""
    until = time.monotonic() + DEADLOCK
    while time.monotonic() < until:
        for path in ring.files_of():
            read = ring.read(path)
            about = read.about if read else {}
            if read and about["command"] == "run smooth" and about["rank"] == rank and "step" in read.totals:
                return int(about["pid"])
        time.sleep(0.2)
    raise AssertionError("no rank takes steps")
