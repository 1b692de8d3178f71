"""A ladder's measurements as rates: of each part for a baseline, of each pair for a drawing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobs.validate.attribution.robust import group_medians
from jobs.validate.attribution.table import Table
from jobs.validate.fleet import Fleet, Ints
from jobs.validate.ladder import Ladder
from jobs.validate.plan import RungName
from jobs.validate.report.model import Matrix

Figures = dict[
    tuple[RungName, str, str], float
]  # rung, measurement, part ("": the fleet) -> its rate, in `verdict.unit_of` the measurement

DRAWN = 16  # hosts whose GPU pairs are drawn, the slowest ones
RAILS_DRAWN = 64  # hosts up to which every rail has a drawing of its own


def figures(ladder: Ladder) -> Figures:
    """Median rates of the fleet and of each part that rungs measure: GPUs, hosts, rails."""
    found: Figures = {}
    for rung in ladder.rungs:
        for what, rate in rung.rates.items():
            found[rung.name, what, ""] = rate
    for (name, what), (table, nbytes) in ladder.tables.items():
        keys, medians = _by_part(table, name, nbytes)
        parts = _parts(name, ladder.fleet, keys)
        for part, rate in zip(parts, medians.tolist(), strict=True):
            found[name, what, part] = rate
    return found


def _by_part(table: Table, name: RungName, nbytes: int) -> tuple[Ints, np.ndarray]:
    """Ranks (hosts of the rung "node", rails of "rails") and the median rate of what each took part in."""
    seconds = table.seconds
    both = table.a if name in ("node", "rails") else np.concatenate([table.a, table.b])
    values = seconds if len(both) == len(seconds) else np.concatenate([seconds, seconds])
    return np.unique(both), nbytes / group_medians(values, both)


def _parts(name: RungName, fleet: Fleet, keys: Ints) -> list[str]:
    if name == "node":
        return [f"host {fleet.names[key]}" for key in keys]
    if name == "rails":
        return [f"rail {key}" for key in keys]
    return [f"host {fleet.names[fleet.host[key]]}, {fleet.unit} {fleet.gpu[key]}" for key in keys]


def matrices(ladder: Ladder) -> tuple[Matrix, ...]:
    """Rates between the GPUs of a host, and between hosts on each rail (of many hosts: the slowest rail)."""
    return (*_inside(ladder, "copies"), *_inside(ladder, "flows"), *_between(ladder))


def _inside(ladder: Ladder, what: str) -> Iterator[Matrix]:
    if ("pairs", what) not in ladder.tables:
        return
    fleet = ladder.fleet
    table, nbytes = ladder.tables["pairs", what]
    host = fleet.host[table.a]
    slowest = np.full(fleet.hosts, -np.inf)
    np.maximum.at(slowest, host, table.level)
    measured = np.flatnonzero(slowest > -np.inf)
    drawn = measured[np.argsort(-slowest[measured], kind="stable")][:DRAWN]
    few = "" if len(measured) <= DRAWN else f" (one of the {DRAWN} with the slowest pair)"
    for number in np.sort(drawn):
        rows = host == number
        ranks = fleet.on(int(number))
        rates = _square(
            np.searchsorted(ranks, table.a[rows]), np.searchsorted(ranks, table.b[rows]),
            nbytes / table.seconds[rows], len(ranks),
        )  # fmt: skip
        labels = tuple(f"{fleet.unit} {fleet.gpu[rank]}" for rank in ranks)
        title = f"host {fleet.names[number]}, {fleet.unit} to {fleet.unit}{few}"
        yield Matrix("pairs", what, title, labels, rates)


def _between(ladder: Ladder) -> Iterator[Matrix]:
    if ("host pairs", "flows") not in ladder.tables:
        return
    fleet = ladder.fleet
    table, nbytes = ladder.tables["host pairs", "flows"]
    rate, same = nbytes / table.seconds, fleet.gpu[table.a] == fleet.gpu[table.b]
    a, b = fleet.host[table.a], fleet.host[table.b]
    if fleet.hosts > RAILS_DRAWN:
        title = "host to host, the slowest rail of each pair"
        square = _square(a[same], b[same], rate[same], fleet.hosts)
        yield Matrix("host pairs", "flows", title, fleet.names, square)
        return
    for rail in range(fleet.rails):
        rows = same & (fleet.gpu[table.a] == rail)
        rates = _square(a[rows], b[rows], rate[rows], fleet.hosts)
        yield Matrix("host pairs", "flows", f"host to host, rail {rail}", fleet.names, rates)


def _square(a: Ints, b: Ints, rate: np.ndarray, size: int) -> tuple[tuple[float | None, ...], ...]:
    """Rates at (a, b), the smallest where there are several; None elsewhere."""
    square = np.full((size, size), np.inf)
    np.minimum.at(square, (a, b), rate)
    return tuple(tuple(None if cell == np.inf else cell for cell in row) for row in square.tolist())
