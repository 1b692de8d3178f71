"""The lesson `coalescing`: the arithmetic of sectors, what is read, what is found wrong, and what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lesson_box import START, Kernel, LessonBox

from jobs import kernels
from jobs.bench.lessons import show
from jobs.bench.lessons import timers as timed
from jobs.bench.lessons.coalescing import explain as coalescing_said
from jobs.bench.lessons.coalescing import lesson as coalescing
from jobs.bench.lessons.coalescing import methods as coalescing_reads
from jobs.bench.lessons.coalescing.access import Access, asked, ceiling, grains, moved, turned
from jobs.bench.lessons.coalescing.lesson import OFFSETS, STRIDES
from jobs.bench.lessons.protocol import Lesson, Stage
from runner import UserError
from runner.backend.cpu import CpuBackend
from runner.world import lone_world

LARGE = 1 << 18
ACCESSES = st.builds(Access, st.integers(1, 70), st.integers(0, 70), st.integers(1, 500))


@given(ACCESSES, st.sampled_from([8, 16]))
def test_grains_are_those_that_elements_lie_in(access: Access, size: int) -> None:
    places = access.first + np.arange(access.count) * access.stride
    assert grains(access, size) == np.unique(places // size).size
    assert moved(access, size) == 4 * size * np.unique(places // size).size + 4 * access.count
    assert ceiling(access, size) == access.useful / moved(access, size)


@pytest.mark.parametrize(
    ("stride", "sectors"), [(1, 4), (2, 8), (4, 16), (8, 32), (64, 32), (3, 12), (5, 20)]
)
def test_a_warps_load_asks_for_sectors(stride: int, sectors: int) -> None:
    assert asked(Access(stride, 0, 1000), 8) == sectors


def test_a_misaligned_load_asks_for_one_sector_more() -> None:
    assert [asked(Access(1, offset, 1000), 8) for offset in OFFSETS] == [4, 5, 5, 5, 4, 4, 4]


@given(ACCESSES, st.integers(0, 1000))
def test_a_turned_access_stays_in_the_room(access: Access, turn: int) -> None:
    place = turned(access, turn, 8)
    assert (place.stride, place.count) == (access.stride, access.count)
    assert access.first <= place.first < access.first + access.stride
    assert turned(access, 0, 8) == access
    assert grains(place, 8) <= grains(access, 8) + 1


def test_turns_do_not_meet_the_sectors_of_the_one_before() -> None:
    access = Access(64, 0, 100)
    places = [(turned(access, turn, 8).first + np.arange(100) * 64) // 8 for turn in range(8)]
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
            monkeypatch.setattr(timed, "perf_counter", box.clock)
        return coalescing.measure(Stage(lone_world(CpuBackend()), box, samples=1, maxbytes=maxbytes, **words))

    return measure


def test_every_stride_and_offset_is_timed_and_right(measured: Callable[..., Lesson]) -> None:
    lesson = measured(box_of(cache=1 << 14))
    assert lesson.wrong == ()
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
        (skips_the_last, len(STRIDES) + len(OFFSETS) - 1, "stride 1, offset 0: 1 elements are wrong"),
    ],
)
def test_a_broken_kernel_is_found(
    measured: Callable[..., Lesson], kernel: Callable[..., None], wrong: int, example: str
) -> None:
    lesson = measured(box_of(kernel))
    assert len(lesson.wrong) == wrong
    assert example in lesson.wrong
    assert measured(box_of(kernel), check=False).wrong == ()


def test_a_buffer_that_the_cache_holds_is_spoken_of(measured: Callable[..., Lesson]) -> None:
    assert "less than four times the L2 cache of 128 KiB" in show.text(measured(box_of(cache=1 << 17)))


def test_a_buffer_of_nothing_is_refused(measured: Callable[..., Lesson]) -> None:
    with pytest.raises(UserError, match="too small for strides"):
        measured(box_of(), maxbytes=4095)
    assert measured(box_of(), maxbytes=4096).wrong == ()


@pytest.mark.parametrize("maxbytes", [4096, 4099, 100_000])
def test_numpy_reads_on_a_cpu(measured: Callable[..., Lesson], maxbytes: int) -> None:
    lesson = measured(None, maxbytes)
    assert lesson.wrong == ()
    assert lesson.facts["grain_bytes"] == 64
    assert "cache lines" in show.text(lesson)
    assert [row[0] for row in lesson.tables[0].rows] == [*STRIDES, "copy"]


def test_wrong_reads_on_a_cpu_are_found(
    measured: Callable[..., Lesson], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = np.copyto

    def shifted(target: Any, source: Any) -> None:
        real(target, np.roll(source, 1))

    monkeypatch.setattr(np, "copyto", shifted)
    assert len(measured(None).wrong) == len(STRIDES) + len(OFFSETS) - 1


def test_elements_are_made_of_their_index_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = (np.empty(1000, np.uint32) for _ in range(2))
    coalescing_reads.fill(np, whole)
    monkeypatch.setattr(coalescing_reads, "BLOCK", 7)
    coalescing_reads.fill(np, parts)
    np.testing.assert_array_equal(whole, parts)
    assert np.unique(whole).size == 1000
    access = Access(3, 2, 300)
    right = whole[2::3][:300].copy()
    assert coalescing_reads.differing(np, right, access) == 0
    right[[0, 299]] += 1
    assert coalescing_reads.differing(np, right, access) == 2


def strides_with(far: float) -> dict[Access, float]:
    return {Access(1, 0, 6400): 0.95, Access(8, 0, 800): 0.21, Access(64, 0, 100): far}


@pytest.mark.parametrize(
    ("far", "expected"), [(0.1, "not all of it"), (0.2, "translate"), (0.21, ""), (0.4, "out of a cache")]
)
def test_what_is_said_past_a_sector(far: float, expected: str) -> None:
    said = coalescing_said.beyond("sectors", 8, strides_with(far))
    assert f"from 21.0% to {far:.1%} of a copy" in said
    sentences = {"not all of it", "out of a cache"}
    assert {one for one in sentences if one in said} == ({expected} & sentences)


@pytest.mark.parametrize(("loss", "cached"), [(0.05, True), (0.3, False)])
def test_what_is_said_of_misalignment(loss: float, cached: bool) -> None:
    shifted = {Access(1, 0, 100): 0.9, Access(1, 1, 100): 0.9 * (1 - loss), Access(1, 8, 100): 0.9}
    said = coalescing_said.misaligned("sectors", 8, shifted)
    assert f"lose at most {loss:.1%} (offset 1)" in said
    assert ("in a cache" in said) == cached
