"""`meshrun selftest`: test this process, then ranks under the launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from meshrun.launch.cli.cli_context import CliContext
from meshrun.launch.cli.params import DEVICES, TRACEBACK

if TYPE_CHECKING:
    from meshrun.runner.options.choices import DeviceChoice


@click.command()
@click.option("--mutate", is_flag=True, help="Break the runner on purpose; every mutation must be detected.")
@click.option(
    "--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Device to test."
)
@TRACEBACK
@click.pass_obj
def selftest(cli_context: CliContext, mutate: bool, device: DeviceChoice, debug: bool) -> int:
    """Test whether this installation works."""
    from meshrun.runner.run.installation.selftest import main as test
    from meshrun.runner.system.launcher import detect_launcher

    single_process = cli_context.started.run is None and detect_launcher() is None
    if mutate and not single_process:
        raise click.UsageError(
            "--mutate runs its ranks as threads of one process; start it without a launcher"
        )
    if mutate and device == "cuda":
        raise click.UsageError("--mutate runs its ranks on the CPU; remove --device cuda")
    if single_process and cli_context.started.ranks is None and not mutate:
        return check_installation(device, debug)
    return test(mutate=mutate, device=device, started=cli_context.started, debug=debug)


def check_installation(device: DeviceChoice, debug: bool) -> int:
    """Test one rank without MPI, then several ranks under the launcher; returns 0 or 1."""
    from meshrun.launch.mpi import launcher as mpi_launcher
    from meshrun.launch.mpi import local
    from meshrun.launch.supervise.supervisor import Supervision
    from meshrun.runner.errors import UserError
    from meshrun.runner.files import working_directory
    from meshrun.runner.run.installation.selftest import launcher_ranks
    from meshrun.runner.run.installation.selftest import main as test
    from meshrun.runner.system.launcher import Started

    working_directory()  # otherwise each part would report that it does not exist
    status = test(device=device, started=Started(ranks=1), debug=debug)
    if status == UserError.exit_code:  # already reported: there is no such device
        return status
    parts = {"one rank": status == 0}
    try:
        launcher = mpi_launcher.find()
    except UserError as reason:
        return _conclude(parts, f"; one rank only: {reason}")
    ranks = launcher_ranks(device)
    words = ["selftest", "--device", device, *(["--debug"] if debug else [])]
    parts[f"{ranks} ranks under {launcher}"] = local.start(ranks, words, Supervision(debug=debug)) == 0
    return _conclude(parts, ".")


def _conclude(parts: dict[str, bool], remark: str) -> int:
    works = all(parts.values())
    listed = ", ".join(f"{part} {'passed' if passed else 'FAILED'}" for part, passed in parts.items())
    click.echo(f"This installation {'works' if works else 'does NOT work'}: {listed}{remark}")
    return 0 if works else 1
