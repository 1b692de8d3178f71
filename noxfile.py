"""Everything that must hold, each session in an environment of its own: `nox`, or `nox -s lint`."""

import os

import nox

nox.options.error_on_external_run = True
nox.options.reuse_existing_virtualenvs = True

RANKS = ("1", "2", "3", "4", "5")


@nox.session
def lint(session: nox.Session) -> None:
    """Style and types."""
    session.install("ruff>=0.15", "mypy>=1.18", ".")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests that need no GPU, with Open MPI."""
    session.install(".[mpi,test]")
    session.run("pytest", "tests", *session.posargs)
    on_ranks(
        session, ["--allow-run-as-root", "--oversubscribe"] if os.geteuid() == 0 else ["--oversubscribe"]
    )


@nox.session
def tests_mpich(session: nox.Session) -> None:
    """What depends on the MPI library, with MPICH."""
    session.install(".[mpich,test]")
    # Not the tests of the hosts and the Slurm that the others use.
    those = [f"--ignore=tests/cluster/test_{name}.py" for name in ("hosts", "slurm_farm")]
    session.run("pytest", "tests/faults", "tests/cluster", *those, *session.posargs)
    on_ranks(session, [])


def on_ranks(session: nox.Session, options: list[str]) -> None:
    """The tests that are ranks, on several numbers of them."""
    # The Open MPI wheel's one-sided OFI component sleeps 1 s at start.
    environment = {"OMPI_MCA_btl": "^ofi"}
    for ranks in RANKS:
        words = ["mpiexec", *options, "-n", ranks, "python", "-m", "pytest", "--with-mpi", "-q", "tests/mpi"]
        session.run(*words, *session.posargs, env=environment)
