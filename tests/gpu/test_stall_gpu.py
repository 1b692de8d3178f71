"""A run on two GPUs, of which one rank never enters a collective: what is told of the GPUs, and by NCCL."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="needs CuPy")
JOB = """
import time

import meshrun


@meshrun.job
def stuck(world):
    word = world.xp.ones(4, "f4")
    for step in range(10):
        if (world.rank, step) == (1, 5):
            time.sleep(1000)
        world.all_reduce(word)
        world.backend.synchronize()
    return {}
"""


@pytest.mark.skipif(cupy.cuda.runtime.getDeviceCount() < 2, reason="needs 2 GPUs")
def test_a_stall_is_told_with_the_gpus_states_and_what_nccl_knows(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    np.save(tmp_path / "in.npy", np.zeros(8))
    words = ["--stall-timeout", "5", "-n", "2", "run", "job.py:stuck", "in.npy"]
    done = subprocess.run(
        [sys.executable, "-m", "meshrun", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    print(done.stderr)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert re.search(r"stalled: rank 1 ", lines[0])
    assert re.search(r"the GPU of rank 0 is busy: .*\d W", done.stderr)  # in NCCL's kernel
    assert re.search(r"the GPU of rank 1 is (idle|busy in part)", done.stderr)
    assert re.search(r"NCCL's RAS at localhost:\d+ reports", done.stderr)
