"""A wall-clock guard for every test: ranks that wait for each other must not hang a whole CI job.

A test that takes longer than MESHRUN_TEST_SECONDS (120) ends its process at once, with the stack of
every thread on stderr. The launcher then ends the other ranks, as it does when a rank crashes.

Tests that compare times, or wait for processes, are run up to three times before they count as failed: a
machine that others use stalls now and then for longer than the naps that make a rank slow.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
# Not of tests/mpi: there, all ranks run each test together.
TIMED = ["cluster", "faults", "unit/bench", "unit/stream/test_batch.py", "unit/stream/test_flow.py",
         "unit/test_clock.py", "unit/test_deal.py", "unit/test_docs.py", "unit/test_ending.py",
         "unit/test_guard.py", "unit/test_heartbeat.py", "unit/test_rates.py", "unit/test_watchdog.py",
         "unit/validate/test_ranks.py"]  # fmt: skip
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(TESTS / place) for place in TIMED):
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_runtest_setup(item: pytest.Item) -> None:
    watch(item)  # anew each time that it is run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    watch(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def watch(item: pytest.Item) -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=item.config.stash[STDERR])
