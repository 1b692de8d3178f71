"""When is a measurement slow? The statistics, and every rule that calls a rate or a time an outlier.

Validation (`jobs.validate`) and copies (`jobs.bench.copy`) compare things that should be alike: siblings, the
same figure of earlier runs, or the hardware's limit. A fault only slows down, and faults are few; so what is
usual is read from medians, which a minority of bad values does not move.

    slow_threshold          a median against its siblings'
    slow_sample_threshold   a single sample against its siblings
    group_threshold         a figure among those of its group
    ratio_threshold         the ratio of two medians
    mostly_slow             a part of which most measurements are slow
    intermittent_threshold, is_intermittent
                            a part that is slow for some of the time
    is_critical             a part, or a drift, that is slow enough to fail the run
    drift_score, is_drift   a rate against the same rate of earlier runs
    far_below_limit         a rate against what the hardware allows
    deviating               a figure against the median of its siblings, without any repetition

Times are compared by their logarithm ("level": log of the time over the siblings' time), so a threshold of
0.07 is 7 % more time, and a factor f on the rate is a level of -log(f). How strict validation is (tolerance,
share of slow measurements, critical factor; on CPUs more lenient) is said in `jobs.validate.plan`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

# --- limits that no plan changes

BLIND = 0.5  # of the siblings' rate: where noise hides everything above it, nothing is judged
STANDARD_ERRORS = 3.5  # a deviation that chance alone does not produce
SIBLING_DEVIATION = 0.1  # of the median of all figures, where nothing was repeated
LIMIT_SHARE = 0.5  # of what the hardware allows, below which all siblings must be slow together

# --- statistics

MAD_SCALE = 1.4826  # normal distribution: standard deviation = 1.4826 MAD (Hampel 1974)
MEDIAN_ERROR = 1.2533  # of a median of n normal values: standard error = 1.2533 sigma / sqrt(n)


def spread(values: Floats) -> float:
    """Standard deviation of the good values, by their median absolute deviation. 0 of fewer than 2."""
    if len(values) < 2:
        return 0.0
    return float(MAD_SCALE * np.median(np.abs(values - np.median(values))))


def fast_spread(level: Floats) -> float:
    """Standard deviation of the noise, by the values faster than their siblings: faults only slow down."""
    fast = level[level < 0]
    return float(MAD_SCALE * np.median(-fast)) if len(fast) else 0.0


def row_medians(values: Floats) -> Floats:
    """(rows,): the median of each row without its NaN; NaN for a row of nothing else."""
    found = np.median(values, axis=1) if values.size else np.full(len(values), np.nan)
    some = np.flatnonzero(np.isnan(found))  # NaN sorts last: the middle of what comes before it
    ordered = np.sort(values[some], axis=1)
    count = np.maximum((~np.isnan(ordered)).sum(axis=1), 1)
    rows = np.arange(len(some))
    found[some] = (ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2
    return np.asarray(found)


def column_quantiles(values: Floats, share: float) -> Floats:
    """(columns,): the quantile of each column without its NaN, the lower of two; NaN without any."""
    ordered = np.sort(values, axis=0)
    count = (~np.isnan(ordered)).sum(axis=0)
    return np.asarray(
        ordered[(share * np.maximum(count - 1, 0)).astype(np.int64), np.arange(values.shape[1])]
    )


def group_medians(values: Floats, group: Ints) -> Floats:
    """The median (the lower of two) of the values of each group, in the order of the groups' numbers."""
    order = np.lexsort((values, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    return np.asarray(values[order][starts + (counts - 1) // 2])


def residuals(samples: Floats) -> Floats:
    """Log of samples (rows, samples) over their row's median: the noise of one sample, however rows differ.

    The median itself, which an odd number of samples contains, is left out: so the spread is right for few
    samples too. Empty for fewer than 3 samples.
    """
    few = samples[: 1 + 200_000 // samples.shape[1], : samples.shape[1] - 1 + samples.shape[1] % 2]
    if few.shape[1] < 3:
        return np.zeros(0)
    off = np.log(few / row_medians(few)[:, None]).ravel()
    return np.asarray(off[~np.isnan(off) & (off != 0)])


def sample_noise(samples: Floats) -> float:
    """Standard deviation of the log of one sample. samples: (rows, samples)."""
    return spread(residuals(samples))


def median_error(noise: float, count: int) -> float:
    """Standard error of the median of `count` values of this standard deviation."""
    return MEDIAN_ERROR * noise / math.sqrt(count)


def samples_needed(noise: float, tolerance: float) -> float:
    """Samples whose median is as certain as `tolerance` needs. noise: of the log of one sample."""
    return (STANDARD_ERRORS * MEDIAN_ERROR * noise / tolerance) ** 2


def healthy_pairs(count: int, bad: int) -> float:
    """Share of the pairs among `count` that none of `bad` takes part in."""
    good = max(count - bad, 0)
    return good * (good - 1) / (count * (count - 1)) if count > 1 else 1.0


def typical(values: Floats, healthy: float, tolerance: float) -> float:
    """What healthy siblings have, when the fastest `healthy` share of them is surely healthy.

    A fault only slows down, so the middle of the healthy share is a first guess; the median of all that is
    close to it is the answer (a low quantile alone would lean towards lucky noise).
    """
    ordered = np.sort(values)
    guess = ordered[int(healthy / 2 * (len(ordered) - 1))]
    close = values[np.abs(values - guess) <= tolerance]
    return float(np.median(close))


# --- slower than siblings


def group_threshold(level: Floats, tolerance: float) -> float:
    """The level above which one of these is slow: beyond the tolerance, and beyond their own spread."""
    return max(tolerance, STANDARD_ERRORS * min(spread(level), fast_spread(level)))


def slow_threshold(level: Floats, count: Ints, noise: float, tolerance: float) -> Floats:
    """The level above which each median is slow.

    level: of each median. count: samples of each. noise: standard deviation of the log of one sample. Besides
    `group_threshold`, a median has to be beyond its own standard error.
    """
    apart = group_threshold(level, tolerance)
    return np.maximum(apart, STANDARD_ERRORS * MEDIAN_ERROR * noise / np.sqrt(count))


def slow_sample_threshold(noise: float, tolerance: float) -> float:
    """The level above which a single sample is slow: it is noisier than the median of a row."""
    return max(1.5 * tolerance, STANDARD_ERRORS * noise)


def ratio_threshold(noise: float, samples: int, tolerance: float) -> float:
    """The log of the ratio of two medians, of `samples` each, above which the first is slow."""
    return max(tolerance, STANDARD_ERRORS * MEDIAN_ERROR * noise * math.sqrt(2 / samples))


def mostly_slow(slow: Any, through: Any, share: float) -> Any:
    """Whether a part with `slow` of its `through` measurements slow is slow itself; numbers or arrays."""
    return slow >= share * through


def is_critical(factor: float, critical: float) -> bool:
    """Whether a part at `factor` of its usual rate fails the run."""
    return factor < critical


def confidence(effect: float, threshold: float, noise: float, count: int) -> float:
    """Probability that the median of `count` measurements of a good part stays below the threshold.

    Normal distribution, standard error 1.2533 noise / sqrt(count). effect, threshold: levels.
    """
    error = median_error(noise, max(count, 1))
    if not error:
        return 1.0
    return 0.5 * (1 + math.erf((effect - threshold / 2) / error / math.sqrt(2)))


def deviating(values: Sequence[float], larger_is_slower: bool) -> list[int]:
    """Which values are slower than the median of all by more than a tenth, the slowest first.

    larger_is_slower: for latencies; rates are slow where they are small. Nothing of fewer than two values.
    """
    if len(values) < 2:
        return []
    middle = statistics.median(values)
    factors = [value / middle for value in values]
    if larger_is_slower:
        slow = [number for number, one in enumerate(factors) if one > 1 + SIBLING_DEVIATION]
        return sorted(slow, key=lambda number: -factors[number])
    slow = [number for number, one in enumerate(factors) if one < 1 - SIBLING_DEVIATION]
    return sorted(slow, key=lambda number: factors[number])


def far_below_limit(rate: float, limit: float) -> bool:
    """Whether a rate is so far below what the hardware allows that all siblings must be slow together."""
    return rate < LIMIT_SHARE * limit


# --- slow for some of the time

BURST = 10  # samples that an intermittent part may stay slow for: so many count as one observation
ENOUGH_PARTS = 64  # to see from them how far shares are spread
LEAST_EXCESS = 0.05  # of all samples, above the usual share
MOST_USUAL, CLEAR_EXCESS = 0.1, 0.08  # on a retest: shares of all samples
ALWAYS = 0.95  # of the samples: what is slow for longer is not intermittent
LATE_SHARE = 0.25  # of its samples slow: a measurement that shows the part's bad time


def intermittent_threshold(share: Floats, count: Floats) -> Floats:
    """The share of slow samples above which each part may be slow for some of the time.

    share: of the slow samples of each part; count: samples of each, 0 where it was not measured.
    """
    seen = count > 0
    usual = float(np.median(share[seen])) if seen.any() else 0.0
    # Standard error of a share of count / BURST independent observations, four of them.
    noise = 4 * np.sqrt(max(usual, 0.01) * BURST / np.maximum(count, BURST))
    if seen.sum() >= ENOUGH_PARTS:
        noise = np.minimum(noise, 5 * spread(share[seen]))
    return np.asarray(usual + LEAST_EXCESS + noise)


def is_late(slow: Ints, count: Ints) -> Bools:
    """Which measurements had a good part of their samples slow."""
    return np.asarray(slow > LATE_SHARE * count)


def is_intermittent(share: float, usual: float, partners: int, late: int) -> bool:
    """Whether a part that was measured again is slow for some of the time, whoever it meets.

    share, usual: of its samples, and of others', that were slow. late: measurements with many slow samples;
    partners: ranks in them.
    """
    return min(usual, MOST_USUAL) + CLEAR_EXCESS < share < ALWAYS and partners >= 3 and late >= 2


# --- slower than in earlier runs

FEW_RUNS = 3  # of fewer, no deviation is known
DRIFT_SCORE, DRIFT_DIFFERENCE = 4.0, 0.05  # a drift is beyond both
PLAIN_DIFFERENCE = 0.10  # a drift from fewer than FEW_RUNS runs
LEAST_DEVIATION = 0.01  # of the median
PRIOR_RUNS = 10  # runs that the deviation of the other parts counts as
FALSE_ALARMS = 0.001  # of one comparison, whatever the number of figures (Bonferroni)

# By how much 1.4826 MAD of few values is too small (Croux, Rousseeuw 1992); of n > 9: n / (n - 0.8).
SMALL_SAMPLE = {3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


def run_deviation(rates: Sequence[float]) -> float:
    """Robust relative standard deviation of a new rate from the median of these, at least three."""
    count, middle = len(rates), statistics.median(rates)
    deviation = MAD_SCALE * statistics.median(abs(rate / middle - 1) for rate in rates)
    # The median of n is off as well: by 1.2533 / sqrt(n) standard deviations.
    return deviation * SMALL_SAMPLE.get(count, count / (count - 0.8)) * math.sqrt(1 + math.pi / 2 / count)


def common_deviation(deviations: Sequence[float]) -> float:
    """Mean of those that are no outliers. (Of few runs they are skewed: their median is too small.)"""
    most = 3 * statistics.median(deviations)
    return statistics.fmean(one for one in deviations if one <= most)


def pooled_deviation(own: float, common: float, runs: int) -> float:
    """The deviation of a part, given what is common (Smyth 2004): a mean of variances, weighed by runs."""
    return max(math.sqrt((runs * own**2 + PRIOR_RUNS * common**2) / (runs + PRIOR_RUNS)), common)


def drift_score(rate: float, usual: float, own: float, common: float, runs: int) -> float:
    """How many robust standard deviations a rate is above the usual one (below: negative)."""
    return (rate / usual - 1) / max(pooled_deviation(own, common, runs), LEAST_DEVIATION)


def score_needed(figures: int) -> float:
    """The score of a drift: the more figures are compared, the higher; 4 for up to 15, 5.5 for 25,000."""
    return max(DRIFT_SCORE, statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(figures, 1))))


def is_drift(rate: float, usual: float, score: float, needed: float) -> bool:
    """Whether a rate has changed. score: NaN of fewer than FEW_RUNS runs. needed: by `score_needed`."""
    off = abs(rate / usual - 1)
    if math.isnan(score):
        return off >= PLAIN_DIFFERENCE
    return off >= DRIFT_DIFFERENCE and abs(score) >= needed
