"""One CUDA kernel for several time steps of a program: what is between two steps stays on chip.

The program's outputs feed its inputs. A fed input's cells are read once and written once for all steps; the
cells beyond the array are filled before each step, as the boundary says. kernels/steps_2d.cuh says how.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from runner.fuse.graph import Node, Operand, Program
from runner.fuse.operations import ctype, expression, literal
from runner.region import Array

LANES = 32
WIDEST_READ = 4  # cells beside the own one along an axis
REGISTERS = 200  # of a thread, for the state and what is computed from it
PROCESSORS = 132  # that warps are spread over when their rows are chosen
VECTOR_BYTES = 16

Plane = tuple[int, int]  # an input and one of its components


class NotFusable(Exception):
    """Why a program's steps cannot be taken by one kernel."""


@dataclass(frozen=True)
class Tuning:
    """Choices that change the speed and not the results.

    columns: of a lane; a power of two. warps: of a block. ahead: rows that are asked for before they are
    used. blocks: that a processor holds at least, which limits the registers. rows: that a warp computes; 0:
    as many as give each processor `resident` warps. vectors: whether blocks are read by vectors, which needs
    blocks that `takes_vectors` allows.
    """

    columns: int = 4
    warps: int = 4
    ahead: int = 1
    blocks: int = 1
    rows: int = 0
    resident: int = 16
    vectors: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis of a rank's part of the array.

    own: its cells. start: the first one's index in the array of `length` cells. before, after: neighbours'
    cells in memory beside them, which are valid; at an end of the array none, except beyond a boundary that
    wraps around, if the axis is split.
    """

    own: int
    start: int
    length: int
    before: int = 0
    after: int = 0


@dataclass(frozen=True, eq=False)
class StepKernel:
    """CUDA C++ of `steps` steps.

    source: includes files of runner/fuse/kernels. name: of the kernel. threads: of a block. radius: cells that
    are read on each side, per axis of the kernel. margin: columns on each side of a tile that another tile
    computes; valid: columns between them. shared: bytes of shared memory of a block. registers: of a thread,
    estimated. wraps: whether the boundary does.
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
    shared: int
    registers: int
    wraps: bool


@dataclass(frozen=True)
class Launch:
    """Arguments of a kernel: of its grid and block, as CUDA orders axes, and its own, all 64-bit integers."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class _Layout:
    """What a program needs of a kernel. state: the planes that change; fixed: those that no output feeds."""

    program: Program
    feeds: tuple[int, ...]
    state: tuple[Plane, ...]
    fixed: tuple[Plane, ...]

    def operand(self, plane: Plane) -> Operand:
        return self.program.inputs[plane[0]]

    @property
    def widest(self) -> int:
        """Return the bytes of the state's largest elements."""
        return max(self.operand(one).dtype.itemsize for one in self.state)

    @cached_property
    def radius(self) -> tuple[int, ...]:
        """Cells that are read on each side, per axis."""
        return tuple(
            max(self.reach(place, axis) for place in self.feeds) for axis in range(self.program.axes)
        )

    @property
    def beyond(self) -> int:
        """Return how many rows more than of the state are read of inputs that no output feeds."""
        if self.program.axes < 2:
            return 0
        others = max((self.reach(place, 0) for place, _ in self.fixed), default=0)
        return max(others - self.radius[0], 0)

    def reach(self, place: int, axis: int) -> int:
        return max(self.program.footprint(place)[axis])

    def registers(self, steps: int, tuning: Tuning) -> int:
        """Return about how many registers a thread takes."""
        rows = self.radius[0] if self.program.axes > 1 else 0
        columns = tuning.columns
        state = sum(
            (steps * (rows + self.reach(place, 0) * (self.program.axes > 1)) + tuning.ahead + 1)
            * columns
            * self._words(place)
            for place, _ in self.state
        )
        widest = max((node.dtype.itemsize + 3) // 4 for node in self.program.nodes)
        return 32 + state + 2 * columns * widest

    def _words(self, place: int) -> int:
        return (self.program.inputs[place].dtype.itemsize + 3) // 4


def most_steps(program: Program, feeds: Sequence[int | None], tuning: Tuning | None = None) -> int:
    """Return the most steps of one kernel: as many as the registers hold; 0 if there can be no such kernel."""
    try:
        layout = _layout(program, feeds)
    except NotFusable:
        return 0
    chosen = tuning or Tuning()
    steps = 0
    while steps < 16 and layout.registers(steps + 1, chosen) <= REGISTERS:
        if 4 * _margin(layout, steps + 1, chosen) > LANES * chosen.columns:
            break
        steps += 1
    return steps


def takes_vectors(arrays: Iterable[Array], tuning: Tuning) -> bool:
    """Return whether the rows of all arrays begin where a vector may."""
    arrays = list(arrays)
    items = _vector(max(one.dtype.itemsize for one in arrays), tuning.columns)
    return all(
        _address(one) % (items * one.dtype.itemsize) == 0
        and all(step % (items * one.dtype.itemsize) == 0 for step in one.strides[:-1])
        and one.strides[-1] == one.dtype.itemsize
        for one in arrays
    )


def build(
    program: Program,
    feeds: Sequence[int | None],
    boundary: str,
    cval: float = 0,
    steps: int = 1,
    tuning: Tuning | None = None,
) -> StepKernel:
    """Return the kernel of `steps` steps; raises NotFusable.

    feeds: of each output, the number of the input that it feeds. boundary, cval: as of a job.
    """
    layout, chosen = _layout(program, feeds), tuning or Tuning()
    radius = layout.radius if program.axes == 2 else (0, *layout.radius)
    margin = _margin(layout, steps, chosen)
    tile = LANES * chosen.columns
    if 2 * margin >= tile:
        raise NotFusable(f"{steps} steps need {margin} columns on each side of a tile of {tile}")
    vector = _vector(layout.widest, chosen.columns) if chosen.vectors else 1
    if vector > 1 and any(layout.operand(one).components > 1 for one in layout.state):
        raise NotFusable("has components, which vectors do not hold apart")
    name = f"take_{steps}_steps"
    constants = {
        "K": steps,
        "C": chosen.columns,
        "RY": radius[0],
        "RX": radius[1],
        "MARGIN": margin,
        "WARPS": chosen.warps,
        "AHEAD": chosen.ahead,
        "VECTOR": vector,
        "WIDEST": layout.widest,
        "BLOCKS": chosen.blocks,
        "BEYOND": layout.beyond,
    }
    return StepKernel(
        program, layout.feeds, steps, chosen, _source(layout, boundary, cval, name, constants), name,
        LANES * chosen.warps, radius, margin, tile - 2 * margin,
        chosen.warps * tile * layout.widest if vector == 1 else 0, layout.registers(steps, chosen),
        boundary == "wrap",
    )  # fmt: skip


def arguments(
    kernel: StepKernel, inputs: Sequence[Array], outs: Sequence[Array], axes: Sequence[Axis]
) -> Launch:
    """Return how to launch the kernel on arrays with at least one own cell.

    inputs, outs: the own cells of each input and output, as views of blocks that hold what `axes` say beside
    them; with all trailing axes, which lie as in C order.
    """
    layout = _layout(kernel.program, kernel.feeds)
    tuning = kernel.tuning
    if tuning.vectors and not takes_vectors([*inputs, *outs], tuning):
        raise ValueError("blocks whose rows do not begin where a vector may")
    y, x = axes if len(axes) == 2 else (Axis(1, 0, 1), *axes)
    tiles = math.ceil(x.own / kernel.valid)
    inside = [_inside(kernel, x, tile) for tile in range(tiles)]
    low = inside.index(True) if True in inside else tiles
    high = inside[::-1].index(True) if True in inside else 0
    height = tuning.rows or _height(kernel, tiles, y.own)
    shorter = max(math.ceil(height / 2), 1) if low + high < tiles else height
    warps = (low + high) * math.ceil(y.own / shorter) + (tiles - low - high) * math.ceil(y.own / height)
    grid = (math.ceil(warps / tuning.warps), 1, 1)
    values = [low, high, tiles, height, shorter, *(number for axis in (x, y) for number in _numbers(axis))]
    for place, component in layout.state:
        out = outs[layout.feeds.index(place)]
        for array in (inputs[place], out):
            values += [_address(array, component), _pitch(array, len(axes))]
    for place, component in layout.fixed:
        values += [_address(inputs[place], component), _pitch(inputs[place], len(axes))]
    return Launch(grid, (kernel.threads, 1, 1), kernel.shared, tuple(values))


def _layout(program: Program, feeds: Sequence[int | None]) -> _Layout:
    if not 1 <= program.axes <= 2:
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
    layout = _Layout(program, tuple(fed), state, tuple(sorted(planes - set(state))))
    if max(layout.radius) > WIDEST_READ:
        raise NotFusable(f"reads {max(layout.radius)} cells beside its own, more than {WIDEST_READ}")
    return layout


def _vector(itemsize: int, columns: int) -> int:
    return min(VECTOR_BYTES // itemsize, columns)


def _margin(layout: _Layout, steps: int, tuning: Tuning) -> int:
    unit = _vector(layout.widest, tuning.columns) if tuning.vectors else 1
    width = layout.radius[-1]
    others = max((layout.reach(place, -1) for place, _ in layout.fixed), default=0)
    return math.ceil(((steps - 1) * width + max(width, others)) / unit) * unit


def _inside(kernel: StepKernel, x: Axis, tile: int) -> bool:
    """Return whether all columns of a tile are cells of the array and in memory, and its results own cells."""
    first = tile * kernel.valid - kernel.margin
    last = first + kernel.valid + 2 * kernel.margin
    inside = kernel.wraps or (first + x.start >= 0 and last + x.start <= x.length)
    return inside and -x.before <= first and last <= x.own + x.after and last - kernel.margin <= x.own


def _height(kernel: StepKernel, tiles: int, rows: int) -> int:
    """Return rows of a strip: of all strips together, the warps that the processors hold at once."""
    strips = max(PROCESSORS * kernel.tuning.resident // tiles, 1)
    least = 4 * kernel.steps * max(kernel.radius[0], 1)
    return max(math.ceil(rows / strips), min(least, rows))


def _numbers(axis: Axis) -> tuple[int, ...]:
    return axis.own, axis.start, axis.length, axis.before, axis.after


def _address(array: Array, component: int = 0) -> int:
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0]) + component * int(array.dtype.itemsize)


def _pitch(array: Array, axes: int) -> int:
    return int(array.strides[0] // array.dtype.itemsize) if axes > 1 else 0


def _source(layout: _Layout, boundary: str, cval: float, name: str, constants: dict[str, int]) -> str:
    """Return the whole text of a kernel."""
    defined = [f"#define {one} {value}" for one, value in constants.items()]
    defined.append(f"#define BOUNDARY {boundary.upper()}")
    planes, fields, given = (
        [],
        [],
        [
            "low_tiles",
            "high_tiles",
            "tiles",
            "height",
            "edge_height",
            *(f"{a}_{n}" for a in "xy" for n in range(5)),
        ],
    )
    values = ["{int(x_0), int(x_1), int(x_2), int(x_3), int(x_4)}"]
    values += [values[0].replace("x", "y"), *(f"int({one})" for one in given[:5])]
    for number, plane in enumerate(layout.state):
        operand = layout.operand(plane)
        kind = ctype(operand.dtype)
        planes.append(f"X({number}, {kind}, {literal(_cast(cval, operand.dtype), operand.dtype)})")
        fields.append(f"const {kind}* in{number}; int64 in_pitch{number};")
        fields.append(f"{kind}* out{number}; int64 out_pitch{number};")
        given += [f"in{number}", f"in_pitch{number}", f"out{number}", f"out_pitch{number}"]
        values += [f"reinterpret_cast<const {kind}*>(in{number})", f"in_pitch{number}"]
        values += [f"reinterpret_cast<{kind}*>(out{number})", f"out_pitch{number}"]
        defined.append(f"#define STRIDE{number} {operand.components}")
    for number, plane in enumerate(layout.fixed):
        kind = ctype(layout.operand(plane).dtype)
        fields.append(f"const {kind}* fixed{number}; int64 fixed_pitch{number};")
        given += [f"fixed{number}", f"fixed_pitch{number}"]
        values += [f"reinterpret_cast<const {kind}*>(fixed{number})", f"fixed_pitch{number}"]
    bounds = f"__launch_bounds__({LANES} * WARPS, BLOCKS)"
    return "\n".join(
        [
            *defined,
            f"#define PLANES(X) {' '.join(planes)}",
            '#include "operations.cuh"',
            '#include "steps.cuh"',
            "namespace steps {",
            "struct Arguments { Axis x, y; int low_tiles, high_tiles, tiles, height, edge_height;",
            *fields,
            "};",
            "}",
            '#include "steps_2d.cuh"',
            "namespace steps {",
            "template <bool EDGE, int LEVEL>",
            "INLINE void compute(const Rows& rows, int here, const Place& at, Row& out) {",
            *_body(layout, constants["C"], cval),
            "}",
            "}",
            f'extern "C" __global__ void {bounds}',
            f"{name}({', '.join(f'int64 {one}' for one in given)}) {{",
            f"    steps::run(steps::Arguments{{{', '.join(values)}}});",
            "}",
            "",
        ]
    )


def _cast(cval: float, dtype: np.dtype[Any]) -> Any:
    """Return the constant as an assignment to an array makes it."""
    array = np.empty((), dtype)
    array[...] = cval
    return array


@dataclass
class _Writer:
    """Writes the statements that compute nodes, each node once."""

    layout: _Layout
    columns: int
    cval: float

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[int, str] = {}
        self._reads: dict[int, tuple[int, int] | None] = {}

    def name(self, wanted: Node) -> str:
        """Return the variable that holds a node, after the statements that compute it."""
        waiting = [wanted]
        while waiting:
            node = waiting[-1]
            if id(node) in self._names:
                waiting.pop()
                continue
            other = self._of_other_lane(node)
            needs = [other] if other is not None else node.operands
            missing = [one for one in needs if id(one) not in self._names]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            self._names[id(node)] = f"v{len(self._names)}"
            self.lines.append(f"    const {ctype(node.dtype)} {self._names[id(node)]} = {self._text(node)};")
        return self._names[id(wanted)]

    def _text(self, node: Node) -> str:
        other = self._of_other_lane(node)
        if other is not None:
            side = "left" if node_reads(node, self._reads)[1] < 0 else "right"  # type: ignore[index]
            return f"from_{side}({self._names[id(other)]})"
        return self._load(node) if node.op == "load" else expression(node, self._names)

    def _of_other_lane(self, node: Node) -> Node | None:
        """Return the node that the next lane computes alike, if all cells that are read are that lane's."""
        reads = node_reads(node, self._reads)
        if reads is None or (reads[1] >= 0 and reads[0] < self.columns):
            return None
        shift = self.columns if reads[1] < 0 else -self.columns
        far = (0,) * (self.layout.program.axes - 1)
        return self.layout.program.graph.shifted([node], (*far, shift))[0]

    def _load(self, node: Node) -> str:
        *rows, column = node.offset
        row = rows[0] if rows else 0
        plane = (node.input, node.component)
        if plane in self.layout.state:
            number = self.layout.state.index(plane)
            return f"rows.w{number}[LEVEL - 1][modulo(here + {row}, SLOTS)][{column}]"
        number, operand = self.layout.fixed.index(plane), self.layout.operand(plane)
        constant = literal(_cast(self.cval, operand.dtype), operand.dtype)
        return (
            f"fixed<EDGE>(at.all.fixed{number}, at.all.fixed_pitch{number}, {operand.components}, at, "
            f"{row}, {column}, {constant})"
        )


def node_reads(node: Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the first and last column that a node reads; None if it reads none. known: earlier answers."""
    waiting = [node]
    while waiting:
        one = waiting[-1]
        missing = [operand for operand in one.operands if id(operand) not in known]
        if id(one) in known or not missing:
            waiting.pop()
            parts = [known[id(operand)] for operand in one.operands]
            found = [part for part in parts if part is not None]
            if one.op == "load":
                known[id(one)] = one.offset[-1], one.offset[-1]
            else:
                known[id(one)] = (min(a for a, _ in found), max(b for _, b in found)) if found else None
        waiting += missing
    return known[id(node)]


def _body(layout: _Layout, columns: int, cval: float) -> list[str]:
    """Return the statements that compute the columns of a lane in one row of all planes."""
    program = layout.program
    writer = _Writer(layout, columns, cval)
    ends = []
    for column in range(columns):
        shift = (*(0,) * (program.axes - 1), column)
        for place, result in zip(layout.feeds, program.results, strict=True):
            for component, node in enumerate(program.graph.shifted(result, shift)):
                number = layout.state.index((place, component))
                ends.append(f"    out.w{number}[{column}] = {writer.name(node)};")
    return writer.lines + ends


def retuned(kernel: StepKernel, rows: int) -> StepKernel:
    """Return the same kernel, launched with so many rows of a warp."""
    return replace(kernel, tuning=replace(kernel.tuning, rows=rows))
