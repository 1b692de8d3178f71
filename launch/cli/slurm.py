"""`meshrun launch slurm`: a run as a batch job, or in the current allocation."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import click

from meshrun.launch.cli.params import SHAPE, TargetOptions, build_spec, cluster_options, parsed_option
from meshrun.launch.cli.plugins import conclude
from meshrun.launch.slurm.batch_script import CPUS_PER_RANK, INDEX, PER_TASK, JobRequest, script, srun

# Options that only a new job can have.
NEW_JOB_ONLY = (
    "partition", "account", "time", "constraint", "nodelist", "exclude", "qos", "reservation", "mem",
    "signal", "array", "dependency", "segment", "requeue", "exclusive", "output",
)  # fmt: skip


LIMIT = re.compile(r"\d+(-\d+)?(:\d+){0,2}|unlimited|infinite", re.IGNORECASE)  # a time limit
SIGNAL = re.compile(r"([BR]{1,2}:)?[A-Z0-9]+(@\d+)?", re.IGNORECASE)
MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE)
ALWAYS = "always"  # the value of --requeue without one
INDICES = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")


def limit(text: str) -> str:
    if not LIMIT.fullmatch(text):
        raise ValueError(f"{text!r} is not a time limit; expected minutes, HH:MM:SS or D-HH")
    return text


def indices(text: str) -> str:
    if not INDICES.fullmatch(text):
        raise ValueError(f"{text!r} is not a list of indices; expected for example 0-9%2 or 1,3,5")
    return text


def signal(text: str) -> str:
    if not SIGNAL.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a signal; expected for example USR1@60, 60 s before the time limit"
        )
    return text


def memory(text: str) -> str:
    if not MEMORY.fullmatch(text):
        raise ValueError(f"{text!r} is no memory per host; expected MiB, or for example 64G; 0: all of it")
    return text


def requeue(text: str) -> Literal[True, "expedite"]:
    if text not in (ALWAYS, "expedite"):
        raise ValueError(f"{text!r} is not expedite; --requeue alone restarts the job in the usual order")
    return True if text == ALWAYS else "expedite"


class SlurmCommand(click.Command):
    """A command with `--requeue`, which takes a value only as `--requeue=expedite`, as sbatch's does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args.index("--") if "--" in args else len(args)
        joined = [f"--requeue={ALWAYS}" if word == "--requeue" else word for word in args[:own]]
        return super().parse_args(ctx, [*joined, *args[own:]])


@click.command(cls=SlurmCommand)
@SHAPE
@click.option("--partition", metavar="NAME", help="Partition to submit to; sinfo lists them.")
@click.option("--account", metavar="NAME", help="Account to charge.")
@parsed_option("--time", "LIMIT", limit, help="Time limit: minutes, HH:MM:SS or D-HH.")
@click.option("--constraint", metavar="FEATURES", help="Features that hosts must have.")
@click.option("--nodelist", metavar="HOSTS", help="Hosts to include: n[01-04].")
@click.option("--exclude", metavar="HOSTS", help="Hosts not to use: n[07,09].")
@click.option("--qos", metavar="NAME", help="Quality of service.")
@click.option("--reservation", metavar="NAME", help="Reservation to run in.")
@parsed_option("--mem", "SIZE", memory, help="Memory of each host, such as 64G; 0: all of it.")
@parsed_option(
    "--signal",
    "SIGNAL",
    signal,
    metavar="USR1@60",
    help="Signal to the ranks, seconds before the time limit.",
)
@click.option("--exclusive", is_flag=True, help="Do not share hosts with other jobs: for measurements.")
@parsed_option(
    "--array",
    "INDICES",
    indices,
    metavar="0-9%2",
    help="One run for each index; %a in COMMAND is replaced by it.",
)
@click.option("--dependency", metavar="LIST", help="Wait for other jobs: afterok:17.")
@click.option("--segment", type=click.IntRange(min=1), metavar="HOSTS",
              help="Hosts in each block of a block topology, such as 16 of an NVL72.")  # fmt: skip
@parsed_option(
    "--requeue",
    "MODE",
    requeue,
    metavar="[=expedite]",
    default=False,
    help="Restart the job when a host fails or it is preempted; =expedite: at once, from Slurm 25.11 on.",
)
@click.option("--cpus-per-task", type=click.IntRange(min=1), metavar="N",
              help=f"Cores for each rank.  [default: {CPUS_PER_RANK}; inside a job, its share]")  # fmt: skip
@click.option("--gpus/--no-gpus", default=True, show_default=True, help="Request one GPU for each rank.")
@click.option("--bind-gpus", type=click.Choice(["node", "task"]), default="node", show_default=True,
              help="node: a rank sees all GPUs of its host and uses one; task: it sees one.")  # fmt: skip
@click.option("--mpi", "mpi", metavar="NAME", default="auto", show_default=True,
              help="srun's --mpi: pmix, pmi2, ...; auto: the one for this machine's MPI.")  # fmt: skip
@click.option(
    "--container", metavar="IMAGE", help="Container image with meshrun; needs Pyxis on the cluster."
)
@click.option(
    "--container-mounts", metavar="A:B,...", help="Folders to mount in addition to the working directory."
)
@click.option("--srun-args", metavar="WORDS", default="", help="More options for srun, as one argument.")
@click.option("--output", metavar="FILE", help="Output file of the job.  [default: meshrun-%j.out]")
@cluster_options
def slurm(
    target: TargetOptions,
    bind_gpus: Literal["node", "task"],
    mpi: str,
    srun_args: str,
    **options: Any,
) -> int:
    """Start ranks with Slurm: as a batch job, or as a step of the current allocation."""
    from meshrun.launch.slurm import job as slurm_job
    from meshrun.launch.slurm.queries import program
    from meshrun.runner.errors import tell
    from meshrun.runner.files import working_directory

    # Check the command with a number in place of an array task's index.
    words = target.words
    known = tuple(word.replace(INDEX, "0") for word in words) if options["array"] else words
    spec = replace(build_spec(replace(target, words=known)), words=words)
    inside = "SLURM_JOB_ID" in os.environ
    given = next((name for name in NEW_JOB_ONLY if options[name]), None)
    if inside and given:
        raise click.UsageError(
            f"--{given} needs a new job, but this is inside job {os.environ['SLURM_JOB_ID']}; "
            "to submit a new one: env -u SLURM_JOB_ID -u SLURM_ARRAY_JOB_ID"
        )
    if not inside and options["output"] is None:
        options["output"] = os.environ.get("SBATCH_OUTPUT")
    if not target.show:
        program("srun" if inside else "sbatch")
    if options["cpus_per_task"] is None:
        options["cpus_per_task"] = cores(os.environ, spec.per_host) if inside else CPUS_PER_RANK
    mpi, reason = _mpi(mpi, spec.ranks, options["container"], target.show)
    try:
        job = JobRequest(mpi, working_directory(), bind_gpus=bind_gpus, srun_args=split(srun_args), **options)
        text = shlex.join(srun(spec, job)) + "\n" if inside else script(spec, job)
    except ValueError as mistake:
        raise click.UsageError(str(mistake)) from mistake
    tell(f"mpi: {mpi}, {reason}")
    if job.gpus and bind_gpus == "task":
        tell(PER_TASK)
    if target.show:
        click.echo(text, nl=False)
        return 0
    if inside:
        tell(f"inside job {os.environ['SLURM_JOB_ID']}: starting a step with srun")
        return slurm_job.start_inside(spec, job, debug=target.debug, conclude=partial(conclude, spec.words))
    return slurm_job.start(spec, job, debug=target.debug, conclude=partial(conclude, spec.words))


def split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as reason:
        raise ValueError(f"--srun-args {text}: {reason}") from reason


def cores(environment: Mapping[str, str], ranks: int) -> int:
    """Cores for each rank, an equal share of this allocation's cores on the host."""
    there = environment.get("SLURM_CPUS_ON_NODE", "")
    return max(int(there) // ranks, 1) if there.isdecimal() else 1


def _mpi(mpi: str, ranks: int, container: str | None, show: bool) -> tuple[str, str]:
    """srun's --mpi, and why. With --print, a named one is not checked: Slurm may be on another machine."""
    from meshrun.launch.mpi.library import loaded
    from meshrun.launch.slurm.pmi import choose_mpi, offered, suggestion
    from meshrun.runner.errors import UserError

    library = None if container else loaded()
    try:
        known = None if show and mpi != "auto" else offered()
    except UserError as reason:
        if show:
            reason.hint = f"{suggestion(library)}; {reason.hint}"
        raise
    return choose_mpi(mpi, ranks, library, known)
