"""NICs that are slow part of the time: medians hide them, the share of slow samples shows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobs.measure.outliers import ALWAYS, BURST, Floats, intermittent_threshold
from jobs.validate.localize.observations import Observations
from jobs.validate.localize.set_cover import Cover, Mask, Suspect
from jobs.validate.topology import Ints

ALIKE = 0.8  # share / largest share, above which two NICs are ties

LONG = 1.5  # times BURST
SEVERAL = 3  # partners, of which one does not count


class SlowShares:
    """Slow samples and all samples of each NIC, over the open rows of `cover`.

    Without rows that are `slow_throughout`: the load of one host would make all that met it suspects. Nor do
    retests of NICs that others load count for their partners. And of a NIC with several partners, the one
    that sees the most slow samples does not count: they may be its own, or of a load of it.

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
        (a, shows_a), (b, shows_b) = self.sides
        met, place = np.unique(np.concatenate([a * ranks + b, b * ranks + a]), return_inverse=True)
        self.nic = met // ranks  # of each NIC and partner, in order
        self.first = np.flatnonzero(np.diff(self.nic, prepend=-1))  # of each NIC
        self.met = [(place.reshape(-1)[: len(a)], shows_a), (place.reshape(-1)[len(a) :], shows_b)]
        self.slow_with, self.count_with = np.zeros(len(met)), np.zeros(len(met))
        self.seen = np.zeros(len(cover.table), bool)
        self.update()

    def update(self) -> None:
        """Subtract the rows closed since the last call; the first call counts all open rows."""
        sign = -1 if self.seen.any() else 1
        rows = np.flatnonzero(self.seen ^ self.cover.open)
        for place, mask in self.met:
            some = rows[mask[rows]]
            self.slow_with += sign * np.bincount(place[some], self.both[some], len(self.nic))
            self.count_with += sign * np.bincount(place[some], self.number[some], len(self.nic))
        self.seen = self.cover.open.copy()

    def suspect(self, most: int, proven: Sequence[int] = ()) -> Suspect | None:
        """Return the rank with the largest share of slow samples, if that is far above the usual share.

        most: ties (ranks with nearly as large a share) to return. proven: ranks that need no large share.
        """
        self.update()
        slow, count = self.of_partners()
        slow[[key for kind, key in self.cover.excluded if kind == "flap"]] = 0
        share = np.divide(slow, count, out=np.zeros(self.ranks), where=count > 0)
        large = share > intermittent_threshold(share, count)
        large[list(proven)] = True
        over = np.where(large, share, 0.0)
        if not over.any():
            return None
        rank = int(over.argmax())
        close = np.flatnonzero(over > ALIKE * over[rank])
        ties = tuple(("flap", int(other)) for other in close[close != rank][:most])
        through = np.logical_or.reduce([(side == rank) & mask for side, mask in self.sides])
        return Suspect("flap", rank, through, np.inf, ties)

    def of_partners(self) -> tuple[Floats, Floats]:
        """Return (ranks,): slow samples and all samples of each NIC, without one of SEVERAL partners."""
        if not len(self.nic):
            return np.zeros(self.ranks), np.zeros(self.ranks)
        first = self.first
        sums = [np.add.reduceat(some, first) for some in (self.slow_with, self.count_with)]
        known = self.count_with > 0
        several = np.add.reduceat(known, first, dtype=np.int64) >= SEVERAL
        most = np.where(several, np.maximum.reduceat(self.slow_with, first), np.inf)
        worst = np.flatnonzero(known & (self.slow_with == np.repeat(most, np.diff(first, append=len(known)))))
        worst = worst[np.flatnonzero(np.diff(self.nic[worst], append=-1))]  # one of each NIC
        slow, count = np.zeros(self.ranks), np.zeros(self.ranks)
        slow[self.nic[first]], count[self.nic[first]] = sums
        slow[self.nic[worst]] -= self.slow_with[worst]
        count[self.nic[worst]] -= self.count_with[worst]
        return slow, count


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
