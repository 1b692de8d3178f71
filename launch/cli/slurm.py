"""`meshrun launch slurm`: the run as a batch job, or in the allocation that one is already in."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import click

from launch.cli.params import DEBUG, NETWORK, PRINT, SETTING, SHAPE, TIMEOUT, WORDS, Form, made
from launch.cli.plugins import conclude
from launch.slurm.batch_script import CPUS_PER_RANK, INDEX, PER_TASK, Job, script, srun

# What only a job of its own can be asked for.
OF_A_JOB = (
    "partition", "account", "time", "constraint", "array", "dependency", "requeue", "exclusive", "output",
)  # fmt: skip


LIMIT = re.compile(r"\d+(-\d+)?(:\d+){0,2}|unlimited|infinite", re.IGNORECASE)  # of time
INDICES = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")


def limit(text: str) -> str:
    if not LIMIT.fullmatch(text):
        raise ValueError(f"{text!r} is no time limit; expected minutes, HH:MM:SS or D-HH")
    return text


def indices(text: str) -> str:
    if not INDICES.fullmatch(text):
        raise ValueError(f"{text!r} is no list of indices; expected such as 0-9%2 or 1,3,5")
    return text


@click.command()
@SHAPE
@click.option("--partition", metavar="NAME", help="Where, of the cluster. sinfo shows all.")
@click.option("--account", metavar="NAME", help="Who pays.")
@click.option(
    "--time", type=Form("LIMIT", limit), metavar="LIMIT", help="How long at most: minutes, HH:MM:SS or D-HH."
)
@click.option("--constraint", metavar="FEATURES", help="Which hosts, by their features.")
@click.option("--exclusive", is_flag=True, help="No other job on the hosts: for measurements.")
@click.option(
    "--array",
    type=Form("INDICES", indices),
    metavar="0-9%2",
    help="Many runs; %a in COMMAND is each one's index.",
)
@click.option("--dependency", metavar="LIST", help="After other jobs: afterok:17.")
@click.option("--requeue", is_flag=True, help="Start again when a host fails or the job is preempted.")
@click.option("--cpus-per-task", type=click.IntRange(min=1), metavar="N",
              help=f"Cores of each rank.  [default: {CPUS_PER_RANK}; in an allocation, its own]")  # fmt: skip
@click.option("--gpus/--no-gpus", default=True, show_default=True, help="A GPU for each rank.")
@click.option("--bind-gpus", type=click.Choice(["node", "task"]), default="node", show_default=True,
              help="node: a rank sees its host's GPUs and takes its own; task: it sees one.")  # fmt: skip
@click.option("--mpi", "way", metavar="NAME", default="auto", show_default=True,
              help="srun's --mpi: pmix, pmi2 ... auto: what the MPI here needs.")  # fmt: skip
@click.option("--container", metavar="IMAGE", help="An image that has meshrun; needs Pyxis on the cluster.")
@click.option("--container-mounts", metavar="A:B,...", help="Folders for it besides the working directory.")
@click.option("--srun-args", metavar="WORDS", default="", help="Further options for srun, in one word.")
@click.option("--output", metavar="FILE", help="Of the job.  [default: meshrun-%j.out]")
@NETWORK
@SETTING
@TIMEOUT
@PRINT
@DEBUG
@WORDS
def slurm(
    wanted: tuple[int | None, int] | None,
    bind_gpus: Literal["node", "task"],
    way: str,
    srun_args: str,
    network: str | None,
    settings: Sequence[str],
    host_timeout: float,
    show: bool,
    debug: bool,
    words: tuple[str, ...],
    **options: Any,
) -> int:
    """Ranks that Slurm starts: a batch job, or a step of the allocation that one is in."""
    from launch.slurm import job as slurm_job
    from launch.slurm.queries import program
    from runner.errors import tell
    from runner.launcher import working_directory

    # The index of an array's task is a number, whatever it stands for.
    known = tuple(word.replace(INDEX, "0") for word in words) if options["array"] else words
    spec = made(known, wanted, [], settings=settings, network=network, host_timeout=host_timeout)
    spec = replace(spec, words=words)
    inside = "SLURM_JOB_ID" in os.environ
    given = next((name for name in OF_A_JOB if options[name]), None)
    if inside and given:
        raise click.UsageError(
            f"--{given} is of a new job, and this is inside job {os.environ['SLURM_JOB_ID']}: "
            "env -u SLURM_JOB_ID -u SLURM_ARRAY_JOB_ID for one of its own"
        )
    if not show:
        program("srun" if inside else "sbatch")
    if options["cpus_per_task"] is None:
        options["cpus_per_task"] = cores(os.environ, spec.per_host) if inside else CPUS_PER_RANK
    mpi, reason = _mpi(way, spec.ranks, options["container"], show)
    try:
        job = Job(mpi, working_directory(), bind_gpus=bind_gpus, srun_args=split(srun_args), **options)
        text = shlex.join(srun(spec, job)) + "\n" if inside else script(spec, job)
    except ValueError as mistake:
        raise click.UsageError(str(mistake)) from mistake
    tell(f"mpi: {mpi}, {reason}")
    if job.gpus and bind_gpus == "task":
        tell(PER_TASK)
    if show:
        click.echo(text, nl=False)
        return 0
    if inside:
        tell(f"inside job {os.environ['SLURM_JOB_ID']}: a step of it, by srun")
        return slurm_job.start_inside(spec, job, debug=debug, conclude=partial(conclude, spec.words))
    return slurm_job.start(spec, job, debug=debug, conclude=partial(conclude, spec.words))


def split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as reason:
        raise ValueError(f"--srun-args {text}: {reason}") from reason


def cores(environment: Mapping[str, str], ranks: int) -> int:
    """Of the cores that this allocation has on a host, how many each of its ranks gets."""
    there = environment.get("SLURM_CPUS_ON_NODE", "")
    return max(int(there) // ranks, 1) if there.isdecimal() else 1


def _mpi(way: str, ranks: int, container: str | None, show: bool) -> tuple[str, str]:
    """srun's --mpi and why. What is named is shown without asking a Slurm, which may be elsewhere."""
    from launch.mpi.library import loaded
    from launch.slurm.pmi import chosen, offered, suggestion
    from runner.errors import UserError

    library = None if container else loaded()
    try:
        known = None if show and way != "auto" else offered()
    except UserError as reason:
        if show:
            reason.hint = f"{suggestion(library)}; {reason.hint}"
        raise
    return chosen(way, ranks, library, known)
