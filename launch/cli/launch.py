"""`meshrun launch TARGET`: start a run with any launcher."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from meshrun.launch.cli.cli_context import terminal_columns
from meshrun.launch.cli.kubernetes import kubernetes
from meshrun.launch.cli.params import (
    DEBUG,
    MAX_RESTARTS,
    ON_FAILURE,
    PRINT,
    SETTING,
    SHAPE,
    START,
    TIMEOUT,
    WORDS,
    Seconds,
    TargetOptions,
    build_spec,
    gathered,
    known_hosts,
    restarts,
)
from meshrun.launch.cli.plugins import conclude
from meshrun.launch.cli.slurm import slurm
from meshrun.launch.mpi import ssh_hosts
from meshrun.launch.settings import TARGETS, defaults, read_settings
from meshrun.launch.supervise.supervisor import Supervision


class Targets(click.Group):
    """The targets. Settings of a site and a user are defaults of their options, and name the usual one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        settings = read_settings()
        usual = next((one for one in settings if one.name == "launcher"), None)
        if args[0].startswith("-"):
            known = ", ".join(sorted(self.commands))
            if usual is None:
                raise click.UsageError(f"Missing TARGET before {args[0]}: one of {known}", ctx)
            if usual.value not in self.commands:
                raise click.UsageError(
                    f"{usual.source}: launcher is {usual.value!r}; expected one of {known}", ctx
                )
            args = [str(usual.value), *args]
        name, target, rest = super().resolve_command(ctx, args)
        if target is not None and name in TARGETS:
            ctx.default_map = {name: defaults(settings, name, target)}
        return name, target, rest


@click.group(
    cls=Targets,
    subcommand_metavar="[TARGET] [OPTIONS] -- COMMAND ...",
    options_metavar="",
    no_args_is_help=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def launch() -> None:
    """Start the ranks of COMMAND, such as `bench all_reduce`, on one or several hosts.

    \b
    meshrun launch local -j 4 -- run laplacian in.npy out.npy
    meshrun launch mpirun -j 2x8 --hosts n1,n2 -- bench all_reduce -b 8 -e 8G -f 2
    meshrun launch mpirun --hostfile hosts --print -- selftest
    meshrun launch slurm -j 2x8 --partition gpu -- run laplacian in.npy out.npy
    meshrun launch kubernetes -j 2x8 --image IMAGE -- bench all_reduce

    Without TARGET, the launcher of the settings is used: meshrun doctor shows them.
    """


launch.add_command(slurm)
launch.add_command(kubernetes)


@launch.command()
@SHAPE
@SETTING
@START
@ON_FAILURE
@MAX_RESTARTS
@PRINT
@DEBUG
@WORDS
@gathered(TargetOptions)
def local(target: TargetOptions, start_timeout: float, on_failure: str, max_restarts: int) -> int:
    """Start ranks on this machine, as `meshrun -n` does."""
    from meshrun.launch.mpi import local as here

    spec = build_spec(replace(target, wanted=target.wanted or (1, 1)))
    if spec.hosts > 1:
        raise click.UsageError(
            f"{spec.hosts} hosts requested, but this is one; use for example launch mpirun"
        )
    if target.show:
        click.echo(here.preview(spec))
        return 0
    os.environ.update(spec.settings)
    supervision = Supervision(
        terminal_columns(),
        target.debug,
        partial(conclude, spec.words),
        restarts(on_failure, max_restarts, spec.words),
        start_timeout,
    )
    return here.start(spec.ranks, spec.words, supervision, watching=spec)


@launch.command()
@SHAPE
@click.option("--hosts", metavar="A:8,B:8", help="Hosts, in the order of ranks.")
@click.option(
    "--hostfile",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of hosts, a line each: HOST slots=N or HOST:N.",
)
@click.option(
    "--network", metavar="IFACE",
    help="Interface for NCCL, MPI and UCX.  [default: the route to the hosts]",
)  # fmt: skip
@SETTING
@TIMEOUT
@click.option(
    "--ssh-timeout", type=Seconds(1.0), default=ssh_hosts.TIMEOUT, show_default=True, metavar="SECONDS",
    help="Time for a host to answer before the run.",
)  # fmt: skip
@START
@ON_FAILURE
@MAX_RESTARTS
@PRINT
@DEBUG
@WORDS
@gathered(TargetOptions)
def mpirun(
    target: TargetOptions,
    hosts: str | None,
    hostfile: Path | None,
    ssh_timeout: float,
    start_timeout: float,
    on_failure: str,
    max_restarts: int,
) -> int:
    """Start ranks on hosts reached by ssh, by the MPI launcher installed here."""
    from meshrun.launch.mpi import mpirun as over_ssh

    spec = build_spec(target, known_hosts(hosts, hostfile))
    if not spec.names:
        raise click.UsageError(
            "no hosts given; use --hosts a,b or --hostfile FILE, or launch local for this machine"
        )
    if target.show:
        click.echo(over_ssh.preview(spec))
        return 0
    supervision = Supervision(
        terminal_columns(),
        target.debug,
        partial(conclude, spec.words),
        restarts(on_failure, max_restarts, spec.words),
        start_timeout,
    )
    return over_ssh.start(spec, supervision, timeout=ssh_timeout)
