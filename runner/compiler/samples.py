"""Small arrays on which a job's function is tried: their shapes and cells. Pure; `out=` is called.

The cells differ from each other and grow along every axis, so that sums, medians, orders and branches on
values differ from part to part. A few are negative, in the last corner only: where a function makes NaN of
them, it does so in one part, and a sum over all cells shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.task import Task
from meshrun.runner.plan.window import Window
from meshrun.runner.region import Array, HostArray, Region, Shape

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
LARGEST = 255  # of integers: a table of 256 elements may be indexed by them


@dataclass(frozen=True)
class Sample:
    """A task for small arrays, and their padded blocks on the host."""

    task: Task
    padded: tuple[HostArray, ...]

    @property
    def everything(self) -> Region:
        shape = self.task.shape
        return Region((0,) * len(shape), shape)

    def blocks(self, region: Region, xp: ModuleType) -> list[Array]:
        """Return a copy of each input's padded block for a region of the first one. xp: numpy or cupy."""
        found = []
        for number, (field, whole) in enumerate(zip(self.task.fields, self.padded, strict=True)):
            own = self.task.field_region(number, region)
            axes = zip(own.start, own.stop, field.widths, strict=True)
            block = whole[tuple(slice(a, b + low + high) for a, b, (low, high) in axes)]
            found.append(block.copy() if xp is np else xp.asarray(block))
        return found


def samples(
    task: Task, needed: Sequence[int] = (), magnitude: float = 1.0, *, short: bool = True
) -> Iterator[Sample]:
    """Yield samples for a function that may raise on some of them: other cells, then longer axes.

    needed: cells that a part has at least along each axis, where memory allows. magnitude: of the cells in
    the middle. short: axes that are not cut may be shorter than the task's; else, results have the
    task's lengths along them.
    """
    shapes: dict[tuple[Shape, ...], Task] = {}
    small = _small(task, needed, short=short)
    shapes[_shapes(small)] = small
    if short and _cells(longer := _small(task, needed, short=False)) <= MOST_LONG:
        shapes.setdefault(_shapes(longer), longer)
    if _cells(task) <= MOST_CELLS:  # for a function that knows the length of its array
        shapes.setdefault(_shapes(task), _with_shapes(task, _shapes(task)))
    elif short and _cells(longest := _longest(task, small)) <= MOST_LONG:  # for an index that is not written
        shapes.setdefault(_shapes(longest), longest)
    fillings = [partial(_growing, magnitude), _unit, _zeros]
    for one in shapes.values():
        for cells in fillings if short else reversed(fillings):  # zeros suffice for the types of results
            rng = np.random.default_rng(0)
            yield Sample(one, tuple(_padded(one, number, cells, rng) for number in range(len(one.fields))))


def _longest(task: Task, small: Task) -> Task:
    """Return the task for arrays that are as long along the cut axes as memory allows."""
    cut = sum(task.cut_axes)
    row = _cells(small) // math.prod(
        n for n, is_cut in zip(small.shape, task.cut_axes, strict=True) if is_cut
    )
    most = int((MOST_LONG / max(row, 1)) ** (1 / cut))
    units = [(most // unit * unit) for unit in (*task.units, *(1,) * len(task.shape))]
    lengths = tuple(
        max(min(length, most), own) if is_cut else own
        for length, own, most, is_cut in zip(task.shape, small.shape, units, task.cut_axes, strict=False)
    )[: task.leading]
    return _with_shapes(task, [lengths + shape[task.leading :] for shape in _shapes(small)])


def _shapes(task: Task) -> tuple[Shape, ...]:
    return tuple(field.shape for field in task.fields)


def _cells(task: Task) -> int:
    return max(math.prod(field.shape) for field in task.fields)


def _small(task: Task, needed: Sequence[int], *, short: bool) -> Task:
    """Return the task for small arrays. short: also along axes that are not cut."""
    tails = [field.shape[task.leading :] for field in task.fields]
    most = max((n for tail in tails for n in tail), default=1)
    while short and most > SMALL_AXIS and _most_cells(tails, most) > ROW_CELLS:
        most = max(most // 2, SMALL_AXIS)
    tails = [tuple(min(n, most) if short else n for n in tail) for tail in tails]
    leading = _cut_lengths(task, needed, _most_cells(tails, most))
    return _with_shapes(task, tuple(leading + tail for tail in tails))


def _most_cells(tails: Sequence[Shape], most: int) -> int:
    return max(math.prod(min(n, most) for n in tail) for tail in tails)


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


def _padded(task: Task, number: int, cells: Any, rng: np.random.Generator) -> HostArray:
    """Return input `number` with its halo, filled as a run fills it."""
    field = task.fields[number]
    region = Region((0,) * len(field.shape), field.shape)
    window = Window(region, field.shape, field.widths, task.boundary, task.cval)
    padded = np.empty(window.shape, field.dtype)
    assert window.inside is not None
    padded[window.inside] = cells(rng, field.shape, field.dtype, task.leading)
    window.fill(padded)
    return padded


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


def _unit(rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any], leading: int) -> HostArray:
    """Return cells from 0 to 1."""
    if dtype.kind in "fc":
        return rng.random(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _zeros(rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any], leading: int) -> HostArray:
    return np.zeros(shape, dtype)
