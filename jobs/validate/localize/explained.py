"""Slow measurements that findings of lower rungs explain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobs.validate.localize.observations import Observations
from jobs.validate.localize.set_cover import Mask

# By rank, for each finding that names it: log of the slowdown, and the remaining rate (bytes per second).
KnownFaults = dict[int, list[tuple[float, float]]]

COMPARABLE = 4.0  # largest ratio of two rates that can limit each other


def explained_rows(faults: KnownFaults, table: Observations, nbytes: int) -> Iterator[tuple[Mask, float]]:
    """Yield, for each rank with a fault, its rows and the level that the fault explains.

    A part that still moves 2 TB/s does not slow a path of 50 GB/s, and a path of 400 GB/s does not pass
    through a part of 50 GB/s, so a fault explains rows only if both rates are within a factor of 4.
    """
    ranks = 1 + max([*faults, int(table.a.max(initial=0)), int(table.b.max(initial=0))])
    bad = np.isin(np.arange(ranks), list(faults))
    if not len(table) or (bad[table.a] | bad[table.b]).all():
        return  # the siblings are slow parts too, so a difference from them has another cause
    usual = float(np.median(nbytes / table.siblings))
    for rank, known in faults.items():
        effects = [effect for effect, rate in known if 1 / COMPARABLE < rate / usual < COMPARABLE]
        if effects:
            yield (table.a == rank) | (table.b == rank), max(effects)
