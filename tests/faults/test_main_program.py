"""A main program of distributed arrays that loses a rank in its loop: started again, it has the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from processes import DEADLOCK
from random_faults import BARE, mpich
from streamed import needs_mpi

PROGRAM = """
import os, signal
import numpy as np
import meshrun

with meshrun.open_world("cpu") as world:
    b = world.zeros((40, 30))
    b[10:20, 10:20] = 1
    x, r, p = world.zeros(b.shape), b.copy(), b.copy()
    rho, steps = np.vdot(r, r), 0
    while rho > 1e-12:
        x, r, p, rho, steps = meshrun.checkpoint("cg", x=x, r=r, p=p, rho=rho, steps=steps, every=10)
        if os.environ.get("DIES") == str(world.rank) and steps == 37:
            os.kill(os.getpid(), signal.SIGKILL)
        q = 4 * p
        q[1:] -= p[:-1]
        q[:-1] -= p[1:]
        q[:, 1:] -= p[:, :-1]
        q[:, :-1] -= p[:, 1:]
        alpha = rho / np.vdot(p, q)
        x += alpha * p
        r -= alpha * q
        last, rho = rho, np.vdot(r, r)
        p, steps = r + rho / last * p, steps + 1
    world.save("x.npy", x)
"""


def start(folder: Path, ranks: int, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    launcher = str(Path(sys.executable).parent / "mpiexec")
    options = [] if mpich() else ["--oversubscribe", "--bind-to", "none"]
    return subprocess.run(
        [launcher, *options, "-n", str(ranks), sys.executable, "cg.py", *words],
        cwd=folder,
        env={**os.environ, **BARE, **changes},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )


@needs_mpi
def test_a_rank_that_is_killed_in_a_loop(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    for folder in (tmp_path, tmp_path / "whole"):
        (folder / "cg.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "cg.py"], cwd=tmp_path / "whole", check=True, timeout=DEADLOCK)

    assert start(tmp_path, 2, DIES="1").returncode != 0
    assert not (tmp_path / "x.npy").exists()
    assert {"step-20", "step-30"} <= {one.name for one in (tmp_path / "cg.checkpoint").iterdir()}

    resumed = start(tmp_path, 3, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "meshrun: continuing after 30 iterations" in resumed.stderr
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole" / "x.npy").read_bytes()
