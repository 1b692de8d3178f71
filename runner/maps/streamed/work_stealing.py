"""Work stealing: each rank takes the chunks of its own block, then steals from slower ranks.

Neighbouring chunks stay on one rank as long as that costs no time. A rank that has finished its block
takes chunks one at a time from the rank with the most left, so every rank is busy until the last chunk is
taken. That is no later than the end of an ideal run; after it, the run lasts only as long as the slowest rank
needs for the chunks that it already has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshrun.runner.comm.api import Counters
from meshrun.runner.plan.grid import bounds


class ChunkQueue:
    """Iterate over this rank's chunks; all ranks together get each chunk of `todo` exactly once.

    todo: chunk numbers, ascending, the same on every rank. counters: new shared counters of these ranks
    (`Control.counters()`); with None each rank gets its own block, `bounds(len(todo), size, rank)`, only.
    own, taken_over: chunks taken so far from this rank's block, and from the blocks of other ranks.

    A chunk stays with the rank that took it: a rank that takes chunks in advance still holds them at the end.
    """

    def __init__(self, todo: Sequence[int], rank: int, size: int, counters: Counters | None) -> None:
        self.own = self.taken_over = 0
        self._todo, self._rank, self._counters = todo, rank, counters
        self._blocks = [bounds(len(todo), size, owner) for owner in range(size)]

    def __iter__(self) -> Iterator[int]:
        while (chunk := self._take(self._rank)) is not None:
            self.own += 1
            yield chunk
        while (owner := self._fullest()) is not None:
            # If another rank has taken it first, choose again.
            if (chunk := self._take(owner)) is not None:
                self.taken_over += 1
                yield chunk

    def taken(self) -> int:
        """Return the chunks taken so far by all ranks; without counters, this rank's times the ranks."""
        if self._counters is None:
            return min(self.own * len(self._blocks), len(self._todo))
        pairs = zip(self._counters.read(), self._blocks, strict=True)
        return sum(min(taken, stop - start) for taken, (start, stop) in pairs)

    def _take(self, owner: int) -> int | None:
        """Take the next chunk of `owner`'s block; None when the block is empty."""
        start, stop = self._blocks[owner]
        position = start + (self.own if self._counters is None else self._counters.take(owner))
        return self._todo[position] if position < stop else None

    def _fullest(self) -> int | None:
        """Return the rank with the most chunks left; None if none are left.

        Ties go to the next rank after this one, so that ranks that finish together choose different ranks.
        """
        if self._counters is None:
            return None
        taken, size = self._counters.read(), len(self._blocks)
        left = [stop - start - count for (start, stop), count in zip(self._blocks, taken, strict=True)]
        fullest = max(((self._rank + step) % size for step in range(size)), key=left.__getitem__)
        return fullest if left[fullest] > 0 else None
