"""Compute the cells of a stage between levels: bind its parts to views of the arrays' blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.compiler.compiled import compile_chain
from meshrun.runner.compiler.whole.between.levels import LevelGrid
from meshrun.runner.compiler.whole.chain_code import Chain, ChainBox, has_code
from meshrun.runner.device.api import Backend
from meshrun.runner.plan.grid import Partition
from meshrun.runner.programs.cells import LevelCells, LevelPart
from meshrun.runner.programs.kernel import CellKernel
from meshrun.runner.region import Array, Region, Shape
from meshrun.runner.system.compiler import NotCompiled


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
        self._rest: list[tuple[LevelPart, Region]] = []
        self._chain: Chain | None = None
        boxes = boxes_of(cells, region)
        # On a GPU, the rows and columns that whole blocks leave are one launch.
        rest = [part.cells.program.program for part, _ in boxes[1:]]
        if rest and compiled and backend.device.kind == "cuda" and all(map(has_code, rest)):
            try:
                most = max(box.size for _, box in boxes[1:])
                self._chain = compile_chain([rest], most, backend)
                boxes, self._rest = boxes[:1], boxes[1:]
            except NotCompiled as failure:
                self.reason = failure.reason
        kernels: dict[LevelPart, CellKernel] = {}
        for part, box in boxes:
            if part not in kernels:
                kernels[part] = CellKernel(part.cells, backend, box.shape, compiled=compiled)
            kernel = kernels[part]
            if kernel.kernel is None and not self.reason:
                self.reason, self.line = kernel.reason, kernel.line
            self._boxes.append((part, box, kernel))

    def bind(
        self, arrays: Mapping[int, DistributedArray], targets: Sequence[Target], scalars: Array
    ) -> Callable[[], None]:
        """Return what fills `targets`, one per result. arrays: by number. scalars: the values' slots."""
        calls = []
        for part, box, kernel in self._boxes:
            calls.append(kernel.bind(*views_of(part, box, arrays, targets), box.start, scalars))
        if self._chain is not None:
            calls.append(self._chain.bind([chain_box(*one, arrays, targets) for one in self._rest], scalars))
        return calls[0] if len(calls) == 1 else functools.partial(_call_all, calls)


def chain_box(
    part: LevelPart, box: Region, arrays: Mapping[int, DistributedArray], targets: Sequence[Target]
) -> ChainBox:
    """Return a box of a part for a chain. arrays: by number. targets: one per result."""
    return ChainBox(
        part.cells.program.program, part.cells.widths, *views_of(part, box, arrays, targets), box.start
    )


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def boxes_of(cells: LevelCells, region: Region) -> list[tuple[LevelPart, Region]]:
    """Return the boxes in which parts compute a rank's cells. region: the rank's positions."""
    last = len(region.start) - 1
    boxes = [(cells.blocks, _whole_blocks(cells.blocks, region))]
    for part in cells.rows:
        boxes += [(part, box) for box in _without(_whole_blocks(part, region), boxes[0][1])]
    # Of each row, the components before the first whole block and after the last one.
    for part in cells.ends:
        row = next(one for one in (*cells.rows, cells.blocks) if (*part.phases[0][:-1], 0) in one.phases)
        inner, own = _whole_blocks(row, region), _whole_blocks(part, region)
        for column in range(own.start[last], own.stop[last]):
            if not inner.start[last] <= column < inner.stop[last]:
                start, stop = (*own.start[:-1], column), (*own.stop[:-1], column + 1)
                boxes.append((part, Region(start, stop)))
    return [(part, box) for part, box in boxes if box.size]


def _whole_blocks(part: LevelPart, region: Region) -> Region:
    """Return the cells of a part of which a rank has whole blocks. region: the rank's positions."""
    start, stop = [], []
    for axis, (every, several) in enumerate(zip(part.every, part.block, strict=True)):
        further = part.lattice.step[axis] // every * (several - 1)
        start.append(part.lattice.cell(axis, region.start[axis]))
        stop.append(max(part.lattice.cell(axis, region.stop[axis] - further), start[-1]))
    return Region(tuple(start), tuple(stop))


def _without(box: Region, inner: Region) -> Iterator[Region]:
    """Yield the boxes of the cells of a box that are not in another one."""
    if not inner.size:
        yield box
        return
    start, stop = list(box.start), list(box.stop)
    for axis, (begin, end) in enumerate(zip(inner.start, inner.stop, strict=True)):
        for low, high in ((start[axis], min(begin, stop[axis])), (max(end, start[axis]), stop[axis])):
            if low < high:
                yield Region(
                    (*start[:axis], low, *start[axis + 1 :]), (*stop[:axis], high, *stop[axis + 1 :])
                )
        start[axis], stop[axis] = max(start[axis], begin), min(stop[axis], end)


def views_of(
    part: LevelPart, box: Region, arrays: Mapping[int, DistributedArray], targets: Sequence[Target]
) -> tuple[list[Array], list[Array]]:
    """Return what a part reads and writes in a box. arrays: by number. targets: one per result."""
    blocks = [_view(arrays[view.array], part, number, box) for number, view in enumerate(part.views)]
    return blocks, [_out(target, part, phase, box) for phase in part.phases for target in targets]


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


def _out(target: Target, part: LevelPart, chosen: Shape, box: Region) -> Array:
    """Return the view of own cells that a part writes in a box. chosen: which of its phases."""
    slices, last, components = [], len(part.every) - 1, part.components
    for axis, (every, phase) in enumerate(zip(part.every, chosen, strict=True)):
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
