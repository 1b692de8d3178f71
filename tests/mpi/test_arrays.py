"""Distributed arrays of a main program on MPI's ranks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.comm.threads import ThreadComm
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]
PAGE = Path(__file__).parents[2] / "docs" / "arrays.md"


def test_the_pages_program_has_the_bits_of_one_rank(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    monkeypatch.chdir(folder)
    exec(code, {"__name__": "program"})
    found = np.load("x.npy")
    world.control.barrier()
    original = meshrun.open_world
    monkeypatch.setattr(meshrun, "open_world", lambda: original("cpu", control=ThreadComm()), raising=False)
    if world.rank == 0:
        exec(code, {"__name__": "program"})
        np.testing.assert_array_equal(np.load("x.npy"), found)
    world.control.barrier()


def test_operations_on_slices_and_masks(comm: MpiComm) -> None:
    whole = np.random.default_rng(0).normal(0, 1, (11, 7))
    with meshrun.open_world("cpu", control=comm.split(0)) as world:
        u, a = world.array(whole if world.rank == 0 else None), whole.copy()
        for one in (u, a):
            one[1:-1, ::2] = (one[2:, ::2] + one[:-2, ::2]) / 2
            one[0] = one[-2]
            one[one > 0.5] *= 2
            one[2:] += np.roll(one, 3, 0)[::-1][2:]
        np.testing.assert_array_equal(u.gather(), a)
        np.testing.assert_array_equal(u[u < 0].gather(), a[a < 0])
        assert (np.max(u), np.argmin(u), u[5, 3]) == (a.max(), a.argmin(), a[5, 3])
        np.testing.assert_allclose(np.sum(u, axis=0).gather(), a.sum(0))


def test_a_rank_that_calls_something_else_is_named(comm: MpiComm) -> None:
    if comm.size == 1:
        pytest.skip("there is no other rank")
    said = r"different operations.*test_arrays\.py, line \d+ on rank 0.*test_arrays\.py, line \d+ on rank 1"
    with pytest.raises(UserError, match=said):
        sum_on_one_rank(comm)


def sum_on_one_rank(comm: MpiComm) -> None:
    with meshrun.open_world("cpu", control=comm.split(0)) as world:
        u = world.ones((8, 3))
        if world.rank == 0:
            u += np.max(u)
