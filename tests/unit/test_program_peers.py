"""benchmarks/program_peers.py, whose methods are processes that wait for their turns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "program_peers.py"


def test_the_other_methods_end_when_one_cannot_start(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nexit 7\n")
    mpirun.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [sys.executable, str(SCRIPT), "--only", "cavity", "--sizes", "8", "--rounds", "1"]
    # A method that goes on would keep the pipe of this process's output open.
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "meshrun ended with status 7" in done.stderr
