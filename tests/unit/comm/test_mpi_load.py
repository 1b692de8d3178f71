"""Signals while MPI is loaded: MPI_Init waits forever for a rank that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Functions of a PyDLL hold Python's lock, as MPI_Init does in mpi4py's module. No signal interrupts this one.
WAITS = """
import ctypes, pathlib, sys
mutex = ctypes.create_string_buffer(64)
pathlib.Path(sys.argv[1]).touch()
for _ in range(int(sys.argv[2])):
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
"""
LOADS = """
import pathlib, signal, sys, time
from meshrun.runner.comm import mpi
from meshrun.runner.world.termination import on_termination
for number in (signal.SIGINT, signal.SIGHUP):  # nohup and a shell's background ignore them
    signal.signal(number, signal.SIG_DFL)
on_termination(lambda: None)
mpi.load()
pathlib.Path(sys.argv[1] + ".loaded").touch()
while True:
    time.sleep(0.01)
"""
DEADLOCK = 100  # seconds


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_signal_ends_a_rank_in_mpi_init_and_after_it(
    tmp_path: Path, number: signal.Signals, is_loaded: bool
) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text(WAITS)
    begun = tmp_path / "begun"
    awaited = tmp_path / "begun.loaded" if is_loaded else begun
    root = str(Path(__file__).parents[3])
    rank = subprocess.Popen(
        [sys.executable, "-c", LOADS, str(begun), "0" if is_loaded else "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])},
    )
    try:
        while not awaited.exists():
            assert rank.poll() is None
        rank.send_signal(number)
        assert rank.wait(DEADLOCK) == (128 + number if is_loaded else -number)
    finally:
        rank.kill()
        rank.wait()


def test_an_ignored_signal_stays_ignored_while_mpi_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGHUP)\nprint(repr(signal.getsignal(signal.SIGHUP)))"
    )
    code = (
        "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from meshrun.runner.comm import mpi\nmpi.load()"
    )
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip().startswith("<Handlers.SIG_IGN")
