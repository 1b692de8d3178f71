"""Fill the figures of README.md and docs/ from the records in benchmarks/results, and find those typed in.

python docs/figures.py fill     write the figure of every marker, then check: nox -s figures
python docs/figures.py check    fail if a figure differs from its record or has no marker: nox -s lint

A marker is `<!--{EXPRESSION:FORMAT}-->FIGURE<!--/-->`, on one line. EXPRESSION is Python over the records, by
the names of their files: `step_scaling_4.rows(case="heat", ranks=4).cells_per_second / 1e9`. A list of rows
that is called returns its only row with these values; its attributes are lists: `max(restart.rows.seed)`.

Found are rates; times in ns, us or ms; %; "times as", "times faster" and the like, also in words; "46 of 48";
decimal numbers of s, minutes and hours, and any of them after "takes"; coefficients of a flow; numbers in the
columns of tables, but for the first column and those with a head in GIVEN; and all these in what a program
prints. A setting, a published value or an example is `<!--stated: REASON-->FIGURE<!--/-->`, which may go
around a block. Left out are programs, tables and outputs that a program makes or a test compares
(`<!-- made by FILE -->` or `<!-- tested by FILE -->`, to `<!-- end -->`), and benchmarks/README.md, where
each figure stands below its command: there, only markers are filled and compared with their records.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BENCHMARKS = ROOT / "benchmarks" / "README.md"
FUNCTIONS = {"len": len, "max": max, "median": statistics.median, "min": min, "sum": sum}

MARKER = re.compile(r"(<!--\{((?:(?!-->).)+):([^:{}]*)\}-->)([^<]*)(<!--/-->)")
STATED = re.compile(r"<!--stated: \w[^>]*-->[^<]*<!--/-->")
BROKEN = re.compile(r"<!--(?:\{|/|stated).*?-->")
OWNED = re.compile(r"<!-- (?:made|tested) by (\S+).*?-->.*?<!-- end -->", re.DOTALL)
CODE_BLOCK = re.compile(r"^( *)```(\w*).*?^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`|(?<=\]\()[^)\s]+(?=\))", re.MULTILINE | re.DOTALL)

GAP = r"(?:\s|&nbsp;|-)?\**"  # between a number and its unit
NUMBER = r"(?:[~*]*-?\d[\d.,]*(?:e[+-]?\d+)?\**|#)"  # "#" stands for a marker
DECIMAL = r"[~*]*-?\d[\d,]*\.\d+\**"
MORE = rf"(?:(?:\s(?:to|and|or)\s|,\s(?:(?:and|or)\s)?|\s?[-\u2013]\s?){NUMBER})*"
WORDS = (
    r"two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty"
    r"|hundreds of|thousands of|twice|half"
)
START = r"(?<![\w.#-])"
UNITS_PER_SECOND = (
    r"[Bb]|[Bb]its?|[Bb]ytes?|[Cc]ells?|FLOPs?|[Ff]lops?|calls|frames|messages|operations|steps|updates"
)
RATE = (
    rf"(?:[kKMGTP]i?|kilo|mega|giga|tera)?(?:{UNITS_PER_SECOND})\s?(?:/|per\s|an?\s)\s?(?:sec|second|[sS])\b"
    r"|[MGTP]FLOPS\b|[MGTP]FLOPs\b|[MG]LUPS\b|fps\b|[kMG]?Hz\b"
)
SHORT = r"[nu\u00b5\u03bcm]s(?:ec)?\b|(?:nano|micro|milli)seconds?\b"
LONG = r"(?:s|min|h|seconds?|minutes?|hours?|days?)\b"
SHARE = r"%|per ?cent\b"
COMPARED = (
    r"as|the|an?|faster|slower|quicker|better|longer|shorter|larger|smaller|higher|lower|more|less|fewer"
)
TIMES = rf"times\s(?:{COMPARED})\b|fold\b|[x\u00d7](?!\s?[\w#-])|[x\u00d7](?=\s(?:{COMPARED})\b)"
DURATION = (
    r"(?:takes?|took|taken|costs?|needs?|lasts?|lasted|instead of)\s"
    r"(?:(?:about|almost|at most|less than|more than|nearly|only|under|up to)\s)?"
)
NAMED = r"(?:drag|lift|Strouhal number|St|Nusselt number)(?: coefficient)?"
FIGURE = re.compile(
    rf"{START}{NUMBER}{MORE}(?:\s(?:million|billion))?{GAP}(?:{RATE}|{SHORT}|{SHARE}|{TIMES})"
    rf"|{START}{DECIMAL}{MORE}{GAP}(?:{LONG}|times\b)"
    rf"|\b{DURATION}{NUMBER}{MORE}{GAP}{LONG}"
    rf"|\b{NAMED}(?:\sis|\sof|:|\s=)?\s-?\d[\d.]+"
    rf"|\b(?:speed-?up|factor)(?:\sis|\sof|:|\s=)?\s{DECIMAL}"
    rf"|\b(?:{WORDS})\s(?:times\s(?:{COMPARED})\b|{RATE}|{SHORT}|{SHARE})"
    rf"|{START}0\.\d+\**{MORE}\sof\s(?:a|the|its)\s(?:copy|peak|bound|limit|rate|bandwidth)\b"
    r"|(?<![\w.#-])\d[\d,]*\sof\s(?:the\s)?\d[\d,]*\b"
    r"|\b(?:twice|half)\sas\s(?:fast|long|slow)\b"
)
HEAD = re.compile(rf"{RATE}|\b(?:[nu\u00b5m]?s|seconds|measured|here|ratio|of a copy|a step|time)\b")
GIVEN = re.compile(r"(?:exit )?status|published|default|what|bytes per cell|ranks|hosts|GPUs|cells|steps")
CELL = re.compile(rf"{START}{DECIMAL}|^{NUMBER}(?: \([^)]*\))?$")
TYPED = re.compile(rf"\d|\b(?:{WORDS})\b")
WHOLE = re.compile(rf"^{NUMBER}(?: \([^)]*\))?$")


# --- Records ---


class Fields(dict[str, Any]):
    """An object of a record, whose keys are attributes."""

    def __getattribute__(self, key: str) -> Any:
        return self[key] if key in self else super().__getattribute__(key)


class Rows(list[Any]):
    """A list of a record.

    Called with values, it returns its only row that has them; an attribute is the list of every row's.
    """

    def __call__(self, **values: Any) -> Any:
        rows = [row for row in self if values.items() <= dict.items(row)]
        if len(rows) != 1:
            raise LookupError(f"{len(rows)} rows have {values}, expected one")
        return rows[0]

    def __getattribute__(self, key: str) -> Any:
        return super().__getattribute__(key) if key.startswith("__") else Rows(row[key] for row in self)


def wrapped(value: Any) -> Any:
    """Return a value of JSON with Fields for its objects and Rows for its lists."""
    if isinstance(value, dict):
        return Fields({key: wrapped(child) for key, child in value.items()})
    return Rows(map(wrapped, value)) if isinstance(value, list) else value


@functools.cache
def record(name: str) -> Any:
    """Return a record by the name of its file. Raises LookupError if there is none."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise LookupError(f"no record benchmarks/results/{name}.json")
    return wrapped(json.loads(path.read_text()))


def figure(expression: str, form: str) -> str:
    """Return the figure of a marker. Raises ValueError, with a sentence, for an expression that has none."""
    try:
        names = [node for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)]
        own = {node.id for node in names if isinstance(node.ctx, ast.Store)} | FUNCTIONS.keys()
        records = {node.id: record(node.id) for node in names if node.id not in own}
        if not records:
            raise LookupError("it names no record")
        return format(eval(expression, {"__builtins__": {}, **FUNCTIONS, **records}), form)
    except Exception as error:
        raise ValueError(f"{expression}: {type(error).__name__}: {error}") from error


# --- Pages ---


def pages() -> list[Path]:
    """Return the pages whose figures are checked."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(match: re.Match[str]) -> str:
    """Return a marker with its figure, or as it is if its record has none."""
    try:
        return match[1] + figure(match[2], match[3]) + match[5]
    except ValueError:
        return match[0]


def faults(text: str, name: str = "") -> Iterator[tuple[int, str]]:
    """Yield the line and a sentence for each figure of a page that is wrong or has no marker.

    name: of the page's file, which those who make or test its tables must mention.
    """
    yield from faults_of_outputs(text)
    text = CODE.sub(lines_only, text)
    yield from faults_of_markers(text)
    for match in MARKER.finditer(text):
        if not text[: match.start()].rpartition("\n")[2].strip("-* "):
            yield line(text, match), "a marker at the start of a line turns the line into HTML"
        if "|" in match[1]:
            yield line(text, match), f"{match[1]}: a | splits the cells of a table"
    for match in OWNED.finditer(text):
        owner = ROOT / match[1]
        if not owner.is_file() or name not in owner.read_text():
            yield line(text, match), f"{match[1]} neither makes nor tests a table of {name}"
    bare = OWNED.sub(lines_only, re.sub(f"{MARKER.pattern}|{STATED.pattern}", "#", text))
    for match in BROKEN.finditer(bare):
        yield line(bare, match), f"{match[0]} is neither a marker nor a reason. Try: read docs/figures.py"
    for match in FIGURE.finditer(bare):
        if TYPED.search(match[0]):
            yield line(bare, match), f"{' '.join(match[0].split())} is a figure without a record"
    yield from faults_of_tables(bare)


def faults_of_markers(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and a sentence for each marker that has no figure, or another one than its record."""
    for match in MARKER.finditer(text):
        try:
            expected = figure(match[2], match[3])
        except ValueError as error:
            yield line(text, match), str(error)
            continue
        if match[4] != expected:
            yield line(text, match), f"got {match[4]}, expected {expected}. Try: nox -s figures"


def faults_of_outputs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the figures in what programs print, and in code that is nothing but a figure. text: a page."""
    bare = OWNED.sub(lines_only, STATED.sub(lines_only, text))
    for match in CODE_BLOCK.finditer(bare):
        if match[2] not in ("", "console", "text"):
            continue
        first = line(bare, match)
        for number, row in enumerate(match[0].splitlines(), first):
            printed = None if re.match(r" *(?:\$|meshrun|mpirun|srun) ", row) else FIGURE.search(row)
            if printed:
                yield number, f"{printed[0]} is a figure in an output without a record"
    for match in re.finditer(r"`([^`\n]+)`", CODE_BLOCK.sub(lines_only, bare)):
        if FIGURE.fullmatch(match[1]):
            yield line(bare, match), f"{match[1]} is a figure without a record"


def faults_of_tables(bare: str) -> Iterator[tuple[int, str]]:
    """Yield the figures without a marker in the columns of figures. bare: a page with "#" for markers."""
    head: list[str] = []
    for number, row in enumerate(bare.splitlines(), 1):
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")] if row.startswith("|") else []
        head = (head or cells) if cells else []
        for column, (title, cell) in enumerate(zip(head, cells, strict=False)):
            figures = CELL if HEAD.search(title) else WHOLE
            typed = any(TYPED.search(match[0]) for match in figures.finditer(cell))
            given = GIVEN.fullmatch(title) or (not column and figures is WHOLE)
            if title != cell and typed and not given and not FIGURE.search(cell):
                yield number, f"{cell} in the column {title!r} is a figure without a record"


def line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def lines_only(match: re.Match[str]) -> str:
    return "`" + "\n" * match[0].count("\n")


def main(words: list[str]) -> None:
    if words not in (["fill"], ["check"]):
        sys.exit(__doc__)
    found = []
    for page in [*pages(), BENCHMARKS]:
        if words == ["fill"]:
            page.write_text(MARKER.sub(filled, page.read_text()))
        text = page.read_text()
        for place, fault in faults_of_markers(text) if page == BENCHMARKS else faults(text, page.name):
            found.append(f"{page.relative_to(ROOT)}:{place}: {fault}")
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main(sys.argv[1:])
