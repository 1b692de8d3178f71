"""Clock offsets: how far each rank's clock is from rank 0's, measured by messages.

Cristian's algorithm (Probabilistic clock synchronization, Distributed Computing 3, 1989): a rank asks rank 0
for the time and notes when it asked and when the answer came. Rank 0 read its clock somewhere in between,
so the middle is wrong by at most half the round trip. The quickest of a few round trips counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runner.comm.api import Control


@dataclass(frozen=True)
class Clock:
    """One rank's clock. A time on it minus `offset` is the time on rank 0's; seconds.

    uncertainty: by how much that may be wrong, when it was measured. Clocks of different hosts drift
    apart by microseconds a second, so offsets are for the next minute, not for the whole run.
    """

    offset: float
    uncertainty: float


def clock_offsets(
    control: Control, rounds: int = 10, now: Callable[[], float] = time.perf_counter
) -> list[Clock]:
    """Every rank's clock, by rank, on every rank; every rank calls it.

    rounds: round trips for each rank, one rank after another. now: reads this rank's clock, seconds.
    """
    clock = Clock(0.0, 0.0)
    if control.rank == 0:
        for peer in range(1, control.size):
            for _ in range(rounds):
                _answer(control, peer, now)
    else:
        clock = min((_ask(control, now) for _ in range(rounds)), key=lambda found: found.uncertainty)
    clocks: list[Clock] = control.allgather(clock)
    return clocks


def _ask(control: Control, now: Callable[[], float]) -> Clock:
    answer = np.empty(1)
    asked = now()
    control.exchange([(0, np.zeros(1))], [(0, answer)]).wait()
    answered = now()
    return Clock((asked + answered) / 2 - float(answer[0]), (answered - asked) / 2)


def _answer(control: Control, peer: int, now: Callable[[], float]) -> None:
    control.exchange([], [(peer, np.empty(1))]).wait()
    control.exchange([(peer, np.array([now()]))], []).wait()
