"""Entry of `meshrun run`: run this process as one rank, after the command line is parsed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshrun.runner.errors import printable
from meshrun.runner.job.declaration import Job
from meshrun.runner.report.progress import ProgressBar
from meshrun.runner.report.record import STDOUT, plain, stdout_for
from meshrun.runner.report.stream_progress import StreamProgress
from meshrun.runner.report.summary import render, show_result
from meshrun.runner.run.execute import Options, RunProgress, execute
from meshrun.runner.system.launcher import BY_HAND, Started
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.rank_process import run_as_rank
from meshrun.runner.world.world import World

SMALL_RUN = 1.0  # seconds of a run whose summary is brief, unless it is to be verbose


def main(
    job: Job,
    inputs: Sequence[str],
    outputs: Sequence[str],
    parameters: dict[str, Any],
    options: Options,
    *,
    started: Started = BY_HAND,
    columns: int | None = None,
    call: Path | None = None,
) -> int:
    """Run as one rank of `meshrun run`, report every error, and return the exit status.

    started: information from the program that started the ranks. columns: the terminal's width, if a
    progress bar may be drawn. call: the folder that a Python program has written for this run, where it gets
    the record, or the error of the rank that fails first; nothing is printed then.
    """

    def body(world: World, handler: FailureHandler) -> dict[str, Any]:
        try:
            return run(world, handler)
        except BaseException as failure:
            if call is not None:
                from meshrun.runner.run.python_call import keep_error

                keep_error(call, failure)
            raise

    def run(world: World, handler: FailureHandler) -> dict[str, Any]:
        width = columns if world.rank == 0 else 0
        with ProgressBar(job.name, width) as rows, StreamProgress(job.name, width, ranks=world.size) as flow:

            def proof(done: int, total: int) -> None:
                flow.end()
                rows.proof(done, total)

            progress = RunProgress(rows, flow.update, proof, rows.steps, rows.iterations)
            transaction = handler.transaction
            record = execute(
                world, job, inputs, outputs, parameters, options, transaction=transaction, progress=progress
            )
        values: dict[str, Any] = plain(record, texts=False)
        if world.rank == 0 and call is None:
            shown = record["output"] is None or {"simulate", "create"} & job.services
            if shown and options.json != STDOUT:
                show_result(record["result"], sys.stdout)
            brief = record["seconds"] < SMALL_RUN and not options.verbose
            sys.stderr.write(printable(render(record, brief=brief)))
        if world.rank == 0 and call is not None:
            from meshrun.runner.run.python_call import keep_record

            keep_record(call, values)
        return values

    with stdout_for(options.json):
        return run_as_rank(
            body,
            FailureHandler(debug=options.debug),
            device=options.device,
            oversubscribe=options.oversubscribe,
            started=started,
            command=f"run {job.name}",
            watch_stalls=True,
            later=job.kind == "map",  # other jobs may send between some of the ranks only
        )
