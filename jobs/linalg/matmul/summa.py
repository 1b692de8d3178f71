"""Shifted SUMMA: panels of A move along the rows of a grid of ranks, panels of B along its columns.

In step s, rank (i, j) of a grid of R x S ranks multiplies panel (i P / R + j P / S + s) mod P of the P panels
of the length. In a step, the ranks of a row need panels that S different ranks hold, and so do those of a
column: each rank sends one panel of A and one of B, straight from where it was read, and receives one of
each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshrun.jobs.linalg.matmul.plan import MatmulLayout, panel_cuts
from meshrun.jobs.linalg.matmul.products import Products
from meshrun.jobs.linalg.matmul.steps import overlapped
from meshrun.runner.comm.api import Message
from meshrun.runner.region import Array
from meshrun.runner.world.world import World


@dataclass(frozen=True)
class Schedule:
    """Which rank holds which panel, and needs it when. Ranks number the grid in C order."""

    grid: tuple[int, int]
    panels: int

    def place(self, rank: int) -> tuple[int, int]:
        return divmod(rank, self.grid[1])

    def rank(self, row: int, column: int) -> int:
        return row * self.grid[1] + column

    def panel(self, rank: int, step: int) -> int:
        """Return the panel that a rank multiplies in a step."""
        (row, column), (rows, columns) = self.place(rank), self.grid
        return (row * self.panels // rows + column * self.panels // columns + step) % self.panels

    def holder_of_a(self, rank: int, panel: int) -> int:
        """Return the rank, in the same row of the grid, that holds a panel of A."""
        return self.rank(self.place(rank)[0], panel * self.grid[1] // self.panels)

    def holder_of_b(self, rank: int, panel: int) -> int:
        """Return the rank, in the same column of the grid, that holds a panel of B."""
        return self.rank(panel * self.grid[0] // self.panels, self.place(rank)[1])

    def row_of(self, rank: int) -> list[int]:
        return [self.rank(self.place(rank)[0], column) for column in range(self.grid[1])]

    def column_of(self, rank: int) -> list[int]:
        return [self.rank(row, self.place(rank)[1]) for row in range(self.grid[0])]


class _Panels:
    """The panels of one factor: those that are held, and two buffers for those that arrive."""

    def __init__(self, world: World, held: Mapping[int, Array], shapes: Sequence[tuple[int, int]]) -> None:
        self.held, self._shapes = held, shapes
        most = max((rows * columns for n, (rows, columns) in enumerate(shapes) if n not in held), default=0)
        dtype = next(iter(held.values())).dtype
        self._buffers = [world.backend.empty((most,), dtype) for _ in range(2)]

    def get(self, panel: int, step: int) -> Array:
        """Return a panel that is held, or the buffer into which it arrives for a step."""
        if panel in self.held:
            return self.held[panel]
        rows, columns = self._shapes[panel]
        return self._buffers[step % 2][: rows * columns].reshape(rows, columns)


def multiply_summa(
    world: World,
    layout: MatmulLayout,
    length: int,
    products: Products,
    of_a: Mapping[int, Array],
    of_b: Mapping[int, Array],
    out: Array,
) -> None:
    """Fill `out`, this rank's block of the product, of the sums' dtype. Collective.

    of_a, of_b: by number, the panels that this rank holds, as factors are stored. Those that others need are
    C-contiguous.
    """
    schedule, rank = Schedule(layout.grid, layout.panels), world.rank
    depths = [stop - start for start, stop in panel_cuts(length, layout.grid, layout.panels)]
    a = _Panels(world, of_a, [(out.shape[0], depth) for depth in depths])
    b = _Panels(world, of_b, [(depth, out.shape[1]) for depth in depths])

    def messages(step: int) -> tuple[list[Message], list[Message]]:
        """Return what this rank sends and receives before a step."""
        sends, receives = [], []
        mine = schedule.panel(rank, step)
        for panels, holder, others in (
            (a, schedule.holder_of_a, schedule.row_of(rank)),
            (b, schedule.holder_of_b, schedule.column_of(rank)),
        ):
            for other in others:
                wanted = schedule.panel(other, step)
                if other != rank and holder(other, wanted) == rank:
                    sends.append((other, panels.held[wanted]))
            if holder(rank, mine) != rank:
                receives.append((holder(rank, mine), panels.get(mine, step)))
        return sends, receives

    overlapped(world, products, lambda: None, *messages(0))
    for step in range(layout.panels):
        panel = schedule.panel(rank, step)
        following = messages(step + 1) if step + 1 < layout.panels else ([], [])

        def multiply(panel: int = panel, step: int = step) -> None:
            products.multiply(a.get(panel, step), b.get(panel, step), out, add=step > 0)

        overlapped(world, products, multiply, *following)
