"""An array that is split over the ranks: this rank's padded block, and how much of its halo is valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.runner.arrays.block_layout import Allocator, PaddedBlock
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.halo import Widths
from meshrun.runner.region import Region, Shape
from meshrun.runner.world.world import World


@dataclass(eq=False)
class DistributedArray(PaddedBlock):
    """An array that is split over the ranks of `world`, each of which has a padded block of it.

    layout: this rank's cells in `block`, and the halo. valid: the widths of the halo that are as the array's
    cells are, the same on every rank: an exchange makes it `layout.filled.widths`, a write makes it zero.
    """

    layout: HaloPlan
    world: World
    valid: Widths = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.written()

    @property
    def shape(self) -> Shape:
        """The whole array's."""
        return self.layout.partition.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.block.dtype
        return dtype

    @property
    def partition(self) -> Partition:
        """The box of cells of every rank."""
        return self.layout.partition

    @property
    def region(self) -> Region:
        """This rank's box."""
        return self.layout.region

    @property
    def is_stale(self) -> bool:
        """Whether cells of the halo that are to be filled are not valid."""
        wanted = zip(self.layout.filled.widths, self.valid, strict=True)
        return any(low > before or high > after for (low, high), (before, after) in wanted)

    def written(self) -> None:
        """Note that own cells have changed, here or on another rank: the halo is stale."""
        self.valid = ((0, 0),) * len(self.layout.shape)


def empty_array(
    world: World, layout: HaloPlan, dtype: np.dtype[Any], allocator: Allocator | None = None
) -> DistributedArray:
    """Return an array with uninitialised blocks. allocator: of this rank's; by default the back end."""
    return DistributedArray(layout, layout.empty(allocator or world.backend, dtype), world)
