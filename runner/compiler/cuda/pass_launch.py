"""Launch the kernel of one pass: grid, block and arguments for arrays in memory.

The kernel's text depends on how these lie there: whether they have one pitch, begin at multiples of units, or
need places of 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.compiler.cuda.beyond import NO_SIDES, Sides
from meshrun.runner.compiler.cuda.pass_tile import LARGEST_ROW, has_ends
from meshrun.runner.compiler.cuda.single_pass import MOST_ROWS, PassKernel, leaders, parameters
from meshrun.runner.compiler.cuda.steps.layout import LANES
from meshrun.runner.compiler.passes.ends import ends_of
from meshrun.runner.compiler.trace.graph import (
    SLOT,
    Extents,
    Operand,
    Program,
)
from meshrun.runner.region import Array, Shape, address_of

MOST_BLOCKS = 2**31 - 1  # of a one-dimensional grid
MOST_NARROW = (
    2**31 - 2**16
)  # elements of an operand whose places fit 32 bits, with those of threads beyond its end
WASTED = 0.95  # threads of smaller blocks over those of larger ones that are worth it


@dataclass(frozen=True)
class PassLaunch:
    """Arguments of a launch. grid: (0,) if there are no cells; launch nothing then."""

    grid: tuple[int]
    block: tuple[int, int]
    arguments: tuple[np.generic, ...]


def key_of(xp: Any, keys: Array, number: int, own: Shape) -> Array:
    """Return a key as what `launch_arguments` takes for an output of so many own cells."""
    return xp.broadcast_to(keys[number : number + 1], own)


def have_equal_pitches(operands: Sequence[Operand], arrays: Sequence[Array], axes: int) -> bool:
    """Return whether all inputs, or all outputs, have the pitches of their leaders. axes: of the grid."""
    pitches = [one.strides[: axes - 1] for one in arrays]
    return all(one == pitches[leader] for one, leader in zip(pitches, leaders(operands, False), strict=True))


def have_equal_alignment(
    program: Program, blocks: Sequence[Array], outs: Sequence[Array], widths: Extents
) -> bool:
    """Return whether the own cells of all arrays begin as many elements after a multiple of 16 bytes.

    blocks: with a halo of `widths`.
    """
    each = LARGEST_ROW // min(array.itemsize for array in (*blocks, *outs))
    places = set[int]()
    for arrays, halo in ((blocks, widths), (outs, ((0, 0),) * program.axes)):
        for array in arrays:
            before = sum(low * stride for (low, _), stride in zip(halo, array.strides, strict=False))
            places.add((address_of(array) + before) // array.itemsize % each)
            if any(stride % LARGEST_ROW for stride in array.strides[: program.axes - 1]):
                return False
    return len(places) == 1


def lie_in_units(operand: Operand, array: Array) -> bool:
    """Return whether each cell of an array begins at a multiple of the operand's unit."""
    size = operand.unit * operand.dtype.itemsize
    steps = array.strides[: array.ndim - len(operand.trailing)] if operand.unit > 1 else ()
    return operand.unit == 1 or all(one % size == 0 for one in (address_of(array), *steps))


def is_in_place(blocks: Sequence[Array], outs: Sequence[Array], widths: Extents) -> bool:
    """Return whether results are written over own cells of an input. blocks: with a halo of `widths`."""
    own = {
        address_of(block) + sum(low * stride for (low, _), stride in zip(widths, block.strides, strict=False))
        for block in blocks
    }
    return any(address_of(out) in own for out in outs)


def is_wide(arrays: Sequence[Array]) -> bool:
    """Return whether some place in the arrays needs more than 32 bits, or a pitch is negative."""
    return any(
        min(strides) < 0 or sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) > most
        for shape, strides, most in {(one.shape, one.strides, MOST_NARROW * one.itemsize) for one in arrays}
    )


def division(divisor: int) -> tuple[int, int]:
    """Return a factor and bits: n // divisor is n * factor >> bits for all n from 0 to 2**31 - 1.

    The factor has 32 bits. Source: T. Granlund and P. Montgomery, Division by Invariant Integers using
    Multiplication, 1994, theorem 4.2.
    """
    bits = 31 + (divisor - 1).bit_length()
    return (1 << bits) // divisor + 1, bits


def launch_arguments(
    kernel: PassKernel,
    blocks: Sequence[Array],
    outs: Sequence[Array],
    widths: Extents,
    first: Sequence[int] = (),
    scalars: Array | None = None,
    sides: Sides = NO_SIDES,
) -> PassLaunch:
    """Return grid, block and arguments to compute all own cells.

    blocks: an array for each input, with its halo. outs: an array for each output, of own cells. Both may be
    views of larger arrays, at any address and pitch, but rows with their trailing axes are contiguous. Of an
    output of which only the best cell is kept, the key, as a view of so many cells (`key_of`).
    Trailing axes that the operand lacks count as cells of the last grid axis (`merge_components`). widths:
    halo of all blocks, per grid axis; at least each input's footprint. first, scalars: as of `TaskKernel`; if
    they have places, all own cells are within the array. sides: ends beyond which the kernel stores
    rows, around `outs`, if it was written to do so. Raises ValueError for arrays that do not fit the kernel.
    """
    program, last = kernel.program, kernel.program.axes - 1
    targets = [_Rows(array, one, last) for array, one in zip(outs, program.outputs, strict=True)]
    lengths = targets[0].lengths
    sources = _sources(kernel, blocks, widths)
    if any(one.lengths != lengths for one in (*sources, *targets)):
        raise ValueError(f"arrays of {[one.lengths for one in (*sources, *targets)]} own cells")
    if math.prod(lengths) == 0:
        return PassLaunch((0,), (1, 1), ())
    own, near = lengths, _near_ends(kernel, lengths, first)
    lengths = tuple(length - sum(cells) for length, cells in zip(own, near, strict=True))
    for rows in (*sources, *targets):
        rows.address += sum(a * b for (a, _), b in zip(near, rows.strides, strict=True))
    between = math.prod(lengths)
    if between and any(length < cells for length, cells in zip(lengths, kernel.least, strict=True)):
        raise ValueError(f"{lengths} own cells for a tile of {kernel.least}")
    if not kernel.wide and is_wide([*blocks, *outs]):
        raise ValueError(
            "operands of so many elements, or of negative pitches, for a kernel of 32-bit places"
        )
    if max(lengths[:last], default=0) > MOST_ROWS:
        raise ValueError(f"{lengths} own cells; of the axes before the last, at most {MOST_ROWS}")
    columns = kernel.tile[last]
    shift = _shift(
        [rows for rows, one in zip(targets, program.outputs, strict=True) if not one.combine], columns
    )
    tiles = [-(-n // step) for n, step in zip(lengths, kernel.tile, strict=True)]
    tiles[last] = -(-(lengths[last] + shift) // columns)
    block = kernel.threads if kernel.planes or not between else _block(kernel.threads, tiles)
    tiles[last] = -(-tiles[last] // block[0])
    if last:
        tiles[last - 1] = -(-tiles[last - 1] // block[1])
    at_ends = -(-(math.prod(own) - between) // math.prod(block)) if kernel.part != "between" else 0
    grid = at_ends + (math.prod(tiles) if between and kernel.part != "ends" else 0)
    if grid > MOST_BLOCKS:
        raise ValueError(f"{grid} blocks of threads, more than {MOST_BLOCKS}")
    given = (program.inputs, blocks), (program.outputs, outs)
    if not kernel.apart and not all(have_equal_pitches(*one, program.axes) for one in given):
        raise ValueError("operands of different pitches, for a kernel with common ones")
    values: list[int] = []
    for operands, arrays in ((program.inputs, sources), (program.outputs, targets)):
        for number, leader in enumerate(leaders(operands, kernel.apart)):
            rows = arrays[number]
            pitches = [stride // rows.itemsize for stride in rows.strides[:last]]
            has_own = leader == number and not operands[number].combine
            values += [rows.address, *(pitches if has_own else ())]
    values += [*lengths, *(value for one in tiles[1:] for value in (one, *division(max(one, 1)))), shift]
    values += [sides[0] | sides[1] << 1] if any(sides) else []
    values += first[: program.axes] if program.has_places else ()
    if has_ends(program):
        # Rounded up, so that of all blocks, just so many are at the ends.
        values += [-(-(at_ends << 32) // max(grid, 1)), *(cells for axis in near for cells in axis)]
    values += _slots(program, scalars)
    kinds = [kind for _, _, kind in parameters(program, kernel.apart, kernel.wide, any(sides))]
    arguments = tuple(kind(value) for kind, value in zip(kinds, values, strict=True))
    return PassLaunch((grid,), (math.prod(block), 1) if kernel.planes else block, arguments)


def _sources(kernel: PassKernel, blocks: Sequence[Array], widths: Extents) -> list[_Rows]:
    """Return the rows of own cells of each input, from the row on of which the kernel takes the pointer."""
    program, last, sources = kernel.program, kernel.program.axes - 1, list[_Rows]()
    for number, (array, one) in enumerate(zip(blocks, program.inputs, strict=True)):
        source = _Rows(array, one, last)
        low = [before * (source.merged if axis == last else 1) for axis, (before, _) in enumerate(widths)]
        high = [after * (source.merged if axis == last else 1) for axis, (_, after) in enumerate(widths)]
        needs = program.footprint(number)
        if any(a > b or c > d for (a, c), b, d in zip(needs, low, high, strict=True)):
            raise ValueError(f"a halo of {widths} cells for a footprint of {needs}")
        source.lengths = tuple(n - a - b for n, a, b in zip(source.lengths, low, high, strict=True))
        source.address += sum(a * b for a, b in zip(low, source.strides, strict=True))
        corner = kernel.corners[number]
        source.address += sum(a * b for a, b in zip(corner, source.strides[:last], strict=True))
        sources.append(source)
    return sources


def _near_ends(kernel: PassKernel, own: Shape, first: Sequence[int]) -> Extents:
    """Return how many of the own cells are near the ends of the array, before and after the others.

    All of them, if fewer than a tile are left between.
    """
    near = near_ends(kernel.program, own, first)
    left = [length - sum(cells) for length, cells in zip(own, near, strict=True)]
    if has_ends(kernel.program) and any(a < b for a, b in zip(left, kernel.least, strict=True)):
        return (own[0], 0), *near[1:]
    return near


def near_ends(program: Program, own: Shape, first: Sequence[int]) -> Extents:
    """Return how many of the own cells are near the ends of the array, before and after the others."""
    if not has_ends(program):
        return ((0, 0),) * program.axes
    near = []
    for at, length, whole, (before, after) in zip(
        first, own, program.lengths, ends_of(program), strict=False
    ):
        low = min(max(before - at, 0), length)
        near.append((low, min(max(at + length - (whole - after), 0), length - low)))
    return tuple(near)


def _slots(program: Program, scalars: Array | None) -> list[int]:
    """Return the address of the slots of scalars, if a program takes some."""
    if not program.scalars:
        return []
    if scalars is None or scalars.nbytes < SLOT * program.scalars:
        raise ValueError(f"a kernel that takes {program.scalars} scalars, and no slots for them")
    return [address_of(scalars)]


class _Rows:
    """The rows of cells of an array.

    address: of the first element. lengths: cells per grid axis. strides: bytes from one cell to the next, per
    grid axis. merged: cells of the kernel's last axis for each one of the array's.
    """

    def __init__(self, array: Array, operand: Operand, last: int) -> None:
        self.itemsize: int = array.dtype.itemsize
        if operand.combine:  # a key, seen as an array of all cells
            self.address, self.lengths = address_of(array), array.shape
            self.strides, self.merged = array.strides, 1
            return
        if array.dtype != operand.dtype:
            raise ValueError(f"{operand.name} is {array.dtype}, expected {operand.dtype}")
        row = array.shape[last:]
        step = self.itemsize
        for length, stride in zip(reversed(row), reversed(array.strides[last:]), strict=True):
            if stride != step and length > 1 and math.prod(array.shape):
                raise ValueError(f"the rows of {operand.name} are not contiguous: strides {array.strides}")
            step *= length
        cells, left = divmod(math.prod(row), operand.components)
        if left or (operand.trailing and tuple(row[1:]) != operand.trailing):
            raise ValueError(
                f"{operand.name} has shape {array.shape}, expected {operand.trailing} at its end"
            )
        if any(stride % self.itemsize for stride in array.strides):
            raise ValueError(f"strides {array.strides} of {operand.name} are no multiples of an element")
        if not lie_in_units(operand, array):
            raise ValueError(f"cells of {operand.name} do not begin at multiples of {operand.unit} elements")
        self.address = address_of(array)
        self.lengths = (*array.shape[:last], cells)
        self.strides = (*array.strides[:last], self.itemsize * operand.components)
        self.merged = math.prod(row[1:]) // operand.components


def _shift(targets: Sequence[_Rows], columns: int) -> int:
    """Return the number of cells by which tiles begin before a row, so that most stores are whole vectors."""

    def aligned(shift: int) -> int:
        total = 0
        for one in targets:
            size = columns * one.strides[-1]
            vector = min(size & -size, 16)
            if (one.address - shift * one.strides[-1]) % vector == 0:
                total += one.strides[-1]
        return total

    return max(range(columns), key=aligned)


def _block(most: tuple[int, int], tiles: Sequence[int]) -> tuple[int, int]:
    """Return the threads of a block along the last two grid axes.

    For a short last axis, fewer along it and more along the other; and down to a warp where fewer threads
    are then without a tile: 257 tiles of a row are 9 times 32 threads rather than 3 times 128.
    """
    along, across = most

    def threads(along: int) -> int:
        return -(-tiles[-1] // along) * along

    while along > 1 and (
        along // 2 >= tiles[-1]
        or (along > LANES and len(tiles) > 1 and threads(along // 2) < WASTED * threads(along))
    ):
        along //= 2
        across *= 2 if len(tiles) > 1 else 1
    return along, across
