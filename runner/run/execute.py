"""A run from beginning to end: prepare, compute, verify, commit, record."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.choices import VERIFY
from meshrun.runner.options.run_options import Options
from meshrun.runner.report.record import Record
from meshrun.runner.run.files import Files, as_list
from meshrun.runner.run.finish import build_record
from meshrun.runner.run.map_run import run_map
from meshrun.runner.run.prepare import RunContext, RunProgress, open_files
from meshrun.runner.spelling import option
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.agreement.waits import Waits
from meshrun.runner.world.failure import FailureHandler, Guard
from meshrun.runner.world.world import World, open_world, with_checksums

__all__ = ["Options", "RunProgress", "execute", "run"]

NO_PROGRESS = RunProgress()


def run(
    job: Job,
    inputs: Files,
    outputs: Files = (),
    parameters: dict[str, Any] | None = None,
    options: Options | None = None,
    *,
    world: World | None = None,
) -> Record:
    """Run a job on files over every rank; return the run's record on every rank. Collective.

    inputs, outputs: one path, or one for each of the job's inputs and outputs; None: no output.

    An error common to all ranks is raised on all of them. An error of a single rank is printed to stderr and
    ends all ranks; in a world of one rank it is raised.
    """
    options = options or Options()
    mine = world or open_world(options.device, oversubscribe=options.oversubscribe)
    handler = FailureHandler(debug=options.debug)
    try:
        with Guard(mine.own_rank, handler):
            return execute(
                mine, job, inputs, outputs, parameters or {}, options, transaction=handler.transaction
            )
    finally:  # an error that gets here is raised on every rank
        if world is None:
            mine.close()


def execute(
    world: World,
    job: Job,
    inputs: Files,
    outputs: Files,
    parameters: dict[str, Any],
    options: Options,
    *,
    transaction: OutputTransaction,
    progress: RunProgress = NO_PROGRESS,
) -> Record:
    """Run a job like `run`, in an open world; the caller handles failures and rolls `transaction` back.

    progress: what to call as the run goes on.
    """
    begin, started = time.perf_counter(), datetime.now(timezone.utc)
    if options.verify not in VERIFY:
        raise UserError(
            f"unknown {option('verify')}", got=options.verify, expected=", ".join(VERIFY), everywhere=True
        )
    world = with_checksums(world, options.checksum)
    world.phases, world.operations.waits = world.new_phases(), Waits()
    # Rank 0 opens the files for all.
    run = RunContext(world, job, parameters, options, transaction, progress=progress)
    files = world.on_root(lambda: open_files(run, as_list(inputs), as_list(outputs)))
    run.paths, run.targets = files.paths, files.targets
    run.sources, run.inputs = files.sources, files.inputs
    # Agree on the rest, compute, verify and commit.
    if files.folder is not None:
        from meshrun.runner.run.image_run import FolderRun

        done = FolderRun(run, files.folder).write()
    elif job.kind != "map":
        from meshrun.runner.run.services.job_run import run_job

        done = run_job(run)
    elif options.steps.steps is None:
        done = run_map(run)
    else:
        from meshrun.runner.run.step_run import run_steps

        done = run_steps(run)
    transaction.release()
    return build_record(run, done, begin, started)
