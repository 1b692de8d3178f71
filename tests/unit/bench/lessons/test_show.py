"""A lesson as text, JSON and plot; crossings of lines."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest

from meshrun.jobs.bench.lessons import show
from meshrun.jobs.bench.lessons.protocol import (
    Chart,
    ChartLine,
    Context,
    Lesson,
    LessonTable,
    Timeline,
    crossings,
    rate,
)
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.world.world import single_rank_world

TABLE = LessonTable(
    ("size", "pinned (GB/s)", "n"), (("1 KiB", 1.23456, 7), ("16 MiB", 12345.6, None)), "Rates:"
)
CHART = Chart("size", "GB/s", (ChartLine("a", ((1024, 1.0), (4096, None), (16384, 3.0))),), bytes=True)
BARS = Timeline((("stream 0", "copy", 1.0, 2.0), ("stream 1", "kernel", 1.5, 3.0)), "what ran")


def lesson(**words: object) -> Lesson:
    given = {"name": "transfer", "title": "A title", "tables": (TABLE,), "explanation": ("One.", "Two " * 60)}
    return Lesson(**{**given, **words})


def line(label: str, *heights: float | None) -> ChartLine:
    return ChartLine(label, tuple((4**at, height) for at, height in enumerate(heights)))


def test_a_table_is_aligned_under_titles_and_units() -> None:
    assert show.columns(TABLE) == [
        "size    pinned  n",
        "        (GB/s)",
        "1 KiB    1.235  7",
        "16 MiB   12346  -",
    ]
    assert show.columns(LessonTable(("a", "b"), ())) == ["a  b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (math.nan, "-"), (math.inf, "-"), (0.0, "0"), (1.23456e-7, "1.235e-07"), (99.996, "100"),
        (9999.4, "9999"), (-12345.6, "-12346"), (123456, "123456"), ("word", "word"), (True, "True"),
    ],
)  # fmt: skip
def test_cells(value: object, text: str) -> None:
    assert show.cell(value) == text


def test_text_has_tables_then_sentences_within_the_width() -> None:
    lines = show.text(lesson()).splitlines()
    assert lines[:3] == ["# A title", "", "Rates:"]
    assert lines[7:9] == ["", "One."]
    assert show.text(lesson()).endswith("Two\n")
    assert max(map(len, lines)) <= show.WIDTH


def test_the_record_holds_what_was_shown_and_all_facts() -> None:
    found = json.loads(
        show.record(lesson(mismatches=("bad",), facts={"seconds": [1.5]}), ["NCCL_DEBUG=INFO"])
    )
    assert found["lesson"] == "transfer"
    assert found["tables"][0]["titles"] == list(TABLE.titles)
    assert found["tables"][0]["rows"][1] == ["16 MiB", 12345.6, None]
    assert (found["mismatches"], found["seconds"], found["environment"]) == (
        ["bad"],
        [1.5],
        ["NCCL_DEBUG=INFO"],
    )


def test_the_record_is_json_whatever_was_measured() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    table = LessonTable(("a",), ((math.nan,), (math.inf,)))
    text = show.record(lesson(tables=(table,), facts={"x": {"y": (-math.inf, 1.0)}}), [])
    found = json.loads(text, parse_constant=refuse)
    assert found["tables"][0]["rows"] == [[None], [None]]
    assert found["x"] == {"y": [None, 1.0]}


CHARTS = {
    "lines and bars": (CHART, BARS),
    "logarithmic": (Chart("n", "s", (line("a", 1e-6, 1.0),), log_y=True),),
    "nothing measured": (Chart("size", "GB/s", (line("a", None, None),), bytes=True),),
    "no lines": (Chart("size", "GB/s", ()),),
    "no bars": (Timeline(()),),
    "no charts": (),
}


@pytest.mark.parametrize("charts", CHARTS.values(), ids=CHARTS)
@pytest.mark.parametrize("suffix", ["html", "svg", "png"])
def test_every_chart_is_drawn(tmp_path: Path, charts: tuple[Chart | Timeline, ...], suffix: str) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"lesson.{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of older versions, which call what newer ones of their own dependencies call by another name.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="matplotlib")
        show.draw(lesson(charts=charts), target)
    assert target.stat().st_size > 500


def test_a_page_has_the_labels_and_every_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "lesson.html"
    second = LessonTable(("method",), (("mapped & more",),), "Another:")
    show.draw(lesson(charts=(CHART, BARS), tables=(TABLE, second)), target)
    page = target.read_text()
    for word in ("A title", "stream 0", "stream 1", "kernel", "what ran", "16 KiB", "GB/s", "Another:"):
        assert word in page, word
    assert "<td>1.235</td>" in page
    assert "<td>mapped &amp; more</td>" in page


def test_what_is_no_number_is_a_group_of_bars_with_its_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "lesson.svg"
    lines = (ChartLine("copy", ((0, 2.0), (1, 3.0))), ChartLine("tiled", ((0, None), (1, 1.0))))
    show.draw(lesson(charts=(Chart("shape", "GB/s", lines, names=("64 x 64", "8 x 512")),)), target)
    page = target.read_text()
    for word in ("64 x 64", "8 x 512", "shape", "GB/s", "copy", "tiled"):
        assert f">{word}<" in page, word


def test_lanes_are_drawn_from_a_common_zero() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    show._timeline(axes, BARS)
    spans = [(patch.get_x(), patch.get_width()) for patch in axes.patches if patch.get_width()]
    assert spans == [(0.0, 1000.0), (500.0, 1500.0)]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["stream 0", "stream 1"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        ([line("a", 1.0, 2.0)], [(1, "a")]),
        ([line("a", 2.0, 3.0, 4.0), line("b", 1.0, 5.0, 6.0)], [(1, "a"), (4, "b")]),
        ([line("a", 2.0, 3.0, 9.0), line("b", 1.0, 5.0, 6.0)], [(1, "a"), (4, "b"), (16, "a")]),
        ([line("a", 2.0, 1.0), line("b", 1.0, 1.019)], [(1, "a")]),  # a lead of less than 2 %
        ([line("a", 2.0, 1.0), line("b", 1.0, 1.021)], [(1, "a"), (4, "b")]),
        ([line("a", None, 1.0, 2.0), line("b", 9.0, 2.0, 1.0)], [(4, "b"), (16, "a")]),
        ([line("a", 1.0, None), line("b", None, 1.0)], []),
    ],
)
def test_crossings(lines: list[ChartLine], expected: list[tuple[float, str]]) -> None:
    assert crossings(lines) == expected


def test_a_rate_of_no_time_is_not_known() -> None:
    assert rate(10**9, 0.5) == 2.0
    assert rate(10**9, 0.0) is None


def test_sizes_grow_by_a_factor_up_to_the_last() -> None:
    context = Context(single_rank_world(CpuBackend()), None, minbytes=3, maxbytes=48)
    assert context.sizes() == [3, 12, 48]
    assert context.sizes(10) == [3, 30]


def test_a_median_leaves_out_the_first() -> None:
    times = iter([100.0, 1.0, 3.0, 2.0])
    assert Context(single_rank_world(CpuBackend()), None, samples=3).median(lambda: next(times)) == 2.0
