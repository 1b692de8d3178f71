"""Read measurements of nccl-tests and meshrun: text, also within a launcher's output, and JSON."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.bench.collectives.config import SweepSettings
from jobs.bench.collectives.results import Header, PlacementResult, ResultRow
from runner.comm.collectives.api import DATATYPES
from runner.errors import UserError

PLACEMENTS = {"out_of_place": "out of place", "in_place": "in place"}

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Found anywhere in a line, because launchers prefix lines: "[1,0]<stdout>:", "0: ", a time.
TITLES = re.compile(r"# +size +count +type +redop +root +((?:cpu)?time .*)")
ROW = re.compile(rf"(?<![\w.])(\d+) +(\d+) +({'|'.join(DATATYPES)}|char|int) +(.*)")
PROGRAM = re.compile(r"# Collective test (?:starting|concluded): *(\S+)")
LIBRARY = re.compile(r"nccl-library=(\d+)")
OTHERS = ("pingpong", "scale", "tuning")  # our own programs, whose JSON differs from nccl-tests'
AVERAGE = re.compile(r"# Avg bus bandwidth +: +([-+.0-9a-z]+)")


@dataclass(frozen=True, order=True)
class RowKey:
    """What was measured. size: bytes. count: elements. root: -1 without one."""

    size: int
    count: int
    datatype: str
    reduction: str
    root: int


@dataclass(frozen=True)
class Figures:
    """time_us: microseconds. algbw, busbw: GB/s. wrong: elements; None if not checked."""

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None


Measurements = Mapping[RowKey, Mapping[str, tuple[Figures, ...]]]


@dataclass(frozen=True)
class BenchRecord:
    """One file. rows: by key and placement, one Figures for each cycle, in order.

    clock: "time", or "cputime" with -C. program, library: None if the file does not have them. average: the
    file's, GB/s.
    """

    name: str
    rows: Measurements
    clock: str = "time"
    program: str | None = None
    library: int | None = None
    average: float | None = None


def median(cycles: Iterable[Figures], metric: str) -> float:
    """Return the median of "time_us", "algbw" or "busbw"; NaN if any cycle is NaN."""
    values = [float(getattr(figures, metric)) for figures in cycles]
    return math.nan if any(map(math.isnan, values)) else statistics.median(values)


def read(path: str | Path) -> BenchRecord:
    """Read a file of one operation; errors as for `read_each`."""
    found = read_each(path)
    if len(found) > 1:
        raise UserError(f"{path} holds more than one test", got=", ".join(found), hint="a file for each")
    return next(iter(found.values()))


def read_each(path: str | Path) -> dict[str, BenchRecord]:
    """Read a file's measurements: by operation if it has several, else by "".

    Raises UserError if there are none, or some that cannot be parsed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as reason:
        raise UserError(f"cannot read {path}", why=reason.strerror or reason) from reason
    parts = _operations(text)
    return {name: _read(f"{path}, {name}" if name else str(path), part) for name, part in parts.items()}


def _operations(text: str) -> dict[str, str]:
    """Split a document of several operations; any other text is returned under ""."""
    if text.startswith('{"operations":'):
        try:
            parts = json.loads(text)["operations"]
            measured = {name: json.dumps(part) for name, part in parts.items() if part["results"]}
            return measured or {"": text}
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):  # reported when it is read
            pass
    return {"": text}


def _read(path: str, text: str) -> BenchRecord:
    gathered = _Gathered(path)
    if text.lstrip().startswith("{"):
        try:
            _read_json(text, gathered)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as reason:
            raise UserError(
                f"{path} is JSON, but no record of measurements",
                got=repr(reason),
                hint="a file that -J wrote",
            ) from reason
    else:
        _read_text(text, gathered)
    return gathered.record()


def of_rows(name: str, settings: SweepSettings, header: Header, rows: Iterable[ResultRow]) -> BenchRecord:
    """Make the record of rows just measured, as if it had been written and read."""
    gathered = _Gathered(name)
    gathered.programs.add(header.program)
    gathered.clocks.add("cputime" if settings.report_cputime else "time")
    gathered.library = header.library
    for row in rows:
        key = RowKey(row.size, row.count, row.datatype, row.reduction, row.root)
        for placement in PLACEMENTS:
            of: PlacementResult = getattr(row, placement)
            seconds = of.cpu_seconds if settings.report_cputime else of.seconds
            gathered.add(key, placement, Figures(seconds * 1e6, of.algbw, of.busbw, of.wrong))
    return gathered.record()


class _Gathered:
    """The measurements read so far; raises UserError for those that do not fit into one record."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[RowKey, dict[str, list[Figures]]] = {}
        self.programs: set[str] = set()
        self.clocks: set[str] = set()
        self.library: int | None = None
        self.averages: list[float] = []

    def add(self, key: RowKey, placement: str, figures: Figures) -> None:
        self.rows.setdefault(key, {}).setdefault(placement, []).append(figures)

    def record(self) -> BenchRecord:
        if not self.rows:
            raise UserError(
                f"{self.name} holds no measurements",
                expected="the output of nccl-tests or of meshrun bench, as text or JSON",
            )
        for what, found in (("test", self.programs), ("clock", self.clocks)):
            if len(found) > 1:
                raise UserError(
                    f"{self.name} holds more than one {what}",
                    got=", ".join(sorted(found)),
                    hint="a file for each",
                )
        return BenchRecord(
            name=self.name,
            rows={
                key: {name: tuple(cycles) for name, cycles in row.items()} for key, row in self.rows.items()
            },
            clock=next(iter(self.clocks)),
            program=next(iter(self.programs), None),
            library=self.library,
            average=statistics.median(self.averages) if self.averages else None,
        )


def _read_text(text: str, gathered: _Gathered) -> None:
    titles: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = ANSI.sub("", raw).replace("\t", " ")
        if found := TITLES.search(line):
            titles = found[1].split()
            continue
        try:
            if found := PROGRAM.search(line):
                gathered.programs.add(found[1])
            if found := LIBRARY.search(line):
                gathered.library = int(found[1])
            if found := AVERAGE.search(line):
                gathered.averages.append(float(found[1]))
            elif titles and (found := ROW.search(line)):
                key, placements = _row(titles, *found.groups())
                gathered.clocks.add(titles[0])
                for placement, figures in placements.items():
                    gathered.add(key, placement, figures)
        except (ValueError, LookupError, OverflowError) as reason:
            raise UserError(
                f"line {number} of {gathered.name} is a truncated row or is mixed with other output",
                got=line.strip()[:120],
                hint="nccl-tests' -J, or NCCL_DEBUG_FILE for NCCL's own messages",
            ) from reason


def _row(
    titles: list[str], size: str, count: str, datatype: str, rest: str
) -> tuple[RowKey, dict[str, Figures]]:
    """Parse a row. Raises ValueError, LookupError or OverflowError if its cells do not fit the titles."""
    cells = rest.split()
    # Older versions leave the reduction blank for operations without one.
    reduction = cells.pop(0) if cells[0].isalpha() else "none"
    key = RowKey(
        _whole("size", int(size)), _whole("count", int(count)), datatype, reduction, int(cells.pop(0))
    )
    half = titles.index(titles[0], 1)
    columns = titles[:half]
    found = {}
    for placement, start in (("out_of_place", 0), ("in_place", half)):
        of = dict(zip(columns, cells[start : start + half], strict=True))
        wrong = None if of["#wrong"] == "N/A" else int(float(of["#wrong"]))
        found[placement] = Figures(float(of[titles[0]]), float(of["algbw"]), float(of["busbw"]), wrong)
    return key, found


def _read_json(text: str, gathered: _Gathered) -> None:
    try:
        document = json.loads(text)
        documents = [document] if "size" in document else document["results"]
    except json.JSONDecodeError:
        try:
            document, documents = {}, [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as reason:
            raise UserError(f"{gathered.name} is truncated JSON", why=str(reason)) from reason
    if document.get("program") in OTHERS:
        raise UserError(
            f"{gathered.name} is a record of {document['program']}, which has other rows",
            expected="a record of an operation, or of all",
        )
    if "results" in document:
        if document["version"] not in (1, 2, 3):
            raise ValueError(f"version {document['version']}")
        gathered.averages.append(float(document["average_bus_bandwidth"]["bandwidth"]))
        _identify(document, gathered)
        if "meshrun" not in document:
            gathered.programs.add(Path(document["args"][0]).name)
    for row in documents:
        _identify(row, gathered)
        _add_json(row, gathered)


def _identify(document: dict[str, Any], gathered: _Gathered) -> None:
    if "nccl_version" in document:
        gathered.library = int(document["nccl_version"])
    if "program" in document.get("meshrun", {}):
        gathered.programs.add(document["meshrun"]["program"])


def _add_json(row: dict[str, Any], gathered: _Gathered) -> None:
    size, count = (_whole(name, row[name]) for name in ("size", "count"))
    key = RowKey(size, count, row["type"], row["redop"], int(row["root"]))
    for placement in PLACEMENTS:
        values = row[placement]
        if values is None:  # a replayed trace has one placement
            continue
        clock = "cpu_time" if "cpu_time" in values else "time"
        gathered.clocks.add(clock.replace("_", ""))
        wrong = None if values["nwrong"] is None else int(values["nwrong"])
        figures = Figures(float(values[clock]), float(values["alg_bw"]), float(values["bus_bw"]), wrong)
        gathered.add(key, placement, figures)


def _whole(name: str, value: Any) -> int:
    """Check a number of bytes or elements. Raises ValueError unless it is a whole number of 64 bits."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} {value!r}"[:40])
    return value
