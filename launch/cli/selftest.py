"""`meshrun selftest` in a process of its own: first this process, then ranks under the launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from runner.world import DeviceChoice


def check_installation(device: DeviceChoice, debug: bool) -> int:
    """Test what runs without MPI, then start ranks that find each other and test again; 0 or 1."""
    from launch.mpi import launcher as mpi_launcher
    from launch.mpi import local
    from runner.errors import UserError
    from runner.launcher import Started, working_directory
    from runner.selftest import launcher_ranks
    from runner.selftest import main as test

    working_directory()  # else each part would tell that it is gone
    status = test(device=device, started=Started(ranks=1), debug=debug)
    if status == UserError.exit_code:  # said already: there is no such device
        return status
    parts = {"one rank": status == 0}
    try:
        launcher = mpi_launcher.find()
    except UserError as reason:
        return _conclude(parts, f"; one rank only: {reason}")
    ranks = launcher_ranks(device)
    words = ["selftest", "--device", device, *(["--debug"] if debug else [])]
    parts[f"{ranks} ranks under {launcher}"] = local.start(ranks, words, debug=debug) == 0
    return _conclude(parts, ".")


def _conclude(parts: dict[str, bool], remark: str) -> int:
    works = all(parts.values())
    listed = ", ".join(f"{part} {'passed' if passed else 'FAILED'}" for part, passed in parts.items())
    click.echo(f"This installation {'works' if works else 'does NOT work'}: {listed}{remark}")
    return 0 if works else 1
