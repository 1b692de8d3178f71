"""Rows that go to their owners, and back: each rank's rows differ in number."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from meshrun.runner.arrays.tools.cells import on_host
from meshrun.runner.region import Array
from meshrun.runner.world.world import World


@dataclass(frozen=True)
class RowRoutes:
    """Which of this rank's rows go to which rank.

    order: this rank's rows, sorted by owner. sent, received: the number of rows that go to each rank, and
    that come from each.
    """

    world: World
    order: Array
    sent: list[int]
    received: list[int]

    def send(self, rows: Array) -> Array:
        """Return the rows that this rank owns, by sender and in the sender's order. Collective."""
        return exchange_runs(self.world, rows[self.order], self.sent, self.received)

    def send_back(self, rows: Array) -> Array:
        """Return the rows that belong to those that this rank has sent, in their first order. Collective.

        rows: one for each row that `send` has brought.
        """
        returned = exchange_runs(self.world, rows, self.received, self.sent)
        placed = self.world.xp.empty_like(returned)
        placed[self.order] = returned
        return placed


def routes_to(world: World, owners: Array) -> RowRoutes:
    """Return the routes of rows to their owners. Collective.

    owners: for each of this rank's rows, the rank that gets it; on this rank's device.
    """
    xp = world.xp
    order = xp.argsort(owners, kind="stable")
    ends = on_host(xp.searchsorted(owners[order], xp.arange(world.size + 1))).tolist()
    sent = [end - start for start, end in pairwise(ends)]
    traffic = world.control.allgather(sent)
    return RowRoutes(world, order, sent, [of_rank[world.rank] for of_rank in traffic])


def exchange_runs(world: World, rows: Array, sent: list[int], received: list[int]) -> Array:
    """Return the rows that the ranks send to this one, in rank order. Collective.

    rows: this rank's, those for rank 0 first. sent, received: their number for each rank, and of each.
    """
    cuts, arrivals = [*accumulate(sent, initial=0)], [*accumulate(received, initial=0)]
    out = world.backend.empty((arrivals[-1], *rows.shape[1:]), rows.dtype)
    world.exchange(
        [(rank, rows[cuts[rank] : cuts[rank + 1]]) for rank in range(world.size)],
        [(rank, out[arrivals[rank] : arrivals[rank + 1]]) for rank in range(world.size)],
    )
    return out
