"""Ranks as threads: order of messages, reductions, and that no failure or deadlock hangs."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from meshrun.runner.comm.api import Operation
from meshrun.runner.comm.threads import ThreadComm, ThreadHub, run_ranks
from meshrun.runner.errors import RunError, UserError

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"]


def test_messages_between_two_ranks_keep_their_order() -> None:
    def rank_main(comm: ThreadComm) -> list[list[int]]:
        peers = range(comm.size)
        sent = [(peer, np.full(3, 100 * comm.rank + 10 * peer + n)) for n in range(4) for peer in peers]
        received = [(peer, np.empty(3, int)) for _ in range(4) for peer in peers]
        comm.exchange(sent, received).wait()
        return [[int(array[0]) for from_peer, array in received if from_peer == peer] for peer in peers]

    for rank, got in enumerate(run_ranks(3, rank_main)):
        assert got == [[100 * peer + 10 * rank + n for n in range(4)] for peer in range(3)]


def test_one_exchange_after_another() -> None:
    """A fast rank's second message does not overtake its first."""

    def rank_main(comm: ThreadComm) -> list[int]:
        got = []
        for turn in range(50):
            target = np.empty(1, int)
            right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            comm.exchange([(right, np.array([turn]))], [(left, target)]).wait()
            got.append(int(target[0]))
        return got

    assert run_ranks(4, rank_main) == [list(range(50))] * 4


def test_a_sent_array_may_be_reused_at_once() -> None:
    def rank_main(comm: ThreadComm) -> float:
        array, target = np.full(5, float(comm.rank)), np.empty(5)
        pending = comm.exchange([(1 - comm.rank, array)], [(1 - comm.rank, target)])
        array.fill(np.nan)
        pending.wait()
        return float(target[4])

    assert run_ranks(2, rank_main) == [1.0, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_any_dtype_and_shape_arrives(dtype: str, shape: tuple[int, ...]) -> None:
    def rank_main(comm: ThreadComm) -> bool:
        arrays = [np.random.default_rng(rank).integers(0, 2, shape).astype(dtype) for rank in range(2)]
        target = np.full(shape, 77, dtype)
        comm.exchange([(1 - comm.rank, arrays[comm.rank])], [(1 - comm.rank, target)]).wait()
        return bool(np.array_equal(target, arrays[1 - comm.rank]))

    assert run_ranks(2, rank_main) == [True, True]


def test_a_message_of_the_wrong_size_is_an_error() -> None:
    def rank_main(comm: ThreadComm) -> None:
        comm.exchange([(1 - comm.rank, np.zeros(3))], [(1 - comm.rank, np.zeros(4))]).wait()

    with pytest.raises(RunError, match=r"sent 24 bytes, rank \d expected 32"):
        run_ranks(2, rank_main)


def test_an_array_with_gaps_is_refused() -> None:
    """Reading it would send a copy, and receiving into it would fill one: data lost without a word."""
    every_second = np.zeros((4, 4))[:, ::2]
    comm = ThreadComm()
    with pytest.raises(ValueError, match="C-contiguous"):
        comm.exchange([(0, every_second)], [])
    with pytest.raises(ValueError, match="C-contiguous"):
        comm.exchange([(0, np.zeros((4, 2)))], [(0, every_second)])


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("operation", ["sum", "prod", "min", "max"])
def test_all_reduce(operation: Operation, dtype: str) -> None:
    inputs = np.random.default_rng(0).integers(1, 4, (3, 5)).astype(dtype)

    def rank_main(comm: ThreadComm) -> np.ndarray:
        array = inputs[comm.rank].copy()
        comm.all_reduce(array, operation)
        return array

    for result in run_ranks(3, rank_main):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, getattr(inputs, operation)(axis=0))


def test_control_values() -> None:
    def rank_main(comm: ThreadComm) -> tuple[object, list[object]]:
        return comm.broadcast(f"from {comm.rank}"), comm.allgather(comm.rank**2)

    assert run_ranks(3, rank_main) == [("from 0", [0, 1, 4])] * 3


def test_gathers_in_a_row_do_not_mix() -> None:
    def rank_main(comm: ThreadComm) -> list[list[int]]:
        return [comm.allgather(10 * turn + comm.rank) for turn in range(100)]

    expected = [[10 * turn + rank for rank in range(3)] for turn in range(100)]
    assert run_ranks(3, rank_main) == [expected] * 3


def test_a_barrier_waits_for_everyone() -> None:
    arrived: list[int] = []

    def rank_main(comm: ThreadComm) -> int:
        time.sleep(0.02 * comm.rank)
        arrived.append(comm.rank)
        comm.barrier()
        return len(arrived)

    assert run_ranks(3, rank_main) == [3, 3, 3]


def test_a_lone_rank() -> None:
    comm = ThreadComm()
    array, target = np.arange(4.0), np.empty(4)
    comm.exchange([(0, array)], [(0, target)]).wait()
    comm.all_reduce(target, "sum")
    comm.barrier()
    assert target.tolist() == [0, 1, 2, 3]
    assert comm.broadcast("x") == "x"
    assert comm.allgather("x") == ["x"]
    assert (comm.rank, comm.size, comm.shared_memory_size()) == (0, 1, 1)


@pytest.mark.parametrize("others_wait_for", ["message", "barrier", "reduction"])
def test_a_failing_rank_ends_the_others_and_its_error_is_the_one_raised(others_wait_for: str) -> None:
    ended: list[int] = []

    def rank_main(comm: ThreadComm) -> None:
        if comm.rank == 1:
            raise UserError("the real reason")
        try:
            if others_wait_for == "message":
                comm.exchange([], [(1, np.empty(1))]).wait()
            elif others_wait_for == "barrier":
                comm.barrier()
            else:
                comm.all_reduce(np.ones(1), "sum")
        finally:
            ended.append(comm.rank)

    with pytest.raises(UserError, match="the real reason"):
        run_ranks(3, rank_main)
    assert sorted(ended) == [0, 2]


def test_a_rank_that_returns_early_is_found_by_those_that_wait_for_it() -> None:
    def rank_main(comm: ThreadComm) -> None:
        if comm.rank == 0:
            comm.barrier()

    with pytest.raises(RunError, match="at a barrier"):
        run_ranks(2, rank_main, timeout=0.2)


def test_a_deadlock_is_an_error_after_the_patience() -> None:
    def rank_main(comm: ThreadComm) -> None:
        comm.exchange([], [(1 - comm.rank, np.empty(1))]).wait()

    with pytest.raises(RunError, match="no message from rank"):
        run_ranks(2, rank_main, timeout=0.2)


def test_abort_ends_everyone() -> None:
    def rank_main(comm: ThreadComm) -> None:
        if comm.rank == 0:
            comm.abort(3)
        else:
            comm.barrier()

    with pytest.raises(RunError, match="another rank ended"):
        run_ranks(2, rank_main)


def test_no_threads_are_left_behind() -> None:
    before = set(threading.enumerate())  # some of which other tests have left, and end meanwhile
    run_ranks(4, lambda comm: comm.barrier())
    with pytest.raises(RunError):
        run_ranks(2, lambda comm: comm.hub.collect(1 - comm.rank, comm.rank), timeout=0.05)
    assert not set(threading.enumerate()) - before


def test_a_message_that_is_there_is_not_lost_when_a_rank_fails() -> None:
    hub = ThreadHub(2)
    hub.post(0, 1, np.array([5]))
    hub.fail()
    assert hub.collect(0, 1).tolist() == [5]
    with pytest.raises(RunError):
        hub.collect(0, 1)
