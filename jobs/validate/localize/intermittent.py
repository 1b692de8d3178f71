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
        # `met` has each NIC and partner in order: the partners of a NIC follow each other.
        self.nics, self.first, self.partners = np.unique(met // ranks, return_index=True, return_counts=True)
        self.of = np.repeat(np.arange(len(self.nics)), self.partners)
        self.met = [(place.reshape(-1)[: len(a)], shows_a), (place.reshape(-1)[len(a) :], shows_b)]
        self.slow_with, self.count_with = np.zeros(len(met)), np.zeros(len(met))
        self.seen = cover.open.copy()
        for where, mask in self.met:
            some = np.flatnonzero(self.seen & mask)
            self.slow_with += np.bincount(where[some], self.both[some], len(met))
            self.count_with += np.bincount(where[some], self.number[some], len(met))
        self.slow, self.count = np.zeros(ranks), np.zeros(ranks)
        self.add_up(np.arange(len(self.nics)))

    def update(self) -> None:
        """Subtract the rows closed since the last call."""
        closed = np.flatnonzero(self.seen & ~self.cover.open)
        self.seen[closed] = False
        changed = []
        for where, mask in self.met:
            some = closed[mask[closed]]
            np.subtract.at(self.slow_with, where[some], self.both[some])
            np.subtract.at(self.count_with, where[some], self.number[some])
            changed.append(self.of[where[some]])
        self.add_up(np.unique(np.concatenate(changed)))

    def add_up(self, which: Ints) -> None:
        """Add up the samples of these NICs (of `nics`), without one of SEVERAL partners."""
        if not len(which):
            return
        sizes = self.partners[which]
        begin = np.cumsum(sizes) - sizes
        of = np.repeat(np.arange(len(which)), sizes)
        places = np.arange(len(of)) + (self.first[which] - begin)[of]
        slow_with, count_with = self.slow_with[places], self.count_with[places]
        slow, count = (np.add.reduceat(some, begin) for some in (slow_with, count_with))
        known = count_with > 0
        several = np.add.reduceat(known, begin, dtype=np.int64) >= SEVERAL
        most = np.where(several, np.maximum.reduceat(slow_with, begin), np.inf)
        worst = np.flatnonzero(known & (slow_with == most[of]))
        worst = worst[np.flatnonzero(np.diff(of[worst], append=-1))]  # one of each NIC
        slow[of[worst]] -= slow_with[worst]
        count[of[worst]] -= count_with[worst]
        self.slow[self.nics[which]], self.count[self.nics[which]] = slow, count

    def suspect(self, most: int, proven: Sequence[int] = ()) -> Suspect | None:
        """Return the rank with the largest share of slow samples, if that is far above the usual share.

        most: ties (ranks with nearly as large a share) to return. proven: ranks that need no large share.
        """
        self.update()
        slow, count = self.slow.copy(), self.count
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
