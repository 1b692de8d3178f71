"""Compute the cells of a stage between levels: bind its parts to views of the arrays' blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.compiler.whole.between.levels import LevelGrid
from meshrun.runner.device.api import Backend
from meshrun.runner.plan.grid import Partition
from meshrun.runner.programs.cells import LevelCells, LevelPart
from meshrun.runner.programs.kernel import CellKernel
from meshrun.runner.region import Array, Region, Shape


def level_partition(partition: Partition, lattice: LevelGrid) -> Partition:
    """Return the partition of an array of a lattice: a cell is on the rank of its position.

    partition: of space. Blocks may be empty.
    """
    lengths, starts = lattice.lengths(partition.shape), []
    for axis, (length, parts) in enumerate(zip(lengths, partition.grid, strict=True)):
        cuts = [partition.bounds(axis, part)[0] for part in range(1, parts)]
        starts.append((0, *(min(lattice.cell(axis, cut), length) for cut in cuts)))
    return Partition(lengths, partition.grid, starts=tuple(starts), empty_halos=True)


@dataclass(frozen=True)
class Target:
    """This rank's own cells of an array that is written. first: index of the first one in the whole array."""

    cells: Array
    first: Shape


class LevelKernel:
    """Computes a rank's cells of a stage between levels. region: the rank's positions.

    compiled: whether parts are compiled. reason: why some part is not; line: of the user's file, 0 if
    unknown.
    """

    def __init__(self, cells: LevelCells, backend: Backend, region: Region, *, compiled: bool) -> None:
        self.reason, self.line = "" if compiled else "too little work for a compiler", 0
        self._boxes: list[tuple[LevelPart, Region, CellKernel]] = []
        kernels: dict[LevelPart, CellKernel] = {}
        for part, box in boxes_of(cells, region):
            if part not in kernels:
                kernels[part] = CellKernel(part.cells, backend, box.shape, compiled=compiled)
            kernel = kernels[part]
            if kernel.kernel is None and not self.reason:
                self.reason, self.line = kernel.reason, kernel.line
            self._boxes.append((part, box, kernel))

    @property
    def kernels(self) -> list[CellKernel]:
        """The kernels of the parts that have cells here."""
        return [kernel for _, _, kernel in self._boxes]

    def bind(
        self, arrays: Mapping[int, DistributedArray], targets: Sequence[Target], scalars: Array
    ) -> Callable[[], None]:
        """Return what fills `targets`, one per result. arrays: by number. scalars: the values' slots."""
        calls = []
        for part, box, kernel in self._boxes:
            calls.append(kernel.bind(*views_of(part, box, arrays, targets), box.start, scalars))
        return calls[0] if len(calls) == 1 else functools.partial(_call_all, calls)


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def boxes_of(cells: LevelCells, region: Region) -> list[tuple[LevelPart, Region]]:
    """Return the boxes in which parts compute a rank's cells. region: the rank's positions."""
    return [one for part in cells.parts for one in _boxes(part, cells.ends, region)]


def views_of(
    part: LevelPart, box: Region, arrays: Mapping[int, DistributedArray], targets: Sequence[Target]
) -> tuple[list[Array], list[Array]]:
    """Return what a part reads and writes in a box. arrays: by number. targets: one per result."""
    blocks = [_view(arrays[view.array], part, number, box) for number, view in enumerate(part.views)]
    return blocks, [_out(target, part, box) for target in targets]


def _boxes(part: LevelPart, ends: Sequence[LevelPart], region: Region) -> Iterator[tuple[LevelPart, Region]]:
    """Yield a part with the cells of which a rank has all components, then parts of the others' components.

    region: the rank's positions.
    """
    last, lattice = len(region.start) - 1, part.lattice
    start = tuple(lattice.cell(axis, at) for axis, at in enumerate(region.start))
    stop = tuple(lattice.cell(axis, at) for axis, at in enumerate(region.stop))
    further = lattice.step[last] // part.components * (part.components - 1)
    end = max(lattice.cell(last, region.stop[last] - further), start[last])
    whole = Region(start, (*stop[:-1], end))
    if whole.size:
        yield part, whole
    for one in ends if part.components > 1 else ():
        if one.phase[:-1] != part.phase[:-1]:
            continue
        first, after = (one.lattice.cell(last, at) for at in (region.start[last], region.stop[last]))
        for column in range(first, after):
            if not start[last] <= column < end:
                box = Region((*start[:-1], column), (*stop[:-1], column + 1))
                if box.size:
                    yield one, box


def _view(array: DistributedArray, part: LevelPart, number: int, box: Region) -> Array:
    """Return the view of an array as input `number` of a part, for a box and the part's halo around it."""
    view, slices, widths = part.views[number], [], part.cells.widths
    last = len(widths) - 1
    for axis, ((low, high), ratio) in enumerate(zip(widths, view.ratio, strict=True)):
        count = box.shape[axis] + low + high
        own = array.layout.core[axis].start - array.region.start[axis]
        begin = ratio * (box.start[axis] - low) + view.index[axis] + own
        assert begin >= 0
        slices.append(
            slice(begin, begin + ratio * count)
            if axis == last
            else slice(begin, begin + ratio * count, ratio)
        )
    return _merged(array.block[tuple(slices)], last, view.ratio[last])


def _out(target: Target, part: LevelPart, box: Region) -> Array:
    """Return the view of own cells that a part writes in a box."""
    slices, last, components = [], len(part.every) - 1, part.components
    for axis, (every, phase) in enumerate(zip(part.every, part.phase, strict=True)):
        begin = every * box.start[axis] + phase - target.first[axis]
        stride = 1 if axis == last and components > 1 else every
        count = box.shape[axis] * (components if axis == last else 1)
        slices.append(slice(begin, begin + stride * (count - 1) + 1, stride))
    return _merged(target.cells[tuple(slices)], last, components)


def _merged(array: Array, axis: int, count: int) -> Array:
    """Return a view whose neighbours along an axis are components, if there are more than one."""
    if count == 1:
        return array
    return array.reshape(*array.shape[:axis], -1, count, *array.shape[axis + 1 :])
