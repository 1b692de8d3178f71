"""Measurements as one table: who took part, how much slower than its siblings each was, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jobs.measure.outliers import (
    Floats,
    group_medians,
    row_medians,
    sample_noise,
    slow_sample_threshold,
    slow_threshold,
    typical,
)
from jobs.validate.plan import Plan
from jobs.validate.topology import Ints


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
    threshold: Floats  # of a level that is slow
    lost: frozenset[int]

    def __len__(self) -> int:
        return len(self.a)

    @property
    def seen(self) -> float:
        """Share of its siblings' rate below which a part stands out from the noise; 1 of no rows."""
        return float(np.exp(-np.median(self.threshold))) if len(self) else 1.0

    def then(self, later: Table) -> Table:
        """This table with what was measured again in place of the first measurement."""
        size = 1 + max(int(side.max(initial=0)) for table in (self, later) for side in (table.a, table.b))
        keep = ~np.isin(self.a * size + self.b, later.a * size + later.b)

        def joined(column: str) -> np.ndarray:
            return np.concatenate([getattr(self, column)[keep], getattr(later, column)])

        columns = {name: joined(name) for name in COLUMNS}
        return Table(**columns, lost=self.lost | later.lost)


COLUMNS = ("a", "b", "level", "seconds", "siblings", "slow", "slow_level", "count", "again", "threshold")


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
    missing = np.isnan(samples)
    lost = frozenset(pairs[missing.any(axis=1)].ravel().tolist())
    good = ~missing.all(axis=1)
    pairs, samples, count = pairs[good], samples[good], (~missing[good]).sum(axis=1)
    a, b = pairs[:, 0], pairs[:, 1]
    middle = row_medians(samples)
    logs = np.log(middle)
    base = baselines(logs, alike(a, b), plan.tolerance) if len(a) else logs
    level = logs - base
    noise = sample_noise(samples)
    threshold = slow_threshold(level, count, noise, plan.tolerance)
    late = samples > np.exp(base + slow_sample_threshold(noise, plan.tolerance))[:, None]
    slow = late.sum(axis=1)
    some = np.flatnonzero(slow)
    slow_level = np.zeros(len(level))
    slow_level[some] = np.log(row_medians(np.where(late[some], samples[some], np.nan))) - base[some]
    return Table(
        a,
        b,
        level,
        middle,
        np.exp(base),
        slow,
        slow_level,
        count,
        np.full(len(a), again),
        threshold,
        lost,
    )


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
