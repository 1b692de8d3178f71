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

from jobs.measure.outliers import is_intermittent, is_late, mostly_slow
from jobs.validate.localize.observations import Table
from jobs.validate.localize.set_cover import Cover, Kind, Mask, Name, Suspect
from jobs.validate.plan import Plan
from jobs.validate.topology import Fleet

FEW = 2  # rows: the two directions of a pair that met once
HIDDEN = 0.95  # of what is critical: where noise may hide what is slower, and none is found, a longer look


class Scope(Protocol):
    """One rung's way to measure, and the parts that its measurements go through."""

    fleet: Fleet

    def first(self, longer: bool = False) -> Table:
        """Everything. longer: with many samples."""

    def kinds(self, table: Table) -> list[Kind]: ...

    def again(self, suspects: Sequence[Name]) -> Table:
        """Everything asked so far and these suspects, measured again."""

    def known(self, table: Table) -> Iterable[tuple[Mask, float]]:
        """Rows that a finding of an earlier rung explains, and its effect."""

    def flapping(self, cover: Cover) -> Suspect | None:
        """A part that is slow for some of the time, among what is open."""
        return None

    def located(self, found: Confirmed) -> Confirmed | None:
        """Which part of it is slow; None: no part is, so it is acquitted."""
        return found


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
    ranks: tuple[int, ...] | None = None  # where they are not all that the name stands for


@dataclass
class Answer:
    table: Table
    confirmed: list[Confirmed]
    asked: list[Name] = field(default_factory=list)
    open: list[Name] = field(default_factory=list)  # suspects that there was no turn left to ask


def inquire(scope: Scope, plan: Plan, combine: Callable[[Table, Table], Table] = Table.then) -> Answer:
    answer = answered(scope, plan, combine, scope.first())
    if not answer.confirmed and answer.table.seen < HIDDEN * plan.critical:
        answer = answered(scope, plan, combine, scope.first(longer=True))
    return answer


def answered(scope: Scope, plan: Plan, combine: Callable[[Table, Table], Table], first: Table) -> Answer:
    table, asked = first, set[Name]()
    for turn in range(plan.passes + 1):
        search = Search(scope, table, asked, plan)
        search.run()
        if not search.queue or turn == plan.passes:
            break
        new = search.queue[: search.most]
        asked |= set(new)
        table = combine(first, scope.again(new))
    found = [part for one in search.confirmed if (part := scope.located(one)) is not None]
    return Answer(table, found, sorted(asked), search.queue)


class Search:
    """One turn: suspect after suspect is confirmed, acquitted, or put in the queue of those to be asked."""

    def __init__(self, scope: Scope, table: Table, asked: set[Name], plan: Plan) -> None:
        self.scope, self.asked, self.plan = scope, asked, plan
        self.cover = Cover(table, scope.kinds(table), plan.share)
        for rows, effect in scope.known(table):
            self.cover.explain(rows, effect)
        self.confirmed: list[Confirmed] = []
        self.queue: list[Name] = []
        self.steady = False  # nothing (more) flaps
        self.most = 4 * max(plan.suspects, scope.fleet.hosts)  # to ask in one turn

    def run(self) -> None:
        while len(self.queue) < self.most and (suspect := self.next()) is not None:
            asked = suspect.name in self.asked
            found = judged(suspect, self.cover, self.plan)
            if asked and found is not None:
                self.confirm(suspect, found)
            elif asked or (found is None and self.answered(suspect)):
                self.acquit(suspect)
            else:
                self.ask(suspect)

    def next(self) -> Suspect | None:
        """Who explains the most. One pair may be slow by chance, or because one of the two is slow now and
        then: before a small suspect comes what flaps.
        """
        suspect = self.cover.strongest()
        if not self.steady and (suspect is None or self.slow(suspect) <= FEW):
            flapping = self.scope.flapping(self.cover)
            suspect, self.steady = flapping or suspect, flapping is None
        return suspect

    def answered(self, suspect: Suspect) -> bool:
        """Whether all that speaks for it was measured again, for another's sake."""
        table = self.cover.table
        late = table.slow > 0 if suspect.kind == "flap" else self.cover.slow
        return not (late & self.cover.open & suspect.rows & ~table.again).any()

    def slow(self, suspect: Suspect) -> int:
        """How many open rows are slow of those that it would explain."""
        return int((self.cover.slow & self.cover.open & suspect.rows).sum())

    def ask(self, suspect: Suspect) -> None:
        """Put it in the queue; of small ones all that are alike at once."""
        new, rows = [suspect.name], suspect.rows
        if suspect.kind == "flap":  # of two that only met each other, either may be the one
            new += self.unasked(suspect.ties)
        elif self.steady and (slow := self.slow(suspect)) <= FEW:
            peers, rows = self.cover.peers(suspect.kind, slow)
            new, rows = self.unasked(peers) or new, rows & self.cover.slow
        self.queue += new
        self.cover.out |= set(new)
        self.cover.explain(rows, suspect.effect if len(new) == 1 else np.inf)

    def unasked(self, names: Iterable[Name]) -> list[Name]:
        return [name for name in names if name not in self.asked]

    def confirm(self, suspect: Suspect, found: Confirmed) -> None:
        """Name it, ask those that it cannot be told from, and go on without what it explains."""
        self.queue += [name for name in self.unasked(suspect.ties) if name not in self.queue]
        self.confirmed.append(found)
        self.cover.out.add(suspect.name)
        self.cover.explain(suspect.rows, suspect.effect if found.flaps is None else np.inf, 1.5)

    def acquit(self, suspect: Suspect) -> None:
        """What it was suspected for did not come again. What did is for others to explain."""
        table = self.cover.table
        self.cover.out.add(suspect.name)
        if suspect.kind != "flap":
            gone = ~table.again & (table.level <= suspect.effect + table.threshold)
            self.cover.close(suspect.rows & gone)


def judged(suspect: Suspect, cover: Cover, plan: Plan) -> Confirmed | None:
    """Confirmed by what was measured again, or None."""
    table = cover.table
    asked = suspect.rows & table.again
    again = asked & cover.open
    if not again.any():
        return None
    if suspect.kind == "flap":
        # What another part explains most of is no part of its own.
        return flaps(suspect, again, table, plan) if 2 * again.sum() > asked.sum() else None
    late = again & cover.slow
    # What another part explains speaks neither for nor against, unless it was faster than this one allows.
    faster = asked & ~cover.open & (table.level < suspect.effect - table.threshold)
    if not mostly_slow(late.sum(), (again | faster).sum(), plan.share):
        return None
    effect = float(np.median(table.level[late]))
    return Confirmed(suspect.name, effect, again, suspect.ties)


def flaps(suspect: Suspect, again: Mask, table: Table, plan: Plan) -> Confirmed | None:
    """Slow for a part of the time and with several partners, where others nearly never are."""
    share = table.slow[again].sum() / table.count[again].sum()
    asked = np.flatnonzero(table.again)
    others = asked[~suspect.rows[asked]]
    usual = table.slow[others].sum() / max(table.count[others].sum(), 1)
    late = np.flatnonzero(again)
    late = late[is_late(table.slow[late], table.count[late])]
    partners = {*table.a[late].tolist(), *table.b[late].tolist()}
    if not is_intermittent(share, usual, len(partners), len(late)):
        return None
    effect = float(np.median(table.slow_level[late]))
    return Confirmed(suspect.name, effect, again, flaps=float(share))
