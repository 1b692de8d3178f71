"""A table of measurements: participants, slowdown against the siblings, and slow samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshrun.jobs.measure.outliers import (
    ALWAYS,
    GOOD_QUANTILE,
    Floats,
    column_quantiles,
    group_medians,
    is_late,
    row_medians,
    sample_noise,
    slow_sample_threshold,
    slow_threshold,
    typical,
)
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.topology import Ints

LEAST_TOGETHER = 8  # rows whose median shows what slows them all: four pairs, both ways


@dataclass(frozen=True, eq=False)
class Observations:
    """Columns of (rows,), one row for each thing measured. a, b: ranks (equal for a GPU by itself).

    level: log(median / siblings' median). seconds, siblings: these medians. slow, count: slow samples, and
    all; fast: those faster than siblings. slow_level: median level of the slow samples. retested: measured
    again without other traffic. both_ways: measured at the same time as the flow in the other direction.
    good_level: of the quarter of the samples that is fastest, the slowest; 0
    where few samples are slow.
    slow_above: the level above which a sample is slow. look: of a retest over a span, counted from 0.
    threshold: the level above which the row is slow. failed: ranks with failed measurements.
    """

    a: Ints
    b: Ints
    level: Floats
    seconds: Floats
    siblings: Floats
    slow: Ints
    fast: Ints
    slow_level: Floats
    good_level: Floats
    count: Ints
    slow_above: Floats
    look: Ints
    retested: np.ndarray
    both_ways: np.ndarray
    threshold: Floats
    failed: frozenset[int]

    def __len__(self) -> int:
        return len(self.a)

    @property
    def visible(self) -> float:
        """Share of its siblings' rate below which a part is detectable in the noise; 1 without rows."""
        return float(np.exp(-np.median(self.threshold))) if len(self) else 1.0

    def of(self, rows: np.ndarray) -> Observations:
        """Return the table of some rows. rows: a mask, or indices."""
        return Observations(**{name: getattr(self, name)[rows] for name in COLUMNS}, failed=self.failed)

    def with_slow_samples(self, earlier: Observations) -> Observations:
        """Return this table with the slow samples of an earlier one, for parts that are slow at times.

        Not of rows that were always slow: flows that collide in a round are.
        """
        size = 1 + max(int(side.max(initial=0)) for table in (self, earlier) for side in (table.a, table.b))
        partly = earlier.of(np.flatnonzero(earlier.slow < ALWAYS * earlier.count))
        keys = partly.a * size + partly.b
        order = np.argsort(keys)
        place = np.searchsorted(keys[order], wanted := self.a * size + self.b)
        row = order[np.minimum(place, len(order) - 1)] if len(order) else np.zeros(len(self), np.int64)
        known = keys[row] == wanted if len(order) else np.zeros(len(self), bool)
        slow, count = self.slow.copy(), self.count.copy()
        slow[known] += partly.slow[row[known]]
        count[known] += partly.count[row[known]]
        return replace(self, slow=slow, count=count)

    def updated(self, later: Observations) -> Observations:
        """Return this table with the retests in `later` in place of the first measurements."""
        size = 1 + max(int(side.max(initial=0)) for table in (self, later) for side in (table.a, table.b))
        keep = ~np.isin(self.a * size + self.b, later.a * size + later.b)
        return self.of(keep).followed_by(later)

    def followed_by(self, later: Observations) -> Observations:
        """Return the rows of both tables."""
        columns = {name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in COLUMNS}
        return Observations(**columns, failed=self.failed | later.failed)


COLUMNS = (
    "a",
    "b",
    "level",
    "seconds",
    "siblings",
    "slow",
    "fast",
    "slow_level",
    "good_level",
    "count",
    "slow_above",
    "look",
    "retested",
    "both_ways",
    "threshold",
)


@dataclass(frozen=True, eq=False)
class Siblings:
    """Which rows are compared with each other. kind: class of each row; healthy rows of a class are alike.

    group: rows that count as one, by their median (None: each row by itself). healthy: share of the groups
    that is certainly healthy. trusted: rows of healthy parts; a class that has some is compared only with
    these.
    """

    kind: Ints
    group: Ints | None
    healthy: float
    trusted: np.ndarray | None = None


def tabulate(
    flows: Sequence[Ints],
    seconds: Sequence[Floats],
    siblings: Callable[[Ints, Ints], Siblings],
    plan: Plan,
    retested: bool = False,
    looks: Sequence[int] | None = None,
    known: float = 0.0,
    together: Ints | None = None,
    both_ways: bool = False,
) -> Observations:
    """Combine several rounds into one table. looks: of each round; None: all are one.

    known: noise of a sample, if repeats show more of it than the samples of one do.

    together: (all rows, 2), a number for each end of a row; rows with the same one are measured at the same
    moments. What slows most of them at once is a load, so it makes no sample of one of them slow.

    flows: (rows, 2) int64 for each round. seconds: (rows, samples) float64 for each round, NaN for a failed
    sample; rounds may have different numbers of them. siblings: returns the siblings of rows between ranks a
    and b.
    """
    pairs = np.concatenate(flows)
    failed = frozenset(
        pairs[np.concatenate([np.isnan(each).any(axis=1) for each in seconds])].ravel().tolist()
    )
    samples = np.full((len(pairs), max(each.shape[1] for each in seconds)), np.nan)
    row = 0
    for each in seconds:
        samples[row : row + len(each), : each.shape[1]] = each
        row += len(each)
    look = np.repeat(np.array(looks or [0] * len(flows), np.int64), [len(each) for each in flows])
    missing = np.isnan(samples)
    good = ~missing.all(axis=1)
    pairs, samples, count = pairs[good], samples[good], (~missing[good]).sum(axis=1)
    a, b = pairs[:, 0], pairs[:, 1]
    middle = row_medians(samples)
    logs = np.log(middle)
    alike = siblings(a, b) if len(a) else None
    base = sibling_logs(logs, alike, plan.tolerance) if alike else logs
    level = logs - base
    trusted = None if alike is None else alike.trusted
    # The samples of suspects may vary for a reason.
    noise = sample_noise(samples if trusted is None or not trusted.any() else samples[trusted])
    threshold = slow_threshold(level, count, max(noise, known), plan.tolerance)
    slow_above = slow_sample_threshold(noise, plan.tolerance)
    usual = base[:, None]
    if together is not None:
        usual = usual + common_slowness(np.log(samples) - usual, together[good])
    late = samples > np.exp(usual + slow_above)
    slow = late.sum(axis=1)
    fast = (samples < np.exp(base)[:, None]).sum(axis=1)
    some = np.flatnonzero(slow)
    slow_level = np.zeros(len(level))
    slow_level[some] = np.log(row_medians(np.where(late[some], samples[some], np.nan))) - base[some]
    many = np.flatnonzero(is_late(slow, count))
    good_level = np.zeros(len(level))
    good_level[many] = column_quantiles((np.log(samples[many]) - usual[many]).T, GOOD_QUANTILE)
    return Observations(
        a,
        b,
        level,
        middle,
        np.exp(base),
        slow,
        fast,
        slow_level,
        good_level,
        count,
        np.full(len(a), slow_above),
        look[good],
        np.full(len(a), retested),
        np.full(len(a), both_ways),
        threshold,
        failed,
    )


def common_slowness(level: Floats, together: Ints) -> Floats:
    """Return (rows, samples): how much slower than siblings more than half of the rows are that are measured
    together with a row, at each moment; of its two ends, the slower one. 0 if these are few.

    level: (rows, samples), of each sample. together: as of `tabulate`.
    """
    order = np.argsort(together.ravel(), kind="stable")
    starts = np.flatnonzero(np.diff(together.ravel()[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    usual = np.zeros((len(starts), level.shape[1]))  # of each group
    for size in np.unique(sizes[sizes >= LEAST_TOGETHER]).tolist():  # all groups of a size at once
        groups = np.flatnonzero(sizes == size)
        ends = order[starts[groups][:, None] + np.arange(size)]  # (groups, size), of the ends of rows
        ordered = np.sort(level[ends // 2], axis=1)  # NaN last
        middle = np.maximum(np.count_nonzero(~np.isnan(ordered), axis=1) - 1, 0) // 2  # the lower one
        usual[groups] = np.take_along_axis(ordered, middle[:, None], axis=1)[:, 0]
    group = np.empty(len(order), np.int64)
    group[order] = np.repeat(np.arange(len(starts)), sizes)
    one, other = usual[group.reshape(together.shape).T]
    return np.asarray(np.fmax(np.fmax(one, other), 0))


def sibling_logs(logs: Floats, siblings: Siblings, tolerance: float) -> Floats:
    """Return log(time) of each row's healthy siblings: the typical group median of its class."""
    base = np.zeros(len(logs))
    for kind in np.unique(siblings.kind):
        rows = siblings.kind == kind
        if siblings.trusted is not None and (siblings.trusted & rows).any():
            base[rows] = typical(logs[siblings.trusted & rows], 0.5, tolerance)
            continue
        values = logs[rows] if siblings.group is None else group_medians(logs[rows], siblings.group[rows])
        base[rows] = typical(values, siblings.healthy, tolerance)
    return base
