"""Choose srun's --mpi: with one that their MPI does not support, N ranks would be N runs of one rank each."""

from __future__ import annotations

import re

from meshrun.launch.mpi.library import Library
from meshrun.launch.slurm.queries import HINT, last_line, program
from meshrun.launch.supervise.query import query

# Supported by each MPI, preferred first. Open MPI supports only PMIx since version 5.
ACCEPTED = {
    "Open MPI": ("pmix",),
    "MPICH": ("pmi2",),
    "Intel MPI": ("pmi2",),
    "MVAPICH": ("pmi2",),
    "Cray MPICH": ("cray_shasta", "pmi2"),
}
OPEN_MPI_WITHOUT_PMI2 = 5
NAME = re.compile(r"\b(cray_shasta|none|openmpi|pmi2|pmix(?:_v\d+)?)\b")


def choose_mpi(
    requested: str, ranks: int, library: Library | None, offered: frozenset[str] | None
) -> tuple[str, str]:
    """srun's --mpi for `ranks` ranks, and a short reason. Raises UserError if they could not connect.

    requested: "auto", or one of Slurm's names. library: None if unknown. offered: supported by this Slurm;
    None if unknown.
    """
    from meshrun.runner.errors import UserError

    listed = ", ".join(sorted(offered or ()))
    if requested != "auto":
        if offered is not None and requested not in offered:
            raise UserError(
                f"this Slurm has no --mpi {requested}", expected=f"one of {listed}", hint="--mpi auto"
            )
        if ranks > 1 and (reason := incompatible(requested, library)):
            fitting = (
                f"--mpi {ACCEPTED[library.vendor][0]}"
                if library and library.vendor in ACCEPTED
                else "--mpi auto"
            )
            raise UserError(
                f"--mpi {requested}: {reason}, so {ranks} ranks would be {ranks} runs", hint=fitting
            )
        return requested, "as requested"
    if ranks == 1:
        return "none", "one rank connects to no other"
    if library is None or library.vendor not in ACCEPTED:
        raise UserError(
            "cannot determine which MPI the ranks will load",
            got=library or "no mpi4py that can be imported, or a container",
            hint=suggestion(None),
        )
    takes = ACCEPTED[library.vendor]
    for name in takes:
        if offered is None or name in offered:
            return name, f"for {library}"
    raise UserError(
        f"{library} needs srun --mpi={' or '.join(takes)}",
        got=f"a Slurm with {listed}",
        hint="an MPI that this Slurm can start: the site's module; srun --mpi=list shows all",
    )


def suggestion(library: Library | None) -> str:
    """The hint without a Slurm to query. library: None if unknown."""
    if library is None or library.vendor not in ACCEPTED:
        return "--mpi pmix for Open MPI, --mpi pmi2 for MPICH and Intel MPI"
    return f"--mpi {ACCEPTED[library.vendor][0]}, which {library} supports"


def incompatible(name: str, library: Library | None) -> str | None:
    """Why ranks started by srun --mpi `name` could not connect; None if no reason is known."""
    if name == "none":
        return "srun provides no information about the other ranks"
    if library is None:
        return None
    if library.vendor == "Open MPI" and name == "pmi2" and library.major >= OPEN_MPI_WITHOUT_PMI2:
        return f"{library} does not support PMI2"
    if library.vendor == "MPICH" and name.startswith("pmix"):
        return f"{library} does not support Slurm's PMIx"
    return None


def offered() -> frozenset[str]:
    """The values of --mpi of this machine's srun. Raises UserError without Slurm."""
    from meshrun.runner.errors import UserError

    done = query([program("srun"), "--mpi=list"])
    found = frozenset(NAME.findall(done.stdout + done.stderr))
    if done.returncode or not found:
        raise UserError("srun --mpi=list does not list what Slurm supports", got=last_line(done), hint=HINT)
    return found
