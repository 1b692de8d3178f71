"""Iterations of a loop that each compute one row: `u[i] = a * u[i - 1] + b[i]`, on CPUs.

The body of such a loop compares each cell's place with the loop's number. Here, each iteration computes the
cells of its row alone, and writes them in place. Where the rows are split between ranks, the ranks take
turns: each computes its rows and passes on those that the next one reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.compiler.trace.graph import Node, in_order
from meshrun.runner.compiler.whole.graph import assumed
from meshrun.runner.programs.cells import StageCells
from meshrun.runner.programs.kernel import CellKernel
from meshrun.runner.programs.stages import KernelStage, LoopStage
from meshrun.runner.region import HostArray


@dataclass(frozen=True, eq=False)
class Rows:
    """What the iterations of a loop compute.

    axis: along which each computes one row; distance: of the row from the number of the loop. cells: of a
    row. outputs: of the body, which the results are. beside: axes along which a row reads others' cells of
    what the loop changes. numbered: whether cells depend on numbers that the host makes for each iteration.
    """

    axis: int
    distance: int
    cells: StageCells
    outputs: tuple[int, ...]
    beside: frozenset[int]
    numbered: bool


def rows_of_loop(stage: LoopStage) -> Rows | None:
    """Return the rows that the iterations of a loop compute; None if they compute more."""
    loop, body = stage.loop, stage.body
    kernel = body.stages[0] if len(body.stages) == 1 else None
    if not isinstance(kernel, KernelStage) or not isinstance(kernel.cells, StageCells) or body.checks:
        return None
    if loop.numbers.items is None or loop.again is not None or stage.first is not None:
        return None
    outputs = tuple(one.number for one in kernel.writes)
    fields = all(one.of_output for one in kernel.writes) and len(outputs) == len(body.outputs)
    if not fields or kernel.cells.lattice is not None or any(one.wraps for one in body.arrays):
        return None

    # One condition, that the place is the loop's number plus a constant, decides about all changes.
    whole, results = kernel.cells.program, kernel.cells.program.outputs
    nodes = [node for one in results for node in one.nodes]
    conditions = [one for one in in_order(nodes) if one.op == "equal" and one.operands[0].op == "place"]
    if len(conditions) != 1 or len(nodes) != len(results):
        return None
    (condition,), feeds = conditions, [loop.feeds[output] for output in outputs]
    for node, feed in zip(nodes, feeds, strict=True):
        if feed is None or not _is_kept(node, condition, kernel.cells.reads.index(feed)):
            return None
    place, number = condition.operands
    distance = _distance(stage, number.value) if number.op == "scalar" else None
    if distance is None or place.value[1]:
        return None
    written = tuple(
        replace(one, nodes=(assumed(node, {condition: True}),))
        for one, node in zip(results, nodes, strict=True)
    )
    cells = replace(kernel.cells, program=replace(whole, outputs=written))
    needed = in_order(node for one in written for node in one.nodes)
    numbered = any(one.op == "scalar" and one.value < len(loop.body.tape.slots) for one in needed)
    loads = (one for one in needed if one.op == "load")
    beside = {
        axis
        for load in loads
        if kernel.cells.reads[load.input] in feeds
        for axis, at in enumerate(load.offset)
        if at
    }
    return Rows(place.value[0], distance, cells, outputs, frozenset(beside), numbered)


def _is_kept(node: Node, condition: Node, own: int) -> bool:
    """Return whether a cell stays as it is where a condition is false. own: number of its array."""
    if node.op == "load":
        return node.input == own and not any(node.offset) and not node.component
    if node.op != "where":
        return False
    first, second, third = node.operands
    others = (third,) if first is condition else (second, third)
    return all(_is_kept(one, condition, own) for one in others)


def _distance(stage: LoopStage, value: int) -> int | None:
    """Return how much more than the loop's item a value is; None if it is not the item plus a constant.

    The first values are the slots of the tape.
    """
    numbers, tape = stage.loop.numbers, stage.loop.body.tape
    slots = {slot: key[0] for key, slot in tape.slots.items()}
    if value not in slots or numbers.index is None or numbers.items is None:
        return None
    found = set()
    for item in (numbers.items[0], numbers.items[-1]):
        given = {one.number: tape.samples[one.number] for one in numbers.carried} | {numbers.index: item}
        found.add(tape.numbers(0, given)[slots[value]] - item)
    return int(found.pop()) if len(found) == 1 else None


def places_within(items: range, first: int, last: int) -> range:
    """Return the places, in a range, of its items from `first` to before `last`."""
    up = items if items.step > 0 else items[::-1]
    # Items below each bound.
    low, high = (min(max(-(-(bound - up.start) // up.step), 0), len(up)) for bound in (first, last))
    return range(low, high) if items.step > 0 else range(len(up) - high, len(up) - low)


class RowMarch:
    """Computes the rows of a loop. run: an `execute.ProgramRun` of its body."""

    def __init__(self, run: Any, rows: Rows) -> None:
        self._run, self._rows, region = run, rows, run.region
        shape = tuple(1 if axis == rows.axis else n for axis, n in enumerate(region.shape))
        with run.phases("prepare"):
            self.kernel = CellKernel(rows.cells, run.world.backend, shape, compiled=run.compiled)
        # A row is computed in memory of its own: what it replaces may be read by other cells of it.
        empty = run.world.backend.empty
        self._results = [empty(shape, one.dtype) for one in rows.cells.program.outputs]

    @property
    def numbered(self) -> bool:
        """Whether cells depend on numbers that the host makes for each iteration."""
        return self._rows.numbered

    def take(self, items: range, numbers: HostArray, targets: Mapping[int, DistributedArray]) -> None:
        """Compute a row for each item, in place. numbers: (items, slots of the tape)."""
        run, axis = self._run, self._rows.axis
        arrays = [targets[output] for output in self._rows.outputs]
        halos = run._halos[0]
        first, last = run.region.start[axis], run.region.stop[axis]
        parts = run.partition.grid[axis]
        own = run.partition.coordinates(run.world.rank)[axis]
        turns = range(parts) if items.step > 0 else range(parts - 1, -1, -1)
        here = places_within(items, first - self._rows.distance, last - self._rows.distance)
        for turn in turns:
            run.exchange(halos)  # all ranks, as what has been computed may be another one's halo
            if turn == own and run.region.size and here:
                with run.phases("kernel"):
                    self._compute(items[here.start : here.stop], numbers[here.start : here.stop], arrays)
            for array in arrays:
                array.written()

    def _compute(self, items: range, numbers: HostArray, arrays: Sequence[DistributedArray]) -> None:
        """Compute the rows of items, all of which are here. numbers: (items, slots of the tape)."""
        run, rows, region = self._run, self._rows, self._run.region
        (low, high), before = rows.cells.widths[rows.axis], (slice(None),) * rows.axis
        given, targets = run._blocks(rows.cells), [array.interior for array in arrays]

        def bound(item: int) -> tuple[list[HostArray], list[HostArray], tuple[int, ...]]:
            """Return the blocks that a row reads, where it is written, and its first position."""
            place = item + rows.distance
            at = place - region.start[rows.axis]
            around, own = (*before, slice(at, at + 1 + low + high)), (*before, slice(at, at + 1))
            read, written = [block[around] for block in given], [target[own] for target in targets]
            return read, written, (*region.start[: rows.axis], place, *region.start[rows.axis + 1 :])

        # All rows by one call of compiled code.
        if self.kernel.loops is not None:
            slots = np.tile(run.values.row, (len(items), 1))
            slots[:, : numbers.shape[1]] = numbers
            blocks, cells, first = bound(items[0])
            along = rows.axis, items.step
            self.kernel.loops.march(blocks, self._results, cells, rows.cells.widths, first, along, slots)
            return

        # One by one by NumPy's functions.
        for item, row in zip(items, numbers, strict=True):
            run.set_step(row)
            blocks, cells, first = bound(item)
            self.kernel.bind(blocks, self._results, first, run.values.row)()
            for cell, result in zip(cells, self._results, strict=True):
                cell[...] = result
