"""Move the cells of a split array to the ranks of another partition."""

from __future__ import annotations

import numpy as np

from meshrun.runner.comm.checksum.checked import named
from meshrun.runner.plan.grid import Parts
from meshrun.runner.region import Array, overlap
from meshrun.runner.world.group import Group


def redistribute(group: Group, cells: Array, before: Parts, after: Parts, out: Array | None = None) -> Array:
    """Return this rank's part of an array under the partition `after`. Collective.

    cells: its part under the partition `before`. out: what to fill and return, of any strides.
    """
    rank, ranks = group.rank, range(group.size)
    mine, wanted = before[rank], after[rank]
    if out is None:
        out = group.backend.empty(wanted.shape, np.dtype(cells.dtype))
    sent = [overlap(mine, after[other]) for other in ranks]
    received = [overlap(before[other], wanted) for other in ranks]
    with named(group.arrays, "redistribute"):
        group.exchange(
            [(other, cells[part.slices_in(mine)]) for other, part in zip(ranks, sent, strict=True)],
            [(other, out[part.slices_in(wanted)]) for other, part in zip(ranks, received, strict=True)],
        )
    return out
