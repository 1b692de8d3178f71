"""Hosts for the tests of launches across hosts; see hosts.py.

Where a machine cannot have them, their tests are skipped and the end of the output says so at length; with
MESHRUN_CLUSTER=require, as in CI, they fail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Hosts, problem

REASON = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def hosts(pytestconfig: pytest.Config) -> Iterator[Hosts]:
    """Hosts n1, n2 and n3; every test finds them as if they had just been switched on."""
    if reason := problem():
        if os.environ.get("MESHRUN_CLUSTER") == "require":
            pytest.fail(reason)
        pytestconfig.stash[REASON] = reason
        pytest.skip(reason)
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
    if reason := config.stash.get(REASON, None):
        terminalreporter.section("tests across hosts did NOT run", sep="!", yellow=True)
        terminalreporter.line(reason)
        terminalreporter.line("MESHRUN_CLUSTER=require makes this a failure.")
