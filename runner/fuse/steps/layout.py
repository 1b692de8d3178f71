"""What kernels of several steps share, whatever their number of axes: planes, choices, places, launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from runner.fuse.graph import Operand, Program
from runner.region import Array

LANES = 32
WIDEST_READ = 4  # cells beside the own one along an axis
REGISTERS = 230  # of a thread that keeps none in memory
PROCESSORS = 132  # of an H200, to choose the rows of a warp
THREADS, ALL_REGISTERS = 2048, 65536  # of a processor
MOST_STRIPS = 200
VECTOR_BYTES = 16
SHARED_BYTES = 227 * 1024

Plane = tuple[int, int]  # an input and one of its components


class NotFusable(Exception):
    """Why no kernel can take several steps of a program."""


@dataclass(frozen=True)
class Tuning:
    """Choices that change a kernel's speed but not its results.

    columns: of a lane; a power of two. lane_rows: of a lane, over three axes. warps: of a block. ahead:
    number of rows to load before they are used, over two axes. blocks: least number that a
    processor holds, which limits the registers. rows: rows (planes) that a warp computes; 0: as many as
    keep the processors busy to the end. vectors: whether to read blocks by vectors, which needs blocks that
    `takes_vectors` accepts.
    """

    columns: int = 4
    lane_rows: int = 2
    warps: int = 4
    ahead: int = 1
    blocks: int = 1
    rows: int = 0
    vectors: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis of a rank's part of the array.

    own: number of own cells. start: index of the first one in the array of `length` cells. before, after:
    number of neighbours' cells that are valid in memory beside them: none at an end of the array, except
    where the boundary wraps around and the axis is split.
    """

    own: int
    start: int
    length: int
    before: int = 0
    after: int = 0


@dataclass(frozen=True, eq=False)
class StepKernel:
    """CUDA C++ text that takes `steps` steps.

    source: includes no files. name: of the kernel. threads: of a block. radius: cells to read on each side,
    per axis of the kernel. margin: columns on each side of a tile that another tile computes; valid: columns
    between the margins; valid_rows: rows between the margins, over three axes. shared: bytes of a block's
    shared memory. registers: of a thread, estimated. wraps: whether the boundary wraps around. branches:
    whether some rows take longer than others, as their cells need what branches leave out.
    """

    program: Program
    feeds: tuple[int, ...]
    steps: int
    tuning: Tuning
    source: str
    name: str
    threads: int
    radius: tuple[int, ...]
    margin: int
    valid: int
    valid_rows: int
    shared: int
    registers: int
    wraps: bool
    branches: bool


@dataclass(frozen=True)
class StepLaunch:
    """Arguments of a launch. grid, block: in CUDA's order of axes. values: the kernel's, 64-bit integers."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The planes of a program. state: those that outputs feed; fixed: those that no output feeds."""

    program: Program
    feeds: tuple[int, ...]
    state: tuple[Plane, ...]
    fixed: tuple[Plane, ...]

    def operand(self, plane: Plane) -> Operand:
        return self.program.inputs[plane[0]]

    @property
    def widest(self) -> int:
        """Return the bytes of the largest elements in memory."""
        return max(self.operand(one).dtype.itemsize for one in (*self.state, *self.fixed))

    @cached_property
    def radius(self) -> tuple[int, ...]:
        """Cells that are read on each side, per axis."""
        return tuple(
            max(self.reach(place, axis) for place in self.feeds) for axis in range(self.program.axes)
        )

    @property
    def beyond(self) -> int:
        """Return how many more rows are read of fixed inputs than of the state."""
        if self.program.axes < 2:
            return 0
        others = max((self.reach(place, 0) for place, _ in self.fixed), default=0)
        return max(others - self.radius[0], 0)

    def reach(self, place: int, axis: int) -> int:
        return max(self.program.footprint(place)[axis])

    def words(self, place: int) -> int:
        """Return the registers that hold a cell of one component."""
        return (self.program.inputs[place].dtype.itemsize + 3) // 4


def layout_of(program: Program, feeds: Sequence[int | None]) -> Layout:
    if not 1 <= program.axes <= 3:
        raise NotFusable(f"has {program.axes} axes")
    fed = [place for place in feeds if place is not None]
    if len(fed) < len(feeds):
        raise NotFusable("has an output that feeds no input")
    inputs, outputs = program.inputs, program.outputs
    for place, output in zip(fed, outputs, strict=True):
        if (inputs[place].dtype, inputs[place].trailing) != (output.dtype, output.trailing):
            raise NotFusable(f"has an output {output.name} unlike the input that it feeds")
    planes = {(one.input, one.component) for one in program.loads}
    state = tuple((place, one) for place in sorted(fed) for one in range(inputs[place].components))
    layout = Layout(program, tuple(fed), state, tuple(sorted(planes - set(state))))
    if max(layout.radius) > WIDEST_READ:
        raise NotFusable(f"reads {max(layout.radius)} cells beside its own, more than {WIDEST_READ}")
    return layout


def vector_items(itemsize: int, columns: int) -> int:
    return min(VECTOR_BYTES // itemsize, columns)


def margin_of(layout: Layout, steps: int, tuning: Tuning) -> int:
    unit = vector_items(layout.widest, tuning.columns) if tuning.vectors else 1
    width = layout.radius[-1]
    others = max((layout.reach(place, -1) for place, _ in layout.fixed), default=0)
    return math.ceil(((steps - 1) * width + max(width, others)) / unit) * unit


def resident_warps(kernel: StepKernel, registers: int) -> int:
    """Return the number of warps that a processor holds at once. registers: of a thread."""
    per_thread = math.ceil(registers / 8) * 8
    blocks = min(THREADS // kernel.threads, ALL_REGISTERS // (per_thread * kernel.threads))
    if kernel.shared:
        blocks = min(blocks, SHARED_BYTES // kernel.shared)
    return max(blocks, 1) * kernel.tuning.warps


def strip_height(kernel: StepKernel, columns: int, rows: int, registers: int, waves: int = 1) -> int:
    """Return the rows of a strip with which the last strip ends soonest.

    columns: number of warps beside one another, each of which computes all rows, strip by strip. waves: least
    number of strips that a warp's place on a processor takes, one after another, where there are as many.
    """
    at_once = PROCESSORS * resident_warps(kernel, registers)
    extra = 2 * kernel.steps * kernel.radius[0]  # rows before and after its own ones

    def duration(strips: int) -> int:
        return math.ceil(columns * strips / at_once) * (math.ceil(rows / strips) + extra)

    most = min(rows, MOST_STRIPS)
    least = min(max((waves - 1) * at_once // columns, 1), most)
    return math.ceil(rows / min(range(least, most + 1), key=duration))


def numbers(axis: Axis) -> tuple[int, ...]:
    return axis.own, axis.start, axis.length, axis.before, axis.after


def address(array: Array, component: int = 0) -> int:
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0]) + component * int(array.dtype.itemsize)


def pitches(array: Array, axes: int) -> tuple[int, ...]:
    """Return the elements between planes and between rows."""
    if axes == 1:
        return (0,)
    return tuple(int(step // array.dtype.itemsize) for step in array.strides[: axes - 1])


def cast(cval: float, dtype: np.dtype[Any]) -> Any:
    """Convert the constant as an assignment to an array does."""
    array = np.empty((), dtype)
    array[...] = cval
    return array
