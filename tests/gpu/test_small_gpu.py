"""Collectives of a few KiB by stores between the GPUs of one host.

`mpirun -n N python -m pytest --with-mpi tests/gpu/test_small_gpu.py` on 2 to 8 ranks.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.small.collectives import CAPACITY, TYPES, SmallCollectives, open_small
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
COUNTS = (1, 2, 3, 1023, 1024, 1025, 8192)


@pytest.fixture
def small(world: World) -> Any:
    opened = None if world.size == 1 else open_small(world.control, world.backend)
    if opened is None:
        pytest.skip("needs 2 GPUs or more that reach each other's memory")
    yield opened
    world.backend.synchronize()
    opened.close()


def wait_a_little(world: World, turn: int) -> None:
    """Let the ranks come in changing orders."""
    time.sleep(1e-3 * ((3 * world.rank + turn) % 4))


@pytest.mark.parametrize("dtype", TYPES)
def test_all_ranks_get_the_bits_of_a_reduction_in_rank_order(
    world: World, small: SmallCollectives, dtype: str
) -> None:
    for turn, count in enumerate(COUNTS):
        host = (np.random.default_rng([world.rank, count]).standard_normal(count) * 1e6).astype(dtype)
        every = world.control.allgather(host)
        expected = every[0].copy()
        for one in every[1:]:
            expected += one
        array = world.xp.asarray(np.concatenate([host[:1], host]))[1:]  # not aligned to 8 bytes
        wait_a_little(world, turn)
        small.all_reduce(array, "sum")
        assert array.get().tobytes() == expected.tobytes()


@pytest.mark.parametrize("nbytes", [1, 4, 12, 4099, CAPACITY])
def test_each_rank_gets_its_part_of_every_other(world: World, small: SmallCollectives, nbytes: int) -> None:
    host = np.random.default_rng(world.rank).integers(0, 256, (world.size, nbytes)).astype(np.uint8)
    source, target = world.xp.asarray(host), world.xp.zeros((world.size, nbytes), np.uint8)
    small.all_to_all(source, target)
    expected = [one[world.rank] for one in world.control.allgather(host)]
    np.testing.assert_array_equal(target.get(), expected)


def test_a_graph_is_launched_repeatedly(world: World, small: SmallCollectives) -> None:
    xp, size, rank = world.xp, world.size, world.rank
    few, many = xp.zeros(1, np.int64), xp.zeros(5000, np.int64)
    sent, received = xp.zeros((size, 2)), xp.zeros((size, 2))

    def work() -> None:
        for array in (few, many, few):
            xp.add(array, rank + 1, out=array)
            small.all_reduce(array, "sum")
        small.all_to_all(sent, received)

    xp.add(few, 0, out=few)
    small.all_reduce(few, "sum")  # compiled before the graph is made
    small.all_to_all(sent, received)
    graph, expected = world.backend.capture(work), [0, 0]
    for turn in range(9):
        sent[...] = 100 * rank + xp.arange(2 * size).reshape(size, 2) + turn
        wait_a_little(world, turn)
        graph()
        for at in (0, 1, 0):
            expected[at] = (expected[at] * size + size * (size + 1) // 2) % (1 << 20)
        for at, array in enumerate((few, many)):
            assert (array.get() % (1 << 20) == expected[at]).all()
        parts = [100 * peer + 2 * rank + np.arange(2) + turn for peer in range(size)]
        np.testing.assert_array_equal(received.get(), parts)


def test_the_world_s_reductions_of_programs_are_these(world: World, small: SmallCollectives) -> None:
    key = world.xp.full(1, world.rank, np.uint64)
    world.arrays.all_reduce(key, "max")
    assert int(key[0]) == world.size - 1
    assert vars(world.arrays)["_small"] is not None


ALONE = """
import os
from types import SimpleNamespace
from meshrun.runner.comm.peer_arrays import DeviceTables
from meshrun.runner.comm.small.collectives import SmallCollectives
from meshrun.runner.device.cuda import CudaBackend

class Peers:
    def empty(self, shape, dtype):
        import cupy
        return cupy.empty(shape, dtype)

    def open(self, arrays, peers):
        return {1: [self.empty(arrays[0].shape, arrays[0].dtype).data.ptr]}

backend = CudaBackend(0)
small = SmallCollectives(SimpleNamespace(rank=0, size=2), backend, DeviceTables(), Peers(), patience=0.2)
small.all_reduce(backend.xp.zeros(3), "sum")
try:
    backend.synchronize()
except RuntimeError as reason:
    print(type(reason).__name__, small.failure, flush=True)
os._exit(0)
"""


def test_a_rank_that_does_not_come_ends_the_work_of_the_device(world: World) -> None:
    """In a process of its own, whose device can do nothing afterwards."""
    if world.rank == 0:
        command = [sys.executable, "-c", ALONE]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert "CUDARuntimeError rank 0 waited in vain for rank 1" in done.stdout, done.stderr
    world.control.barrier()
