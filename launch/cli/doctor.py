"""`meshrun doctor`: a table of all ranks, and all problems that would make a run fail or its results
misleading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from meshrun.launch.cli.cli_context import CliContext
from meshrun.launch.cli.params import DEVICES, TRACEBACK
from meshrun.launch.settings import read_settings

if TYPE_CHECKING:
    from meshrun.runner.options.choices import DeviceChoice


@click.command()
@click.option(
    "--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Device to examine."
)
@click.option("--json", "file", metavar="FILE", help="Write all facts as JSON; - is standard output.")
@TRACEBACK
@click.pass_obj
def doctor(cli_context: CliContext, device: DeviceChoice, file: str | None, debug: bool) -> int:
    """Show the hardware and software of every rank, the settings in force, and all problems.

    \b
    meshrun doctor                                     this machine
    mpirun -n 16 meshrun doctor                        under the launcher of your runs
    meshrun launch mpirun -j 2x8 --hosts a,b -- doctor

    Exit status 0, or 2 if a run would fail.
    """
    from meshrun.launch.mpi import library as mpi_library
    from meshrun.runner.run.installation.doctor import main
    from meshrun.runner.storage.paths import named
    from meshrun.runner.system.launcher import detect_launcher

    # A single process loads no MPI; a child process finds the library that ranks would load.
    library = mpi_library.loaded() if detect_launcher() is None else None
    json = None if file is None else named("--json", file)
    settings = [(one.name, str(one.value), one.source) for one in read_settings()]
    return main(cli_context.started, device, json, debug, str(library or ""), settings)
