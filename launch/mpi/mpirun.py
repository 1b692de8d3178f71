"""Start ranks on several hosts with the installed MPI launcher: its arguments, variables and network."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi import ssh_hosts
from meshrun.launch.mpi.environment import environment, forwarded, own_interfaces, shell_command
from meshrun.launch.mpi.launcher import Launcher
from meshrun.launch.mpi.rank_command import PROGRAM, run_options, spec_options
from meshrun.launch.spec import LaunchSpec
from meshrun.launch.supervise.cleanup import RUN_MARK
from meshrun.launch.supervise.clock import Clocks, halt_timeout
from meshrun.launch.supervise.restarts import with_restarts
from meshrun.launch.supervise.supervisor import USUAL, Supervision, supervise

if TYPE_CHECKING:
    from meshrun.runner.errors import UserError

CLEANUP = str(Path(__file__).parents[1] / "supervise" / "cleanup.py")


def launcher_command(spec: LaunchSpec, launcher: Launcher, variables: Mapping[str, str]) -> list[str]:
    """The launcher and its options: ranks in blocks, host after host, not bound to single cores.

    variables: to forward to the ranks.
    """
    counted = [f"{name}:{count}" for name, count in zip(spec.names, spec.counts, strict=True)]
    start = [str(launcher.path)]
    if launcher.vendor == "Open MPI":
        passed_on = [word for name in sorted(variables) for word in ("-x", name)]
        place = ["--host", ",".join(counted), "--map-by", "slot", "--bind-to", "none"]
        return [*start, *place, *passed_on, "-n", str(spec.ranks)]
    # `-hosts` of Intel MPI takes no counts; -ppn works for both.
    place = ["-hosts", ",".join(spec.names), "-ppn", str(spec.per_host)]
    if spec.slots:
        if launcher.vendor == "Intel MPI":
            raise _uneven(spec)
        place = ["-hosts", ",".join(counted)]
    interface = ["-iface", spec.network] if spec.network else []
    return [*start, *place, *interface, "-n", str(spec.ranks)]


def _uneven(spec: LaunchSpec) -> UserError:
    from meshrun.runner.errors import UserError

    return UserError(
        "Intel MPI's launcher takes one number of ranks for all hosts",
        got=", ".join(f"{name}:{count}" for name, count in zip(spec.names, spec.counts, strict=True)),
        hint=f"-j {spec.hosts}x{min(spec.counts)}, or Open MPI or MPICH",
    )


def start(
    spec: LaunchSpec,
    supervision: Supervision = USUAL,
    *,
    timeout: float = ssh_hosts.TIMEOUT,
) -> int:
    """Run the spec on its hosts, which must answer within `timeout` seconds; returns the run's exit status.

    Raises UserError without a launcher, if a host does not answer, or if two names are of one host.
    """
    from meshrun.runner.errors import tell

    launcher = mpi_launcher.find()
    if launcher.whole_lines:  # raw output might cut the ranks' status lines
        supervision = replace(supervision, columns=None)
    found = ssh_hosts.probe_hosts(spec, sys.executable, timeout)
    ssh_hosts.check_names(found, launcher.vendor)
    mpi_library.check(launcher, {answer.host: answer.mpi for answer in found})
    if spec.network is None and (interface := ssh_hosts.common_interface(found)):
        own = own_interfaces({**os.environ, **spec.settings})
        spec = replace(spec, network=interface, settings={**own, **spec.settings})
        but = f"; kept as set: {', '.join(sorted(own))}" if own else ""
        tell(f"network: {interface}, which reaches {', '.join(spec.names)} (--network selects another){but}")

    def run(spec: LaunchSpec, restartable: bool) -> int:
        token = secrets.token_hex(8)

        def prepare(run: Path, sockets: Path) -> tuple[list[str], dict[str, str]]:
            base = launcher.clean_environment(os.environ, sockets)
            variables = {**environment(spec, launcher, base), RUN_MARK: str(run)}
            ours = [*run_options(f"@{token}", supervision.columns), *spec_options(spec)]
            start = launcher_command(spec, launcher, {**forwarded(variables), **spec.settings})
            return [*start, *PROGRAM, *ours, *spec.words], variables

        def clean_up(run: Path, sockets: Path, seconds: float) -> list[str]:
            since = f"{seconds + 1:.0f}"
            return ssh_hosts.run_on_others(
                spec.names, [sys.executable, "-I", CLEANUP, str(run), str(sockets), since, token]
            )

        halt = halt_timeout(spec.stall_timeout)
        return supervise(
            prepare,
            supervision,
            token=token,
            mpich=launcher.vendor == "MPICH",
            clean_up_hosts=clean_up,
            restart=spec if restartable else None,
            clocks=partial(Clocks, ranks=spec.ranks, start=supervision.start_timeout, halt=halt),
        )

    return with_restarts(run, spec, supervision.restarts)


def preview(spec: LaunchSpec) -> str:
    """The shell command that `start` runs, without the options of a single run; contacts no host."""
    launcher = mpi_launcher.find()
    here = launcher.clean_environment(os.environ)
    variables = environment(spec, launcher, here)
    start = launcher_command(spec, launcher, {**forwarded(variables), **spec.settings})
    return shell_command(variables, start, [*PROGRAM, *spec_options(spec), *spec.words])
