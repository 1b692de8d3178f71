"""By which of Slurm's ways ranks find each other."""

from __future__ import annotations

import pytest

from meshrun.launch.mpi.library import Library
from meshrun.launch.slurm.pmi import choose_mpi
from meshrun.runner.errors import UserError

OPEN_MPI, MPICH = Library("Open MPI", 5), Library("MPICH", 5)
OFFERED = frozenset(("none", "pmi2", "pmix", "pmix_v4"))


@pytest.mark.parametrize(
    ("asked", "ranks", "library", "way"),
    [
        ("auto", 16, OPEN_MPI, "pmix"),
        ("auto", 16, MPICH, "pmi2"),
        ("auto", 16, Library("Intel MPI", 2021), "pmi2"),
        ("auto", 1, None, "none"),
        ("pmix_v4", 16, OPEN_MPI, "pmix_v4"),
        ("pmi2", 16, Library("Open MPI", 4), "pmi2"),  # some were built for it
        ("pmi2", 16, None, "pmi2"),
        ("none", 1, MPICH, "none"),
    ],
)
def test_the_way_that_fits_the_mpi(asked: str, ranks: int, library: Library | None, way: str) -> None:
    assert choose_mpi(asked, ranks, library, OFFERED)[0] == way


@pytest.mark.parametrize(
    ("asked", "library", "reason"),
    [
        ("pmi2", OPEN_MPI, "--mpi pmi2: Open MPI 5 does not support PMI2, so .* Try: --mpi pmix"),
        ("pmix", MPICH, "--mpi pmix: MPICH 5 does not support Slurm's PMIx, .* Try: --mpi pmi2"),
        ("none", None, "--mpi none: srun provides no information about the other ranks"),
        ("pmi9", OPEN_MPI, "this Slurm has no --mpi pmi9: expected one of none, pmi2, pmix, pmix_v4"),
        ("auto", None, "cannot determine which MPI the ranks will load"),
        ("auto", Library("Fast MPI", 1), "got Fast MPI 1"),
        ("auto", Library("Cray MPICH", 8), None),
    ],
)  # fmt: skip
def test_ranks_that_would_not_find_each_other(
    asked: str, library: Library | None, reason: str | None
) -> None:
    if reason is None:  # the second best is there
        assert choose_mpi(asked, 16, library, OFFERED)[0] == "pmi2"
        return
    with pytest.raises(UserError, match=reason):
        choose_mpi(asked, 16, library, OFFERED)


def test_a_slurm_without_what_the_mpi_needs() -> None:
    with pytest.raises(UserError, match="Open MPI 5 needs srun --mpi=pmix: got a Slurm with none, pmi2"):
        choose_mpi("auto", 16, OPEN_MPI, frozenset(("none", "pmi2")))
