"""Signals that end this process, and those that do not."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator

import pytest

from meshrun.runner.world.termination import on_termination


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> Iterator[queue.Queue[int]]:
    """The exit statuses that this process would have ended with; its signals are its own again afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    # Not as a shell has it, which has what runs in the background ignore them.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    found: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr("os._exit", found.put)
    yield found
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_that_a_job_handles_does_not_end_the_run(statuses: queue.Queue[int]) -> None:
    handled: list[int] = []
    ended: list[str] = []
    on_termination(lambda: ended.append("in order"))
    signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert statuses.get(timeout=30) == 128 + signal.SIGTERM
    assert set(handled) == {signal.SIGUSR1}
    assert ended == ["in order"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_ends_runs_does_so_whatever_handler_a_job_sets(
    statuses: queue.Queue[int], number: signal.Signals
) -> None:
    on_termination(lambda: None)
    signal.signal(number, lambda *_: None)
    os.kill(os.getpid(), number)
    assert statuses.get(timeout=30) == 128 + number


def test_a_signal_that_is_ignored_stays_so(statuses: queue.Queue[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    on_termination(lambda: None)
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    assert statuses.get(timeout=30) == 128 + signal.SIGTERM
