"""Counters of MPI's ranks, and chunks dealt with them: mpiexec -n 3 python -m pytest --with-mpi tests/mpi."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from meshrun.runner.comm.api import Counters
from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.errors import RunError
from meshrun.runner.maps.streamed.work_stealing import ChunkQueue
from meshrun.runner.plan.grid import bounds

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]
SLOW = 0  # the slow rank


@pytest.fixture(params=["one host", "several hosts"])
def counters(
    request: pytest.FixtureRequest, comm: MpiComm, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Counters]:
    """In shared memory, and as between hosts, which one rank alone never is."""
    if request.param == "several hosts":
        if comm.size == 1:
            pytest.skip("one rank")
        monkeypatch.setattr(comm, "shared_memory_size", lambda: 1)
    made = comm.counters()
    yield made
    made.close()


def everyone(comm: MpiComm, found: list[int]) -> list[int]:
    return sorted(number for each in comm.allgather(found) for number in each)


def test_counters_start_at_zero(comm: MpiComm, counters: Counters) -> None:
    assert counters.read() == [0] * comm.size
    comm.barrier()
    assert counters.take(comm.rank) == 0


def test_each_rank_has_one(comm: MpiComm, counters: Counters) -> None:
    assert [counters.take(comm.rank) for _ in range(comm.rank + 2)] == list(range(comm.rank + 2))
    comm.barrier()
    assert counters.read() == [rank + 2 for rank in range(comm.size)]


@pytest.mark.parametrize("owner", [0, -1])
def test_no_two_ranks_take_the_same(comm: MpiComm, counters: Counters, owner: int) -> None:
    times = 1000
    taken = [counters.take(owner % comm.size) for _ in range(times)]
    assert taken == sorted(taken)
    assert everyone(comm, taken) == list(range(times * comm.size))
    assert counters.read()[owner] == times * comm.size


def test_who_reads_sees_what_it_took(comm: MpiComm, counters: Counters) -> None:
    for _ in range(100):
        for owner in range(comm.size):
            before = counters.take(owner)
            assert counters.read()[owner] > before


def test_counters_of_a_split(comm: MpiComm) -> None:
    """Each part's are its own, and there may be several at once."""
    part = comm.split(comm.rank % 2)
    one, other = part.counters(), part.counters()
    assert [one.take(part.rank) for _ in range(3)] == [0, 1, 2]
    assert other.take(part.rank) == 0
    part.barrier()
    assert one.read() == [3] * part.size
    assert other.read() == [1] * part.size
    other.close()
    one.close()
    part.close()


def test_made_and_closed_many_times(comm: MpiComm) -> None:
    for _ in range(50):
        counters = comm.counters()
        assert counters.take(comm.rank) == 0
        counters.close()


def test_a_library_without_one_sided(comm: MpiComm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI 4 over TCP, for one."""

    def refuse(*_: object, **__: object) -> None:
        raise mpi.Exception(mpi.ERR_WIN)

    mpi = comm._mpi
    monkeypatch.setattr(mpi, "Win", SimpleNamespace(Create=refuse, Allocate_shared=refuse))
    with pytest.raises(RunError, match=r"no one-sided communication .* --static") as refused:
        comm.counters()
    assert refused.value.everywhere


@pytest.mark.parametrize("length", [0, 1, 7, 101])
def test_each_chunk_once(comm: MpiComm, counters: Counters, length: int) -> None:
    todo = range(1000, 1000 + length)
    queue = ChunkQueue(todo, comm.rank, comm.size, counters)
    got = list(queue)
    assert queue.own + queue.taken_over == len(got)
    assert everyone(comm, got) == list(todo)


@pytest.fixture
def nap(request: pytest.FixtureRequest, counters: Counters) -> Callable[[float], None]:
    """Do nothing for so many seconds; between hosts, but serve the others."""

    def served(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.001)
            counters.progress()

    return time.sleep if "one host" in request.node.name else served


def test_a_rank_that_sleeps_gets_fewer(
    comm: MpiComm, counters: Counters, nap: Callable[[float], None]
) -> None:
    todo = range(20 * comm.size)
    queue, got = ChunkQueue(todo, comm.rank, comm.size, counters), []
    for chunk in queue:
        got.append(chunk)
        nap(0.03 if comm.rank == SLOW else 0.001)
    assert everyone(comm, got) == list(todo)
    all_own = comm.allgather(queue.own)
    totals = comm.allgather(len(got))
    assert all_own[SLOW] < 20 or comm.size == 1
    assert totals[SLOW] < len(todo) / comm.size or comm.size == 1  # another may have no core at all meanwhile


def test_a_rank_that_waits_keeps_what_it_took(comm: MpiComm, counters: Counters) -> None:
    """The others do all the rest meanwhile."""
    todo = range(10 * comm.size)
    queue = ChunkQueue(todo, comm.rank, comm.size, counters)
    chunks = iter(queue)
    got = [next(chunks) for _ in range(3)] if comm.rank == SLOW else []
    comm.barrier()
    while comm.rank == SLOW and comm.size > 1 and min(counters.read()) < 10:
        counters.progress()
    got += chunks
    assert everyone(comm, got) == list(todo)
    assert len(got) == 3 or comm.rank != SLOW or comm.size == 1


def test_static(comm: MpiComm) -> None:
    queue = ChunkQueue(range(11), comm.rank, comm.size, None)
    assert list(queue) == list(range(*bounds(11, comm.size, comm.rank)))
    assert queue.taken_over == 0
