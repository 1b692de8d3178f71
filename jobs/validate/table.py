"""Measurements as one table: who took part, how much slower than its siblings each was, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jobs.validate.fleet import Ints
from jobs.validate.plan import Plan
from jobs.validate.robust import MAD_SCALE, Floats, group_medians, row_medians, spread, typical


@dataclass(frozen=True, eq=False)
class Table:
    """A row for each thing measured. a, b: ranks (the same one where a GPU is alone).

    level: log of the median over the siblings' median. seconds, siblings: those medians. slow, count: samples
    that were slow, and all. again: measured again, alone. lost: ranks of which something could not be
    measured.
    """

    a: Ints
    b: Ints
    level: Floats
    seconds: Floats
    siblings: Floats
    slow: Ints
    slow_level: Floats  # median log of the slow samples
    count: Ints
    again: np.ndarray
    threshold: float  # of a level that is slow
    lost: frozenset[int]

    def __len__(self) -> int:
        return len(self.a)

    def then(self, later: Table) -> Table:
        """This table with what was measured again in place of the first measurement."""
        size = 1 + max(int(side.max(initial=0)) for table in (self, later) for side in (table.a, table.b))
        keep = ~np.isin(self.a * size + self.b, later.a * size + later.b)

        def joined(column: str) -> np.ndarray:
            return np.concatenate([getattr(self, column)[keep], getattr(later, column)])

        columns = {name: joined(name) for name in COLUMNS}
        threshold = max(self.threshold, later.threshold)
        return Table(**columns, threshold=threshold, lost=self.lost | later.lost)


COLUMNS = ("a", "b", "level", "seconds", "siblings", "slow", "slow_level", "count", "again")


@dataclass(frozen=True, eq=False)
class Siblings:
    """Which rows are each other's baseline. kind: class of each row (rows of one class are alike when
    healthy).

    group: rows whose median counts as one (None: each row for itself). clean: share of the groups that is
    surely healthy. known: rows of parts without suspicion: where a class has such rows, they alone are its
    baseline.
    """

    kind: Ints
    group: Ints | None
    clean: float
    known: np.ndarray | None = None


def tabulate(
    flows: Sequence[Ints],
    seconds: Sequence[Floats],
    alike: Callable[[Ints, Ints], Siblings],
    plan: Plan,
    again: bool = False,
) -> Table:
    """One table of rounds: `flows` (rows, 2) with their `seconds` (rows, samples)."""
    pairs = np.concatenate(flows)
    samples = np.concatenate(seconds)
    middle = row_medians(samples)
    good = ~np.isnan(middle)
    lost = frozenset(pairs[np.isnan(samples).any(axis=1)].ravel().tolist())
    pairs, samples, middle = pairs[good], samples[good], middle[good]
    a, b = pairs[:, 0], pairs[:, 1]
    logs = np.log(middle)
    base = baselines(logs, alike(a, b), plan.tolerance) if len(a) else logs
    level = logs - base
    off = np.log(samples) - base[:, None]
    threshold = max(plan.tolerance, 3.5 * min(spread(level), fast_side(level)))
    # A single sample is noisier than the median of a row.
    single = max(1.5 * plan.tolerance, 3.5 * spread(within(samples)))
    late = off > single
    slow = late.sum(axis=1)
    some = slow > 0
    slow_level = np.zeros(len(level))
    slow_level[some] = np.nanmedian(np.where(late[some], off[some], np.nan), axis=1)
    return Table(
        a,
        b,
        level,
        middle,
        np.exp(base),
        slow,
        slow_level,
        (~np.isnan(samples)).sum(axis=1),
        np.full(len(a), again),
        threshold,
        lost,
    )


def fast_side(level: Floats) -> float:
    """Standard deviation of the noise, by the rows faster than their siblings: faults only slow."""
    fast = level[level < 0]
    return float(MAD_SCALE * np.median(-fast)) if len(fast) else 0.0


def within(samples: Floats) -> Floats:
    """Log of samples over their row's median: the noise of one sample, whatever the rows differ by."""
    few = samples[: 1 + 200_000 // samples.shape[1]]
    if few.shape[1] < 3:
        return np.zeros(0)
    off = np.log(few / row_medians(few)[:, None]).ravel()
    return off[~np.isnan(off)]


def baselines(logs: Floats, alike: Siblings, tolerance: float) -> Floats:
    """Log time of each row's healthy siblings: the typical one of the medians of the groups of its class."""
    base = np.zeros(len(logs))
    for kind in np.unique(alike.kind):
        rows = alike.kind == kind
        if alike.known is not None and (alike.known & rows).any():
            base[rows] = typical(logs[alike.known & rows], 0.5, tolerance)
            continue
        values = logs[rows] if alike.group is None else group_medians(logs[rows], alike.group[rows])
        base[rows] = typical(values, alike.clean, tolerance)
    return base
