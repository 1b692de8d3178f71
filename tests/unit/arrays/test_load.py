"""Arrays that are read from files onto the ranks' devices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queued_device import QueuedBackend

from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.arrays.load import load_arrays
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.plan.grid import Partition
from meshrun.runner.storage.formats.registry import open_source
from meshrun.runner.world.world import open_world


@pytest.mark.parametrize("shape", [(), (3,), (4, 5)])
def test_arrays_are_read_onto_a_device(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Also a number, which has no rows."""
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + 7
    np.save(tmp_path / "in.npy", array)

    def rank(control: Control) -> Any:
        world = open_world("cpu", control=control)
        world.backend = QueuedBackend()
        plan = HaloPlan(Partition(shape, (1,) * len(shape)), 0, ((0, 0),) * len(shape), "constant")
        (read,) = load_arrays(world, [open_source(tmp_path / "in.npy")], [plan], world.phases)
        return np.array(read.block)

    (found,) = run_ranks(1, rank, timeout=60)
    np.testing.assert_array_equal(found, array)
