"""Timers call their work the reported number of times, and nothing else in between."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from meshrun.jobs.measure import timers


class Noted:
    """A box, backend or group that records its calls; an event is the number of calls before it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def note(self, *words: object) -> int:
        self.calls.append(" ".join(map(str, words)))
        return len(self.calls)

    def __getattr__(self, name: str) -> Any:
        return partial(self.note, name)

    def elapsed(self, begin: int, end: int) -> float:
        return float(end - begin)


def test_the_hosts_clock_counts_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted()
    monkeypatch.setattr(timers.time, "perf_counter", lambda: float(noted.note("clock")))
    assert timers.host_seconds(partial(noted.note, "work"), 3, partial(noted.note, "wait")) == 5 / 3
    assert noted.calls == ["clock", "work", "work", "work", "wait", "clock"]


def test_preparation_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted()
    monkeypatch.setattr(timers.time, "perf_counter", lambda: 60e-6 * noted.note("clock"))
    seconds = timers.sampled_host_seconds(partial(noted.note, "work"), partial(noted.note, "prepare"))
    assert seconds == pytest.approx(120e-6)
    assert noted.calls == ["prepare", "clock", "work", "clock"] * 2


def test_events_stand_round_all_calls() -> None:
    box: Any = Noted()
    assert timers.event_seconds(box, "s", partial(box.note, "work"), 2) == 3 / 2
    assert box.calls == ["mark s", "work", "work", "mark s", "synchronize s"]


def test_streams_begin_with_the_first_and_all_ends_are_waited_for() -> None:
    box: Any = Noted()
    events = timers.queue_concurrently(box, ["a", "b"], [partial(box.note, "x"), partial(box.note, "y")])
    begin = box.calls.index("mark a") + 1
    assert box.calls == [
        *("mark a", f"wait b {begin}", "mark b"),
        *("x", "mark a", "y", "mark b"),
        *("wait a 7", "mark a"),
    ]
    assert events.seconds() == (4.0, 4.0)
    assert events.total() == 8.0


@pytest.mark.parametrize(("asynchronous", "before"), [(True, ["work"]), (False, [])])
def test_the_time_of_a_launch_is_not_counted(asynchronous: bool, before: list[str]) -> None:
    backend = Noted()
    backend.asynchronous = asynchronous
    world: Any = SimpleNamespace(backend=backend)
    assert timers.backend_seconds(world, partial(backend.note, "work"), 3) == 4 / 3
    assert backend.calls == [*before, "mark", "work", "work", "work", "mark", "synchronize"]


def test_collectives_are_timed_after_their_signal() -> None:
    noted = Noted()
    events = [SimpleNamespace(record=partial(noted.note, f"event {number}")) for number in range(2)]
    group: Any = SimpleNamespace(
        marks=lambda count: events[:count],
        packed=lambda calls: [noted.note("packed") and call for call in calls],
        issue=lambda calls: [call() for call in calls],
        wait=partial(noted.note, "wait"),
        elapsed=lambda begin, end: 6.0 if (begin, end) == tuple(events) else 0.0,
    )
    signal, work, after = (partial(noted.note, word) for word in ("signal", "work", "after"))
    seconds = timers.collective_timer(group, signal, work, after)
    assert seconds(3) == 2.0
    once = [call for call in noted.calls if call != "packed"]
    assert once == ["signal", "event 0", "work", "work", "work", "event 1", "after", "wait"]
    noted.calls.clear()
    assert seconds(3) == 2.0
    assert "packed" not in noted.calls, "packed once for each number of calls"
