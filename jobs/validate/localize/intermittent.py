"""NICs that are slow part of the time: medians hide them, the share of slow samples shows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobs.measure.outliers import ALWAYS, BURST, intermittent_threshold
from jobs.validate.localize.observations import Observations
from jobs.validate.localize.set_cover import Cover, Mask, Suspect
from jobs.validate.topology import Ints

ALIKE = 0.8  # share / largest share, above which two NICs are ties

LONG = 1.5  # times BURST


class SlowShares:
    """Slow samples and all samples of each NIC, over the open rows of `cover`.

    Without rows that are `slow_throughout`: the load of one host would make all that met it suspects. Nor do
    retests of NICs that others load count for their partners.

    loaded: NICs that were looked at, and that others load. owner: (ranks,), the rank that stands for the NIC
    of each. shown: whether each row shows the NIC of its sender, and of its receiver.
    """

    def __init__(
        self, cover: Cover, owner: Ints, shown: tuple[Mask, Mask], loaded: Sequence[int] = ()
    ) -> None:
        self.cover, self.ranks, ranks = cover, len(owner), len(owner)
        table = cover.table
        self.sides = [(owner[side], mask) for side, mask in zip((table.a, table.b), shown, strict=True)]
        with_loaded = np.isin(owner[table.a], loaded) | np.isin(owner[table.b], loaded)
        changing = ~slow_throughout(table) & ~(table.retested & with_loaded)
        self.both, self.number = slow_both_ways(table, ranks) * changing, table.count * changing
        self.slow, self.count = np.zeros(ranks), np.zeros(ranks)
        self.seen = np.zeros(len(cover.table), bool)
        self.update()

    def update(self) -> None:
        """Subtract the rows closed since the last call; the first call counts all open rows."""
        sign = -1 if self.seen.any() else 1
        rows = np.flatnonzero(self.seen ^ self.cover.open)
        for side, mask in self.sides:
            some = rows[mask[rows]]
            self.slow += sign * np.bincount(side[some], self.both[some], self.ranks)
            self.count += sign * np.bincount(side[some], self.number[some], self.ranks)
        self.seen = self.cover.open.copy()

    def suspect(self, most: int, proven: Sequence[int] = ()) -> Suspect | None:
        """Return the rank with the largest share of slow samples, if that is far above the usual share.

        most: ties (ranks with nearly as large a share) to return. proven: ranks that need no large share.
        """
        self.update()
        slow = self.slow.copy()
        slow[[key for kind, key in self.cover.excluded if kind == "flap"]] = 0
        share = np.divide(slow, self.count, out=np.zeros(self.ranks), where=self.count > 0)
        large = share > intermittent_threshold(share, self.count)
        large[list(proven)] = True
        over = np.where(large, share, 0.0)
        if not over.any():
            return None
        rank = int(over.argmax())
        close = np.flatnonzero(over > ALIKE * over[rank])
        ties = tuple(("flap", int(other)) for other in close[close != rank][:most])
        through = np.logical_or.reduce([(side == rank) & mask for side, mask in self.sides])
        return Suspect("flap", rank, through, np.inf, ties)


def slow_throughout(table: Observations) -> Mask:
    """Return the rows of a first measurement that were slow for longer than a part that comes and goes is.

    That is a constant loss, or the load of others. Of episodes with a mean of BURST samples, one in e^LONG
    lasts for LONG times as many.
    """
    always = (table.slow >= ALWAYS * table.count) & (table.count >= LONG * BURST)
    return np.asarray(always & ~table.retested)


def slow_both_ways(table: Observations, ranks: int) -> Ints:
    """Return the slow samples of each flow; in a first measurement at most as many as its reverse flow has.

    A flapping NIC is slow in both directions at once; flows that collide in the network, in one.
    """
    slow = table.slow.copy()
    first = np.flatnonzero(~table.retested)
    there, back = (table.a * ranks + table.b)[first], (table.b * ranks + table.a)[first]
    order, needles = np.argsort(there), np.argsort(back)  # both sorted, for a cache-friendly search
    place = np.searchsorted(there[order], back[needles])
    found = np.empty_like(order)
    found[needles] = order[np.minimum(place, max(len(order) - 1, 0))]
    met = there[found] == back
    slow[first[met]] = np.minimum(slow[first[met]], slow[first[found[met]]])
    return np.asarray(slow)
