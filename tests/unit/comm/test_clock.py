"""Offsets between the clocks of ranks, on clocks that the test has set."""

from __future__ import annotations

import time

import pytest

from meshrun.runner.comm.clock import Clock, clock_offsets
from meshrun.runner.comm.threads import ThreadComm, run_ranks


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shifted_clocks(size: int) -> None:
    shifts = [0.0, 1000.0, -0.25, 3e-6, 86400.0][:size]

    def rank_main(comm: ThreadComm) -> list[Clock]:
        return clock_offsets(comm, now=lambda: time.perf_counter() + shifts[comm.rank])

    answers = run_ranks(size, rank_main)
    assert answers == [answers[0]] * size
    assert answers[0][0] == Clock(0.0, 0.0)
    for clock, shift in zip(answers[0], shifts, strict=True):
        # Not a matter of luck: the answer was read between the question and its arrival.
        assert abs(clock.offset - shift) <= clock.uncertainty + 1e-10


def test_rank_zero_is_shifted_itself() -> None:
    def rank_main(comm: ThreadComm) -> list[Clock]:
        return clock_offsets(comm, now=lambda: time.perf_counter() + (50.0 if comm.rank == 0 else 0.0))

    clock = run_ranks(2, rank_main)[0][1]
    assert abs(clock.offset + 50.0) <= clock.uncertainty + 1e-10


def test_the_quickest_round_trip_counts() -> None:
    """Rank 1 asks at 0, 10, 20 and has its answers at 4, 11, 30; rank 0 reads 103, 110.5, 121."""
    readings = [iter([103.0, 110.5, 121.0]), iter([0.0, 4.0, 10.0, 11.0, 20.0, 30.0])]

    def rank_main(comm: ThreadComm) -> list[Clock]:
        return clock_offsets(comm, rounds=3, now=lambda: next(readings[comm.rank]))

    assert run_ranks(2, rank_main) == [[Clock(0.0, 0.0), Clock(-100.0, 0.5)]] * 2
