"""What findings of lower rungs explain on higher ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobs.validate.localize.observations import Table
from jobs.validate.localize.set_cover import Mask

# Of each rank that findings name: log of the slowdown, and the rate (bytes per second) that is left.
Known = dict[int, list[tuple[float, float]]]

COMPARABLE = 4.0


def explained(known: Known, table: Table, nbytes: int) -> Iterator[tuple[Mask, float]]:
    """Rows of a known rank, with what its fault explains.

    A part that still moves 2 TB/s does not slow a path of 50 GB/s; a path of 400 GB/s does not lead through
    one of 50 GB/s. So a fault explains rows only where both rates are comparable: within a factor of 4.
    """
    ranks = 1 + max([*known, int(table.a.max(initial=0)), int(table.b.max(initial=0))])
    bad = np.isin(np.arange(ranks), list(known))
    if not len(table) or (bad[table.a] | bad[table.b]).all():
        return  # the baseline itself is of bad parts: what differs from it does so for another reason
    usual = float(np.median(nbytes / table.siblings))
    for rank, faults in known.items():
        effects = [effect for effect, rate in faults if 1 / COMPARABLE < rate / usual < COMPARABLE]
        if effects:
            yield (table.a == rank) | (table.b == rank), max(effects)
