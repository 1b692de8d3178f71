"""What findings of lower rungs explain on higher ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobs.validate.localize.observations import Observations
from jobs.validate.localize.set_cover import Mask

# Of each rank that findings name: log of the slowdown, and the rate (bytes per second) that is left.
KnownFaults = dict[int, list[tuple[float, float]]]

COMPARABLE = 4.0


def explained_rows(faults: KnownFaults, table: Observations, nbytes: int) -> Iterator[tuple[Mask, float]]:
    """For each rank with a fault, its rows and the level that the fault explains.

    A part that still moves 2 TB/s does not slow a path of 50 GB/s, and a path of 400 GB/s does not lead
    through a part of 50 GB/s. So a fault explains rows only where both rates are within a factor of 4.
    """
    ranks = 1 + max([*faults, int(table.a.max(initial=0)), int(table.b.max(initial=0))])
    bad = np.isin(np.arange(ranks), list(faults))
    if not len(table) or (bad[table.a] | bad[table.b]).all():
        return  # the siblings are slow parts too: what differs from them does so for another reason
    usual = float(np.median(nbytes / table.siblings))
    for rank, known in faults.items():
        effects = [effect for effect, rate in known if 1 / COMPARABLE < rate / usual < COMPARABLE]
        if effects:
            yield (table.a == rank) | (table.b == rank), max(effects)
