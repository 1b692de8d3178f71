"""This process as one rank of the command: what `meshrun run` does once its words are understood."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from runner import launcher
from runner.declare import Job
from runner.ending import GRACE, Ending, Guard, on_termination
from runner.errors import MeshrunError, tell
from runner.execute import Options, execute
from runner.report import record as records
from runner.report.progress import Progress
from runner.report.summary import render, show_result
from runner.verdict import RunDirectory
from runner.world import DeviceChoice, World, open_world


def main(
    job: Job,
    input: str,
    output: str | None,
    parameters: dict[str, Any],
    options: Options,
    *,
    expected_ranks: int | None = None,
    run_dir: str | None = None,
    columns: int | None = None,
) -> int:
    """Run as one rank of `meshrun run`; the exit status. Tells every error itself.

    expected_ranks: what -n asked for. run_dir: of whoever started the ranks on this machine and
    waits for the verdict. columns: the terminal's width where a progress bar may be drawn.
    """
    directory = RunDirectory(Path(run_dir)) if run_dir else None
    ending = Ending(directory, options.debug)
    on_termination(ending.interrupted)
    world = enter(ending, options.device, options.oversubscribe, expected_ranks)
    if isinstance(world, int):
        return world
    with Guard(world, ending, speaks=True):
        try:
            with Progress(job.name, columns if world.rank == 0 else 0) as progress:
                record = execute(
                    world, job, input, output, parameters, options, ending=ending, progress=progress
                )
            if world.rank == 0:
                if record["output"] is None:
                    show_result(record["result"], sys.stdout)
                sys.stderr.write(render(record))
            world.close()
        except MeshrunError as failure:
            if not failure.everywhere:
                raise
            status = ending.fail_together(failure, world.rank)
            world.close()
            return status
    if world.rank == 0 and directory is not None:
        directory.complete(records.plain(record))
    return 0


def enter(
    ending: Ending, device: DeviceChoice, oversubscribe: bool, expected_ranks: int | None
) -> World | int:
    """The world, or the exit status where there is none to be had."""
    told = launcher.announced()
    rank = told.rank if told else 0
    try:
        world = open_world(device, oversubscribe=oversubscribe, expected_ranks=expected_ranks)
    except MeshrunError as failure:
        if rank and not failure.everywhere:
            time.sleep(GRACE)  # rank 0 has likely met the same, and its end ends this rank too
        return ending.fail_together(failure, rank if failure.everywhere else 0)
    if ending.directory is not None:
        ending.directory.register(world.rank, world.here.host, os.getpid())
    for warning in world.warnings if world.rank == 0 else ():
        tell(f"warning: {warning}")
    return world
