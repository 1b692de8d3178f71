"""Tunings of a kernel of several steps, the fastest first: predicted, or measured by a run and kept.

How many steps a run takes in one kernel is decided in runner/steps/steps_per_kernel.py. Choices change how
long a run takes and no bit of its results.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

from meshrun.runner.compiler.cuda.steps import kernel_3d as step_kernel_3d
from meshrun.runner.compiler.cuda.steps.kernel import (
    fitting_steps,
    keeps_values,
    predicted_strips,
    rows_held,
    valid_columns,
)
from meshrun.runner.compiler.cuda.steps.layout import (
    DEVICE_MEMORY,
    LANES,
    PROCESSORS,
    SCHEDULERS,
    Choice,
    NotFusable,
    Tuning,
    best_height,
    interior,
    layout_of,
)
from meshrun.runner.compiler.passes.branches import common_nodes, leaves_out_masked
from meshrun.runner.compiler.passes.exact_products import largest_field, with_exact_products
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.region import Shape
from meshrun.runner.system import cached_files

COLUMNS, BLOCKS = (2, 4), (4, 3, 2)  # of the choices
MEASURED = 5  # choices, the best ones as predicted
MOST_ALIKE = 2  # of these, of a number of steps, besides the first
NEAR = 1.35  # predicted time of a choice that is measured, over that of the first
WORTH_MEASURING = 20.0  # seconds that a run takes as predicted; to compile the choices takes about as long
LEAST_PASS = 5e-5  # seconds of a kernel, as predicted; a host may launch shorter ones more slowly
# Of an H200: instructions per second, and the part of these that is reached, by the columns of a lane and the
# blocks of 4 warps that a processor holds at least.
INSTRUCTIONS = 36e12
REACHED = {(4, 4): 0.82, (4, 3): 0.84, (4, 2): 0.84, (2, 4): 0.64, (2, 3): 0.37, (2, 2): 0.37}
PAIRED = 0.95  # of that for four columns, with two of pairs
SPILLED = 0.8  # of that, with branches and three blocks: 168 registers do not hold what branches need
# Instructions of a loop that the instruction cache holds, and the least part of the rate that longer loops
# reach: a third is lost for each `MORE`. Measured with one to three fields and two to six steps.
CACHED, MORE, CROWDED = 2000, 1000, 0.8
SINGLE = 0.93  # part of the memory's rate that a kernel of one step reaches
UNEVEN = 1.35  # instructions of a program with branches over those of its common cells: some cells need all
LAUNCH = 4e-6  # seconds of a pass beside its kernel: before and after it, and of an exchange
SLOW = {"hypot": 20}  # operations that are as many others
# Operations that a division takes longer than others, by the columns of a lane: it waits for its own steps,
# and lanes of more columns leave room for fewer warps that compute meanwhile.
DIVISION = {2: 7, 4: 13}
OTHERS = 2  # instructions for each cell beside the operations and the exchange with other lanes


def choices(program: Program, feeds: Sequence[int | None], shape: Shape | None = None) -> list[Choice]:
    """Return how kernels may take several steps, the fastest as predicted first.

    None if no kernel can, or if single steps are predicted to be faster. Over three axes, one at most.
    shape: of this rank's own cells; None: of very many.
    """
    found: list[Choice] = []
    if program.axes > 2:
        try:
            if layout_of(program, feeds).ends_read_further:
                return []  # the text for tiles at the ends is long, and such tiles are many
        except NotFusable:
            return []
        return step_kernel_3d.fastest_tiling(program, feeds)
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
    instructions = operations + OTHERS + of_others
    if tuning.keeps:  # of others, REACHED is of loops as long as theirs
        rows = rows_held(layout_of(program, feeds), tuning, "wrap")
        loop = instructions * rows * choice.steps * columns_of_one
        rate *= min(max(1 - (loop - CACHED) / (3 * MORE), CROWDED), 1)
    seconds = math.hypot(memory, instructions / rate)
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


def candidates(program: Program, feeds: Sequence[int | None], shape: Shape) -> list[Choice]:
    """Return choices that may be the fastest for a block of this shape, the one of `choices` first.

    At most `MEASURED`, predicted to take less than `NEAR` times as long as the first; none without a first.
    shape: of this rank's own cells, per grid axis.
    """
    found = choices(program, feeds, shape)
    if not found:
        return []
    first = found[0]
    others = found if program.axes < 3 else step_kernel_3d.tilings(program, feeds)
    most = NEAR * predicted_seconds(program, feeds, first, shape)
    times = {one: predicted_seconds(program, feeds, one, shape) for one in others if one != first}
    # Tilings of equally many steps are often predicted to be alike.
    near, alike = [first], Counter[int]()
    for one in sorted(times, key=times.__getitem__):
        if times[one] <= most and alike[one.steps] < MOST_ALIKE and len(near) < MEASURED:
            near.append(one)
            alike[one.steps] += 1
    return near


def predicted_seconds(program: Program, feeds: Sequence[int | None], choice: Choice, shape: Shape) -> float:
    """Predict the time of one step of a block of this shape on an H200."""
    if program.axes == 3:
        cell = step_kernel_3d.seconds_per_cell(layout_of(program, feeds), choice.steps, choice.tuning)
    else:
        cell = seconds_per_cell(program, feeds, choice, shape)
    return cell * math.prod(shape)


@dataclass(frozen=True)
class ChosenKernel:
    """The choice with which a run begins.

    source: "predicted", "measured" by this run, or "kept" by an earlier one. rivals: choices to measure on
    the first passes of the run, the predicted one first; none if it is too short. seconds: of a step,
    predicted. file: in which the fastest is kept. unreadable: whether the file is there, and is not one that
    meshrun has written for this kernel. compared, speedup: if measured, the number of choices that compiled,
    and how many times as fast the fastest is as the predicted one.
    """

    choice: Choice
    source: str
    rivals: tuple[Choice, ...] = ()
    seconds: float = 0.0
    file: Path | None = None
    unreadable: bool = False
    compared: int | None = None
    speedup: float | None = None


def chosen(
    program: Program,
    feeds: Sequence[int | None],
    shape: Shape,
    steps: int,
    words: Sequence[str],
    folder: Path | None,
) -> ChosenKernel | None:
    """Return the choice for a run of `steps` steps; None if no kernel takes several.

    shape: of this rank's own cells. words: what the fastest choice depends on besides the shape, which counts
    to a power of two. folder: of kept choices; None: nothing is measured.
    """
    shape = shape[: program.axes]
    possible = candidates(program, feeds, shape)
    if not possible:
        return None
    first = possible[0]
    sizes = [math.ceil(math.log2(max(length, 1))) for length in shape]
    file = cached_files.path_of(folder, [*words, str(sizes)], ".steps")
    kept = kept_choice(cached_files.read(file) or b"")
    if kept is not None and 1 < kept.steps <= fitting_steps(program, feeds, kept.tuning):
        return ChosenKernel(kept, "kept")
    seconds = predicted_seconds(program, feeds, first, shape)
    unreadable = file is not None and file.exists()
    worth = seconds * steps >= WORTH_MEASURING and seconds * first.steps >= LEAST_PASS
    if file is None or not worth or len(possible) < 2:
        return ChosenKernel(first, "predicted", file=file, unreadable=unreadable)
    return ChosenKernel(first, "predicted", tuple(possible), seconds, file, unreadable)


def kept_form(choice: Choice) -> bytes:
    """Return the contents of a file that keeps a choice."""
    return json.dumps(asdict(choice), sort_keys=True).encode()


def kept_choice(content: bytes) -> Choice | None:
    """Return the choice that a file's contents keep; None if they keep none."""
    try:
        fields = json.loads(content)
        return Choice(fields["steps"], Tuning(**fields["tuning"]))
    except (ValueError, TypeError, KeyError):
        return None
