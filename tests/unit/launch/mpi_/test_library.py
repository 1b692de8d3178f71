"""MPIs that do not go together are found before a rank is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi import local, mpirun, ssh_hosts
from meshrun.launch.mpi.launcher import Launcher, Vendor
from meshrun.launch.mpi.library import Library, check, loaded, parse_library
from meshrun.launch.mpi.ssh_hosts import HostProbe
from meshrun.launch.spec import LaunchSpec
from meshrun.runner.errors import UserError

OPEN_MPI, MPICH = Library("Open MPI", 5), Library("MPICH", 5)


def launcher(vendor: Vendor = "Open MPI") -> Launcher:
    return Launcher(Path("/opt/mpiexec"), vendor, bundled=False)


@pytest.mark.parametrize(
    ("said", "library"),
    [
        ("5 Open MPI\n", OPEN_MPI),
        ("2021 Intel MPI", Library("Intel MPI", 2021)),
        ("", None),
        ("no MPI", None),
    ],
)
def test_the_answer_of_a_python(said: str, library: Library | None) -> None:
    assert parse_library(said) == library


def test_a_python_without_mpi4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('libmpi.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert loaded() is None


@pytest.mark.mpi_library
def test_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded()
    if found is None:
        pytest.skip("no MPI that mpi4py loads")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert loaded() is None
    check(mpi_launcher.find(), {"n1": found})


@pytest.mark.parametrize(
    ("vendor", "library"),
    [
        ("Open MPI", OPEN_MPI),
        ("Open MPI", None),
        ("MPICH", MPICH),
        ("MPICH", Library("MVAPICH", 4)),
        ("Intel MPI", Library("Intel MPI", 2021)),
        ("Intel MPI", MPICH),  # of one ABI
    ],
)
def test_a_launcher_and_its_library(vendor: Vendor, library: Library | None) -> None:
    check(launcher(vendor), {"n1": library, "n2": library})


@pytest.mark.parametrize(("vendor", "library"), [("MPICH", OPEN_MPI), ("Open MPI", MPICH)])
def test_a_launcher_of_another_mpi(vendor: Vendor, library: Library) -> None:
    with pytest.raises(UserError) as failure:
        check(launcher(vendor), {"n1": library})
    assert str(failure.value) == (
        f"{vendor} (/opt/mpiexec) cannot start ranks of {library}, which mpi4py loads. "
        f"Try: put the mpiexec of {library} first on PATH, or load its module"
    )


@pytest.mark.parametrize("bundled", [False, True])
def test_on_this_machine_a_launcher_from_elsewhere_is_checked(
    monkeypatch: pytest.MonkeyPatch, bundled: bool
) -> None:
    monkeypatch.setattr(mpi_launcher, "find", lambda: Launcher(Path("/opt/mpiexec"), "Open MPI", bundled))
    monkeypatch.setattr(mpi_library, "loaded", lambda: MPICH)
    monkeypatch.setattr(local, "supervise", lambda *_, **__: 0)
    if bundled:
        assert local.start(2, ["selftest"]) == 0
    else:
        with pytest.raises(UserError, match="cannot start ranks of MPICH 5, which mpi4py loads"):
            local.start(2, ["selftest"])


def test_hosts_with_different_mpis_are_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = LaunchSpec(("selftest",), 3, 1, ("n1", "n2", "n3"))
    found = [
        HostProbe("n1", OPEN_MPI, None),
        HostProbe("n2", MPICH, "eth0"),
        HostProbe("n3", OPEN_MPI, "eth0"),
    ]
    monkeypatch.setattr(mpi_launcher, "find", launcher)
    monkeypatch.setattr(ssh_hosts, "probe_hosts", lambda *_: found)
    monkeypatch.setattr(mpirun, "supervise", lambda *_, **__: pytest.fail("it was started"))
    with pytest.raises(UserError) as failure:
        mpirun.start(spec)
    assert str(failure.value) == (
        "the hosts have different MPI libraries: got Open MPI 5 on n1, n3; MPICH 5 on n2. "
        "Try: the same Python environment on every host"
    )
