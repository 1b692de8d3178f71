"""A spec in the words of the MPI launcher that is installed: which hosts, which variables, which network."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from launch.mpi import launcher as mpi_launcher
from launch.mpi import library as mpi_library
from launch.mpi import ssh_hosts
from launch.mpi.environment import environment, forwarded, on_interface, shell_command
from launch.mpi.launcher import Launcher
from launch.mpi.rank_command import PROGRAM, run_options, spec_options
from launch.spec import LaunchSpec
from launch.supervise.cleanup import RUN_MARK
from launch.supervise.judge import Conclude, no_answer
from launch.supervise.supervisor import supervise

SWEEP = str(Path(__file__).parents[1] / "supervise" / "cleanup.py")


def words(spec: LaunchSpec, launcher: Launcher, variables: Mapping[str, str]) -> list[str]:
    """The launcher's words before the program: ranks in blocks, host after host, bound to no single core.

    variables: what the ranks are to get of `environment`'s.
    """
    counted = [f"{name}:{spec.per_host}" for name in spec.names]
    start = [str(launcher.path)]
    if launcher.vendor == "Open MPI":
        passed_on = [word for name in sorted(variables) for word in ("-x", name)]
        place = ["--host", ",".join(counted), "--map-by", "slot", "--bind-to", "none"]
        return [*start, *place, *passed_on, "-n", str(spec.ranks)]
    # `-hosts` of Intel MPI takes no counts; -ppn does for both.
    place = ["-hosts", ",".join(spec.names), "-ppn", str(spec.per_host)]
    interface = ["-iface", spec.network] if spec.network else []
    return [*start, *place, *interface, "-n", str(spec.ranks)]


def start(
    spec: LaunchSpec,
    columns: int | None = None,
    *,
    patience: float = ssh_hosts.PATIENCE,
    debug: bool = False,
    conclude: Conclude = no_answer,
) -> int:
    """Run the spec on its hosts, once all of them answer, within `patience` seconds; the run's exit status.

    Raises UserError where there is no launcher, or where a host does not answer.
    """
    from runner.errors import tell

    launcher = mpi_launcher.find()
    if launcher.whole_lines:  # told to pass on less, it might cut the lines by which ranks tell their verdict
        columns = None
    found = ssh_hosts.answers(spec, sys.executable, patience)
    mpi_library.check(launcher, {answer.host: answer.mpi for answer in found})
    chosen = on_interface("").keys() & os.environ.keys()  # by the user, who knows better
    if spec.network is None and not chosen and (interface := ssh_hosts.common_interface(found)):
        spec = replace(spec, network=interface)
        tell(f"network: {interface}, by which {', '.join(spec.names)} are reached (--network for another)")
    token = secrets.token_hex(8)

    def started(run: Path, sockets: Path) -> tuple[list[str], dict[str, str]]:
        whole = launcher.elsewhere(os.environ, sockets)
        variables = {**environment(spec, launcher, whole), RUN_MARK: str(run)}
        ours = [*run_options(f"@{token}", columns), *spec_options(spec)]
        start = words(spec, launcher, {**forwarded(variables), **spec.settings})
        return [*start, *PROGRAM, *ours, *spec.words], variables

    def clean_up(run: Path, sockets: Path, seconds: float) -> list[str]:
        return ssh_hosts.sweep(
            spec.names, [sys.executable, "-I", SWEEP, str(run), str(sockets), f"{seconds + 1:.0f}", token]
        )

    return supervise(started, columns, token=token, debug=debug, elsewhere=clean_up, conclude=conclude)


def preview(spec: LaunchSpec) -> str:
    """What `start` runs, for a shell, without what only a run has; hosts are not asked."""
    launcher = mpi_launcher.find()
    here = launcher.elsewhere(os.environ)
    variables = environment(spec, launcher, here)
    start = words(spec, launcher, {**forwarded(variables), **spec.settings})
    return shell_command(variables, start, [*PROGRAM, *spec_options(spec), *spec.words])
