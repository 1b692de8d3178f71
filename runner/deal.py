"""Which rank does which chunk: blocks of them first, then what slower ranks have left.

Neighbouring chunks stay with one rank as long as that costs no time. Then the rest goes one chunk at a
time, so that every rank is busy until the last one is dealt: beyond that moment, which is no later than the
end of an ideal run, a run takes what its slowest rank needs for the chunks it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.comm import Counters
from runner.partition import bounds


class Deal:
    """This rank's chunks, dealt as it asks for them; all ranks together get each chunk of `todo` once.

    todo: the chunks' numbers, ascending and alike on every rank. counters: fresh ones of these ranks,
    `Control.counters()`; None: every rank does its own block, `bounds(len(todo), size, rank)`, and no more.
    own, taken_over: how many this rank has got so far of its own block and of the other ranks'.

    A chunk that was dealt stays with its rank: one that asks ahead of its work holds that many at the end.
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
            # Others may have been faster: then look again.
            if (chunk := self._take(owner)) is not None:
                self.taken_over += 1
                yield chunk

    def dealt(self) -> int:
        """How many chunks all ranks have got so far; without counters, this rank's times the ranks."""
        if self._counters is None:
            return min(self.own * len(self._blocks), len(self._todo))
        pairs = zip(self._counters.read(), self._blocks, strict=True)
        return sum(min(taken, stop - start) for taken, (start, stop) in pairs)

    def _take(self, owner: int) -> int | None:
        """The next chunk of `owner`'s block; None when it has no more."""
        start, stop = self._blocks[owner]
        position = start + (self.own if self._counters is None else self._counters.take(owner))
        return self._todo[position] if position < stop else None

    def _fullest(self) -> int | None:
        """The rank with the most chunks left; None when all are dealt.

        Of equals the next after this rank: ranks that are done together do not all turn to the same one.
        """
        if self._counters is None:
            return None
        taken, size = self._counters.read(), len(self._blocks)
        left = [stop - start - count for (start, stop), count in zip(self._blocks, taken, strict=True)]
        fullest = max(((self._rank + step) % size for step in range(size)), key=left.__getitem__)
        return fullest if left[fullest] > 0 else None
