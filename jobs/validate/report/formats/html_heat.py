"""Heat maps of GPU pairs and of host pairs: a table with its figures, or a canvas where there are many."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Iterator, Sequence

from jobs.validate.plan import RungName
from jobs.validate.report.formats.html_parts import escape, listed, note, section
from jobs.validate.report.model import Matrix, Report
from jobs.validate.report.wording import gbps, percent, rest

STEPS = (0.95, 0.9, 0.75, 0.5)  # shares of the usual rate at which the colour changes
SLOW = 0.9  # a pair below this share of the usual rate is worth a look
TABLE = 16  # labels up to which a matrix is a table with its figures
DRAWN = 16  # drawings of one kind
TITLES: dict[tuple[RungName, str], str] = {
    ("pairs", "copies"): "GPU pairs, copies",
    ("pairs", "flows"): "GPU pairs, flows",
    ("host pairs", "flows"): "Host pairs",
}


def heat_maps(report: Report) -> str:
    """A section for each rung and operation, the matrix with the slowest pair first."""
    return "\n".join(filter(None, (heat_section(report, *measured) for measured in TITLES)))


def heat_section(report: Report, rung: RungName, what: str) -> str:
    """Matrices with a slow pair are shown (one, where there is none), the others on demand."""
    those = [(at, one) for at, one in enumerate(report.matrices) if (one.rung, one.what) == (rung, what)]
    found = [(slowest_of(one), at, one) for at, one in those]
    found = sorted((one for one in found if one[0] < math.inf), key=lambda one: one[:2])
    if not found:
        return ""
    usual = statistics.median(rate for *_, matrix in found for *_, rate in cells(matrix))
    slow = max(sum(least < SLOW * usual for least, *_ in found), 1)
    maps = [heat_map(at, matrix, usual) for _, at, matrix in found[:DRAWN]]
    good = f"{len(maps[slow:])} more, no pair below {percent(SLOW)}"
    return section(
        TITLES[rung, what],
        note(f"From each row to each column, GB/s. Colours: share of the median of all, {gbps(usual)} GB/s."),
        legend(),
        grid(maps[:slow]),
        f"<details><summary>{good}</summary>{grid(maps[slow:])}</details>" if maps[slow:] else "",
        note(rest(found, DRAWN)),
    )


def slowest_of(matrix: Matrix) -> float:
    return min((rate for *_, rate in cells(matrix)), default=math.inf)


def grid(maps: Sequence[str]) -> str:
    return f'<div class="maps">{"".join(maps)}</div>'


def heat_map(at: int, matrix: Matrix, usual: float) -> str:
    """at: which one of the report's it is."""
    return heat_table(matrix, usual) if len(matrix.labels) <= TABLE else heat_canvas(at, matrix, usual)


def cells(matrix: Matrix) -> Iterator[tuple[int, int, float]]:
    for row, rates in enumerate(matrix.rates):
        for column, rate in enumerate(rates):
            if rate is not None and math.isfinite(rate):
                yield row, column, rate


def legend() -> str:
    bounds = [f"{percent(STEPS[0])} or more", *(f"{percent(low)} or more" for low in STEPS[1:])]
    steps = [*bounds, f"less than {percent(STEPS[-1])}"]
    items = "".join(f'<li class="h{step}">{said}</li>' for step, said in enumerate(steps))
    return f'<ul class="legend" aria-label="Colours">{items}<li class="hn">- not measured</li></ul>'


def step(rate: float, usual: float) -> int:
    return next((number for number, least in enumerate(STEPS) if rate >= least * usual), len(STEPS))


def heat_table(matrix: Matrix, usual: float) -> str:
    labels = [escape(label) for label in matrix.labels]
    head = "".join(f'<th scope="col">{label}</th>' for label in labels)
    body = ""
    for label, rates in zip(matrix.labels, matrix.rates, strict=True):
        row = (heat_cell(label, other, rate, usual) for other, rate in zip(matrix.labels, rates, strict=True))
        body += f'<tr><th scope="row">{escape(label)}</th>{"".join(row)}</tr>\n'
    return (
        f'<figure><div class="box" tabindex="0"><table class="heat"><caption>{escape(matrix.title)}</caption>'
        f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div></figure>\n"
    )


def heat_cell(label: str, other: str, rate: float | None, usual: float) -> str:
    if rate is None or not math.isfinite(rate):
        return '<td class="hn">-</td>'
    told = f"{label} to {other}: {gbps(rate)} GB/s, {percent(rate / usual)}"
    return f'<td class="h{step(rate, usual)}" title="{escape(told)}">{gbps(rate)}</td>'


def heat_canvas(at: int, matrix: Matrix, usual: float) -> str:
    """Drawn by the page's script from the report in it; the slowest pairs in words for who sees no canvas."""
    count = len(matrix.labels)
    slowest = heapq.nsmallest(5, cells(matrix), key=lambda cell: cell[2])
    said = [
        f"{matrix.labels[a]} to {matrix.labels[b]}: {gbps(rate)} GB/s, {percent(rate / usual)}"
        for a, b, rate in slowest
    ]
    title, steps = escape(matrix.title), " ".join(map(str, STEPS))
    seen = f"{title}: {count} by {count}, the slowest are listed below"
    return (
        f'<figure data-matrix="{at}" data-usual="{usual!r}" data-steps="{steps}">'
        f'<figcaption>{title}</figcaption><canvas role="img" aria-label="{seen}"></canvas>'
        f"<output>point at a pair</output>{note('Slowest:')}{listed(map(escape, said))}</figure>\n"
    )
