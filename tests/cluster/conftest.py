"""Hosts for the tests of launches across hosts, see hosts.py; what a machine cannot have, said out loud.

Where a machine cannot have them, their tests are skipped and the end of the output says so at length; with
MESHRUN_CLUSTER=require, as in CI, they fail.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_farm
from hosts import Hosts, problem
from mpirun_site import Site
from processes import wait_for
from slurm_farm import Slurm

REASONS = pytest.StashKey[set[str]]()
Refuse = Callable[[str | None], None]


@pytest.fixture(scope="session")
def refuse(pytestconfig: pytest.Config) -> Refuse:
    """Skips what cannot be tested here for a reason, and has the end of the output tell it."""
    reasons = pytestconfig.stash.setdefault(REASONS, set())

    def call(reason: str | None) -> None:
        if reason:
            reasons.add(reason)
            (pytest.fail if os.environ.get("MESHRUN_CLUSTER") == "require" else pytest.skip)(reason)

    return call


@pytest.fixture(scope="session")
def hosts(refuse: Refuse) -> Iterator[Hosts]:
    """Hosts n1, n2 and n3, once a session; every test finds them as if they had just been switched on."""
    refuse(problem())
    # A short path: sockets are made below it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder, Hosts(Path(folder) / "hosts") as made:
        yield made


@pytest.fixture(autouse=True)
def renewed(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that had the hosts, whatever it did to them."""
    had = request.getfixturevalue("hosts") if "hosts" in request.fixturenames else None
    yield
    if had:
        had.renew()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if reasons := config.stash.get(REASONS, None):
        terminalreporter.section("some tests of launches did NOT run", sep="!", yellow=True)
        for reason in sorted(reasons):
            terminalreporter.line(reason)
        terminalreporter.line("MESHRUN_CLUSTER=require makes this a failure.")


@pytest.fixture
def site(hosts: Hosts, tmp_path: Path) -> Iterator[Site]:
    made = Site(hosts, tmp_path)
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


@pytest.fixture(scope="session")
def slurm_here(refuse: Refuse) -> None:
    """A machine that can have one."""
    refuse(slurm_farm.problem())


@pytest.fixture(scope="session")
def slurm_farm_up(slurm_here: None) -> Iterator[Slurm]:
    with slurm_farm.temporary() as made:
        yield made


@pytest.fixture(scope="session")
def slow_slurm_farm_up(slurm_here: None) -> Iterator[Slurm]:
    with slurm_farm.temporary(slurmd_timeout=300) as made:
        yield made


@pytest.fixture
def slurm(slurm_farm_up: Slurm) -> Iterator[Slurm]:
    """A cluster of nodes c1 and c2, once a session; without jobs, and with both nodes, after every test."""
    yield slurm_farm_up
    cleared(slurm_farm_up)


@pytest.fixture
def slow_slurm(slow_slurm_farm_up: Slurm) -> Iterator[Slurm]:
    """Another, which misses a node as late as most: the ranks do long before."""
    yield slow_slurm_farm_up
    cleared(slow_slurm_farm_up)


def cleared(slurm: Slurm) -> None:
    slurm.run(["scancel", "--user=root"])
    slurm.start_node(*slurm.missing)
    wait_for(lambda: not slurm.jobs())
