"""`meshrun plan`: predict the time and memory of a run, without a GPU or MPI; calibrate a machine's rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshrun.launch.cli.job_command import JobsShown
from meshrun.launch.cli.params import TRACEBACK

if TYPE_CHECKING:
    from meshrun.runner.job.declaration import Job
    from meshrun.runner.options.table import OptionRow


def forecast(
    job: Job,
    inputs: Sequence[str],
    parameters: dict[str, Any],
    *,
    json: str | None,
    **options: Any,
) -> None:
    """Print the plan of one job, and write it to the file `json` if given. options: as `plan_options`."""
    from meshrun.runner.forecast.plan import plan_record
    from meshrun.runner.forecast.record import SCHEMA
    from meshrun.runner.forecast.table import render
    from meshrun.runner.options.plan_options import plan_options
    from meshrun.runner.report.record import STDOUT, write_json
    from meshrun.runner.storage.formats.registry import check_place
    from meshrun.runner.storage.paths import named

    if json not in (None, STDOUT):
        check_place(named("--json", json), "plan")
    found = plan_record(job, inputs, parameters, plan_options(options))
    if json is not None:
        write_json(Path(json), "plan", SCHEMA, found)
    if json != STDOUT:
        click.echo(render(found), nl=False)


def calibrate_machine(folder: Path) -> int:
    """Measure this machine's rates, print and save them."""
    from meshrun.runner.device.api import Backend
    from meshrun.runner.forecast.calibrate import calibrate
    from meshrun.runner.forecast.machine import rates_file, save
    from meshrun.runner.forecast.table import render_rates
    from meshrun.runner.world.binding import visible_gpus

    def opened(index: int) -> Backend:
        if not gpus:
            from meshrun.runner.device.cpu import CpuBackend

            return CpuBackend()
        from meshrun.runner.device.cuda import CudaBackend

        return CudaBackend(index)

    gpus = visible_gpus("auto")
    file = rates_file()
    machine = calibrate(folder, gpus, opened)
    save(machine, file)
    what = f"{gpus} x {machine.name}" if gpus else f"CPU, {machine.name}"
    click.echo(f"{machine.host}: {what}, {machine.cores} cores, files in {folder.resolve()}\n")
    click.echo(render_rates({name: rate.value for name, rate in machine.rates.items()}))
    click.echo(f"saved to {file}")
    return 0


class Plans(JobsShown):
    """A planning command for every job."""

    about = "Predicts what meshrun run {} will take."
    show = staticmethod(forecast)

    @staticmethod
    def table(job: Job) -> list[OptionRow]:
        from meshrun.runner.options.plan_options import plan_rows

        return plan_rows(steps=job.takes_steps)


@click.group(
    cls=Plans,
    subcommand_metavar="JOB [INPUT] [OPTIONS]",
    options_metavar="[--calibrate]",
    invoke_without_command=True,
    no_args_is_help=False,
)
@click.option("--calibrate", is_flag=True, help="Measure this machine's rates and save them.")
@click.option(
    "--at",
    "folder",
    default=".",
    metavar="FOLDER",
    help="Folder in which --calibrate writes and reads a file.  [default: the working directory]",
)
@TRACEBACK
@click.pass_context
def plan(ctx: click.Context, calibrate: bool, folder: str, debug: bool) -> int | None:
    """Predict the time and memory of a run, without a GPU or MPI.

    \b
    meshrun plan laplacian in.npy --ranks 8
    meshrun plan laplacian --shape 131072x131072 --input-dtype float32 --ranks 8 --gpu h200
    meshrun plan --calibrate                 measure this machine, once

    JOB and its options are those of meshrun run.
    """
    if ctx.invoked_subcommand is not None:
        if calibrate:
            raise click.UsageError("--calibrate measures the machine and takes no job")
        return None
    if not calibrate:
        raise click.UsageError("Missing JOB, or --calibrate.")
    from meshrun.runner.storage.paths import named

    return calibrate_machine(named("--at", folder))
