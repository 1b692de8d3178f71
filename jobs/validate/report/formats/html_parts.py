"""The sections of the page in words and tables. Each is "" where there is nothing to tell."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from jobs.validate.report.model import Report
from jobs.validate.report.remedies import steps
from jobs.validate.report.wording import (
    MOST,
    assumptions,
    drift,
    figure,
    limits,
    name,
    number,
    percent,
    plain,
    rest,
    seconds,
    share,
    unit_name,
)
from jobs.validate.verdict import Finding, unit_of

MEMBERS = 64  # ranks that are listed


def escape(text: object) -> str:
    """As HTML; a number stays with its unit."""
    return (
        html.escape(plain(str(text)))
        .replace(" %", "&nbsp;%")
        .replace(" GB/s", "&nbsp;GB/s")
        .replace(" TFLOP/s", "&nbsp;TFLOP/s")
    )


def section(title: str, *inside: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(filter(None, inside)) + "\n</section>"


def listed(said: Iterable[str]) -> str:
    """said: HTML."""
    items = list(said)
    shown = "".join(f"<li>{one}</li>\n" for one in items[:MOST])
    return f"<ul>\n{shown}</ul>{note(rest(items))}"


def note(said: str) -> str:
    return f'<p class="note">{escape(said)}</p>' if said else ""


def table(
    caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> str:
    """In a box of its own that scrolls. rows: of HTML; cells of the titles in `numbers` to the right."""
    classes = [' class="number"' if title in numbers else "" for title in titles]
    head = "".join(
        f'<th scope="col"{kind}>{escape(title)}</th>' for title, kind in zip(titles, classes, strict=True)
    )
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td{kind}>{one}</td>" for one, kind in zip(others, classes[1:], strict=True))
        body += f'<tr><th scope="row">{first}</th>{cells}</tr>\n'
    return (
        f'<div class="box" tabindex="0"><table><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def meter(part: float | None) -> str:
    wide = 0.0 if part is None else 100 * min(max(part, 0.0), 1.0)
    return f'<span class="meter" aria-hidden="true"><span style="width:{wide:.1f}%"></span></span>'


def findings(report: Report) -> str:
    found = report.verdict.findings
    if not found:
        return ""
    cards = "".join(f"<li>{card(one)}</li>\n" for one in found[:MOST])
    return section("Slower than their siblings", f'<ul class="findings">\n{cards}</ul>', note(rest(found)))


def card(one: Finding) -> str:
    e = one.evidence
    told = [
        f"{figure(e.rate, e.unit)} of {figure(e.siblings, e.unit)} {unit_name(e.unit)} ({escape(e.what)})",
        f"rung {one.rung}",
        f"sure to {percent(one.confidence)}",
        f"{e.measurements} measurements",
    ]
    if e.partners:
        shown = ", ".join(e.partners[:8]) + (", ..." if len(e.partners) > 8 else "")
        told.append(f"measured again with {escape(shown)}")
    when = f" for {percent(one.time)} of the time" if one.time is not None else ""
    instead = f"cannot be told from {' or '.join(one.instead)}" if one.instead else ""
    share_left = f'<span class="percent">{escape(percent(one.factor) + when)}</span>'
    return (
        f'<div class="row"><h3>{escape(name(one))}</h3>{share_left}</div>'
        f"{meter(one.factor)}<p>{' · '.join(told)}</p>{note(instead)}"
    )


def alarms(report: Report) -> str:
    raised = report.verdict.alarms
    if not raised:
        return ""
    return section(
        "Alarms",
        listed(f'<b class="result {one.status}">{one.status}</b> {escape(one.sentence)}' for one in raised),
    )


def next_steps(report: Report) -> str:
    todo = steps(report)
    if not todo:
        return ""
    return section(
        "What to do next",
        listed(
            f"<b>{escape(one.about)}</b>: {escape(one.advice)}"
            + (f"<br><code>{escape(one.command)}</code>" if one.command else "")
            for one in todo
        ),
    )


def ladder(report: Report) -> str:
    known, rows = limits(report), []
    for one in report.verdict.rungs:
        state = {"ok": "ok", "broken": "broken"}.get(one.result, "")
        result = f'<span class="result {state}">{one.result}</span>'
        if not one.rates:
            rows.append((one.name, result, escape(one.why), *[""] * 7))
        for what, rate in one.rates.items():
            limit = known.get((one.name, what))
            unit, part = unit_of(what), share(rate, limit)
            figures = figure(rate, unit), figure(limit.rate if limit else None, unit), unit_name(unit)
            bar = meter(part) if part is not None else ""
            cells = (one.name, result, escape(what), *figures, percent(part), bar)
            rows.append((*cells, str(one.rounds), seconds(one.measured)))
    titles = ("rung", "result", "what", "rate", "limit", "unit", "of it", "", "rounds", "time")
    shown = table(
        "Medians of the siblings", titles, rows,
        ("rate", "limit", "of it", "rounds", "time"),
    )  # fmt: skip
    assumed = assumptions(report)
    if not assumed:
        return section("Ladder", shown)
    inside = f"<details><summary>What the limits assume</summary>{listed(map(escape, assumed))}</details>"
    return section("Ladder", shown, inside)


def counters(report: Report) -> str:
    if not report.changes:
        return ""
    worst = sorted(report.changes, key=lambda one: one.weight != "fault")
    rows = []
    for one in worst[:MOST]:
        weight = f'<b class="result {"critical" if one.weight == "fault" else ""}">{one.weight}</b>'
        values = escape(number(one.before)), escape(number(one.after))
        where = escape(f"{one.host}, {one.part}")
        rows.append((where, escape(one.counter), *values, one.rung, f"{weight} {escape(one.meaning)}"))
    titles = ("part", "counter", "before", "after", "rung", "meaning")
    shown = table(
        "Counters and states that changed while a rung was measured", titles, rows, ("before", "after")
    )
    return section("Counters", shown, note(rest(worst)))


def drifts(report: Report) -> str:
    said = [*map(drift, report.drifts), *(f"changed: {one}" for one in report.changed)]
    return section(f"Against {report.baseline}", listed(map(escape, said))) if said else ""


def not_judged(report: Report) -> str:
    said = report.verdict.not_judged
    return section("Not judged", listed(map(escape, said))) if said else ""


def environment(report: Report) -> str:
    settings = [(escape(key), escape(value)) for key, value in report.environment.items()]
    ranks = [
        (
            str(one.rank),
            escape(one.host),
            str(one.gpu),
            escape(one.device),
            escape(one.bus_id),
            escape(one.uuid),
        )
        for one in report.members[:MEMBERS]
    ]
    who = table("Ranks", ("rank", "host", "GPU", "device", "bus", "UUID"), ranks)
    return section(
        "Environment",
        table("Versions and settings", ("name", "value"), settings) if settings else "",
        f"<details><summary>Ranks</summary>{who}{note(rest(report.members, MEMBERS))}</details>",
    )
