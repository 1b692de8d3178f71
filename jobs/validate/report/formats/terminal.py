"""A report on a terminal: the verdict in the first line, then what is slow, the ladder, and what to do."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jobs.validate.report.model import Change, Report
from jobs.validate.report.remedies import steps
from jobs.validate.report.wording import (
    MOST,
    assumptions,
    change,
    drift,
    figure,
    fleet,
    headline,
    limits,
    name,
    percent,
    plain,
    rest,
    seconds,
    share,
    unit_name,
)
from jobs.validate.verdict import Finding, unit_of

STYLE = {"ok": "bold green", "warning": "bold yellow", "critical": "bold red", "unknown": "bold magenta"}
RESULT = {"ok": "green", "broken": "bold red", "not measured": "dim"}


def text(report: Report, columns: int = 80, colour: bool = False) -> str:
    """Whole lines; only the first may be longer than `columns`, so that it can be cut off with head -1."""
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
    for part in (about, found, alarms, ladder, notes, drifts, not_judged, next_steps):
        for line in part(report):
            console.print(line)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def about(report: Report) -> Iterator[Text]:
    yield words(f"{fleet(report)}; {seconds(report.seconds)} from {report.started}", "dim")
    if report.simulated:
        yield words(f"simulated, no real machine was measured: {report.simulated}", "bold")
    yield words(f"$ {report.command}", "dim")


def found(report: Report) -> Iterator[Text | Table]:
    findings = report.verdict.findings
    if findings:
        yield title("Slower than their siblings")
        table = columns_of(
            ("part", "left"), ("rate", ""), ("siblings", ""), ("unit", "left"), ("%", ""), ("sure", ""),
            ("rung", "left"),
        )  # fmt: skip
        for one in findings[:MOST]:
            unit = one.evidence.unit
            figures = (figure(one.evidence.rate, unit), figure(one.evidence.siblings, unit), unit_name(unit))
            table.add_row(
                words(called(one)), *figures, percent(one.factor), percent(one.confidence), one.rung
            )
        yield table
        yield from left_out(findings)


def called(one: Finding) -> str:
    """The part, when it is slow, and what it cannot be told from."""
    when = f", {percent(one.time)} of the time" if one.time is not None else ""
    return f"{name(one)}{when}" + (f" (or {' or '.join(one.instead)})" if one.instead else "")


def alarms(report: Report) -> Iterator[Text | Padding]:
    raised = report.verdict.alarms
    yield from sentences("Alarms", [f"{one.status}: {one.sentence}" for one in raised])


def ladder(report: Report) -> Iterator[Text | Table]:
    yield title("Ladder")
    table = columns_of(
        ("rung", "left"), ("result", "left"), ("what", "left"), ("rate", ""), ("limit", ""), ("unit", "left"),
        ("%", ""), ("rounds", ""), ("time", ""),
    )  # fmt: skip
    known = limits(report)
    for one in report.verdict.rungs:
        cells: tuple[str | Text, ...] = (one.name, Text(one.result, RESULT[one.result]))
        meter = (str(one.rounds), seconds(one.measured))
        for what, rate in one.rates.items():
            limit = known.get((one.name, what))
            unit = unit_of(what)
            figures = figure(rate, unit), figure(limit.rate if limit else None, unit), unit_name(unit)
            table.add_row(*cells, what, *figures, percent(share(rate, limit)), *meter)
            cells, meter = ("", ""), ("", "")
        if not one.rates and one.result != "not measured":
            table.add_row(*cells, "nothing", "-", "-", "", "-", *meter)
    if table.row_count:
        yield table
    idle = [one for one in report.verdict.rungs if one.result == "not measured"]
    for why, some in groupby(idle, key=lambda one: one.why):
        yield words(f"not measured: {', '.join(one.name for one in some)} ({why})", "dim")
    for sentence in assumptions(report):
        yield words(sentence, "dim")


def notes(report: Report) -> Iterator[Text | Padding]:
    """Counters that speak of no bad part; those that do are alarms."""
    alike: dict[tuple[str, str], list[Change]] = {}
    for one in report.changes:
        if one.weight == "note":
            alike.setdefault((one.rung, one.counter), []).append(one)
    yield from sentences("Counters that changed, no faults", [noted(some) for some in alike.values()])


def noted(some: Sequence[Change]) -> str:
    """One counter in one rung, on however many parts: the one where it changed most."""
    most = max(some, key=by_how_much)
    of = f", the most of {len(some)} parts" if len(some) > 1 else ""
    return f"{most.rung}: {change(most)}{of} ({most.meaning})"


def by_how_much(one: Change) -> float:
    if isinstance(one.before, str) or isinstance(one.after, str):
        return 0.0
    return abs(one.after - one.before)


def drifts(report: Report) -> Iterator[Text | Padding]:
    against = f"Against {report.baseline}"
    yield from sentences(
        against, [*map(drift, report.drifts), *(f"changed: {one}" for one in report.changed)]
    )


def not_judged(report: Report) -> Iterator[Text | Padding]:
    yield from sentences("Not judged", report.verdict.not_judged)


def next_steps(report: Report) -> Iterator[Text | Padding]:
    todo = steps(report)
    if todo:
        yield title("Next")
        for one in todo:
            yield item(f"{one.about}: {one.advice}")
            if one.command:
                yield Padding(words(f"$ {one.command}", "dim"), (0, 0, 0, 2))


def sentences(heading: str, said: Sequence[str]) -> Iterator[Text | Padding]:
    if said:
        yield title(heading)
        for one in said[:MOST]:
            yield item(one)
        yield from left_out(said)


def left_out(items: Sequence[object]) -> Iterator[Text]:
    if rest(items):
        yield words(rest(items), "bold")


def title(said: str) -> Text:
    return Text(f"\n{plain(said)}", "bold")


def item(said: str) -> Padding:
    """A paragraph that hangs behind its dash."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row("-", words(said))
    return Padding(grid, 0)


def words(said: str, style: str = "") -> Text:
    return Text(plain(said), style, overflow="fold")


def columns_of(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading, side in columns:
        wraps = heading == "part"
        table.add_column(
            heading, justify="left" if side else "right", no_wrap=not wraps, overflow="fold", ratio=None
        )
    return table
