"""`meshrun call FOLDER`: what the ranks of a Python program's `job.run(..., ranks=N)` run."""

from __future__ import annotations

from pathlib import Path

import click

from launch.cli.cli_context import CliContext


@click.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.pass_obj
def call(cli_context: CliContext, folder: Path) -> int:
    """Run a call that a Python program has left in FOLDER."""
    from functools import partial

    from runner.run.entry import main
    from runner.run.python_call import keep_error, keep_record, read_call

    wanted = read_call(folder)
    return main(
        wanted.job,
        wanted.inputs,
        wanted.outputs,
        wanted.parameters,
        wanted.options,
        started=cli_context.started,
        columns=cli_context.columns,
        on_error=partial(keep_error, folder),
        on_record=partial(keep_record, folder),
    )
