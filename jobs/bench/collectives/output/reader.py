"""Read measurements of nccl-tests and meshrun: text, also within a launcher's output, and JSON.

Layouts of text, by the version of nccl-tests that prints them:

    since 2022      size count type redop root, then time algbw busbw #wrong for each placement; -I and we
                    append columns, -S a date; a replayed trace leaves the first placement blank
    2019 to 2022    size count type, then what the operation has of redop and root; error instead of #wrong
    before 2019     bytes N type, then what the operation has of op and root; times in ms; res, not #wrong
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.results import Header, PlacementResult, ResultRow
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.errors import UserError

PLACEMENTS = {"out_of_place": "out of place", "in_place": "in place"}

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Found anywhere in a line, because launchers prefix lines: "[1,0]<stdout>:", "0: ", a time.
TITLES = re.compile(r"# +(?:size +count|bytes +N) +type +(?:redop +|op +|root +)*(?:cpu)?time .*")
ROW = re.compile(rf"(?<![\w.])(\d+) +(\d+) +({'|'.join(DATATYPES)}|char|int) +(.*)")
PROGRAM = re.compile(r"# Collective test (starting|concluded): *(\S+)")
RANK = re.compile(r"# +Rank +(\d+) ")
NO_PLACEMENT = re.compile(r" {30,}")  # of a replayed trace, which is measured in place only
# The most that a float result may differ, relatively and for each further rank: as nccl-tests judged columns
# "error" and "res". Integers may not.
MOST_ERROR = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
LIBRARY = re.compile(r"nccl-library=(\d+)")
READ = "text or JSON of meshrun bench OPERATION, of bench all, or of nccl-tests"
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
        names = (one.program or name for name, one in found.items())
        raise UserError(f"{path} holds more than one test", got=", ".join(names), hint="a file for each")
    return next(iter(found.values()))


def read_each(path: str | Path) -> dict[str, BenchRecord]:
    """Read a file's measurements: by operation if it has several, else by "".

    Raises UserError if there are none, or some that cannot be parsed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as reason:
        raise UserError(f"cannot read {path}", why=reason.strerror or reason) from reason
    try:
        documents = _json_documents(str(path), text)
    except RecursionError as reason:
        raise UserError(f"{path} is JSON that is nested too deeply", expected=READ) from reason
    gathered = _Sections(str(path))
    if documents is None:
        _read_text(text, gathered)
    for document in documents or ():
        _read_document(document, gathered)
    return gathered.records()


def _json_documents(path: str, text: str) -> list[Any] | None:
    """Parse JSON, or lines of JSON. Returns None for other text. Raises UserError if JSON is truncated."""
    # nccl-tests writes infinity as C does, which is no JSON.
    text = re.sub(r'(": ?-?)inf\b', r"\1Infinity", text)
    try:
        return [json.loads(text)]
    except ValueError as reason:
        if not text.lstrip().startswith("{"):
            return None
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise UserError(f"{path} is truncated JSON", why=reason) from reason


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


class _Sections:
    """The measurements of each test of a file, by its name without the suffixes of its binary."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tests: dict[str, _Gathered] = {}

    def of(self, program: str = "") -> _Gathered:
        """Return what was read of a test; "": of a file that does not name it."""
        name = program.removesuffix("_mpi").removesuffix("_perf")
        return self.tests.setdefault(name, _Gathered(f"{self.path}, {name}" if name else self.path))

    def records(self) -> dict[str, BenchRecord]:
        """Return the record of each test that has rows; of a single one under ""."""
        measured = {name: one for name, one in self.tests.items() if one.rows}
        if len(measured) < 2:
            alone = next(iter(measured.values()), self.of())
            alone.name = self.path
            return {"": alone.record()}
        return {name: one.record() for name, one in measured.items()}


def _read_text(text: str, sections: _Sections) -> None:
    titles: list[str] = []
    gathered, library, ranks = sections.of(), None, 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = ANSI.sub("", raw).replace("\t", " ")
        if found := TITLES.search(line):
            titles = found[0].split()[1:]
            continue
        try:
            if found := PROGRAM.search(line):
                if found[1] == "starting":
                    gathered, ranks = sections.of(found[2]), 0
                    gathered.library = library
                gathered.programs.add(found[2])
            if found := LIBRARY.search(line):
                gathered.library = library = int(found[1])
            if found := RANK.search(line):
                ranks = max(ranks, int(found[1]) + 1)
            if found := AVERAGE.search(line):
                gathered.averages.append(float(found[1]))
            elif titles and (found := ROW.search(line)):
                key, placements = _row(titles, ranks, *found.groups())
                gathered.clocks.add("cputime" if "cputime" in titles else "time")
                for placement, figures in placements.items():
                    gathered.add(key, placement, figures)
        except (ValueError, LookupError, OverflowError) as reason:
            raise UserError(
                f"line {number} of {sections.path} is a truncated row or is mixed with other output",
                got=line.strip()[:120],
                hint="nccl-tests' -J, or NCCL_DEBUG_FILE for NCCL's own messages",
            ) from reason


def _row(
    titles: list[str], ranks: int, size: str, count: str, datatype: str, rest: str
) -> tuple[RowKey, dict[str, Figures]]:
    """Parse a row. Raises ValueError, LookupError or OverflowError if its cells do not fit the titles.

    titles: words of the line of titles. ranks: number of them; 0 if unknown. rest: the row after its type.
    """
    clock = "cputime" if "cputime" in titles else "time"
    first = titles.index(clock)
    keys, figures = titles[3:first], titles[first:]
    cells = rest.split()
    # Newer versions have both columns for every operation, and some leave the reduction blank.
    reduction = cells.pop(0) if {"redop", "op"} & {*keys} and cells[0].isalpha() else "none"
    root = int(cells.pop(0)) if "root" in keys else -1
    key = RowKey(_whole("size", int(size)), _whole("count", int(count)), datatype, reduction, root)

    placements = list(PLACEMENTS)
    width = figures.index(clock, 1) if clock in figures[1:] else len(figures)
    if width == len(figures):  # an old operation that has no in-place variant
        placements = placements[:1]
    elif NO_PLACEMENT.search(rest):
        placements = placements[1:]
    found = {}
    for number, placement in enumerate(placements):
        of = dict(zip(figures[:width], cells[number * width :][:width], strict=True))
        microseconds = float(of[clock]) * (1e3 if titles[0] == "bytes" else 1)
        wrong = _wrong(of, datatype, ranks)
        found[placement] = Figures(microseconds, float(of["algbw"]), float(of["busbw"]), wrong)
    return key, found


def _wrong(cells: Mapping[str, str], datatype: str, ranks: int) -> int | None:
    """Return the number of wrong elements; None if it was not checked.

    Where there is the largest relative error instead, 1 means that it is too large.
    """
    if "#wrong" in cells:
        return None if cells["#wrong"] == "N/A" else int(float(cells["#wrong"]))
    error = cells["error"] if "error" in cells else cells["res"]
    if error == "N/A" or not ranks:
        return None
    return int(not float(error) <= MOST_ERROR.get(datatype, 0.0) * max(ranks - 1, 1))


def _read_document(document: Any, sections: _Sections) -> None:
    """Read a document of -J, of one or of several operations, or a line of --json-lines."""
    if isinstance(document, dict) and isinstance(parts := document.get("operations"), dict):
        for name, part in parts.items():
            _read_test(part, sections, name)
    else:
        _read_test(document, sections)


def _read_test(document: Any, sections: _Sections, name: str = "") -> None:
    if not isinstance(document, dict) or not ("size" in document or _is_record(document)):
        raise _other_json(sections.path, document)
    place = ""
    try:
        if "size" in document:
            gathered = sections.of(name or _program(document))
            _identify(document, gathered)
            _add_json(document, gathered)
            return
        place = "version"
        if document["version"] not in (1, 2, 3):
            raise ValueError(f"version {document['version']}")
        gathered = sections.of(name)
        place = "average_bus_bandwidth"
        if average := document.get(place):  # a run that failed has none
            gathered.averages.append(float(average["bandwidth"]))
        _identify(document, gathered)
        if "meshrun" not in document:
            place = "args"
            gathered.programs.add(Path(document["args"][0]).name)
        if not (average or document["results"]):
            raise ValueError("the run has failed before its first row")
        for number, row in enumerate(document["results"], 1):
            place = f"row {number} of results"
            _identify(row, gathered)
            _add_json(row, gathered)
    except KeyError as missing:
        what = f"{place} has no {missing.args[0]!r}" if place.startswith("row") else f"no {missing.args[0]!r}"
        raise _damaged(sections.path, what) from missing
    except (TypeError, AttributeError, ValueError, OverflowError, IndexError) as reason:
        raise _damaged(sections.path, f"{place}: {reason}".removeprefix(": ")) from reason


def _is_record(document: dict[str, Any]) -> bool:
    """Whether a document is one of -J, and not another of our own, whose rows differ."""
    return "program" not in document and "kind" not in document and isinstance(document.get("results"), list)


def _damaged(path: str, got: str) -> UserError:
    return UserError(f"{path} is JSON, but no record of measurements", got=got, expected=READ)


def _other_json(path: str, document: Any) -> UserError:
    """Return an error that says what JSON this is, which holds no rows of nccl-tests."""
    if not isinstance(document, dict):
        kinds = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
        return _damaged(path, kinds.get(type(document), "a number"))
    origin = ""
    if "nvbandwidth" in document:
        origin = "nvbandwidth"
    elif {"buffer_bytes", "hosts"} <= {*document}:
        origin = "meshrun bench copy"
    elif isinstance(lesson := document.get("lesson"), str):
        origin = f"meshrun bench memory {lesson}"
    elif isinstance(kind := document.get("kind"), str):
        origin = f"meshrun {kind}"
    elif isinstance(program := document.get("program"), str):
        origin = program
    if origin:
        return UserError(f"{path} is a record of {origin}, which has other rows", expected=READ)
    keys = ", ".join(map(str, [*document][:5])) + (", ..." if len(document) > 5 else "")
    return _damaged(path, f"an object with the keys {keys}" if keys else "an object without keys")


def _program(document: dict[str, Any]) -> str:
    about = document.get("meshrun")
    return str(about.get("program", "")) if isinstance(about, dict) else ""


def _identify(document: dict[str, Any], gathered: _Gathered) -> None:
    if "nccl_version" in document:
        gathered.library = int(document["nccl_version"])
    if program := _program(document):
        gathered.programs.add(program)


def _add_json(row: dict[str, Any], gathered: _Gathered) -> None:
    size, count = (_whole(name, row[name]) for name in ("size", "count"))
    key = RowKey(size, count, row["type"], row["redop"] or "none", int(row["root"]))
    for placement in PLACEMENTS:
        values = row.get(placement)
        if values is None:  # a replayed trace has one placement, the last row of a failed run too
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
