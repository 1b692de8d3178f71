"""Split the hosts of a rail into two sides: slow with the other side, fast among each other.

If a fabric has two leaf switches on a rail and the uplinks of either are slow, all flows between them are,
and no flow shows which one it is. With more switches, the slow one is on a side of its own.
"""

from __future__ import annotations

import numpy as np

from meshrun.jobs.measure.outliers import Floats
from meshrun.jobs.validate.localize.set_cover import Mask
from meshrun.jobs.validate.topology import Ints


def two_sides(slow: Floats, known: Floats) -> Mask:
    """Return the smaller of the two sides (the first, of equals).

    slow, known: (members, members), symmetric: number of slow flows between two members, and of all. Largest
    cut of slow flows less fast ones, by the eigenvector of the least eigenvalue (Delorme, Poljak 1993).
    """
    inside = np.linalg.eigh(2 * slow - known)[1][:, 0] > 0
    sizes = inside.sum(), (~inside).sum()
    smaller = inside if sizes[0] < sizes[1] or (sizes[0] == sizes[1] and inside[:1].any()) else ~inside
    return np.asarray(smaller)


def is_either(inside: Mask, apart: Floats) -> bool:
    """Return whether the slow switch may be that of the other side as well.

    apart: as `two_sides` takes it, number of flows among the members that are known to pass uplinks. The
    other side is one switch unless such flows are fast there, or unless it has room for two of this size.
    """
    outside = ~inside
    if apart[np.ix_(outside, outside)].any():
        return False
    return bool(outside.sum() < 2 * inside.sum() or apart.any())


def ranks_of_sides(inside: Mask, ranks: Ints, apart: Floats) -> tuple[Ints, Ints]:
    """Return the ranks of the slow side, and those of the other side if that is as likely. ranks: of all."""
    return ranks[inside], ranks[~inside] if is_either(inside, apart) else ranks[:0]
