"""Chunks dealt to ranks: each once whatever the interleaving, and nobody idle while another has some left."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.comm.api import Counters
from meshrun.runner.comm.threads import ThreadComm, ThreadCounters, run_ranks
from meshrun.runner.maps.streamed.work_stealing import ChunkQueue
from meshrun.runner.plan.grid import bounds

TODO = st.lists(st.integers(0, 10_000), unique=True, max_size=60).map(sorted)


class Stale(ThreadCounters):
    """Reads that lag behind by as many takes as drawn, as if others had taken since; then the truth."""

    def __init__(self, size: int, lags: list[int]) -> None:
        super().__init__(size)
        self.lags = lags

    def read(self) -> list[int]:
        lag = self.lags.pop() if self.lags else 0
        return [max(0, value - lag) for value in super().read()]


def queues(todo: Sequence[int], size: int, counters: Counters | None) -> list[ChunkQueue]:
    return [ChunkQueue(todo, rank, size, counters) for rank in range(size)]


def take_all(each: Sequence[ChunkQueue], turns: Sequence[int]) -> list[list[int]]:
    """What each rank gets, asking in the order of `turns`, then one rank after the other for all there is."""
    chunks = [iter(queue) for queue in each]
    got: list[list[int]] = [[] for _ in each]
    for rank in turns:
        got[rank] += itertools.islice(chunks[rank], 1)
    return [mine + list(rest) for mine, rest in zip(got, chunks, strict=True)]


@given(TODO, st.integers(1, 9), st.data())
def test_each_chunk_once(todo: list[int], size: int, data: st.DataObject) -> None:
    turns = data.draw(st.lists(st.integers(0, size - 1), max_size=100), label="turns")
    lags = data.draw(st.lists(st.integers(0, 5), max_size=30), label="lags")
    each = queues(todo, size, Stale(size, lags))
    got = take_all(each, turns)
    assert sorted(chunk for chunks in got for chunk in chunks) == todo
    for rank, (queue, chunks) in enumerate(zip(each, got, strict=True)):
        block = set(todo[slice(*bounds(len(todo), size, rank))])
        own, others = chunks[: queue.own], chunks[queue.own :]  # its own first
        assert own == sorted(block.intersection(own))
        assert block.isdisjoint(others)
        assert (len(own), len(others)) == (queue.own, queue.taken_over)


@given(TODO, st.integers(1, 9), st.data())
def test_static_is_the_blocks(todo: list[int], size: int, data: st.DataObject) -> None:
    turns = data.draw(st.lists(st.integers(0, size - 1), max_size=100), label="turns")
    each = queues(todo, size, None)
    assert take_all(each, turns) == [todo[slice(*bounds(len(todo), size, rank))] for rank in range(size)]
    assert all(queue.taken_over == 0 for queue in each)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("length", [0, 1, 5, 200])
def test_each_chunk_once_among_threads(size: int, length: int) -> None:
    """Ranks that run at once and stop anywhere, between a look at the counters and a take too."""
    todo = range(7, 7 + length)

    def rank(comm: ThreadComm) -> list[int]:
        counters = comm.counters()
        got = []
        for chunk in ChunkQueue(todo, comm.rank, comm.size, counters):
            got.append(chunk)
            time.sleep(0)  # lets another thread go first
        counters.close()
        return got

    got = run_ranks(size, rank)
    assert sorted(chunk for chunks in got for chunk in chunks) == list(todo)


def test_counters_of_simulated_ranks() -> None:
    def rank(comm: ThreadComm) -> list[list[int]]:
        one, other = comm.counters(), comm.counters()
        seen = [one.read()]
        comm.barrier()
        seen.append([one.take(comm.rank) for _ in range(comm.rank + 1)])
        comm.barrier()
        one.progress()
        return [*seen, one.read(), other.read()]

    assert run_ranks(3, rank)[2] == [[0, 0, 0], [0, 1, 2], [1, 2, 3], [0, 0, 0]]


def test_a_counter_gives_no_number_twice() -> None:
    def rank(comm: ThreadComm) -> list[int]:
        counters = comm.counters()
        return [counters.take(1) for _ in range(2000)]

    got = run_ranks(4, rank)
    assert sorted(number for numbers in got for number in numbers) == list(range(8000))


def finish(each: Sequence[ChunkQueue], seconds: Sequence[float], depth: int = 1) -> float:
    """The time when all is done: rank r needs seconds[r] for a chunk, and always holds `depth` of them."""
    chunks = [iter(queue) for queue in each]
    held = [sum(next(chunks[rank], None) is not None for _ in range(depth)) for rank in range(len(each))]
    clock = [(seconds[rank], rank) for rank in range(len(each)) if held[rank]]
    heapq.heapify(clock)
    now = 0.0
    while clock:
        now, rank = heapq.heappop(clock)
        held[rank] += (next(chunks[rank], None) is not None) - 1
        if held[rank]:
            heapq.heappush(clock, (now + seconds[rank], rank))
    return now


def ideal(length: int, seconds: Sequence[float]) -> float:
    """All ranks busy from beginning to end."""
    return length / sum(1 / each for each in seconds)


def test_one_rank_ten_times_slower() -> None:
    seconds = [10.0, 1.0, 1.0, 1.0]
    each = queues(range(400), 4, ThreadCounters(4))
    assert finish(each, seconds) <= ideal(400, seconds) + 10  # 139
    assert finish(queues(range(400), 4, None), seconds) == 1000
    assert [queue.own for queue in each] == [13, 100, 100, 100]
    assert [queue.taken_over for queue in each] == [0, 29, 29, 29]


@given(
    st.integers(0, 300),
    st.lists(st.sampled_from([1.0, 1.5, 2.0, 10.0]), min_size=1, max_size=8),
    st.integers(1, 4),
)
def test_no_rank_sets_the_pace(length: int, seconds: list[float], depth: int) -> None:
    """Nearly the ideal time: what more it takes is what the slowest rank holds when the last is dealt."""
    size = len(seconds)
    took = finish(queues(range(length), size, ThreadCounters(size)), seconds, depth)
    assert took <= ideal(length, seconds) + depth * max(seconds) + 1e-9


@given(st.integers(0, 300), st.integers(1, 8))
def test_ranks_alike_keep_their_blocks(length: int, size: int) -> None:
    """But for the last chunk of a block that is one longer, which may go to a rank that is done."""
    each = queues(range(length), size, ThreadCounters(size))
    finish(each, [1.0] * size)
    assert [queue.own + queue.taken_over for queue in each] == sorted(
        (stop - start for start, stop in (bounds(length, size, rank) for rank in range(size))), reverse=True
    )


def test_ranks_that_are_done_turn_to_different_ranks() -> None:
    """Ranks 1 and 3 are done; 0, 2 have as many left."""
    each = queues(range(40), 4, ThreadCounters(4))
    chunks = [iter(queue) for queue in each]
    for rank in (1, 3):
        for _ in range(10):
            next(chunks[rank])
    assert next(chunks[1]) == 20  # rank 2's first
    assert next(chunks[1]) == 0
    assert next(chunks[3]) == 1
    assert next(chunks[3]) == 21
