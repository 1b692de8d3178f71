"""The progress of a streamed run: what it says, how often, and that its time left is right."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from meshrun.runner.report import stream_progress
from meshrun.runner.report.progress import QUIET
from meshrun.runner.report.spans import NEWEST, STAGES, Span
from meshrun.runner.report.stream_progress import BETWEEN, RECENT, StreamProgress, recent_rates

GB = 1_000_000_000
RATES = {"read": 3.1e9, "moved": 6.2e9, "computed": 6.2e9, "written": 3.1e9}


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def shown(text: str) -> list[str]:
    """The share of each drawing."""
    return re.findall(r"(\d+ %)", text)


def test_time_left_counts_from_the_end_of_the_first_chunk_and_leaves_out_resumed_ones(clock: Clock) -> None:
    progress = StreamProgress("edges", 0, clock=clock)
    progress.update(50 * GB, 100 * GB, dict)  # what an earlier run had done
    clock.now += 7  # the pipeline fills
    progress.update(50 * GB, 100 * GB, dict)
    clock.now += 7
    progress.update(60 * GB, 100 * GB, dict)
    assert progress.left(60 * GB, 100 * GB, clock.now) is None  # one chunk says nothing of the pace
    clock.now += 2
    progress.update(70 * GB, 100 * GB, dict)
    assert progress.left(70 * GB, 100 * GB, clock.now) == 6.0  # 30 GB at 5 GB/s
    assert progress.left(100 * GB, 100 * GB, clock.now) == 0.0


def test_time_left_is_right_when_drawings_are_skipped(clock: Clock) -> None:
    """What is noted does not depend on what is shown."""
    progress = StreamProgress("edges", None, clock=clock)
    for done in range(5):
        progress.update(done * GB, 100 * GB, dict)
        clock.now += 0.01
    assert progress.left(4 * GB, 100 * GB, clock.now - 0.01) == pytest.approx(0.96)


def test_a_terminal_is_redrawn_a_few_times_a_second_and_at_the_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with StreamProgress("edges", 100, clock=clock) as progress:
        for done in range(101):
            progress.update(done * GB, 100 * GB, lambda: RATES)
            clock.now += BETWEEN / 10
    found = shown(capsys.readouterr().err)
    assert len(set(found)) == 11  # every tenth; floating point may move one by one place
    assert found[-1] == "100 %"


def test_the_line_of_a_terminal(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with StreamProgress("edges", 140, ranks=4, clock=clock) as progress:
        for done in (0, 10, 20):
            progress.update(done * GB, 100 * GB, lambda: RATES)
            clock.now += 30
    text = capsys.readouterr().err
    assert "20 %  4:00 left  read ~12, moved ~25, computed ~25, written ~12 GB/s  20.0 GB of 100.0 GB" in text
    assert "━" in text


@pytest.mark.parametrize(("columns", "asked"), [(0, 0), (None, 2), (100, 12)])
def test_rates_are_asked_for_only_when_they_are_shown(clock: Clock, columns: int | None, asked: int) -> None:
    calls = 0

    def rates() -> dict[str, float]:
        nonlocal calls
        calls += 1
        return RATES

    with StreamProgress("edges", columns, clock=clock) as progress:
        for done in range(12):
            progress.update(done * GB, 20 * GB, rates)
            clock.now += QUIET / 4
    assert calls == asked


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 140, 300])
def test_the_line_fits_any_terminal(clock: Clock, columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    with StreamProgress("edges", columns, ranks=4, clock=clock) as progress:
        for done in (0, 10, 20):
            progress.update(done * GB, 100 * GB, lambda: RATES)
            clock.now += 30
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]
    assert len(lines) >= 3
    assert max(map(len, lines)) <= columns
    assert all(line.startswith("edges") for line in lines)
    assert "20 %" in lines[-1]
    assert ("written ~12 GB/s" in lines[-1]) == (columns >= 80)


def test_without_a_terminal_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = StreamProgress("edges", None, clock=clock)
    for done in range(0, 12):
        progress.update(done * GB, 20 * GB, lambda: {"read": 500e6})
        clock.now += QUIET / 4
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0] == "meshrun: edges: 20 %; 0:20 left; read 500 MB/s; 4.0 GB of 20.0 GB"


def test_other_ranks_say_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with StreamProgress("edges", 0, clock=clock) as progress:
        progress.update(0, 10, lambda: RATES)
        clock.now += 100
        progress.update(10, 10, lambda: RATES)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_the_rates_of_one_rank_are_no_guess(clock: Clock) -> None:
    assert "~" not in "".join(StreamProgress("edges", 0, clock=clock).texts(1, 2, RATES, None))


def test_a_title_is_shown_as_it_is(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets mean colours to rich."""
    with StreamProgress("[red]edges[/]", 80, clock=clock) as progress:
        progress.update(1, 2, dict)
    assert "[red]edges[/]" in capsys.readouterr().err


def test_an_empty_input_is_done() -> None:
    assert StreamProgress("edges", 0).texts(0, 0, {}, None) == ["100 %", "0 B of 0 B"]


@pytest.fixture
def spans() -> list[Span]:
    return [
        Span("read", 0, 0.0, 2.0, 2 * GB),
        Span("to device", 0, 2.0, 3.0, 4 * GB),
        Span("from device", 0, 3.0, 4.0, 4 * GB),
        Span("read", 1, 2.0, 4.0, 2 * GB),
    ]


def test_rates_at_the_start_are_over_the_time_that_there_was(spans: list[Span]) -> None:
    assert recent_rates(reversed(spans), 4.0) == {"read": 1e9, "moved": 2e9}


def test_rates_are_those_of_the_last_seconds(spans: list[Span]) -> None:
    """One second of the second read, and the copy back, lie within them."""
    assert recent_rates(reversed(spans), 3.0 + RECENT) == {"read": GB / RECENT, "moved": 4 * GB / RECENT}
    assert recent_rates(reversed(spans), 4.5 + RECENT) == {}


def test_rates_do_not_look_at_spans_long_gone() -> None:
    """A long run has many: the cost of a rate must not grow with them."""

    def found() -> Iterator[Span]:
        yield Span("read", 2, 99.0, 100.0, GB)
        yield Span("read", 1, 10.0, 11.0, GB)
        raise AssertionError("read on")

    assert recent_rates(found(), 100.0) == {"read": pytest.approx(GB)}


def test_rates_of_very_many_spans_are_those_of_the_newest() -> None:
    """1000 a second, each of 1 MB and 4 ms: as fast over fewer seconds, whatever was before."""
    old = [Span("read", 0, n / 1000, n / 1000 + 0.004, 9_000_000) for n in range(5000)]
    new = [Span("read", 0, n / 1000, n / 1000 + 0.004, 1_000_000) for n in range(5000, 5100 + NEWEST)]
    seen = iter(reversed(old + new))
    assert recent_rates(seen, new[-1].end) == {"read": pytest.approx(1e9, rel=0.01)}
    assert len(list(seen)) == len(old) + 100


def test_no_span_yet_no_rate() -> None:
    assert recent_rates([], 5.0) == {}


def test_flows_name_known_stages() -> None:
    assert {stage for stages in stream_progress.SHOWN.values() for stage in stages} == set(STAGES)
