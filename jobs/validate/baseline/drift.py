"""How far rates are from those of earlier runs, in robust standard deviations."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from jobs.validate.attribution.robust import MAD_SCALE
from jobs.validate.baseline.run import Figure
from jobs.validate.report.model import Drift

ENOUGH = 3  # runs; of fewer, no deviation is known
SCORE, DIFFERENCE = 4.0, 0.05  # a drift is beyond both
FLOOR = 0.01  # of the median, the least standard deviation
PLAIN = 0.10  # a drift from fewer than `ENOUGH` runs
PRIOR = 10  # runs that the deviation of the other parts counts as
FALSE_ALARMS = 0.001  # of one comparison, whatever the number of figures (Bonferroni)

# By how much 1.4826 MAD of few values is too small (Croux, Rousseeuw 1992); of n > 9: n / (n - 0.8).
SMALL = {3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


def drifted(figures: Mapping[Figure, float], earlier: Mapping[Figure, Sequence[float]]) -> tuple[Drift, ...]:
    """What differs from its earlier rates, the slowest first.

    score: (rate - median) / deviation. The deviation is the robust one of the earlier rates; as that is vague
    of few runs, it is drawn towards what is common among the parts of the same measurement (Smyth 2004), and
    no less than that, nor than 1 %. The more figures there are, the more deviations are needed: 4 of up to 15
    figures, 5.5 of 25,000.
    """
    usual = {figure: statistics.median(rates) for figure, rates in earlier.items()}
    own = {figure: deviation(rates) for figure, rates in earlier.items() if len(rates) >= ENOUGH}
    alike: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for (rung, what, part), known in own.items():
        alike[rung, what, part == ""].append(known)
    common = {key: typical(values) for key, values in alike.items()}
    least = max(SCORE, statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(len(own), 1))))
    found = []
    for figure, rates in earlier.items():
        rung, what, part = figure
        off, score = figures[figure] / usual[figure] - 1, math.nan
        if figure in own:
            score = off / max(drawn(own[figure], common[rung, what, part == ""], len(rates)), FLOOR)
        if abs(off) >= PLAIN if math.isnan(score) else abs(off) >= DIFFERENCE and abs(score) >= least:
            found.append(Drift(rung, what, part, figures[figure], usual[figure], score, len(rates)))
    return tuple(sorted(found, key=lambda one: one.rate / one.usual))


def deviation(rates: Sequence[float]) -> float:
    """Robust relative standard deviation of a new rate from the median of these, at least three."""
    count, middle = len(rates), statistics.median(rates)
    spread = MAD_SCALE * statistics.median(abs(rate / middle - 1) for rate in rates)
    # The median of n is off as well: by 1.2533 / sqrt(n) standard deviations.
    return spread * SMALL.get(count, count / (count - 0.8)) * math.sqrt(1 + math.pi / 2 / count)


def typical(deviations: Sequence[float]) -> float:
    """Mean of those that are no outliers. (Of few runs they are skewed: their median is too small.)"""
    most = 3 * statistics.median(deviations)
    return statistics.fmean(one for one in deviations if one <= most)


def drawn(own: float, common: float, runs: int) -> float:
    """The deviation of a part, given what is common: a mean of variances, weighed by runs."""
    return max(math.sqrt((runs * own**2 + PRIOR * common**2) / (runs + PRIOR)), common)
