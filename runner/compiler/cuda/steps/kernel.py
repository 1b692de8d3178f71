"""Generate a CUDA kernel that takes several time steps of a program and keeps the states between on chip.

The program's outputs feed its inputs. The cells of a fed input are read once and written once for all steps;
cells beyond the array follow the boundary mode in each step. kernels/steps_2d.cuh and steps_3d.cuh explain
the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshrun.runner.compiler.cuda.steps import kernel_3d as step_kernel_3d
from meshrun.runner.compiler.cuda.steps.layout import (
    ALL_REGISTERS,
    LANES,
    MOST_STEPS,
    PROCESSORS,
    REGISTERS,
    SHARED_BYTES,
    VECTOR_BYTES,
    Axis,
    Ends,
    Layout,
    NotFusable,
    Sending,
    SlowRows,
    StepKernel,
    StepLaunch,
    StripLayout,
    Tuning,
    best_height,
    far_of,
    layout_of,
    margin_of,
    numbers,
    part_of,
    pitches,
    resident_warps,
    vector_items,
)
from meshrun.runner.compiler.cuda.steps.text import source
from meshrun.runner.compiler.passes.branches import branches_of, leaves_out_masked
from meshrun.runner.compiler.passes.exact_products import largest_field
from meshrun.runner.compiler.trace.graph import Program
from meshrun.runner.region import Array, Shape, address_of

GROWTH = 1.35  # all registers over those counted, as measured
STAGED_GROWTH = 1.43  # the same of kernels that keep values: each stage has some of its own
BRANCH_REGISTERS = 18  # that both sides of branches need besides
UNCOUNTED = 20  # registers that most kernels use beside those estimated, where they may
SQUEEZED = 1.06  # registers over those that a bound leaves, which a compiler may do without
FEW_BYTES = 96  # of a thread's registers in memory: they cost less than a block more on a processor gains
SPILLED = 1.05  # registers estimated over those of the fastest kernels, which keep some in memory
NEVER = -(2**31)  # a row before all others, as in kernels/steps.cuh
SIDE_TILES = 3  # the first tile and the last two, as in kernels/steps_2d.cuh
WAVES = 3  # of warps, at least: neighbours then read about the same rows, some of them from the cache
BRANCH_WAVES = 9  # where some rows take longer than others: the processors are busy to the end


def suggested(program: Program, *, vectors: bool = False) -> Tuning:
    """Return a tuning that suits the program's number of axes."""
    if program.axes == 3:
        return step_kernel_3d.suggested(program, vectors)
    return Tuning(columns=4, warps=4, ahead=3, blocks=3, vectors=vectors)


def fitting_steps(program: Program, feeds: Sequence[int | None], tuning: Tuning | None = None) -> int:
    """Return the largest number of steps of one kernel; 0 if no kernel is possible.

    Registers and shared memory limit it, and the margins, which may take half of a tile.
    """
    try:
        layout = layout_of(program, feeds)
    except NotFusable:
        return 0
    chosen = tuning or suggested(program)
    fits = step_kernel_3d.fits if program.axes == 3 else _fits
    steps = 0
    while steps < MOST_STEPS and fits(layout, steps + 1, chosen):
        steps += 1
    return steps


def keeps_values(program: Program, feeds: Sequence[int | None]) -> bool:
    """Return whether a kernel may keep values that several rows read."""
    try:
        return layout_of(program, feeds).kept is not None
    except NotFusable:
        return False


def valid_columns(program: Program, feeds: Sequence[int | None], steps: int, tuning: Tuning) -> int:
    """Return the columns between the margins of a tile."""
    return LANES * tuning.columns - 2 * margin_of(layout_of(program, feeds), steps, tuning)


def predicted_strips(
    program: Program, feeds: Sequence[int | None], steps: int, tuning: Tuning, shape: Shape
) -> StripLayout:
    """Return how a launch over so many rows and columns is cut, as if no axis was split between ranks."""
    layout = layout_of(program, feeds)
    tiles = math.ceil(shape[1] / valid_columns(program, feeds, steps, tuning))
    registers = _registers(layout, steps, tuning) + UNCOUNTED
    at_once = PROCESSORS * max(resident_warps(tuning, registers), tuning.warps * tuning.blocks)
    edges = min(tiles, 2) if shape[1] % tuning.columns else 0
    slow = _slow_rows(layout, steps, tuning, Axis(shape[0], 0, shape[0]), wraps=False)
    return StripLayout(tiles, edges, shape[0], 2 * steps * layout.radius[0], at_once, slow)


def _slow_rows(layout: Layout, steps: int, tuning: Tuning, rows: Axis, *, wraps: bool) -> SlowRows:
    """Return the rows in the loop for edges.

    Rows at an end of the array are computed in that loop, and so are the last ones in memory, as the loop
    inside asks for rows ahead (kernels/steps_2d.cuh).
    """
    reach, beyond, near = layout.radius[0], layout.beyond, layout.ends[0]
    starts, ends = rows.start == 0, rows.start + rows.own == rows.length
    if near.before + near.after:
        first = near.before + near.late + steps * reach if starts else 0
        last = near.after + steps * reach + max(near.kept - 1, 0) if ends else 0
        if not wraps:
            last = max(last, (2 + steps if ends else 2) * reach + tuning.ahead - 1)
        return SlowRows(first, last, steps * reach if starts and not wraps else 0)
    if reach + beyond == 0 or wraps:
        return SlowRows()
    first = (steps + 2) * reach + beyond if starts else 0
    last = 2 * reach + tuning.ahead - 1 + (steps * reach + beyond if ends else 0)
    return SlowRows(first, last, (steps - 1) * reach if starts else 0)


def _fits(layout: Layout, steps: int, tuning: Tuning) -> bool:
    tile = LANES * tuning.columns
    most = min(REGISTERS, SPILLED * ALL_REGISTERS // (LANES * tuning.warps * tuning.blocks))
    return (
        4 * margin_of(layout, steps, tuning) <= tile
        and _registers(layout, steps, tuning) <= most
        and _constants(layout, tuning, 1)[1] <= SHARED_BYTES
    )


def _registers(layout: Layout, steps: int, tuning: Tuning) -> int:
    """Estimate the registers of a thread.

    A plane's rows of each level are kept from when they are computed until they are last read: none of a
    plane that is read in the newest row alone. So are those of values that the kernel keeps.
    """
    lag = layout.radius[0] if layout.program.axes > 1 else 0
    kept = new = 0
    values = layout.kept if tuning.keeps else None
    for plane in layout.state:
        if values:
            oldest = values.oldest.get(plane, lag)
        else:
            rows = [one.offset[0] for one in layout.interior.loads if (one.input, one.component) == plane]
            oldest = min(rows, default=lag) if lag else 0
        kept += max(lag - oldest, 0) * layout.words(plane[0])
        new += layout.words(plane[0])
    kept += values.words if values else 0
    widest = max((node.dtype.itemsize + 3) // 4 for node in layout.interior.nodes)
    branches = BRANCH_REGISTERS if leaves_out_masked(layout.interior) else 0
    growth = STAGED_GROWTH if values else GROWTH
    return branches + int(
        growth * (32 + steps * kept * tuning.columns) + 2 * tuning.columns * max(new, widest)
    )


def takes_pairs(program: Program) -> bool:
    """Return whether vectors hold all cells: those of one component, or of two, as complex numbers."""
    return all(one.components == 1 or one.trailing == (2,) for one in program.inputs)


def takes_vectors(arrays: Iterable[Array], tuning: Tuning, axes: int) -> bool:
    """Return whether the rows of all arrays begin at addresses of whole vectors, equally far apart if their
    cells are equally large.

    axes: of the grid. An array of pairs has one more; its vectors are at most of `VECTOR_BYTES`.
    """
    arrays = list(arrays)
    items = vector_items(max(one.dtype.itemsize for one in arrays), tuning.columns)
    strides = {(one.dtype.itemsize, one.ndim): one.strides for one in arrays}

    def begins_at_vectors(one: Array) -> bool:
        size = min(items * math.prod(one.shape[axes:]) * one.dtype.itemsize, VECTOR_BYTES)
        return all(step % size == 0 for step in (address_of(one), *one.strides[: axes - 1]))

    return all(
        begins_at_vectors(one)
        and _cells_lie_together(one, axes)
        and one.strides == strides[one.dtype.itemsize, one.ndim]
        for one in arrays
    )


def build(
    program: Program,
    feeds: Sequence[int | None],
    boundary: str,
    cval: float = 0,
    steps: int = 1,
    tuning: Tuning | None = None,
    *,
    sends: bool = False,
) -> StepKernel:
    """Return the kernel of `steps` steps. Raises NotFusable.

    feeds: of each output, the number of the input that it feeds. boundary, cval: as of a job, or "none" of a
    program in which no cell beyond the array decides a value. sends: whether it stores rows into other ranks'
    halos, over two axes only.
    """
    layout, chosen = layout_of(program, feeds), tuning or suggested(program)
    if any(map(any, layout.filled)):
        boundary = "nearest"  # no cell beyond the array is read
    if any(layout.repeats) and boundary != "wrap":
        raise NotFusable("has ends that meet, beside a boundary that does not wrap around")
    radius = layout.radius if program.axes > 1 else (0, *layout.radius)
    margin = margin_of(layout, steps, chosen)
    tile = LANES * chosen.columns
    if 2 * margin >= tile:
        raise NotFusable(f"{steps} steps need {margin} columns on each side of a tile of {tile}")
    vector = vector_items(layout.widest, chosen.columns) if chosen.vectors else 1
    if vector > 1 and not takes_pairs(program):
        raise NotFusable("has more than two components, which vectors do not hold apart")
    elsewhere = boundary in ("wrap", "none")
    if not elsewhere and any(
        one.reach > width for one, width in zip(layout.ends, layout.radius, strict=True)
    ):
        raise NotFusable("reads further than elsewhere near the array's ends, beside copies of other cells")
    name = f"take_{steps}_steps"
    ends = layout.ends if program.axes > 1 else (Ends(), *layout.ends)
    far = far_of(layout, steps)
    if far and tile - 2 * margin <= far + chosen.columns:
        raise NotFusable(f"{steps} steps need {far} columns from the array's end")
    constants = {
        "AXES": program.axes,
        "K": steps,
        "C": chosen.columns,
        "RY": radius[-2],
        "RX": radius[-1],
        "MARGIN": margin,
        "WARPS": chosen.warps,
        "AHEAD": chosen.ahead,
        "VECTOR": vector,
        "BLOCKS": chosen.blocks,
        "SCALARS": layout.program.scalars,
        "LOW_Y": ends[-2].before,
        "HIGH_Y": ends[-2].after,
        "LOW_X": ends[-1].before,
        "HIGH_X": ends[-1].after,
        "FAR_X": far,
        "REPEATS_Y": layout.repeats[-2] if program.axes > 1 else 0,
        "REPEATS_X": layout.repeats[-1],
        **{f"STRIDE{n}": layout.operand(plane).components for n, plane in enumerate(layout.state)},
        **{f"PART{n}": part_of(layout.operand(one), one[1]) for n, one in enumerate(layout.state)},
    }
    if program.axes == 3:
        valid_rows = step_kernel_3d.valid_rows(layout, steps, chosen)
        more, shared = step_kernel_3d.constants(layout, steps, chosen)
        registers = step_kernel_3d.registers(layout, steps, chosen)
    else:
        valid_rows = 1
        more, shared = _constants(layout, chosen, vector)
        more["PERIOD"] = rows_held(layout, chosen, boundary)
        registers = _registers(layout, steps, chosen)
    if shared > SHARED_BYTES:
        raise NotFusable(f"{steps} steps need {shared} bytes of shared memory")
    constants |= more
    # Columns beyond the array are read on its other side, or not at all, or are those of the state: then no
    # fixed input may be read there.
    known = elsewhere or all(layout.reach(place, -1) == 0 for place, _ in layout.fixed)
    fast_ends = vector > 1 and known
    constants["SIDES_KNOWN"] = int(fast_ends)
    outside = cval if boundary == "constant" else 0.0
    largest = largest_field(layout.program, layout.feeds, steps, outside) if program.axes < 3 else 0.0
    kept = layout.kept if chosen.keeps else None
    return StepKernel(
        program, layout.feeds, steps, chosen,
        source(layout, boundary, cval, name, constants, kept, largest, sends=sends), name,
        LANES * chosen.warps, radius, margin, tile - 2 * margin, valid_rows,
        shared, registers, boundary == "wrap", fast_ends, bool(branches_of(layout.interior)), sends,
        boundary == "none", layout.program.scalars, ends, far,
    )  # fmt: skip


def _constants(layout: Layout, tuning: Tuning, vector: int) -> tuple[dict[str, int], int]:
    """Return constants of kernels/steps_2d.cuh, and the bytes of a block's shared memory."""
    operands = [layout.operand(plane) for plane in layout.state]
    one_pitch = vector > 1 and len({(one.dtype.itemsize, one.components) for one in operands}) == 1
    constants = {"BEYOND": layout.beyond, "ONE_PITCH": int(one_pitch)}
    near = layout.ends[0] if layout.program.axes > 1 else Ends()
    constants |= {"LATE": near.late, "KEPT": near.kept}
    total = 0
    tile = LANES * tuning.columns
    for number, plane in enumerate(layout.state):
        constants[f"STAGE{number}"] = total
        total += tuning.ahead * tile * layout.operand(plane).dtype.itemsize
    constants["SCRATCH"] = total
    constants["WARP_BYTES"] = total = total + (tile * layout.widest if vector == 1 else 0)
    return constants, tuning.warps * total


def rows_held(layout: Layout, tuning: Tuning, boundary: str) -> int:
    """Return the rows of a plane and of a kept value that the loop inside the array holds.

    As many as are read around the results' row, as the loop for edges reads them after it, unless that loop
    never comes after it: where the array wraps around and has no ends.
    """
    lag = layout.radius[0] if layout.program.axes > 1 else 0
    values, near = layout.kept if tuning.keeps else None, layout.ends[0]
    if values is None or boundary != "wrap" or near.before + near.after:
        return 2 * lag + 1
    first = len(values.program.inputs) - len(values.leads)
    newest = dict.fromkeys(layout.state, lag)
    newest |= {(first + number, 0): lead for number, lead in enumerate(values.leads)}
    return max(row - values.oldest.get(plane, row) + 1 for plane, row in newest.items())


def arguments(
    kernel: StepKernel,
    inputs: Sequence[Array],
    outs: Sequence[Array],
    axes: Sequence[Axis],
    registers: int | None = None,
    sending: Sending | None = None,
    scalars: Array | None = None,
) -> StepLaunch:
    """Return how to launch the kernel on arrays with at least one own cell.

    inputs, outs: own cells of each input and output, as views of blocks with as many valid cells beside them
    as `axes` says; with all trailing axes, in C order. registers: of a thread of the compiled kernel; None:
    estimated. sending: of a kernel that stores rows into other ranks' halos. scalars: slots of 8 bytes, a row
    of them for each step, if the kernel takes some.
    """
    layout = layout_of(kernel.program, kernel.feeds)
    tuning = kernel.tuning
    if tuning.vectors and not takes_vectors([*inputs, *outs], tuning, len(axes)):
        raise ValueError("blocks whose rows do not begin where a vector may")
    if not all(_cells_lie_together(one, len(axes)) for one in [*inputs, *outs]):
        raise ValueError("blocks whose cells of a row lie apart in memory")
    taken = registers or kernel.registers
    cut: list[tuple[int, int, int]] = []
    *_, y, x = axes if len(axes) > 1 else (Axis(1, 0, 1), *axes)
    if len(axes) == 3:
        grid, height = step_kernel_3d.grid_of(kernel, [*inputs, *outs], axes, taken)
        values = [height, *numbers(axes[0])]
    else:
        tiles = math.ceil(x.own / kernel.valid)
        inside = [_inside(kernel, x, tile) for tile in range(tiles)]
        low = inside.index(True) if True in inside else tiles
        high = inside[::-1].index(True) if True in inside else 0
        at_once = PROCESSORS * resident_warps(tuning, taken, kernel.shared)
        slow = _slow_rows(layout, kernel.steps, tuning, y, wraps=kernel.wraps)
        extra, along_x = 2 * kernel.steps * kernel.radius[0], kernel.ends[-1]
        # Where rows take longer, too, strips at the ends are not as high as others.
        sides = min(tiles - low - high, SIDE_TILES) if kernel.wraps and along_x.before + along_x.after else 0
        strips = StripLayout(tiles, low + high, y.own, extra, at_once, slow, sides)
        height = tuning.rows or best_height(strips, BRANCH_WAVES if kernel.branches else WAVES)
        shorter, lead = strips.edge_height(height), strips.lead(height)
        cut = strips.cut(height)
        grid = (math.ceil(sum(alike for *_, alike in cut) / tuning.warps), 1, 1)
        values = [height, lead, low, high, tiles, shorter, _first_known(kernel, y)]
    values += [number for axis in (x, y) for number in numbers(axis)]
    for place, component in layout.state:
        out = outs[layout.feeds.index(place)]
        for array in (inputs[place], out):
            values += [address_of(array) + component * array.dtype.itemsize, *pitches(array, len(axes))]
    for place, component in layout.fixed:
        array = inputs[place]
        values += [address_of(array) + component * array.dtype.itemsize, *pitches(array, len(axes))]
    assert kernel.sends == (sending is not None)
    if sending is not None:
        values += sending.values(layout, cut)
    if kernel.scalars:
        assert scalars is not None
        values.append(address_of(scalars))
    return StepLaunch(grid, (kernel.threads, 1, 1), kernel.shared, tuple(values))


def _first_known(kernel: StepKernel, rows: Axis) -> int:
    """Return the first row that is of use: the first one in memory, or the first one beyond the array that a
    step reads."""
    if kernel.wraps:
        return NEVER if rows.own == rows.length else -rows.before
    return -rows.before - (kernel.radius[0] if rows.before == rows.start and not kernel.none else 0)


def _cells_lie_together(array: Array, axes: int) -> bool:
    """Return whether the cells of a row follow each other, each with its components in C order."""
    step = array.dtype.itemsize
    for length, stride in zip(reversed(array.shape[axes:]), reversed(array.strides[axes:]), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return bool(array.strides[axes - 1] == step)


def _inside(kernel: StepKernel, x: Axis, tile: int) -> bool:
    """Return whether all columns of a tile are in the array and in memory, and its results are own cells."""
    columns, ends = kernel.tuning.columns, kernel.ends[-1]
    first = tile * kernel.valid - kernel.margin
    if kernel.far:
        first = min(first, (x.length - x.start - kernel.far) // columns * columns)
    last = first + kernel.valid + 2 * kernel.margin
    in_lanes = x.own == x.length and x.length % columns == 0 and first % columns == 0
    if kernel.fast_ends and in_lanes and (kernel.wraps or kernel.none or x.length > kernel.radius[-1]):
        return True  # columns beyond the array are read on its other side, or are in lanes at hand
    low, high = first + kernel.radius[-1] + x.start, last - kernel.radius[-1] + x.start
    if ends.before + ends.after and (low < ends.before or high > x.length - ends.after):
        return False
    inside = kernel.wraps or (first + x.start >= 0 and last + x.start <= x.length)
    return inside and -x.before <= first and last <= x.own + x.after and last - kernel.margin <= x.own


def one_block_more(kernel: StepKernel, registers: int) -> Tuning | None:
    """Return a tuning for one block more on a processor, if that takes only few of a thread's registers.

    registers: of a thread of the compiled kernel. None: it takes more, or so many blocks are asked for.
    """
    tuning = kernel.tuning
    blocks = resident_warps(tuning, registers, kernel.shared) // tuning.warps + 1
    limit = ALL_REGISTERS // (kernel.threads * blocks) // 8 * 8
    fits = limit < registers <= SQUEEZED * limit and blocks * kernel.shared <= SHARED_BYTES
    return replace(tuning, blocks=blocks) if fits and len(kernel.radius) == 2 else None
