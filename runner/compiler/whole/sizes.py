"""Arrays of several sizes in one space: faces beside cells, coarse grids beside fine ones.

Space is as long as the longest of them along each axis. Cell i of an array is at position i, cell i of a
coarse one at position 2 i, 4 i and so on. What an array does not have at a position is zero there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile

import numpy as np

from meshrun.runner.compiler.trace.array import MOST_COMPONENTS
from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.region import Shape, Subgrid

LEAST_FACES = 8  # cells of an axis of which another array may have one or two more or less
MOST_FEWER = 2  # cells: n - 1 beside n + 1
COARSER = (2, 4, 8, 16, 32, 64)  # positions from one cell of a coarse array to the next
LEAST_COARSE = 4  # cells of a coarse array along an axis


def space_of(shapes: Sequence[Shape]) -> Shape:
    """Return the lengths of the axes that all arrays share, from the first on.

    shapes: of the arrays. One without axes belongs to no field.
    """
    space: list[int] = []
    every = [1] * len(shapes)  # along the axis before
    for lengths in zip(*(shape for shape in shapes if shape), strict=False):
        longest = max(lengths)
        found = [
            step_along(length, longest, coarse=not space or step > 1 or longest > MOST_COMPONENTS)
            for length, step in zip(lengths, every, strict=False)
        ]
        steps = [step for step in found if step is not None]
        if len(steps) < len(found):
            break
        every = steps
        space.append(longest)
    return tuple(space)


def step_along(length: int, space: int, *, coarse: bool = True) -> int | None:
    """Return the positions from one cell of an array to the next; None if its length does not suit space.

    length: of the array along an axis of `space` positions. coarse: whether it may be more than one.
    """
    if length == space or (0 <= space - length <= MOST_FEWER and length >= LEAST_FACES):
        return 1
    for step in COARSER if coarse and length >= LEAST_COARSE else ():
        if 0 <= -(-space // step) - length <= 1:
            return step
    return None


def unlike_axis(shapes: Sequence[Shape]) -> int | None:
    """Return the axis along which arrays share no grid, and that is too long for one of components."""
    axis = len(space_of(shapes))
    lengths = {shape[axis] for shape in shapes if len(shape) > axis}
    apart = len(lengths) > 1 and all(len(shape) > axis for shape in shapes if shape)
    return axis if apart and (axis == 0 or max(lengths) > MOST_COMPONENTS) else None


def subgrid_of(shape: Shape, space: Shape) -> Subgrid:
    """Return where the cells of an array lie; for arrays of which `space_of` returned the space."""
    steps = [step_along(length, most) or 1 for length, most in zip(shape, space, strict=False)]
    return Subgrid(shape, tuple(steps))


def steps_of(shape: Shape, space: Shape, levels: Collection[Shape] = ()) -> list[int]:
    """Return the steps along the leading axes of an array that the function makes, as suits space.

    It is a coarse grid if it is one along all axes. Along a single one it may be a short table: only half as
    many elements are a grid. An array that is twice as coarse as a grid of the function is a grid, too.

    levels: of coarse grids that the function has, the steps.
    """
    for level in levels:
        for coarser in (level, tuple(2 * step for step in level)):
            cells = [-(-n // step) for n, step in zip(space, coarser, strict=True)]
            nested = zip(shape, cells, strict=False)
            if len(shape) >= len(space) and all(n and 0 <= most - n <= 1 for n, most in nested):
                return list(coarser)

    def steps() -> Iterator[int | None]:
        before = 1
        for axis, (length, most) in enumerate(zip(shape, space, strict=False)):
            longer = abs(length - most) <= (MOST_FEWER if length >= LEAST_FACES else 1)
            coarse = axis == 0 or before > 1 or length > MOST_COMPONENTS
            step = 1 if longer else step_along(length, most, coarse=coarse)
            before = step or 1
            yield step

    found = [step for step in takewhile(lambda step: step is not None, steps()) if step is not None]
    is_grid = len(found) == len(space) and (len(space) > 1 or found == [2])
    return found if is_grid else [*takewhile(lambda step: step == 1, found)]


def only_own(graph: WholeGraph, nodes: Sequence[Node], subgrid: Subgrid, space: Shape) -> list[Node]:
    """Return the values of an array at each position: zero where it has no cell."""
    found = list(nodes)
    for axis, (length, step) in enumerate(zip(subgrid.shape, subgrid.every, strict=False)):
        stop = step * (length - 1) + 1 if length else 0
        if (stop, step) == (space[axis], 1):
            continue
        has = graph.inside(axis, 0, stop, step)
        for number, node in enumerate(found):
            zero = graph.constant(np.zeros((), node.dtype), node.dtype)
            found[number] = graph.operation("where", node.dtype, (has, node, zero))
    return found
