"""Generate a CUDA kernel that computes all outputs of a program in one pass over its inputs.

`emit` writes the kernel's source text. `pass_tile` chooses its tile, and `pass_launch` has its arguments for
arrays in memory. kernels/single_pass.cu explains how the kernel works and what limits it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Literal

import numpy as np

from meshrun.runner.compiler.cuda import shared_planes
from meshrun.runner.compiler.cuda.beyond import Beyond, RowStore, statements
from meshrun.runner.compiler.cuda.pass_tile import (
    between_ends,
    choose_threads,
    choose_tile,
    fills_words,
    has_ends,
    marches,
    registers,
    sweeps,
)
from meshrun.runner.compiler.cuda.shared_planes import SharedPlanes
from meshrun.runner.compiler.cuda.strip_values import Row, Value, Values, element_name, unit_name
from meshrun.runner.compiler.operations import (
    HEADER,
    KERNELS,
    at_place,
    ctype,
    expression,
    literal,
    place_type,
    slot,
)
from meshrun.runner.compiler.passes.ends import ends_of, interior, specialised
from meshrun.runner.compiler.passes.strips import WORD, PlacedStrip, Strips, find_places
from meshrun.runner.compiler.trace.graph import (
    FREE,
    PLACES,
    Node,
    Offset,
    Operand,
    Program,
    in_order,
)
from meshrun.runner.region import Shape

Part = Literal["", "between", "ends"]

MOST_ROWS = 2**31  # of an axis before the last: a thread's place fits 32 bits
# Threads of a processor, at least, of a march whose function for cells near the ends may need more registers
# than the rest, which loads so many at most; with more threads, that function would spill much.
ENDS_THREADS, ENDS_REGISTERS = 1024, 30
BRANCH_THREADS, BRANCH_REGISTERS = (
    512,
    64,
)  # of a processor at least, if a thread's loads take no more of these
FEW = 2  # small elements of a row that are loaded one by one: words need their addresses and shifts
ENDS = ("reflect", "mirror", "nearest", "wrap")  # boundaries of which cells beyond the array equal own ones
FIRST = {"i": "from", "o": "to"}  # variables: the element of a thread's first cell in inputs, outputs


@dataclass(frozen=True)
class Description:
    """Work of a kernel for each own cell, on average. Halos count as read by the cells of other tiles.

    loads, stores: number of elements. load_instructions: of elements or words. operations: without casts.
    bytes: the least to read and write, each input and output once.
    """

    loads: float
    load_instructions: float
    stores: int
    operations: float
    bytes: int
    sweep: bool


@dataclass(frozen=True, eq=False)
class PassKernel:
    """A kernel's text and the shape of its tiles and blocks.

    source: for NVRTC; includes only <cuda_fp16.h>. tile: cells that a thread computes, per grid axis. march:
    whether it does so in a loop along the first axis. threads: of a block,
    along the last grid axis and the one before. apart: whether operands of the same dtype may have different
    pitches. wide: whether an operand may have more than `MOST_NARROW` elements. corners: for each input, the
    row that its pointer is of, relative to that of the first own cell. It is the first one that a thread
    reads, on each axis before the last. part: as of `emit`.
    """

    name = "single_pass"
    source: str = field(repr=False)
    program: Program = field(repr=False)
    tile: Shape
    march: bool | SharedPlanes
    threads: tuple[int, int]
    apart: bool
    wide: bool
    corners: tuple[Offset, ...]
    description: Description
    part: Part = ""

    @property
    def planes(self) -> SharedPlanes | None:
        """How blocks of threads march together; None if each thread is alone."""
        return self.march if isinstance(self.march, SharedPlanes) else None

    @property
    def shared(self) -> int:
        """Bytes of a block's shared memory."""
        return self.planes.shared if self.planes else 0

    @property
    def least(self) -> Shape:
        """Own cells that a launch needs at least, per axis."""
        return self.planes.block if self.planes else self.tile


@cache
def _skeleton(*, beyond: bool, combined: bool, planes: bool) -> tuple[str, str]:
    """Return the text of all headers, and the kernel's text with placeholders.

    beyond: with what stores cells beyond the ends of axes. combined: with what combines all cells. planes:
    with what holds planes in shared memory.
    """
    paths = [HEADER, KERNELS / "packed.cuh", KERNELS / "single_pass.cuh"]
    paths += [KERNELS / "beyond.cuh"] if beyond else []
    paths += [KERNELS / name for name in ("best.cuh", "exact.cuh", "sums.cuh")] if combined else []
    paths += [KERNELS / name for name in ("async_copies.cuh", "shared_planes.cuh")] if planes else []
    texts = [path.read_text(encoding="utf-8") for path in paths]
    headers = "\n".join(text.replace("#pragma once\n", "") for text in texts)
    return headers, (KERNELS / "single_pass.cu").read_text(encoding="utf-8")


def emit(
    program: Program,
    *,
    tile: Shape | None = None,
    threads: tuple[int, int] | None = None,
    lengths: Shape | None = None,
    march: bool | SharedPlanes | None = None,
    sweep: bool | None = None,
    apart: bool = False,
    wide: bool = False,
    ends: str = "",
    beyond: Beyond | None = None,
    once: bool = False,
    part: Part = "",
) -> PassKernel:
    """Write the kernel of a program: of its interior, and of what cells near the array's ends have instead.

    tile: cells that a thread computes, per grid axis; default: `choose_tile`. lengths: own cells per grid
    axis; the chosen tile is no longer than what lies between the array's ends. threads: most threads of a
    block along the last grid axis and the one before; default: `choose_threads`. march: whether a thread
    makes the cells of its tile in a loop along the first axis; default: `marches`, if it chooses the tile.
    sweep: the same along the last axis, for a tile that `fills_words`; default: `sweeps`, if it chooses
    the tile. apart: whether inputs of the same dtype, or outputs, may have different pitches; a thread
    then computes an address for each operand, where it otherwise computes one for all. wide: whether an
    operand may have more than `MOST_NARROW` elements; places in it are computed in 64 bits then, which
    takes several instructions an address. ends: the boundary, if the last axis is whole and the cells
    beyond its ends are not in memory, of the inputs that `finds_ends` names. beyond: cells beyond the
    ends of the other axes that the kernel also stores. once: whether no two blocks of threads that march
    through planes may store the same cell, as results are written over an input. part: "between" the array's
    ends or near the "ends", for a kernel of these cells alone; "": of all.
    """
    common = interior(program)
    if part == "ends":
        tile, march = (1,) * program.axes, False
    planes = march if isinstance(march, SharedPlanes) else None
    if planes is not None:
        tile, threads = planes.tile, planes.threads
    if lengths is not None:
        lengths = between_ends(program, lengths)
    if march is None:
        march = tile is None and marches(common)
    swept = tile is None and sweeps(common)
    tile = choose_tile(common, lengths) if tile is None else tile
    threads = choose_threads(common) if threads is None else threads
    if len(tile) != program.axes or min(tile) < 1:
        raise ValueError(f"a tile of {tile} cells for {program.axes} grid axes")
    if march and program.axes < 2:
        raise ValueError("a march over one axis, which has no rows")
    if sweep is None:
        sweep = swept and fills_words(common, tile[-1])
    if sweep and (march or not fills_words(program, tile[-1])):
        raise ValueError("a sweep in a march, or over cells whose results fill no words")
    if ends and march and not marches(common):
        raise ValueError("a march that was not chosen, to the ends of rows that are not in memory")
    body = _Body(program, _Form(tile, march, sweep, apart, wide, ends, beyond, once, part))
    bounds = _launch_bounds(body, threads, planes)
    combined = any(one.combine for one in program.outputs)
    headers, text = _skeleton(beyond=beyond is not None, combined=combined, planes=planes is not None)
    for mark, instead in (
        ("// @headers@", headers),
        ("/* @threads@ */", bounds),
        (
            "/* @parameters@ */",
            ", ".join(
                f"{kind} {name}" for kind, name, _ in parameters(program, apart, wide, beyond is not None)
            ),
        ),
        ("// @body@", "\n    ".join(body.lines)),
    ):
        text = text.replace(mark, instead)
    return PassKernel(
        text, program, tile, body.march, threads, apart, wide, body.corners, body.description, part
    )


def _launch_bounds(body: _Body, threads: tuple[int, int], planes: SharedPlanes | None) -> str:
    """Return the threads of a block, and how many blocks a processor shall have room for, if that matters."""
    common, size = body.program, threads[0] * threads[1]
    loaded = registers(common, (1, *body.tile[1:]) if body.march else body.tile)
    if body.part == "ends":  # they wait for memory: many threads hide that
        return f"{size}, {ENDS_THREADS // size}"
    if planes is not None:
        return f"{size}, {planes.blocks}"
    if body.march and body.has_ends and loaded <= ENDS_REGISTERS:
        return f"{size}, {ENDS_THREADS // size}"
    # What a branch leaves out takes more registers than the rest: it may spill, so that threads are many.
    # Over three axes, both need many.
    few = body.branches and common.axes < 3 and loaded <= BRANCH_REGISTERS
    return f"{size}, {max(BRANCH_THREADS // size, 1)}" if few else str(size)


def finds_ends(program: Program, boundary: str, row: int) -> list[int]:
    """Return the inputs whose cells beyond the ends of the last axis a kernel need not find in memory.

    It reads the own cells that they equal; a constant equals none. A thread that marches has gone on when the
    words of small elements are there. Of cells with components, only pairs of 4 bytes or more are found. row:
    own cells of the last axis, which is whole; 0: it may be a part. It must be longer than what is read
    beside a cell.
    """
    operands = (*program.inputs, *program.outputs)
    if boundary not in ENDS or program.axes < 2:
        return []
    if row <= max((abs(node.offset[-1]) for node in program.loads), default=0):
        return []
    if any(one.trailing and (one.trailing != (2,) or one.dtype.itemsize < WORD) for one in operands):
        return []
    beside = {node.input for node in program.loads if node.offset[-1]}
    small = not marches(interior(program))
    return sorted(one for one in beside if small or program.inputs[one].dtype.itemsize >= WORD)


def leaders(operands: Sequence[Operand], apart: bool) -> list[int]:
    """Return for each operand the number of the first one that has its pitches."""
    first: dict[tuple[object, ...], int] = {}
    return [
        first.setdefault((number,) if apart or one.combine else (one.dtype, one.trailing), number)
        for number, one in enumerate(operands)
    ]


def parameters(
    program: Program, apart: bool, wide: bool, beyond: bool
) -> Iterator[tuple[str, str, type[np.generic]]]:
    """Yield the kernel's parameters: C++ type, name, and NumPy type of the argument."""
    last = program.axes - 1
    pitch, column = (("int64", np.int64),) * 2 if wide else (("uint32", np.uint32), ("int32", np.int32))
    for letter, operands, const in (("i", program.inputs, "const "), ("o", program.outputs, "")):
        for number, (one, leader) in enumerate(zip(operands, leaders(operands, apart), strict=True)):
            pointer = "uint64*" if one.combine else f"{const}{ctype(one.dtype)}* __restrict__"
            yield pointer, f"{letter}{number}", np.uint64
            for axis in range(last if leader == number and not one.combine else 0):
                yield pitch[0], f"{letter}{number}_pitch{axis}", pitch[1]
    for axis in range(last):
        yield "uint32", f"length{axis}", np.uint32
    yield column[0], f"length{last}", column[1]
    counts = [f"{name}{axis}" for axis in range(1, program.axes) for name in ("tiles", "factor", "bits")]
    yield from (("uint32", name, np.uint32) for name in counts)
    yield column[0], "shift", column[1]
    if beyond:
        yield "uint32", "sides", np.uint32
    for axis in range(program.axes if program.has_places else 0):
        yield "int64", f"first{axis}", np.int64
    if has_ends(program):
        yield "uint64", "share_at_ends", np.uint64
        for axis in range(program.axes):
            kind = column if axis == last else ("uint32", np.uint32)
            for name in ("before", "after"):
                yield kind[0], f"{name}{axis}_own", kind[1]
    if program.scalars:
        yield "const uint64* __restrict__", "scalars", np.uint64


@dataclass(frozen=True)
class _Read:
    """What is read of a row.

    loads: C++ of each load, by the name of its variable. windows: the names of those that are words of small
    elements. instructions: number of load instructions. after: statements that follow the loads: they name
    the elements of units, and replace elements of aligned words that lie beyond the ends of the row.
    """

    row: Row
    loads: dict[str, str]
    windows: list[str]
    instructions: int
    after: Sequence[str] = ()


@dataclass(frozen=True)
class _Store:
    """What is stored of a row, for an output.

    output: its number. row: of the tile, per axis but the last. itemsize: of an element. target: C++ of the
    row's address. function: stores at any address, an array of elements of `kind`. vector: C++ of what is 0
    if whole vectors can be stored; "" if never. values: the names of the results, of a turn.
    """

    output: int
    row: Offset
    name: str
    itemsize: int
    target: str
    function: str
    kind: str
    vector: str
    values: list[str] = field(default_factory=list)

    @property
    def results(self) -> str:
        """The statement that declares the array of results."""
        return f"const {self.kind} results{self.name}[{len(self.values)}] = {{{', '.join(self.values)}}};"


@dataclass(frozen=True)
class _Form:
    """How a kernel is written; see `emit`.

    inner: only the march of blocks away from the ends of rows, each cell of which no other block has.
    """

    tile: Shape
    march: bool | SharedPlanes
    sweep: bool
    apart: bool
    wide: bool
    ends: str
    beyond: Beyond | None
    once: bool
    part: Part = ""
    inner: bool = False


class _Body:
    """The lines of a kernel's body, for one tile.

    program: of the interior, if some cells have another one: `_whole` is the program of all cells.
    """

    def __init__(self, whole: Program, form: _Form) -> None:
        tile, march, sweep, inner = form.tile, form.march, form.sweep, form.inner
        self.part = form.part
        self._whole, program = whole, interior(replace(whole, whole_rows=False) if inner else whole)
        self.program, self.tile, self.lines = program, tile, list[str]()
        self._beyond, self.march, self._once = form.beyond, march, form.once and not inner
        inside: list[str] = []
        if isinstance(march, SharedPlanes) and not inner and (form.once or whole.whole_rows):
            inside = _Body(whole, replace(form, inner=True)).lines
            self.march = march = replace(march, unroll=1)  # blocks at ends are few
        self._ends, self._found = form.ends, finds_ends(whole, form.ends, MOST_ROWS)
        # Turns of a row, and cells of a turn.
        self._turns, self._columns = (tile[-1], 1) if sweep else (1, tile[-1])
        self._place, self._column = ("int64", "int64") if form.wide else ("uint32", "int32")
        self._leaders = {
            "i": leaders(program.inputs, form.apart), "o": leaders(program.outputs, form.apart),
        }  # fmt: skip
        last = program.axes - 1
        self._strips = Strips(self._columns % WORD == 0, [one.components for one in program.inputs], last)
        flat = [node for result in program.results for node in result]
        self._rows: dict[Offset, list[PlacedStrip]] = {}
        for at in product(*map(range, (1, *tile[1:-1]) if march else tile[:-1])):
            nodes = program.graph.shifted(flat, (*at, 0))
            self._strips.of(in_order(nodes))
            self._rows[at] = [self._strips[node] for node in nodes]
        find_places(((one, self._columns) for row in self._rows.values() for one in row), self._strips)
        places = [f"p{axis}" for axis in range(program.axes)]
        if march:  # a position of the last turn's plane
            places[0] = f"(p0 + {place_type(whole)}(turn - 1))"
        if sweep:
            places[last] = f"(p{last} + {place_type(whole)}(turn))"
        values = Values(program, self._strips, places)
        read_rows = [
            [one.offset[:-1] for one in whole.loads if one.input == n] for n in range(len(whole.inputs))
        ]
        origin = [(0,) * (program.axes - 1)]
        self.corners = tuple(tuple(map(min, *rows, *rows)) for rows in (one or origin for one in read_rows))
        self.branches = False
        stores = self._compute(values, march)
        self.has_ends = has_ends(whole)
        self._makes_ends = self.has_ends and form.part != "between"
        self._combined = {n: one for n, one in enumerate(program.outputs) if one.combine}
        if inner:
            self._march(values, self._reads(values), stores)
            return
        self.lines += [_of_nothing(one, f"whole{n}") for n, one in self._combined.items()]
        self._find_place()
        self._find_positions()
        self._find_first("i", whole.inputs, {one.input for one in whole.loads})
        if inside:
            self.lines += [f"if ({self._is_inside()}) {{", *inside, "return;", "}"]
        reads = self._reads(values)
        if march:
            self._march(values, reads, stores)
        else:
            self._make_tile(values, reads, stores, sweep)
        self._finish()
        self.description = self._described(flat, reads)

    def _described(self, results: Sequence[Node], reads: Sequence[_Read]) -> Description:
        """Return the work for a cell."""
        program = self.program
        cells = math.prod(self.tile) // (self.tile[0] if self.march else self._turns)
        counts = Counter[str]()
        for strip in self._strips.all:
            counts[strip.node.op] += strip.high - strip.low
        operands = (*program.inputs, *program.outputs)
        return Description(
            loads=counts["load"] / cells,
            load_instructions=sum(read.instructions for read in reads) / (cells * self._turns),
            stores=len(results),
            operations=sum(n for op, n in counts.items() if op not in FREE) / cells,
            bytes=sum(one.dtype.itemsize * one.components for one in operands),
            sweep=self._turns > 1,
        )

    def _make_tile(
        self, values: Values, reads: Sequence[_Read], stores: Sequence[_Store], sweep: bool
    ) -> None:
        """Write what a thread does that makes its cells at once, or in a loop along the last axis."""
        for read in reads:
            self.lines += [f"auto {name} = {text};" for name, text in read.loads.items()]
        self.lines += [f"align({name});" for read in reads for name in read.windows]
        self.lines += [statement for read in reads for statement in read.after]
        if sweep:
            self._sweep(values, stores)
        else:
            self.lines += values.lines + [one.results for one in stores]
        self.lines += self._written(stores)

    def _is_inside(self) -> str:
        """Return C++ of whether a block is away from the ends of rows, and no other one has its cells."""
        assert isinstance(self.march, SharedPlanes)
        whole, last = self._whole, self._whole.axes - 1
        terms = ["x0 == stored0", "begin1 == stored1", "begin2 == stored2"] if self._once else []
        if whole.whole_rows:
            before, after = ends_of(replace(whole, whole_rows=False))[last]
            begin = f"first{last} + begin{last}"
            terms.append(f"{begin} >= {before}")
            terms.append(f"{begin} <= {whole.lengths[last] - after - self.march.block[last]}")
        return " && ".join(terms)

    def _finish(self) -> None:
        """Write what all threads of a block do after their cells, and what other blocks do."""
        self.lines += ["}"] if self._combined else []
        self.lines += [_keep(number, one, "whole") for number, one in self._combined.items()]
        if self._makes_ends:
            between = [] if self.part == "ends" else self.lines
            self.lines = [*self._function_at_ends(), *self._at_ends(), *between]

    def _find_place(self) -> None:
        """Write the first cell that a thread computes: x<axis>."""
        if isinstance(self.march, SharedPlanes):
            self.lines += shared_planes.place_lines(self.march, self._column, self._makes_ends, self._once)
            self._find_ends_of_row()
            return
        add, last = self.lines.append, self.program.axes - 1
        add(f"uint32 place = blockIdx.x{' - at_ends' if self._makes_ends else ''};")
        for axis in reversed(range(self.program.axes)):
            if axis:
                add(f"const uint32 before{axis} = uint64(place) * factor{axis} >> bits{axis};")
            tiles = f"place - before{axis} * tiles{axis}" if axis else "place"
            if axis == last:
                thread = f"{self._column}({tiles}) * {self._column}(blockDim.x) + {self._column}(threadIdx.x)"
                add(f"{self._column} x{axis} = ({thread}) * {self.tile[axis]} - shift;")
            elif axis == last - 1:
                add(f"uint32 x{axis} = (({tiles}) * blockDim.y + threadIdx.y) * {self.tile[axis]};")
            else:
                add(f"uint32 x{axis} = ({tiles}) * {self.tile[axis]};")
            if axis:
                add(f"place = before{axis};")
        outside = " || ".join(f"x{axis} >= length{axis}" for axis in range(self.program.axes))
        # All threads of a block combine their cells together.
        add(f"if (!({outside})) {{" if self._combined else f"if ({outside}) return;")
        for axis, cells in enumerate(self.tile):
            if self._adds and cells > 1:
                add(f"const auto tile{axis} = x{axis};")
            if cells > 1:
                kind = self._column if axis == last else "uint32"
                most = f"{kind}(length{axis} - {cells})"
                add(f"if (x{axis} > {most}) x{axis} = {most};")
        if self.tile[last] > 1:
            add(f"if (x{last} < 0) x{last} = 0;")
        moved = [f"x{axis} != tile{axis}" for axis, cells in enumerate(self.tile) if cells > 1]
        if self._adds and moved:
            add(f"const bool moved = {' || '.join(moved)};")
        self._find_ends_of_row()

    def _find_ends_of_row(self) -> None:
        """Write which own cells those beyond the ends of the row equal, and the first cell in outputs."""
        add, last = self.lines.append, self.program.axes - 1
        reads = [node.offset[-1] for node in self.program.loads if node.input in self._found]
        before, after = range(min(reads, default=0), 0), range(max(reads, default=0))
        for cell in (*before, *(self._columns * self._turns + one for one in after)):
            place = self._own_column(f"x{last} + {self._column}({cell})")
            add(f"const {self._column} {_end_name(cell)} = {place} - x{last};")
        self._find_first("o", self.program.outputs, self._written_outputs)

    @property
    def _adds(self) -> bool:
        """Whether some output is a sum, to which each cell is added once."""
        return any(one.combine == "add" for one in self.program.outputs)

    @property
    def _written_outputs(self) -> list[int]:
        return [number for number, one in enumerate(self.program.outputs) if not one.combine]

    def _own_column(self, column: str) -> str:
        """Return C++ of the column that one equals: itself, or if it is beyond the ends, an own one.

        Both are counted from the first column between the array's ends.
        """
        last = self.program.axes - 1
        before, after = f"before{last}_own", f"after{last}_own"
        if not self.has_ends:
            return f"own_place<Ends::{self._ends}>({column}, length{last})"
        length = f"{before} + length{last} + {after}"
        return f"(own_place<Ends::{self._ends}>({before} + {column}, {length}) - {before})"

    def _find_positions(self) -> None:
        """Write the position of the thread's first cell in the whole array: p<axis>."""
        kind = place_type(self._whole)
        for axis in sorted({node.value[0] for node in self.program.nodes if node.op in PLACES}):
            first = f"first{axis} + int64(before{axis}_own)" if self.has_ends else f"first{axis}"
            self.lines.append(f"const {kind} p{axis} = {kind}({first} + int64(x{axis}));")

    def _at_ends(self) -> list[str]:
        """Return the statements by which some blocks make cells near the array's ends, one a thread.

        They come at equal distances among the others: they wait for the latency of memory, and the others for
        its rate. `share_at_ends` is their share of all blocks, of 2^32. The kernel's pointers are those of
        the first cell between the ends.
        """
        last, given = self.program.axes - 1, {name: name for name in self._pointers()}
        for letter, operands in (("i", self.program.inputs), ("o", self.program.outputs)):
            for number, operand in enumerate(operands):
                pitches = [f"{letter}{self._leaders[letter][number]}_pitch{axis}" for axis in range(last)]
                counts = [*pitches, str(operand.components)]
                before = " + ".join(f"int64(before{axis}_own) * {one}" for axis, one in enumerate(counts))
                if (name := f"{letter}{number}") in given:
                    given[name] = f"{name} - ({before})"
        thread = "threadIdx.y * blockDim.x + threadIdx.x"
        cell = f"uint64(at_ends) * (blockDim.x * blockDim.y) + {thread}"
        call = f"NearEnds::compute({cell}, {', '.join(given.values())});"
        best = [_of_nothing(one, f"edge{n}") for n, one in self._combined.items()]
        kept = [_keep(number, one, "edge") for number, one in self._combined.items()]
        if self.part == "ends":
            return ["const uint32 at_ends = blockIdx.x;", *best, call, *kept]
        return [
            "const uint32 at_ends = uint64(blockIdx.x) * share_at_ends >> 32;  // of the blocks before",
            "if ((uint64(blockIdx.x) + 1) * share_at_ends >> 32 > at_ends) {",
            *best, call, *kept, "return;", "}",
        ]  # fmt: skip

    def _pointers(self) -> dict[str, str]:
        """Return what the function for cells near the ends is given, and the types of it."""
        program, last = self._whole, self.program.axes - 1
        given: dict[str, str] = {}
        for letter, operands in (("i", program.inputs), ("o", program.outputs)):
            read = {node.input for node in program.loads} if letter == "i" else range(len(operands))
            for number in sorted(read):
                if operands[number].combine:
                    given[f"edge{number}"] = f"{_kind_of_whole(operands[number])}&"
                    continue
                leader, const = self._leaders[letter][number], "const " if letter == "i" else ""
                given[f"{letter}{number}"] = f"{const}{ctype(operands[number].dtype)}*"
                given |= {f"{letter}{leader}_pitch{axis}": self._place for axis in range(last)}
        given |= {f"first{axis}": "int64" for axis in range(program.axes)}
        for axis in range(program.axes):
            kind = self._column if axis == last else "uint32"
            given |= dict.fromkeys((f"before{axis}_own", f"length{axis}", f"after{axis}_own"), kind)
        if program.scalars:
            given["scalars"] = "const uint64*"
        return given

    def _function_at_ends(self) -> list[str]:
        """Return a function that makes a cell near the array's ends, of those of this launch.

        They are slabs: the cells near the ends of the first axis, then of the others those near the ends of
        the second axis, for which conditions along the first are decided, and so on; near each end, those
        along the slab's own axis are. If no cells are combined, the function is not inlined: its registers
        add nothing to those of the interior.
        """
        program, last = self._whole, self.program.axes - 1
        types = ["uint32"] * last + [self._column]
        parameters = ["uint64 left", *(f"{of} {name}" for name, of in self._pointers().items())]
        # What is combined is changed through a reference, which a call on the device does not take.
        kind = "INLINED" if self._combined or self.part == "ends" else "OUTLINE"
        lines = [f"struct NearEnds {{ {kind} void compute({', '.join(parameters)}) {{"]
        for axis, of in enumerate(types):
            lines.append(f"const {of} near{axis} = before{axis}_own + after{axis}_own;")
            lines += [f"const uint64 own{axis} = length{axis} + near{axis};"] if axis else []
            lines.append(f"{of} x{axis};")
        first, beyond = [0] * program.axes, list(program.lengths)
        for slab in range(program.axes):
            size = [f"length{axis}" for axis in range(slab)]
            size += [f"near{slab}", *(f"own{axis}" for axis in range(slab + 1, program.axes))]
            lines.append(f"const uint64 slab{slab} = {' * '.join(f'uint64({one})' for one in size)};")
            lines.append(f"if (left < slab{slab}) {{")
            for axis in reversed(range(program.axes)):
                lines.append(f"x{axis} = left % {size[axis]};" if axis else "x0 = left;")
                lines += [f"left /= {size[axis]};"] if axis else []
                lines += [f"x{axis} += before{axis}_own;"] if axis < slab else []
            lines.append(f"if (x{slab} >= before{slab}_own) x{slab} += length{slab};")
            # What cells have near the end before them, and near the one after them.
            before, after = ends_of(program)[slab]
            length = program.lengths[slab]
            found = []
            for first[slab], beyond[slab] in ((0, before), (length - after, length)):
                results = specialised(program.graph, program.results, tuple(first), tuple(beyond))
                found.append([*self._cell_at_ends(replace(program, results=results)), "return;"])
            at = f"(first{slab} + int64(x{slab}))"
            low, high = f"{at} < {before}", f"{at} >= {length - after}"
            if found[0] == found[1]:
                lines += [f"if ({low} || {high}) {{", *found[0], "}"]
            else:
                lines += [f"if ({low}) {{", *found[0], "}", f"if ({high}) {{", *found[1], "}"]
            # All cells are near an end of the first axis, if fewer than a tile are left between.
            lines += [*self._cell_at_ends(program), "return;"] if slab == 0 else []
            lines.append("}")
            lines.append(f"left -= slab{slab};")
            first[slab], beyond[slab] = before, program.lengths[slab] - after
        return [*lines, "} };"]

    def _cell_at_ends(self, program: Program) -> list[str]:
        """Return the statements that make the own cell x0, x1, ... of all outputs."""
        last, kind, lines = program.axes - 1, place_type(self._whole), list[str]()
        for axis in sorted({node.value[0] for node in program.nodes if node.op in PLACES}):
            lines.append(f"const {kind} p{axis} = {kind}(first{axis}) + {kind}(x{axis});")

        def pointer(letter: str, number: int, offset: Offset) -> str:
            corner = self.corners[number] if letter == "i" else (0,) * last
            leader = self._leaders[letter][number]
            terms = [
                f"(x{axis} + {at - first}) * {letter}{leader}_pitch{axis}"
                for axis, (at, first) in enumerate(zip(offset, corner, strict=True))
            ]
            return f"{letter}{number}" + (f" + ({' + '.join(terms)})" if terms else "")

        def loaded(node: Node) -> str:
            beside, components = node.offset[last], program.inputs[node.input].components
            column = f"x{last} + {beside}"
            if beside and node.input in self._found:
                column = f"own_place<Ends::{self._ends}>({column}, {self._column}(own{last}))"
            element = f"({column}) * {components} + {node.component}"
            return f"({pointer('i', node.input, node.offset[:-1])})[{element}]"

        names: dict[Node, str] = {}
        for number, node in enumerate(program.nodes):
            if node.op == "load":
                text = loaded(node)
            elif node.op in PLACES:
                text = at_place(node, f"p{node.value[0]}")
            elif node.op == "scalar":
                text = slot(node)
            else:
                text = expression(node, names)
            names[node] = f"c{number}"
            lines.append(f"const {ctype(node.dtype)} c{number} = {text};")
        for number, (output, result) in enumerate(zip(program.outputs, program.results, strict=True)):
            if output.combine:
                cell, whole = names[result[0]], f"edge{number}"
                combined = f"{whole} = numpy::{output.combine}<{ctype(output.dtype)}>({whole}, {cell});"
                lines.append(f"numpy::set_sum({whole}, {cell});" if output.combine == "add" else combined)
                continue
            target = f"({pointer('o', number, (0,) * last)})[x{last} * {output.components}"
            lines += [f"{target} + {part}] = {names[node]};" for part, node in enumerate(result)]
        return lines

    def _find_first(self, letter: str, operands: Sequence[Operand], numbers: Iterable[int]) -> None:
        """Write the element of the thread's first cell in operands: from<leader> or to<leader>."""
        last = self.program.axes - 1
        for number in sorted({self._leaders[letter][number] for number in numbers}):
            rows = [f"x{axis} * {letter}{number}_pitch{axis}" for axis in range(last)]
            first = " + ".join([*rows, f"{self._place}(x{last}) * {operands[number].components}"])
            self.lines.append(f"{self._place} {FIRST[letter]}{number} = {first};")

    def _row(self, letter: str, number: int, at: Offset) -> str:
        """Return the pointer to a row of the tile, or beside it."""
        leader = self._leaders[letter][number]
        corner = self.corners[number] if letter == "i" else (0,) * len(at)
        pitches = [
            f"{place - first} * {letter}{leader}_pitch{axis}"
            for axis, (place, first) in enumerate(zip(at, corner, strict=True))
            if place != first
        ]
        return f"{letter}{number} + ({' + '.join([f'{FIRST[letter]}{leader}', *pitches])})"

    def _address(self, row: Row, element: int) -> str:
        """Return the pointer to an element of an input's row; beyond the ends, to the one that it equals."""
        (number, at), last = row, self.program.axes - 1
        pointer, components = self._row("i", number, at), self.program.inputs[number].components
        cell, part = divmod(element, components)
        if number not in self._found or 0 <= cell < self._columns:
            return f"{pointer} + {element}"
        if self._turns == 1:
            place = f"{_end_name(cell)} * {components} + {part}" if components > 1 else _end_name(cell)
            return f"{pointer} + {place}"
        here = f"(x{last} + turn)"
        return f"{pointer} + ({self._own_column(f'{here} + {element}')} - {here})"

    def _next_plane(self, letter: str, numbers: Iterable[int]) -> list[str]:
        """Return the statements that go on to the next cell along the first axis."""
        found = sorted({self._leaders[letter][number] for number in numbers})
        return [f"{FIRST[letter]}{one} += {letter}{one}_pitch0;" for one in found]

    def _reads(self, values: Values) -> list[_Read]:
        """Write the inputs' addresses, and return what is read of each row."""
        found = []
        for (number, at), line in values.rows.items():
            itemsize = self.program.inputs[number].dtype.itemsize
            row = self._row("i", number, at)
            if itemsize < WORD and (number, at) not in values.windows:
                continue  # only branches read it
            if itemsize < WORD:
                first, last = values.windows[number, at]
                last += self._turns - 1
                size, name = (last - first + 1) * itemsize, f"row{line}"
                if last - first < FEW:
                    few = f"fetch_few<{last - first + 1}>(reinterpret_cast<const uint{8 * itemsize}*>"
                    loads, count = {name: f"{few}({row} + {first}))"}, last - first + 1
                else:
                    loads, count = {name: f"fetch<{size}>({row} + {first})"}, -(-size // WORD) + 1
                own = range(self._columns * self._turns)
                beyond = {*range(first, last + 1)} - {*own} if number in self._found else ()
                inserts = [
                    f"if ({_end_name(one)} != {one}) "
                    f"insert<{8 * itemsize}, {one - first}>({name}.words, {row} + {_end_name(one)});"
                    for one in sorted(beyond)
                ]
                found.append(_Read((number, at), loads, [name], count, inserts))
            else:
                loads, parts, kind = {}, list[str](), ctype(self.program.inputs[number].dtype)
                for one, count in self._accesses(values, (number, at)):
                    address = self._address((number, at), one)
                    unit = unit_name(line, one, count)
                    loads[unit] = f"fetch_unit<{count}>({address})" if count > 1 else f"__ldg({address})"
                    for part in range(count if count > 1 else 0):
                        name = element_name(line, one + part)
                        parts.append(f"const {kind} {name} = {unit}.item[{part}];")
                found.append(_Read((number, at), loads, [], len(loads), parts))
        return found

    def _accesses(self, values: Values, row: Row) -> list[tuple[int, int]]:
        """Return the first element of each load of a row, and their number: whole units, and single ones."""
        loaded, unit = values.loaded[row], self.program.inputs[row[0]].unit
        firsts = sorted({one // unit * unit for one in loaded})
        whole = [one for one in firsts if loaded.issuperset(range(one, one + unit))]
        others = loaded.difference(*(range(one, one + unit) for one in whole))
        return sorted([*((one, unit) for one in whole), *((one, 1) for one in others)])

    def _read_before(self, values: Values, reads: Sequence[_Read]) -> dict[str, str]:
        """Return what of a turn is in which other variable one turn before."""
        numbers = {read.row: read for read in reads}
        kept: dict[str, str] = {}
        for (number, at), line in values.rows.items():
            after = number, (at[0] + 1, *at[1:])
            if after in values.rows:
                there = values.rows[after]
                if not numbers[number, at].windows:
                    common = {*self._accesses(values, (number, at))} & {*self._accesses(values, after)}
                    kept |= {unit_name(line, *one): unit_name(there, *one) for one in common}
                elif values.windows[number, at] == values.windows[after]:
                    kept[f"row{line}"] = f"row{there}"
        return kept

    def _march_together(
        self, shape: SharedPlanes, values: Values, reads: Sequence[_Read], stores: Sequence[_Store]
    ) -> None:
        """Write a loop over the first axis, in which a block reads planes through shared memory.

        Inputs of which a thread reads no neighbours in a plane are loaded a turn ahead.
        """
        program, lines, (_, columns) = self.program, self.lines, shape.cells
        kept, number_of = self._read_before(values, reads), values.rows
        fresh = {
            row: [one for one in elements if element_name(number_of[row], one) not in kept]
            for row, elements in values.loaded.items()
        }
        rings = shared_planes.rings(shape, program.inputs, fresh, self._place)
        shared = {ring.number for ring in rings}
        self.march = replace(shape, shared=sum(ring.bytes for ring in rings))
        pitches = {ring.number: f"i{self._leaders['i'][ring.number]}_pitch0" for ring in rings}

        # The planes of the first turn are on their way before anything else is read.
        for ring in rings:
            leader, corner = self._leaders["i"][ring.number], self.corners[ring.number]
            plane = (
                f"i{ring.number} + (int64(x0 + {ring.low - corner[0]}) * i{leader}_pitch0 + "
                f"(int64(begin1) + {-corner[1]}) * i{leader}_pitch1 + begin2)"
            )
            own = self._own_column("at") if ring.number in self._found else "at"
            across = f"i{leader}_pitch0", f"i{leader}_pitch1"
            lines += shared_planes.open_lines(ring, plane, across, own)
        lines += shared_planes.first_fills(rings, pitches)

        # What the first turn finds in registers, and what it loads by itself.
        for read in reads:
            lines += [f"auto {name} = {text};" for name, text in read.loads.items() if name in kept]
        alone = {row: elements for row, elements in fresh.items() if row[0] not in shared and elements}
        vectors, begin, names = dict[str, str](), dict[str, str](), list[str]()
        for row, elements in alone.items():
            line = number_of[row]
            if len(elements) == columns > 1 and min(elements) == 0:
                text = f"planes::load<{columns}>({self._row('i', *row)}, aligned)"
                vectors[f"next{line}"] = text
                names += [f"auto {element_name(line, one)} = next{line}.value[{one}];" for one in elements]
                itemsize = program.inputs[row[0]].dtype.itemsize
                begin[f"reinterpret_cast<uint64>({self._row('i', *row)}) % {columns * itemsize}"] = ""
                leader = self._leaders["i"][row[0]]
                begin[f"uint64(i{leader}_pitch0) % {columns}"] = ""
                continue
            for one in elements:
                name = element_name(line, one)
                vectors[f"next_{name}"] = f"__ldg({self._address(row, one)})"
                names += [f"auto {name} = next_{name};"]
        lines += [f"const bool aligned = ({' | '.join(begin)}) == 0;"] if begin else []
        lines += [f"auto {name} = {text};" for name, text in vectors.items()]

        # A turn: the next planes and what follows is on its way while it computes.
        lines += shared_planes.unroll_lines(shape)
        lines.append(f"for (int turn = 1; turn <= {shape.planes}; ++turn) {{")
        lines += names
        inputs = {node.input for node in self._whole.loads}
        lines += [f"if (turn < {shape.planes}) {one}" for one in self._next_plane("i", inputs)]
        lines += [f"{name} = {text};" for name, text in vectors.items()]
        lines += shared_planes.next_fills(rings, pitches)
        for ring in rings:
            lines += shared_planes.read_lines(ring, number_of)
        lines += [*values.lines, *(one.results for one in stores), *self._written(stores)]
        for read in sorted(reads, key=lambda read: read.row[1]):
            lines += [f"{name} = {kept[name]};" for name in read.loads if name in kept]
        lines += self._next_plane("o", self._written_outputs)
        for ring in rings:
            lines += shared_planes.advance_lines(ring)
        lines.append("}")

    def _march(self, values: Values, reads: list[_Read], stores: Sequence[_Store]) -> None:
        """Write a loop over the first axis. What the next turn reads, this one has read or is reading."""
        if isinstance(self.march, SharedPlanes):
            self._march_together(self.march, values, reads, stores)
            return
        kept = self._read_before(values, reads)
        loads = {name: text for read in reads for name, text in read.loads.items()}
        windows = [name for read in reads for name in read.windows]
        add = self.lines.append
        for name, text in loads.items():
            add(f"auto {name if name in kept else 'next_' + name} = {text};")
        self.lines += [f"align({name});" for name in windows if name in kept]
        add("for (int turn = 1;; ++turn) {")
        self.lines += [f"auto {name} = next_{name};" for name in loads if name not in kept]
        inputs = {node.input for node in self._whole.loads}
        self.lines += [f"if (turn < {self.tile[0]}) {one}" for one in self._next_plane("i", inputs)]
        self.lines += [f"next_{name} = {text};" for name, text in loads.items() if name not in kept]
        self.lines += [f"align({name});" for name in windows if name not in kept]
        self.lines += [statement for read in reads for statement in read.after]
        self.lines += [*values.lines, *(one.results for one in stores), *self._written(stores)]
        add(f"if (turn == {self.tile[0]}) break;")
        for read in sorted(reads, key=lambda read: read.row[1]):
            self.lines += [f"{name} = {kept[name]};" for name in read.loads if name in kept]
        self.lines += self._next_plane("o", self._written_outputs)
        add("}")

    def _written(self, stores: Sequence[_Store]) -> list[str]:
        """Return the statements that store the arrays of results, also beyond the ends of axes, and that
        combine cells."""
        kept = [
            line
            for number, output in self._combined.items()
            for line in self._kept(number, output, [one for one in stores if one.output == number])
        ]
        stores = [one for one in stores if one.output not in self._combined]
        if self._beyond is None:
            return [*kept, *self._stored(stores)]
        rows = []
        for one in stores:
            pitch = f"o{self._leaders['o'][one.output]}_pitch0"
            function = "store_row" if one.function == "store_elements" else one.function
            rows.append(RowStore(one.output, one.row[0], function, f"results{one.name}", one.target, pitch))
        return [*kept, *self._stored(stores), *statements(self._beyond, rows, "int32(x0)", self.tile[0])]

    def _stored(self, stores: Sequence[_Store]) -> list[str]:
        """Return the statements that store the arrays of results among the own cells."""
        # What marches together is a large volume, whose results leave the cache before they are read.
        vector = "planes::stream_vectors" if isinstance(self.march, SharedPlanes) else "store_vectors"
        aligned = [one.vector for one in stores if one.vector]
        vectors = [f"{vector}({one.target}, results{one.name});" for one in stores]
        others = [f"{one.function}({one.target}, results{one.name});" for one in stores]
        stored = others
        if aligned:
            stored = [f"if (({' | '.join(aligned)}) == 0) {{", *vectors, "} else {", *others, "}"]
        if not (self._once and isinstance(self.march, SharedPlanes)):
            return stored
        parts = [(one.row[1], one.target, f"results{one.name}") for one in stores]
        return [*shared_planes.store_lines(self.march, stored, parts)]

    def _kept(self, number: int, output: Operand, stores: Sequence[_Store]) -> list[str]:
        """Return the statements that combine a thread's results with those that it had before."""
        kind, whole = ctype(output.dtype), f"whole{number}"
        cells = [
            ((*one.row, column), f"results{one.name}[{column}]")
            for one in stores
            for column in range(len(one.values))
        ]
        if output.combine != "add":
            combine = f"numpy::{output.combine}<{kind}>"
            return [f"{whole} = {combine}({whole}, {result});" for _, result in cells]
        every = ", ".join(result for _, result in cells)
        lines = [f"{kind} cells{number}[{len(cells)}] = {{{every}}};"]
        # A tile that was moved has cells of others, which these add.
        others = [(n, self._is_of_others(place)) for n, (place, _) in enumerate(cells)]
        moved = [f"if ({of_others}) cells{number}[{n}] = 0;" for n, of_others in others if of_others]
        lines += ["if (moved) {", *moved, "}"] if moved else []
        return [*lines, f"numpy::add_cells({whole}, cells{number}, o{number});"]

    def _is_of_others(self, place: Offset) -> str:
        """Return C++ of whether a cell of a tile that was moved is one of another tile."""
        conditions = []
        for axis, (cell, cells) in enumerate(zip(place, self.tile, strict=True)):
            at = f"turn - 1 + {cell}" if axis == 0 and self.march else str(cell)
            if cells > 1:
                conditions.append(f"uint32(x{axis} - tile{axis}) + uint32({at}) >= {cells}")
        return " || ".join(conditions)

    def _sweep(self, values: Values, stores: Sequence[_Store]) -> None:
        """Write a loop over the last axis. After each turn the words of a row move by an element.

        What then comes at a row's end is a result, if a turn reads one element of the row: such results need
        no registers but those of what was read.
        """
        add, moves, results = self.lines.append, dict[str, str](), list[str]()
        free: dict[int, list[str]] = defaultdict(list)
        for row, line in values.rows.items():
            if row not in values.windows:
                continue  # only branches read it
            (first, last), size = values.windows[row], self.program.inputs[row[0]].dtype.itemsize
            words = f"row{line}.words"
            moves[words] = f"move<{-(-(last - first + self._turns) * size // WORD)}, {size}>({words}, 0);"
            if first == last and self._turns * size % WORD == 0:
                free[size].append(words)
        for one in stores:
            rows, count = free[one.itemsize], self._turns * one.itemsize // WORD
            words = rows.pop(0) if rows else f"words{one.name}"
            if words not in moves:
                add(f"uint32 {words}[{count}] = {{}};")
            moves[words] = f"move<{count}, {one.itemsize}>({words}, packed::bits({one.values[0]}));"
            parts = ", ".join(f"{words}[{number}]" for number in range(count))
            results.append(f"const uint32 results{one.name}[{count}] = {{{parts}}};")
        add("#pragma unroll 1")  # the compiler would compute several cells at once, in more registers
        add(f"for (int turn = 0; turn < {self._turns}; ++turn) {{")
        self.lines += [*values.lines, *moves.values()]
        inputs = {self._leaders["i"][number] for number, _ in values.rows}
        self.lines += [f"++{FIRST['i']}{one};" for one in sorted(inputs)]  # where branches read
        self.lines += ["}", *results]

    def _compute(self, values: Values, march: bool | SharedPlanes) -> list[_Store]:
        """Write, row by row, the operations that are not written yet; return what is then to be stored.

        Stores between the rows would let the compiler load the rows one after the other.
        """
        stores, wanted = list[_Store](), list[list[Value]]()
        for line, (at, row) in enumerate(self._rows.items()):
            begin = 0
            for number, output in enumerate(self.program.outputs):
                results = row[begin : begin + output.components]
                begin += output.components
                size = output.dtype.itemsize
                words = size < WORD and output.components == 1 and self.tile[-1] * size % WORD == 0
                form, step = ("memory", WORD // size) if words and self._turns == 1 else ("scalar", 1)
                wanted.append(
                    [
                        Value(form, one.strip, one.place + place)
                        for place in range(0, self._columns, step)
                        for one in results
                    ]
                )
                target = "" if output.combine else self._row("o", number, at)
                row_bytes = self.tile[-1] * output.components * size
                known = row_bytes & -row_bytes <= size * output.unit
                vector = "" if known else f"misaligned<{row_bytes}>({target})"
                store = "store_elements" if output.unit == 1 else f"store_units<{output.unit}>"
                kind, store = ("uint32", f"store_words<{size}>") if words else (ctype(output.dtype), store)
                stores.append(_Store(number, at, f"{number}_{line}", size, target, store, kind, vector))
        # A branch computes a cell after the other: fewer values are alive at a time.
        rows = len(self.program.outputs)
        cells = [(n // rows, one.place, one) for n, part in enumerate(wanted) for one in part]
        ordered = [one for *_, one in sorted(cells, key=lambda cell: cell[:2])]
        # A march has gone on to the next plane when it computes.
        values.plan(ordered, None if march else self._address)
        self.branches = values.branches > 0
        for one, part in zip(stores, wanted, strict=True):
            one.values.extend(map(values.name, part))
        return stores


def _kind_of_whole(output: Operand) -> str:
    """Return the C++ type of what cells are combined to."""
    kind = ctype(output.dtype)
    return f"numpy::Sum<{kind}>" if output.combine == "add" else kind


def _of_nothing(output: Operand, name: str) -> str:
    """Return the statement that declares what changes no cell that it is combined with."""
    kind = _kind_of_whole(output)
    if output.combine == "add":
        return f"{kind} {name};"
    smallest = output.combine == "minimum"
    if output.dtype.kind == "f":
        return f"{kind} {name} = {literal(np.inf if smallest else -np.inf, output.dtype)};"
    limits = np.iinfo(output.dtype)
    return f"{kind} {name} = {literal(limits.max if smallest else limits.min, output.dtype)};"


def _keep(number: int, output: Operand, name: str) -> str:
    """Return the statement that combines what a block's threads have."""
    if output.combine == "add":
        return f"numpy::keep_sum<{ctype(output.dtype)}>({name}{number}, o{number});"
    least = "true" if output.combine == "minimum" else "false"
    return f"numpy::keep_best<{least}>({name}{number}, o{number});"


def _end_name(cell: int) -> str:
    """Return the variable for how far from the thread's first cell the own cell lies that `cell` equals."""
    return f"end{cell}".replace("-", "m")
