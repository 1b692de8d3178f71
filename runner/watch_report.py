"""What is stuck, and where every rank is, as a few lines: pure functions over what the ranks answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

BEFORE, INSIDE, DONE = range(3)  # stages of one measurement, in their order

NAMED = 3  # up to so many ranks of a group go by their full names, more as ranges of numbers
RANGES = 12  # at most so many ranges in a line
GROUPS = 4  # at most so many groups of ranks under one heading


class State(NamedTuple):
    """Where a rank is.

    sequence: number of the measurement, the same on every rank. stage: BEFORE, INSIDE or DONE.
    iteration: the last one entered, counted from 1; 0 unless INSIDE. label: operation, size, placement.
    doing: for people, what the rank does outside an iteration. The first three compare as progress.
    """

    sequence: int
    stage: int
    iteration: int
    label: str
    doing: str


def compose(
    names: Sequence[str], states: Mapping[int, State | None], silent: Mapping[int, str], seconds: float
) -> str:
    """The report, at most 21 lines.

    names: of all ranks. states: of those that answered; None for one that measures nothing.
    silent: why the others did not answer. seconds: without progress.

    Stuck is the furthest iteration that some rank has entered and not left. Where nobody is in
    any, it is the furthest measurement that a rank prepares.
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


def compose_alone(name: str, state: State | None, seconds: float) -> str:
    """The line of a rank that waits for rank 0's order in vain."""
    if state is None:
        return f"stuck: [{name}] was asked for its place by rank 0, which has fallen silent: frozen or gone"
    return (
        f"{_headline(state, seconds)}; [{name}] {_own_place(state)}; rank 0 does not answer: frozen or gone"
    )


def _headline(subject: State | None, seconds: float) -> str:
    if subject is None:
        return f"stuck: no rank can say where it is, {seconds:g} s after the last progress"
    place = f", iteration {subject.iteration}" if subject.stage == INSIDE else ""
    return f"stuck: {subject.label}{place}: no progress for {seconds:g} s"


def _own_place(state: State) -> str:
    if state.stage == INSIDE:
        return "had entered it and not finished"
    return f"had {'finished' if state.stage == DONE else 'not entered'} it" + _aside(state)


def _where(state: State, subject: State) -> str:
    if state.stage == INSIDE:
        place = f"in iteration {state.iteration}"
    elif state.stage == BEFORE:
        place = state.doing or "before the first iteration"
    else:
        place = "all iterations done" + _aside(state)
    return place if state.sequence == subject.sequence else f"{place} of {state.label}"


def _aside(state: State) -> str:
    return f", {state.doing}" if state.doing else ""


def _section(heading: str, places: Mapping[int, str], names: Sequence[str]) -> list[str]:
    """A line for each place; the largest group, which is rarely the culprit, last."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(places):
        groups.setdefault(places[rank], []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: len(group[1]))
    shown, rest = ordered, [rank for _, ranks in ordered[GROUPS - 1 :] for rank in ranks]
    if len(ordered) > GROUPS:
        shown = [*ordered[: GROUPS - 1], ("at other points", sorted(rest))]
    return [f"  {heading}: {_who(ranks, names)}" + (f" ({place})" if place else "") for place, ranks in shown]


def _who(ranks: Sequence[int], names: Sequence[str]) -> str:
    if len(ranks) <= NAMED:
        return "; ".join(names[rank] for rank in ranks)
    return f"ranks {ranges(ranks)} ({len(ranks)} of {len(names)})"


def ranges(ranks: Iterable[int]) -> str:
    """Ascending numbers in short, such as "0-2, 5"; after RANGES of them, an ellipsis."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    texts = ["-".join(map(str, run)) for run in runs[:RANGES]]
    return ", ".join(texts + ["..."] * (len(runs) > RANGES))
