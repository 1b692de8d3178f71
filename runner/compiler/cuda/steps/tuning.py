"""Tunings of a kernel of several steps, the fastest first: predicted, or measured once and kept.

How many steps a run takes in one kernel is decided in runner/steps/steps_per_kernel.py. Choices change how
long a run takes and no bit of its results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

from meshrun.runner.compiler.cuda.steps import kernel_3d as step_kernel_3d
from meshrun.runner.compiler.cuda.steps.kernel import (
    fitting_steps,
    keeps_values,
    predicted_strips,
    valid_columns,
)
from meshrun.runner.compiler.cuda.steps.layout import (
    DEVICE_MEMORY,
    LANES,
    PROCESSORS,
    SCHEDULERS,
    Axis,
    Tuning,
    best_height,
    interior,
    layout_of,
)
from meshrun.runner.compiler.passes.branches import common_nodes, leaves_out_masked
from meshrun.runner.compiler.passes.exact_products import largest_field, with_exact_products
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.device.api import Backend
from meshrun.runner.region import Array, Shape
from meshrun.runner.system import cached_files
from meshrun.runner.system.compiler import NotCompiled

COLUMNS, BLOCKS = (2, 4), (4, 3, 2)  # of the choices
MEASURED = 4  # choices, the best ones as predicted
ROUNDS, LAUNCHES = 3, 8  # the device waits for the first launch of a round, if it is faster than the host
WORTH_MEASURING = 100.0  # seconds that a run takes as predicted; measuring takes 20, most of it the compiler
SAMPLE_BYTES = 2 << 30  # of the fields, at most; a quarter of the free memory if that is less
ALIGNED = 128  # bytes from row to row of a sample are a multiple
# Of an H200: instructions per second, and the part of these that is reached, by the columns of a lane and the
# blocks of 4 warps that a processor holds at least.
INSTRUCTIONS = 36e12
REACHED = {(4, 4): 0.82, (4, 3): 0.84, (4, 2): 0.84, (2, 4): 0.64, (2, 3): 0.37, (2, 2): 0.37}
PAIRED = 0.95  # of that for four columns, with two of pairs
SPILLED = 0.8  # of that, with branches and three blocks: 168 registers do not hold what branches need
SINGLE = 0.93  # part of the memory's rate that a kernel of one step reaches
UNEVEN = 1.35  # instructions of a program with branches over those of its common cells: some cells need all
LAUNCH = 4e-6  # seconds of a pass beside its kernel: before and after it, and of an exchange
SLOW = {"hypot": 20}  # operations that are as many others
# Operations that a division takes longer than others, by the columns of a lane: it waits for its own steps,
# and lanes of more columns leave room for fewer warps that compute meanwhile.
DIVISION = {2: 7, 4: 13}
OTHERS = 2  # instructions for each cell beside the operations and the exchange with other lanes

# (own cells of the inputs, of the outputs, what lies beside them): returns what takes the steps.
BindSteps = Callable[[Sequence[Array], Sequence[Array], Sequence[Axis]], Callable[[], None]]


@dataclass(frozen=True)
class Choice:
    """steps: of a kernel. tuning: of kernels that read vectors."""

    steps: int
    tuning: Tuning


def choices(program: Program, feeds: Sequence[int | None], shape: Shape | None = None) -> list[Choice]:
    """Return how kernels may take several steps, the fastest as predicted first.

    None if no kernel can, or if single steps are predicted to be faster. Over three axes, one at most.
    shape: of this rank's own cells; None: of very many.
    """
    found: list[Choice] = []
    if program.axes > 2:
        tuning = step_kernel_3d.suggested(program, vectors=True)
        most = fitting_steps(program, feeds, tuning)
        if most > 1 and layout_of(program, feeds).ends_read_further:
            return []  # the text for tiles at the ends is long, and such tiles are many
        best = step_kernel_3d.best_steps(program, feeds, most, tuning) if most > 1 else 1
        return [Choice(best, tuning)] if best > 1 else []
    keeps = (False, True) if keeps_values(program, feeds) else (False,)
    for columns, blocks, kept in product(COLUMNS, BLOCKS, keeps):
        tuning = Tuning(columns=columns, ahead=3, blocks=blocks, vectors=True, keeps=kept)
        steps = fitting_steps(program, feeds, tuning)
        least = 2 if shape is not None and program.axes == 2 else max(steps - 1, 2)
        found += [Choice(one, tuning) for one in range(least, steps + 1)]
    if found and any(ends.wraps for ends in layout_of(program, feeds).ends[:-1]):
        return []  # rows at an end read rows at the other: the rings are long, the loop for edges slow
    times = {one: seconds_per_cell(program, feeds, one, shape) for one in found}
    moved = _bytes_of(program.inputs, program.outputs)
    single = moved / (SINGLE * DEVICE_MEMORY) + _launch_per_cell(1, shape)
    return sorted((one for one in found if times[one] < single), key=times.__getitem__)


def _bytes_of(*operands: Sequence[Operand]) -> int:
    """Return the bytes of a cell."""
    return sum(one.dtype.itemsize * one.components for each in operands for one in each)


def _launch_per_cell(steps: int, shape: Shape | None) -> float:
    cells = 0 if shape is None else math.prod(shape)
    return LAUNCH / (steps * cells) if cells else 0.0


def seconds_per_cell(
    program: Program, feeds: Sequence[int | None], choice: Choice, shape: Shape | None = None
) -> float:
    """Predict the time of one step of a cell on an H200; memory and arithmetic hide each other in part.

    shape: as of `choices`. In a small array, rows that two strips compute, tiles at its ends, and places of
    warps that have nothing left to do take part of the time.
    """
    tuning, fed = choice.tuning, [place for place in feeds if place is not None]
    inside = layout_of(program, feeds).computed(tuning) if tuning.keeps else interior(program)
    exact = largest_field(program, fed, choice.steps, 0.0) > 0
    columns = valid_columns(program, feeds, choice.steps, tuning)
    valid = columns / (LANES * tuning.columns)
    read, written = _bytes_of(program.inputs), _bytes_of(program.outputs)
    memory = (read * (1 + 1 / valid) / 2 + written) / choice.steps / DEVICE_MEMORY
    of_others = sum(one.offset[-1] != 0 for one in inside.loads) / tuning.columns
    operations = _operations(inside, exact) + _divisions(inside) * DIVISION[tuning.columns]
    # Two columns of pairs are as many elements of a lane as four others.
    columns_of_one = min(tuning.columns * max(one.components for one in program.inputs), max(COLUMNS))
    rate = INSTRUCTIONS * REACHED[columns_of_one, tuning.blocks] * valid
    if columns_of_one > tuning.columns:
        rate *= PAIRED
    if tuning.blocks > 2 and leaves_out_masked(inside):
        rate *= SPILLED
    if shape is not None and program.axes == 2 and all(shape):
        strips = predicted_strips(program, feeds, choice.steps, tuning, shape)
        taken = strips.duration(best_height(strips)) * PROCESSORS * SCHEDULERS  # rows of tiles
        rate *= shape[0] * shape[1] / columns / taken
    seconds = math.hypot(memory, (operations + OTHERS + of_others) / rate)
    return seconds + _launch_per_cell(choice.steps, shape)


@lru_cache
def _operations(program: Program, exact: bool) -> int:
    """Return the operations of a cell, of 32 bits."""
    # A mask is true in few cells; where a branch is for those for which it is not, all cells need it.
    nodes = common_nodes(with_exact_products(program) if exact else program, (True,))
    made = (one for one in nodes if one.op not in ("load", "constant", "scalar"))
    operations = sum((2 if one.dtype.itemsize == 8 else 1) * SLOW.get(one.op, 1) for one in made)
    return math.ceil(operations * UNEVEN) if leaves_out_masked(program) else operations


@lru_cache
def _divisions(program: Program) -> int:
    """Return the divisions of a cell for which no branch is needed."""
    return sum(node.op == "divide" for node in common_nodes(program, (True,)))


def chosen(
    program: Program,
    feeds: Sequence[int | None],
    shape: Shape,
    steps: int,
    text: str,
    backend: Backend,
    binder: Callable[[Choice], BindSteps],
    folder: Path | None,
) -> Choice | None:
    """Return the choice for a run of `steps` steps; None if no kernel takes several.

    The fastest of a few if an earlier run or this one measured them, for blocks of about this size; else the
    predicted one. shape: of this rank's own cells. text: what the choice depends on beside the device and the
    shape. binder: returns what binds a choice's kernel. folder: of kept choices.
    """
    possible = choices(program, feeds, shape[: program.axes])
    if len(possible) < 2:
        return next(iter(possible), None)
    sizes = [math.ceil(math.log2(length)) for length in shape[: program.axes]]
    path = cached_files.path_of(folder, [backend.device.name, str(sizes), text], ".steps")
    kept = cached_files.read(path)
    for one in possible:
        if kept == _bytes(one):
            return one
    seconds = seconds_per_cell(program, feeds, possible[0], shape[: program.axes])
    seconds *= math.prod(shape[: program.axes]) * steps
    if seconds < WORTH_MEASURING:
        return possible[0]
    best = fastest(program, feeds, shape, possible[:MEASURED], backend, binder)
    cached_files.keep(path, _bytes(best))
    return best


def fastest(
    program: Program,
    feeds: Sequence[int | None],
    shape: Shape,
    possible: Sequence[Choice],
    backend: Backend,
    binder: Callable[[Choice], BindSteps],
) -> Choice:
    """Measure choices on part of a rank's cells, and return the one whose steps take the least time."""
    size = _bytes_of(program.inputs, program.outputs)
    cells = min(SAMPLE_BYTES, backend.free_memory() // 4) // size
    rows = max(min(shape[0], cells // math.prod(shape[1 : program.axes])), 1)
    part = (rows, *shape[1 : program.axes])
    inputs, outs = (
        [_ones(backend, part, one) for one in operands] for operands in (program.inputs, program.outputs)
    )
    axes = [Axis(length, 0, length) for length in part]
    times = []
    for one in possible:
        try:
            take = binder(one)(inputs, outs, axes)
        except NotCompiled:  # a run with this choice alone would say so
            times.append(math.inf)
            continue
        take()
        spans = []
        for _ in range(ROUNDS):
            begin = backend.mark()
            for _ in range(LAUNCHES):
                take()
            spans.append((begin, backend.mark()))
        backend.synchronize()
        times.append(min(backend.elapsed(*span) for span in spans) / one.steps)
    return possible[times.index(min(times))]


def _ones(backend: Backend, shape: Shape, operand: Operand) -> Array:
    """Return ones, in rows that begin where a vector may. shape: of the grid."""
    unit = max(ALIGNED // (operand.dtype.itemsize * operand.components), 1)
    row = math.ceil(shape[-1] / unit) * unit
    whole = backend.empty((*shape[:-1], row, *operand.trailing), operand.dtype)
    whole[...] = 1
    return whole[tuple(map(slice, shape))]


def _bytes(choice: Choice) -> bytes:
    return json.dumps(asdict(choice), sort_keys=True).encode()
