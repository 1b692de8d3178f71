"""Find the part that explains the slow measurements: the one that most of them have in common.

A path is as fast as its slowest part, so a slow part slows (nearly) every measurement through it, and a fast
measurement clears every part on its path. The search is a greedy set cover (Johnson 1974; in network
tomography: the smallest consistent failure set, Duffield 2006): take the part that explains the most slow
measurements while nearly all of its open ones are slow; its effect is their median; close what it explains;
repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.jobs.measure.outliers import MEDIAN_ERROR, MILD_MEASUREMENTS, mostly_slow
from meshrun.jobs.validate.localize.observations import Observations
from meshrun.jobs.validate.topology import Ints

PartName = tuple[str, int]  # kind, key
Mask = np.ndarray[Any, np.dtype[np.bool_]]


# Kinds of which there are so many that a few are slow in most looks, or somewhat slow for good, by chance.
OF_MANY = ("path",)


@dataclass(frozen=True, eq=False)
class PartKind:
    """A kind of part. labels: (rows,) int64 arrays, the one or two parts on each row's path, -1 for none.

    keys: the parts' keys, by label.
    """

    name: str
    labels: tuple[Ints, ...]
    keys: Ints


def part_kind(name: str, *keys: Ints) -> PartKind:
    """Return a kind with arbitrary integer keys (negative: none), labelled 0, 1, ..."""
    known, labels = np.unique(np.concatenate(keys), return_inverse=True)
    none = int(np.searchsorted(known, 0))
    split = np.split(np.maximum(labels.reshape(-1) - none, -1).astype(np.int64), len(keys))
    return PartKind(name, tuple(split), known[none:])


def numbered_kind(name: str, count: int, *labels: Ints) -> PartKind:
    """Return a kind whose keys are the numbers below `count`."""
    return PartKind(name, labels, np.arange(count))


def rows_through(kinds: Sequence[PartKind], name: PartName) -> Mask:
    """Return a mask of the rows through a part; its key must be one of its kind's."""
    known = next(known for known in kinds if known.name == name[0])
    label = int(np.searchsorted(known.keys, name[1]))
    return np.asarray(np.logical_or.reduce([labels == label for labels in known.labels]))


@dataclass(frozen=True, eq=False)
class Suspect:
    """A part that would explain `rows`. effect: log(its time / siblings' time).

    ties: other parts that explain as much.
    """

    kind: str
    key: int
    rows: Mask
    effect: float
    ties: tuple[PartName, ...] = ()

    @property
    def name(self) -> PartName:
        return self.kind, self.key


class Cover:
    """The rows still to be explained (`open`). kinds: in order of preference among equal explanations.

    share: of a part's open rows that must be slow. tolerance: as in the plan. excluded: parts that
    `strongest` does not return.
    """

    def __init__(
        self, table: Observations, kinds: Sequence[PartKind], share: float, tolerance: float
    ) -> None:
        self.table, self.kinds, self.share, self.tolerance = table, kinds, share, tolerance
        self.open = np.ones(len(table), bool)
        self.explained = np.zeros(len(table))  # level up to which each row is
        self.slow = table.level > table.threshold
        # Between a healthy level and a slow one: evidence neither for nor against a part.
        self.unclear = ~self.slow & (table.level > table.threshold / 2)
        self.through = [self.count(kind, np.arange(len(table))) for kind in kinds]  # open rows of each part
        self.late = [self.count(kind, np.flatnonzero(self.slow)) for kind in kinds]  # and slow ones
        self.doubt = [self.count(kind, np.flatnonzero(self.unclear)) for kind in kinds]  # and unclear ones
        # Beyond the tolerance, and beyond half of it: many such rows show a part that noise hides in each.
        self.beyond, self.half_beyond = table.level > tolerance, table.level > tolerance / 2
        self.some = [self.count(kind, np.flatnonzero(self.beyond)) for kind in kinds]
        self.most = [self.count(kind, np.flatnonzero(self.half_beyond)) for kind in kinds]
        self.excluded: set[PartName] = set()

    def count(self, kind: PartKind, rows: Ints) -> Ints:
        """Count the rows through each part."""
        found = np.zeros(len(kind.keys), np.int64)
        for labels in kind.labels:
            through = labels[rows]
            found += np.bincount(through[through >= 0], minlength=len(kind.keys))
        return found

    def strongest(self) -> Suspect | None:
        """Return the part that explains the most slow rows, or None."""
        while (found := self.most_explaining()) is not None and self.refuted(found):
            self.excluded.add(found.name)
        return found

    def refuted(self, suspect: Suspect) -> bool:
        """Return whether rows that another part explains were faster than this part would allow."""
        rows = suspect.rows & ~self.open
        faster = rows & (self.table.level < suspect.effect - self.table.threshold)
        slow = int((suspect.rows & self.open & self.slow).sum())
        return bool(slow < self.share * (slow + faster.sum()))

    def most_explaining(self) -> Suspect | None:
        """Return the part with the most slow rows, if nearly all of its open ones are slow, or None."""
        best, most = ("", -1), 0
        for kind, through, late, doubt in zip(self.kinds, self.through, self.late, self.doubt, strict=True):
            slow = np.where(mostly_slow(late, through, doubt, self.share) & (late > most), late, 0)
            slow[self.excluded_labels(kind)] = 0
            # Of equals, the first kind.
            if len(slow) and slow.max() > most:
                label = int(slow.argmax())
                best, most = (kind.name, int(kind.keys[label])), int(slow[label])
        if not most:
            return None
        rows = rows_through(self.kinds, best)
        late = np.flatnonzero(rows & self.open & self.slow)
        effect = self.effect(best, late)
        return Suspect(*best, rows, effect, tuple(self.ties(best, effect, late)))

    def effect(self, name: PartName, late: Ints) -> float:
        """Return the level that a part explains, of its slow rows.

        If one direction is clearly slower than the other, another part slows it too: the level of the other.
        """
        level, known = self.table.level, next(known for known in self.kinds if known.name == name[0])
        label = int(np.searchsorted(known.keys, name[1]))
        sides = [level[late[labels[late] == label]] for labels in known.labels]
        medians = [float(np.median(side)) for side in sides if len(side)]
        apart = len(medians) == 2 and np.ptp(medians) > 1.5 * float(np.median(self.table.threshold[late]))
        return min(medians) if apart else float(np.median(level[late]))

    def mildest(self) -> Suspect | None:
        """Return the part with the most rows beyond the tolerance, if they are slow together (`is_mild`)."""
        best, found = ("", -1), 0
        for kind, through, some, most in zip(self.kinds, self.through, self.some, self.most, strict=True):
            mild = (
                (through >= MILD_MEASUREMENTS)
                & (2 * some > through)
                & (most >= self.share * through)
                & (some > found)
            )
            mild[self.excluded_labels(kind)] = False
            mild &= kind.name not in OF_MANY
            labels = np.flatnonzero(mild)
            for label in labels[np.argsort(-some[labels], kind="stable")].tolist():
                if self.is_precise((kind.name, int(kind.keys[label]))):
                    best, found = (kind.name, int(kind.keys[label])), int(some[label])
                    break
        if not found:
            return None
        rows_of = rows_through(self.kinds, best)
        own = np.flatnonzero(rows_of & self.open)
        ties = tuple(name for name in self.same_rows(own) if name != best)
        return Suspect(*best, rows_of, float(np.median(self.table.level[own])), ties)

    def is_precise(self, name: PartName) -> bool:
        """Return whether a part's open rows are enough for their median not to be beyond 0 by chance.

        A row's threshold is as many standard deviations as chance does not produce, or more.
        """
        rows = np.flatnonzero(rows_through(self.kinds, name) & self.open)
        error = MEDIAN_ERROR * float(np.median(self.table.threshold[rows])) / math.sqrt(len(rows))
        return float(np.median(self.table.level[rows])) > error

    def ties(self, best: PartName, effect: float, late: Ints) -> Iterator[PartName]:
        """Yield other parts with all of these slow rows, and (nearly) no fast ones."""
        for kind, through, doubt in zip(self.kinds, self.through, self.doubt, strict=True):
            slow = self.count(kind, late)
            same = (slow == len(late)) & mostly_slow(slow, through, doubt, self.share)
            same[self.excluded_labels(kind)] = False
            for label in np.flatnonzero(same):
                name = (kind.name, int(kind.keys[label]))
                tie = Suspect(*name, rows_through(self.kinds, name), effect)
                if name != best and not self.refuted(tie):
                    yield name

    def same_rows(self, rows: Ints) -> Iterator[PartName]:
        """Yield the parts whose open rows are exactly these."""
        for kind, through in zip(self.kinds, self.through, strict=True):
            same = (self.count(kind, rows) == len(rows)) & (through == len(rows))
            same[self.excluded_labels(kind)] = False
            for label in np.flatnonzero(same):
                yield kind.name, int(kind.keys[label])

    def peers(self, kind: str, most: int) -> tuple[list[PartName], Mask]:
        """Return all parts of a kind that explain `most` slow rows each, and their rows."""
        number = next(number for number, known in enumerate(self.kinds) if known.name == kind)
        known, through, slow = self.kinds[number], self.through[number], self.late[number]
        fit = (slow == most) & mostly_slow(slow, through, self.doubt[number], self.share)
        fit[self.excluded_labels(known)] = False
        rows = np.logical_or.reduce([fit[labels] & (labels >= 0) for labels in known.labels])
        return [(kind, int(key)) for key in known.keys[fit]], rows

    def excluded_labels(self, kind: PartKind) -> Ints:
        keys = [key for name, key in self.excluded if name == kind.name]
        return np.searchsorted(kind.keys, np.array(keys, np.int64))

    def explain(self, rows: Mask, effect: float, margin: float = 1.0) -> None:
        """Close the rows that this effect explains; rows more than `margin` thresholds slower stay open.

        Rows through several parts, each explained so, may be as slow as all of these effects together.
        """
        self.explained[rows] += effect
        self.close(rows & (self.table.level <= self.explained + margin * self.table.threshold))

    def close(self, rows: Mask) -> None:
        rows = rows & self.open
        self.open &= ~rows
        gone = np.flatnonzero(rows)
        slow, unclear = gone[self.slow[gone]], gone[self.unclear[gone]]
        for number, kind in enumerate(self.kinds):
            self.through[number] -= self.count(kind, gone)
            self.late[number] -= self.count(kind, slow)
            self.doubt[number] -= self.count(kind, unclear)
            self.some[number] -= self.count(kind, gone[self.beyond[gone]])
            self.most[number] -= self.count(kind, gone[self.half_beyond[gone]])


# By rank, for each finding that names it: log of the slowdown, and the remaining rate in bytes/s (None: of a
# processor, which all that the rank does passes through).
KnownFaults = dict[int, list[tuple[float, float | None]]]

COMPARABLE = 4.0  # largest ratio of two rates that can limit each other


def explained_rows(faults: KnownFaults, table: Observations, nbytes: int) -> Iterator[tuple[Mask, float]]:
    """Yield, for each rank with a fault, its rows and the level that the fault explains.

    A part that still moves 2 TB/s does not slow a path of 50 GB/s, and a path of 400 GB/s does not pass
    through a part of 50 GB/s, so a fault explains rows only if both rates are within a factor of 4. If every
    row passes a slow part, the siblings are slow too: then a fault explains what is as fast as itself.
    """
    if not len(table):
        return
    ranks = 1 + max([*faults, int(table.a.max()), int(table.b.max())])
    bad = np.isin(np.arange(ranks), list(faults))
    usual, all_bad = float(np.median(nbytes / table.siblings)), (bad[table.a] | bad[table.b]).all()
    for rank, known in faults.items():
        rates = [
            (effect, rate)
            for effect, rate in known
            if rate is None or 1 / COMPARABLE < rate / usual < COMPARABLE
        ]
        effects = [max(math.log(usual / rate), 0.0) if all_bad and rate else effect for effect, rate in rates]
        if effects:
            yield (table.a == rank) | (table.b == rank), max(effects)
