"""The lesson `transfer`: what is moved and timed, what is found wrong, and what is said of the figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lesson_box import RATES, START, TICK, Kernel, LessonBox

from jobs import kernels
from jobs.bench.lessons import show
from jobs.bench.lessons import timers as timed
from jobs.bench.lessons.protocol import Lesson, Stage
from jobs.bench.lessons.transfer import cpu as transfer_host
from jobs.bench.lessons.transfer import explain as transfer_said
from jobs.bench.lessons.transfer import lesson as transfer
from jobs.bench.lessons.transfer.methods import DIRECTIONS, WAYS
from runner import RunError, UserError
from runner.backend.cpu import CpuBackend
from runner.world import lone_world

LARGEST = 1 << 18
SIZES = [1 << 10, 1 << 12, 1 << 14, 1 << 16, LARGEST]
Touch = Callable[[Any, Any, Any], None]


def touch(source: Any, target: Any, nbytes: Any) -> None:
    target[:nbytes] = source[:nbytes]


def touch_seconds(source: Any, target: Any, nbytes: Any) -> float:
    return START / 5 + int(nbytes) / RATES["mapped"]


def box_of(kernel: Touch = touch, **words: Any) -> LessonBox:
    return LessonBox({"touch": Kernel(kernel, touch_seconds)}, **words)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lesson]:
    def measure(box: LessonBox, **words: Any) -> Lesson:
        monkeypatch.setattr(kernels, "load", box.load)
        monkeypatch.setattr(timed, "perf_counter", box.clock)
        monkeypatch.setattr(transfer, "perf_counter", box.clock)
        stage = {"samples": 2, "minbytes": SIZES[0], "maxbytes": LARGEST} | words
        return transfer.measure(Stage(lone_world(CpuBackend()), box, **stage))

    return measure


def test_every_way_and_direction_is_timed_and_right(measured: Callable[..., Lesson]) -> None:
    lesson = measured(box_of())
    assert lesson.wrong == ()
    assert lesson.facts["bytes"] == SIZES
    for direction in DIRECTIONS:
        for way, kind in WAYS.items():
            seconds = lesson.facts["seconds"][direction][way][-1]
            if (way, direction) == ("managed", "to host"):
                continue  # only the host touches it
            rate = RATES["mapped" if way == "managed" else kind]
            assert seconds == pytest.approx(START + LARGEST / rate, abs=10 * TICK), (direction, way)
    text = show.text(lesson)
    assert "Data to GPU: mapped is the fastest way at first, write-combined from" in " ".join(text.split())
    assert json.loads(show.record(lesson, []))["device"]["name"] == "made up"


@pytest.mark.parametrize("size", [1, 3, 4097])
def test_odd_sizes(measured: Callable[..., Lesson], size: int) -> None:
    lesson = measured(box_of(), minbytes=size, maxbytes=size)
    assert (lesson.wrong, lesson.facts["bytes"]) == ((), [size])


def faults(lesson: Lesson) -> set[str]:
    return {sentence.partition(":")[0] for sentence in lesson.wrong}


def test_a_kernel_that_skips_the_last_byte_is_found(measured: Callable[..., Lesson]) -> None:
    def short(source: Any, target: Any, nbytes: Any) -> None:
        target[: nbytes - np.uint64(1)] = source[: nbytes - np.uint64(1)]

    lesson = measured(box_of(short))
    assert faults(lesson) == {"mapped, to GPU", "managed, to GPU", "mapped, to host"}
    assert len(lesson.wrong) == 3 * len(SIZES)
    assert lesson.wrong[0] == "mapped, to GPU: 1 of 1,024 bytes are wrong, the first at 1,023"
    assert measured(box_of(short), check=False).wrong == ()


class Lazy(LessonBox):
    """Copies of one kind of host memory do nothing, in one direction."""

    lost = ("pinned", "device")

    def copy(self, target: Any, source: Any, nbytes: int, stream: Any) -> None:
        if (source.kind, target.kind) != self.lost:
            super().copy(target, source, nbytes, stream)


@pytest.mark.parametrize(
    ("kind", "way"), [("pageable",) * 2, ("pinned",) * 2, ("combined", "write-combined")]
)
def test_a_copy_that_was_not_made_is_found(measured: Callable[..., Lesson], kind: str, way: str) -> None:
    for lost, direction in (((kind, "device"), "to GPU"), (("device", kind), "to host")):
        box = Lazy({"touch": Kernel(touch)})
        box.lost = lost
        assert faults(measured(box)) == {f"{way}, {direction}"}


class Forgetful(LessonBox):
    """Prefetches of one direction are not made, and the driver knows of none; or fail. From so many bytes."""

    lost, least, fails = "device", 0, False

    def prefetch(self, memory: Any, stream: Any, *, host: bool = False) -> None:
        if ("host" if host else "device") != self.lost or memory.nbytes < self.least:
            super().prefetch(memory, stream, host=host)
        elif self.fails:
            raise RunError("managed memory cannot be moved")


@pytest.mark.parametrize(("lost", "direction"), [("device", "to GPU"), ("host", "to host")])
@pytest.mark.parametrize("check", [True, False])
def test_a_prefetch_that_was_not_made_is_found(
    measured: Callable[..., Lesson], lost: str, direction: str, check: bool
) -> None:
    box = Forgetful({"touch": Kernel(touch, touch_seconds)})
    box.lost, box.least = lost, 1 << 15
    lesson = measured(box, check=check)
    assert lesson.wrong == tuple(
        f"prefetched, {direction}: {size} did not move, as the driver has it"
        for size in ("64 KiB", "256 KiB")
    )
    table = lesson.tables[DIRECTIONS.index(direction)]
    column = table.titles.index("prefetched (GB/s)")
    assert [row[column] == "not moved" for row in table.rows] == [False] * 3 + [True] * 2
    assert lesson.facts["seconds"][direction]["prefetched"][3:] == [None, None]
    assert "not moved" in show.text(lesson)


def test_what_fails_is_said_and_the_rest_measured(measured: Callable[..., Lesson]) -> None:
    box = Forgetful({"touch": Kernel(touch, touch_seconds)})
    box.lost, box.fails = "host", True
    lesson = measured(box)
    assert lesson.wrong == ()
    assert lesson.facts["not_measured"] == [
        "Not measured, managed, to GPU: managed memory cannot be moved.",
        "Not measured, prefetched, to GPU: managed memory cannot be moved.",
        "Not measured, prefetched, to host: managed memory cannot be moved.",
    ]
    assert set(lesson.facts["not_measured"]) <= set(lesson.said)
    for direction in DIRECTIONS:
        for way in ("pageable", "pinned", "write-combined", "mapped"):
            assert None not in lesson.facts["seconds"][direction][way]
    assert lesson.facts["seconds"]["to GPU"]["managed"] == [None] * len(SIZES)
    assert None not in lesson.facts["seconds"]["to host"]["managed"]
    assert box.used == LARGEST, "more than the lesson's device memory is kept"


@pytest.mark.parametrize("kind", ["pinned", "combined", "mapped", "managed"])
def test_memory_that_there_is_none_of_is_said(measured: Callable[..., Lesson], kind: str) -> None:
    class Without(LessonBox):
        def allocate(self, asked: Any, nbytes: int, gpu: int) -> Any:
            if asked == kind:
                raise UserError(f"there is not enough {kind} memory for GPU 0", got="262,144 bytes")
            return super().allocate(asked, nbytes, gpu)

    lesson = measured(Without({"touch": Kernel(touch, touch_seconds)}))
    lost = [way for way in WAYS if WAYS[way] == kind]
    assert lesson.said[-len(lost) :] == tuple(
        f"Not measured, {way}: there is not enough {kind} memory for GPU 0: got 262,144 bytes."
        for way in lost
    )
    for way, times in lesson.facts["seconds"]["to host"].items():
        assert (None in times) == (way in lost)
    assert show.text(lesson)


def test_other_errors_are_nobodys_to_hide(measured: Callable[..., Lesson]) -> None:
    class Broken(LessonBox):
        def prefetch(self, memory: Any, stream: Any, *, host: bool = False) -> None:
            raise RuntimeError("an illegal address")

    with pytest.raises(RuntimeError, match="illegal"):
        measured(Broken({"touch": Kernel(touch, touch_seconds)}))


def test_managed_pages_are_back_before_each_time(measured: Callable[..., Lesson]) -> None:
    box = box_of()
    measured(box, minbytes=LARGEST)
    begin = next(at for at, event in enumerate(box.journal) if event[:2] == ("allocate", "managed"))
    events = [event[:2] for event in box.journal[begin:]]
    touches = [at for at, event in enumerate(events) if event == ("launch", "touch")]
    assert touches
    assert all(events[at - 1] == ("prefetch", "host") for at in touches)


def test_managed_memory_is_never_more_than_what_is_free(measured: Callable[..., Lesson]) -> None:
    box = box_of(free=LARGEST + SIZES[-2])
    lesson = measured(box)
    seconds = lesson.facts["seconds"]["to GPU"]
    assert [t is None for t in seconds["managed"]] == [False] * 4 + [True]
    assert None not in seconds["pinned"]
    assert ("allocate", "managed", LARGEST) not in box.journal
    assert lesson.facts["memory"]["managed"]["nbytes"] == SIZES[-2]


def test_no_room_for_managed_memory_at_all(measured: Callable[..., Lesson]) -> None:
    lesson = measured(box_of(free=LARGEST), minbytes=LARGEST)
    assert lesson.facts["seconds"]["to host"]["prefetched"] == [None]
    assert lesson.wrong == ()
    assert "Managed pages" not in show.text(lesson)
    assert show.columns(lesson.tables[0])[-1].endswith("-           -")


def test_too_large_a_size_is_refused(measured: Callable[..., Lesson]) -> None:
    with pytest.raises(UserError, match="not enough device memory"):
        measured(box_of(free=LARGEST - 1))


def test_a_sample_is_long_enough_and_leaves_out_what_makes_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    now, moves = [0.0], [0]

    def passes(seconds: float) -> Callable[[], None]:
        def pass_by() -> None:
            now[0] += seconds
            moves[0] += seconds < 1

        return pass_by

    monkeypatch.setattr(timed, "perf_counter", lambda: now[0])
    assert timed.by_clock(passes(3e-5), passes(7.0)) == pytest.approx(3e-5)
    assert moves[0] == 7  # the first number of them that takes 200 us


def test_winners() -> None:
    assert transfer_said.winners("to GPU", [(1024, "pinned")]) == (
        "Data to GPU: pinned is the fastest way at every size."
    )
    assert transfer_said.winners("to host", [(1024, "mapped"), (65536, "pinned")]) == (
        "Data to host: mapped is the fastest way at first, pinned from 64 KiB."
    )


def test_pageable_memory_is_called_slower_only_where_it_was() -> None:
    def said(pageable: float) -> str:
        return transfer_said.staging("to GPU", [1 << 30], {"pageable": [pageable], "pinned": [0.02]})

    assert said(0.08) == "1 GiB to GPU takes 4 times as long with pageable memory as with pinned memory."
    assert "no longer" in said(0.0205)
    assert "no longer" in said(0.01)


def test_starting_is_spoken_of_only_where_it_counts() -> None:
    small = {"to GPU": {"pinned": [8e-6, 0.02], "mapped": [6e-6, 0.03]}}
    said = transfer_said.start([1 << 10, 1 << 30], small)
    assert "1 KiB to GPU takes from 6 us (mapped) to 8 us (pinned)" in said
    assert transfer_said.start([1 << 29, 1 << 30], {"to GPU": {"pinned": [0.01, 0.02]}}) == ""


def test_pages_are_compared_at_the_largest_size_there_is() -> None:
    ways = {"managed": [0.001, 0.5, None], "prefetched": [0.001, 0.1, None]}
    said = transfer_said.pages([1 << 20, 10**9, 1 << 40], {"to GPU": ways})
    assert "at 2 GB/s without prefetch and 10 GB/s with it" in said


@pytest.mark.parametrize(
    ("pinned", "slow", "expected"),
    [
        (0.3, 0.1, "difference back after 2.5 of them"),
        (0.3, 0.02, "never pay back"),
        (0.05, 0.1, "pageable (measured with 1 GiB)."),
    ],
)
def test_what_pinned_memory_costs(pinned: float, slow: float, expected: str) -> None:
    seconds = {"to GPU": {"pageable": [slow], "pinned": [0.02]}}
    allocated = {"pinned": (1 << 30, pinned), "pageable": (1 << 30, 0.1)}
    assert expected in transfer_said.price([1 << 30], seconds, allocated)


def on_cpu(**words: Any) -> Lesson:
    return transfer.measure(Stage(lone_world(CpuBackend()), None, samples=1, **words))


def test_host_copies_on_a_cpu() -> None:
    lesson = on_cpu(minbytes=1, maxbytes=1 << 16)
    assert lesson.wrong == ()
    assert lesson.facts["bytes"] == [4**power for power in range(9)]
    assert all(len(times) == 9 and min(times) > 0 for times in lesson.facts["seconds"].values())
    assert len(lesson.tables[0].rows) == 9
    assert "One thread copies" in show.text(lesson)


def test_a_host_copy_that_was_not_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = np.copyto

    def short(target: Any, source: Any) -> None:
        real(target[:-1], source[:-1])

    monkeypatch.setattr(np, "copyto", short)
    lesson = on_cpu(minbytes=100, maxbytes=400)
    assert lesson.wrong == (
        "1 of 100 copied bytes are wrong, the first at 99",
        "1 of 400 copied bytes are wrong, the first at 399",
    )


def test_pages_are_fresh_each_time() -> None:
    pages = transfer_host.Pages(5000)
    pages.touch()
    assert pages.array.all()
    pages.renew()
    assert not pages.array.any()


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(UserError, match="not enough memory"):
        on_cpu(minbytes=1 << 50, maxbytes=1 << 50)


@pytest.mark.parametrize(
    ("copy", "first", "expected"),
    [
        (
            [1.0, 1.0, 8.0],
            8.0,
            ["4 KiB at 4.1e-06 GB/s, its best", "From 16 KiB on", "takes 2 times as long"],
        ),
        ([1.0, 4.0, 16.0], 4.0, ["Fresh pages cost nothing"]),
    ],
)
def test_what_is_said_of_host_copies(copy: list[float], first: float, expected: list[str]) -> None:
    seconds = {"copy": copy, "first touch": [1, 1, first], "second touch": [1, 1, 4.0]}
    text = " ".join(transfer_host.said([1 << 10, 1 << 12, 1 << 14], seconds))
    assert all(part in text for part in expected), text
    assert ("From" in text) == ("From 16 KiB on" in expected)
