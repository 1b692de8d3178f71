"""From suspects to findings: who explains the slow measurements is measured again before anything is said of
it.

A first look names suspects; they are asked again, alone and with partners that are known to be good; the same
search over the sharper table confirms, acquits, or names others. A few turns of this, then only what was
confirmed counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from jobs.validate.cover import Cover, Kind, Mask, Name, Suspect
from jobs.validate.fleet import Fleet
from jobs.validate.plan import Plan
from jobs.validate.table import Table

FEW = 2  # rows: the two directions of a pair that met once


class Scope(Protocol):
    """One rung's way to measure, and the parts that its measurements go through."""

    fleet: Fleet

    def first(self) -> Table: ...

    def kinds(self, table: Table) -> list[Kind]: ...

    def again(self, suspects: Sequence[Name]) -> Table:
        """Everything asked so far and these suspects, measured again."""

    def known(self, table: Table) -> Iterable[tuple[Mask, float]]:
        """Rows that a finding of an earlier rung explains, and its effect."""

    def flapping(self, cover: Cover) -> Suspect | None:
        """A part that is slow for some of the time, among what is open."""


@dataclass(frozen=True, eq=False)
class Confirmed:
    """A part that was slow, and slow again. rows: of the table, its evidence. ties: what it cannot be told
    from.
    """

    name: Name
    effect: float
    rows: Mask
    ties: tuple[Name, ...] = ()
    flaps: float | None = None  # share of the time


@dataclass
class Answer:
    table: Table
    confirmed: list[Confirmed]
    asked: list[Name] = field(default_factory=list)
    open: list[Name] = field(default_factory=list)  # suspects that there was no turn left to ask


def inquire(scope: Scope, plan: Plan, combine: Callable[[Table, Table], Table] = Table.then) -> Answer:
    first = scope.first()
    table, asked = first, set[Name]()
    for turn in range(plan.passes + 1):
        confirmed, queue = explain(scope, table, asked, plan)
        if not queue or turn == plan.passes:
            break
        most = 4 * max(plan.suspects, scope.fleet.hosts)
        asked |= set(queue[:most])
        table = combine(first, scope.again(queue[:most]))
    return Answer(table, confirmed, sorted(asked), queue)


def explain(scope: Scope, table: Table, asked: set[Name], plan: Plan) -> tuple[list[Confirmed], list[Name]]:
    """What is confirmed, and who is to be asked next."""
    cover = Cover(table, scope.kinds(table), plan.share)
    for rows, effect in scope.known(table):
        cover.explain(rows, effect)
    confirmed: list[Confirmed] = []
    queue: list[Name] = []
    steady = False  # nothing (more) flaps
    while len(queue) < 4 * max(plan.suspects, scope.fleet.hosts):
        suspect = cover.strongest()
        small = suspect is None or (cover.slow & cover.open & suspect.rows).sum() <= FEW
        # One pair may be slow by chance, or because one of the two is slow now and then: that is asked first.
        if small and not steady:
            flapping = scope.flapping(cover)
            suspect, steady = flapping or suspect, flapping is None
        if suspect is None:
            break
        if suspect.name not in asked:
            new, rows = [suspect.name], suspect.rows
            if steady and small:
                peers, rows = cover.peers(suspect.kind, int((cover.slow & cover.open & suspect.rows).sum()))
                new = [name for name in peers if name not in asked] or new
                rows = rows & cover.slow
            if suspect.kind == "flap":  # of two that only met each other, either may be the one
                new += [name for name in suspect.ties if name not in asked]
            queue += new
            cover.out |= set(new)
            cover.explain(rows, suspect.effect if len(new) == 1 else np.inf)
        elif (found := judged(suspect, cover, plan)) is not None:
            queue += [name for name in suspect.ties if name not in asked and name not in queue]
            confirmed.append(found)
            cover.out.add(suspect.name)
            cover.explain(suspect.rows, suspect.effect if found.flaps is None else np.inf, 1.5)
        else:
            # Acquitted: what it was suspected for did not come again. What did is for others to explain.
            cover.out.add(suspect.name)
            if suspect.kind != "flap":
                cover.close(suspect.rows & ~table.again & (table.level <= suspect.effect + table.threshold))
    return confirmed, queue


def judged(suspect: Suspect, cover: Cover, plan: Plan) -> Confirmed | None:
    """Confirmed by what was measured again, or None."""
    table = cover.table
    again = suspect.rows & table.again & cover.open
    if not again.any():
        return None
    if suspect.kind == "flap":
        return flaps(suspect, again, table, plan)
    late = again & cover.slow
    # What another part explains speaks neither for nor against, unless it was faster than this one allows.
    faster = suspect.rows & table.again & ~cover.open & (table.level < suspect.effect - table.threshold)
    if late.sum() < plan.share * (again | faster).sum():
        return None
    effect = float(np.median(table.level[late]))
    return Confirmed(suspect.name, effect, again, suspect.ties)


def flaps(suspect: Suspect, again: Mask, table: Table, plan: Plan) -> Confirmed | None:
    """Slow for a part of the time and with several partners, where others nearly never are."""
    share = table.slow[again].sum() / table.count[again].sum()
    others = table.again & ~suspect.rows
    usual = table.slow[others].sum() / max(table.count[others].sum(), 1)
    late = again & (table.slow > 0.25 * table.count)
    partners = {*table.a[late].tolist(), *table.b[late].tolist()}
    if not min(usual, 0.1) + 0.08 < share < 0.95 or len(partners) < 3 or late.sum() < 2:
        return None
    effect = float(np.median(table.slow_level[late]))
    return Confirmed(suspect.name, effect, again, flaps=float(share))
