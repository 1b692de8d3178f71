"""Run a command as one rank: open the world, report failures, leave the completion record."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from meshrun.runner.comm.clock import clock_offsets
from meshrun.runner.comm.recorded import write_operations
from meshrun.runner.errors import BadResult, MeshrunError, RunError, UserError, is_met_by_all, tell
from meshrun.runner.files import working_directory
from meshrun.runner.options.choices import DeviceChoice
from meshrun.runner.recorder.operations import OperationLog, RankOperations, now
from meshrun.runner.system import launcher
from meshrun.runner.system.launcher import BY_HAND, Started
from meshrun.runner.world import preload
from meshrun.runner.world.failure import GRACE, FailureHandler, Guard
from meshrun.runner.world.heartbeat import Heartbeat
from meshrun.runner.world.log import warnings_told
from meshrun.runner.world.preflight.inspection import preflight
from meshrun.runner.world.run_status import RunLines, run_at
from meshrun.runner.world.stuck import monitor
from meshrun.runner.world.termination import end_with_parent, on_termination
from meshrun.runner.world.world import Check, World, open_world

Record = dict[str, Any]
Value = TypeVar("Value")


@warnings_told()
def run_as_rank(
    body: Callable[[World, FailureHandler], Record],
    handler: FailureHandler,
    *,
    device: DeviceChoice = "auto",
    oversubscribe: bool = False,
    started: Started = BY_HAND,
    check: Check | None = None,
    command: str = "",
    watch_stalls: bool = False,
    later: bool = False,
) -> int:
    """Run `body(world, handler)` as one rank and report every error; returns the exit status. Collective.

    body: returns the completion record, of plain values that JSON can hold. handler: without a status; its
    `before_exit` is called on rank 0 until `body` sets another. Its `failure_exit_status` is also the status
    of a run whose ranks are killed. started: from the process that started the ranks. check: replaces the
    usual preflight. command: what the run does, for `meshrun status`. watch_stalls: end the run after
    `started.stall_timeout` without progress; not for a body with a watchdog of its own. later: as of
    `open_world`.
    """
    handler.report_to(run_at(started.run) if started.run else None)
    on_termination(handler.terminate)
    detected = launcher.detect_launcher()
    if detected is not None:
        if detected.rank != 0:
            handler.before_exit = None
        end_with_parent()
        if detected.size != 1:
            preload.start(device, later=later)
    world = join_world(
        handler, device, oversubscribe, started, check,
        command=command, watch_stalls=watch_stalls, later=later,
    )  # fmt: skip
    if isinstance(world, int):
        return world
    if world.rank == 0 and handler.status is not None and handler.failure_exit_status != RunError.exit_code:
        handler.status.note_exit_status(handler.failure_exit_status)
    with Guard(world.own_rank, handler, reports_single_rank=True):
        try:
            if started.operations is None:
                record = body(world, handler)
            else:
                record = _logged(partial(body, world, handler), world, Path(started.operations), command)
            _close(world)
        except BaseException as failure:
            if not is_met_by_all(failure):
                raise
            status = handler.report_common(failure, world.rank)
            _close(world)
            return status
    if world.rank == 0 and handler.status is not None:
        handler.status.complete(record)
    return 0


def _close(world: World) -> None:
    """Close the world and the recorder, which this process has opened. Collective."""
    world.close()
    if world.recorder is not None:
        world.recorder.close()


def _logged(body: Callable[[], Value], world: World, file: Path, command: str) -> Value:
    """Run a body, and write what its ranks have sent, also if its result is bad. Collective."""
    from meshrun.runner.storage.formats.registry import check_place

    began = now()
    world.on_root(lambda: check_place(file, "record of operations"))
    result: Value | BadResult
    try:
        result = body()
    except BadResult as found:  # the run is complete, and all ranks are here
        result = found
    own = RankOperations(world.here.host, began, now())
    write_operations(world.control, own, clock_offsets(world.control)[world.rank].offset, command, file)
    if isinstance(result, BadResult):
        raise result
    return result


def join_world(
    handler: FailureHandler,
    device: DeviceChoice,
    oversubscribe: bool,
    started: Started,
    check: Check | None = None,
    *,
    command: str = "",
    watch_stalls: bool = False,
    later: bool = False,
) -> World | int:
    """Open the world, register this rank, start the heartbeat; returns an exit status on failure."""
    check = check or preflight(started, oversubscribe=oversubscribe)
    detected = launcher.detect_launcher()
    rank = detected.rank if detected else 0
    try:
        working_directory()
        # The caller is a command, not a program, so options in errors of `open_world` are flags.
        world: World = inspect.unwrap(open_world)(
            device, oversubscribe=oversubscribe, expected_ranks=started.ranks, check=check, record=command,
            log=None if started.operations is None else OperationLog(), later=later,
        )  # fmt: skip
    except BaseException as failure:
        is_common = is_met_by_all(failure)
        if not (is_common or isinstance(failure, MeshrunError)):
            raise
        if rank and not is_common:
            time.sleep(GRACE)  # rank 0 has probably failed too, and its end ends this rank
        return handler.report_common(failure, rank if is_common else 0)
    if handler.status is not None:
        handler.status.register(world.rank, world.here.host, os.getpid())
    handler.rank, world.network = world.own_rank, started.network
    token = handler.status.token if isinstance(handler.status, RunLines) else None
    heartbeat = Heartbeat(world, started.host_timeout, handler.abort, token)
    stalls = monitor.start(world, started, stalls=watch_stalls) if watch_stalls or started.watch else []
    if started.metrics is not None:
        from meshrun.runner.world.metrics import endpoint

        try:
            places = endpoint.start(world, started.metrics)
        except UserError as failure:  # met by all
            status = handler.report_common(failure, world.rank)
            _close(world)
            return status
        for place in places:
            tell(place)
    for warning in (*world.warnings, *heartbeat.warnings, *stalls) if world.rank == 0 else ():
        tell(f"warning: {warning}")
    return world
