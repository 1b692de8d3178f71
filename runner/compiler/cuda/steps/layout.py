"""What kernels of several steps share, whatever their number of axes: planes, choices, places, launches."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.passes import ends as ends_pass
from meshrun.runner.compiler.passes.copied_ends import CopiedEnds, copied_ends_of
from meshrun.runner.compiler.passes.kept_stages import KeptStages, kept_stages
from meshrun.runner.compiler.trace.graph import Extents, Operand, Program
from meshrun.runner.region import Array

LANES = 32
MOST_STEPS = 8  # instructions limit kernels of more steps
WIDEST_READ = 4  # cells beside the own one along an axis
MOST_ENDS = 16  # cells near the ends of an axis, if they read further than others
REGISTERS = 230  # of a thread that keeps none in memory
PROCESSORS = 132  # of an H200, to choose the rows of a warp
DEVICE_MEMORY = 4e12  # bytes per second that an H200 reads and writes
THREADS, ALL_REGISTERS, SCHEDULERS = 2048, 65536, 4  # of a processor
# In the time of the instructions of one warp's row inside the array, where very many warps follow each other,
# measured on an H200: a row of several warps of a scheduler that began together, a part and a part for each;
# and a row in the loop for edges, which mostly waits, beside however many warps.
TOGETHER, EACH, SLOW_ROW = 0.9, 0.85, 11.3
STAGGERED = 0.85  # time of warps that did not begin together over that of those that did
MOST_STRIPS = 200
WORTH_WAVES = 1.1  # time of several waves over that of one, at most
EDGE_ROW = 3  # time of a row in the loop for edges, in rows inside the array
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
    `takes_vectors` accepts. keeps: whether values that several rows read are kept instead of computed again
    (`Layout.kept`).
    """

    columns: int = 4
    lane_rows: int = 2
    warps: int = 4
    ahead: int = 1
    blocks: int = 1
    rows: int = 0
    vectors: bool = False
    keeps: bool = False


@dataclass(frozen=True)
class Choice:
    """How a kernel takes several steps. steps: of a kernel. tuning: of kernels that read vectors."""

    steps: int
    tuning: Tuning


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
    shared memory. registers: of a thread, estimated. wraps: whether the boundary wraps around.
    fast_ends: whether tiles at the ends of a row need no slow loop, if its columns divide into lanes.
    branches: whether some rows take longer than others, as their cells need what branches leave out.
    sends: whether it stores rows into other ranks' halos, as `Sending` says. none: whether no cell beyond the
    array decides a value. scalars: slots of one step's. ends: per axis of the kernel. far: of `far_of`.
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
    fast_ends: bool
    branches: bool
    sends: bool
    none: bool
    scalars: int
    ends: tuple[Ends, ...]
    far: int


@dataclass(frozen=True)
class Neighbour:
    """A rank beside this one along axis 0, for a kernel that stores rows into its halos.

    count: address of its count of what has arrived from this rank. halos: of each input that an output feeds,
    in their order: the address in that rank's block at which row 0 of this rank would be, and how many of
    this rank's rows are needed there.
    """

    rank: int
    count: int
    halos: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Sending:
    """How a kernel exchanges halos with the ranks before and after this one; see kernels/sending_2d.cuh.

    state, arrived, failure: addresses of this rank's state, of its two counts of what has arrived, from the
    rank before and from the one after, and of the word of host memory for a neighbour that was waited for in
    vain. patience: nanoseconds. rows: strips that compute one of so many rows at a side take part.
    """

    state: int
    arrived: int
    failure: int
    patience: int
    rows: int
    before: Neighbour | None
    after: Neighbour | None

    def values(self, layout: Layout, strips: Sequence[tuple[int, int, int]]) -> list[int]:
        """Return the kernel's arguments. strips: first row, last row + 1, and how many are alike."""
        own = max(last for _, last, _ in strips)
        before = [self.before is not None and first < self.rows for first, _, _ in strips]
        after = [self.after is not None and last > own - self.rows for _, last, _ in strips]
        either = [one or other for one, other in zip(before, after, strict=True)]

        def count(near: Sequence[bool]) -> int:
            return sum(alike for (*_, alike), one in zip(strips, near, strict=True) if one)

        places = sorted({place for place, _ in layout.state})
        values = [self.state, self.arrived, self.failure, self.patience, self.rows, count(either)]
        for neighbour, near in ((self.before, before), (self.after, after)):
            if neighbour is None:
                values += [-1, 0, 0, *(0, 0) * len(layout.state)]
                continue
            values += [neighbour.rank, neighbour.count, count(near)]
            for place, component in layout.state:
                address, rows = neighbour.halos[places.index(place)]
                values += [address + component * layout.operand((place, component)).dtype.itemsize, rows]
        return values


@dataclass(frozen=True)
class StepLaunch:
    """Arguments of a launch. grid, block: in CUDA's order of axes. values: the kernel's, 64-bit integers."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Ends:
    """How cells near the ends of the array along an axis differ from those between.

    before, after: how many they are. reach: cells that they read on each side. wraps: whether one of them,
    or a cell beside them, reads a cell on the other side of the array. late, kept: rows that they read beyond
    the radius of those between, further down and further up, if a kernel over two axes can compute them with
    that radius.
    """

    before: int = 0
    after: int = 0
    reach: int = 0
    wraps: bool = False
    late: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Layout:
    """The planes of a program. state: those that outputs feed; fixed: those that no output feeds.

    interior: the program of cells far from all ends of the array; without conditions on the place, the
    program itself. ends, repeats, filled: per axis; the latter, first_steps, and the program without the
    conditions of ends that are copies as of `passes.copied_ends`.
    """

    program: Program
    feeds: tuple[int, ...]
    state: tuple[Plane, ...]
    fixed: tuple[Plane, ...]
    interior: Program
    ends: tuple[Ends, ...]
    repeats: tuple[int, ...]
    filled: Extents
    first_steps: int

    def operand(self, plane: Plane) -> Operand:
        return self.program.inputs[plane[0]]

    @property
    def widest(self) -> int:
        """Return the bytes of the largest elements in memory."""
        return max(self.operand(one).dtype.itemsize for one in (*self.state, *self.fixed))

    @cached_property
    def radius(self) -> tuple[int, ...]:
        """Cells that are read on each side, per axis.

        Cells near an end may read further along the last axis, where other lanes have what they read, and in
        rows over two axes, if these are kept or at hand later (`Ends`).
        """
        last = self.program.axes - 1
        found = []
        for axis, ends in enumerate(self.ends):
            inside = max(self.reach(place, axis) for place in self.feeds)
            near = inside if axis == last or ends.late + ends.kept else ends.reach
            found.append(max(inside, near))
        return tuple(found)

    @cached_property
    def kept(self) -> KeptStages | None:
        """The values that a kernel may keep for later rows, between the ends of the array; None: none.

        None either if rows near an end are computed later than others, or read rows that others do not.
        """
        if self.program.axes != 2 or self.ends[0].late + self.ends[0].kept:
            return None
        return kept_stages(self.interior, self.radius[0])

    def computed(self, tuning: Tuning) -> Program:
        """Return what a kernel computes for each cell between the ends, with the values that it keeps."""
        return self.kept.program if tuning.keeps and self.kept else self.interior

    @property
    def beyond(self) -> int:
        """Return how many more rows are read of fixed inputs than of the state."""
        if self.program.axes < 2:
            return 0
        others = max((self.reach(place, 0) for place, _ in self.fixed), default=0)
        return max(others - self.radius[0], 0)

    @property
    def has_ends(self) -> bool:
        """Whether conditions on the place make cells near an end differ."""
        return any(one.before + one.after for one in self.ends)

    @property
    def ends_read_further(self) -> bool:
        """Whether the radius of an axis but the last is larger than that of cells between the ends."""
        between = [max(self.reach(place, axis) for place in self.feeds) for axis in range(len(self.ends) - 1)]
        return any(a > b for a, b in zip(self.radius, between, strict=False))

    def reach(self, place: int, axis: int) -> int:
        """Return how far a cell between the ends reads an input."""
        return max(self.interior.footprint(place)[axis])

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
    copied = _copied_ends_of(program, tuple(fed))
    layout = _layout(copied, tuple(fed))
    if any(map(any, copied.filled)):
        # Conditions are as fast at ends that read no further than others.
        plain = _layout(CopiedEnds(program, copied.repeats, ((0, 0),) * program.axes), tuple(fed))
        others = [max(layout.reach(place, axis) for place in fed) for axis in range(program.axes)]
        further = any(one.reach > reach for one, reach in zip(layout.ends, others, strict=True))
        if further or not plain.ends_read_further:
            layout = plain
    widest = max(*layout.radius, *(one.reach for one in layout.ends))
    if widest > WIDEST_READ:
        raise NotFusable(f"reads {widest} cells beside its own, more than {WIDEST_READ}")
    return layout


def _layout(copied: CopiedEnds, fed: tuple[int, ...]) -> Layout:
    program = copied.program
    planes = {(one.input, one.component) for one in program.loads}
    state = tuple((place, one) for place in sorted(fed) for one in range(program.inputs[place].components))
    fixed = tuple(sorted(planes - set(state)))
    ends = _ends_of(program, fed)
    return Layout(
        program, fed, state, fixed, interior(program), ends, copied.repeats, copied.filled, copied.first_steps
    )


@functools.lru_cache(maxsize=16)  # the choices of a kernel ask for those of one program again and again
def interior(program: Program) -> Program:
    return ends_pass.interior(program)


@functools.lru_cache(maxsize=16)
def _copied_ends_of(program: Program, fed: tuple[int, ...]) -> CopiedEnds:
    return copied_ends_of(program, fed)


@functools.lru_cache(maxsize=16)
def _ends_of(program: Program, fed: tuple[int, ...]) -> tuple[Ends, ...]:
    """Return how cells near the ends differ, per axis."""
    return tuple(
        _ends_along(program, fed, axis, before, after)
        for axis, (before, after) in enumerate(ends_pass.ends_of(program))
    )


def _ends_along(program: Program, fed: Sequence[int], axis: int, before: int, after: int) -> Ends:
    if before + after == 0:
        return Ends()

    def reads_of(one: Program) -> tuple[int, int]:
        """Return how many cells are read before and after the own one: along rows, of fields that change."""
        every = axis == program.axes - 1
        offsets = [load.offset[axis] for load in one.loads if every or load.input in fed]
        return max((-at for at in offsets), default=0), max(offsets, default=0)

    below, above = reads_of(interior(program))
    reach, between = max(0, *reads_of(program)), max(0, below, above)
    if reach <= between:
        return Ends(before, after, reach)
    if before + after > MOST_ENDS:
        raise NotFusable(f"reads further than elsewhere in {before + after} cells near the array's ends")

    # How far each of the cells near an end reads, before and after it.
    length, reads = program.lengths[axis], dict[int, tuple[int, int]]()
    for position in (*range(before), *range(length - after, length)):
        first, last = [0] * program.axes, list(program.lengths)
        first[axis], last[axis] = position, position + 1
        results = ends_pass.specialised(program.graph, program.results, tuple(first), tuple(last))
        reads[position] = reads_of(replace(program, results=results))
    wraps = below > before or above > after  # of the cells beside them
    wraps |= any(low > at or at + high >= length for at, (low, high) in reads.items())

    # Rows that read further down can be computed later at the first end only. Such a row is complete when the
    # next level reads it if it is not much later, and if there are few.
    late = max((high - between for at, (_, high) in reads.items() if at < before), default=0)
    late = max(late, 0)
    few = late == 0 or (late <= between and before <= between + 1)
    others = any(high > between for at, (_, high) in reads.items() if at >= before)
    if program.axes != 2 or axis > 0 or wraps or others or not few:
        return Ends(before, after, reach, wraps)
    kept = max(low + (late if at < before else 0) - between for at, (low, _) in reads.items())
    return Ends(before, after, reach, wraps, late, max(kept, 0))


def vector_items(itemsize: int, columns: int) -> int:
    return min(VECTOR_BYTES // itemsize, columns)


def margin_of(layout: Layout, steps: int, tuning: Tuning) -> int:
    unit = vector_items(layout.widest, tuning.columns) if tuning.vectors else 1
    width, ends = layout.radius[-1], layout.ends[-1]
    others = max((layout.reach(place, -1) for place, _ in layout.fixed), default=0)
    further = max(ends.reach - width, 0) if ends.wraps else 0
    if further:  # the cells near both ends of the array, which lie side by side, may each read further once
        further *= min((ends.before + ends.after - 1) // ends.reach + 1, steps)
    return math.ceil(((steps - 1) * width + max(width, others) + further) / unit) * unit


def far_of(layout: Layout, steps: int) -> int:
    """Return how many columns before the array's end those near it read; 0 if no further than others."""
    width, ends = layout.radius[-1], layout.ends[-1]
    if ends.wraps or ends.reach <= width:
        return 0
    return ends.after + ends.reach + (steps - 1) * width


def resident_warps(tuning: Tuning, registers: int, shared: int = 0) -> int:
    """Return the number of warps that a processor holds at once.

    registers: of a thread. shared: bytes of a block.
    """
    threads = LANES * tuning.warps
    blocks = min(THREADS // threads, ALL_REGISTERS // (math.ceil(registers / 8) * 8 * threads))
    if shared:
        blocks = min(blocks, SHARED_BYTES // shared)
    return max(blocks, 1) * tuning.warps


@dataclass(frozen=True)
class SlowRows:
    """Rows in the loop for edges.

    first, last: of the first strip and of the last one. spared: before the first strip, not computed.
    """

    first: int = 0
    last: int = 0
    spared: int = 0


@dataclass(frozen=True)
class StripLayout:
    """How a launch over two axes is cut: `tiles` warps beside one another compute all rows, strip by strip.

    edges: tiles at an end of the array, in the loop for edges. rows: in all. extra: rows of a strip before
    and after its own ones. at_once: warps that the processors hold. slow: rows that take longer. sides: other
    tiles at an end, whose rows take longer: a strip of them begins first, and leaves time for one less.
    """

    tiles: int
    edges: int
    rows: int
    extra: int
    at_once: int
    slow: SlowRows
    sides: int = 0

    def edge_height(self, height: int) -> int:
        """Return the rows of a strip of a tile at an edge, where those of others have `height`."""
        if self.edges == self.tiles:
            return height
        return max((height + self.extra) // EDGE_ROW - self.extra, self.extra, 1)

    def cut(self, height: int) -> list[tuple[int, int, int]]:
        """Return the first row of each strip, its last row + 1, and the number of tiles that have it."""
        found = []
        for tiles, each, lead in (
            (self.edges, self.edge_height(height), 0),
            (self.tiles - self.edges, height, self.lead(height)),
        ):
            ends = range(each - lead, self.rows + each, each) if tiles else ()
            found += [(max(end - each, 0), min(end, self.rows), tiles) for end in ends]
        return found

    def warps(self, strips: int) -> int:
        return (self.tiles + (EDGE_ROW - 1) * self.edges + self.sides) * strips

    def row_time(self, height: int) -> float:
        """Return the time of a row of all warps of a scheduler, in instructions of one warp's row."""
        at_once = min(self.warps(math.ceil(self.rows / height)), self.at_once)
        return TOGETHER + EACH * math.ceil(at_once / (PROCESSORS * SCHEDULERS))

    def lead(self, height: int) -> int:
        """Return the rows that the first strip has less, for it to take as long as others."""
        return _within(self.slow.first * (SLOW_ROW / self.row_time(height) - 1) - self.slow.spared, height)

    def trail(self, height: int) -> int:
        """Return the rows that the last strip should have less, for it to take as long as others."""
        return _within(self.slow.last * (SLOW_ROW / self.row_time(height) - 1), height)

    def duration(self, height: int) -> float:
        """Return when the last strip ends, in the time of the instructions of one warp's row."""
        rows = self.rows + self.lead(height)
        strips = math.ceil(rows / height)
        longest = max(height, rows - (strips - 1) * height + self.trail(height)) + self.extra
        edge = min(self.edge_height(height), self.rows) + self.extra if self.edges else 0
        waves = math.ceil(self.warps(strips) / self.at_once)
        together = STAGGERED + (1 - STAGGERED) / waves
        return max(waves * longest * together, EDGE_ROW * edge) * self.row_time(height)


def _within(rows: float, height: int) -> int:
    return min(max(round(rows), 0), height - 1)


@functools.lru_cache
def best_height(strips: StripLayout, waves: int = 1) -> int:
    """Return the rows of a strip with which the last strip ends soonest.

    waves: least number of strips that a warp's place on a processor takes, one after another, where there are
    as many, and unless that takes more than `WORTH_WAVES` times as long.
    """
    heights = []
    for count in range(1, min(strips.rows, MOST_STRIPS) + 1):
        equal = math.ceil(strips.rows / count)
        heights.append(math.ceil((strips.rows + strips.lead(equal) + strips.trail(equal)) / count))
    least = min(max((waves - 1) * strips.at_once // strips.tiles, 1), len(heights))
    times = {height: strips.duration(height) for height in heights}
    best, several = (min(heights[first:], key=times.__getitem__) for first in (0, least - 1))
    return several if times[several] <= WORTH_WAVES * times[best] else best


def numbers(axis: Axis) -> tuple[int, ...]:
    return axis.own, axis.start, axis.length, axis.before, axis.after


def pitches(array: Array, axes: int) -> tuple[int, ...]:
    """Return the elements between planes and between rows."""
    if axes == 1:
        return (0,)
    return tuple(int(step // array.dtype.itemsize) for step in array.strides[: axes - 1])


def part_of(operand: Operand, component: int) -> int:
    """Return which of a pair a component is; 0 of other cells."""
    return component if operand.components == 2 else 0


def cast(cval: float, dtype: np.dtype[Any]) -> Any:
    """Convert the constant as an assignment to an array does."""
    array = np.empty((), dtype)
    array[...] = cval
    return array
