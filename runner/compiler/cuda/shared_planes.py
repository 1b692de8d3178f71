"""Write the march of a block of threads through planes that it has in shared memory.

In a pass over three axes whose cells read many neighbours in their plane, each thread would load all of them
through the first cache. Here, a block copies each plane of its tile to shared memory once, some planes ahead
(kernels/shared_planes.cuh). Its threads read the newest plane and the neighbours in theirs from there, and
keep in registers what the next plane needs again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from meshrun.runner.compiler.cuda.strip_values import Row, element_name
from meshrun.runner.compiler.operations import ctype
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.region import Shape

CHUNK = 16  # bytes of an asynchronous copy
SMALLEST = 4  # bytes of an element, at least: smaller ones are read in words
# The values below are the fastest of some on an H200, for waves of order 8, Cahn-Hilliard and stars.
ROW = 8  # bytes of a thread's row
THREADS, AHEAD = (32, 8), 2  # of a march
PLANES, NEAR_PLANES = 32, 16  # of a march, and of one whose planes are still in the cache for the next one
CACHED = 72 << 20  # bytes of the planes of a march, for that
LEAST_PLANES = 8  # of a field
LEAST_CELLS = 1 << 25  # of a field: smaller ones are in the cache, and need more threads
LEAST_READ = 5  # elements that a cell reads of a field in shared memory, at least, on average
# The most registers of a thread that hold elements from one turn to the next, for so many blocks of a
# processor.
HELD = {3: 44, 2: 80}
# Turns that are written out, so that values of one are found again in the next: where a thread holds few
# elements, and of a march whose planes are in the cache and whose elements are small. Others would spill
# registers.
UNROLLED, FEW_HELD, NEAR_UNROLLED = 4, 32, 2
MOST_SHARED = {3: 54 << 10, 2: 80 << 10}  # bytes of a block, for so many of them on a processor


@dataclass(frozen=True)
class SharedPlanes:
    """The shape of a march through planes in shared memory.

    planes: of a march. cells: rows and columns of a thread. threads: of a block, along the last axis and the
    one before. ahead: planes that are being copied while one is computed. unroll: turns of the loop that are
    written out. blocks: of a processor, at least, by which the compiler limits registers. shared: bytes of a
    block's shared memory, of a kernel that is written.
    """

    planes: int
    cells: tuple[int, int]
    threads: tuple[int, int]
    ahead: int = 1
    unroll: int = 1
    blocks: int = 1
    shared: int = 0

    @property
    def tile(self) -> tuple[int, int, int]:
        """Cells of a thread, per axis."""
        return self.planes, *self.cells

    @property
    def block(self) -> tuple[int, int, int]:
        """Cells of a block, per axis."""
        (rows, columns), (along, across) = self.cells, self.threads
        return self.planes, rows * across, columns * along

    @property
    def count(self) -> int:
        """Threads of a block."""
        return self.threads[0] * self.threads[1]


def choose(program: Program, lengths: Shape | None = None) -> SharedPlanes | str:
    """Return how blocks march through a field, or why threads march alone.

    program: of the interior. lengths: own cells per axis between the array's ends; None: of a large field.
    """
    operands = (*program.inputs, *program.outputs)
    if program.axes != 3:
        return "the array has not three axes"
    if any(one.components > 1 or one.trailing or one.unit > 1 for one in operands):
        return "cells have components"
    if any(one.dtype.itemsize < SMALLEST for one in operands):
        return f"elements are smaller than {SMALLEST} bytes"
    if any(one.combine for one in program.outputs):
        return "a result is combined of all cells"
    if lengths is not None and math.prod(lengths) < LEAST_CELLS:
        return f"the field has fewer than {LEAST_CELLS} cells"

    # As many cells as fit, for as many blocks of a processor as possible.
    columns = max(ROW // max(one.dtype.itemsize for one in operands), 1)
    for rows, blocks in ((2, 3), (2, 2), (1, 3), (1, 2)):
        shape = SharedPlanes(PLANES, (rows, columns), THREADS, AHEAD, blocks=blocks)
        fresh, held = reads_of_turn(program, shape.cells)
        shared = rings(shape, program.inputs, fresh, "")
        read = sum(len(elements) for ring in shared for elements in ring.rows.values())
        if read < LEAST_READ * rows * columns * max(len(shared), 1):
            fields = f", of {len(shared)} fields" if len(shared) > 1 else ""
            return f"a cell reads {read / (rows * columns):.3g} elements from shared memory{fields}"
        if held <= HELD[blocks] and sum(ring.bytes for ring in shared) <= MOST_SHARED[blocks]:
            shape = replace(shape, unroll=UNROLLED if held <= FEW_HELD else 1)
            break
    else:
        return "a thread would hold too many elements, or a block"
    if lengths is None:
        return shape
    least = LEAST_PLANES, *shape.block[1:]
    if any(a < b for a, b in zip(lengths, least, strict=True)):
        return f"the field is smaller than {' x '.join(map(str, least))} cells"
    plane = math.prod(lengths[1:]) * sum(one.dtype.itemsize for one in operands)
    is_near = NEAR_PLANES * plane <= CACHED
    planes = NEAR_PLANES if is_near else PLANES
    unroll = max(shape.unroll, NEAR_UNROLLED if is_near and columns > 1 else 1)
    return replace(shape, planes=-(-lengths[0] // -(-lengths[0] // planes)), unroll=unroll)


def reads_of_turn(program: Program, cells: tuple[int, int]) -> tuple[dict[Row, list[int]], int]:
    """Return the elements that a turn of a march reads for the first time, by row, and the registers that
    hold elements from one turn to the next.

    cells: rows and columns of a thread.
    """
    window: dict[Row, set[int]] = defaultdict(set)
    for node in program.loads:
        plane, line, column = node.offset
        for row, further in product(*map(range, cells)):
            window[node.input, (plane, line + row)].add(column + further)
    fresh: dict[Row, list[int]] = {}
    held = 0
    for (number, (plane, line)), elements in window.items():
        later = window.get((number, (plane + 1, line)), set())
        fresh[number, (plane, line)] = sorted(elements - later)
        held += len(elements & later) * program.inputs[number].dtype.itemsize // SMALLEST
    # What a thread loads by itself, it loads a turn ahead.
    shared = {node.input for node in program.loads if any(node.offset[1:])}
    held += sum(
        len(elements) * program.inputs[number].dtype.itemsize // SMALLEST
        for (number, _), elements in fresh.items()
        if number not in shared
    )
    return fresh, held


@dataclass(frozen=True)
class Ring:
    """The planes of an input in shared memory.

    number: of the input. place: the C++ type of a place in it. rows: what a turn reads of each row for the
    first time, relative to the thread's first cell. begin: the first byte in the block's shared memory.
    """

    number: int
    operand: Operand
    place: str
    rows: Mapping[Row, Sequence[int]]
    begin: int
    shape: SharedPlanes

    @property
    def low(self) -> int:
        """The first plane that a turn reads."""
        return min(at[0] for _, at in self.rows)

    @property
    def offsets(self) -> list[int]:
        """The planes that a turn reads, counted from the first one."""
        return sorted({at[0] - self.low for _, at in self.rows})

    @property
    def slots(self) -> int:
        """The planes that are in shared memory."""
        return self.offsets[-1] + 1 + self.shape.ahead

    @property
    def beside(self) -> tuple[int, int, int, int]:
        """Cells beside the block's tile: above, below, left and right of it.

        Below 0: rows or columns of the tile that no cell reads, which need not be in memory.
        """
        rows, columns = self.shape.cells
        return (
            max(-at[1] for _, at in self.rows),
            max(at[1] - rows + 1 for _, at in self.rows),
            max(-min(elements) for elements in self.rows.values()),
            max(max(elements) - columns + 1 for elements in self.rows.values()),
        )

    @property
    def kind(self) -> str:
        """The C++ type."""
        _, rows, columns = self.shape.block
        sizes = rows, columns, *self.beside, self.slots, self.shape.count
        return f"planes::Ring<{ctype(self.operand.dtype)}, {self.place}, {', '.join(map(str, sizes))}>"

    @property
    def before(self) -> int:
        """Elements of a row in shared memory before the tile's first cell."""
        each = CHUNK // self.operand.dtype.itemsize
        return max(0, -(-self.beside[2] // each) * each)

    @property
    def width(self) -> int:
        """Elements of a row in shared memory."""
        each = CHUNK // self.operand.dtype.itemsize
        return self.before + self.shape.block[2] + max(0, -(-self.beside[3] // each) * each)

    @property
    def bytes(self) -> int:
        """Size in shared memory."""
        above, below, *_ = self.beside
        rows = above + self.shape.block[1] + below
        return self.width * rows * self.slots * self.operand.dtype.itemsize


def rings(
    shape: SharedPlanes, inputs: Sequence[Operand], fresh: Mapping[Row, Sequence[int]], place: str
) -> list[Ring]:
    """Return the rings of the inputs of which threads read cells beside their own in a plane.

    fresh: the elements of each row that a turn reads and the one before did not. place: as of `Ring`.
    """
    rows, columns = shape.cells
    found: list[Ring] = []
    for number, operand in enumerate(inputs):
        read = {row: elements for row, elements in fresh.items() if row[0] == number and elements}
        if any(
            not 0 <= at[1] < rows or min(elements) < 0 or max(elements) >= columns
            for (_, at), elements in read.items()
        ):
            found.append(Ring(number, operand, place, read, sum(one.bytes for one in found), shape))
    return found


def place_lines(shape: SharedPlanes, column: str, has_ends: bool, once: bool) -> Iterator[str]:
    """Yield the statements that find the first cell of a thread, x<axis>, and of its block, begin<axis>.

    column: the C++ type of a place along the last axis. has_ends: whether other blocks make cells near the
    array's ends. Blocks at the end of an axis begin earlier. once: no
    cell may be stored by two of them; then they also find `kept`, a bit for each of a thread's cells in a
    plane that it stores, and in the bits above the turn after which it stores: in one register.
    """
    yield f"uint32 place = blockIdx.x{' - at_ends' if has_ends else ''};"
    for axis in (2, 1):
        yield f"const uint32 before{axis} = uint64(place) * factor{axis} >> bits{axis};"
        yield f"const uint32 tile{axis} = place - before{axis} * tiles{axis};"
        yield f"place = before{axis};"
    planes, rows, columns = shape.block
    for name, kind, first, cells, axis in (
        ("x0", "uint32", f"place * {planes}", planes, 0),
        ("begin1", "uint32", f"tile1 * {rows}", rows, 1),
        ("begin2", column, f"{column}(tile2) * {columns} - shift", columns, 2),
    ):
        yield f"{kind} {name} = {first};"
        if once:
            yield f"const {kind} stored{axis} = {name};"
        yield f"if ({name} > {kind}(length{axis} - {cells})) {name} = {kind}(length{axis} - {cells});"
    yield "if (begin2 < 0) begin2 = 0;"
    along = shape.threads[0]
    yield f"const uint32 x1 = begin1 + threadIdx.x / {along} * {shape.cells[0]};"
    yield f"const {column} x2 = begin2 + {column}(threadIdx.x % {along} * {shape.cells[1]});"
    if once:
        kept = [
            f"uint32(x1 + {row} >= stored1 && x2 + {at} >= stored2 && x2 + {at} < stored2 + {columns})"
            for row, at in product(*map(range, shape.cells))
        ]
        bits = " | ".join(f"{stores} << {bit}" for bit, stores in enumerate(kept))
        yield f"const uint32 kept = {bits} | (stored0 - x0) << {len(kept)};"


def store_lines(
    shape: SharedPlanes, stored: Sequence[str], parts: Iterable[tuple[int, str, str]]
) -> Iterator[str]:
    """Yield the statements that store results, each cell by one block only.

    stored: statements that store all. parts: of each row of a thread its number, C++ of where it is stored,
    and the array of results.
    """
    rows, columns = shape.cells
    yield f"if (turn > kept >> {rows * columns}) {{"
    yield f"if (~kept % {2 ** (rows * columns)} == 0) {{"
    yield from stored
    yield "} else {"
    for row, target, results in parts:
        yield f"planes::store_kept<{row * columns}>({target}, {results}, kept);"
    yield "}"
    yield "}"


def open_lines(ring: Ring, plane: str, pitches: Sequence[str], own: str) -> Iterator[str]:
    """Yield the statements that declare a ring and the slots of the planes that a turn reads.

    plane: C++ of where the block's tile begins in the first plane. pitches: from a plane, and a row, to the
    next. own: C++ of the column that column `at` equals.
    """
    number = ring.number
    yield f"const auto own{number} = [&](auto at) {{ return {own}; }};"
    yield f"{ring.kind} ring{number};"
    yield (
        f"ring{number}.open(shared_memory + {ring.begin}, {plane}, {pitches[1]}, {pitches[0]}, begin2, "
        f"own{number});"
    )
    for offset in ring.offsets:
        yield f"int slot{number}_{offset} = {offset};"
    yield f"int next_slot{number} = {ring.slots - 1};"


def first_fills(rings: Sequence[Ring], pitches: Mapping[int, str]) -> Iterator[str]:
    """Yield the statements that begin to copy the planes of the first turn, and those ahead, a group each.

    pitches: from a plane to the next, per input.
    """
    for ahead in range(rings[0].shape.ahead):
        for ring in rings:
            newest = ring.slots - 1 - ring.shape.ahead
            for slot in range(newest + 1) if ahead == 0 else [newest + ahead]:
                yield f"ring{ring.number}.fill({slot}, {pitches[ring.number]}, begin2, own{ring.number});"
        yield "commit_copies();"


def next_fills(rings: Sequence[Ring], pitches: Mapping[int, str]) -> Iterator[str]:
    """Yield the statements that wait for a turn's planes and begin to copy one more of each ring."""
    shape = rings[0].shape
    yield f"await_copies<{shape.ahead - 1}>();"
    yield "__syncthreads();  // the planes are there, and the slots to fill are no longer read"
    yield f"if (turn <= {shape.planes - shape.ahead}) {{"
    for ring in rings:
        number = ring.number
        yield f"ring{number}.fill(next_slot{number}, {pitches[number]}, begin2, own{number});"
    yield "}"
    yield "commit_copies();"


def read_lines(ring: Ring, lines: Mapping[Row, int]) -> Iterator[str]:
    """Yield the statements that read what a turn needs from shared memory, in vectors.

    lines: the number of each row, by which its elements are named.
    """
    (rows, columns), (along, _), number = ring.shape.cells, ring.shape.threads, ring.number
    kind = ctype(ring.operand.dtype)
    for offset in ring.offsets:
        yield (
            f"const {kind}* const plane{number}_{offset} = ring{number}.memory + "
            f"slot{number}_{offset} * ring{number}.SIZE + "
            f"({ring.beside[0]} + int(threadIdx.x / {along} * {rows})) * {ring.width} + "
            f"{ring.before} + int(threadIdx.x % {along} * {columns});"
        )
    for row, elements in ring.rows.items():
        line, plane = lines[row], f"plane{number}_{row[1][0] - ring.low}"
        vectors: dict[int, list[int]] = defaultdict(list)
        for element in sorted(elements):
            vectors[element // columns].append(element)
        for vector, parts in vectors.items():
            if len(parts) == 1:
                at = row[1][1] * ring.width + parts[0]
                yield f"const auto {element_name(line, parts[0])} = {plane}[{at}];"
                continue
            first = vector * columns
            name = element_name(line, first).replace("e", "w", 1)
            yield f"const auto {name} = planes::read<{columns}>({plane} + {row[1][1] * ring.width + first});"
            for one in parts:
                yield f"const auto {element_name(line, one)} = {name}.value[{one - first}];"


def unroll_lines(shape: SharedPlanes) -> list[str]:
    """Return what says how many turns of the loop are written out."""
    wanted = f"#pragma unroll {shape.unroll}"
    if shape.unroll != NEAR_UNROLLED:
        return [wanted]
    # Two turns spill registers on processors 10.0.
    newer = "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000"
    return [newer, "#pragma unroll 1", "#else", wanted, "#endif"]


def advance_lines(ring: Ring) -> Iterator[str]:
    """Yield the statements that go on to the next slots."""
    for slot in (*(f"slot{ring.number}_{one}" for one in ring.offsets), f"next_slot{ring.number}"):
        yield f"{slot} = {slot} == {ring.slots - 1} ? 0 : {slot} + 1;"
