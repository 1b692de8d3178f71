"""Statistics that a minority of bad values does not move: medians and the median absolute deviation."""

from __future__ import annotations

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

# Of a normal distribution, standard deviation = 1.4826 MAD (Hampel 1974).
MAD_SCALE = 1.4826

# Of a median of n normal values, standard error = 1.2533 sigma / sqrt(n) (a little less where n is small).
MEDIAN_ERROR = 1.2533
SURE = 3.5  # standard errors that chance alone does not make


def spread(values: Floats) -> float:
    """Standard deviation of the good values, by their median absolute deviation. 0 of fewer than 2."""
    if len(values) < 2:
        return 0.0
    return float(MAD_SCALE * np.median(np.abs(values - np.median(values))))


def row_medians(seconds: Floats) -> Floats:
    """Median of each row without its NaN; NaN of a row with nothing else."""
    found = np.median(seconds, axis=1) if seconds.size else np.full(len(seconds), np.nan)
    some = np.flatnonzero(np.isnan(found))  # NaN sorts last: the middle of what comes before it
    ordered = np.sort(seconds[some], axis=1)
    count = np.maximum((~np.isnan(ordered)).sum(axis=1), 1)
    rows = np.arange(len(some))
    found[some] = (ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2
    return np.asarray(found)


def within(samples: Floats) -> Floats:
    """Log of samples over their row's median: the noise of one sample, whatever the rows differ by.

    Of an odd number of samples, without the median itself: so their spread is right for few samples too.
    """
    few = samples[: 1 + 200_000 // samples.shape[1], : samples.shape[1] - 1 + samples.shape[1] % 2]
    if few.shape[1] < 3:
        return np.zeros(0)
    off = np.log(few / row_medians(few)[:, None]).ravel()
    return np.asarray(off[~np.isnan(off) & (off != 0)])


def group_medians(values: Floats, group: Ints) -> Floats:
    """Median (the lower one of two) of the values of each group, in the order of the groups' numbers."""
    order = np.lexsort((values, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    return np.asarray(values[order][starts + (counts - 1) // 2])


def clean_pairs(count: int, bad: int) -> float:
    """Share of the pairs among `count` that no one of `bad` takes part in."""
    good = max(count - bad, 0)
    return good * (good - 1) / (count * (count - 1)) if count > 1 else 1.0


def typical(values: Floats, clean: float, tolerance: float) -> float:
    """What healthy siblings take, when the fastest `clean` share of them is surely healthy.

    A fault only slows down, so the middle of the clean share is a first guess; the median of all that is
    close to it is the answer (a low quantile alone would lean towards lucky noise).
    """
    ordered = np.sort(values)
    guess = ordered[int(clean / 2 * (len(ordered) - 1))]
    close = values[np.abs(values - guess) <= tolerance]
    return float(np.median(close))
