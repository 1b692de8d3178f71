"""Ranks that fall short of a known rate: measured again, over some time, before they raise an alarm.

A first look at a fleet is one moment of it: the traffic of others, and noise that all measurements of a call
share, slow all siblings alike, so comparing them does not show it. Looks over the plan's span do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshrun.jobs.measure.outliers import far_below_limit, looks_below_limit, row_medians
from meshrun.jobs.validate.localize.observations import Observations
from meshrun.jobs.validate.measurements.repeats import RETEST_REPEATS
from meshrun.jobs.validate.plan import Plan, RungName
from meshrun.jobs.validate.probe.api import Probe, Seconds
from meshrun.jobs.validate.topology import Ints, Topology


class Repeatable(Protocol):
    """A measurement of a rung whose rows can be measured again."""

    probe: Probe
    topology: Topology
    plan: Plan

    def again(self, pairs: Ints, samples: int) -> Iterable[tuple[Ints, Seconds]]:
        """Measure these pairs of ranks (pairs, 2), both ways, as at first. Yields flows and seconds."""


@dataclass(frozen=True)
class Shortfall:
    """best: best rate of each rank, in any look or at first. undecided: ranks that were below the known rate
    in most looks but not in all.
    """

    best: Mapping[int, float]
    undecided: tuple[int, ...]


def has_rates_of_ranks(rung: RungName, topology: Topology, plan: Plan) -> bool:
    """Return whether each rank's own best rate is known on this rung.

    Where partners are sampled, a rank may have met only partners beyond a switch that is slower by design.
    """
    sampled = topology.hosts > plan.full_mesh_hosts
    return rung not in ("node", "rails") and not (rung == "host pairs" and sampled)


def rates_of_ranks(table: Observations, work: int, ranks: int) -> dict[int, float]:
    """Return each rank's best rate with any partner: not even one of its measurements was faster."""
    best = np.zeros(ranks)
    for side in (table.a, table.b):
        np.maximum.at(best, side, work / table.seconds)
    return {rank: float(best[rank]) for rank in np.flatnonzero(best).tolist()}


def best_pairs(table: Observations, ranks: Iterable[int], tolerance: float) -> Ints:
    """Return (pairs, 2): each of these ranks with a partner with which it is about as fast as ever.

    First pairs that show both of their ranks, so that there are few; then each remaining one's fastest.
    """
    left, found = {*ranks}, list[tuple[int, int]]()
    rows = np.argsort(table.seconds, kind="stable")
    a, b = table.a[rows].tolist(), table.b[rows].tolist()
    fastest: dict[int, float] = {}
    for one, other, seconds in zip(a, b, table.seconds[rows].tolist(), strict=True):
        usual = min(fastest.setdefault(rank, seconds) for rank in (one, other))
        if {one, other} <= left and seconds <= usual * (1 + tolerance):
            found.append((one, other))
            left -= {one, other}
    for one, other in zip(a, b, strict=True):
        if {one, other} & left:
            found.append((one, other))
            left -= {one, other}
    return np.array(found, np.int64).reshape(-1, 2)


def look_again(
    measurement: Repeatable, table: Observations, work: int, slow: Mapping[int, float], least: float
) -> Shortfall:
    """Measure ranks that were below a known rate again, in looks over the plan's span.

    table: of the first measurement. work: bytes or operations of one measurement. slow: rates of the ranks.
    least: the known rate.

    A rank is clear when it has reached the rate in half of its looks. It falls short if it was below in all
    of them: in as many (`looks_below_limit`) that no rank that reaches the rate in half of its time is below
    in all of them by chance; RETEST_REPEATS while all are far below, which noise does not make them, and
    load not for the whole span. Raises TimeUpError.
    """
    probe, plan = measurement.probe, measurement.plan
    left, best, reached = {*slow}, dict(slow), dict.fromkeys(slow, 0)
    pairs, most = best_pairs(table, left, plan.tolerance), looks_below_limit(measurement.topology.ranks)
    due, looks, needed = probe.clock(), 0, most
    while left and looks < needed:
        far = all(far_below_limit(best[rank], least) for rank in left)
        needed = min(RETEST_REPEATS, most) if far else most
        due += plan.retest_span / needed
        if (pause := due - probe.clock()) > 0:
            probe.wait(pause)
        now = dict.fromkeys(left, 0.0)
        shown = pairs[np.isin(pairs, list(left)).any(axis=1)]
        for flows, seconds in measurement.again(shown, plan.retest_samples):
            rates = work / row_medians(seconds)
            for (a, b), rate in zip(flows.tolist(), rates.tolist(), strict=True):
                for rank in {a, b} & left:
                    now[rank] = max(now[rank], rate)
        looks += 1
        for rank, rate in now.items():
            best[rank] = max(best[rank], rate)
            reached[rank] += rate >= least
        left = {rank for rank in left if 2 * reached[rank] < looks}
    return Shortfall(best, tuple(sorted(rank for rank in left if reached[rank])))
