"""Write the statements by which a pass stores rows beyond the first and the last one that equal own ones.

After each step, the cells beyond the array must equal the new own cells. The thread that computes such an own
cell stores it in each of these places too (kernels/beyond.cuh), so that a step needs no second launch. Only
threads near an end take the branch. Along the last axis, the next pass reads the own cells themselves
(`single_pass.finds_ends`). In volumes, a launch that fills the cells beyond takes less time than this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshrun.runner.compiler.trace.graph import Program

# Bytes that a pass reads and writes, at most, if it is to store cells beyond the ends. In a larger field, a
# launch of their own takes a small part of a step, and the pass has no branch for them.
MOST_BYTES = 96 << 20
Sides = tuple[bool, bool]  # before the first row, after the last one
NO_SIDES = False, False


@dataclass(frozen=True)
class Beyond:
    """Which rows beyond the ends a pass stores.

    boundary: reflect, mirror, nearest or wrap. widths: for each output, how many rows before the first one
    and after the last one are read.
    """

    boundary: str
    widths: tuple[tuple[int, int], ...]

    @property
    def margin(self) -> int:
        """How far from an end a row may lie that equals one beyond it."""
        return max(map(max, self.widths)) + (self.boundary == "mirror")

    @property
    def copies(self) -> int:
        """How many copies of a row there may be, with the row itself."""
        return 1 + 2 * (max(map(max, self.widths)) if self.boundary == "nearest" else 1)


@dataclass(frozen=True)
class RowStore:
    """A row of a thread's results that is stored.

    output: its number. row: of the tile. function, results: C++ of what stores, and of what is stored.
    target: C++ of the address among the own cells. pitch: C++ of the elements from row to row.
    """

    output: int
    row: int
    function: str
    results: str
    target: str
    pitch: str


def cells_beyond(program: Program, feeds: Sequence[int | None], boundary: str) -> Beyond | None:
    """Return the rows beyond the ends that the next pass reads of the inputs that outputs feed.

    None if there are none that equal own ones, and for programs of other than two axes.
    """
    if boundary == "constant" or program.axes != 2:
        return None
    reads = [program.footprint(feed)[0] if feed is not None else (0, 0) for feed in feeds]
    widths = tuple((max(low, 0), max(high, 0)) for low, high in reads)
    return Beyond(boundary, widths) if any(map(any, widths)) else None


def statements(beyond: Beyond, stores: Sequence[RowStore], place: str, rows: int) -> Iterator[str]:
    """Yield the statements that store rows beyond the ends, to come after those that store the own ones.

    place: C++ of the first row of the tile. rows: of the tile.
    """
    margin = beyond.margin
    # The branch of the threads near an end: for each copy of their rows but the rows themselves.
    near = f"{place} < {margin} || {place} > int32(length0) - {margin + rows}"
    yield f"if (sides != 0 && ({near})) {{"
    yield "#pragma unroll 1"
    yield f"for (int copy = 1; copy < {beyond.copies}; ++copy) {{"
    for store in stores:
        low, high = beyond.widths[store.output]
        if not low and not high:
            continue
        # Store the row, if this copy of it is read.
        yield "{"
        yield (
            f"const int32 shift = copy_beyond<Ends::{beyond.boundary}>({place} + {store.row}, "
            f"int32(length0), sides & 1 ? {low} : 0, sides & 2 ? {high} : 0, copy);"
        )
        moved = f"int64(shift) * int64({store.pitch})"
        yield f"if (shift != NOWHERE) {store.function}({store.target} + {moved}, {store.results});"
        yield "}"
    yield "}"
    yield "}"
