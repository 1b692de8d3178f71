"""Rates from a ladder's measurements: of each part for the baseline, of each pair for the heat maps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshrun.jobs.measure.outliers import group_medians
from meshrun.jobs.validate.ladder.ladder import Ladder
from meshrun.jobs.validate.localize.observations import Observations
from meshrun.jobs.validate.measurements.below_limit import has_rates_of_ranks, rates_of_ranks
from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.report.model import RateMatrix
from meshrun.jobs.validate.topology import Ints, Topology

# (rung, measurement, part; "" is the whole fleet) -> rate, in the `verdict.unit_of` the measurement
PartRates = dict[tuple[RungName, str, str], float]

DRAWN = 16  # hosts whose GPU pairs are reported: the slowest ones
BEST_QUARTER = 0.75
RAILS_DRAWN = 64  # up to this many hosts, each rail has its own matrix


def part_rates(ladder: Ladder) -> PartRates:
    """Return the median rates of the fleet and of each part that rungs measure: GPUs, hosts, rails."""
    found: PartRates = {}
    for rung in ladder.rungs:
        for what, rate in rung.rates.items():
            found[rung.name, what, ""] = rate
    for name, what in ladder.tables:
        table, nbytes = ladder.rated(name, what)
        keys, medians = _by_part(table, name, nbytes)
        parts = _parts(name, ladder.topology, keys)
        for part, rate in zip(parts, medians.tolist(), strict=True):
            found[name, what, part] = rate
    return found


BestRates = dict[tuple[RungName, str], dict[int, float]]  # by rung and measurement, of each rank


def best_rates(ladder: Ladder) -> BestRates:
    """Return each rank's best rate with any partner, in the first measurement or when it was looked at again.

    Only of rungs on which that is known (`has_rates_of_ranks`). Where partners of host pairs are sampled, a
    rank may have met only hosts beyond slower uplinks: all have the rate that the best quarter reaches.
    """
    topology, found = ladder.topology, BestRates()
    for name, what in ladder.tables:
        if name in ("node", "rails"):
            continue
        table, work = ladder.rated(name, what)
        best = rates_of_ranks(table, work, topology.ranks)
        if not has_rates_of_ranks(name, topology, ladder.plan):
            best = dict.fromkeys(best, float(np.quantile(list(best.values()), BEST_QUARTER)))
        again, unjudged = ladder.rates_again.get((name, what), {}), ladder.of_loads.get((name, what), set())
        found[name, what] = {
            rank: max(rate, again.get(rank, 0.0)) for rank, rate in best.items() if rank not in unjudged
        }
    return found


def _by_part(table: Observations, name: RungName, nbytes: int) -> tuple[Ints, np.ndarray]:
    """Return the parts (hosts for rung "node", rails for "rails", else ranks) and their median rates."""
    seconds = table.seconds
    both = table.a if name in ("node", "rails") else np.concatenate([table.a, table.b])
    values = seconds if len(both) == len(seconds) else np.concatenate([seconds, seconds])
    return np.unique(both), nbytes / group_medians(values, both)


def _parts(name: RungName, topology: Topology, keys: Ints) -> list[str]:
    if name == "node":
        return [f"host {topology.names[key]}" for key in keys]
    if name == "rails":
        return [f"rail {key}" for key in keys]
    return [f"host {topology.names[topology.host[key]]}, {topology.unit} {topology.gpu[key]}" for key in keys]


def matrices(ladder: Ladder) -> tuple[RateMatrix, ...]:
    """Return rates between the GPUs of a host, and between hosts by rail (many hosts: slowest rail only)."""
    return (*_inside(ladder, "copies"), *_inside(ladder, "flows"), *_between(ladder))


def _inside(ladder: Ladder, what: str) -> Iterator[RateMatrix]:
    if ("pairs", what) not in ladder.tables:
        return
    topology = ladder.topology
    table, nbytes = ladder.tables["pairs", what]
    host = topology.host[table.a]
    slowest = np.full(topology.hosts, -np.inf)
    np.maximum.at(slowest, host, table.level)
    measured = np.flatnonzero(slowest > -np.inf)
    drawn = measured[np.argsort(-slowest[measured], kind="stable")][:DRAWN]
    few = "" if len(measured) <= DRAWN else f" (one of the {DRAWN} with the slowest pair)"
    for number in np.sort(drawn):
        rows = host == number
        ranks = topology.on(int(number))
        rates = _square(
            np.searchsorted(ranks, table.a[rows]), np.searchsorted(ranks, table.b[rows]),
            nbytes / table.seconds[rows], len(ranks),
        )  # fmt: skip
        labels = tuple(f"{topology.unit} {topology.gpu[rank]}" for rank in ranks)
        title = f"host {topology.names[number]}, {topology.unit} to {topology.unit}{few}"
        yield RateMatrix("pairs", what, title, labels, rates)


def _between(ladder: Ladder) -> Iterator[RateMatrix]:
    if ("host pairs", "flows") not in ladder.tables:
        return
    topology = ladder.topology
    if topology.hosts > ladder.plan.all_pairs_hosts:
        return  # of a sample of the pairs
    table, nbytes = ladder.tables["host pairs", "flows"]
    rate, same = nbytes / table.seconds, topology.gpu[table.a] == topology.gpu[table.b]
    a, b = topology.host[table.a], topology.host[table.b]
    if topology.hosts > RAILS_DRAWN:
        title = "host to host, the slowest rail of each pair"
        square = _square(a[same], b[same], rate[same], topology.hosts)
        yield RateMatrix("host pairs", "flows", title, topology.names, square)
        return
    for rail in range(topology.rails):
        rows = same & (topology.gpu[table.a] == rail)
        rates = _square(a[rows], b[rows], rate[rows], topology.hosts)
        yield RateMatrix("host pairs", "flows", f"host to host, rail {rail}", topology.names, rates)


def _square(a: Ints, b: Ints, rate: np.ndarray, size: int) -> tuple[tuple[float | None, ...], ...]:
    """Return a (size, size) matrix with the smallest rate of each (a, b); None where there is none."""
    square = np.full((size, size), np.inf)
    np.minimum.at(square, (a, b), rate)
    return tuple(tuple(None if cell == np.inf else cell for cell in row) for row in square.tolist())
