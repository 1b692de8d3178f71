"""Generate the kernel of several steps over three axes: kernels/steps_3d.cuh explains the method."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import product

from meshrun.runner.compiler.cuda.steps.layout import (
    ALL_REGISTERS,
    DEVICE_MEMORY,
    LANES,
    MOST_STEPS,
    MOST_STRIPS,
    PROCESSORS,
    REGISTERS,
    SHARED_BYTES,
    VECTOR_BYTES,
    Axis,
    Choice,
    Layout,
    NotFusable,
    StepKernel,
    Tuning,
    layout_of,
    margin_of,
    resident_warps,
)
from meshrun.runner.compiler.passes.branches import common_operations
from meshrun.runner.compiler.trace.graph import Program
from meshrun.runner.region import Array

WARPS = 12  # of a block, which a processor holds one of
TILINGS = (2, 4), (2, 3, 4, 6, 8), (12, 16)  # columns and rows of a lane, and warps, that may be measured
CELLS = 16  # of a lane, in words of 32 bits of the state
OTHERS, OTHERS_EACH = (
    20,
    12,
)  # registers beside those that hold cells: in all, and of each plane read on a side
# Of an H200: the part of its memory's rate that kernels reach; instructions per second that kernels of
# several steps reach, and those of a cell beside operations and for a load of a fixed input.
REACHED, OPERATIONS, OVERHEAD, FIXED = 0.76, 22e12, 5, 5.5
DOUBLE = 3  # instructions for an operation of 64 bits, whose values lanes also exchange in two parts
WORTH = 0.8  # time of several steps over that of single ones, at most
EDGE = 1.3  # time of a tile at an edge over that of another


def suggested(program: Program, vectors: bool) -> Tuning:
    """Return a tuning for kernels that were not chosen: three steps of seven points fit."""
    words = sum((one.dtype.itemsize + 3) // 4 * one.components for one in program.inputs)
    columns = 2 if max(one.dtype.itemsize for one in program.inputs) > 2 else 4
    rows = max(CELLS // (columns * words), 1)
    return Tuning(columns=columns, lane_rows=rows, warps=WARPS, vectors=vectors)


def tilings(program: Program, feeds: Sequence[int | None]) -> list[Choice]:
    """Return the numbers of steps and the tiles that fit a processor, as a block of some warps has them."""
    layout, found = layout_of(program, feeds), []
    for columns, rows, warps in product(*TILINGS):
        if columns == 2 and layout.widest <= 2:
            continue  # a lane's columns are few bytes
        tuning = Tuning(columns=columns, lane_rows=rows, warps=warps, vectors=True)
        steps = 2
        while steps <= MOST_STEPS and fits(layout, steps, tuning):
            found.append(Choice(steps, tuning))
            steps += 1
    return found


def fastest_tiling(program: Program, feeds: Sequence[int | None]) -> list[Choice]:
    """Return the tiling that is fastest as predicted; none if single steps are about as fast.

    Kernels of single steps compile in less time.
    """
    layout = layout_of(program, feeds)
    times = {one: seconds_per_cell(layout, one.steps, one.tuning) for one in tilings(program, feeds)}
    single = seconds_per_cell(layout, 1, Tuning())
    best = min(times, key=times.__getitem__, default=None)
    return [best] if best is not None and times[best] < WORTH * single else []


def seconds_per_cell(layout: Layout, steps: int, tuning: Tuning) -> float:
    """Predict the time of one step of a cell on an H200."""
    program = layout.program
    read = sum(one.dtype.itemsize * one.components for one in program.inputs)
    written = sum(one.dtype.itemsize * one.components for one in program.outputs)
    if steps == 1:
        return (read + written) / (REACHED * DEVICE_MEMORY)
    valid = _valid(layout, steps, tuning)
    memory = (read * (1 + 1 / valid) / 2 + written) / steps / (REACHED * DEVICE_MEMORY)
    inside = layout.interior
    loads = sum(1 for one in inside.loads if (one.input, one.component) in layout.fixed)
    slow = DOUBLE if layout.widest == 8 else 1
    instructions = slow * common_operations(inside) + OVERHEAD + FIXED * loads
    arithmetic = instructions / valid / OPERATIONS
    return max(memory, arithmetic) + min(memory, arithmetic) / 8  # they hide each other in part


def _valid(layout: Layout, steps: int, tuning: Tuning) -> float:
    """Return the part of a tile that is between the margins."""
    columns = 1 - 2 * margin_of(layout, steps, tuning) / (LANES * tuning.columns)
    return columns * (1 - 2 * steps * layout.radius[1] / (tuning.warps * tuning.lane_rows))


def fits(layout: Layout, steps: int, tuning: Tuning) -> bool:
    """Return whether a processor can hold a block, and whether enough of its tile is valid."""
    if _valid(layout, steps, tuning) < 0.6 or constants(layout, steps, tuning)[1] > SHARED_BYTES:
        return False
    return registers(layout, steps, tuning) <= min(REGISTERS, ALL_REGISTERS // (LANES * tuning.warps))


def registers(layout: Layout, steps: int, tuning: Tuning) -> int:
    """Estimate the registers of a thread.

    They hold planes of each level but the last, a plane that is computed, and one that has been asked for.
    """
    planes = steps * (_lag(layout) + layout.radius[0]) + 2
    if any(one.components > 1 for one in layout.program.inputs):
        planes += 3  # pairs are read and written together, and their products wait for each other
    words = sum(layout.words(place) for place, _ in layout.state)
    others = OTHERS + OTHERS_EACH * layout.radius[0]
    return others + planes * words * tuning.columns * tuning.lane_rows


def _lag(layout: Layout) -> int:
    """Return the distance along axis 0 between the levels of two steps.

    Cells of another warp's rows must have been shared a plane before they are read.
    """
    slanting = any(one.offset[0] and one.offset[1] for one in layout.program.loads)
    return max(layout.radius[0] + slanting, min(layout.radius[1], 1))


def valid_rows(layout: Layout, steps: int, tuning: Tuning) -> int:
    """Return the rows between the margins of a tile. Raises NotFusable."""
    rows = tuning.warps * tuning.lane_rows
    valid = rows - 2 * steps * layout.radius[1]
    if valid <= 0:
        raise NotFusable(f"{steps} steps need more than {rows} rows of a tile")
    return valid


def constants(layout: Layout, steps: int, tuning: Tuning) -> tuple[dict[str, int], int]:
    """Return constants of kernels/steps_3d.cuh, and the bytes of its shared memory."""
    (rz, ry, rx), lag = layout.radius, _lag(layout)
    slots, rows = lag + rz + 1, tuning.warps * tuning.lane_rows
    footprints = [layout.program.footprint(place) for place in range(len(layout.program.inputs))]
    reach = max(max(one[1]) for one in footprints)
    far = max((max(footprints[place][0]) for place, _ in layout.fixed), default=0)
    found = {"LOW_Z": layout.ends[0].before, "HIGH_Z": layout.ends[0].after}
    found["ENDS_FILLED"] = int(any(map(any, layout.filled)))
    found |= {"H": tuning.lane_rows, "RZ": rz, "REACH_Y": reach, "REACH_Z": far, "LAG": lag, "SLOTS": slots}
    columns = LANES * tuning.columns
    total = VECTOR_BYTES + _aligned(4 * (rows + 2 * reach + 1 + columns + 4 * (ry + rx)))
    shared_rows = steps * slots * (tuning.warps * min(tuning.lane_rows, 2 * ry) + 2 * ry)
    for number, plane in enumerate(layout.state):
        beside = any((one.input, one.component) == plane and one.offset[1] for one in layout.program.loads)
        found[f"SHARED{number}"] = total if beside else -1
        if beside:
            total += _aligned(shared_rows * columns * layout.operand(plane).dtype.itemsize)
    return found, total


def _aligned(size: int) -> int:
    return math.ceil(size / VECTOR_BYTES) * VECTOR_BYTES


def grid_of(
    kernel: StepKernel, arrays: Sequence[Array], axes: Sequence[Axis], taken: int
) -> tuple[tuple[int, int, int], int]:
    """Return the blocks of a launch, and the planes of each. taken: registers of a thread."""
    z, y, x = axes
    if any(one.strides[0] // one.dtype.itemsize >= 2**31 or one.strides[1] >= 2**31 for one in arrays):
        raise ValueError("planes of 2^31 elements or more, or rows of 2^31 bytes")
    wide, tall = math.ceil(x.own / kernel.valid), math.ceil(y.own / kernel.valid_rows)
    height = kernel.tuning.rows or _height(kernel, (wide, tall), z.own, taken)
    return (wide, tall, math.ceil(z.own / height)), height


@functools.lru_cache
def _height(kernel: StepKernel, tiles: tuple[int, int], planes: int, taken: int) -> int:
    """Return the planes of a block with which the last block ends soonest, about."""
    at_once = PROCESSORS * resident_warps(kernel.tuning, taken, kernel.shared) // kernel.tuning.warps
    inner = math.prod(max(count - 2, 0) for count in tiles)
    work = inner + EDGE * (math.prod(tiles) - inner)  # of a strip
    extra = 2 * kernel.steps * kernel.radius[0]  # planes before and after its own ones

    def duration(strips: int) -> float:
        own = math.ceil(planes / strips) + extra
        if math.prod(tiles) * strips <= at_once:
            return EDGE * own
        return own * (work * strips / at_once + EDGE / 2)

    return math.ceil(planes / min(range(1, min(planes, MOST_STRIPS) + 1), key=duration))
