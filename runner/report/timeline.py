"""Timeline of every stage of every chunk on every rank: an HTML page, or a trace for Perfetto.

The page (`.html`) is self-contained: it holds the data as JSON and draws it on a canvas. The trace (`.json`)
is Chrome's trace event format, which ui.perfetto.dev and chrome://tracing load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from meshrun.runner import files
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.report.bottleneck import Bottleneck, idle_share, measure
from meshrun.runner.report.record import plain
from meshrun.runner.report.spans import STAGES, Span
from meshrun.runner.report.units import bytes_text, counted, percent_text, rate_text, seconds_text

SUFFIXES = (".html", ".json")
PAGE = Path(__file__).with_name("timeline.html")


@dataclass
class Lane:
    """One rank and its spans.

    device: such as "GPU 1", or "CPU". offset: seconds to add to this rank's clock so that all ranks' agree.
    """

    rank: int
    host: str
    device: str
    offset: float
    spans: list[Span]

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}, {self.device}"

    @property
    def gpu(self) -> bool:
        return not self.device.startswith("CPU")


class Bar(NamedTuple):
    """A span as drawn: begin and end in nanoseconds since the run's first span began."""

    chunk: int
    begin: int
    end: int
    moved: int

    @property
    def rate(self) -> float | None:
        """GB/s, which is bytes per nanosecond."""
        return self.moved / (self.end - self.begin) if self.moved and self.end > self.begin else None


@dataclass
class BarRow:
    """Non-overlapping bars of one stage of one rank; a stage with overlapping spans has several rows."""

    stage: str
    number: int
    bars: list[Bar]

    @property
    def name(self) -> str:
        return self.stage if self.number == 1 else f"{self.stage} {self.number}"


def check_timeline(path: Path) -> None:
    """Raise UserError for a `timeline` of an unknown format, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"unknown timeline format: {path}",
            got=path.suffix or "no suffix",
            expected="a name that ends in .html (a page) or .json (a trace for ui.perfetto.dev)",
        )


def write_timeline(path: Path, lanes: Sequence[Lane], about: dict[str, Any]) -> None:
    """Write the timeline of all ranks to `path`, atomically; called by one rank.

    about: facts about the run by name, shown in this order; "job" is the page's title.
    Raises UserError for an unknown suffix, RunError if writing fails.
    """
    check_timeline(path)
    lanes = sorted(lanes, key=lambda lane: lane.rank)
    limits = measure(_aligned(lanes), any(lane.gpu for lane in lanes))
    draw = page if path.suffix.lower() == ".html" else trace
    text = draw(lanes, plain(about), limits)
    try:
        files.write_file(path, text)
    except OSError as reason:
        raise RunError(f"cannot write the timeline {path}", why=reason.strerror or reason) from reason


def rows(lanes: Sequence[Lane]) -> list[list[BarRow]]:
    """The rows of each lane, on one clock that starts at 0."""
    aligned = _aligned(lanes)
    zero = min((span.begin for spans in aligned for span in spans), default=0.0)
    return [[row for stage in STAGES for row in _stacked(stage, spans, zero)] for spans in aligned]


def _aligned(lanes: Sequence[Lane]) -> list[list[Span]]:
    return [[span.shifted(lane.offset) for span in lane.spans] for lane in lanes]


def _stacked(stage: str, spans: Iterable[Span], zero: float) -> list[BarRow]:
    """Put each bar into the first free row; both formats require rows without overlap."""
    found: list[BarRow] = []
    bars = (
        Bar(span.chunk, round(1e9 * (span.begin - zero)), round(1e9 * (span.end - zero)), span.moved)
        for span in spans
        if span.stage == stage
    )
    for bar in sorted(bars, key=lambda bar: (bar.begin, bar.end)):
        row = next((row for row in found if row.bars[-1].end <= bar.begin), None)
        if row is None:
            row = BarRow(stage, len(found) + 1, [])
            found.append(row)
        row.bars.append(bar)
    return found


# The trace.


def trace(lanes: Sequence[Lane], about: dict[str, Any], limits: Bottleneck) -> str:
    """Chrome's trace event format: a process for each rank, a thread for each row, microseconds."""
    events: list[dict[str, Any]] = []
    for lane, lane_rows in zip(lanes, rows(lanes), strict=True):
        events.append(_named("process_name", lane.rank, 0, name=lane.name))
        events.append(_named("process_sort_index", lane.rank, 0, sort_index=lane.rank))
        for thread, row in enumerate(lane_rows):
            events.append(_named("thread_name", lane.rank, thread, name=row.name))
            events.append(_named("thread_sort_index", lane.rank, thread, sort_index=thread))
            events += (_event(bar, row.stage, lane.rank, thread) for bar in row.bars)
    other = {**about, "summary": limits.sentence(), "limits": plain(limits.record())}
    return _json({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}) + "\n"


def _named(what: str, process: int, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": arguments}


def _event(bar: Bar, stage: str, process: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": f"{stage} {bar.chunk}",
        "cat": stage,
        "pid": process,
        "tid": thread,
        "ts": bar.begin / 1e3,
        "dur": (bar.end - bar.begin) / 1e3,
        "args": {"chunk": bar.chunk, "bytes": bar.moved, "GB/s": bar.rate and round(bar.rate, 3)},
    }


# The page.


def page(lanes: Sequence[Lane], about: dict[str, Any], limits: Bottleneck) -> str:
    """Fill timeline.html with the run's data."""
    from jinja2 import Environment
    from markupsafe import Markup

    own = {
        "time": seconds_text(limits.wall),
        "ranks": f"{len(lanes)} on {counted(len({lane.host for lane in lanes}), 'host')}",
        "chunks": f"{sum(len({span.chunk for span in lane.spans}) for lane in lanes):,}",
    }
    units = {"bytes": bytes_text, "percent": percent_text, "rate": rate_text, "seconds": seconds_text}
    templates = Environment(autoescape=True, keep_trailing_newline=True)
    templates.filters |= units
    return templates.from_string(PAGE.read_text(encoding="utf-8")).render(
        title=str(about.get("job", "streamed run")),
        limits=limits,
        facts=own | {name: value for name, value in about.items() if name != "job"},
        stages=STAGES,
        # A "<" in the data could end the script element.
        data=Markup(_json(_data(lanes, limits)).replace("<", "\\u003c")),
    )


def _data(lanes: Sequence[Lane], limits: Bottleneck) -> dict[str, Any]:
    """Data in columns, begins as differences, so that half a million numbers take a few megabytes."""
    drawn = [
        {
            "name": lane.name,
            "idle": round(idle_share(lane.spans, limits.wall, limits.gpu), 4),
            "rows": [_columns(row) for row in lane_rows],
        }
        for lane, lane_rows in zip(lanes, rows(lanes), strict=True)
    ]
    return {"wall": round(1e9 * limits.wall), "stages": STAGES, "gpu": limits.gpu, "lanes": drawn}


def _columns(row: BarRow) -> dict[str, Any]:
    begins = [bar.begin for bar in row.bars]
    return {
        "stage": STAGES.index(row.stage),
        "name": row.name,
        "chunk": [bar.chunk for bar in row.bars],
        "begin": [after - before for before, after in pairwise([0, *begins])],
        "length": [bar.end - bar.begin for bar in row.bars],
        "bytes": [bar.moved for bar in row.bars],
    }


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
