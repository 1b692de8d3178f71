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
from hosts import Hosts, problem
from mpirun_site import Site

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
    """Hosts n1, n2 and n3; every test finds them as if they had just been switched on."""
    refuse(problem())
    # A short path: sockets are made below it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder, Hosts(Path(folder) / "hosts") as made:
        yield made


@pytest.fixture(autouse=True)
def renewed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Switch the hosts off and on after a test that had them, whatever it did to them."""
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
