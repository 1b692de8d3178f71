"""The drawn timeline: what went in comes out of both formats, whatever the words in it."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.maps.streamed.resume import find_unfinished
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.report.bottleneck import measure
from meshrun.runner.report.spans import STAGES, Span, Stage
from meshrun.runner.report.timeline import Lane, check_timeline, page, rows, trace, write_timeline
from meshrun.runner.storage.journal import Journal

NS = 1_000_000_000
HOSTILE = "</script><script>alert(1)</script><!-- & \"'\u2028{{data}}"


def lane(rank: int, *spans: Span, host: str = "host-a", offset: float = 0.0) -> Lane:
    return Lane(rank, host, f"GPU {rank}", offset, list(spans))


TWO = [
    lane(
        1,
        Span("write", 0, 111.0, 112.5, 3 * NS),
        Span("read", 0, 110.5, 111.0, 2 * NS),
        host="host-b",
        offset=-100.0,
    ),
    lane(0, Span("read", 3, 10.0, 12.0, 4 * NS), Span("read", 4, 11.0, 13.0, 4 * NS), offset=0.0),
]


class Page(HTMLParser):
    """A page's elements that must be balanced, its addresses, its text and its scripts."""

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.elements: list[str] = []
        self.scripts: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif "style" not in self.open:
            self.words += data


def written(path: Path, lanes: Sequence[Lane], about: dict[str, Any]) -> str:
    write_timeline(path, lanes, about)
    return path.read_text(encoding="utf-8")


def parsed(text: str) -> dict[str, Any]:
    found = Page(text)
    assert found.open == []
    data: dict[str, Any] = json.loads(found.scripts[0])
    return data


def drawn(data: dict[str, Any]) -> list[tuple[str, str, int, int, int, int]]:
    """Every bar of a page's data: lane, stage, chunk, begin, end, bytes."""
    return [
        (one["name"], data["stages"][row["stage"]], chunk, begin, begin + length, moved)
        for one in data["lanes"]
        for row in one["rows"]
        for chunk, begin, length, moved in zip(
            row["chunk"], accumulate(row["begin"]), row["length"], row["bytes"], strict=True
        )
    ]


def test_the_trace_has_one_event_for_each_span(tmp_path: Path) -> None:
    found = json.loads(written(tmp_path / "a.json", TWO, {"job": "edges"}))
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert [(e["pid"], e["tid"], e["name"], e["cat"], e["ts"], e["dur"], e["args"]) for e in events] == [
        (0, 0, "read 3", "read", 0.0, 2e6, {"chunk": 3, "bytes": 4 * NS, "GB/s": 2.0}),
        (0, 1, "read 4", "read", 1e6, 2e6, {"chunk": 4, "bytes": 4 * NS, "GB/s": 2.0}),
        (1, 0, "read 0", "read", 0.5e6, 0.5e6, {"chunk": 0, "bytes": 2 * NS, "GB/s": 4.0}),
        (1, 1, "write 0", "write", 1e6, 1.5e6, {"chunk": 0, "bytes": 3 * NS, "GB/s": 2.0}),
    ]
    assert found["otherData"]["summary"].startswith("limited by: reading")


def test_the_trace_names_and_orders_processes_and_threads() -> None:
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]
        for event in json.loads(trace_of(TWO))["traceEvents"]
        if event["ph"] == "M"
    }
    assert names["process_name", 1, 0] == {"name": "rank 1 on host-b, GPU 1"}
    assert names["process_sort_index", 1, 0] == {"sort_index": 1}
    assert names["thread_name", 0, 1] == {"name": "read 2"}
    assert names["thread_name", 1, 1] == {"name": "write"}
    assert names["thread_sort_index", 1, 1] == {"sort_index": 1}


def trace_of(lanes: list[Lane]) -> str:
    return trace(lanes, {}, measure([one.spans for one in lanes], gpu=True))


some_spans = st.lists(
    st.builds(
        lambda stage, chunk, begin, length, moved: Span(stage, chunk, begin, begin + length, moved),
        st.sampled_from(STAGES),
        st.integers(0, 99),
        st.floats(0, 100),
        st.floats(0, 10),
        st.integers(0, 1 << 40),
    ),
    max_size=30,
)


@given(st.lists(some_spans, max_size=3))
def test_no_span_is_lost_and_none_overlap_in_a_row(spans: list[list[Span]]) -> None:
    """Perfetto drops an event that overlaps another of its thread without lying inside it."""
    lanes = [lane(rank, *found) for rank, found in enumerate(spans)]
    for found, lane_rows in zip(spans, rows(lanes), strict=True):
        assert sorted((row.stage, bar.chunk, bar.moved) for row in lane_rows for bar in row.bars) == sorted(
            (span.stage, span.chunk, span.moved) for span in found
        )
        for row in lane_rows:
            assert all(a.end <= b.begin for a, b in pairwise(row.bars))
        assert [(STAGES.index(row.stage), row.number) for row in lane_rows] == sorted(
            (STAGES.index(row.stage), row.number) for row in lane_rows
        )


@given(st.lists(some_spans, max_size=3))
def test_the_page_holds_the_bars_to_the_nanosecond(spans: list[list[Span]]) -> None:
    lanes = [lane(rank, *found) for rank, found in enumerate(spans)]
    expected = [
        (one.name, row.stage, *bar)
        for one, found in zip(lanes, rows(lanes), strict=True)
        for row in found
        for bar in row.bars
    ]
    assert drawn(parsed(page(lanes, {}, measure(spans, gpu=True)))) == expected


def test_the_page_puts_all_clocks_on_one(tmp_path: Path) -> None:
    found = drawn(parsed(written(tmp_path / "a.html", TWO, {"job": "edges"})))
    assert found == [
        ("rank 0 on host-a, GPU 0", "read", 3, 0, 2 * NS, 4 * NS),
        ("rank 0 on host-a, GPU 0", "read", 4, NS, 3 * NS, 4 * NS),
        ("rank 1 on host-b, GPU 1", "read", 0, NS // 2, NS, 2 * NS),
        ("rank 1 on host-b, GPU 1", "write", 0, NS, 5 * NS // 2, 3 * NS),
    ]


def test_the_page_says_what_was_run_and_what_was_the_limit(tmp_path: Path) -> None:
    text = written(tmp_path / "a.html", TWO, {"job": "edges", "input": Path("big.npy"), "depth": 3})
    words = Page(text).words
    for word in ("edges", "limited by: reading", "2 on 2 hosts", "big.npy", "depth", "58 %", "10.0 GB"):
        assert word in words
    assert not re.search(r"\{\{\w+\}\}", text)


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    text = written(tmp_path / "a.html", TWO, {"job": "edges"})
    found = Page(text)
    assert found.addresses == []
    assert not {"link", "img", "iframe", "base"} & set(found.elements)
    assert not re.search(r"//[\w.]+\.\w|url\(|@import|import\(|fetch\(|XMLHttpRequest|WebSocket", text)


def test_words_cannot_leave_their_place(tmp_path: Path) -> None:
    lanes = [lane(0, Span("read", 0, 0.0, 1.0, 1), host=HOSTILE)]
    text = written(tmp_path / "a.html", lanes, {"job": HOSTILE, HOSTILE: HOSTILE})
    found = Page(text)
    assert found.elements.count("script") == 2
    assert found.open == []
    assert parsed(text)["lanes"][0]["name"] == f"rank 0 on {HOSTILE}, GPU 0"
    assert found.words.count(HOSTILE) == 4  # title, heading, name and value
    events = json.loads(written(tmp_path / "a.json", lanes, {"job": HOSTILE}))["traceEvents"]
    assert events[0]["args"] == {"name": f"rank 0 on {HOSTILE}, GPU 0"}


def test_a_run_in_which_nothing_was_left_to_do_is_drawn_too(tmp_path: Path) -> None:
    for lanes in ([], [lane(0)]):
        data = parsed(written(tmp_path / "a.html", lanes, {}))
        assert (data["wall"], drawn(data)) == (0, [])
        events = json.loads(written(tmp_path / "a.json", lanes, {}))["traceEvents"]
        assert [event for event in events if event["ph"] == "X"] == []


def test_values_that_json_lacks_do_not_break_it(tmp_path: Path) -> None:
    about = {"job": "edges", "cval": float("nan"), "gain": float("inf")}
    assert json.loads(written(tmp_path / "a.json", TWO, about))["otherData"]["cval"] == "nan"
    assert "inf" in Page(written(tmp_path / "a.html", TWO, about)).words


def test_many_ranks_and_chunks_stay_a_page_that_opens(tmp_path: Path) -> None:
    lanes = [
        lane(
            rank,
            *(Span(stage, n, n + 0.1, n + 0.9, 1 << 28) for stage in get_args(Stage) for n in range(100)),
        )
        for rank in range(32)
    ]
    text = written(tmp_path / "a.html", lanes, {})
    assert len(drawn(parsed(text))) == 32 * 100 * 5
    assert len(text) < 1_000_000, "62 bytes a bar"


@pytest.mark.parametrize("name", ["a.svg", "a", "a.html.gz"])
def test_another_suffix_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    for refuse in (check_timeline, lambda path: write_timeline(path, TWO, {})):
        with pytest.raises(UserError, match=r"unknown timeline format.*\.html .*\.json"):
            refuse(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    def refuse(timeline: Path) -> None:
        output = tmp_path / "out.npy"
        find_unfinished(Journal(output), StreamOptions(timeline=str(timeline)), output)

    with pytest.raises(UserError, match=r"timeline's folder does not exist.*nowhere"):
        refuse(tmp_path / "nowhere" / "a.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UserError, match=r"timeline is a folder.*folder\.html"):
        refuse(tmp_path / "folder.html")


def test_a_write_that_fails_names_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    target.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # Python ignores SIGXFSZ, and the write fails
    try:
        with pytest.raises(RunError, match=rf"cannot write the timeline {target}: File too large"):
            write_timeline(target, TWO, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    assert target.read_text() == "old"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_is_valid(tmp_path: Path) -> None:
    script = tmp_path / "page.js"
    script.write_text(Page(written(tmp_path / "a.html", TWO, {})).scripts[1], encoding="utf-8")
    done = subprocess.run(["node", "--check", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
