"""`meshrun doctor`: one table of all ranks, and all about them that would make a run fail or mislead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launch.cli import DEVICES

if TYPE_CHECKING:
    from runner.world import DeviceChoice


@click.command()
@click.option(
    "--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="What to look at."
)
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="All facts as JSON.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def doctor(door: Any, device: DeviceChoice, file: Path | None, debug: bool) -> int:
    """Show what every rank has, and what is wrong with it.

    \b
    meshrun doctor                                     this machine
    mpirun -n 16 meshrun doctor                        under the launcher of your runs
    meshrun launch mpirun -j 2x8 --hosts a,b -- doctor

    Exit status 0; 2 where a run would fail.
    """
    from runner.doctor import main

    return main(door.started, device, file, debug)
