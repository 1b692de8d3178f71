"""A function with a `while` on a value, whose ranks are disturbed at its condition.

A test copies it to where it runs. The variable STAGE is "WHAT,RANK,STEP,ITERATION": what happens to which
rank after that iteration of the step that follows so many. With DELAYS, each rank sleeps before iterations,
for times of its own.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import meshrun
from meshrun.runner.programs.looping import LoopRun

notes = Path(os.environ["MESHRUN_TEST_RUN"])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
what, victim, *moment = os.environ.get("STAGE", "nothing,0,0,0").split(",")
chance = random.Random(rank)
iterate = LoopRun._iterate


def disturbed(loop: LoopRun, count: int) -> None:
    if "DELAYS" in os.environ:
        time.sleep(chance.choice([0, 0, 0, 0.003]))
    iterate(loop, count)
    done = count + loop.stage.loop.numbers.unrolled
    if rank != int(victim) or [loop.run.host.step, done] != list(map(int, moment)):
        return
    if what == "die":
        (notes / f"failing-{rank}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        time.sleep(1)
    if what == "nan":  # in the rank's first cell of the field
        next(iter(loop._blocks.values()))[count % 2].interior[0, 0] = np.nan


LoopRun._iterate = disturbed  # type: ignore[method-assign]


@meshrun.distribute(outputs=("u", "count"))
def relaxed(u: Any, count: Any) -> Any:
    """Sweeps until no cell changes by more than a tolerance, and what disturbs them for the next step."""
    change, sweeps = np.inf, 0
    while change > 0.03 and sweeps < 30:
        before = u.copy()
        u[1:-1] = (before[2:] + 2 * before[1:-1] + before[:-2]) / 4
        change = np.max(np.abs(u - before))
        sweeps += 1
    u = 4 * u * (1 - np.roll(u, 1, 1))
    return u - np.floor(u), count * 31 % 1000003 + sweeps
