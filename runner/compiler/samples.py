"""Small arrays on which a job's function is tried: their shapes and cells. Pure; `out=` is called.

The cells differ from each other and grow along every axis, so that sums, medians, orders and branches on
values differ from part to part. A few are negative, in the last corner only: where a function makes NaN of
them, it does so in one part, and a sum over all cells shows it. Other arrays have cells of either sign, in no
order: the first cell of a part may be negative, and its largest is not its last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from meshrun.runner.plan.beyond import padded
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray, Shape

LENGTHS = {1: 61, 2: 19, 3: 11}  # units along each cut axis, by the number of cut axes
SHORTEST = 7  # units along each of more cut axes
ROW_CELLS = 1 << 12  # of an input's axes that are not cut
MOST_CELLS = 1 << 16  # of an array; more only for axes that must be long
FEWEST = 3  # units along a cut axis, for fewer than MOST_TRIED cells
MOST_TRIED = 1 << 24
MOST_LONG = 1 << 20  # cells of an array with all cells along the axes that are not cut
SMALL_AXIS = 16  # cells of an axis that keeps its length, such as channels
RANGE = 8.0  # cells are about 1 / RANGE at the first corner and RANGE at the last
NEGATIVE = 0.85  # of the way from the first corner to the last, from which on there are negative cells
# NumPy's names of the boundaries.
PADDING = {
    "reflect": "symmetric",
    "mirror": "reflect",
    "nearest": "edge",
    "wrap": "wrap",
    "constant": "constant",
}
LARGEST = 255  # of integers: a table of 256 elements may be indexed by them


@dataclass(frozen=True)
class Sample:
    """A task for small arrays, and their padded blocks on the host."""

    task: Task
    padded: tuple[HostArray, ...]


def samples(
    task: Task,
    needed: Sequence[int] = (),
    magnitude: float = 1.0,
    *,
    short: bool = True,
    signed: bool = False,
    rare: Sequence[float] = (),
) -> Iterator[Sample]:
    """Yield samples for a function that may raise on some of them: other cells, then longer axes.

    needed: cells that a part has at least along each axis, where memory allows. magnitude: of the cells in
    the middle. short: axes that are not cut may be shorter than the task's; else, results have the
    task's lengths along them. signed: cells of either sign, in no order, instead. rare: instead, the value
    of all cells but the last few, and the values of these.
    """
    small = _small(task, needed, short=short)
    tried = [small]
    if short and _most_cells(longer := _small(task, needed, short=False)) <= MOST_LONG:
        tried.append(longer)
    own = [field.shape for field in task.fields]
    if _most_cells(own) <= MOST_CELLS:  # for a function that knows the length of its array
        tried.append(own)
    elif short and _most_cells(longest := _longest(task, small)) <= MOST_LONG:  # for an index not written
        tried.append(longest)
    fillings: list[Any] = [partial(_growing, magnitude), _unit, partial(_alike, (0.0,))]
    if signed or rare:
        fillings = [_signed] if signed else [partial(_alike, rare)]
    for shapes in dict.fromkeys(map(tuple, tried)):
        sized = _with_shapes(task, shapes)
        for fill in fillings if short else reversed(fillings):  # zeros suffice for the types of results
            rng = np.random.default_rng(0)
            # Fill the cells beyond the edges as a run does, except where a halo is as long as its axis.
            cells = (fill(rng, field.shape, field.dtype, task.leading) for field in sized.fields)
            yield Sample(sized, tuple(_padded(sized, number, own) for number, own in enumerate(cells)))


def _padded(task: Task, number: int, own: HostArray) -> HostArray:
    """Return an input with its halo."""
    boundary, constants = task.beyond(number)
    field = task.fields[number]
    widths, alone = field.widths, field.repeated
    if alone:
        one = own[tuple(slice(1) if axis in alone else slice(None) for axis in range(own.ndim))]
        own = np.broadcast_to(one, own.shape)
    if isinstance(boundary, str):
        constant: Any = {"constant_values": constants} if boundary == "constant" else {}
        mode: Any = PADDING[boundary]
        return np.pad(own, widths, mode, **constant)
    assert isinstance(constants, tuple)
    return padded(own, widths, boundary, constants)


def _longest(task: Task, small: Sequence[Shape]) -> list[Shape]:
    """Return shapes that are as long along the cut axes as memory allows."""
    cut = sum(task.cut_axes)
    row = _most_cells(small) // math.prod(
        n for n, is_cut in zip(small[0], task.cut_axes, strict=True) if is_cut
    )
    most = int((MOST_LONG / max(row, 1)) ** (1 / cut))
    units = [(most // unit * unit) for unit in (*task.units, *(1,) * len(task.shape))]
    lengths = tuple(
        max(min(length, most), own) if is_cut else own
        for length, own, most, is_cut in zip(task.shape, small[0], units, task.cut_axes, strict=False)
    )[: task.leading]
    return [lengths + shape[task.leading :] for shape in small]


def _small(task: Task, needed: Sequence[int], *, short: bool) -> list[Shape]:
    """Return small shapes of the inputs. short: also along axes that are not cut."""
    tails = [field.shape[task.leading :] for field in task.fields]
    most = max((n for tail in tails for n in tail), default=1)
    while short and most > SMALL_AXIS and _most_cells(tails, most) > ROW_CELLS:
        most = max(most // 2, SMALL_AXIS)
    tails = [tuple(min(n, most) if short else n for n in tail) for tail in tails]
    leading = _cut_lengths(task, needed, _most_cells(tails))
    return [leading + tail for tail in tails]


def _most_cells(shapes: Sequence[Shape], longest: float = math.inf) -> int:
    """Return the cells of the largest shape. longest: cells that count of an axis."""
    return max(math.prod(int(min(n, longest)) for n in shape) for shape in shapes)


def _cut_lengths(task: Task, needed: Sequence[int], row: int) -> Shape:
    """Return the lengths of the leading axes: so long, where memory allows, that each can be cut in three.

    row: cells of one place along all of them.
    """
    cut = sum(task.cut_axes)
    units = LENGTHS.get(cut, SHORTEST)
    while units > 1 and units**cut * row > (MOST_CELLS if units > FEWEST else MOST_TRIED):
        units -= 1
    lengths = [
        unit * max(units, -(-max(width) // unit)) if is_cut else min(length, max(units, unit))
        for unit, is_cut, width, length in zip(
            task.units, task.cut_axes, task.widths, task.shape, strict=False
        )
    ]
    for axis in (axis for axis in range(min(len(needed), len(lengths))) if task.cut_axes[axis]):
        unit, others = task.units[axis], math.prod(lengths) // lengths[axis]
        asked = unit * -(-3 * needed[axis] // unit)
        if asked > lengths[axis] and asked * others * row <= MOST_CELLS:
            lengths[axis] = asked
    return tuple(lengths)


def _with_shapes(task: Task, shapes: Sequence[Shape]) -> Task:
    """Return the task for arrays of other shapes, without kernel, its results known if they are declared."""
    fields = tuple(
        replace(field, shape=shape, partition=Partition(shape, field.partition.grid))
        for field, shape in zip(task.fields, shapes, strict=True)
    )
    small = replace(task, fields=fields, results=None, kernel=None, reads=None)
    declared = small.declared(small.shape)
    return small if declared is None else replace(small, results=declared)


def _growing(
    magnitude: float, rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any], leading: int
) -> HostArray:
    """Return cells that grow along the leading axes."""
    way = np.zeros((1,) * len(shape))
    for axis, length in enumerate(shape[:leading]):
        along = np.linspace(0, 1 / leading, length)
        way = way + along.reshape([-1 if other == axis else 1 for other in range(len(shape))])
    draws = rng.random(shape)
    if dtype.kind == "b":
        return draws < 0.2 + 0.6 * way
    negative = (way >= NEGATIVE) & (rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        largest = min(LARGEST if magnitude == 1 else 2 * magnitude, np.iinfo(dtype).max)
        found = np.floor(draws * (0.05 + 0.95 * way) * (largest + 1))
        return np.where(negative & (dtype.kind == "i"), -found, found).astype(dtype)
    found = magnitude * (0.5 + draws) * RANGE ** (2 * way - 1)
    found = np.where(negative, -found, found)
    return (found if dtype.kind == "f" else found + 1j * rng.permutation(found)).astype(dtype)


def _signed(rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any], leading: int) -> HostArray:
    """Return cells of either sign, whose largest are anywhere."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return rng.integers(max(-LARGEST, low), min(LARGEST, high) + 1, shape).astype(dtype)
    found = rng.normal(size=shape)
    return (found if dtype.kind == "f" else found + 1j * rng.permutation(found)).astype(dtype)


def _alike(
    values: Sequence[float], rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any], leading: int
) -> HostArray:
    """Return cells of one value, but for the last ones along the leading axes, which have the others."""
    within = [
        value
        for value in values
        if dtype.kind not in "iu" or (np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)
    ]
    found = np.full(shape, within[0] if within[:1] == [*values[:1]] else 0, dtype)
    for number, value in enumerate(within[1:], 1):
        if number <= shape[0]:
            place = (-number, *(-1,) * (leading - 1))
            found[place] = value
    return found


def _unit(rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any], leading: int) -> HostArray:
    """Return cells from 0 to 1."""
    if dtype.kind in "fc":
        return rng.random(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)
