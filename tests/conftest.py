"""A wall-clock guard for every test: ranks that wait for each other must not hang a whole CI job.

A test that takes longer than MESHRUN_TEST_SECONDS (120) ends its process at once, with the stack of
every thread on stderr. The launcher then ends the other ranks, as it does when a rank crashes.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

SECONDS = float(os.environ.get("MESHRUN_TEST_SECONDS", "120"))
STDERR = pytest.StashKey[int]()

# The guard bounds the time; hypothesis's own deadline per example would fail on a busy machine.
settings.register_profile("meshrun", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("meshrun")


def pytest_configure(config: pytest.Config) -> None:
    # A shell has what runs in the background ignore it, and so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # While a test runs, pytest captures file descriptor 2 into a file that would be lost.
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
