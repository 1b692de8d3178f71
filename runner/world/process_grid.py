"""A Cartesian grid of ranks: its shape, this rank's place, and a group of ranks along each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition, factorizations
from meshrun.runner.region import Shape
from meshrun.runner.world.binding import open_arrays
from meshrun.runner.world.group import Group


@dataclass
class Grid:
    """Ranks at the places of a grid, in C order. groups: per axis, the ranks that differ along it only."""

    shape: Shape
    rank: int
    groups: tuple[Group, ...]

    @property
    def coordinates(self) -> Shape:
        """This rank's place: its coordinate along an axis is its rank in that axis's group."""
        return self._places.coordinates(self.rank)

    def along(self, axis: int) -> Group:
        """Return the group of the ranks that share this rank's coordinates along all other axes."""
        return self.groups[axis]

    def rank_at(self, *coordinates: int) -> int:
        """Return the world's rank at a place."""
        inside = len(coordinates) == len(self.shape) and all(
            0 <= here < parts for here, parts in zip(coordinates, self.shape, strict=True)
        )
        if not inside:
            raise UserError(
                "no rank has this place", got=coordinates, expected=f"a place in a grid of {self.shape}"
            )
        return self._places.rank(coordinates)

    def close(self) -> None:
        """Free the groups' communicators. Collective."""
        for group in self.groups:
            group.close()

    @property
    def _places(self) -> Partition:
        return Partition(self.shape, self.shape)


def process_grid(shape: Sequence[int], ranks: int) -> Shape:
    """Return the grid of so many ranks, its zeros replaced so that it is as square as possible.

    Raises UserError if no such grid has a place for each rank.
    """
    wanted = tuple(shape)
    fixed = math.prod(parts for parts in wanted if parts)
    free = wanted.count(0)
    if not wanted or min(wanted) < 0 or ranks % fixed or (not free and fixed != ranks):
        raise UserError(
            "the grid does not use every rank exactly once",
            got="x".join(map(str, wanted)) or "no axes",
            expected=f"numbers that multiply to {ranks}",
            hint=f"grid({', '.join('0' for _ in wanted) or '0, 0'}), which chooses them",
        )
    # As square as possible: the smallest sum of factors; the larger factors first.
    choice = iter(min(factorizations(ranks // fixed, free), key=lambda one: (sum(one), [-n for n in one])))
    return tuple(parts or next(choice) for parts in wanted)


def open_grid(world: Group, shape: Shape, *, shared_gpu: bool) -> Grid:
    """Open a communicator for the ranks along each axis. Collective. shared_gpu: ranks share GPUs."""
    places = Partition(shape, shape)
    here = places.coordinates(world.rank)
    groups = []
    for axis in range(len(shape)):
        # All ranks with the same other coordinates: the rank at their first place names them.
        color = places.rank((*here[:axis], 0, *here[axis + 1 :]))
        control = world.control.split(color, here[axis])
        groups.append(Group(control, open_arrays(control, world.backend, shared_gpu), world.backend))
    return Grid(shape, world.rank, tuple(groups))
