"""Generate a CUDA kernel that takes several time steps of a program and keeps the states between on chip.

The program's outputs feed its inputs. The cells of a fed input are read once and written once for all steps;
cells beyond the array follow the boundary mode in each step. kernels/steps_2d.cuh and steps_3d.cuh explain
the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from runner.fuse.graph import Node, Operand, Program
from runner.fuse.operations import KERNELS, ctype, expression, literal
from runner.region import Array

LANES = 32
WIDEST_READ = 4  # cells beside the own one along an axis
REGISTERS = 230  # of a thread that keeps none in memory
GROWTH = {1: 1.35, 2: 1.35, 3: 1.1}  # by number of axes: all registers over those counted, as measured
MOST_STEPS = 8  # instructions limit kernels of more steps
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
    number of rows (over three axes, planes) to load before they are used. blocks: least number that a
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
    shared memory. registers: of a thread, estimated. wraps: whether the boundary wraps around.
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


@dataclass(frozen=True)
class StepLaunch:
    """Arguments of a launch. grid, block: in CUDA's order of axes. values: the kernel's, 64-bit integers."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class _Layout:
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

    @property
    def lag(self) -> int:
        """Return the distance along axis 0 between the levels of two steps. Cells of another warp's rows, if
        read in other planes, must be one plane older."""
        slanting = any(one.offset[0] and one.offset[1] for one in self.program.loads)
        return self.radius[0] + (self.program.axes == 3 and slanting)

    def reads_beside(self, plane: Plane) -> bool:
        """Return whether a plane of the state is read along the middle one of three axes."""
        return any((one.input, one.component) == plane and one.offset[1] for one in self.program.loads)

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

    def registers(self, steps: int, tuning: Tuning) -> int:
        """Estimate the registers of a thread."""
        streamed = self.program.axes > 1
        cells = tuning.columns * (tuning.lane_rows if self.program.axes == 3 else 1)
        lag = self.lag if streamed else 0
        state = sum(
            (steps * (lag + self.reach(place, 0) * streamed) + tuning.ahead + 1) * cells * self._words(place)
            for place, _ in self.state
        )
        widest = max((node.dtype.itemsize + 3) // 4 for node in self.program.nodes)
        return int(GROWTH[self.program.axes] * (32 + state + 2 * cells * widest))

    def _words(self, place: int) -> int:
        return (self.program.inputs[place].dtype.itemsize + 3) // 4


def suggested(program: Program, *, vectors: bool = False) -> Tuning:
    """Return a tuning that is fast for the program's number of axes."""
    if program.axes == 3:
        widest = max(one.dtype.itemsize for one in program.inputs)
        return Tuning(columns=2 if widest == 8 else 4, lane_rows=2, warps=16, vectors=vectors)
    return Tuning(columns=4, warps=4, blocks=3, vectors=vectors)


def most_steps(program: Program, feeds: Sequence[int | None], tuning: Tuning | None = None) -> int:
    """Return the largest number of steps of one kernel; 0 if no kernel is possible.

    Registers and shared memory limit it, and the margins, which may take half of a tile.
    """
    try:
        layout = _layout(program, feeds)
    except NotFusable:
        return 0
    chosen = tuning or suggested(program)
    registers = min(REGISTERS, ALL_REGISTERS // (LANES * chosen.warps)) if program.axes == 3 else REGISTERS
    steps = 0
    while steps < MOST_STEPS and _fits(layout, steps + 1, chosen, registers):
        steps += 1
    return steps


def _fits(layout: _Layout, steps: int, tuning: Tuning, registers: int) -> bool:
    columns, rows = LANES * tuning.columns, tuning.warps * tuning.lane_rows
    valid = 1 - 2 * _margin(layout, steps, tuning) / columns
    if layout.program.axes == 3:
        valid *= 1 - 2 * steps * layout.radius[1] / rows
        if valid <= 0 or _three_axes(layout, steps, tuning)[1] > SHARED_BYTES:
            return False
    return valid >= 0.5 and layout.registers(steps, tuning) <= registers


def takes_vectors(arrays: Iterable[Array], tuning: Tuning) -> bool:
    """Return whether the rows of all arrays begin at addresses of whole vectors."""
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
    """Return the kernel of `steps` steps. Raises NotFusable.

    feeds: of each output, the number of the input that it feeds. boundary, cval: as of a job.
    """
    layout, chosen = _layout(program, feeds), tuning or suggested(program)
    radius = layout.radius if program.axes > 1 else (0, *layout.radius)
    margin = _margin(layout, steps, chosen)
    tile = LANES * chosen.columns
    if 2 * margin >= tile:
        raise NotFusable(f"{steps} steps need {margin} columns on each side of a tile of {tile}")
    vector = _vector(layout.widest, chosen.columns) if chosen.vectors else 1
    if vector > 1 and any(layout.operand(one).components > 1 for one in (*layout.state, *layout.fixed)):
        raise NotFusable("has components, which vectors do not hold apart")
    name = f"take_{steps}_steps"
    constants = {
        "K": steps,
        "C": chosen.columns,
        "RY": radius[-2],
        "RX": radius[-1],
        "MARGIN": margin,
        "WARPS": chosen.warps,
        "AHEAD": chosen.ahead,
        "VECTOR": vector,
        "BLOCKS": chosen.blocks,
        **{f"STRIDE{n}": layout.operand(plane).components for n, plane in enumerate(layout.state)},
    }
    valid_rows = 1
    if program.axes == 3:
        valid_rows = chosen.warps * chosen.lane_rows - 2 * steps * radius[1]
        if valid_rows <= 0:
            raise NotFusable(f"{steps} steps need more than {chosen.warps * chosen.lane_rows} rows of a tile")
        more, shared = _three_axes(layout, steps, chosen)
        if shared > SHARED_BYTES:
            raise NotFusable(f"{steps} steps need {shared} bytes of shared memory")
        constants |= more
    else:
        constants |= {"BEYOND": layout.beyond, "WIDEST": layout.widest}
        shared = chosen.warps * tile * layout.widest if vector == 1 else 0
    return StepKernel(
        program, layout.feeds, steps, chosen, _source(layout, boundary, cval, name, constants), name,
        LANES * chosen.warps, radius, margin, tile - 2 * margin, valid_rows,
        shared, layout.registers(steps, chosen), boundary == "wrap",
    )  # fmt: skip


def _three_axes(layout: _Layout, steps: int, tuning: Tuning) -> tuple[dict[str, int], int]:
    """Return constants of kernels/steps_3d.cuh, and the bytes of its shared memory."""
    slanting = layout.lag > layout.radius[0]
    kept = layout.radius[0] + layout.lag + 1 if slanting else layout.lag + 1
    slots = math.ceil((layout.radius[0] + layout.lag + 1) / kept) * kept
    reach = max((layout.reach(place, 0) for place, _ in layout.fixed), default=0)
    constants = {
        "H": tuning.lane_rows,
        "RZ": layout.radius[0],
        "REACH_Z": reach,
        "LAG": layout.lag,
        "KEPT": kept,
        "SLOTS": slots,
    }
    cells = tuning.warps * tuning.lane_rows * LANES * tuning.columns
    total = 0
    for number, plane in enumerate(layout.state):
        beside = layout.reads_beside(plane)
        constants[f"SHARED{number}"] = total if beside else -1
        total += steps * kept * cells * layout.operand(plane).dtype.itemsize if beside else 0
    return constants, total


def arguments(
    kernel: StepKernel,
    inputs: Sequence[Array],
    outs: Sequence[Array],
    axes: Sequence[Axis],
    registers: int | None = None,
) -> StepLaunch:
    """Return how to launch the kernel on arrays with at least one own cell.

    inputs, outs: own cells of each input and output, as views of blocks with as many valid cells beside them
    as `axes` says; with all trailing axes, in C order. registers: of a thread of the compiled kernel; None:
    estimated.
    """
    layout = _layout(kernel.program, kernel.feeds)
    tuning = kernel.tuning
    if tuning.vectors and not takes_vectors([*inputs, *outs], tuning):
        raise ValueError("blocks whose rows do not begin where a vector may")
    taken = registers or kernel.registers
    *_, y, x = axes if len(axes) > 1 else (Axis(1, 0, 1), *axes)
    tiles = math.ceil(x.own / kernel.valid)
    if len(axes) == 3:
        tall = math.ceil(y.own / kernel.valid_rows)
        if any(one.strides[0] // one.dtype.itemsize >= 2**31 for one in (*inputs, *outs)):
            raise ValueError("planes of 2^31 elements or more")
        height = tuning.rows or _height(kernel, tiles * tall * tuning.warps, axes[0].own, taken)
        grid = (tiles, tall, math.ceil(axes[0].own / height))
        values = [height, *_numbers(axes[0])]
    else:
        inside = [_inside(kernel, x, tile) for tile in range(tiles)]
        low = inside.index(True) if True in inside else tiles
        high = inside[::-1].index(True) if True in inside else 0
        height = tuning.rows or _height(kernel, tiles + low + high, y.own, taken)
        shorter = max(math.ceil(height / 2), 1) if low + high < tiles else height
        warps = (low + high) * math.ceil(y.own / shorter) + (tiles - low - high) * math.ceil(y.own / height)
        grid = (math.ceil(warps / tuning.warps), 1, 1)
        values = [height, low, high, tiles, shorter]
    values += [number for axis in (x, y) for number in _numbers(axis)]
    for place, component in layout.state:
        out = outs[layout.feeds.index(place)]
        for array in (inputs[place], out):
            values += [_address(array, component), *_pitches(array, len(axes))]
    for place, component in layout.fixed:
        values += [_address(inputs[place], component), *_pitches(inputs[place], len(axes))]
    return StepLaunch(grid, (kernel.threads, 1, 1), kernel.shared, tuple(values))


def _layout(program: Program, feeds: Sequence[int | None]) -> _Layout:
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
    """Return whether all columns of a tile are in the array and in memory, and its results are own cells."""
    first = tile * kernel.valid - kernel.margin
    last = first + kernel.valid + 2 * kernel.margin
    inside = kernel.wraps or (first + x.start >= 0 and last + x.start <= x.length)
    return inside and -x.before <= first and last <= x.own + x.after and last - kernel.margin <= x.own


def resident_warps(kernel: StepKernel, registers: int) -> int:
    """Return the number of warps that a processor holds at once. registers: of a thread."""
    per_thread = math.ceil(registers / 8) * 8
    blocks = min(THREADS // kernel.threads, ALL_REGISTERS // (per_thread * kernel.threads))
    if kernel.shared:
        blocks = min(blocks, SHARED_BYTES // kernel.shared)
    return max(blocks, 1) * kernel.tuning.warps


def _height(kernel: StepKernel, columns: int, rows: int, registers: int) -> int:
    """Return the rows of a strip with which the last strip ends soonest.

    columns: number of warps beside one another, each of which computes all rows, strip by strip.
    """
    at_once = PROCESSORS * resident_warps(kernel, registers)
    extra = 2 * kernel.steps * kernel.radius[0]  # rows before and after its own ones

    def duration(strips: int) -> int:
        return math.ceil(columns * strips / at_once) * (math.ceil(rows / strips) + extra)

    return math.ceil(rows / min(range(1, min(rows, MOST_STRIPS) + 1), key=duration))


def _numbers(axis: Axis) -> tuple[int, ...]:
    return axis.own, axis.start, axis.length, axis.before, axis.after


def _address(array: Array, component: int = 0) -> int:
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0]) + component * int(array.dtype.itemsize)


def _pitches(array: Array, axes: int) -> tuple[int, ...]:
    """Return the elements between planes and between rows."""
    if axes == 1:
        return (0,)
    return tuple(int(step // array.dtype.itemsize) for step in array.strides[: axes - 1])


def _source(layout: _Layout, boundary: str, cval: float, name: str, constants: dict[str, int]) -> str:
    """Return the whole text of a kernel. constants: what kernels/*.cuh expect to be defined."""
    three = layout.program.axes == 3
    numbers = ["height"] if three else ["height", "low_tiles", "high_tiles", "tiles", "edge_height"]
    axes = "zxy" if three else "xy"
    pitches = ["planes", "pitch"] if three else ["pitch"]
    planes, fields = [], []  # fields: C++ type and name of each argument of 64 bits
    for number, plane in enumerate(layout.state):
        kind, operand = ctype(layout.operand(plane).dtype), layout.operand(plane)
        planes.append(f"X({number}, {kind}, {literal(_cast(cval, operand.dtype), operand.dtype)})")
        for side, pointer in (("in", f"const {kind}*"), ("out", f"{kind}*")):
            fields += [(pointer, f"{side}{number}"), *(("int64", f"{side}_{one}{number}") for one in pitches)]
    for number, plane in enumerate(layout.fixed):
        fields.append((f"const {ctype(layout.operand(plane).dtype)}*", f"fixed{number}"))
        fields += [("int64", f"fixed_{one}{number}") for one in pitches]
    given = [*([numbers[0]] if three else numbers), *(f"{axis}{n}" for axis in axes for n in range(5))]
    values = [f"int({one})" for one in numbers]
    values += [f"{{{', '.join(f'int({axis}{n})' for n in range(5))}}}" for axis in axes]
    values += [f"{kind}({name})" if kind == "int64" else f"({kind})({name})" for kind, name in fields]
    signature = ", ".join(f"int64 {one}" for one in [*given, *(one for _, one in fields)])
    state = "const Planes& planes" if three else "const Rows& rows"
    return "\n".join(
        [
            *(f"#define {one} {value}" for one, value in constants.items()),
            f"#define BOUNDARY {boundary.upper()}",
            f"#define PLANES(X) {' '.join(planes)}",
            _file("operations.cuh"),
            _file("steps.cuh"),
            "namespace steps {",
            f"struct Arguments {{ int {', '.join(numbers)}; Axis {', '.join(axes)};",
            *(f"    {kind} {one};" for kind, one in fields),
            "};",
            "}",
            _file(f"steps_{3 if three else 2}d.cuh"),
            "namespace steps {",
            "template <bool EDGE, int LEVEL>",
            f"INLINE void compute({state}, int here, const Place& at, {'Patch' if three else 'Row'}& out) {{",
            *_body(layout, constants, cval),
            "}",
            "}",
            f"KERNEL({name}, {signature}) {{",
            f"    steps::run(steps::Arguments{{{', '.join(values)}}});",
            "}",
            "",
        ]
    )


def _file(name: str) -> str:
    """Return the text of a file of kernels/. Texts that include no files can be cached by their contents."""
    return (KERNELS / name).read_text(encoding="utf-8").replace("#pragma once\n", "")


def _cast(cval: float, dtype: np.dtype[Any]) -> Any:
    """Convert the constant as an assignment to an array does."""
    array = np.empty((), dtype)
    array[...] = cval
    return array


@dataclass
class _Writer:
    """Write the statements that compute nodes, each node once. columns, rows: of a lane."""

    layout: _Layout
    columns: int
    rows: int
    cval: float

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[int, str] = {}
        self._reads: dict[int, tuple[int, int] | None] = {}
        self._lines_of_memory: set[str] = set()

    def name(self, wanted: Node) -> str:
        """Write the statements that compute a node, and return the variable that holds it."""
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
        other, reads = self._of_other_lane(node), node_reads(node, self._reads)
        if other is not None and reads is not None:
            return f"from_{'left' if reads[1] < 0 else 'right'}({self._names[id(other)]})"
        return self._load(node) if node.op == "load" else expression(node, self._names)

    def _of_other_lane(self, node: Node) -> Node | None:
        """Return the equal node of the next lane, if the node reads that lane's cells only."""
        reads = node_reads(node, self._reads)
        if reads is None or (reads[1] >= 0 and reads[0] < self.columns):
            return None
        shift = self.columns if reads[1] < 0 else -self.columns
        far = (0,) * (self.layout.program.axes - 1)
        return self.layout.program.graph.shifted([node], (*far, shift))[0]

    def _load(self, node: Node) -> str:
        *others, column = node.offset
        first, *middle = others or [0]
        plane = (node.input, node.component)
        operand = self.layout.operand(plane)
        kind, constant = ctype(operand.dtype), literal(_cast(self.cval, operand.dtype), operand.dtype)
        if plane in self.layout.state:
            number = self.layout.state.index(plane)
            if not middle:
                return f"rows.w{number}[LEVEL - 1][modulo(here + {first}, SLOTS)][{column}]"
            if 0 <= middle[0] < self.rows:
                cell = middle[0] * self.columns + column
                return f"planes.w{number}[LEVEL - 1][modulo(here + {first}, SLOTS)][{cell}]"
            line = self._line(f"b{number}", others)
            text = f"beside<EDGE, LEVEL, {kind}>(at, SHARED{number}, here, {first}, {middle[0]}, {constant})"
        else:
            number = self.layout.fixed.index(plane)
            line = self._line(f"f{number}", others)
            given = ["fixed", *(["fixed_planes"] if middle else []), "fixed_pitch"]
            pointers = ", ".join(f"at.all.{one}{number}" for one in given)
            away = ", ".join(map(str, others or [0]))
            text = f"fixed<EDGE>({pointers}, {operand.components}, at, {away}, {constant})"
        if line not in self._lines_of_memory:
            self._lines_of_memory.add(line)
            self.lines.append(f"    const Lane<{kind}> {line} = {text};")
        return f"{line}.v[{column}]"

    def _line(self, start: str, others: Sequence[int]) -> str:
        return "_".join([start, *(f"{'m' if one < 0 else 'p'}{abs(one)}" for one in others)])


def node_reads(node: Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the first and last column that a node reads; None if it reads none. known: earlier results."""
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


def _body(layout: _Layout, constants: dict[str, int], cval: float) -> list[str]:
    """Return the statements that compute a lane's cells of all planes."""
    program = layout.program
    rows, columns = constants.get("H", 1), constants["C"]
    writer = _Writer(layout, columns, rows, cval)
    ends = []
    for row, column in product(range(rows), range(columns)):
        shift = {1: (column,), 2: (0, column), 3: (0, row, column)}[program.axes]
        for place, result in zip(layout.feeds, program.results, strict=True):
            for component, node in enumerate(program.graph.shifted(result, shift)):
                number = layout.state.index((place, component))
                ends.append(f"    out.w{number}[{row * columns + column}] = {writer.name(node)};")
    return writer.lines + ends


def with_rows(kernel: StepKernel, rows: int) -> StepKernel:
    """Return the same kernel with `rows` rows for a warp."""
    return replace(kernel, tuning=replace(kernel.tuning, rows=rows))
