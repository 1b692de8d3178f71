"""Sampling for verification: which boxes (regions of the input) to check. Pure arithmetic."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import product

from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Region, Shape

CELLS = 4096  # approximate cells in a box of a sample
FULL_CELLS = 1 << 18  # approximate cells in a box of a full verification
RANDOM = 16  # randomly placed boxes per rank


def box_shape(shape: Shape, cut_axes: tuple[bool, ...], cells: int) -> Shape:
    """Return the shape of a box of about `cells` cells: whole along uncut axes, nearly cubic along others."""
    free = [axis for axis, cut in enumerate(cut_axes) if cut]
    left = max(cells // max(math.prod(n for n, cut in zip(shape, cut_axes, strict=True) if not cut), 1), 1)
    lengths = list(shape)
    for done, axis in enumerate(sorted(free, key=lambda axis: shape[axis])):
        edge = max(int(left ** (1 / (len(free) - done)) + 1e-9), 1)
        lengths[axis] = max(min(edge, shape[axis]), 1)
        left = max(left // lengths[axis], 1)
    return tuple(lengths)


def sample(partition: Partition, rank: int, cut_axes: tuple[bool, ...], seed: str) -> Iterator[Region]:
    """Yield one rank's boxes: at its block's corners, reaching into the neighbours' blocks, and random ones.

    If a block is at the array's edge, so is its corner box: the boxes of all ranks include all edges.
    Boxes hold whole units of the partition. seed: determines the random boxes.
    """
    counted = _counted_in_units(partition)
    shape = counted.shape
    if 0 in shape:
        return
    box = box_shape(shape, cut_axes, CELLS // math.prod(partition.units))
    region = counted[rank]
    if region.size:
        axes = zip(region.start, region.stop, box, cut_axes, strict=True)
        starts = (sorted({a - n // 2, b - n // 2}) if cut else [0] for a, b, n, cut in axes)
        for start in product(*starts):
            yield _cells(partition, _clip(start, box, shape))
    generator = random.Random(f"{seed}/{rank}")
    for _ in range(RANDOM):
        start = tuple(generator.randint(0, n - m) for n, m in zip(shape, box, strict=True))
        yield _cells(partition, _clip(start, box, shape))


def everything(partition: Partition, rank: int, cut_axes: tuple[bool, ...]) -> Iterator[Region]:
    """Yield this rank's share of boxes that cover the array, cut as by `cut_elsewhere`.

    Boxes hold whole units of the partition.
    """
    counted = _counted_in_units(partition)
    shape = counted.shape
    if 0 in shape:
        return
    box = box_shape(shape, cut_axes, FULL_CELLS // math.prod(partition.units))
    box = cut_elsewhere(counted, box, cut_axes)
    for number, region in enumerate(cover(shape, box)):
        if number % partition.size == rank:
            yield _cells(partition, region)


def cut_elsewhere(partition: Partition, box: Shape, cut_axes: tuple[bool, ...]) -> Shape:
    """Return a box of which two or more are needed along each cut axis, and which ends at no block's edge.

    A function whose result depends on the blocks then gives something else for a box. Its length is odd if
    possible: pieces of blocks have even ones.

    Parameters
    ----------
    partition: of the array into the run's blocks.
    box: lengths that the result does not exceed.
    """
    lengths = list(box)
    for axis, (length, cut) in enumerate(zip(partition.shape, cut_axes, strict=True)):
        if cut and length > 1:
            edges = {partition.bounds(axis, place)[0] for place in range(partition.grid[axis])}
            most = min(box[axis], max(2 * length // 3, 1))
            others = (n for n in range(most, 0, -1) if n not in edges)
            longest = next(others, most)
            odd = longest if longest % 2 else next(others, 1)
            lengths[axis] = odd if odd % 2 and odd > 1 else longest
    return tuple(lengths)


def _counted_in_units(partition: Partition) -> Partition:
    """Return the same blocks of an array with one cell for each unit."""
    lengths = (length // partition.unit(axis) for axis, length in enumerate(partition.shape))
    return Partition(tuple(lengths), partition.grid)


def _cells(partition: Partition, region: Region) -> Region:
    """Return a region that is counted in units, in cells."""
    start, stop = (
        tuple(n * partition.unit(axis) for axis, n in enumerate(edge)) for edge in (region.start, region.stop)
    )
    return Region(start, stop)


def cover(shape: Shape, box: Shape) -> Iterator[Region]:
    """Yield boxes of shape `box`, smaller at the ends of the axes, that cover an array."""
    for start in product(*(range(0, n, m) for n, m in zip(shape, box, strict=True))):
        yield _clip(start, box, shape)


def _clip(start: Shape, box: Shape, shape: Shape) -> Region:
    stop = tuple(min(max(a + m, 1), n) for a, m, n in zip(start, box, shape, strict=True))
    return Region(tuple(max(min(a, n - 1), 0) for a, n in zip(start, shape, strict=True)), stop)
