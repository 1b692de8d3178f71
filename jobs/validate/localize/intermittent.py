"""NICs that are slow for some of the time: the medians hide them, the share of slow samples does not."""

from __future__ import annotations

import numpy as np

from jobs.measure.outliers import intermittent_threshold
from jobs.validate.localize.observations import Table
from jobs.validate.localize.set_cover import Cover, Suspect
from jobs.validate.topology import Ints


class Shares:
    """Of each rank: how many samples of what is open in `cover` are slow, and how many there are."""

    def __init__(self, cover: Cover, ranks: int) -> None:
        self.cover, self.ranks = cover, ranks
        self.both = together(cover.table, ranks)
        self.slow, self.count = np.zeros(ranks), np.zeros(ranks)
        self.seen = np.zeros(len(cover.table), bool)
        self.follow()

    def follow(self) -> None:
        """Count what was closed since the last time out (the first time: all that is open in)."""
        table, sign = self.cover.table, -1 if self.seen.any() else 1
        rows = np.flatnonzero(self.seen ^ self.cover.open)
        for side in (table.a[rows], table.b[rows]):
            self.slow += sign * np.bincount(side, self.both[rows], self.ranks)
            self.count += sign * np.bincount(side, table.count[rows], self.ranks)
        self.seen = self.cover.open.copy()

    def suspect(self, most: int) -> Suspect | None:
        """The rank with the largest share of slow samples, when that is far above the usual share.

        most: ties, ranks with nearly as large a share.
        """
        self.follow()
        slow, table = self.slow.copy(), self.cover.table
        slow[[key for kind, key in self.cover.out if kind == "flap"]] = 0
        seen = self.count > 0
        share = np.divide(slow, self.count, out=np.zeros(self.ranks), where=seen)
        over = np.where(share > intermittent_threshold(share, self.count), share, 0.0)
        if not over.any():
            return None
        rank = int(over.argmax())
        close = np.flatnonzero(over > 0.8 * over[rank])
        ties = tuple(("flap", int(other)) for other in close[close != rank][:most])
        return Suspect("flap", rank, (table.a == rank) | (table.b == rank), np.inf, ties)


def together(table: Table, ranks: int) -> Ints:
    """Slow samples of each flow, of a pair's first meeting no more than in the other direction at the same
    time.

    A NIC that flaps is slow in both; flows that collide in the network are so in one.
    """
    slow = table.slow.copy()
    first = np.flatnonzero(~table.again)
    there, back = (table.a * ranks + table.b)[first], (table.b * ranks + table.a)[first]
    order, needles = np.argsort(there), np.argsort(back)  # both in order: the search stays in the cache
    place = np.searchsorted(there[order], back[needles])
    found = np.empty_like(order)
    found[needles] = order[np.minimum(place, max(len(order) - 1, 0))]
    met = there[found] == back
    slow[first[met]] = np.minimum(slow[first[met]], slow[first[found[met]]])
    return np.asarray(slow)
