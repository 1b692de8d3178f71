"""What must hold, in three tiers; each session has an environment of its own.

nox              lint and types, unit tests, faults, three ranks on Open MPI: before every commit
.ci/run          that, and the sessions hosts, mpich and first_command
nox -s nightly   everything: both MPIs on 1 to 5 ranks, full products, the lowest versions; no reruns
"""

import os

import nox

nox.options.error_on_external_run = True
nox.options.error_on_missing_interpreters = True  # Python 3.10 and 3.11, for the lowest versions
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "tests"]

OPEN_MPI, MPICH = "mpi", "mpich"  # our extras
EVERYTHING = ("--hypothesis-profile=nightly", "--no-reruns", "--timeout=1200")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, spelling and types."""
    session.install("ruff>=0.15", "mypy>=1.18", "codespell>=2.4", ".")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("codespell")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests, faults, and three ranks, with Open MPI."""
    session.install(f".[{OPEN_MPI},test]")
    unit(session)
    session.run("pytest", "tests/faults", *session.posargs)
    on_ranks(session, OPEN_MPI, 3)


@nox.session
def hosts(session: nox.Session) -> None:
    """Several hosts and Slurm, five ranks, and an ordinary user, with Open MPI."""
    session.install(f".[{OPEN_MPI},test]")
    session.run("pytest", "tests/cluster", *session.posargs)
    on_ranks(session, OPEN_MPI, 5)
    unprivileged(session)


@nox.session
def mpich(session: nox.Session) -> None:
    """What depends on the MPI library, with MPICH."""
    session.install(f".[{MPICH},test]")
    words = ["tests/unit", "tests/faults", "tests/cluster"]
    session.run("pytest", *words, "-m", "mpi_library and not nightly", *session.posargs)
    on_ranks(session, MPICH, 4, "-m", "mpi_library and not nightly")


@nox.session
def first_command(session: nox.Session) -> None:
    """README's first command, in an environment with only what it installs."""
    session.install("numpy", "pillow")  # of the comparison
    session.run("python", "tests/first_command.py")


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """Everything."""
    for name in ("lint", f"full({OPEN_MPI})", f"full({MPICH})", "lowest", "lowest_zarr", "first_command"):
        session.notify(name)


@nox.session
@nox.parametrize("mpi", [OPEN_MPI, MPICH], ids=[OPEN_MPI, MPICH])
def full(session: nox.Session, mpi: str) -> None:
    """All tests that need no GPU, on 1 to 5 ranks; with MPICH, of the unit tests those that depend on it."""
    session.install(f".[{mpi},test]")
    if mpi == OPEN_MPI:
        unit(session, *EVERYTHING, nightly=True)
    else:
        session.run("pytest", "tests/unit", *EVERYTHING, "-m", "mpi_library", *session.posargs)
    session.run("pytest", "tests/faults", "tests/cluster", *EVERYTHING, "-m", "", *session.posargs)
    for ranks in range(1, 6):
        on_ranks(session, mpi, ranks, *EVERYTHING, "-m", "")
    unprivileged(session)


@nox.session(python="3.10")
def lowest(session: nox.Session) -> None:
    """The oldest Python, and the lowest versions that pyproject.toml allows, of extras too."""
    install_lowest(session)
    unit(session, nightly=False)
    on_ranks(session, OPEN_MPI, 3)


@nox.session(python="3.11")
def lowest_zarr(session: nox.Session) -> None:
    """The lowest version of Zarr, which needs a newer Python."""
    install_lowest(session)
    session.run("pytest", "tests/unit/storage/test_zarr.py", *session.posargs)


def install_lowest(session: nox.Session) -> None:
    session.install("uv")
    session.run("uv", "pip", "install", "--resolution", "lowest-direct", f".[{OPEN_MPI},test]")


def unit(session: nox.Session, *words: str, nightly: bool = False) -> None:
    """The unit tests, on two processes; those that measure time afterwards, alone."""
    without = "" if nightly else " and not nightly"
    command = ["pytest", "tests/unit", *words]
    session.run(*command, "-n", "2", "--dist", "loadfile", "-m", f"not timed{without}", *session.posargs)
    session.run(*command, "-m", f"timed{without}", *session.posargs)


def on_ranks(session: nox.Session, mpi: str, ranks: int, *words: str) -> None:
    """The tests that are ranks, of the installed package."""
    options = ["-n", str(ranks)]
    environment = {"MESHRUN_INSTALLED": "1"}  # ranks have the wheel, which tests/mpi/test_installed.py sees
    if mpi == OPEN_MPI:
        options += ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        environment["OMPI_MCA_btl"] = "^ofi"  # this one-sided component of the wheel sleeps 1 s at start
    # Not `python -m pytest`: it would import the checkout.
    command = ["mpiexec", *options, "pytest", "--with-mpi", "-q", "tests/mpi"]
    session.run(*command, *words, *session.posargs, env=environment)


def unprivileged(session: nox.Session) -> None:
    """As a user who is not root: in a user namespace, where this process is."""
    words = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    places = [
        "tests/faults/test_run.py",
        "tests/faults/test_local.py",
        # What may be read and written, and who may remove what.
        "tests/unit/storage/test_npy.py",
        "tests/unit/storage/test_transaction.py",
        "tests/unit/world/test_failure.py",
        "tests/unit/world/test_termination.py",
        "tests/unit/launch/supervise/test_shared_memory.py",
        "tests/unit/launch/supervise/test_supervisor.py",
        "tests/unit/launch/mpi_/test_launcher.py",  # pytest-mpi skips what lies in a folder called mpi
        "tests/unit/validate/baseline/test_baseline.py",
    ]
    session.run(*words, "pytest", *places, *session.posargs, external=True)
