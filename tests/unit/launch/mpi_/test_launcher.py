"""Which launcher is found, and what it is told."""

from __future__ import annotations

import os
import pwd
import sys
import tempfile
from pathlib import Path

import pytest

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi.launcher import Launcher, Vendor, vendor_of
from meshrun.runner.errors import UserError

OPEN_MPI_5 = "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
OPEN_MPI_4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260301 (id: 1234)\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty Python environment and an empty folder on PATH."""
    for folder in ("env/bin", "site"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setenv("PATH", str(tmp_path / "site"))
    return tmp_path


def install(path: Path, version: str) -> Path:
    path.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{version}END\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "vendor"),
    [(OPEN_MPI_5, "Open MPI"), (OPEN_MPI_4, "Open MPI"), (MPICH, "MPICH"), (INTEL, "Intel MPI"), ("?", None)],
)
def test_the_vendor_is_told_by_the_version(version: str, vendor: str | None) -> None:
    assert vendor_of(version) == vendor


def test_the_environments_own_launcher_comes_first(machine: Path) -> None:
    own = install(machine / "env/bin/mpiexec", OPEN_MPI_5)
    install(machine / "site/mpiexec", MPICH)
    assert mpi_launcher.find() == Launcher(own, "Open MPI", bundled=True, whole_lines=True)


@pytest.mark.parametrize("name", ["mpiexec", "mpirun"])
def test_else_the_one_on_the_path(machine: Path, name: str) -> None:
    found = install(machine / "site" / name, MPICH)
    assert mpi_launcher.find() == Launcher(found, "MPICH", bundled=False)


@pytest.mark.usefixtures("machine")
def test_none_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"no MPI launcher found.*pip install 'meshrun\[mpi\]'"):
        mpi_launcher.find()


def test_an_unknown_one_is_an_error_that_shows_what_it_says(machine: Path) -> None:
    install(machine / "site/mpiexec", "aprun 5.2\n")
    with pytest.raises(UserError, match=r"is an unknown launcher: got --version: aprun 5\.2"):
        mpi_launcher.find()


def test_one_that_does_not_run_is_an_error(machine: Path) -> None:
    broken = machine / "site/mpiexec"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(UserError, match="No such file"):
        mpi_launcher.find()


@pytest.mark.parametrize(
    ("vendor", "options"),
    [
        ("Open MPI", ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]),
        ("MPICH", []),
        ("Intel MPI", []),
    ],
)
def test_each_vendor_has_its_command_line(vendor: Vendor, options: list[str]) -> None:
    launcher = Launcher(Path("/opt/mpiexec"), vendor, bundled=False)
    assert launcher.command(8) == ["/opt/mpiexec", *options, "-n", "8"]


def environment(
    vendor: Vendor = "Open MPI", ranks: int = 1, *, bundled: bool = True, **base: str
) -> dict[str, str]:
    return Launcher(Path("mpiexec"), vendor, bundled).environment(ranks, base, Path("/tmp/mr"))


def test_open_mpi_keeps_its_sockets_in_a_private_folder() -> None:
    told = environment()
    assert told["PRTE_MCA_prte_tmpdir_base"] == told["OMPI_MCA_orte_tmpdir_base"] == "/tmp/mr"
    assert "TMPDIR" not in told


def test_only_the_wheels_slow_part_is_switched_off() -> None:
    assert environment(bundled=True)["OMPI_MCA_btl"] == "self,sm"
    assert "OMPI_MCA_btl" not in environment(bundled=False)


def test_ranks_yield_only_when_they_outnumber_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_launcher, "cores", lambda: 4)
    assert "OMPI_MCA_mpi_yield_when_idle" not in environment(ranks=4)
    assert environment(ranks=5)["OMPI_MCA_mpi_yield_when_idle"] == "1"


def test_root_is_allowed_only_where_it_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not any("ROOT" in name for name in environment())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert environment()["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_open_mpi_gets_a_home_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    assert environment()["HOME"] == pwd.getpwuid(os.geteuid()).pw_dir
    assert environment(HOME="/mine")["HOME"] == "/mine"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user that the system does not know
    assert environment()["HOME"] == tempfile.gettempdir()


@pytest.mark.parametrize(("version", "lines"), [(OPEN_MPI_5, True), (OPEN_MPI_4, False), (MPICH, False)])
def test_a_launcher_that_waits_for_whole_lines_is_told_not_to_for_a_progress_bar(
    machine: Path, version: str, lines: bool
) -> None:
    install(machine / "site/mpiexec", version)
    found = mpi_launcher.find()
    assert found.whole_lines is lines
    assert (found.command(2, bar=True)[1:3] == ["--output", ":raw"]) is lines
    assert "--output" not in found.command(2)


def test_what_the_user_has_set_stays() -> None:
    told = environment(OMPI_MCA_btl="self,tcp", NCCL_DEBUG="INFO", PMIX_MCA_gds="hash")
    assert (told["OMPI_MCA_btl"], told["NCCL_DEBUG"], told["PMIX_MCA_gds"]) == ("self,tcp", "INFO", "hash")


def test_what_names_other_hosts_does_not() -> None:
    elsewhere = {
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "c1",
        "PMIX_RANK": "0",
        "PMIX_SERVER_URI41": "slurm.pmix.7.0",
        "PMI_RANK": "0",
        "PBS_JOBID": "8",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "HOROVOD_SIZE": "2",
        "HYDRA_HOST_FILE": "/etc/hosts",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
    }
    assert not elsewhere.keys() & environment(**elsewhere).keys()
