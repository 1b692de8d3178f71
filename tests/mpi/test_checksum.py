"""Checksums between MPI's ranks: mpiexec -n 3 python -m pytest --with-mpi tests/mpi/test_checksum.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm import mpi
from meshrun.runner.comm.api import as_bytes
from meshrun.runner.comm.checksum.checked import CheckedControl, Damaged
from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.world.world import World, with_checksums

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]
DTYPES = ("bool", "uint8", "float16", "float32", ">f8", "complex128")


class Damaging(MpiComm):
    """Flips a bit of 80 bytes from rank 0 to rank 1, and of the last rank's results of all-reductions."""

    flip = False

    def exchange(self, sends: Any, receives: Any) -> Any:
        return super().exchange([(peer, self._sent(peer, array)) for peer, array in sends], receives)

    def _sent(self, peer: int, array: Any) -> Any:
        if not self.flip or (self.rank, peer, array.nbytes) != (0, 1, 80):
            return array
        damaged = array.copy()
        as_bytes(damaged)[3] ^= 16
        return damaged

    def all_reduce(self, array: Any, operation: Any) -> None:
        super().all_reduce(array, operation)
        if self.flip and self.rank == self.size - 1 and array.dtype == np.float64:
            as_bytes(array)[3] ^= 16


def test_nothing_is_flagged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "PIECE", 1000)
    checked = with_checksums(world, "full")
    for dtype in DTYPES:
        for count in (0, 1, 33, 4001):
            mine = np.random.default_rng(world.rank).integers(0, 2, count).astype(dtype)
            for array in (mine, mine[::2]):
                np.testing.assert_array_equal(checked.all_gather(array), world.all_gather(array))
            if dtype in ("float16", "float32", "complex128"):
                found = checked.all_reduce(mine.copy(), "sum")
                np.testing.assert_array_equal(found, world.all_reduce(mine.copy(), "sum"))
    checked.all_reduce(np.array([0.0, -0.0] if world.rank % 2 else [-0.0, 0.0]), "max")
    checked.all_reduce(np.array([np.nan, 1.0, -np.nan] if world.rank % 2 else [-np.nan, np.nan, 1.0]), "sum")
    assert checked.checksums is not None
    assert checked.checksums.messages > 0 or world.size == 1


def test_a_damaged_message_and_result_are_found(world: World) -> None:
    if world.size == 1:
        pytest.skip("nothing crosses one rank")
    control = Damaging()
    names = [f"rank {rank}" for rank in range(world.size)]
    checks = with_checksums(world, "full").checksums
    assert checks is not None
    checks.names = names
    checked = CheckedControl(control, checks)
    for control.flip in (False, True, False):
        right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        pending = checked.exchange([(right, np.arange(10.0))], [(left, np.empty(10))])
        if control.flip and world.rank == 1:
            with pytest.raises(Damaged, match="rank 1 has not received what rank 0 has sent"):
                pending.wait()
        else:
            pending.wait()
        if control.flip:
            with pytest.raises(Damaged, match="different results of all_reduce 2"):
                checked.all_reduce(np.ones(5), "sum")
        else:
            checked.all_reduce(np.ones(5), "sum")
    checked.close()
