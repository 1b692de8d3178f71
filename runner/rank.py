"""This process as one rank of a command: the world opened, every end in order, the verdict left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from runner import early, launcher
from runner.ending import GRACE, Ending, Guard, end_with_parent, on_termination
from runner.errors import MeshrunError, RunError, UserError, is_met_by_all, tell
from runner.heartbeat import Heartbeat
from runner.inspection import preflight
from runner.launcher import BY_HAND, Started
from runner.verdict import run_at
from runner.world import Check, DeviceChoice, World, open_world

Record = dict[str, Any]


def as_rank(
    body: Callable[[World, Ending], Record],
    *,
    device: DeviceChoice = "auto",
    oversubscribe: bool = False,
    started: Started = BY_HAND,
    debug: bool = False,
    check: Check | None = None,
    usage_status: int = UserError.exit_code,
    failure_status: int = RunError.exit_code,
    farewell: str = Ending.farewell,
    keep: Callable[[Ending], None] | None = None,
) -> int:
    """Run `body(world, ending)` as one rank; the exit status. Tells every error itself; collective.

    body: returns the completion record, plain values that JSON can hold. started: what whoever
    started the ranks said. check: instead of the usual preflight. usage_status: the exit status of a
    UserError. failure_status: of any other failure that has none of its own, and of a run whose ranks are
    killed. farewell: what an interrupted run says. keep: on rank 0, `Ending.keep` until `body` sets another.
    """
    ending = Ending(
        run_at(started.run) if started.run else None,
        debug,
        usage_status=usage_status,
        failure_status=failure_status,
        farewell=farewell,
    )
    on_termination(ending.interrupted)
    told = launcher.announced()
    if keep is not None and (told is None or told.rank == 0):
        ending.keep = partial(keep, ending)
    if told is not None:
        end_with_parent()
        if told.size != 1:
            early.begin(device)
    world = enter(ending, device, oversubscribe, started, check)
    if isinstance(world, int):
        return world
    if world.rank == 0 and ending.run is not None and failure_status != RunError.exit_code:
        ending.run.keep_status(failure_status)
    with Guard(world, ending, speaks=True):
        try:
            record = body(world, ending)
            world.close()
        except BaseException as failure:
            if not is_met_by_all(failure):
                raise
            status = ending.fail_together(failure, world.rank)
            world.close()
            return status
    if world.rank == 0 and ending.run is not None:
        ending.run.complete(record)
    return 0


def enter(
    ending: Ending,
    device: DeviceChoice,
    oversubscribe: bool,
    started: Started,
    check: Check | None = None,
) -> World | int:
    """The world, or the exit status where there is none to be had."""
    check = check or preflight(started, oversubscribe=oversubscribe)
    told = launcher.announced()
    rank = told.rank if told else 0
    try:
        launcher.working_directory()
        world = open_world(device, oversubscribe=oversubscribe, expected_ranks=started.ranks, check=check)
    except BaseException as failure:
        shared = is_met_by_all(failure)
        if not (shared or isinstance(failure, MeshrunError)):
            raise
        if rank and not shared:
            time.sleep(GRACE)  # rank 0 has likely met the same, and its end ends this rank too
        return ending.fail_together(failure, rank if shared else 0)
    if ending.run is not None:
        ending.run.register(world.rank, world.here.host, os.getpid())
    ending.world = world
    heartbeat = Heartbeat(world, started.host_timeout, ending.end_now)
    for warning in (*world.warnings, *heartbeat.warnings) if world.rank == 0 else ():
        tell(f"warning: {warning}")
    return world
