"""Find the MPI launcher of this machine, and its options and variables for ranks on this machine.

A launcher next to this Python is preferred: it belongs to the MPI library of a wheel in the same
environment, which mpi4py loads. The ranks' `World` detects a mismatch of the two.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Vendor = Literal["Open MPI", "MPICH", "Intel MPI"]

# A word in the output of a launcher's --version, and its vendor. MVAPICH uses MPICH's launcher.
VENDORS: tuple[tuple[str, Vendor], ...] = (
    ("Open MPI", "Open MPI"),
    ("OpenRTE", "Open MPI"),
    ("Intel(R) MPI", "Intel MPI"),
    ("HYDRA", "MPICH"),
)
LINES = re.compile(r"\(Open MPI\) [5-9]")  # these forward whole lines; earlier ones and MPICH forward at once
# Variables of a batch system or operator that make a launcher start ranks on other hosts.
OTHER_HOSTS = ("SLURM", "PBS_", "LSB_", "PE_HOSTFILE", "PMI_", "PMI2_", "PMIX_", "HYDRA_HOST_FILE")
USER_SETTINGS = "PMIX_MCA_"  # an exception
HOSTFILE = "_default_hostfile"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # required by Open MPI


@dataclass(frozen=True)
class Launcher:
    """An mpiexec. bundled: it is part of this Python environment.

    whole_lines: it forwards the ranks' output line by line, so that a progress bar, which never ends its
    line, would appear only after the run.
    """

    path: Path
    vendor: Vendor
    bundled: bool
    whole_lines: bool = False

    def __str__(self) -> str:
        return f"{self.vendor} ({self.path})"

    def command(self, ranks: int, *, bar: bool = False) -> list[str]:
        """The arguments before the program: `ranks` processes, possibly more than cores, unbound.

        Binding a rank to one core would bind its CuPy, NCCL and reader threads too. bar: forward output at
        once, for a progress bar.
        """
        raw = ["--output", ":raw"] if bar and self.whole_lines else []
        free = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if self.vendor == "Open MPI" else []
        return [str(self.path), *raw, *free, "-n", str(ranks)]

    def settings(self, root: bool) -> dict[str, str]:
        """Variables that MPI needs for ranks on one host. root: the user is root."""
        if self.vendor == "Open MPI":
            # No network components: all ranks are on this host, and one component sleeps for a second.
            here = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"} if self.bundled else {}
            return {**here, **(AS_ROOT if root else {})}
        return {"I_MPI_PIN": "off"} if self.vendor == "Intel MPI" else {}

    def environment(self, ranks: int, base: Mapping[str, str], sockets: Path | None = None) -> dict[str, str]:
        """`base` plus variables for the launcher and ranks on this host; `base` takes precedence.

        sockets: a private folder with a short path. A socket's path has at most 107 bytes, and a folder left
        by a crashed daemon in a shared place blocks the next daemon with the same number.
        """
        defaults = self.settings(root=os.geteuid() == 0)
        if self.vendor == "Open MPI" and ranks > cores():
            defaults["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return {**defaults, **self.clean_environment(base, sockets)}

    def clean_environment(self, base: Mapping[str, str], sockets: Path | None = None) -> dict[str, str]:
        """`base` without variables about hosts and ranks of other runs; the launcher's sockets go to
        `sockets`."""
        from meshrun.runner.system.launcher import STARTED_IN, UNCONNECTED_NAMES, slurm_job

        environment = {
            name: value
            for name, value in base.items()
            if name.startswith(USER_SETTINGS) or not name.startswith(OTHER_HOSTS)
            if not (name.endswith(HOSTFILE) or name in UNCONNECTED_NAMES)
        }
        if job := slurm_job(base):
            environment[STARTED_IN] = job
        folders = (
            ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base") if self.vendor == "Open MPI" else ()
        )
        home = {"HOME": _home()} if self.vendor == "Open MPI" else {}  # required by Open MPI
        return {**home, **{name: str(sockets) for name in folders if sockets}, **environment}


def _home() -> str:
    """The user's home in the user database, or a writable folder."""
    found = os.path.expanduser("~")
    return found if os.path.isabs(found) else tempfile.gettempdir()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def find() -> Launcher:
    """The launcher to use. Raises UserError if there is none or it is unknown."""
    from meshrun.runner.errors import UserError

    path, bundled = _locate()
    if path is None:
        raise UserError(
            "no MPI launcher found to start ranks with",
            expected=f"mpiexec in {Path(sys.prefix) / 'bin'} or on PATH",
            hint="load the site's MPI module, or pip install 'meshrun[mpi]', or -n 1",
        )
    version = _version(path)
    vendor = vendor_of(version)
    if vendor is None:
        raise UserError(
            f"{path} is an unknown launcher",
            got=f"--version: {(version.strip() or 'nothing').splitlines()[0]}",
            expected="Open MPI, MPICH or Intel MPI",
            hint="start the ranks with it yourself: mpiexec -n 2 meshrun run ...",
        )
    return Launcher(path, vendor, bundled, whole_lines=LINES.search(version) is not None)


def vendor_of(version: str) -> Vendor | None:
    """The vendor of a launcher whose --version prints `version`."""
    return next((vendor for word, vendor in VENDORS if word in version), None)


def _locate() -> tuple[Path | None, bool]:
    own = Path(sys.prefix) / "bin" / "mpiexec"
    if os.access(own, os.X_OK):
        return own, sys.prefix != sys.base_prefix
    found = shutil.which("mpiexec") or shutil.which("mpirun")
    return (Path(found) if found else None), False


def _version(path: Path) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as reason:
        return str(reason)
    return done.stdout + done.stderr
