"""What ranks import, and calls made from C on all of them: mpiexec -n 3 pytest --with-mpi tests/mpi.

MESHRUN_INSTALLED=1 says that ranks are to have the installed package, not the checkout.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import meshrun
import meshrun.jobs
import meshrun.launch
import meshrun.runner
from meshrun.runner.comm.collectives.call_batch import BUILT, Batch
from meshrun.runner.comm.mpi import MpiComm

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]
COMPILER = shutil.which("cc") or shutil.which("gcc")
INSTALLED = pytest.mark.skipif("MESHRUN_INSTALLED" not in os.environ, reason="of the checkout")


@INSTALLED
def test_ranks_import_the_installed_package(comm: MpiComm) -> None:
    place = Path(sysconfig.get_path("platlib"))
    packages = (meshrun, meshrun.runner, meshrun.jobs, meshrun.launch)
    folders = [Path(package.__file__ or "").parent.relative_to(place).as_posix() for package in packages]
    assert folders == ["meshrun", "meshrun/runner", "meshrun/jobs", "meshrun/launch"]
    assert comm.allgather(folders) == [folders] * comm.size


@INSTALLED
@pytest.mark.parametrize("name", ["runner", "jobs", "launch"])
def test_nothing_but_meshrun_is_installed(name: str) -> None:
    found = importlib.machinery.PathFinder.find_spec(name, [sysconfig.get_path("platlib")])
    assert found is None


@INSTALLED
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_the_installed_package_is_compiled(comm: MpiComm) -> None:
    from meshrun.runner.comm.collectives import _batch
    from meshrun.runner.recorder import _record

    for module in (_batch, _record):
        assert comm.allgather(Path(module.__file__).suffix) == [".so"] * comm.size


@pytest.mark.skipif(not BUILT, reason="not compiled")
def test_calls_from_c_wait_for_other_ranks(comm: MpiComm) -> None:
    """Each call hands a number on to the right; after one for each rank, every number is back."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    value, seen = np.array([comm.rank]), []

    def hand_on(step: int) -> int:
        arrived = np.empty_like(value)
        comm.exchange([(right, value)], [(left, arrived)]).wait()
        value[:] = arrived
        seen.append((step, int(arrived[0])))
        return 0 if step < comm.size else 7

    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)(hand_on)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address
    calls = [(address, (step,)) for step in range(1, comm.size + 2)]
    with pytest.raises(RuntimeError, match="7"):  # the last but one
        Batch(calls, lambda status: RuntimeError(str(status)))()
    assert seen == [(step, (comm.rank - step) % comm.size) for step in range(1, comm.size + 1)]
    assert value[0] == comm.rank
