"""Offsets between the ranks' clocks and rank 0's, measured by messages.

Cristian's algorithm (Probabilistic clock synchronization, Distributed Computing 3, 1989): a rank requests the
time from rank 0 and records when it sent the request and received the reply. Rank 0 read its clock in
between, so the midpoint is wrong by at most half the round trip. The shortest of several round trips is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshrun.runner.comm.api import Control


@dataclass(frozen=True)
class Clock:
    """One rank's clock. A time on it minus `offset` is the time on rank 0's clock; seconds.

    uncertainty: largest error of the offset when measured, in seconds. Clocks of different hosts drift
    apart by microseconds per second, so an offset is valid for about a minute, not for the whole run.
    """

    offset: float
    uncertainty: float


def clock_offsets(
    control: Control, rounds: int = 10, now: Callable[[], float] = time.perf_counter
) -> list[Clock]:
    """Measure every rank's clock; returns them in rank order on every rank. Collective.

    rounds: round trips for each rank, one rank after another. now: reads this rank's clock, in seconds.
    """
    clock = Clock(0.0, 0.0)
    if control.rank == 0:
        for peer in range(1, control.size):
            for _ in range(rounds):
                _send_time(control, peer, now)
    else:
        clock = min((_request_time(control, now) for _ in range(rounds)), key=lambda one: one.uncertainty)
    clocks: list[Clock] = control.allgather(clock)
    return clocks


def _request_time(control: Control, now: Callable[[], float]) -> Clock:
    reply = np.empty(1)
    sent = now()
    control.exchange([(0, np.zeros(1))], [(0, reply)]).wait()
    received = now()
    return Clock((sent + received) / 2 - float(reply[0]), (received - sent) / 2)


def _send_time(control: Control, peer: int, now: Callable[[], float]) -> None:
    control.exchange([], [(peer, np.empty(1))]).wait()
    control.exchange([(peer, np.array([now()]))], []).wait()
