"""The lesson `coalescing`: the arithmetic of sectors, reads, mismatches and sentences."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lesson_box import START, Kernel, LessonBox

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons import devices, pseudorandom, show
from meshrun.jobs.bench.lessons.coalescing import lesson as coalescing
from meshrun.jobs.bench.lessons.coalescing.lesson import OFFSETS, STRIDES, sentences
from meshrun.jobs.bench.lessons.coalescing.methods import (
    Access,
    ceiling,
    count_mismatches,
    moved,
    pieces,
    pieces_of_load,
    shifted,
)
from meshrun.jobs.bench.lessons.protocol import Context, Lesson
from meshrun.jobs.measure import timers
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import single_rank_world

LARGE = 1 << 18
ACCESSES = st.builds(Access, st.integers(1, 70), st.integers(0, 70), st.integers(1, 500))


@given(ACCESSES, st.sampled_from([8, 16]))
def test_grains_are_those_that_elements_lie_in(access: Access, size: int) -> None:
    places = access.first + np.arange(access.count) * access.stride
    assert pieces(access, size) == np.unique(places // size).size
    assert moved(access, size) == 4 * size * np.unique(places // size).size + 4 * access.count
    assert ceiling(access, size) == access.useful / moved(access, size)


@pytest.mark.parametrize(
    ("stride", "sectors"), [(1, 4), (2, 8), (4, 16), (8, 32), (64, 32), (3, 12), (5, 20)]
)
def test_a_warps_load_asks_for_sectors(stride: int, sectors: int) -> None:
    assert pieces_of_load(Access(stride, 0, 1000), 8) == sectors


def test_a_misaligned_load_asks_for_one_sector_more() -> None:
    assert [pieces_of_load(Access(1, offset, 1000), 8) for offset in OFFSETS] == [4, 5, 5, 5, 4, 4, 4]


@given(ACCESSES, st.integers(0, 1000))
def test_a_turned_access_stays_in_the_room(access: Access, turn: int) -> None:
    place = shifted(access, turn, 8)
    assert (place.stride, place.count) == (access.stride, access.count)
    assert access.first <= place.first < access.first + access.stride
    assert shifted(access, 0, 8) == access
    assert pieces(place, 8) <= pieces(access, 8) + 1


def test_turns_do_not_meet_the_sectors_of_the_one_before() -> None:
    access = Access(64, 0, 100)
    places = [(shifted(access, turn, 8).first + np.arange(100) * 64) // 8 for turn in range(8)]
    assert np.unique(np.concatenate(places)).size == 800


def strided(source: Any, target: Any, count: Any, stride: Any, first: Any) -> None:
    last = int(first) + (int(count) - 1) * int(stride)
    assert last < source.size
    assert count <= target.size
    target[: int(count)] = source[int(first) : last + 1 : int(stride)]


def seconds(source: Any, target: Any, count: Any, stride: Any, first: Any) -> float:
    """A GPU that is limited by sectors alone."""
    return START + moved(Access(int(stride), int(first), int(count)), 8) / 1e11


def box_of(kernel: Callable[..., None] = strided, **words: Any) -> LessonBox:
    return LessonBox({"strided<8>": Kernel(kernel, seconds)}, **words)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lesson]:
    def measure(box: LessonBox | None, maxbytes: int = LARGE, **words: Any) -> Lesson:
        if box is not None:
            monkeypatch.setattr(kernels, "load", box.load)
            monkeypatch.setattr(timers, "time", SimpleNamespace(perf_counter=box.clock))
        return coalescing.measure(
            Context(single_rank_world(CpuBackend()), box, **{"samples": 1, "maxbytes": maxbytes, **words})
        )

    return measure


def test_every_stride_and_offset_is_timed_and_right(measured: Callable[..., Lesson]) -> None:
    lesson = measured(box_of(cache=1 << 14))
    assert lesson.mismatches == ()
    assert [row[0] for row in lesson.tables[0].rows] == [*STRIDES, "copy"]
    assert [row[0] for row in lesson.tables[1].rows] == list(OFFSETS)
    assert len(lesson.facts["accesses"]) == len(STRIDES) + len(OFFSETS) - 1
    assert lesson.facts["bytes"] == LARGE
    assert json.loads(show.record(lesson, []))["grain_bytes"] == 32
    assert "less than four times" not in show.text(lesson)


def test_enough_blocks_for_every_element(measured: Callable[..., Lesson]) -> None:
    box = box_of()
    measured(box)
    most = LARGE // 4 - 64
    assert max(grid[0] * block[0] * 8 for _, grid, block in box.launched) >= most
    assert all(grid[0] * block[0] * 8 < most + 2048 for _, grid, block in box.launched)


def ignores_stride(source: Any, target: Any, count: Any, stride: Any, first: Any) -> None:
    target[: int(count)] = source[int(first) : int(first) + int(count)]


def ignores_first(source: Any, target: Any, count: Any, stride: Any, first: Any) -> None:
    strided(source, target, count, stride, 0)


def skips_the_last(source: Any, target: Any, count: Any, stride: Any, first: Any) -> None:
    strided(source, target, count - np.uint64(1), stride, first)


@pytest.mark.parametrize(
    ("kernel", "wrong", "example"),
    [
        (ignores_stride, len(STRIDES) - 1, "stride 64, offset 0: 1,022 elements are wrong"),
        (ignores_first, len(OFFSETS) - 1, "stride 1, offset 32: 65,472 elements are wrong"),
        (skips_the_last, len(STRIDES) + len(OFFSETS) - 1, "stride 1, offset 0: 1 element is wrong"),
    ],
)
def test_a_broken_kernel_is_found(
    measured: Callable[..., Lesson], kernel: Callable[..., None], wrong: int, example: str
) -> None:
    lesson = measured(box_of(kernel))
    assert len(lesson.mismatches) == wrong
    assert example in lesson.mismatches
    assert measured(box_of(kernel), check=False).mismatches == ()


def test_a_buffer_that_the_cache_holds_is_spoken_of(measured: Callable[..., Lesson]) -> None:
    assert "less than four times the L2 cache of 128 KiB" in show.text(measured(box_of(cache=1 << 17)))


def test_a_buffer_of_nothing_is_refused(measured: Callable[..., Lesson]) -> None:
    with pytest.raises(UserError, match="too small for strides"):
        measured(box_of(), maxbytes=4095)
    assert measured(box_of(), maxbytes=4096).mismatches == ()


@pytest.mark.parametrize("maxbytes", [4096, 4099, 100_000])
def test_numpy_reads_on_a_cpu(measured: Callable[..., Lesson], maxbytes: int) -> None:
    lesson = measured(None, maxbytes)
    assert lesson.mismatches == ()
    assert lesson.facts["grain_bytes"] == 64
    assert "cache lines" in show.text(lesson)
    assert [row[0] for row in lesson.tables[0].rows] == [*STRIDES, "copy"]


def test_other_work_for_a_third_of_the_time_changes_no_rate(
    measured: Callable[..., Lesson], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all samples of one access are slow, and misaligned reads may seem faster than aligned ones."""
    calls = itertools.count()
    least = 3 * (len(STRIDES) + len(OFFSETS))
    monkeypatch.setattr(
        devices, "sampled_host_seconds", lambda work: 2.0 if next(calls) < least // 3 else 1.0
    )
    lesson = measured(None, samples=3)
    assert next(calls) >= least
    assert {one["seconds"] for one in lesson.facts["accesses"]} == {1.0}
    assert lesson.facts["copy_seconds"] == 1.0


def test_wrong_reads_on_a_cpu_are_found(
    measured: Callable[..., Lesson], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = np.copyto

    def shifted(target: Any, source: Any) -> None:
        real(target, np.roll(source, 1))

    monkeypatch.setattr(np, "copyto", shifted)
    assert len(measured(None).mismatches) == len(STRIDES) + len(OFFSETS) - 1


def test_elements_tell_their_place_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = (np.empty(1000, np.uint32) for _ in range(2))
    pseudorandom.fill(np, whole)
    monkeypatch.setattr(pseudorandom, "BLOCK", 7)
    pseudorandom.fill(np, parts)
    np.testing.assert_array_equal(whole, parts)
    assert np.unique(whole).size == 1000
    access = Access(3, 2, 300)
    right = whole[2::3][:300].copy()
    assert count_mismatches(np, right, access) == 0
    right[[0, 299]] += 1
    assert count_mismatches(np, right, access) == 2


def test_sentences() -> None:
    strided = {Access(1, 0, 6400): 0.95, Access(8, 0, 800): 0.21, Access(64, 0, 100): 0.1}
    misaligned = {Access(1, 0, 100): 0.9, Access(1, 1, 100): 0.9 * 0.95, Access(1, 8, 100): 0.9}
    rates, loss = sentences(8, strided, misaligned, 1 << 30, 1 << 20)
    assert (
        "stride 1 95.0% (at most 100.0%), stride 8 21.0% (at most 22.2%), stride 64 10.0% (at most" in rates
    )
    assert loss == "Misaligned reads lose at most 5.0% (offset 1)."
    assert (
        "less than four times the L2 cache of 1 GiB"
        in sentences(8, strided, misaligned, 1 << 30, 1 << 30)[-1]
    )
