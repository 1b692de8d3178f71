"""Decide whether a measurement is slow: the statistics, and every rule for outliers.

Validation (`jobs.validate`) and copies (`jobs.bench.copy`) compare a figure with its siblings, with the same
figure of earlier runs, or with the hardware's limit. A fault only slows down, and faults are few, so the
usual value is a median, which a minority of bad values does not move.

    slow_threshold          a median against its siblings'
    slow_sample_threshold   a single sample against its siblings
    group_threshold         a figure among those of its group
    ratio_threshold         the ratio of two medians
    clear_threshold         a median that needs no more samples: its part is not slow
    mostly_slow             a part of which most measurements are slow
    is_mild                 a part of which all measurements are somewhat slow
    intermittent_threshold, is_intermittent, is_erratic
                            a part that is slow for some of the time
    intermittence           how likely it is slow part of the time, and not loaded by others
    partners_needed         how many of a part's partners see it slow in a look, beyond noise
    is_stalling             one of which single samples are slow
    is_critical             a part, or a drift, that is slow enough to fail the run
    drift_score, is_drift   a rate against the same rate of earlier runs
    far_below_limit         a rate against what the hardware allows
    looks_below_limit       how often a rate must be below what is usual to be so for good
    looks_of_loaded         how often a figure must be slow to be so by itself, and not loaded by others
    deviating               a single figure against the median of its siblings

Times are compared by their logarithm ("level": log of the time over the siblings' time), so a threshold of
0.07 is 7 % more time, and a factor f on the rate is a level of -log(f). How strict validation is (tolerance,
share of slow measurements, critical factor; on CPUs more lenient) is set in `jobs.validate.plan`.
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

# --- limits that do not depend on the plan

STANDARD_ERRORS = 3.5  # a deviation that chance alone does not produce
SAMPLE_ERRORS = 2.5  # of a single sample: 1 in 160 of normal ones is beyond
SIBLING_DEVIATION = 0.1  # of the median of all figures, where nothing was repeated
MANY_MEASUREMENTS = 16  # whose median is more precise than a single one
# Whose spread tells how precise their median is. Of 8 healthy ones of the largest spread that `is_mild`
# allows (0.65 of the tolerance), the median is beyond the tolerance in 1 of 1,000 cases.
MILD_MEASUREMENTS = 8
FALSE_CLEARANCE = 0.001  # probability that a part of the critical slowness is cleared by a retest
LIMIT_SHARE = 0.5  # of what the hardware allows, below which all siblings must be slow together

# --- statistics

ONE_DEVIATION = 0.84  # quantile of a normal distribution, one standard deviation above its median
MAD_SCALE = 1.4826  # normal distribution: standard deviation = 1.4826 MAD (Hampel 1974)
TYPICAL_STEPS = 16  # iterations of `typical`, at most
MEDIAN_ERROR = 1.2533  # of a median of n normal values: standard error = 1.2533 sigma / sqrt(n)


def spread(values: Floats) -> float:
    """Estimate the standard deviation of good values from their MAD; 0 for fewer than 2 values."""
    if len(values) < 2:
        return 0.0
    return float(MAD_SCALE * np.median(np.abs(values - np.median(values))))


def fast_spread(level: Floats) -> float:
    """Estimate the standard deviation of noise from values faster than siblings: faults only slow down."""
    fast = level[level < 0]
    return float(MAD_SCALE * np.median(-fast)) if len(fast) else 0.0


def row_medians(values: Floats) -> Floats:
    """Return the median of each row, (rows,), ignoring NaN; NaN for a row of NaN only."""
    found = np.median(values, axis=1) if values.size else np.full(len(values), np.nan)
    some = np.flatnonzero(np.isnan(found))  # NaN sorts last: take the middle of the values before it
    ordered = np.sort(values[some], axis=1)
    count = np.maximum((~np.isnan(ordered)).sum(axis=1), 1)
    rows = np.arange(len(some))
    found[some] = (ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2
    return np.asarray(found)


def column_quantiles(values: Floats, share: float) -> Floats:
    """Return the quantile of each column, (columns,), ignoring NaN, the lower of two; NaN if all are NaN."""
    ordered, last = _ordered_columns(values)
    return np.asarray(ordered[(share * last).astype(np.int64), np.arange(values.shape[1])])


def column_middles(values: Floats) -> tuple[Floats, Floats]:
    """Return the lower and the upper middle of each column, (columns,), ignoring NaN; NaN if all are NaN."""
    ordered, last = _ordered_columns(values)
    columns = np.arange(values.shape[1])
    return ordered[last // 2, columns], ordered[(last + 1) // 2, columns]


def _ordered_columns(values: Floats) -> tuple[Floats, Ints]:
    """Return the columns in order, and the place of the largest value of each, ignoring NaN."""
    ordered = np.sort(values, axis=0)
    return ordered, np.maximum((~np.isnan(ordered)).sum(axis=0) - 1, 0)


def group_medians(values: Floats, group: Ints) -> Floats:
    """Return the median (the lower of two) of each group's values, in the order of group numbers."""
    order = np.lexsort((values, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    return np.asarray(values[order][starts + (counts - 1) // 2])


def residuals(samples: Floats) -> Floats:
    """Return the log of each sample over its row's median: the noise of single samples.

    samples: (rows, samples). The median itself, which is a sample if their number is odd, is left out, so
    that the spread is right for few samples too. Empty for fewer than 3 samples.
    """
    few = samples[: 1 + 200_000 // samples.shape[1], : samples.shape[1] - 1 + samples.shape[1] % 2]
    if few.shape[1] < 3:
        return np.zeros(0)
    off = np.log(few / row_medians(few)[:, None]).ravel()
    return np.asarray(off[~np.isnan(off) & (off != 0)])


def sample_noise(samples: Floats) -> float:
    """Estimate the standard deviation of the log of one sample. samples: (rows, samples)."""
    return spread(residuals(samples))


def median_error(noise: float, count: int) -> float:
    """Return the standard error of the median of `count` values with standard deviation `noise`."""
    return MEDIAN_ERROR * noise / math.sqrt(count)


def samples_needed(noise: float, tolerance: float) -> float:
    """Return how many samples make a median precise enough. noise: of the log of one sample."""
    return (STANDARD_ERRORS * MEDIAN_ERROR * noise / tolerance) ** 2


def healthy_pairs(count: int, bad: int) -> float:
    """Return the share of all pairs among `count` that contain none of `bad` members."""
    good = max(count - bad, 0)
    return good * (good - 1) / (count * (count - 1)) if count > 1 else 1.0


def typical(values: Floats, healthy: float, tolerance: float) -> float:
    """Estimate the value of healthy siblings, given that the fastest `healthy` share of them is healthy.

    A fault only slows down, so the middle of the healthy share is a first guess; the median of all values
    close to it is the next, until it stays (a low quantile alone, or the values close to it, would be biased
    towards lucky noise).
    """
    ordered = np.sort(values)
    guess = float(ordered[int(healthy / 2 * (len(ordered) - 1))])
    for _ in range(TYPICAL_STEPS):
        now = float(np.median(values[np.abs(values - guess) <= tolerance]))
        if now == guess:
            break
        guess = now
    return guess


# --- slower than siblings


def group_threshold(level: Floats, tolerance: float) -> float:
    """Return the level above which one of these is slow: beyond the tolerance and their own spread.

    So many standard deviations that normal values without a fault exceed it in FALSE_ALARMS of all runs,
    however many there are (`deviations_of_all`).
    """
    deviations = deviations_of_all(len(level))
    if len(level) >= MANY_MEASUREMENTS:  # the spread of n values has an error too, of about 1 / sqrt(n)
        deviations *= 1 + 1 / math.sqrt(len(level))
    return max(tolerance, deviations * min(spread(level), fast_spread(level)))


def deviations_of_all(figures: int) -> float:
    """Return the standard deviations that one of so many normal values exceeds in FALSE_ALARMS of all runs.

    Bonferroni: 3.5 for up to 4 values, 4.3 for 128, 5.2 for 10,000.
    """
    return max(STANDARD_ERRORS, statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / max(figures, 1)))


def slow_threshold(level: Floats, count: Ints, noise: float, tolerance: float) -> Floats:
    """Return the level above which each median is slow.

    level: of each median. count: samples of each. noise: standard deviation of the log of one sample. In
    addition to `group_threshold`, a median must exceed what a healthy part may be slower than its siblings,
    the tolerance, and its own standard error together. Both are deviations by chance, independent of each
    other, so their squares add up.
    """
    error = deviations_of_all(len(level)) * MEDIAN_ERROR * noise / np.sqrt(count)
    return np.maximum(group_threshold(level, tolerance), np.hypot(tolerance, error))


def slow_sample_threshold(noise: float, tolerance: float) -> float:
    """Return the level above which a single sample is slow; samples are noisier than medians.

    Shares of many samples are judged, which a few slow ones by chance do not make large.
    """
    return max(1.5 * tolerance, SAMPLE_ERRORS * noise)


def ratio_threshold(noise: float, samples: int, tolerance: float) -> float:
    """Return the log of the ratio of two medians, of `samples` each, above which the first is slow."""
    return max(tolerance, STANDARD_ERRORS * MEDIAN_ERROR * noise * math.sqrt(2 / samples))


def clear_threshold(noise: float, count: Any, slow: float) -> Any:
    """Return the level below which a median clears its part; `count` samples each, a number or an array.

    Sequential probability ratio test (Wald 1945) of level 0 against level `slow`, for a normal median with
    standard error e: the log of the likelihood ratio is slow (level - slow / 2) / e^2, and the test ends in
    favour of 0 at log(FALSE_CLEARANCE) or below. A part at `slow` is cleared with at most that probability,
    however often it is looked at (Ville's inequality).
    """
    error = MEDIAN_ERROR * noise / np.sqrt(count)
    return slow / 2 + math.log(FALSE_CLEARANCE) * error**2 / slow


def samples_to_clear(noise: float, slow: float) -> float:
    """Return after how many samples the median of a healthy part is expected at `clear_threshold`."""
    return -2 * math.log(FALSE_CLEARANCE) * (MEDIAN_ERROR * noise / slow) ** 2


def mostly_slow(slow: Any, through: Any, unclear: Any, share: float) -> Any:
    """Whether a part with `slow` of its `through` measurements slow is slow itself; numbers or arrays.

    unclear: measurements between a healthy and a slow level. They do not count, but at least a third of all
    must be slow: a part that is as slow as the threshold has about half of its measurements above it.
    """
    return (slow >= share * (through - unclear)) & (3 * slow >= through)


def is_mild(level: Floats, tolerance: float, share: float) -> bool:
    """Whether a part with many measurements of these levels is slow as a whole, though few of them are by
    themselves: their median is beyond the tolerance, and at least `share` of them beyond half of it. Noise
    must not hide a median of that size.
    """
    many = len(level) >= MILD_MEASUREMENTS and float(np.mean(level > tolerance / 2)) >= share
    many = many and STANDARD_ERRORS * median_error(spread(level), len(level)) < tolerance
    return many and float(np.median(level)) > tolerance


def is_critical(factor: float, critical: float) -> bool:
    """Whether a part at `factor` of its usual rate fails the run."""
    return factor < critical


def deviating(values: Sequence[float], larger_is_slower: bool) -> list[int]:
    """Return the indices of values more than a tenth slower than the median of all, the slowest first.

    larger_is_slower: True for latencies, False for rates. Empty for fewer than two values.
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
    """Whether a rate is so far below the hardware's limit that all siblings must be slow."""
    return rate < LIMIT_SHARE * limit


def looks_below_limit(figures: int) -> int:
    """Return in how many looks a rate must be below a limit, to be below it not by chance.

    Sign test (Arbuthnot 1710): a rate that reaches the limit in half of all looks, or more, is below it in n
    of n with a probability of at most 1 / 2^n, whatever the distribution of the noise. FALSE_ALARMS for so
    many figures together (Bonferroni): 10 looks at one, 14 at 16, 19 at 512.
    """
    return math.ceil(math.log2(max(figures, 1) / FALSE_ALARMS))


def looks_of_loaded(slow: int, of: int, figures: int) -> float:
    """Return in how many looks a figure must be slow, of all, to be so not by the load of others.

    slow, of: looks at its siblings in which these were slow, and all. A load comes and goes, so a healthy
    figure is slow in n of n separate looks with a probability of share^n; FALSE_ALARMS for so many figures
    together (Bonferroni). The share is `share_estimate` and one standard error of it. 4 looks if siblings
    are slow in 2 of 40, 15 if in 20 of 40.
    """
    share = share_estimate(slow, of)
    share += math.sqrt(share * (1 - share) / max(of, 1))
    return (
        math.ceil(math.log(FALSE_ALARMS / max(figures, 1)) / math.log(share)) if 0 < share < 1 else math.inf
    )


# --- slow for some of the time

BURST = 10  # samples that an intermittent part may stay slow
BOTH_WAYS = 2  # samples of a moment: both directions of a pair are measured together
ENOUGH_PARTS = 8  # parts from which on the spread of their shares is known
FALSE_SUSPECTS = 0.01  # share of healthy fleets
MOST_USUAL, CLEAR_EXCESS = 0.1, 0.08  # on a retest: shares of all samples
ALWAYS = 0.95  # of the samples: a part that is slow longer is not intermittent
LATE_SHARE = 0.25  # share of slow samples that makes a measurement late
FAST_SHARE = 0.1
GOOD_QUANTILE = 0.25  # of what is slow for less than 75 % of the time: a good measurement, or sample
# Of the looks over a span, those in which a part is slow and fast: of an intermittent part; of one whose own
# load by others begins or ends in the look; at most, by noise and the loads of single partners.
CHANGING_OF_INTERMITTENT, CHANGING_OF_LOADED, CHANGING_BY_NOISE = 0.55, 0.06, 0.06
# Error of each decision.
# Shares of the looks in which a part is slow beside another of its host that is not: of one that is slow for
# 5 s in 20 s, and of one in a host that others load, if the load begins or ends during the look.
SLOW_OF_INTERMITTENT, SLOW_OF_LOADED = 0.25, 0.01
INTERMITTENT_FROM, LOADED_UP_TO = -math.log(FALSE_CLEARANCE), math.log(0.01)


def intermittent_threshold(share: Floats, count: Floats, own: Floats | float = 0.0) -> Floats:
    """Return the share of slow samples above which each part may be intermittently slow.

    share: of the slow samples of each part; count: samples of each, 0 where it was not measured. own: the
    share that a constant loss of the part explains (`share_of_constant`). Slow samples of a healthy part are
    independent observations of `samples_of_one` samples each, so their number has a Poisson distribution. Its
    mean is unknown, but at most the median + ln 2 (Choi 1994). Of healthy fleets, at most FALSE_SUSPECTS have
    a part above it by chance (Bonferroni): it is only measured again.
    """
    seen = count > 0
    usual = np.maximum(own, float(np.median(share[seen])) if seen.any() else 0.0)
    size = samples_of_one(share[seen], count[seen])
    observations = np.maximum(count, 1) / size
    means, place = np.unique(usual * observations, return_inverse=True)
    most = poisson_limit(means + math.log(2), FALSE_SUSPECTS / max(int(seen.sum()), 1))
    return np.asarray(most[place.reshape(-1)] / observations)


def share_of_constant(fast: Floats, noise: float, slow_above: float, most: float) -> Floats:
    """Return the share of slow samples of parts that are somewhat slow all of the time, by normal noise.

    fast: share of the samples of each part that are faster than siblings, which tells its level; at most
    `most`, up to which a part is healthy. noise: standard deviation of the log of one sample. slow_above: the
    level above which a sample is slow.
    """
    normal = statistics.NormalDist(0, noise or math.ulp(1.0))
    shares, place = np.unique(np.round(fast, 3), return_inverse=True)
    levels = [min(-normal.inv_cdf(min(max(one, 1e-3), 0.5)), most) for one in shares.tolist()]
    return np.array([normal.cdf(level - slow_above) for level in levels])[place.reshape(-1)]


def samples_of_one(share: Floats, count: Floats) -> float:
    """Return how many samples of a healthy part are slow at once, and so count as one observation.

    The index of dispersion (Cox, Lewis 1966), variance over mean, of the numbers of slow samples of parts
    with these shares of so many samples: 1 if they are independent. At least both directions, at most an
    episode, and that where few parts, or none of most, tell.
    """
    parts, usual = len(share), float(np.median(share)) if len(share) else 0.0
    if parts < ENOUGH_PARTS or not usual:
        return BURST
    # Numbers are whole: of two estimates of the deviation, either may be too small.
    above = float(np.quantile(share, ONE_DEVIATION, method="lower")) - usual
    deviation = max(spread(share), above) * (1 + 1 / math.sqrt(parts))
    if not deviation:
        return BURST
    return min(max(float(np.median(count)) * deviation**2 / usual, BOTH_WAYS), BURST)


def poisson_limit(mean: Floats, chance: float) -> Floats:
    """Return the number that a Poisson variable of each mean exceeds with at most this probability."""
    most, term = np.zeros(len(mean)), np.exp(-mean)
    beyond = 1 - term
    while (more := beyond > chance).any():
        most += more
        term = term * mean / np.maximum(most, 1)
        beyond = np.where(more, beyond - term, beyond)
    return most


def is_late(slow: Ints, count: Ints) -> Bools:
    """Whether each measurement had many slow samples."""
    return np.asarray(slow > LATE_SHARE * count)


def is_erratic(fast: int, count: int) -> bool:
    """Whether a part is slow for some of its samples only: many are faster than siblings.

    Of a part that is always slow, nearly none are; of one that is fast for half of the time, a quarter.
    """
    return fast > FAST_SHARE * count


def intermittence(changing: int, looks: int, by_noise: float, witnessed: bool = False) -> float:
    """Return the log of the likelihood ratio that a part is slow part of the time, against a loaded one.

    changing: looks of the given number in which it was slow and fast. by_noise: share of the looks at a
    healthy part that noise makes so (`partners_needed`). Sequential test (Wald 1945) of their share:
    CHANGING_OF_INTERMITTENT against CHANGING_OF_LOADED and that.

    witnessed: looks count only if another part of the same host was fast in them, and a part that is slow for
    a whole look counts as changing: SLOW_OF_INTERMITTENT against SLOW_OF_LOADED.
    """
    one, other = CHANGING_OF_INTERMITTENT, CHANGING_OF_LOADED + by_noise
    if witnessed:
        one, other = SLOW_OF_INTERMITTENT, SLOW_OF_LOADED + by_noise
    return changing * math.log(one / other) + (looks - changing) * math.log((1 - one) / (1 - other))


def is_surely_intermittent(evidence: float, suspects: int) -> bool:
    """Whether `intermittence` decides for a part that is one of so many suspects (Bonferroni).

    Above 64 hosts others load some dozens of NICs at first: at 1 in 1,000 each, one is called intermittent in
    3 % of runs.
    """
    return evidence >= INTERMITTENT_FROM + math.log(max(suspects, 1))


def partners_needed(usual: float, partners: int) -> tuple[int, float]:
    """Return how many of its partners must see a part slow in a look, so that it counts as slow there.

    usual: probability that one partner of a healthy part does, by noise or its own load. As many as see a
    healthy part slow in at most CHANGING_BY_NOISE of looks (binomial distribution), and at least two; more
    than there are if all of them may be slow by chance. Also returns that share of looks.
    """
    several, beyond = 2, 1 - sum(binomial(count, partners, usual) for count in range(2))
    while beyond > CHANGING_BY_NOISE:
        beyond -= binomial(several, partners, usual)
        several += 1
    return several, max(beyond, 0.0)


def share_estimate(found: int, of: int) -> float:
    """Estimate a share from a sample of it (Jeffreys 1946); 0 without a sample."""
    return (found + 0.5) / (of + 1) if of else 0.0


def shares_differ(found: int, of: int, others: int, of_others: int) -> bool:
    """Return whether two shares differ by more than chance: by STANDARD_ERRORS of their difference."""
    if not of or not of_others:
        return False
    both = (found + others) / (of + of_others)
    error = math.sqrt(both * (1 - both) * (1 / of + 1 / of_others))
    return abs(found / of - others / of_others) > STANDARD_ERRORS * error


def binomial(count: int, of: int, chance: float) -> float:
    """Return the probability of `count` successes in so many trials."""
    return math.comb(of, count) * chance**count * (1 - chance) ** (of - count)


def is_stalling(slow: Ints, count: Ints) -> bool:
    """Whether slow samples come one by one, not in episodes.

    slow, count: of each measurement, a run of consecutive samples. Independent samples make the variance of
    their shares that of a binomial distribution, with a standard error of sqrt(2 / measurements) of itself;
    episodes that outlast a sample make it larger (of 6 samples in episodes of 8, 4 times as large).
    """
    share = slow.sum() / count.sum()
    expected = share * (1 - share) * float(np.mean(1 / count))
    most = 1 + STANDARD_ERRORS * math.sqrt(2 / len(count))
    return bool(expected > 0 and float(np.var(slow / count)) < most * expected)


def is_intermittent(share: float, usual: float, partners: int, late: int) -> bool:
    """Whether a part is slow for some of the time in a retest, with any partner.

    share, usual: of its samples, and of others', that were slow. late: measurements with many slow samples;
    partners: ranks in them.
    """
    return min(usual, MOST_USUAL) + CLEAR_EXCESS < share < ALWAYS and partners >= 3 and late >= 2


# --- slower than in earlier runs

FEW_RUNS = 3  # with fewer, the deviation is unknown
DRIFT_SCORE, DRIFT_DIFFERENCE = 4.0, 0.05  # a drift is beyond both
PLAIN_DIFFERENCE = 0.10  # a drift from fewer than FEW_RUNS runs
LEAST_DEVIATION = 0.01  # of the median
PRIOR_RUNS = 10  # runs that the deviation of the other parts counts as
FALSE_ALARMS = 0.001  # of one comparison, whatever the number of figures (Bonferroni)

# By how much 1.4826 MAD of few values is too small (Croux, Rousseeuw 1992); of n > 9: n / (n - 0.8).
SMALL_SAMPLE = {3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


def run_deviation(rates: Sequence[float]) -> float:
    """Estimate a new rate's robust relative standard deviation from the median of these, at least 3."""
    count, middle = len(rates), statistics.median(rates)
    deviation = MAD_SCALE * statistics.median(abs(rate / middle - 1) for rate in rates)
    # The median of n has an error too: 1.2533 / sqrt(n) standard deviations.
    return deviation * SMALL_SAMPLE.get(count, count / (count - 0.8)) * math.sqrt(1 + math.pi / 2 / count)


def common_deviation(deviations: Sequence[float]) -> float:
    """Return the mean without outliers. (For few runs the median is too small: they are skewed.)"""
    most = 3 * statistics.median(deviations)
    return statistics.fmean(one for one in deviations if one <= most)


def pooled_deviation(own: float, common: float, runs: int) -> float:
    """Combine a part's deviation with the common one: mean variance weighted by runs (Smyth 2004)."""
    return max(math.sqrt((runs * own**2 + PRIOR_RUNS * common**2) / (runs + PRIOR_RUNS)), common)


def drift_score(rate: float, usual: float, own: float, common: float, runs: int) -> float:
    """Return how many robust standard deviations a rate is above the usual one (negative: below)."""
    return (rate / usual - 1) / max(pooled_deviation(own, common, runs), LEAST_DEVIATION)


def score_needed(figures: int) -> float:
    """Return the least score of a drift, by number of figures compared: 4 up to 15, 5.5 for 25,000."""
    return max(DRIFT_SCORE, statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(figures, 1))))


def is_drift(rate: float, usual: float, score: float, needed: float) -> bool:
    """Whether a rate has changed. score: NaN of fewer than FEW_RUNS runs. needed: by `score_needed`."""
    off = abs(rate / usual - 1)
    if math.isnan(score):
        return off >= PLAIN_DIFFERENCE
    return off >= DRIFT_DIFFERENCE and abs(score) >= needed
