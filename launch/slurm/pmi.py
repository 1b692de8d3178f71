"""By which of Slurm's ways ranks find each other: the one that the MPI here speaks, or N runs of one rank."""

from __future__ import annotations

import re

from launch.mpi.library import Library
from launch.slurm.queries import HINT, last_line, program
from launch.supervise.query import query

# What each MPI takes, the best first. Open MPI speaks PMIx alone since version 5.
ACCEPTED = {
    "Open MPI": ("pmix",),
    "MPICH": ("pmi2",),
    "Intel MPI": ("pmi2",),
    "MVAPICH": ("pmi2",),
    "Cray MPICH": ("cray_shasta", "pmi2"),
}
OPEN_MPI_WITHOUT_PMI2 = 5
WAY = re.compile(r"\b(cray_shasta|none|openmpi|pmi2|pmix(?:_v\d+)?)\b")


def choose_mpi(
    asked: str, ranks: int, library: Library | None, offered: frozenset[str] | None
) -> tuple[str, str]:
    """srun's --mpi for `ranks` ranks, and why in a few words; UserError where they would not find each other.

    asked: "auto", or one of Slurm's names. library: None where it cannot be seen from here. offered: what
    this Slurm has; None where it was not asked.
    """
    from runner.errors import UserError

    listed = ", ".join(sorted(offered or ()))
    if asked != "auto":
        if offered is not None and asked not in offered:
            raise UserError(
                f"this Slurm has no --mpi {asked}", expected=f"one of {listed}", hint="--mpi auto"
            )
        if ranks > 1 and (reason := incompatible(asked, library)):
            fitting = (
                f"--mpi {ACCEPTED[library.vendor][0]}"
                if library and library.vendor in ACCEPTED
                else "--mpi auto"
            )
            raise UserError(f"--mpi {asked}: {reason}, so {ranks} ranks would be {ranks} runs", hint=fitting)
        return asked, "as asked"
    if ranks == 1:
        return "none", "one rank has nobody to find"
    if library is None or library.vendor not in ACCEPTED:
        raise UserError(
            "which MPI the ranks will load cannot be seen from here",
            got=library or "no mpi4py that loads, or a container",
            hint=suggestion(None),
        )
    takes = ACCEPTED[library.vendor]
    for way in takes:
        if offered is None or way in offered:
            return way, f"for {library}"
    raise UserError(
        f"{library} needs srun --mpi={' or '.join(takes)}",
        got=f"a Slurm with {listed}",
        hint="an MPI that this Slurm can start: the site's module; srun --mpi=list shows all",
    )


def suggestion(library: Library | None) -> str:
    """What to say where no Slurm can be asked. library: None where it cannot be seen."""
    if library is None or library.vendor not in ACCEPTED:
        return "--mpi pmix for Open MPI, --mpi pmi2 for MPICH and Intel MPI"
    return f"--mpi {ACCEPTED[library.vendor][0]}, which {library} here takes"


def incompatible(way: str, library: Library | None) -> str | None:
    """Why ranks that srun starts by `way` would not find each other; None when nothing says so."""
    if way == "none":
        return "srun tells no rank of the others"
    if library is None:
        return None
    if library.vendor == "Open MPI" and way == "pmi2" and library.major >= OPEN_MPI_WITHOUT_PMI2:
        return f"{library} does not speak PMI2"
    if library.vendor == "MPICH" and way.startswith("pmix"):
        return f"{library} does not speak Slurm's PMIx"
    return None


def offered() -> frozenset[str]:
    """What this machine's srun knows for --mpi; UserError where there is no Slurm."""
    from runner.errors import UserError

    done = query([program("srun"), "--mpi=list"])
    found = frozenset(WAY.findall(done.stdout + done.stderr))
    if done.returncode or not found:
        raise UserError("srun --mpi=list does not tell what this Slurm has", got=last_line(done), hint=HINT)
    return found
