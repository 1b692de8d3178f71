"""Transpose a matrix by stores of each GPU into the memory of the others: no packing, no messages.

The ranks of one host open each other's results once. A transpose is one kernel
(jobs/kernels/transpose_peers.cu) between two all-reductions of one word, all issued to one stream on each
rank:

    1. An all-reduction. No rank stores before every rank's stream has come here: what used the former results
       has been issued before, and is done.
    2. The kernel stores this rank's rows, transposed, into the results of all ranks.
    3. An all-reduction. It ends on a rank when it has begun on every rank: there after the kernel, whose
       stores are complete when it ends. Work issued later may read the result.

A rank that fails leaves the others waiting in an all-reduction, as in any exchange; the run's watchdog ends
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.transforms.transpose import WORD, as_matrix
from meshrun.runner.plan.grid import bounds
from meshrun.runner.region import Array, Shape
from meshrun.runner.transforms.peers import find_peers, open_everywhere, opened
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import PeerArrays

SIDE, THREADS = 32, 256  # of the kernel


class DirectTranspose:
    """Transposes of matrices with at most `rows` x `columns` elements of one dtype, split by rows.

    unit: columns that stay together; their number is a multiple of it. The result is in memory of this
    object: the next transpose overwrites it.
    """

    def __init__(
        self, world: World, rows: int, columns: int, unit: int, dtype: np.dtype[Any], peers: PeerArrays
    ) -> None:
        """Open the ranks' results. Collective. Raises Unreachable, on the ranks that cannot."""
        self._world, self._peers, self._dtype, self._unit = world, peers, dtype, unit
        self._result, self._addresses = open_everywhere(world, peers, self._cuts(columns)[1] * rows, dtype)
        self._word = world.xp.zeros(1, np.float32)

    def __call__(self, block: Array, rows: int, columns: int) -> Array:
        """Return this rank's rows of the transpose of a (rows, columns) matrix. Collective.

        block: this rank's rows, C-contiguous. Rows and units of columns are split by the project's rule.
        """
        world, size = self._world, self._world.size
        first, last = bounds(rows, size, world.rank)
        cuts = self._cuts(columns)
        start, stop = cuts[world.rank : world.rank + 2]
        targets = [address + first * self._dtype.itemsize for address in self._addresses]
        widest = cuts[1]
        blocks = size * math.ceil((last - first) / SIDE) * math.ceil(widest / SIDE)
        word = WORD[self._dtype.itemsize]
        world.arrays.all_reduce(self._word, "max")
        if blocks:
            kernel = kernels.load("transpose_peers", kernels.instance("transpose_peers", word))
            tables = (
                world.xp.asarray(np.array(targets, np.uint64)),
                world.xp.asarray(np.array(cuts, np.int64)),
            )
            numbers = (size, world.rank, last - first, columns, rows, widest)
            source = block.reshape(-1).view(word)
            kernel((blocks,), (THREADS,), (source, *tables, *(np.int64(one) for one in numbers)))
        world.arrays.all_reduce(self._word, "max")
        return self._result[: (stop - start) * rows].reshape(stop - start, rows)

    def _cuts(self, columns: int) -> list[int]:
        """Return each rank's first column, and the number of columns."""
        units, size = columns // self._unit, self._world.size
        return [bounds(units, size, rank)[0] * self._unit for rank in range(size)] + [columns]

    def close(self) -> None:
        """Forget the other ranks' results. Collective."""
        self._peers.close()


def open_direct(
    world: World, shape: Shape, dtype: np.dtype[Any], order: Sequence[int], peers: PeerArrays | None = None
) -> DirectTranspose | str:
    """Return what transposes arrays of a shape, or why it cannot; the same on every rank. Collective.

    shape: of the array, split along axis 0 before and after; later ones may have fewer cells along axis
    order[0]. peers: instead of the GPUs' memory.
    """
    matrix = as_matrix(shape, order)
    if matrix is None or matrix[0] != shape[0] or 0 in shape:
        return "this permutation is no transpose of one matrix whose rows are split"
    if dtype.itemsize not in WORD:
        return f"elements of {dtype.itemsize} bytes"
    found = find_peers(world) if peers is None else peers
    if isinstance(found, str):
        return found
    unit = matrix[1] // shape[order[0]]
    return opened(world, found, lambda: DirectTranspose(world, *matrix, unit, dtype, found))
