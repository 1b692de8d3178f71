"""Which cells a verification looks at: pure arithmetic. Boxes are regions of the input's own cells."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import product

from runner.partition import Partition, Region, Shape

CELLS = 4096  # in a sample's box, about
FULL_CELLS = 1 << 18  # in a box of a full verification, about
RANDOM = 16  # boxes anywhere, per rank


def box_shape(shape: Shape, cut_axes: tuple[bool, ...], cells: int) -> Shape:
    """About `cells` cells: whole along the axes that may not be cut, as equal as can be along the others."""
    free = [axis for axis, cut in enumerate(cut_axes) if cut]
    left = max(cells // max(math.prod(n for n, cut in zip(shape, cut_axes, strict=True) if not cut), 1), 1)
    lengths = list(shape)
    for done, axis in enumerate(sorted(free, key=lambda axis: shape[axis])):
        edge = max(int(left ** (1 / (len(free) - done)) + 1e-9), 1)
        lengths[axis] = max(min(edge, shape[axis]), 1)
        left = max(left // lengths[axis], 1)
    return tuple(lengths)


def sample(partition: Partition, rank: int, cut_axes: tuple[bool, ...], seed: str) -> Iterator[Region]:
    """Boxes for one rank: its block's corners, reaching into the neighbours' blocks, and random ones.

    Where a block touches the array's edge its corner box does too, so that all edges are among
    the boxes of all ranks. seed: the random boxes follow from it.
    """
    shape = partition.shape
    if 0 in shape:
        return
    box = box_shape(shape, cut_axes, CELLS)
    region = partition[rank]
    if region.size:
        axes = zip(region.start, region.stop, box, cut_axes, strict=True)
        starts = (sorted({a - n // 2, b - n // 2}) if cut else [0] for a, b, n, cut in axes)
        for start in product(*starts):
            yield _clip(start, box, shape)
    generator = random.Random(f"{seed}/{rank}")
    for _ in range(RANDOM):
        start = tuple(generator.randint(0, n - m) for n, m in zip(shape, box, strict=True))
        yield _clip(start, box, shape)


def everything(partition: Partition, rank: int, cut_axes: tuple[bool, ...]) -> Iterator[Region]:
    """This rank's share of boxes that cover the array, cut elsewhere than the blocks are."""
    shape = partition.shape
    if 0 in shape:
        return
    box = box_shape(shape, cut_axes, FULL_CELLS)
    starts = product(*(range(0, n, m) for n, m in zip(shape, box, strict=True)))
    for number, start in enumerate(starts):
        if number % partition.size == rank:
            yield _clip(start, box, shape)


def _clip(start: Shape, box: Shape, shape: Shape) -> Region:
    stop = tuple(min(max(a + m, 1), n) for a, m, n in zip(start, box, shape, strict=True))
    return Region(tuple(max(min(a, n - 1), 0) for a, n in zip(start, shape, strict=True)), stop)
