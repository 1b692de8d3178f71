"""The memory of the arrays between stages: which of them share it, and how much a rank needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.whole.program import WholeProgram
from meshrun.runner.plan.steps import LINE
from meshrun.runner.programs.looping import how_far_ahead
from meshrun.runner.programs.reducing import combined_cells, prepared_for_kernels
from meshrun.runner.programs.replicas import MOST_CELLS
from meshrun.runner.programs.stages import (
    KernelStage,
    LoopStage,
    ProgramArray,
    ReductionStage,
    Stage,
    StagedProgram,
    ValueStage,
    plan_program,
    with_results_as_arrays,
)
from meshrun.runner.region import Shape


def shared_memory(program: StagedProgram) -> dict[int, int]:
    """Return the array whose memory each array between stages has, by number: its own, or an earlier one's.

    Arrays of the same cells, dtype and halo share memory if no stage needs two of them. Arrays that loops
    leave, or that are inputs of the next step, have memory elsewhere and are left out.
    """
    # The first and the last stage that needs each array.
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, stage in enumerate(program.stages):
        for place in written_by(stage):
            first.setdefault(place, number)
        for place in (*written_by(stage), *_read(stage)):
            last[place] = number
    for series in program.numbers.series:
        for place in series.cells.reads if series is not None else ():
            last[place] = len(program.stages)

    # In the order in which they are written, each takes the memory of an array that is no longer needed.
    elsewhere = {number for loop in program.loops for _, number in loop.writes}
    elsewhere |= {number for number, one in enumerate(program.arrays) if one.becomes is not None}
    between = {*range(program.function_inputs, len(program.arrays))} - elsewhere
    owners: dict[int, int] = {}
    free_after: dict[int, int] = {}  # of each owner, the last stage that needs its memory
    for number in sorted(between, key=lambda one: first.get(one, 0)):
        known = number in first
        layout = _layout_of(program.arrays[number])
        alike = (one for one in free_after if _layout_of(program.arrays[one]) == layout)
        free = (one for one in alike if known and free_after[one] < first[number])
        owners[number] = next(free, number)
        free_after[owners[number]] = last[number] if known else len(program.stages)
    return owners


def written_by(stage: Stage) -> Iterable[int]:
    """Return the arrays that a stage writes."""
    if isinstance(stage, KernelStage):
        return [place.number for place in stage.writes if not place.of_output]
    if isinstance(stage, ReductionStage):
        return [] if stage.array is None else [stage.array]
    return [number for _, number in stage.writes] if isinstance(stage, LoopStage) else []


def _read(stage: Stage) -> Iterable[int]:
    """Return the arrays that a stage reads."""
    if isinstance(stage, LoopStage):
        return [place for place in stage.arrays if place is not None]
    return [] if isinstance(stage, ValueStage) else stage.cells.reads


def _layout_of(array: ProgramArray) -> tuple[Any, ...]:
    """Return what is equal for arrays whose blocks have one layout."""
    return array.shape, array.dtype, array.widths, array.read, array.wraps, array.lattice


@dataclass(frozen=True, eq=False)
class StageMemory:
    """The memory of a function in stages: of its inputs and results, and of what lies between stages.

    feeds: of each result, the number of the input that it becomes in the next step. kind: of device, "cpu" or
    "cuda".
    """

    program: WholeProgram
    feeds: Sequence[int | None]
    kind: str = "cpu"

    @cached_property
    def _staged(self) -> StagedProgram:
        staged = with_results_as_arrays(plan_program(self.program), self.feeds)
        return prepared_for_kernels(staged, self.feeds) if self.kind == "cuda" else staged

    def nbytes(self, cells: Shape) -> int:
        """Return the bytes of a rank. cells: lengths of its block along the axes of space, at least."""
        program, cells = self._staged, cells[: len(self.program.space)]
        ranks = -(-math.prod(program.space) // max(math.prod(cells), 1))
        return program_bytes(program, cells, ranks, self.kind) + self._bytes_of_fields(program, cells)

    def _bytes_of_fields(self, program: StagedProgram, cells: Shape) -> int:
        """Return the bytes of the inputs, twice where a result becomes them, and of the other results."""
        total = 0
        for number, array in enumerate(program.arrays[: program.function_inputs]):
            if array.shape:
                total += (1 + (number in self.feeds)) * bytes_of_array(program, array, cells)
        for output, feed in zip(program.outputs, self.feeds, strict=False):
            if feed is None and output.shape:
                every = output.every if output.packed else (1,) * len(cells)
                own = [-(-n // step) for n, step in zip(cells, every, strict=True)]
                total += math.prod(own) * math.prod(output.shape[len(cells) :]) * output.dtype.itemsize
        return total


def program_bytes(program: StagedProgram, cells: Shape, ranks: int, kind: str) -> int:
    """Return the bytes of a program's arrays between stages, of its loops and of what it reduces.

    cells: lengths of a rank's block along the axes of space. kind: of device, "cpu" or "cuda".
    """
    owners = set(shared_memory(program).values())
    total = sum(bytes_of_array(program, program.arrays[number], cells) for number in owners)
    for loop in program.loops:
        # As many blocks of what the next iteration reads as are in turn, one of what it does not.
        body, total = loop.body, total + program_bytes(loop.body, cells, ranks, kind)
        left, slots = dict(loop.writes), how_far_ahead(loop, ranks, asynchronous=kind == "cuda").slots
        for output, (one, feed) in enumerate(zip(body.outputs, loop.loop.feeds, strict=True)):
            if one.shape:
                array = program.arrays[left[output]] if output in left else body.arrays[feed or 0]
                total += (1 if feed is None else slots) * bytes_of_array(program, array, cells)
        # Kernels of several iterations have blocks of their own of what an iteration only reads.
        if loop.loop.numbers.items is not None and loop.loop.again is None and len(body.stages) == 1:
            stay = [one for number, one in enumerate(body.arrays) if number not in loop.loop.feeds]
            total += sum(bytes_of_array(body, one, cells) for one in stay if one.shape)

    # What is reduced, and keys.
    uncombined = [stage for stage in program.reductions if combined_cells(stage) is None]
    words = [np.dtype(np.uint64).itemsize] * bool(program.reductions)
    words += [one.cells.program.outputs[0].dtype.itemsize for one in uncombined]
    return total + math.prod(cells) * sum(words)


def bytes_of_array(program: StagedProgram, array: ProgramArray, cells: Shape) -> int:
    """Return the bytes of a rank's block of an array with its halo."""
    space, lattice = program.space, array.lattice
    lengths = list(cells)
    if lattice is not None:
        lengths = list(array.shape[: len(space)])
        if math.prod(lengths) > max(MOST_CELLS.values()):  # each rank has all cells of smaller ones
            most = (-(-n // step) for n, step in zip(cells, lattice.step, strict=True))
            lengths = [min(n, own) for n, own in zip(lengths, most, strict=True)]
    padded = [n + before + after for n, (before, after) in zip(lengths, array.widths, strict=True)]
    inner = array.shape[len(space) :]
    if not inner:  # rows of blocks are whole lines
        unit = max(LINE // array.dtype.itemsize, 1)
        padded[-1] = -(-padded[-1] // unit) * unit
    return math.prod(padded) * math.prod(inner) * array.dtype.itemsize
