"""Which MPI launcher this machine has, and what to tell it to start ranks here and now.

The launcher beside this Python comes first: it belongs to the MPI library of a wheel in the same
environment, the one that mpi4py loads. The ranks' `World` finds out if the two do not match.
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

# A word that a launcher's --version prints, and what it tells. MVAPICH uses MPICH's launcher.
VENDORS: tuple[tuple[str, Vendor], ...] = (
    ("Open MPI", "Open MPI"),
    ("OpenRTE", "Open MPI"),
    ("Intel(R) MPI", "Intel MPI"),
    ("HYDRA", "MPICH"),
)
LINES = re.compile(r"\(Open MPI\) [5-9]")  # that pass on whole lines; earlier ones, and MPICH, what comes
# What a batch system or an operator says of other hosts: a launcher that heard it would go there.
ELSEWHERE = ("SLURM", "PBS_", "LSB_", "PE_HOSTFILE", "PMI_", "PMI2_", "PMIX_", "HYDRA_HOST_FILE")
SETTINGS = "PMIX_MCA_"  # the user's, all the same
HOSTFILE = "_default_hostfile"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # Open MPI refuses else


@dataclass(frozen=True)
class Launcher:
    """An mpiexec. bundled: it came with this Python environment.

    whole_lines: what ranks print is passed on when a line ends, and a progress bar, which has no end of
    line, when all is over.
    """

    path: Path
    vendor: Vendor
    bundled: bool
    whole_lines: bool = False

    def __str__(self) -> str:
        return f"{self.vendor} ({self.path})"

    def command(self, ranks: int, *, bar: bool = False) -> list[str]:
        """The words before the program: `ranks` processes, more than cores if need be, bound to none.

        A rank bound to one core would have its CuPy, NCCL and reader threads there too. bar: what ranks print
        is passed on as it comes.
        """
        raw = ["--output", ":raw"] if bar and self.whole_lines else []
        free = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if self.vendor == "Open MPI" else []
        return [str(self.path), *raw, *free, "-n", str(ranks)]

    def settings(self, root: bool) -> dict[str, str]:
        """What MPI needs for ranks on one host. root: they run as that user."""
        if self.vendor == "Open MPI":
            # All ranks are here: no network is opened, and the one that sleeps for a second least of all.
            here = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"} if self.bundled else {}
            return {**here, **(AS_ROOT if root else {})}
        return {"I_MPI_PIN": "off"} if self.vendor == "Intel MPI" else {}

    def environment(self, ranks: int, base: Mapping[str, str], sockets: Path | None = None) -> dict[str, str]:
        """`base` for the launcher and ranks on this host; what the user has set in it stays.

        sockets: a private folder with a short path. A socket's path has at most 107 bytes, and a
        daemon's folder left in a shared one by a crash stops the next daemon with the same number.
        """
        defaults = self.settings(root=os.geteuid() == 0)
        if self.vendor == "Open MPI" and ranks > cores():
            defaults["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return {**defaults, **self.clean_environment(base, sockets)}

    def clean_environment(self, base: Mapping[str, str], sockets: Path | None = None) -> dict[str, str]:
        """`base` without what names other hosts than the run's; the launcher's own sockets in `sockets`."""
        environment = {
            name: value
            for name, value in base.items()
            if name.startswith(SETTINGS) or not name.startswith(ELSEWHERE)
            if not name.endswith(HOSTFILE)
        }
        folders = (
            ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base") if self.vendor == "Open MPI" else ()
        )
        home = {"HOME": _home()} if self.vendor == "Open MPI" else {}  # it does not start without
        return {**home, **{name: str(sockets) for name in folders if sockets}, **environment}


def _home() -> str:
    """This user's folder by what the system knows, or one that can be written to."""
    found = os.path.expanduser("~")
    return found if os.path.isabs(found) else tempfile.gettempdir()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def find() -> Launcher:
    """The launcher to use; UserError where there is none, or none that is known."""
    from runner.errors import UserError

    path, bundled = _locate()
    if path is None:
        raise UserError(
            "no MPI launcher found to start ranks with",
            expected=f"mpiexec in {Path(sys.prefix) / 'bin'} or on PATH",
            hint="load the site's MPI module, or pip install 'meshrun[mpi]', or -n 1",
        )
    said = _version(path)
    vendor = vendor_of(said)
    if vendor is None:
        raise UserError(
            f"{path} is a launcher that meshrun has no words for",
            got=f"--version: {(said.strip() or 'nothing').splitlines()[0]}",
            expected="Open MPI, MPICH or Intel MPI",
            hint="start the ranks with it yourself: mpiexec -n 2 meshrun run ...",
        )
    return Launcher(path, vendor, bundled, whole_lines=LINES.search(said) is not None)


def vendor_of(version: str) -> Vendor | None:
    """Whose launcher prints `version` when asked --version."""
    return next((vendor for word, vendor in VENDORS if word in version), None)


def _locate() -> tuple[Path | None, bool]:
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    if os.access(beside, os.X_OK):
        return beside, sys.prefix != sys.base_prefix
    found = shutil.which("mpiexec") or shutil.which("mpirun")
    return (Path(found) if found else None), False


def _version(path: Path) -> str:
    try:
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as reason:
        return str(reason)
    return asked.stdout + asked.stderr
