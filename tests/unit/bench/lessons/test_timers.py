"""The gate: what is timed, what may not happen behind it, when it opens by itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from lesson_box import TICK, Kernel, LessonBox

from meshrun.jobs import kernels
from meshrun.jobs.measure.gate import MAX_QUEUED, Gate
from meshrun.jobs.measure.timers import FEWEST_CALLS, SHORTEST_SAMPLE, gated_event_seconds
from meshrun.runner.errors import RunError

CALL = 10 * TICK  # seconds that the host takes for a call of the kernel below


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[LessonBox, Any, Callable[[], None]]]:
    """Make a box, a stream, and a function that queues a kernel of this duration; its call takes CALL."""

    def make(seconds: float, box: type[LessonBox] = LessonBox) -> Any:
        opened = box({"short": Kernel(lambda: None, lambda: seconds)})
        monkeypatch.setattr(kernels, "load", opened.load)
        stream = opened.stream(0)
        run = opened.load("short.cu", "short")

        def issue() -> None:
            opened.now += CALL
            opened.issued += 1
            run((1,), (1,), (), stream=stream)

        opened.issued = 0
        return opened, stream, issue

    return make


def timed(box: LessonBox, stream: Any, issue: Callable[[], object], samples: int = 3) -> float:
    def median(sample: Callable[[], float]) -> float:
        sample()
        return statistics.median(sample() for _ in range(samples))

    return gated_event_seconds(box, 0, stream, issue, median)


@pytest.mark.parametrize("seconds", [1e-7, 3e-6, 1e-3])
def test_calls_are_in_no_time(made: Any, seconds: float) -> None:
    box, stream, issue = made(seconds)
    assert timed(box, stream, issue) == pytest.approx(seconds)
    assert not box.kept, "the gate keeps memory"


@pytest.mark.parametrize(
    ("seconds", "calls"), [(0.0, MAX_QUEUED), (1e-7, MAX_QUEUED), (3e-6, 67), (1.0, FEWEST_CALLS)]
)
def test_as_much_is_queued_as_is_enough_and_fits(made: Any, seconds: float, calls: int) -> None:
    box, stream, issue = made(seconds)
    timed(box, stream, issue, samples=1)
    # One to load, one to measure the duration; the first one of the median, and the one that counts.
    assert box.issued == 1 + 1 + calls + calls
    assert calls * seconds >= SHORTEST_SAMPLE or calls == MAX_QUEUED


def test_the_gate_is_opened_and_given_back_where_queueing_fails(made: Any) -> None:
    box, stream, issue = made(1e-6)

    def broken() -> None:
        issue()
        if box.issued > 5:
            raise RunError("no more")

    with pytest.raises(RunError, match="no more"):
        timed(box, stream, broken)
    assert not stream.queue
    assert not box.kept


class Impatient(LessonBox):
    """A box whose gates open by themselves as soon as two operations wait behind them."""

    def mark(self, stream: Any) -> Any:
        for work in stream.queue:
            if work.held and len(stream.queue) > 2:
                work.latch[:] = 0, 1
        return super().mark(stream)


def test_a_gate_that_gave_way_is_no_measurement(made: Any) -> None:
    box, stream, issue = made(1e-6, Impatient)
    with pytest.raises(RunError, match="the gate opened by itself"):
        timed(box, stream, issue)


def test_several_streams_wait_for_one_gate(made: Any) -> None:
    box, first, issue = made(1e-6)
    gate, streams = Gate(box, 0), [first, box.stream(0)]
    gate.hold(0, first)
    issue()
    box.synchronize(first)
    with gate.closed():
        marks = []
        for stream in streams:
            gate.hold(0, stream)
            marks.append(box.mark(stream))
        issued = box.now
    for stream in streams:
        box.synchronize(stream)
    gate.check()
    assert all(mark.time >= issued for mark in marks)


def acts(box: LessonBox, stream: Any, issue: Callable[[], None]) -> dict[str, Callable[[], object]]:
    device, host = box.allocate("device", 64, 0), box.allocate("pageable", 64, 0)
    other = box.stream(0)
    box.kernels = {**box.kernels, "new": Kernel(lambda: None)}
    return {
        "waits": lambda: box.synchronize(stream),
        "waits for one that waits": lambda: (box.wait(other, box.mark(stream)), box.synchronize(other)),
        "allocates": lambda: box.allocate("pinned", 64, 0),
        "releases": lambda: box.release(device),
        "makes a stream": lambda: box.stream(0),
        "copies pageable memory": lambda: box.copy(device, host, 64, stream),
        "launches for the first time": lambda: box.load("new.cu", "new")((1,), (1,), (), stream=other),
        "queues too much": lambda: [issue() for _ in range(1001)],
        "nothing": issue,
        "waits for another stream": lambda: box.synchronize(other),
    }


@pytest.mark.parametrize(
    "act",
    ["waits", "waits for one that waits", "allocates", "releases", "makes a stream", "copies pageable memory",
     "launches for the first time", "queues too much"],
)  # fmt: skip
def test_the_simulated_gpu_finds_what_would_wait_for_ever(made: Any, act: str) -> None:
    box, stream, issue = made(1e-6)
    known = acts(box, stream, issue)
    gate = Gate(box, 0)
    for harmless in ("nothing", "waits for another stream"):
        gate.hold(0, stream)
        issue()
        box.synchronize(stream)
        with gate.closed():
            gate.hold(0, stream)
            known[harmless]()
        box.synchronize(stream)
    with gate.closed():
        gate.hold(0, stream)
        with pytest.raises(AssertionError):
            known[act]()
