"""`meshrun kernel`: print the one kernel that a job's function becomes, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meshrun.launch.cli.job_command import JobsShown

if TYPE_CHECKING:
    from meshrun.runner.job.declaration import Job
    from meshrun.runner.options.table import OptionRow


def show(job: Job, inputs: tuple[str, ...], parameters: dict[str, Any], **options: Any) -> None:
    """Print a job's kernel to stdout, and what is to be known of it to stderr. options: of the command."""
    from meshrun.runner.compiler.inferred_halo import with_inferred_halo
    from meshrun.runner.errors import UserError
    from meshrun.runner.forecast.plan import describe_inputs, open_inputs
    from meshrun.runner.options.form import form_of
    from meshrun.runner.plan.task import plan_task
    from meshrun.runner.run.kernel_report import kernel_report

    if job.kind != "map":
        raise UserError(f"job {job.name} has no kernel", expected="a job made by map_blocks")
    form = form_of(*(options[f"input_{part}"] for part in ("shape", "dtype", "order")))
    arrays, _, _ = describe_inputs(job, open_inputs(job, inputs, form), form)
    given = job.complete(parameters)
    job = with_inferred_halo(job, arrays, given, "cpu" if options["cpu"] else "cuda")
    task = plan_task(job, given, arrays, 1, boundary=options["boundary"], cval=options["cval"])
    report = kernel_report(task, options["fuse_math"], options["steps"], cpu=options["cpu"])
    click.echo(report.source)
    for name, value in report.facts:
        click.echo(f"{name:<12} {value}", err=True)


class Kernels(JobsShown):
    """A command that prints the kernel, for every job."""

    about = "Prints the kernel of meshrun run {}."
    show = staticmethod(show)

    @staticmethod
    def table(_: Job) -> list[OptionRow]:
        from meshrun.runner.options.plan_options import kernel_rows

        return kernel_rows()


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
