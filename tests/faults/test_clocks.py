"""From the first fork to the end of a run some clock runs: ranks that never start, stop, or wait for ever."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from processes import DEADLOCK, MARK, launcher_problem, left_running, own_lines, wait_for

from meshrun.launch.mpi.rank_command import PROGRAM

pytestmark = [
    pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem())),
    pytest.mark.mpi_library,
]

# Loaded by a rank before MPI_Init, as any user's file is.
BEFORE_MPI = """
import os, signal, time
from pathlib import Path
import meshrun

leaving = Path("..", "leaving")

def leave():
    leaving.write_text(str(os.getpid()))
    os._exit(0)

def await_leaving():
    while not (pid := leaving.read_text() if leaving.exists() else ""):
        time.sleep(0.01)
    while Path("/proc", pid).exists():
        time.sleep(0.01)

if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    {fault}
{others}

@meshrun.map_blocks
def same(block):
    return block
"""

DURING = """
import os, signal, time
import meshrun

@meshrun.map_blocks(split_dependent=True)
def same(block, *, here):
    if {where}:
        {fault}
    return block
"""


def ended(folder: Path, text: str, *options: str) -> tuple[int, list[str]]:
    """The exit status of a run with two ranks, and its lines; nothing of it is left."""
    (folder / "faulty.py").write_text(text)
    np.save(folder / "in.npy", np.zeros((64, 64)))
    words = ["-n", "2", *options, "run", "faulty.py:same", "in.npy", "out.npy", "--device", "cpu"]
    done = subprocess.run(
        [*PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=DEADLOCK, check=False,
        env={**os.environ, MARK: str(folder)},
    )  # fmt: skip
    wait_for(lambda: not left_running(folder))
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".py") in (
        ["__pycache__", "in.npy"],
        ["in.npy"],
    )
    return done.returncode, own_lines(done.stderr)


@pytest.mark.parametrize(
    ("fault", "others", "said"),
    [
        # While another rank is in MPI_Init, Open MPI's launcher would notice, and end the run at once.
        ("leave()", "await_leaving()", r"\[rank 1, host \S+\] ended before all ranks were connected"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "", r"\[rank 1, host \S+\] is stopped"),
    ],
    ids=["exit", "stop"],
)
def test_a_rank_that_never_reaches_mpi_ends_the_run_and_is_named(
    tmp_path: Path, fault: str, others: str, said: str
) -> None:
    text = BEFORE_MPI.format(fault=fault, others=others)
    (tmp_path / "run").mkdir()
    status, lines = ended(tmp_path / "run", text, "--start-timeout", "3")
    assert status == 1
    assert re.search(rf"meshrun: {said}.*not all ranks started within 3 s.*--start-timeout", lines[0]), lines


def test_ranks_without_progress_end_the_run_and_the_stopped_one_is_named(tmp_path: Path) -> None:
    text = DURING.format(where="here.rank == 1", fault="os.kill(os.getpid(), signal.SIGSTOP)")
    status, lines = ended(tmp_path, text, "--stall-timeout", "3")
    assert status == 1
    assert re.search(r"meshrun: .*rank 1.*stopped", lines[0]), lines


def test_progress_counts(tmp_path: Path) -> None:
    """A run that takes longer than the time-out, and says so, is not stuck."""
    (tmp_path / "faulty.py").write_text(
        "import time\nimport meshrun\n\n@meshrun.map_blocks(split_dependent=True)\ndef same(block):\n"
        "    time.sleep(0.5)\n    return block\n"
    )
    np.save(tmp_path / "in.npy", np.zeros((64, 1 << 11)))
    words = ["-n", "2", "--stall-timeout", "3", "run", "faulty.py:same", "in.npy", "out.npy"]
    done = subprocess.run(
        [*PROGRAM, *words, "--device", "cpu", "--chunk-bytes", "64K"], cwd=tmp_path,
        capture_output=True, text=True, timeout=DEADLOCK, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.zeros((64, 1 << 11)))


def test_an_import_in_the_function_counts_module_by_module(tmp_path: Path) -> None:
    """Of large packages on a slow file system, which take longer than the time-out."""
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "__init__.py").write_text("from large import a, b, c, d, e")
    for name in "abcde":
        (tmp_path / "large" / f"{name}.py").write_text("import time\ntime.sleep(1)\n")
    (tmp_path / "faulty.py").write_text(
        "import meshrun\n\n@meshrun.map_blocks(split_dependent=True)\ndef same(block):\n    import large\n"
        "    return block\n"
    )
    np.save(tmp_path / "in.npy", np.zeros((64, 64)))
    words = ["-n", "2", "--stall-timeout", "3", "run", "faulty.py:same", "in.npy", "out.npy"]
    done = subprocess.run(
        [*PROGRAM, *words, "--device", "cpu"], cwd=tmp_path,
        capture_output=True, text=True, timeout=DEADLOCK, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
