"""Levels of few cells: each rank has and computes all of them, rather than exchange some at each stage.

Where such a level is computed of one that is split, each rank computes its own cells, and gets the others'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.compiler.whole.between.levels import LevelGrid
from meshrun.runner.programs.stages import KernelStage, ReductionStage, StagedProgram
from meshrun.runner.region import Array, Region
from meshrun.runner.world.world import World

# Cells of a level, at most: what a rank computes of the others' cells takes less time than an exchange. On a
# GPU, a level of 2^20 cells takes 10 us, of which half would be another rank's, and its three exchanges 60.
MOST_CELLS = {"cpu": 1 << 14, "cuda": 1 << 20}
WORD = np.dtype(np.uint64)


def replicated_levels(program: StagedProgram, kind: str) -> set[LevelGrid]:
    """Return the lattices of whose arrays each of several ranks has all cells. kind: of device."""
    found = {
        one.lattice
        for one in program.arrays
        if one.lattice is not None and math.prod(one.shape) <= MOST_CELLS[kind]
    }
    # Inputs and results are split. So is what is reduced; an array that is read around its ends has its halo
    # filled.
    found -= {one.lattice for one in program.arrays[: program.function_inputs]}
    found -= {stage.cells.lattice for stage in program.kernels if any(one.of_output for one in stage.writes)}
    found -= {one.lattice for one in program.arrays if one.wraps}
    return found - {stage.cells.lattice for stage in program.stages if isinstance(stage, ReductionStage)}


def replicated_arrays(program: StagedProgram, levels: set[LevelGrid]) -> set[int]:
    """Return the arrays of lattices, by number."""
    return {number for number, one in enumerate(program.arrays) if one.lattice in levels}


def gathering_stages(program: StagedProgram, levels: set[LevelGrid]) -> set[int]:
    """Return the stages that compute cells of such lattices of arrays that are split, by number."""
    replicated = replicated_arrays(program, levels)
    return {
        number
        for number, stage in enumerate(program.stages)
        if isinstance(stage, KernelStage)
        and stage.cells.lattice in levels
        and not set(stage.cells.reads) <= replicated
    }


class Gathering:
    """Gives each rank all cells of arrays of which each has computed its own.

    own: this rank's cells. arrays: of one lattice; each rank has all of their cells.
    """

    def __init__(self, world: World, own: Region, arrays: Sequence[DistributedArray]) -> None:
        self._world, self._own, self._arrays = world, own, arrays
        # The bytes of all cells: of what is another rank's, zeros.
        sizes = [-(-math.prod(one.shape) * one.dtype.itemsize // WORD.itemsize) for one in self._arrays]
        self._words = world.backend.empty((sum(sizes),), WORD)
        self._cells: list[Array] = []
        begin = 0
        for one, size in zip(self._arrays, sizes, strict=True):
            cells = self._words[begin : begin + size].view(one.dtype)[: math.prod(one.shape)]
            self._cells.append(cells.reshape(one.shape))
            begin += size

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return int(self._words.nbytes)

    def __call__(self) -> None:
        """Gather the cells. Collective."""
        self._words.fill(0)
        for array, cells in zip(self._arrays, self._cells, strict=True):
            cells[self._own.slices] = array.interior[self._own.slices]
        self._world.arrays.all_reduce(self._words, "sum")
        for array, cells in zip(self._arrays, self._cells, strict=True):
            array.interior[...] = cells
