"""NICs that are slow part of the time: medians hide them, the share of slow samples shows them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from meshrun.jobs.measure.outliers import (
    ALWAYS,
    BURST,
    SAMPLE_ERRORS,
    Floats,
    intermittent_threshold,
    share_of_constant,
)
from meshrun.jobs.validate.localize.observations import Observations
from meshrun.jobs.validate.localize.set_cover import Cover, Mask, Suspect
from meshrun.jobs.validate.topology import Ints

ALIKE = 0.8  # share / largest share, above which two NICs are ties

LONG = 1.5  # times BURST
SEVERAL = 3  # partners, of which one does not count


class SlowShares:
    """Slow samples and all samples of each NIC, over the open rows of `cover`.

    Retests of NICs that others load do not count for their partners. And of a NIC with several partners, the
    one that sees the most slow samples does not count: they may be its own, or of a load of it.

    owner: (ranks,), the rank that stands for the NIC of each. shown: whether each row shows the NIC of its
    sender, and of its receiver. left_out: rows that do not count. own: of each rank, as
    `intermittent_threshold` takes it. loaded: NICs that were looked at, and that others load.
    """

    def __init__(
        self,
        cover: Cover,
        owner: Ints,
        shown: tuple[Mask, Mask],
        left_out: Mask,
        own: Floats | float = 0.0,
        loaded: Sequence[int] = (),
    ) -> None:
        self.cover, self.own, self.ranks, ranks = cover, own, len(owner), len(owner)
        table = cover.table
        self.sides = [(owner[side], mask) for side, mask in zip((table.a, table.b), shown, strict=True)]
        with_loaded = np.isin(owner[table.a], loaded) | np.isin(owner[table.b], loaded)
        self.usable, self.both_ways = ~(table.retested & with_loaded), slow_both_ways(table, ranks)
        (a, shows_a), (b, shows_b) = self.sides
        met, place = np.unique(np.concatenate([a * ranks + b, b * ranks + a]), return_inverse=True)
        # `met` has each NIC and partner in order: the partners of a NIC follow each other.
        self.nics, self.first, self.partners = np.unique(met // ranks, return_index=True, return_counts=True)
        self.of = np.repeat(np.arange(len(self.nics)), self.partners)
        self.met = [(place.reshape(-1)[: len(a)], shows_a), (place.reshape(-1)[len(a) :], shows_b)]
        self.count_rows(left_out)

    def count_rows(self, left_out: Mask) -> None:
        """Count the samples of the open rows that are not left out."""
        counts = ~left_out & self.usable
        self.both, self.number = self.both_ways * counts, self.cover.table.count * counts
        self.slow_with, self.count_with = np.zeros((2, len(self.of)))
        self.seen = self.cover.open.copy()
        for where, mask in self.met:
            some = np.flatnonzero(self.seen & mask)
            self.slow_with += np.bincount(where[some], self.both[some], len(self.of))
            self.count_with += np.bincount(where[some], self.number[some], len(self.of))
        self.slow, self.count = np.zeros((2, self.ranks))
        self.add_up(np.arange(len(self.nics)))

    def but(self, left_out: Mask) -> SlowShares:
        """Return the shares with other rows left out."""
        other = copy.copy(self)
        other.count_rows(left_out)
        return other

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
        large = share > intermittent_threshold(share, count, self.own)
        large[list(proven)] = True
        over = np.where(large, share, 0.0)
        if not over.any():
            return None
        rank = int(over.argmax())
        close = np.flatnonzero(over > ALIKE * over[rank])
        ties = tuple(("flap", int(other)) for other in close[close != rank][:most])
        through = np.logical_or.reduce([(side == rank) & mask for side, mask in self.sides])
        return Suspect("flap", rank, through, np.inf, ties)


def shares_of_nics(
    cover: Cover,
    owner: Ints,
    shown: tuple[Mask, Mask],
    noise: float,
    tolerance: float,
    loaded: Sequence[int] = (),
) -> list[SlowShares]:
    """Return the shares that show a NIC that is slow part of the time. owner, shown, loaded: of `SlowShares`.

    noise: of the log of one sample. tolerance: as in the plan; a healthy NIC may be slower by that much.

    Rows of many samples that were slow for longer than a part that comes and goes is do not count: the load
    of one host would make all that met it suspects. Nor do flows of a NIC that were slow throughout, unlike
    most of its others: they collide in the network. But with few samples that may be an episode, so these
    count, if there are any, in second shares, where fewer episodes show.

    Of episodes with a mean of BURST samples, one in e^LONG lasts for LONG times as many.
    """
    table = cover.table
    ends = list(zip((owner[table.a], owner[table.b]), shown, strict=True))

    def of_nics(column: Ints | Mask) -> Floats:
        return np.asarray(sum(np.bincount(nic, column * mask, len(owner)) for nic, mask in ends))

    first, long = ~table.retested, table.count >= LONG * BURST
    lasting = first & long & (table.slow >= ALWAYS * table.count)
    throughout = first & slow_throughout(table)
    slow_itself = 2 * of_nics(throughout) > of_nics(first)
    collided = throughout & ~(slow_itself[ends[0][0]] | slow_itself[ends[1][0]])

    slow_above = float(np.median(table.slow_above))
    fast = of_nics(table.fast) / np.maximum(of_nics(table.count), 1)
    own = share_of_constant(fast, min(noise, slow_above / SAMPLE_ERRORS), slow_above, tolerance)
    found = SlowShares(cover, owner, shown, lasting | collided, own, loaded)
    return [found] if long[collided].all() else [found, found.but(lasting | (collided & long))]


def slow_throughout(table: Observations) -> Mask:
    """Return the rows whose good samples are slow too, by half as much as a slow sample."""
    return np.asarray(table.good_level > table.slow_above / 2)


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
