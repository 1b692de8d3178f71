"""Redistribution: which cells each rank sends to each other one when an array is split otherwise.

Pure arithmetic. Two ranks exchange what the sender's box before and the receiver's box after have in common.
The cells may move in parts, so that work on one part hides the messages of another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from meshrun.runner.plan.grid import bounds, split_along
from meshrun.runner.plan.halo import Slices
from meshrun.runner.region import Region, Shape, overlap

PARTS = 8  # most parts of a redistribution: the first is made ready, and the last finished, beside nothing
LEAST = 1 << 20  # bytes of a message, from which links run at about their full rate


Messages = tuple[list[Slices], list[Slices]]  # sent to each rank, received from each


class Boxes(Protocol):
    """A box of an array for each rank, such as a `Partition`."""

    def __getitem__(self, rank: int, /) -> Region: ...


@dataclass(frozen=True)
class RedistributionPlan:
    """Which cells move, and when.

    before, after: the boxes of all ranks. parts: that the cells move in, one after the other. sent_along: the
    axis along which each sender's box is cut into the parts; None: it is not cut. received_along: likewise of
    each receiver's box.
    """

    before: Boxes
    after: Boxes
    ranks: int
    parts: int = 1
    sent_along: int | None = None
    received_along: int | None = None
    _planned: dict[tuple[int, int], Messages] = field(default_factory=dict, init=False, compare=False)

    def sent(self, rank: int, number: int = 0) -> Region:
        """Return the box of a part in what a rank has."""
        return self._part(self.before[rank], self.sent_along, number)

    def received(self, rank: int, number: int = 0) -> Region:
        """Return the box of a part in what a rank gets."""
        return self._part(self.after[rank], self.received_along, number)

    def sent_cells(self, rank: int, number: int) -> Slices:
        """Return the slices of `sent` in what a rank has, up to the axis that is cut; () if none is."""
        return _up_to(self.sent_along, self.sent(rank, number), self.before[rank])

    def received_cells(self, rank: int, number: int) -> Slices:
        """Return the slices of `received` in what a rank gets, up to the axis that is cut; () if none is."""
        return _up_to(self.received_along, self.received(rank, number), self.after[rank])

    def messages(self, rank: int, number: int = 0) -> Messages:
        """Return, for each rank, which cells of `sent` go to it, and which cells of `received` it sends."""
        planned = self._planned.get((rank, number))
        if planned is None:
            mine, wanted, ranks = self.sent(rank, number), self.received(rank, number), range(self.ranks)
            to = [overlap(mine, self.received(other, number)).slices_in(mine) for other in ranks]
            of = [overlap(self.sent(other, number), wanted).slices_in(wanted) for other in ranks]
            planned = self._planned[rank, number] = to, of
        return planned

    def _part(self, box: Region, axis: int | None, number: int) -> Region:
        if axis is None:
            return box
        first, last = bounds(box.shape[axis], self.parts, number)
        start, stop = list(box.start), list(box.stop)
        start[axis], stop[axis] = start[axis] + first, start[axis] + last
        return Region(tuple(start), tuple(stop))


def change_split(shape: Shape, old: int, new: int, along: int, ranks: int, parts: int) -> RedistributionPlan:
    """Return the redistribution from a split along axis `old` to one along axis `new`, in parts.

    along: the axis that is cut into the parts: a third one; or one of these, of which each rank's range is.
    """
    before, after = split_along(shape, old, ranks), split_along(shape, new, ranks)
    sent, received = (None if along == axis else along for axis in (new, old))
    return RedistributionPlan(before, after, ranks, parts, sent, received)


def count_parts(shape: Shape, old: int, new: int, along: int, ranks: int, itemsize: int) -> int:
    """Return the number of parts, the same on all ranks: as many as leave messages of `LEAST` bytes."""
    length = shape[along]
    if along in (old, new):
        length = -(-length // ranks)
    message = math.prod(shape) * itemsize // ranks**2
    return max(min(PARTS, length, message // LEAST), 1)


def _up_to(axis: int | None, part: Region, box: Region) -> Slices:
    return () if axis is None else (*(slice(None),) * axis, part.slices_in(box)[axis])
