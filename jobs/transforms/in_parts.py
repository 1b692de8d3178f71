"""Move the split of an array to another axis in parts: work on one part hides the messages of another.

While part n is on its way, this rank copies what it keeps of it, part n + 1 is made ready and packed, and
part n - 1 is finished: on a GPU, the messages' stream has nothing else to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from meshrun.runner.plan.grid import bounds
from meshrun.runner.region import Array, Shape
from meshrun.runner.world.group import Group

PARTS = 8  # most parts of a redistribution: the first is made ready, and the last finished, beside nothing
LEAST = 1 << 20  # bytes of a message, from which links run at about their full rate

Place = tuple[slice, ...]


@dataclass(frozen=True)
class Cuts:
    """The parts of a redistribution.

    shape: of the array that `ranks` ranks share. old, new: its axes that they split before and after. along:
    the axis that is cut into `parts` parts: a third one; or one of these, of which each rank's range is cut.
    """

    shape: Shape
    old: int
    new: int
    along: int
    ranks: int
    parts: int

    def before(self, sender: int, number: int) -> Place:
        """Return the place of a part in the sender's block; of the whole block if it is cut along `new`."""
        if self.along == self.new:
            return ()
        return _place(self.along, self._cut(self.along, sender, number, self.along == self.old))

    def outgoing(self, receiver: int, number: int) -> Place:
        """Return the place of a message in what `before` has the place of."""
        start, stop = bounds(self.shape[self.new], self.ranks, receiver)
        if self.along == self.new:
            first, last = self._cut(self.new, receiver, number, True)
            start, stop = start + first, start + last
        return _place(self.new, (start, stop))

    def after(self, receiver: int, number: int) -> Place:
        """Return the place of a part in the receiver's block; of the whole block if it is cut along `old`."""
        if self.along == self.old:
            return ()
        return _place(self.along, self._cut(self.along, receiver, number, self.along == self.new))

    def incoming(self, sender: int, number: int) -> Place:
        """Return the place of a message in what `after` has the place of."""
        start, stop = bounds(self.shape[self.old], self.ranks, sender)
        if self.along == self.old:
            first, last = self._cut(self.old, sender, number, True)
            start, stop = start + first, start + last
        return _place(self.old, (start, stop))

    def _cut(self, axis: int, rank: int, number: int, split: bool) -> tuple[int, int]:
        """Return start and stop of a part in a rank's range of an axis, or in the whole axis."""
        start, stop = bounds(self.shape[axis], self.ranks, rank) if split else (0, self.shape[axis])
        return bounds(stop - start, self.parts, number)


def count_parts(shape: Shape, old: int, new: int, along: int, ranks: int, itemsize: int) -> int:
    """Return the number of parts, the same on all ranks: as many as leave messages of `LEAST` bytes."""
    length = shape[along]
    if along in (old, new):
        length = -(-length // ranks)
    message = math.prod(shape) * itemsize // ranks**2
    return max(min(PARTS, length, message // LEAST), 1)


def exchange_in_parts(
    group: Group,
    cuts: Cuts,
    ready: Callable[[int], Array],
    land: Callable[[int], Array],
    finish: Callable[[int, Array], None],
) -> None:
    """Exchange a redistribution's parts. Collective.

    ready: returns a part's cells, to be sent (`Cuts.before`). land: returns the array in which a part
    arrives (`Cuts.after`). finish: called with it when the part has arrived.
    """

    def packed(number: int) -> list[Array]:
        """Return a part's messages, by receiver; this rank's own is not packed."""
        source = ready(number)
        messages = [source[cuts.outgoing(rank, number)] for rank in range(group.size)]
        return [
            message if rank == group.rank else group.xp.ascontiguousarray(message)
            for rank, message in enumerate(messages)
        ]

    others = [rank for rank in range(group.size) if rank != group.rank]
    made = {0: packed(0)}
    landed: dict[int, Array] = {}
    for number in range(cuts.parts):
        target = landed[number] = land(number)
        messages = made.pop(number)

        def work(number: int = number, own: Array = messages[group.rank], target: Array = target) -> None:
            target[cuts.incoming(group.rank, number)] = own
            if number + 1 < cuts.parts:
                made[number + 1] = packed(number + 1)
            if number:
                finish(number - 1, landed.pop(number - 1))

        group.exchange_beside(
            work,
            [(rank, messages[rank]) for rank in others],
            [(rank, target[cuts.incoming(rank, number)]) for rank in others],
        )
    finish(cuts.parts - 1, landed.pop(cuts.parts - 1))


def _place(axis: int, cut: tuple[int, int]) -> Place:
    return (*(slice(None),) * axis, slice(*cut))
