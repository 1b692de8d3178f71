"""How an array larger than memory is cut into chunks: pure arithmetic, the same for any number of ranks.

A chunk is a run of rows of one block of a partition. With its halo it is read from the file, whoever has
the cells beside it. Which rank does which chunk is settled elsewhere (`deal`), so that a run can go on
with another number of ranks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from runner.errors import UserError
from runner.halo import Widths
from runner.partition import Partition, Region, Shape


@dataclass(frozen=True)
class Chunks:
    """The blocks of `partition`, one after another, each in pieces of `rows`, the last one shorter."""

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
        """The largest chunk of each block."""
        return (self[first] for first, after in pairwise(self._first) if first < after)

    def __getitem__(self, number: int) -> Region:
        if not 0 <= number < len(self):
            raise IndexError(number)
        block = bisect_right(self._first, number) - 1
        region = self.partition[block]
        first = (number - self._first[block]) * self.rows
        return region.rows(first, min(first + self.rows, region.shape[0]))


@dataclass(frozen=True)
class Need:
    """Bytes that one chunk under way takes, or may take: of the host's memory, and of a device's."""

    host: int
    device: int


def need(
    cells: Shape, widths: Widths, dtype: np.dtype[np.generic], result: int, *, asynchronous: bool
) -> Need:
    """Of a chunk of `cells` own cells whose result has `result` bytes, at most.

    With a halo, what was read and the padded block made of it may both be there.
    """
    padded = math.prod(n + sum(width) for n, width in zip(cells, widths, strict=True)) * dtype.itemsize
    twice = 2 if any(width != (0, 0) for width in widths) else 1
    if asynchronous:
        return Need(padded + result, twice * padded + result)
    return Need(twice * padded + result, 0)


@dataclass(frozen=True)
class Room:
    """What one rank may use of its host's and its device's memory, and how many chunks share it."""

    limits: Need
    depth: int

    def check_chunk(self, size: int) -> None:
        """UserError for a --chunk-bytes that is more than all chunks of a rank may take."""
        for name in ("host", "device"):
            limit = getattr(self.limits, name)
            if 0 < limit < size:
                raise UserError(
                    f"--chunk-bytes is more than a rank's chunks may take of the {name} memory",
                    got=f"{size:,} bytes",
                    expected=f"at most {limit:,}",
                    hint=f"--{name}-memory, if there is more",
                    everywhere=True,
                )

    def rows(self, one: Need, two: Need, *, wanted: int, align: int) -> int:
        """The most rows of a chunk, a multiple of `align`: what fits, and no more than about `wanted`.

        one, two: what chunks of one and of two times `align` rows need; more rows need more alike.

        Raises UserError where `align` rows do not fit.
        """
        most = wanted // align
        for name in ("host", "device"):
            first, second = getattr(one, name), getattr(two, name)
            limit = getattr(self.limits, name) // self.depth
            if first > limit:
                rows = "a row" if align == 1 else f"{align} rows"
                raise UserError(
                    f"a chunk of {rows} with its halo does not fit the {name} memory",
                    got=f"{self.depth} chunks of {first:,} bytes",
                    expected=f"at most {getattr(self.limits, name):,} bytes",
                    hint=f"--{name}-memory, --depth 1"
                    + (", or --grid, which cuts rows too" if align == 1 else ""),
                    everywhere=True,
                )
            if second > first:
                most = min(most, 1 + (limit - first) // (second - first))
        return max(most, 1) * align
