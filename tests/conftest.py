"""What holds for all tests: what a hang does, which tests may run twice, how many examples Hypothesis draws.

A test that takes longer than `timeout` in pyproject.toml fails and shows the stack of every thread. Among
ranks it ends its process instead, and the launcher ends the others: they wait for each other.

A test that fails has failed. Only one marked `rerun`, with a reason, runs a second time; each that did is
listed by name, and more than RERUNS of them fail the run. `--no-reruns` allows none.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

RERUNS = 3

# The timeout bounds a test; Hypothesis's own deadline for one example would fail on a busy machine.
settings.register_profile(
    "ci", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40, derandomize=True
)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=500, derandomize=False)
settings.load_profile("ci")  # unless --hypothesis-profile names the other


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-reruns", action="store_true", help="run no test a second time")


def pytest_configure(config: pytest.Config) -> None:
    # A shell has what runs in the background ignore it, and so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--with-mpi", default=False):
        config.option.timeout_method = "thread"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("rerun"):
            (reason,) = mark.args
            assert reason.strip(), f"{item.nodeid}: a rerun needs a reason"
            if not config.getoption("no_reruns"):
                item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _forget_tasks() -> Iterator[None]:
    """What a test has changed, such as a compiler, is not in a task that the next one's run finds planned."""
    yield
    if (prepare := sys.modules.get("meshrun.runner.run.prepare")) is not None:
        prepare.forget_tasks()


def reran(config: pytest.Config) -> list[str]:
    """The tests that were run a second time."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return [report.nodeid for report in reporter.stats.get("rerun", [])] if reporter else []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and len(reran(session.config)) > RERUNS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if names := reran(config):
        terminalreporter.section(f"{len(names)} ran a second time; more than {RERUNS} fail the run")
        for name in names:
            terminalreporter.line(name)
