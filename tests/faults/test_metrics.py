"""Metrics of real ranks while they run: scraped, at a port in use, and until a run has ended."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from processes import DEADLOCK, launcher_problem
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from meshrun.launch.mpi import launcher as mpi_launcher

ROOT = Path(mpi_launcher.__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "__main__.py")]
JOB = """
import meshrun

@meshrun.map_blocks(halo=1, boundary="wrap")
def smooth(u):
    return (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4
"""
pytestmark = pytest.mark.skipif(bool(launcher_problem()), reason=launcher_problem() or "")


def start(folder: Path, port: str, steps: int) -> subprocess.Popen[str]:
    (folder / "smooth.py").write_text(JOB)
    np.save(folder / "in.npy", np.ones((64, 64), np.float32))
    words = ["--metrics", port, "-n", "2", "run", "smooth.py:smooth", "in.npy", "out.npy"]
    return subprocess.Popen(
        [*COMMAND, *words, "--steps", str(steps), "--fuse", "off"],
        cwd=folder,
        env={**os.environ, "SLURM_JOB_ID": "17"},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_is_scraped_until_it_ends(tmp_path: Path) -> None:
    with start(tmp_path, "127.0.0.1:0", 4000) as process:
        assert process.stderr is not None
        place = None
        while place is None:
            line = process.stderr.readline()
            assert line
            place = re.search(r"^meshrun: metrics: (http://127.0.0.1:\d+/metrics)$", line)
        request = urllib.request.Request(place[1], headers={"Accept": "application/openmetrics-text"})
        steps: list[float] = []
        while True:
            try:
                with urllib.request.urlopen(request, timeout=DEADLOCK) as answer:
                    text = answer.read().decode()
            except (urllib.error.URLError, ConnectionError):  # it has ended
                break
            families = {one.name: one.samples for one in text_string_to_metric_families(text)}
            assert {sample.labels["slurm_job"] for sample in families["meshrun_run_ranks"]} == {"17"}
            taken = [sample.value for sample in families.get("meshrun_steps", ())]
            if taken:
                assert len(taken) == 2
                steps.append(min(taken))
            time.sleep(0.05)
        said = process.stderr.read()
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert steps
    assert steps == sorted(steps)
    assert 0 < steps[-1] <= 4000
    assert (tmp_path / "out.npy").exists()


def test_ranks_whose_port_is_in_use_all_end_with_one_message(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start(tmp_path, f"127.0.0.1:{port}", 10) as process:
            _, said = process.communicate(timeout=DEADLOCK)
    assert process.returncode == 2
    lines = [line for line in said.splitlines() if line.startswith("meshrun:") and "share" not in line]
    assert len(lines) == 1
    assert f"cannot serve metrics on 127.0.0.1 port {port}: Address already in use" in lines[0]
    assert not (tmp_path / "out.npy").exists()
