"""Rows of series that the steps themselves compute, each with its values: no step waits for one.

A row is computed when a step's results are in the spare blocks and what it has read is still in the others:
by a launch after the step, which CUDA graphs hold, or by the host's kernel of several steps, as it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.compiler.whole.point_code import (
    DevicePoints,
    HostPoints,
    PointArrays,
    PointPlace,
    PointSet,
    Table,
    blocks_of_threads,
)
from meshrun.runner.region import Array, HostArray

if TYPE_CHECKING:
    from meshrun.runner.steps.stepper import Stepper


@dataclass
class RecordedSeries:
    """Rows of series of one rank's points.

    sets, code: what computes the values of each series, for this device. most: rows that there is room for.
    first: the steps done before the first row.
    """

    blocks: Stepper
    sets: Sequence[PointSet]
    code: HostPoints | DevicePoints
    most: int
    first: int
    rows: list[Array] = field(init=False)  # of each series; (most, components, own points)
    _bound: dict[Any, Callable[..., None]] = field(default_factory=dict, init=False)
    _tables: list[Table] = field(init=False)
    _written: Array = field(init=False)  # rows, by each block of threads

    def __post_init__(self) -> None:
        blocks, xp = self.blocks, self.blocks.world.xp
        # The host's kernel of several steps reads cells beyond the ends, as others may be of another step.
        several = blocks.fused_steps > 1
        axes = len(self.sets[0].cells.space)
        start, stop = blocks.region.start[:axes], blocks.region.stop[:axes]
        whole = tuple(not several and not cut for cut in blocks.cut[:axes])
        arrays, outs = self._arrays()
        place = PointPlace(start, stop, start, whole, arrays, outs)
        self._tables = [one.table(place) for one in self.sets]
        self.rows = [
            xp.empty((self.most, len(one.nodes), len(table.rows)), one.nodes[0].dtype)
            for one, table in zip(self.sets, self._tables, strict=True)
        ]
        self._written = xp.zeros(max(blocks_of_threads(self._tables), 1), np.int64)

    def take(self) -> None:
        """Compute the row of a single step, before its results change places with what it has read."""
        key = id(self.blocks.scalars), *(id(one) for some in self._arrays() for one in some)
        if key not in self._bound:
            self._bound[key] = self._bind()
        if isinstance(self.code, HostPoints):
            self._bound[key](self._count)
        else:
            self._bound[key]()

    def calls(self) -> Sequence[Any]:
        """Return what the host's kernel of several steps calls for the rows of each of them."""
        assert isinstance(self.code, HostPoints)
        return self.code.calls(self._tables, [one[self._count :] for one in self.rows])

    @property
    def _count(self) -> int:
        """The rows that there are."""
        return self.blocks.done - self.first

    def taken(self, number: int) -> HostArray:
        """Return the rows of a series that there are, on the host."""
        rows = self.rows[number][: self._count]
        found: HostArray = rows.get() if hasattr(rows, "get") else rows.copy()
        return found

    def restart(self) -> None:
        """Begin again with the first row."""
        self.first = self.blocks.done
        self._written[...] = 0

    def _arrays(self) -> tuple[list[Array], list[Array]]:
        """Return the blocks that a step reads, and those that its results are written to."""
        blocks = self.blocks
        outs = [blocks.padded[0] if feed is None else blocks.spare[feed].block for feed in blocks.feeds]
        return blocks.padded, outs

    def _bind(self) -> Callable[..., None]:
        blocks = self.blocks
        arrays, outs = self._arrays()
        cores = [(*layout.core, ...) for layout in blocks.layouts]
        own = [one[core] for one, core in zip(arrays, cores, strict=True)]
        targets = [one[cores[feed or 0]] for one, feed in zip(outs, blocks.feeds, strict=True)]
        return self.code.bind(
            self._tables, PointArrays(own, targets, blocks.scalars, self.rows, self._written)
        )
