"""Distance of rates from those of earlier runs, in robust standard deviations."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from jobs.measure.outliers import (
    FEW_RUNS,
    common_deviation,
    drift_score,
    is_drift,
    run_deviation,
    score_needed,
)
from jobs.validate.baseline.baseline_run import Figure
from jobs.validate.report.model import Drift


def drifted(figures: Mapping[Figure, float], earlier: Mapping[Figure, Sequence[float]]) -> tuple[Drift, ...]:
    """Return the figures that differ from their earlier rates, slowest first.

    score: (rate - median) / deviation. The deviation is the robust one of the earlier rates. As few runs give
    a poor estimate, it is shrunk towards the common one of the same measurement's parts (Smyth 2004), and is
    at least that, and at least 1 %. More figures need a larger score: 4 for up to 15 figures, 5.5 for 25,000.
    """
    usual = {figure: statistics.median(rates) for figure, rates in earlier.items()}
    own = {figure: run_deviation(rates) for figure, rates in earlier.items() if len(rates) >= FEW_RUNS}
    alike: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for (rung, what, part), known in own.items():
        alike[rung, what, part == ""].append(known)
    common = {key: common_deviation(values) for key, values in alike.items()}
    needed = score_needed(len(own))
    found = []
    for figure, rates in earlier.items():
        rung, what, part = figure
        rate, before, score = figures[figure], usual[figure], math.nan
        if figure in own:
            score = drift_score(rate, before, own[figure], common[rung, what, part == ""], len(rates))
        if is_drift(rate, before, score, needed):
            found.append(Drift(rung, what, part, rate, before, score, len(rates)))
    return tuple(sorted(found, key=lambda one: one.rate / one.usual))
