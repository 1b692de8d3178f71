"""Chains: consecutive stages of little work, which one call computes: of coarse grids, and of small arrays.

No cell is exchanged within a chain. On a GPU, the parts of a stage of more cells are one launch, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.compiler.trace.graph import Program
from meshrun.runner.compiler.whole.chain_code import ChainBox, has_code
from meshrun.runner.programs.cells import LevelCells, StageCells, kernels_of
from meshrun.runner.programs.level_kernel import Target, boxes_of, chain_box
from meshrun.runner.programs.stages import KernelStage, StagedProgram
from meshrun.runner.region import Array, Region, Shape

# Cells of a stage, at most, on a CPU; a stage of more takes longer than the call of its kernel.
MOST_CELLS = {"cpu": 1 << 16}
# Operations of all cells of a stage, at most, on a GPU, where one block of threads computes a chain. One
# processor does 128 operations per cycle of 0.5 ns; while it waits for reads and for code, a small part of
# these. A stage of more is assumed to take longer than a launch in a CUDA graph, 2.3 us.
MOST_OPERATIONS = 1 << 14
# And of one whose parts are one launch: to launch them takes longer than to read and write their bytes.
MOST_OF_PARTS = 1 << 19
MOST_STAGES = 96  # of a chain: on a GPU, what it is given of their arrays fits 48 KB of shared memory


@dataclass(frozen=True, eq=False)
class ChainStage:
    """A stage of a chain on this rank. number: of the stage. own: its cells. positions: the rank's."""

    number: int
    stage: KernelStage
    own: Region
    positions: Region

    @property
    def programs(self) -> list[Program]:
        """What is computed, for each box."""
        cells = self.stage.cells
        if isinstance(cells, StageCells):
            return [cells.program.program] if self.own.size else []
        return [part.cells.program.program for part, _ in boxes_of(cells, self.positions)]

    def boxes(
        self, blocks: Sequence[Array], arrays: Mapping[int, DistributedArray], targets: Sequence[Array]
    ) -> Iterator[ChainBox]:
        """Yield the boxes with their memory.

        blocks: what a stage of one grid reads, with its halo. arrays: what a stage between levels reads, by
        number. targets: one per result.
        """
        cells = self.stage.cells
        if isinstance(cells, StageCells):
            if self.own.size:
                yield ChainBox(cells.program.program, cells.widths, blocks, targets, self.own.start)
            return
        written = [Target(one, self.own.start) for one in targets]
        for part, box in boxes_of(cells, self.positions):
            yield chain_box(part, box, arrays, written)


def chains_of(
    program: StagedProgram, kind: str, filled: Collection[int], apart: Collection[int]
) -> list[list[int]]:
    """Return the stages that chains compute, by number.

    kind: of device. filled: arrays whose halo is filled if a stage reads it. apart: stages that are part of
    no chain.
    """
    # The stages that a chain can compute, and the cells of each.
    sizes: dict[int, int] = {}
    parts: dict[int, int] = {}
    small = set[int]()
    for number, stage in enumerate(program.stages):
        if not isinstance(stage, KernelStage) or number in apart:
            continue
        lattice, reads = stage.cells.lattice, zip(stage.cells.reads, stage.cells.footprints, strict=True)
        exchanged = any(one in filled and any(map(any, footprint)) for one, footprint in reads)
        kernels = kernels_of(stage.cells)
        if not exchanged and all(has_code(one.program.program) for one in kernels):
            sizes[number] = math.prod(lattice.lengths(program.space) if lattice else program.space)
            parts[number] = 1
            if isinstance(stage.cells, LevelCells):
                whole = Region((0,) * len(program.space), program.space)
                parts[number] = len(boxes_of(stage.cells, whole))
            if kind == "cpu":
                is_small = sizes[number] <= MOST_CELLS["cpu"]
            else:
                is_small = operations_of(stage.cells, program.space) <= MOST_OPERATIONS
            if is_small:
                small.add(number)

    # Consecutive ones of little work.
    found: list[list[int]] = []
    for number in sorted(small):
        if found and found[-1][-1] == number - 1 and len(found[-1]) < MOST_STAGES:
            found[-1].append(number)
        else:
            found.append([number])
    if kind == "cpu":
        return found

    # A stage by itself has a kernel of its own, but for one of several parts.
    found = [one for one in found if len(one) > 1]
    chained = {number for one in found for number in one}
    single = [number for number in sizes if number not in chained and parts[number] > 1]
    return found + [[number] for number in single if sizes[number] <= MOST_OF_PARTS]


def operations_of(cells: StageCells | LevelCells, space: Shape) -> int:
    """Return the number of operations of all cells of a stage, without the ranks' splits."""
    if isinstance(cells, StageCells):
        lengths = cells.lattice.lengths(space) if cells.lattice else space
        return cells.program.program.operations * math.prod(lengths)
    blocks = cells.blocks
    return blocks.cells.program.program.operations * math.prod(blocks.lattice.lengths(space))
