"""Chunks of an array larger than memory: pure arithmetic, independent of the number of ranks.

A chunk is a range of rows of one block of a partition. It is read from the file with its halo, no matter
which rank computes the neighbouring cells. `chunking` decides how many rows it has. Which rank computes it is
decided at run time by work stealing, so a run can be resumed on any number of ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Region


@dataclass(frozen=True)
class Chunks:
    """The blocks of `partition` in order, each in chunks of `rows` rows; its last chunk may be shorter."""

    partition: Partition
    rows: int

    @cached_property
    def _first(self) -> list[int]:
        counts = (-(-block.shape[0] // self.rows) if block.size else 0 for block in self.partition)
        return list(accumulate(counts, initial=0))

    def __len__(self) -> int:
        return self._first[-1]

    @property
    def largest(self) -> Iterator[Region]:
        """Yield the largest chunk of each block."""
        return (self[first] for first, after in pairwise(self._first) if first < after)

    def __getitem__(self, number: int) -> Region:
        if not 0 <= number < len(self):
            raise IndexError(number)
        block = bisect_right(self._first, number) - 1
        region = self.partition[block]
        first = (number - self._first[block]) * self.rows
        return region.rows(first, min(first + self.rows, region.shape[0]))
