"""The pools of a GPU: what they give out can be used, what they say they hold is so; the lesson over them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from meshrun.jobs.bench.lessons.pool import lesson
from meshrun.jobs.bench.lessons.pool.workload import account, workload
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.runner.device.raw.allocators import Pool, open_pools
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import single_rank_world

cupy = pytest.importorskip("cupy", reason="needs CuPy")

MOST = 256 << 20
LABELS = ("cudaMalloc", "cudaMallocAsync", "cudaMallocAsync, keeping", "CuPy's pool")


@pytest.fixture(params=range(len(LABELS)), ids=LABELS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with cupy.cuda.Device(0):
        opened = open_pools(MOST)
        assert tuple(one.label for one in opened) == LABELS
        yield opened[request.param]
        for one in opened:
            one.close()


def at(address: int, nbytes: int) -> Any:
    memory = cupy.cuda.UnownedMemory(address, nbytes, None, 0)
    return cupy.ndarray(nbytes, cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))


def test_what_is_given_out_keeps_what_is_written(pool: Pool) -> None:
    chance, live = random.Random(5), []
    for number in range(300):
        if live and chance.random() < 0.45:
            handle, nbytes, byte = live.pop(chance.randrange(len(live)))
            assert bool((at(pool.address(handle), nbytes) == byte).all())
            pool.release(handle)
        else:
            nbytes = chance.randrange(1, 1 << 20)
            handle = pool.allocate(nbytes)
            at(pool.address(handle), nbytes).fill(number % 251)
            live.append((handle, nbytes, number % 251))
    for handle, _, _ in live:
        pool.release(handle)
    pool.settle()


def test_what_it_holds(pool: Pool) -> None:
    pool.trim()
    assert pool.reserved() == 0
    handle = pool.allocate(64 << 20)
    pool.settle(handle)
    assert 64 << 20 <= pool.reserved() < 128 << 20
    pool.release(handle)
    pool.settle()
    # Only pools keep what is released, and CUDA's by default not beyond a synchronisation.
    keeps = pool.label in LABELS[2:]
    assert (pool.reserved() >= 64 << 20) == keeps
    pool.trim()
    assert pool.reserved() == 0


def test_the_account_of_a_workload(pool: Pool) -> None:
    found = account(pool, workload(64 << 20, 200), lambda: 0, settle=False)
    assert found.overlaps == ()
    assert 32 << 20 < found.live <= 64 << 20
    assert all(moment.reserved >= moment.live for moment in found.moments)
    assert found.trimmed == 0


def test_too_much_is_refused_and_the_pool_goes_on(pool: Pool) -> None:
    with pytest.raises(UserError, match=r"failed to allocate memory .*: got .*, expected ") as caught:
        pool.allocate(1 << 45)
    assert pool.label in str(caught.value)
    handle = pool.allocate(1 << 20)
    at(pool.address(handle), 1 << 20).fill(1)
    pool.settle(handle)
    pool.release(handle)


def test_the_lesson() -> None:
    from meshrun.runner.device.cuda import CudaBackend

    world, box = single_rank_world(CudaBackend(0)), open_box()
    before = box.free_memory(0)
    found = lesson.measure(Context(world, box, 0, samples=2, maxbytes=32 << 20, options={"watch": True}))
    assert found.mismatches == ()
    assert [one["pool"] for one in found.facts["workload"]] == list(LABELS)
    assert all(one["peak_reserved"] >= one["peak_live"] for one in found.facts["workload"])
    assert all(one["trimmed"] == 0 for one in found.facts["workload"])
    assert before - box.free_memory(0) < 64 << 20, "the lesson keeps memory"
    box.close()
