"""How long a rank waits for values, and the lines that ask for them."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from meshrun.runner.world.agreement import waits as waiting
from meshrun.runner.world.agreement.waits import Waits


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Waits on a clock of which each reading is a second later."""
    clock = iter(range(1000))
    monkeypatch.setattr(waiting, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    return Waits()


def wait(waits: Waits, times: int = 1) -> None:
    for _ in range(times):
        with waits:
            pass


def told(waits: Waits) -> list[tuple[int, int, float]]:
    return [(one.line, one.times, one.seconds) for one in waits.longest]


def test_a_wait_is_that_of_the_innermost_line_that_runs(waits: Waits) -> None:
    wait(waits, 7)  # of no line
    with waits.of_line(10):
        wait(waits, 2)
        with waits.of_line(20):
            wait(waits, 5)
        wait(waits)
    wait(waits, 9)
    with waits.of_line(20):
        wait(waits)
    assert told(waits) == [(20, 6, 6.0), (10, 3, 3.0)]
    assert waits.seconds == 25


def test_a_line_that_fails_has_its_waits_and_ends(waits: Waits) -> None:
    with pytest.raises(ZeroDivisionError), waits.of_line(10), waits:
        raise ZeroDivisionError
    wait(waits)
    with waits.of_line(20):
        wait(waits)
    assert sorted(told(waits)) == [(10, 1, 1.0), (20, 1, 1.0)]


def test_the_clock_begins_with_the_waits() -> None:
    before = time.perf_counter()
    assert before <= Waits().start <= time.perf_counter()
