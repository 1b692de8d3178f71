"""The report on a stuck run: the stuck operation and every rank's position. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from meshrun.runner.report.units import ranges_of

BEFORE, INSIDE, DONE = range(3)  # stages of one measurement, in their order

MAX_NAMES = 3  # ranks of a group that are listed by full name; more are listed as ranges of numbers
MAX_RANGES = 12  # in a line
MAX_GROUPS = 4  # of ranks under one heading


class Position(NamedTuple):
    """A rank's position.

    sequence: number of the measurement, the same on every rank. stage: BEFORE, INSIDE or DONE.
    iteration: the last one entered, counted from 1; 0 unless INSIDE. label: operation, size, placement.
    doing: what the rank does outside an iteration, for the report. Positions compare by the first three.
    """

    sequence: int
    stage: int
    iteration: int
    label: str
    doing: str


def format_report(
    names: Sequence[str], states: Mapping[int, Position | None], silent: Mapping[int, str], seconds: float
) -> str:
    """The report, at most 21 lines.

    names: of all ranks. states: positions of those that answered; None for a rank that measures nothing.
    silent: why the others did not answer. seconds: without progress.

    The run is stuck in the last iteration that any rank has entered but not finished. If no rank is in an
    iteration, it is stuck at the last measurement that any rank prepares.
    """
    placed = {rank: state for rank, state in states.items() if state is not None}
    inside = [state for state in placed.values() if state.stage == INSIDE]
    subject = max(inside or placed.values(), default=None)
    lines = [_headline(subject, seconds)]
    if subject is not None:
        point = (subject.sequence, INSIDE, subject.iteration if inside else 0)
        behind = {rank: _where(s, subject) for rank, s in placed.items() if s[:3] < point}
        at = {rank: "" for rank, s in placed.items() if s[:3] == point}
        ahead = {rank: _where(s, subject) for rank, s in placed.items() if s[:3] > point}
        lines += _section("not entered", behind, names)
        lines += _section("entered, not finished", at, names)
        lines += _section("finished", ahead, names)
    idle = {rank: "" for rank, state in states.items() if state is None}
    lines += _section("measuring nothing", idle, names)
    lines += _section("no answer", silent, names)
    return "\n".join(lines)


def format_own_report(name: str, state: Position | None, seconds: float) -> str:
    """The line of a rank that has received no order from rank 0."""
    if state is None:
        return f"stuck: rank 0 requested the position of [{name}] and no longer answers: frozen or gone"
    return (
        f"{_headline(state, seconds)}; [{name}] {_own_place(state)}; rank 0 does not answer: frozen or gone"
    )


def _headline(subject: Position | None, seconds: float) -> str:
    if subject is None:
        return f"stuck: no rank reports its position, {seconds:g} s after the last progress"
    place = f", iteration {subject.iteration}" if subject.stage == INSIDE else ""
    return f"stuck: {subject.label}{place}: no progress for {seconds:g} s"


def _own_place(state: Position) -> str:
    if state.stage == INSIDE:
        return "had entered it and not finished"
    return f"had {'finished' if state.stage == DONE else 'not entered'} it" + _aside(state)


def _where(state: Position, subject: Position) -> str:
    if state.stage == INSIDE:
        place = f"in iteration {state.iteration}"
    elif state.stage == BEFORE:
        place = state.doing or "before the first iteration"
    else:
        place = "all iterations done" + _aside(state)
    return place if state.sequence == subject.sequence else f"{place} of {state.label}"


def _aside(state: Position) -> str:
    return f", {state.doing}" if state.doing else ""


def _section(heading: str, places: Mapping[int, str], names: Sequence[str]) -> list[str]:
    """A line for each place, the largest group last, because it is rarely the cause."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(places):
        groups.setdefault(places[rank], []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: len(group[1]))
    shown, rest = ordered, [rank for _, ranks in ordered[MAX_GROUPS - 1 :] for rank in ranks]
    if len(ordered) > MAX_GROUPS:
        shown = [*ordered[: MAX_GROUPS - 1], ("at other points", sorted(rest))]
    return [f"  {heading}: {_who(ranks, names)}" + (f" ({place})" if place else "") for place, ranks in shown]


def _who(ranks: Sequence[int], names: Sequence[str]) -> str:
    if len(ranks) <= MAX_NAMES:
        return "; ".join(names[rank] for rank in ranks)
    return f"ranks {ranges(ranks)} ({len(ranks)} of {len(names)})"


def ranges(ranks: Iterable[int]) -> str:
    """Ascending numbers as ranges, such as "0-2, 5"; an ellipsis after MAX_RANGES of them."""
    texts = ranges_of(ranks)
    return ", ".join(texts[:MAX_RANGES] + ["..."] * (len(texts) > MAX_RANGES))


def ranks_text(numbers: Sequence[int]) -> str:
    """Ascending numbers such as "rank 3" or "ranks 0-3, 8"."""
    return f"rank{'s' * (len(numbers) > 1)} {ranges(numbers)}"
