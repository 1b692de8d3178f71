"""Choose how many cells a thread of the kernel of one pass makes, and how many threads a block has."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import product

from meshrun.runner.compiler.cuda.steps.layout import PROCESSORS
from meshrun.runner.compiler.passes.branches import branches_of
from meshrun.runner.compiler.passes.ends import ends_of
from meshrun.runner.compiler.passes.strips import WORD, Strips
from meshrun.runner.compiler.trace.graph import (
    Offset,
    Program,
)
from meshrun.runner.region import Shape

LARGEST_ROW = 16  # bytes of a row that a thread writes, by which columns are chosen
SWEPT_ROW = 8  # the same, if it makes one cell after the other
MOST_REGISTERS = 96  # that hold what a thread loads
MOST_VALUES = 1500  # of a thread: the compiler takes 0.5 s for about so many
MOST_IN_BRANCHES = 1000  # of a thread with branches: more keep so many registers that few threads run at once
TURNS = 64  # of a thread that marches through planes
MARCHED = 1.5  # most bytes of a cell for each that is read in the planes that share it, for threads to march
LEAST_PLANES = 8  # of a march whose results are written over an input
LONGER = 1.5  # times as many planes of a march, at most, for all blocks of a small volume to run at once
ADDED_ROWS = 4  # of a thread that adds its cells, at least
MOST_THREADS = 2**18  # of a large GPU at a time
# Threads of a march through a small volume, at least, as long as its tiles have cells to give away
MARCHING_THREADS = 2**15
# Threads of a pass over a small field, at least, as long as its tiles have columns to give away: of kernels
# whose rows share what they read, and of others.
SHARING_THREADS, SINGLE_THREADS = 2**15, 2**19


def choose_tile(program: Program, lengths: Shape | None = None) -> Shape:
    """Choose the cells that a thread computes, per grid axis: PLANES x ROWS x COLUMNS.

    program: of the interior, as of all functions in this section.

    The values are the fastest in benchmarks/fuse_device.py. COLUMNS is 16 bytes of the largest elements, or
    units of elements, that are read or written. ROWS is 4 if rows share what they read, 16 if those are
    bytes, and 2 if they do not share but read beside their own cells, elements of 4 bytes or more. Pixels of
    three or more elements of 4 bytes share no loads along a row: ROWS is 8 and COLUMNS 2. If there are
    branches, COLUMNS is 8 bytes of small elements (`sweeps`), and a thread makes one cell of larger ones in a
    volume: a warp has fewer columns then, and takes branches for what is at the ends of rows less often. If
    planes share what they read, a thread marches through 64 of them, with 2 rows of 8 bytes, but 2 cells at
    least. All are halved, rows first, while the loads of a thread need more than 96 registers, or while it
    computes more than 1500 values, which take half a second to compile, or 1000 if the program has branches.
    Before that, ROWS is at least 4 if cells are added.

    lengths: own cells per grid axis; the tile is no longer, and PLANES is so small that there are threads for
    a whole GPU, but not less than 8. COLUMNS, then ROWS, of a march are fewer if these are too few threads to
    hide the latency of the cache in which so small a volume lies. PLANES are up to half as many again if no
    processor then has two blocks: 68 x 128 x 128 takes as long as 64 x 128 x 128 plus a plane of each march,
    where it took half as long again. On an H200, Cahn-Hilliard and acoustic
    waves of 64^3 take 6.7 and 6.6 us instead of 9.2 and 9.5; of 64 x 128 x 128, more threads take longer.
    """
    operands = (*program.inputs, *program.outputs)
    largest = max(one.dtype.itemsize * one.unit for one in operands)
    march, sweep = marches(program), sweeps(program)
    planes, columns = (TURNS, max(2, 8 // largest)) if march else (1, LARGEST_ROW // largest)
    columns = SWEPT_ROW // largest if sweep else columns
    rows = _rows(program, largest, march)
    if rows == 4 and _apart(program) > 2 and all(one.dtype.itemsize == 4 for one in operands):
        rows, columns = 8, 2

    # What a thread adds is worth what it takes to add the threads' sums.
    if any(one.combine == "add" for one in program.outputs) and program.axes > 1:
        rows = max(rows, ADDED_ROWS)

    branches = bool(branches_of(program))
    if branches and program.axes > 2 and not march and not sweep:
        rows = columns = 1
    most = MOST_IN_BRANCHES if branches else MOST_VALUES

    def tile() -> Shape:
        return ((1,) * program.axes + (planes, rows, columns))[-program.axes :]

    def fits() -> bool:
        loaded = (*tile()[:-3], 1, *tile()[-2:]) if march else tile()
        computed = (*loaded[:-1], 1) if sweep else loaded
        few = registers(program, loaded) <= MOST_REGISTERS
        return few and _values(program) * math.prod(computed) <= most

    while rows > 1 and not fits():
        rows //= 2
    while columns > 1 and not fits():
        columns //= 2
    if lengths is None:
        return tile()
    while march and planes > 8 and math.prod(lengths) < MOST_THREADS * math.prod(tile()):
        planes //= 2
    if march:  # threads make as many planes each, as far as possible
        planes = -(-lengths[0] // -(-lengths[0] // planes)) if lengths[0] else 1
        fewer = not fills_words(program, columns)
        while columns > 1 and fewer and math.prod(lengths) < MARCHING_THREADS * math.prod(tile()):
            columns //= 2
        while rows > 1 and fewer and math.prod(lengths) < MARCHING_THREADS * math.prod(tile()):
            rows //= 2
        across = tuple(map(_within, tile()[1:], lengths[1:]))

        # A block for each processor, where marches half as long again are enough for that.
        (along, beside), (high, wide) = choose_threads(program), across
        layers = PROCESSORS // max(-(-lengths[1] // (high * beside)) * -(-lengths[2] // (wide * along)), 1)
        if layers and planes * layers < lengths[0] <= LONGER * planes * layers:
            planes = -(-lengths[0] // layers)
        return planes, *across
    return tuple(map(_within, tile(), lengths))


def has_ends(program: Program) -> bool:
    """Return whether cells near the array's ends differ from those between: some are not of the interior."""
    return any(map(any, ends_of(program)))


def between_ends(program: Program, lengths: Shape) -> Shape:
    """Return the cells per axis that are left between the ends of the array, but one at least."""
    ends = ends_of(program)
    return tuple(max(length - sum(cells), 1) for length, cells in zip(lengths, ends, strict=True))


def with_fewer_columns(program: Program, tile: Shape, cells: int) -> Shape:
    """Return the tile for a field of so few cells that its threads would leave parts of a GPU idle.

    For repeated passes, whose fields are in the GPU's L2 cache: more threads hide its latency, and their
    narrower loads cost nothing there. Measured on H200s: D2Q9 of 512 x 1024 takes 8.1 instead of 8.7 us,
    a stencil of radius 2 of 256 x 512 1.7 instead of 2.3.
    """
    if fills_words(program, tile[-1]):
        return tile
    shares = program.axes > 1 and _shares(program, program.axes - 2)
    wanted, columns = SHARING_THREADS if shares else SINGLE_THREADS, tile[-1]
    while columns > 1 and cells < wanted * math.prod(tile[:-1]) * columns:
        columns //= 2
    return (*tile[:-1], columns)


def marches(program: Program) -> bool:
    """Return whether a thread makes its planes one after the other: if they share much of what they read.

    Otherwise it makes a tile of one plane, whose loads are all under way at once. On an H200, conjugate
    gradients of 512^3 write x, r and p, of which p alone is read, in three planes: 24 bytes for 12, in 0.82
    instead of 0.91 ms; the sum of r * r, 8 bytes for 12, takes 0.38 instead of 0.28 ms.
    """
    if program.axes != 3 or not _shares(program, 0):
        return False
    planes: dict[int, set[int]] = defaultdict(set)
    for node in program.loads:
        planes[node.input].add(node.offset[0])
    sizes = [one.dtype.itemsize * one.components for one in program.inputs]
    kept = (one for one in program.outputs if not one.combine)
    whole = sum(sizes) + sum(one.dtype.itemsize * one.components for one in kept)
    return whole <= MARCHED * sum(sizes[n] * len(read) for n, read in planes.items() if len(read) > 1)


def sweeps(program: Program) -> bool:
    """Return whether a thread makes the cells of its row one after the other.

    If small elements are computed in branches: unrolled, the cells need many registers and instructions.
    """
    if not fills_words(program, WORD) or not branches_of(program):
        return False
    largest = max(one.dtype.itemsize for one in (*program.inputs, *program.outputs))
    return _rows(program, largest, marches(program)) == 1


def fills_words(program: Program, columns: int) -> bool:
    """Return whether all elements are small ones, and so many results of each output fill words."""
    operands = (*program.inputs, *program.outputs)
    small = all(one.dtype.itemsize < WORD and one.components == 1 for one in operands)
    return small and columns > 1 and all(columns * one.dtype.itemsize % WORD == 0 for one in program.outputs)


def _rows(program: Program, largest: int, march: bool) -> int:
    if program.axes == 1:
        return 1
    if march:
        return 2
    if _shares(program, program.axes - 2):
        return 16 if largest == 1 else 4
    beside = any(node.offset[-2] for node in program.loads)
    return 2 if beside and largest >= WORD else 1


def _shares(program: Program, axis: int) -> bool:
    """Return whether neighbours along an axis read the same cells."""
    read: dict[tuple[int, Offset], int] = {}
    return any(
        read.setdefault((one.input, one.offset[:axis] + one.offset[axis + 1 :]), one.offset[axis])
        != one.offset[axis]
        for one in program.loads
    )


def _values(program: Program) -> float:
    """Return how many values a thread computes for a cell, a word of small elements as one."""
    strips = Strips(True, [one.components for one in program.inputs], program.axes - 1)
    strips.of(program.nodes)
    return sum(1 / max(one.lanes, 1) for one in strips.all if one.operands)


def _within(tile: int, length: int) -> int:
    """Return the tile, a power of two, halved until it is no longer than an axis."""
    return tile if tile <= max(length, 1) else 1 << max(length, 1).bit_length() - 1


def choose_threads(program: Program) -> tuple[int, int]:
    """Choose the threads of a block, along the last grid axis and the one before.

    More along the last one read longer parts of a row; rows are together where they share what they read.
    Of threads that sweep through a volume, those of a warp have short parts of a row: fewer warps take the
    branches for what is at the ends of rows.
    """
    if marches(program):
        return 32, 8
    if sweeps(program):
        return (128, 1) if program.axes < 3 else (16, 8)
    if program.axes > 2 and branches_of(program):
        return 256, 1
    return (64, 2) if program.axes == 2 and _shares(program, 0) else (128, 1)


def _apart(program: Program) -> int:
    """Return the cells of the last axis from one column that is read to the next.

    More than 1 for pixels whose components are cells (`merge_components`): columns of a tile that is no wider
    share no loads.
    """
    return math.gcd(*(node.offset[-1] for node in program.loads))


def registers(program: Program, tile: Shape) -> int:
    """Return the number of 32-bit registers for all elements that a thread loads."""
    total = 0
    for (number, _), elements in _window(program, tile).items():
        itemsize = program.inputs[number].dtype.itemsize
        if itemsize < 4:
            total += _words(elements, itemsize)
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


def whole_tile(tile: Shape, lengths: Shape, march: bool, aligned: bool) -> Shape:
    """Return a tile, hardly larger than another, of which a whole number covers each axis.

    No cell is then computed twice, which would read what was written over it. lengths: cells to cover.
    march: along the first axis, which is one march if it has no parts of 8 planes or more. aligned: whether
    the first cell is at a multiple of 16 bytes; otherwise tiles have one column (`shift`).
    """
    parts = [
        next(cells for cells in range(min(one, max(length, 1)), 0, -1) if length % cells == 0)
        for one, length in zip(tile, lengths, strict=True)
    ]
    if march and parts[0] < LEAST_PLANES:
        parts[0] = max(lengths[0], 1)
    return (*parts[:-1], parts[-1] if aligned else 1)
