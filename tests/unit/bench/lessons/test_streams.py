"""The lesson `streams`: its schedule, overlap, mismatches and sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lesson_box import START, Kernel, LessonBox

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons import show
from meshrun.jobs.bench.lessons.protocol import Context, Lesson, Timeline
from meshrun.jobs.bench.lessons.streams import lesson as streams
from meshrun.jobs.bench.lessons.streams.lesson import sentences
from meshrun.jobs.bench.lessons.streams.pipeline import ChunkedMap
from meshrun.jobs.bench.lessons.streams.schedule import (
    StageSpan,
    StreamVariant,
    composed,
    cut,
    lower_bound,
    rounds_for,
    stream_lines,
    without_waiting,
)
from meshrun.jobs.measure.exit_codes import NeedsGpu
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import single_rank_world

LARGE = 1 << 16


@given(st.integers(1, 5000), st.integers(1, 40))
def test_chunks_are_all_of_it_and_alike_but_for_the_last(elements: int, wanted: int) -> None:
    chunks = cut(elements, wanted)
    assert 1 <= len(chunks) <= wanted
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.begin for chunk in chunks] == [number * chunks[0].count for number in range(len(chunks))]
    assert sum(chunk.count for chunk in chunks) == elements
    assert 0 < chunks[-1].count <= chunks[0].count


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 70))
def test_rounds_compose(multiplier: int, increment: int, x: int, rounds: int) -> None:
    expected = x
    for _ in range(rounds):
        expected = (multiplier * expected + increment) % 2**32
    total, added = composed(multiplier, increment, rounds)
    assert (total * x + added) % 2**32 == expected


@given(st.integers(1, 10**5), st.floats(1e-9, 1e-5), st.floats(0, 1e-3))
def test_rounds_that_take_a_time(rounds: int, each: float, start: float) -> None:
    def takes(number: int) -> float:
        return start + number * each

    assert rounds_for(takes(rounds), (64, takes(64)), (1024, takes(1024))) == pytest.approx(rounds, abs=1)


def test_arithmetic_that_costs_nothing_is_done_once() -> None:
    assert rounds_for(1.0, (64, 1e-3), (1024, 1e-3)) == 1
    assert rounds_for(1e-9, (64, 1e-3), (1024, 2e-3)) == 1


def test_the_least_time() -> None:
    assert lower_bound((1, 1, 1), 16, 1) == 48
    assert lower_bound((1, 1, 1), 16, 2) == 24
    assert lower_bound((1, 1, 1), 16, 3) == lower_bound((1, 1, 1), 16, 4) == 18
    assert lower_bound((1, 5, 1), 4, 4) == 22
    assert lower_bound((2, 1, 1), 1, 3) == 4


def test_waiting_for_an_engine_is_not_without_waiting() -> None:
    spans = [
        StageSpan(0, 0, 0, 0.0, 1.0),
        StageSpan(1, 1, 0, 0.1, 2.0),
        StageSpan(0, 0, 1, 1.0, 1.5),
        StageSpan(1, 1, 1, 2.0, 3.0),
    ]
    assert [(one.chunk, one.stage, one.begin, one.end) for one in without_waiting(spans)] == [
        (0, 0, 0.0, 1.0),
        (1, 0, 1.0, 2.0),
        (0, 1, 1.0, 1.5),
        (1, 1, 2.0, 3.0),
    ]


def test_a_timeline_in_letters() -> None:
    spans = [
        StageSpan(0, 0, 0, 0, 2),
        StageSpan(0, 0, 1, 2, 4),
        StageSpan(0, 0, 2, 4, 6),
        StageSpan(1, 1, 0, 2, 4.2),
        StageSpan(1, 1, 1, 7, 8),
    ]
    assert stream_lines(spans, 8) == ["HHKKDD..", "..HH...K"]


def affine(words: Any, count: Any, multiplier: Any, increment: Any, rounds: Any) -> None:
    for _ in range(int(rounds)):
        words[: int(count)] = words[: int(count)] * multiplier + increment


def affine_seconds(words: Any, count: Any, multiplier: Any, increment: Any, rounds: Any) -> float:
    return START + int(count) * int(rounds) * 2e-9


def box_of(kernel: Callable[..., None] = affine, box: type[LessonBox] = LessonBox) -> LessonBox:
    return box({"affine": Kernel(kernel, affine_seconds)}, rates={"pageable": 1e7, "pinned": 4e7})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lesson]:
    # Fewer than a GPU does in the time of a copy: NumPy counts them one by one.
    monkeypatch.setattr(streams, "FEW", 2)
    monkeypatch.setattr(streams, "MANY", 8)

    def measure(box: LessonBox | None, chunks: int = 16, **words: Any) -> Lesson:
        if box is not None:
            monkeypatch.setattr(kernels, "load", box.load)
        stage = {"samples": 1, "maxbytes": LARGE, "options": {"chunks": chunks}} | words
        return streams.measure(Context(single_rank_world(CpuBackend()), box, **stage))

    return measure


def test_streams_overlap_what_one_step_after_another_does_not(measured: Callable[..., Lesson]) -> None:
    box = box_of()
    lesson = measured(box)
    assert lesson.mismatches == ()
    alone = list(lesson.facts["stage_seconds"].values())
    assert max(alone) < 1.1 * min(alone)  # the kernel was made to take as long as the copies
    found = {one["label"]: one for one in lesson.facts["variants"]}
    assert list(found) == ["one step after another", "1 stream", "2 streams", "3 streams", "4 streams",
                           "3 streams, pageable"]  # fmt: skip
    speed = {
        label: found["one step after another"]["seconds"] / one["seconds"] for label, one in found.items()
    }
    assert 1 <= speed["1 stream"] < 1.3 < speed["2 streams"] < 2.2 < speed["3 streams"] < 3
    assert speed["3 streams, pageable"] < 1
    for one in found.values():
        assert (one["bound"] is None) == ("pageable" in one["label"])
        assert one["seconds"] >= 0.99 * (one["bound"] or 0)
    assert not box.kept


def test_the_last_chunk_is_odd_and_every_span_is_drawn(measured: Callable[..., Lesson]) -> None:
    lesson = measured(box_of())
    sizes = lesson.facts["chunk_bytes"]
    assert (len(sizes), sum(sizes)) == (16, LARGE - 20)
    assert sizes[-1] == sizes[0] - 20
    assert len(lesson.charts) == 3
    for chart in lesson.charts:
        assert isinstance(chart, Timeline)
        assert len(chart.spans) == 3 * 16
        assert all(0 <= begin <= end for _, _, begin, end in chart.spans)
    assert {lane for lane, *_ in lesson.charts[0].spans} == {"stream 0"}
    assert {lane for lane, *_ in lesson.charts[1].spans} == {"stream 0", "stream 1", "stream 2"}
    text = show.text(lesson)
    assert "H host to GPU, K kernel, D GPU to host, . idle" in text
    assert json.loads(show.record(lesson, []))["rounds"] > 1
    [timeline] = [table for table in lesson.tables if table.title == "3 streams:"]
    assert [row[0] for row in timeline.rows] == [0, 1, 2]
    assert all({"H", "K", "D"} <= set(str(row[1])) for row in timeline.rows)


@pytest.mark.parametrize("chunks", [1, 2, 3, 5, 7])
def test_chunks_more_and_fewer_than_streams(measured: Callable[..., Lesson], chunks: int) -> None:
    lesson = measured(box_of(), chunks, maxbytes=4 * 1001)
    assert lesson.mismatches == ()
    assert len(lesson.facts["chunk_bytes"]) == chunks


def test_a_kernel_that_skips_the_last_element_is_found(measured: Callable[..., Lesson]) -> None:
    def short(words: Any, count: Any, *numbers: Any) -> None:
        affine(words, count - np.uint64(1), *numbers)

    lesson = measured(box_of(short))
    assert len(lesson.mismatches) == 6 * 16
    assert lesson.mismatches[0] == (
        "one step after another: chunk 0: 1 of 1,024 elements are wrong, the first at 1,023"
    )
    assert measured(box_of(short), check=False).mismatches == ()


def test_a_slot_that_is_used_again_too_early_is_found(
    measured: Callable[..., Lesson], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = ChunkedMap.stages

    def shared(self: Any, chunk: Any, stream: int, rounds: int) -> Any:
        self.slots, self.words = [self.slots[0]] * 4, [self.words[0]] * 4
        return stages(self, chunk, stream, rounds)

    monkeypatch.setattr(ChunkedMap, "stages", shared)
    monkeypatch.setattr(ChunkedMap, "release", lambda self: None)
    wrong = measured(box_of()).mismatches
    assert {sentence.partition(":")[0] for sentence in wrong} >= {"2 streams", "3 streams", "4 streams"}
    assert not any(sentence.startswith(("one step", "1 stream")) for sentence in wrong)


class Forgetful(LessonBox):
    """Results of the fourth chunk are not copied."""

    def copy(self, target: Any, source: Any, nbytes: int, stream: Any) -> None:
        last = source.kind == "device" and any(
            target.address - address == 3 * nbytes for address in self.kept
        )
        super().copy(replace(target, address=source.address) if last else target, source, nbytes, stream)


def test_results_that_were_not_brought_back_are_found(measured: Callable[..., Lesson]) -> None:
    wrong = measured(box_of(box=Forgetful), maxbytes=LARGE + 20).mismatches
    assert len(wrong) == 6
    assert all("chunk 3: 1,024 of 1,024 elements" in sentence for sentence in wrong)


def test_less_than_an_element_for_each_chunk_is_refused(measured: Callable[..., Lesson]) -> None:
    with pytest.raises(UserError, match="less than one element"):
        measured(box_of(), 16, maxbytes=4 * 20)
    assert measured(box_of(), 16, maxbytes=4 * 21).mismatches == ()


def test_without_a_gpu(measured: Callable[..., Lesson]) -> None:
    with pytest.raises(NeedsGpu):
        measured(None)


def variant(label: str, streams: int, seconds: float, bound: float | None) -> StreamVariant:
    return StreamVariant(label, streams, seconds, bound, ())


@pytest.mark.parametrize(
    ("pageable", "expected"), [(60.0, "takes 3 times as long as"), (20.0, "takes no longer than")]
)
def test_sentences(pageable: float, expected: str) -> None:
    variants = [
        variant("one step after another", 1, 48.0, 48.0),
        variant("1 stream", 1, 48.0, 48.0),
        variant("3 streams", 3, 20.0, 18.0),
        variant("3 streams, pageable", 3, pageable, None),
    ]
    best, limit, memory = sentences((1.0, 1.0, 2.0), variants)
    assert (
        best
        == "Best: 3 streams, 2.4 times as fast as one step after another, 90.0% of what its stages allow."
    )
    assert limit == "Limited by: GPU to host, the longest stage."
    assert memory == f"From pageable memory, 3 streams {expected} from pinned memory."
    assert len(sentences((1.0, 1.1, 1.0), variants)) == 2
