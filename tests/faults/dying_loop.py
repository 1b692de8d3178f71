"""A job with a loop of its own, conjugate gradients, whose ranks are killed or delayed in it.

A test copies it to where it runs. The variable STAGE is "WHERE,RANK,ITERATION": which rank is killed, in the
iteration that follows so many, or while it writes their checkpoint. With DELAYS, each rank sleeps before
iterations, for times of its own.
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
from meshrun.runner.storage.formats.flat import FlatSink

notes = Path(os.environ["MESHRUN_TEST_RUN"])
where, victim, moment = os.environ.get("STAGE", "nowhere,0,0").split(",")
taken = [-1]
sync = FlatSink.sync


def die() -> None:
    (notes / f"failing-{victim}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in_a_checkpoint(sink: FlatSink) -> None:
    if ".checkpoint/" in str(sink.path) and taken == [int(moment)]:
        die()
    sync(sink)


@meshrun.job
def solve(world: Any, input: Any, output: Any) -> Any:
    """Solve Poisson's equation."""
    if where == "checkpoint" and world.rank == int(victim):
        FlatSink.sync = dies_in_a_checkpoint  # type: ignore[method-assign]
    chance = random.Random(world.rank)
    b = meshrun.load(world, input)
    x, r, p, rho, done = 0 * b, b.copy(), b.copy(), np.vdot(b, b), 0
    began = None
    while rho > 1e-6:
        taken[0] = done
        x, r, p, rho, done = meshrun.checkpoint("cg", x=x, r=r, p=p, rho=rho, done=done, every=10)
        began = done if began is None else began
        if where == "loop" and world.rank == int(victim) and done == int(moment):
            die()
        if "DELAYS" in os.environ:
            time.sleep(chance.choice([0, 0, 0, 0.003]))
        q = 4 * p
        q[1:] -= p[:-1]
        q[:-1] -= p[1:]
        q[:, 1:] -= p[:, :-1]
        q[:, :-1] -= p[:, 1:]
        alpha = rho / np.vdot(p, q)
        x += alpha * p
        r -= alpha * q
        last, rho = rho, np.vdot(r, r)
        p, done = r + rho / last * p, done + 1
    meshrun.save(world, output, x)
    return {"began": began, "iterations": done}
