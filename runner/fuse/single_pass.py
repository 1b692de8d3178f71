"""Generate a CUDA kernel that computes all outputs of a program in one pass over its inputs.

`emit` writes the kernel's source text; `launch_arguments` returns its arguments for arrays in memory.
kernels/single_pass.cu explains how the kernel works and what limits it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from runner.fuse.graph import Extents, Node, Offset, Operand, Program
from runner.fuse.operations import HEADER, KERNELS, compiler_options, ctype, expression
from runner.region import Array, Shape

MOST_BLOCKS = 2**31 - 1  # of a one-dimensional grid
LARGEST_ROW = 16  # bytes of a row that a thread writes, by which columns are chosen
MOST_REGISTERS = 96  # that hold what a thread loads
MOST_NODES = 1500  # of a thread: the compiler takes 0.5 s for about so many


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


@dataclass(frozen=True, eq=False)
class PassKernel:
    """A kernel's text and the shape of its tiles and blocks.

    source: for NVRTC; includes only <cuda_fp16.h>. options: for the compiler. tile: cells that a thread
    computes, per grid axis. threads: of a block, along the last grid axis and the one before.
    """

    source: str = field(repr=False)
    name: str
    options: tuple[str, ...]
    program: Program = field(repr=False)
    tile: Shape
    threads: tuple[int, int]
    description: Description


@dataclass(frozen=True)
class PassLaunch:
    """Arguments of a launch. grid: (0,) if there are no cells; launch nothing then."""

    grid: tuple[int]
    block: tuple[int, int]
    arguments: tuple[np.generic, ...]


# Choosing a tile


def choose_tile(program: Program, width: int | None = None) -> Shape:
    """Choose the cells that a thread computes, per grid axis: PLANES x ROWS x COLUMNS.

    The values are the fastest in benchmarks/fuse_device.py. COLUMNS is 16 bytes of the largest cell that is
    read or written. For programs that read cells of several rows, ROWS is 4; for cells of one byte, which
    instructions limit, it is 8, and COLUMNS is half as large. For programs that read cells of several planes,
    PLANES is 4, ROWS 2 and COLUMNS 8 bytes. All are halved, rows first, while the loads of a thread need more
    than 96 registers, or while a thread computes more than 1500 nodes, which take half a second to compile.

    width: cells of the last axis; COLUMNS is no larger.
    """
    operands = (*program.inputs, *program.outputs)
    largest = max(one.dtype.itemsize * one.components for one in operands)
    across = [_reads_across(program, axis) for axis in range(program.axes)]
    planes = 4 if program.axes > 2 and across[-3] else 1
    rows = 1 if program.axes == 1 or not across[-2] else 2 if planes > 1 else 4
    row = LARGEST_ROW // 2 if planes > 1 or (largest == 1 and rows > 1) else LARGEST_ROW
    if largest == 1 and rows == 4:
        rows = 8
    columns = 1 << max(1, row // largest).bit_length() - 1
    while width is not None and columns > max(width, 1):
        columns //= 2
    nodes = sum(node.op not in ("load", "constant") for node in program.nodes)

    def tile() -> Shape:
        return ((1,) * program.axes + (planes, rows, columns))[-program.axes :]

    def fits() -> bool:
        return registers(program, tile()) <= MOST_REGISTERS and nodes * math.prod(tile()) <= MOST_NODES

    while rows > 1 and not fits():
        rows //= 2
    while planes > 1 and not fits():
        planes //= 2
    while columns > 1 and not fits():
        columns //= 2
    return tile()


def choose_threads(program: Program) -> tuple[int, int]:
    """Choose the threads of a block, along the last grid axis and the one before."""
    return (32, 4) if program.axes > 2 else (64, 2)


def _reads_across(program: Program, axis: int) -> bool:
    """Return whether cells beside the own one are read along an axis."""
    return any(program.footprint(number)[axis] != (0, 0) for number in range(len(program.inputs)))


def registers(program: Program, tile: Shape) -> int:
    """Return the number of 32-bit registers for all elements that a thread loads."""
    total = 0
    for (number, _), elements in _window(program, tile).items():
        itemsize = program.inputs[number].dtype.itemsize
        if itemsize < 4:
            total += _words(elements, itemsize) + 1
        else:
            total += len(elements) * itemsize // 4
    return total


def _window(program: Program, tile: Shape) -> dict[tuple[int, Offset], set[int]]:
    """Return the elements that a thread loads, by input and row, relative to the tile's first cell."""
    found: dict[tuple[int, Offset], set[int]] = defaultdict(set)
    for node in program.loads:
        components = program.inputs[node.input].components
        for place in product(*map(range, tile)):
            at = tuple(map(sum, zip(place, node.offset, strict=True)))
            found[node.input, at[:-1]].add(at[-1] * components + node.component)
    return found


def _words(elements: set[int], itemsize: int) -> int:
    """Return the number of whole 32-bit words from the first to the last element of a row."""
    return -(-(max(elements) - min(elements) + 1) * itemsize // 4)


# Writing the kernel


@cache
def _skeleton() -> tuple[str, str]:
    """Return the text of all headers, and the kernel's text with placeholders."""
    texts = [path.read_text(encoding="utf-8") for path in (HEADER, KERNELS / "single_pass.cuh")]
    headers = "\n".join(text.replace("#pragma once\n", "") for text in texts)
    return headers, (KERNELS / "single_pass.cu").read_text(encoding="utf-8")


def emit(
    program: Program,
    *,
    tile: Shape | None = None,
    threads: tuple[int, int] | None = None,
    width: int | None = None,
    math: str = "strict",
) -> PassKernel:
    """Write the kernel of a program.

    tile: cells that a thread computes, per grid axis; default: `choose_tile`. width: cells of the last grid
    axis; a tile is no wider. threads: most threads of a block along the last grid axis and the one before;
    default: `choose_threads`. math: "strict" rounds as NumPy does; "fast" lets the compiler contract
    a * b + c to one operation.
    """
    tile = choose_tile(program, width) if tile is None else tile
    threads = choose_threads(program) if threads is None else threads
    if len(tile) != program.axes or min(tile) < 1:
        raise ValueError(f"a tile of {tile} cells for {program.axes} grid axes")
    body = _Body(program, tile)
    headers, text = _skeleton()
    for mark, instead in (
        ("// @headers@", headers),
        ("/* @threads@ */", str(threads[0] * threads[1])),
        ("/* @parameters@ */", ", ".join(f"{kind} {name}" for kind, name, _ in _parameters(program))),
        ("// @body@", "\n    ".join(body.lines)),
    ):
        text = text.replace(mark, instead)
    options = compiler_options(math)
    return PassKernel(text, "single_pass", options, program, tile, threads, body.description)


def _parameters(program: Program) -> Iterator[tuple[str, str, type[np.generic]]]:
    """Yield the kernel's parameters: C++ type, name, and NumPy type of the argument."""
    last = program.axes - 1
    for letter, operands, const in (("i", program.inputs, "const "), ("o", program.outputs, "")):
        for number, one in enumerate(operands):
            yield f"{const}{ctype(one.dtype)}* __restrict__", f"{letter}{number}", np.uint64
            for axis in range(last):
                yield "int64", f"{letter}{number}_pitch{axis}", np.int64
    for axis in range(program.axes):
        yield "int64", f"length{axis}", np.int64
    for axis in range(1, program.axes):
        yield "uint32", f"tiles{axis}", np.uint32
    yield "int64", "shift", np.int64


class _Body:
    """The lines of a kernel's body, for one tile."""

    def __init__(self, program: Program, tile: Shape) -> None:
        self.program, self.tile, self.lines = program, tile, list[str]()
        self._names: dict[int, str] = {}
        self._made = 0
        self._high = [program.footprint(number) for number in range(len(program.inputs))]
        flat = [node for result in program.results for node in result]
        self._cells = {place: program.graph.shifted(flat, place) for place in product(*map(range, tile))}
        self._nodes = _ordered(node for cell in self._cells.values() for node in cell)
        self._find_place()
        words = self._load()
        self._compute()
        cells = len(self._cells)
        operands = (*program.inputs, *program.outputs)
        self.description = Description(
            loads=sum(node.op == "load" for node in self._nodes) / cells,
            load_instructions=words / cells,
            stores=len(flat),
            operations=sum(node.op not in ("load", "constant", "cast") for node in self._nodes) / cells,
            bytes=sum(one.dtype.itemsize * one.components for one in operands),
        )

    def _find_place(self) -> None:
        """Write the cells that a thread computes: x<axis>, the first, and last<axis>, the last."""
        add, last = self.lines.append, self.program.axes - 1
        add("uint32 place = blockIdx.x;")
        for axis in reversed(range(self.program.axes)):
            tiles = "place" if axis == 0 else f"place % tiles{axis}"
            if axis == last:
                thread = f"int64({tiles}) * blockDim.x + threadIdx.x"
                add(f"int64 x{axis} = ({thread}) * {self.tile[axis]} - shift;")
            elif axis == last - 1:
                add(f"const int64 x{axis} = (int64({tiles}) * blockDim.y + threadIdx.y) * {self.tile[axis]};")
            else:
                add(f"const int64 x{axis} = int64({tiles}) * {self.tile[axis]};")
            if axis:
                add(f"place /= tiles{axis};")
        outside = " || ".join(f"x{axis} >= length{axis}" for axis in range(self.program.axes))
        add(f"if ({outside}) return;")
        columns = self.tile[last]
        if columns > 1:
            add(f"if (x{last} > length{last} - {columns}) x{last} = length{last} - {columns};")
            add(f"if (x{last} < 0) x{last} = 0;")
        for axis in range(last):
            if self.tile[axis] > 1:
                most = self.tile[axis]
                left = f"length{axis} - x{axis}"
                add(f"const int last{axis} = ({left} < {most} ? int({left}) : {most}) - 1;")

    def _pointer(self, letter: str, number: int, operand: Operand) -> str:
        """Return the address of the thread's first cell."""
        last = self.program.axes - 1
        rows = [f"x{axis} * {letter}{number}_pitch{axis}" for axis in range(last)]
        return " + ".join([f"{letter}{number}", *rows, f"x{last} * {operand.components}"])

    def _row(self, base: str, name: str, at: Offset, last: Sequence[int] | None = None) -> str:
        """Return the pointer to a row of the tile. last: for a row to read, the number of rows after the own
        rows, per grid axis."""
        terms = [base]
        for axis, place in enumerate(at):
            if place and last is not None and place > last[axis] and self.tile[axis] > 1:
                terms.append(f"clamped({place}, last{axis} + {last[axis]}) * {name}_pitch{axis}")
            elif place:
                terms.append(f"{place} * {name}_pitch{axis}")
        return " + ".join(terms)

    def _load(self) -> int:
        """Write all loads, then all shifts of words. Return the number of load instructions."""
        program, count = self.program, 0
        loads = {(node.input, node.offset, node.component): node for node in self._nodes if node.op == "load"}
        rows: dict[tuple[int, Offset], list[tuple[int, Node]]] = defaultdict(list)
        for (number, offset, component), node in loads.items():
            place = offset[-1] * program.inputs[number].components + component
            rows[number, offset[:-1]].append((place, node))
        for number in sorted({number for number, _ in rows}):
            pointer = self._pointer("i", number, program.inputs[number])
            self.lines.append(f"const auto* const from{number} = {pointer};")
        aligned = []
        ordered = sorted(rows.items(), key=lambda item: (item[0][1], item[0][0]))
        for line, ((number, at), found) in enumerate(ordered):
            operand, elements = program.inputs[number], {place for place, _ in found}
            kind, itemsize, first = ctype(operand.dtype), operand.dtype.itemsize, min(elements)
            row = self._row(f"from{number}", f"i{number}", at, [high for _, high in self._high[number]])
            if itemsize < 4:
                size = (max(elements) - first + 1) * itemsize
                self.lines.append(f"auto row{line} = fetch<{size}>({row} + {first});")
                aligned.append(f"align(row{line});")
                count += _words(elements, itemsize) + 1
                for place, node in found:
                    byte = (place - first) * itemsize
                    self._names[id(node)] = f"element<{kind}, {byte}>(row{line})"
                continue
            self.lines.append(f"const auto* const row{line} = {row};")
            for place, node in sorted(found, key=lambda item: item[0]):
                name = self._new(node)
                self.lines.append(f"const {kind} {name} = __ldg(row{line} + {place});")
                count += 1
        self.lines += aligned
        return count

    def _compute(self) -> None:
        """Write, row by row, the operations that are not written yet, and the stores."""
        program, done = self.program, set[int]()
        for number, output in enumerate(program.outputs):
            self.lines.append(f"auto* const to{number} = {self._pointer('o', number, output)};")
        for at in product(*map(range, self.tile[:-1])):
            places = [(*at, column) for column in range(self.tile[-1])]
            cells = [self._cells[place] for place in places]
            for node in _ordered((node for cell in cells for node in cell), done):
                self._value(node)
            inside = [f"last{axis} >= {place}" for axis, place in enumerate(at) if place]
            self.lines.append(f"if ({' && '.join(inside)}) {{" if inside else "{")
            begin = 0
            for number, output in enumerate(program.outputs):
                end = begin + output.components
                values = ", ".join(self._names[id(node)] for cell in cells for node in cell[begin:end])
                kind, count = ctype(output.dtype), len(cells) * output.components
                self.lines.append(f"    const {kind} results{number}[{count}] = {{{values}}};")
                row = self._row(f"to{number}", f"o{number}", at)
                self.lines.append(f"    store({row}, results{number});")
                begin = end
            self.lines.append("}")

    def _value(self, node: Node) -> None:
        if node.op == "constant":
            self._names[id(node)] = expression(node, self._names)
            return
        if id(node) in self._names and not self._names[id(node)].startswith("element"):
            return
        text = self._names[id(node)] if node.op == "load" else expression(node, self._names)
        name = self._new(node)
        self.lines.append(f"const {ctype(node.dtype)} {name} = {text};")

    def _new(self, node: Node) -> str:
        self._made += 1
        name = self._names[id(node)] = f"v{self._made}"
        return name


def _ordered(results: Any, done: set[int] | None = None) -> list[Node]:
    """Return all nodes that results depend on and that are not `done`, operands before their users."""
    done = set() if done is None else done
    found: list[Node] = []
    for result in results:
        stack = [(result, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                found.append(node)
            elif id(node) not in done:
                done.add(id(node))
                stack.append((node, True))
                stack += [(one, False) for one in reversed(node.operands) if id(one) not in done]
    return found


# Calling it


def launch_arguments(
    kernel: PassKernel, blocks: Sequence[Array], outs: Sequence[Array], widths: Extents
) -> PassLaunch:
    """Return grid, block and arguments to compute all own cells.

    blocks: an array for each input, with its halo. outs: an array for each output, of own cells. Both may be
    views of larger arrays, at any address and pitch, but rows with their trailing axes are contiguous.
    Trailing axes that the operand lacks count as cells of the last grid axis (`merge_components`). widths:
    halo of all blocks, per grid axis; at least each input's footprint. Raises ValueError for arrays that do
    not fit the kernel.
    """
    program, last = kernel.program, kernel.program.axes - 1
    targets = [_Rows(array, one, last) for array, one in zip(outs, program.outputs, strict=True)]
    lengths = targets[0].lengths
    sources = []
    for number, (array, one) in enumerate(zip(blocks, program.inputs, strict=True)):
        source = _Rows(array, one, last)
        low = [before * (source.merged if axis == last else 1) for axis, (before, _) in enumerate(widths)]
        high = [after * (source.merged if axis == last else 1) for axis, (_, after) in enumerate(widths)]
        needs = program.footprint(number)
        if any(a > b or c > d for (a, c), b, d in zip(needs, low, high, strict=True)):
            raise ValueError(f"a halo of {widths} cells for a footprint of {needs}")
        source.lengths = tuple(n - a - b for n, a, b in zip(source.lengths, low, high, strict=True))
        source.address += sum(a * b for a, b in zip(low, source.strides, strict=True))
        sources.append(source)
    if any(one.lengths != lengths for one in (*sources, *targets)):
        raise ValueError(f"arrays of {[one.lengths for one in (*sources, *targets)]} own cells")
    if math.prod(lengths) == 0:
        return PassLaunch((0,), (1, 1), ())
    columns = kernel.tile[last]
    if lengths[last] < columns:
        raise ValueError(f"rows of {lengths[last]} cells for a tile of {columns}")

    shift = _shift(targets, columns)
    tiles = [-(-n // step) for n, step in zip(lengths, kernel.tile, strict=True)]
    tiles[last] = -(-(lengths[last] + shift) // columns)
    block = _block(kernel.threads, tiles)
    tiles[last] = -(-tiles[last] // block[0])
    if last:
        tiles[last - 1] = -(-tiles[last - 1] // block[1])
    if math.prod(tiles) > MOST_BLOCKS:
        raise ValueError(f"{math.prod(tiles)} blocks of threads, more than {MOST_BLOCKS}")
    values: list[int] = []
    for rows in (*sources, *targets):
        values += [rows.address, *(stride // rows.itemsize for stride in rows.strides[:last])]
    values += [*lengths, *tiles[1:], shift]
    kinds = [kind for _, _, kind in _parameters(program)]
    arguments = tuple(kind(value) for kind, value in zip(kinds, values, strict=True))
    return PassLaunch((math.prod(tiles),), block, arguments)


class _Rows:
    """The rows of cells of an array.

    address: of the first element. lengths: cells per grid axis. strides: bytes from one cell to the next, per
    grid axis. merged: cells of the kernel's last axis for each one of the array's.
    """

    def __init__(self, array: Array, operand: Operand, last: int) -> None:
        if array.dtype != operand.dtype:
            raise ValueError(f"{operand.name} is {array.dtype}, expected {operand.dtype}")
        row = array.shape[last:]
        self.itemsize: int = array.dtype.itemsize
        step = self.itemsize
        for length, stride in zip(reversed(row), reversed(array.strides[last:]), strict=True):
            if stride != step and length > 1 and math.prod(array.shape):
                raise ValueError(f"the rows of {operand.name} are not contiguous: strides {array.strides}")
            step *= length
        cells, left = divmod(math.prod(row), operand.components)
        if left or (operand.trailing and tuple(row[1:]) != operand.trailing):
            raise ValueError(
                f"{operand.name} has shape {array.shape}, expected {operand.trailing} at its end"
            )
        if any(stride % self.itemsize for stride in array.strides):
            raise ValueError(f"strides {array.strides} of {operand.name} are no multiples of an element")
        self.address = _address(array)
        self.lengths = (*array.shape[:last], cells)
        self.strides = (*array.strides[:last], self.itemsize * operand.components)
        self.merged = math.prod(row[1:]) // operand.components


def _address(array: Array) -> int:
    pointer = getattr(array.data, "ptr", None)
    return int(array.ctypes.data if pointer is None else pointer)


def _shift(targets: Sequence[_Rows], columns: int) -> int:
    """Return the number of cells by which tiles begin before a row, so that most stores are whole vectors."""

    def aligned(shift: int) -> int:
        total = 0
        for one in targets:
            size = columns * one.strides[-1]
            vector = min(size & -size, 16)
            if (one.address - shift * one.strides[-1]) % vector == 0:
                total += one.strides[-1]
        return total

    return max(range(columns), key=aligned)


def _block(most: tuple[int, int], tiles: Sequence[int]) -> tuple[int, int]:
    """Return the threads of a block along the last two grid axes: for a short last axis, fewer along it and
    more along the other."""
    along, across = most
    while along > 1 and along // 2 >= tiles[-1]:
        along //= 2
        across *= 2 if len(tiles) > 1 else 1
    return along, across
