"""A report on a terminal: the verdict in the first line, then what is slow, the ladder, and remedies."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshrun.jobs.validate.report.model import Change, Report
from meshrun.jobs.validate.report.remedies import remedies
from meshrun.jobs.validate.report.wording import (
    LOAD_COLUMNS,
    MOST,
    assumptions,
    change_sentence,
    comparison,
    duration,
    fleet,
    headline,
    load_rows,
    nccl_sentences,
    not_shown,
    part_name,
    percent,
    printable,
    rate_text,
    rates,
    unit_name,
)
from meshrun.jobs.validate.verdict import Finding

STYLE = {"ok": "bold green", "warning": "bold yellow", "critical": "bold red", "unknown": "bold magenta"}
RESULT = {"ok": "green", "broken": "bold red", "not measured": "dim"}


def text(report: Report, columns: int = 80, colour: bool = False) -> str:
    """Return lines, of which only the first may be longer than `columns` (it is the verdict, for head -1)."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=columns,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(Text(headline(report), STYLE[report.verdict.status]), soft_wrap=True)
    alarms = [f"{one.status}: {one.sentence}" for one in report.verdict.alarms]
    for part in (
        about(report),
        findings(report),
        sentences("Alarms", alarms),
        next_steps(report),
        ladder(report),
        loads(report),
        sentences("Counters that changed, no faults", notes(report)),
        sentences("NCCL's own diagnostics", nccl_sentences(report)),
        sentences(f"Compared with {report.baseline}", comparison(report)),
        sentences("Not judged", report.verdict.not_judged),
        sentences("Limits", assumptions(report)),
    ):
        for line in part:
            console.print(line)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def about(report: Report) -> Iterator[RenderableType]:
    yield words(f"{fleet(report)}; {duration(report.seconds)} from {report.started}", "dim")
    if report.simulated:
        yield words(f"simulated, no real machine was measured: {report.simulated}", "bold")
    yield words(f"$ {report.command}", "dim")


def findings(report: Report) -> Iterator[RenderableType]:
    found = report.verdict.findings
    if found:
        yield title("Slower than their siblings")
        table = table_of("<part", ">rate", ">siblings", "<unit", ">%", "<rung")
        for one in found[:MOST]:
            rate, siblings, unit = one.evidence.rate, one.evidence.siblings, one.evidence.unit
            figures = rate_text(rate, unit), rate_text(siblings, unit), unit_name(unit)
            table.add_row(words(qualified(one)), *figures, percent(one.factor), one.rung)
        yield table
        yield from left_out(found)


def qualified(one: Finding) -> str:
    """Return the part, the share of the time that it is slow, and the parts that it may be instead."""
    when = f", {percent(one.time)} of the time" if one.time is not None else ""
    return f"{part_name(one)}{when}" + (f" (or {' or '.join(one.instead)})" if one.instead else "")


def ladder(report: Report) -> Iterator[RenderableType]:
    yield title("Ladder")
    table = table_of("<rung", "<result", "<what", ">rate", ">limit", "<unit", ">%", ">rounds", ">time")
    for rung in report.verdict.rungs:
        cells: tuple[str | Text, ...] = (rung.name, Text(rung.result, RESULT[rung.result]))
        effort = (str(rung.rounds), duration(rung.measured))
        for row in rates(report, rung):
            table.add_row(*cells, row.what, row.rate, row.limit, row.unit, percent(row.share), *effort)
            cells, effort = ("", ""), ("", "")
        if not rung.rates and rung.result != "not measured":
            table.add_row(*cells, "nothing", "-", "-", "", "-", *effort)
    if table.row_count:
        yield table
    idle = [rung for rung in report.verdict.rungs if rung.result == "not measured"]
    for why, some in groupby(idle, key=lambda rung: rung.why):
        yield words(f"not measured: {', '.join(rung.name for rung in some)} ({why})", "dim")


def loads(report: Report) -> Iterator[RenderableType]:
    if report.loads:
        yield title("GPUs during the load on their tensor cores, the lowest clocks first")
        table = table_of("<part", *(f">{name}" for name in LOAD_COLUMNS))
        for name, *figures in load_rows(report)[:MOST]:
            table.add_row(words(name), *figures)
        yield table
        yield from left_out(report.loads)


def notes(report: Report) -> list[str]:
    """Return the counters that indicate no fault, each with the part where it changed most in a rung."""
    alike: dict[tuple[str, str], list[Change]] = {}
    for one in report.changes:
        if one.weight == "note":
            alike.setdefault((one.rung, one.counter), []).append(one)
    found = []
    for some in alike.values():
        most = max(some, key=growth)
        of = f", the most of {len(some)} parts" if len(some) > 1 else ""
        found.append(f"{most.rung}: {change_sentence(most)}{of} ({most.meaning})")
    return found


def growth(one: Change) -> float:
    if isinstance(one.before, str) or isinstance(one.after, str):
        return 0.0
    return abs(one.after - one.before)


def next_steps(report: Report) -> Iterator[RenderableType]:
    found = remedies(report)
    if found:
        yield title("Next")
        for one in found:
            yield item(f"{one.about}: {one.advice}")
            if one.command:
                yield Padding(words(f"$ {one.command}", "dim"), (0, 0, 0, 2))


def sentences(heading: str, items: Sequence[str]) -> Iterator[RenderableType]:
    if items:
        yield title(heading)
        for one in items[:MOST]:
            yield item(one)
        yield from left_out(items)


def left_out(items: Sequence[object]) -> Iterator[Text]:
    if more := not_shown(items):
        yield words(more, "bold")


def title(heading: str) -> Text:
    return Text(f"\n{printable(heading)}", "bold")


def item(sentence: str) -> Table:
    """Return a paragraph with a dash and a hanging indent."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row("-", words(sentence))
    return grid


def words(sentence: str, style: str = "") -> Text:
    return Text(printable(sentence), style, overflow="fold")


def table_of(*columns: str) -> Table:
    """Return an empty table. columns: "<" or ">" (alignment) and the heading. Only "part" wraps."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for side, heading in ((one[0], one[1:]) for one in columns):
        table.add_column(
            heading,
            justify="left" if side == "<" else "right",
            no_wrap=heading != "part",
            overflow="fold",
        )
    return table
