"""Find the MPI library that ranks will load, before any is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshrun.launch.supervise.query import query

if TYPE_CHECKING:
    from meshrun.launch.mpi.launcher import Launcher

# Removes the working directory, which -c puts first on the import path; -I would also ignore PYTHONPATH, in
# which a site's modules may have mpi4py, and -P needs Python 3.11. MPI is not initialised: that takes a
# second, and inside a job waits for the other ranks.
QUERY = (
    "import sys; sys.path[:] = filter(None, sys.path)\n"
    "import mpi4py; mpi4py.rc.initialize = False\n"
    "from mpi4py import MPI; name, (major, *_) = MPI.get_vendor(); print(major, name)"
)


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads: vendor and major version."""

    vendor: str
    major: int

    def __str__(self) -> str:
        return f"{self.vendor} {self.major}"


def parse_library(text: str) -> Library | None:
    """Parse the output of QUERY; None for any other output, such as from a Python without MPI."""
    major, _, vendor = text.strip().partition(" ")
    return Library(vendor, int(major)) if major.isdecimal() and vendor else None


def loaded() -> Library | None:
    """The MPI library that mpi4py loads on this machine; None without one."""
    done = query([sys.executable, "-c", QUERY])
    return parse_library(done.stdout) if done.returncode == 0 else None


def check(launcher: Launcher, libraries: Mapping[str, Library | None]) -> None:
    """UserError if ranks could not connect: hosts have different MPI libraries, or not the launcher's.

    libraries: by host; None if unknown, which is accepted.
    """
    from meshrun.runner.errors import UserError

    hosts: dict[Library, list[str]] = {}
    for host, library in libraries.items():
        if library:
            hosts.setdefault(library, []).append(host)
    if len(hosts) > 1:
        raise UserError(
            "the hosts have different MPI libraries",
            got="; ".join(f"{library} on {', '.join(names)}" for library, names in hosts.items()),
            hint="the same Python environment on every host",
        )
    library = next(iter(hosts), None)
    if library and (launcher.vendor == "Open MPI") != (library.vendor == "Open MPI"):
        raise UserError(
            f"{launcher} cannot start ranks of {library}, which mpi4py loads",
            hint="check LD_LIBRARY_PATH and MPI4PY_*, which select the library"
            if launcher.path.parent == Path(sys.prefix, "bin")
            else f"put the mpiexec of {library} first on PATH, or load its module",
        )
