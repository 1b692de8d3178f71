"""`meshrun kernel`: print the one kernel that a job's function becomes, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meshrun.launch.cli.job_command import JobsShown, fuse_math_option, grid_options

if TYPE_CHECKING:
    from meshrun.runner.job.declaration import Job


def show(
    job: Job,
    inputs: tuple[str, ...],
    parameters: dict[str, Any],
    *,
    input_shape: str | None,
    input_dtype: str | None,
    input_order: str | None,
    boundary: str | None,
    cval: float | None,
    fuse_math: str,
    steps: int | None,
    cpu: bool,
) -> None:
    """Print a job's kernel to stdout, and what is to be known of it to stderr."""
    from meshrun.runner.compiler.decide import with_inferred_halo
    from meshrun.runner.errors import UserError
    from meshrun.runner.forecast.planned import describe_inputs, open_inputs
    from meshrun.runner.options.form import form_of
    from meshrun.runner.plan.task import plan_task
    from meshrun.runner.run.kernel_report import kernel_report

    if job.kind != "map":
        raise UserError(f"job {job.name} has no kernel", expected="a job made by map_blocks")
    form = form_of(input_shape, input_dtype, input_order)
    arrays, _, _ = describe_inputs(job, open_inputs(job, inputs, form), form)
    given = job.complete(parameters)
    job = with_inferred_halo(job, arrays, given)
    task = plan_task(job, given, arrays, 1, boundary=boundary, cval=cval)
    report = kernel_report(task, fuse_math, steps, cpu=cpu)
    click.echo(report.source)
    for name, value in report.facts:
        click.echo(f"{name:<12} {value}", err=True)


class Kernels(JobsShown):
    """A command that prints the kernel, for every job."""

    about = "Prints the kernel of meshrun run {}."
    show = staticmethod(show)

    @staticmethod
    def options(_: Job) -> list[click.Option]:
        return [
            *(option for option in grid_options() if option.name != "grid"),
            fuse_math_option(),
            click.Option(["--steps"], type=click.IntRange(1, 16), metavar="K", help="Of K time steps."),
            click.Option(["--cpu"], is_flag=True, help="The C++ for a CPU instead of CUDA."),
        ]


@click.group(
    cls=Kernels, subcommand_metavar="JOB [INPUT] [OPTIONS]", options_metavar="", no_args_is_help=False
)
def kernel() -> None:
    """Print the kernel that a job's function becomes.

    \b
    meshrun kernel edges.py:edges photo.npy
    meshrun kernel heat.py --shape 16384x16384 --input-dtype float32 --steps 7
    meshrun kernel edges.py:edges photo.npy --cpu

    JOB and its options are those of meshrun run. Needs no GPU; with one, the registers of a thread are shown.
    """
