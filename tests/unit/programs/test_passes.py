"""How many stages a V-cycle is, and how many bytes they read and write: exact, so that more are seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.runner.programs.cells import LevelCells
from meshrun.runner.programs.level_kernel import boxes_of
from meshrun.runner.programs.stages import KernelStage, StagedProgram
from meshrun.runner.region import Region
from tests.facts.program_runs import planned
from tests.unit.programs.test_levels import cell_cycle, check, cycle, cycle_by_residuals, field


def threefold(u: Any, f: Any) -> Any:
    """Two grids, of which one has a ninth of the cells of the other."""
    n, m = u.shape
    u = u - 0.2 * (np.roll(u, 1, 0) + np.roll(u, -1, 1) - f)
    c = (f - u).reshape(n // 3, 3, m // 3, 3).mean(axis=(1, 3))
    c = c - 0.2 * (np.roll(c, 1, 0) + np.roll(c, -1, 1))
    return u + np.repeat(np.repeat(c, 3, axis=0), 3, axis=1)


def moved(program: StagedProgram, number: int) -> int:
    """Return the elements that a stage reads and writes, each once."""
    stage = program.stages[number]
    assert isinstance(stage, KernelStage)
    written = [
        program.outputs[one.number] if one.of_output else program.arrays[one.number] for one in stage.writes
    ]
    return sum(math.prod(one.shape) for one in (*written, *(program.arrays[at] for at in stage.cells.reads)))


# On a GPU: the stages, and the elements that they read and write. Of the finest grid, these are 3 for each
# cell for 2 sweeps, 2.25 for a residual and its restriction, 3.25 for a correction and 2 sweeps; of a coarse
# grid, 1.875 for each cell of the one above. All grids: 11 for each cell of the finest one.
CYCLES: dict[str, tuple[Callable[..., Any], int, int, int]] = {
    "cells": (cell_cycle, 256, 25, 720_980),
    "vertices": (cycle, 257, 32, 727_998),
    "vertices by residuals": (cycle_by_residuals, 257, 19, 639_366),
}


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_on_a_gpu_moves_few_bytes(name: str) -> None:
    function, size, stages, elements = CYCLES[name]
    program = planned(function, [field(size, size)] * 2, ("out",), "cuda")
    counts = [moved(program, number) for number in range(len(program.stages))]
    assert [round(100 * counts[number] / size**2) for number in (0, 1, -1)] == [300, 225, 325]
    assert (len(counts), sum(counts)) == (stages, elements)


def test_a_restriction_is_computed_once() -> None:
    """Also where sweeps read it at their own cells alone, and where it takes hardly any operations."""
    for function, size in ((cell_cycle, 64), (cycle, 65)):
        for kind in ("cpu", "cuda"):
            program = planned(function, [field(size, size)] * 2, ("out",), kind)
            finest = [
                stage
                for stage in program.kernels
                if stage.cells.lattice is not None and min(stage.cells.lattice.step) > 1
                if any(program.arrays[one].lattice is None for one in stage.cells.reads)
            ]
            assert len(finest) == 1


def test_blocks_of_nine_cells() -> None:
    """Of whole blocks, of rows and of single cells, where ranks begin and end within blocks."""
    program = check(threefold, field(27, 33), field(27, 33, seed=1))
    (stage,) = (one for one in program.kernels if isinstance(one.cells, LevelCells) and one.cells.rows)
    assert isinstance(stage.cells, LevelCells)
    assert stage.cells.blocks.block == (3, 3)
    # A rank that has rows 4 to 9 and columns 7 to 12: each of its cells is in one box.
    count = np.zeros((27, 33), int)
    for part, box in boxes_of(stage.cells, Region((4, 7), (10, 13))):
        for row, column in np.ndindex(box.shape):
            for phase in part.phases:
                at = [3 * (a + b) + c for a, b, c in zip(box.start, (row, column), phase, strict=True)]
                count[at[0], at[1] : at[1] + part.components] += 1
    assert (count[4:10, 7:13] == 1).all()
    assert count.sum() == 36
