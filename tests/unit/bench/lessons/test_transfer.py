"""The lesson `transfer`: what is moved and timed, mismatches, and sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lesson_box import RATES, START, TICK, Kernel, LessonBox

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons import show
from meshrun.jobs.bench.lessons.protocol import Context, Lesson
from meshrun.jobs.bench.lessons.transfer import cpu
from meshrun.jobs.bench.lessons.transfer import lesson as transfer
from meshrun.jobs.bench.lessons.transfer.lesson import break_even, slower
from meshrun.jobs.bench.lessons.transfer.methods import DIRECTIONS, METHODS
from meshrun.jobs.measure import timers
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.world.world import single_rank_world

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
        monkeypatch.setattr(timers, "time", SimpleNamespace(perf_counter=box.clock))
        monkeypatch.setattr(transfer, "perf_counter", box.clock)
        given = {"samples": 2, "minbytes": SIZES[0], "maxbytes": LARGEST} | words
        return transfer.measure(Context(single_rank_world(CpuBackend()), box, **given))

    return measure


def test_every_method_and_direction_is_timed_and_right(measured: Callable[..., Lesson]) -> None:
    lesson = measured(box_of())
    assert lesson.mismatches == ()
    assert lesson.facts["bytes"] == SIZES
    for direction in DIRECTIONS:
        for method, kind in METHODS.items():
            seconds = lesson.facts["seconds"][direction][method][-1]
            if (method, direction) == ("managed", "to host"):
                continue  # only the host touches it
            rate = RATES["mapped" if method == "managed" else kind]
            assert seconds == pytest.approx(START + LARGEST / rate, abs=10 * TICK), (direction, method)
    text = show.text(lesson)
    fastest = [(direction, method) for direction, _, method, _ in lesson.tables[2].rows]
    assert fastest[:2] == [("to GPU", "mapped"), ("to GPU", "write-combined")]
    assert "Fastest method, by size:" in text
    assert json.loads(show.record(lesson, []))["device"]["name"] == "made up"


@pytest.mark.parametrize("size", [1, 3, 4097])
def test_odd_sizes(measured: Callable[..., Lesson], size: int) -> None:
    lesson = measured(box_of(), minbytes=size, maxbytes=size)
    assert (lesson.mismatches, lesson.facts["bytes"]) == ((), [size])


def faults(lesson: Lesson) -> set[str]:
    return {sentence.partition(":")[0] for sentence in lesson.mismatches}


def test_a_kernel_that_skips_the_last_byte_is_found(measured: Callable[..., Lesson]) -> None:
    def short(source: Any, target: Any, nbytes: Any) -> None:
        target[: nbytes - np.uint64(1)] = source[: nbytes - np.uint64(1)]

    lesson = measured(box_of(short))
    assert faults(lesson) == {"mapped, to GPU", "managed, to GPU", "mapped, to host"}
    assert len(lesson.mismatches) == 3 * len(SIZES)
    assert lesson.mismatches[0] == "mapped, to GPU: 1 of 1,024 bytes are wrong, the first at 1,023"
    assert measured(box_of(short), check=False).mismatches == ()


class Lazy(LessonBox):
    """Copies of one kind of host memory do nothing, in one direction."""

    lost = ("pinned", "device")

    def copy(self, target: Any, source: Any, nbytes: int, stream: Any) -> None:
        if (source.kind, target.kind) != self.lost:
            super().copy(target, source, nbytes, stream)


@pytest.mark.parametrize(
    ("kind", "method"), [("pageable",) * 2, ("pinned",) * 2, ("combined", "write-combined")]
)
def test_a_copy_that_was_not_made_is_found(measured: Callable[..., Lesson], kind: str, method: str) -> None:
    for lost, direction in (((kind, "device"), "to GPU"), (("device", kind), "to host")):
        box = Lazy({"touch": Kernel(touch)})
        box.lost = lost
        assert faults(measured(box)) == {f"{method}, {direction}"}


class Forgetful(LessonBox):
    """Prefetches in one direction are not made, or fail, from a number of bytes on."""

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
    assert lesson.mismatches == tuple(
        f"prefetched, {direction}: {size} did not move, according to the driver"
        for size in ("64 KiB", "256 KiB")
    )
    table = lesson.tables[DIRECTIONS.index(direction)]
    column = table.titles.index("prefetched (GB/s)")
    assert [row[column] == "not moved" for row in table.rows] == [False] * 3 + [True] * 2
    assert lesson.facts["seconds"][direction]["prefetched"][3:] == [None, None]
    assert "not moved" in show.text(lesson)


def test_failures_are_reported_and_the_rest_is_measured(measured: Callable[..., Lesson]) -> None:
    box = Forgetful({"touch": Kernel(touch, touch_seconds)})
    box.lost, box.fails = "host", True
    lesson = measured(box)
    assert lesson.mismatches == ()
    assert lesson.facts["not_measured"] == [
        "Not measured, managed, to GPU: managed memory cannot be moved.",
        "Not measured, prefetched, to GPU: managed memory cannot be moved.",
        "Not measured, prefetched, to host: managed memory cannot be moved.",
    ]
    assert set(lesson.facts["not_measured"]) <= set(lesson.explanation)
    for direction in DIRECTIONS:
        for method in ("pageable", "pinned", "write-combined", "mapped"):
            assert None not in lesson.facts["seconds"][direction][method]
    assert lesson.facts["seconds"]["to GPU"]["managed"] == [None] * len(SIZES)
    assert None not in lesson.facts["seconds"]["to host"]["managed"]
    assert box.used == LARGEST, "more than the lesson's device memory is kept"


@pytest.mark.parametrize("kind", ["pinned", "combined", "mapped", "managed"])
def test_a_failed_allocation_is_reported(measured: Callable[..., Lesson], kind: str) -> None:
    class Without(LessonBox):
        def allocate(self, options: Any, nbytes: int, gpu: int) -> Any:
            if options == kind:
                raise UserError(f"there is not enough {kind} memory for GPU 0", got="262,144 bytes")
            return super().allocate(options, nbytes, gpu)

    lesson = measured(Without({"touch": Kernel(touch, touch_seconds)}))
    lost = [method for method in METHODS if METHODS[method] == kind]
    assert lesson.explanation[-len(lost) :] == tuple(
        f"Not measured, {method}: there is not enough {kind} memory for GPU 0: got 262,144 bytes."
        for method in lost
    )
    for method, times in lesson.facts["seconds"]["to host"].items():
        assert (None in times) == (method in lost)
    assert show.text(lesson)


def test_other_errors_are_not_hidden(measured: Callable[..., Lesson]) -> None:
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
    assert lesson.mismatches == ()
    assert "prefetched" not in " ".join(lesson.explanation)
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

    monkeypatch.setattr(timers, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert timers.sampled_host_seconds(passes(3e-5), passes(7.0)) == pytest.approx(3e-5)
    assert moves[0] == 7  # the first number of them that takes 200 us


def test_pageable_memory_is_called_slower_only_where_it_was() -> None:
    def output(pageable: float) -> list[str]:
        return slower("to GPU", [1 << 30], "pinned", [0.02], "pageable", [pageable])

    assert output(0.08) == ["1 GiB to GPU: pageable takes 4 times as long as pinned."]
    assert "no longer than" in output(0.0205)[0]
    assert "no longer than" in output(0.01)[0]


def test_methods_are_compared_at_the_largest_size_that_both_have() -> None:
    sizes, managed, prefetched = [1 << 20, 1 << 29, 1 << 40], [0.001, 0.5, None], [0.001, 0.1, None]
    assert slower("to GPU", sizes, "prefetched", prefetched, "managed", managed) == [
        "512 MiB to GPU: managed takes 5 times as long as prefetched."
    ]
    assert slower("to GPU", [1], "prefetched", [None], "managed", [0.5]) == []


@pytest.mark.parametrize(
    ("pinned", "slow", "expected"),
    [
        (0.3, 0.1, "pays off after 2.5 copies of 1 GiB"),
        (0.3, 0.02, "do not pay that back"),
        (0.05, 0.1, ""),
    ],
)
def test_what_pinned_memory_costs(pinned: float, slow: float, expected: str) -> None:
    seconds = {"to GPU": {"pageable": [slow], "pinned": [0.02]}}
    allocated = {"pinned": (1 << 30, pinned), "pageable": (1 << 30, 0.1)}
    output = " ".join(break_even([1 << 30], seconds, allocated))
    assert expected in output
    assert bool(output) == bool(expected)


def on_cpu(**words: Any) -> Lesson:
    return transfer.measure(Context(single_rank_world(CpuBackend()), None, samples=1, **words))


def test_host_copies_on_a_cpu() -> None:
    lesson = on_cpu(minbytes=1, maxbytes=1 << 16)
    assert lesson.mismatches == ()
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
    assert lesson.mismatches == (
        "1 of 100 copied bytes are wrong, the first at 99",
        "1 of 400 copied bytes are wrong, the first at 399",
    )


def test_pages_are_fresh_each_time() -> None:
    pages = cpu.Pages(5000)
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
            ["at most 4.1e-06 GB/s (4 KiB), 2.05e-06 GB/s at 16 KiB", "takes 2 times as long"],
        ),
        ([1.0, 4.0, 16.0], 4.0, ["Fresh pages cost nothing"]),
    ],
)
def test_sentences_about_host_copies(copy: list[float], first: float, expected: list[str]) -> None:
    seconds = {"copy": copy, "first touch": [1, 1, first], "second touch": [1, 1, 4.0]}
    text = " ".join(cpu.explanation([1 << 10, 1 << 12, 1 << 14], seconds))
    assert all(part in text for part in expected), text
