"""Write the statements by which a pass stores cells beyond the ends of axes that equal own ones.

After each step, the cells beyond the array must equal the new own cells. The thread that computes such an own
cell stores it in each of these places too (kernels/beyond.cuh), so that a step needs no second launch. Only
threads near an end take the branch. The last axis is left out: there, the next pass reads the own cells
themselves (`single_pass.finds_ends`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshrun.runner.compiler.trace.graph import Extents, Program

# Bytes that a pass reads and writes, at most, if it is to store cells beyond the ends. In a larger field, a
# launch of their own takes a small part of a step, and the pass has no branch for them.
MOST_BYTES = 96 << 20
Sides = Sequence[tuple[bool, bool]]  # per axis but the last: before the first cell, after the last one


@dataclass(frozen=True)
class Beyond:
    """Which cells beyond the ends a pass stores.

    boundary: reflect, mirror, nearest or wrap. widths: for each output, per axis but the last, how many cells
    before the first one and after the last one are read.
    """

    boundary: str
    widths: tuple[Extents, ...]

    def margin(self, axis: int) -> int:
        """Return how far from an end of an axis a cell may lie that equals one beyond it."""
        widest = max(max(of_output[axis]) for of_output in self.widths)
        return widest + (self.boundary == "mirror") if widest else 0

    def copies(self, axis: int) -> int:
        """Return how many copies of a cell along an axis there may be, with the cell itself."""
        widest = max(max(of_output[axis]) for of_output in self.widths)
        return 1 + 2 * (widest if self.boundary == "nearest" else min(widest, 1))


@dataclass(frozen=True)
class RowStore:
    """A row of a thread's results that is stored.

    output: its number. row: of the tile, per axis but the last. call: C++ of the call but for the first
    argument, the target. target: C++ of the address among the own cells. pitches: C++, per axis but the last.
    """

    output: int
    row: Sequence[int]
    call: tuple[str, str]
    target: str
    pitches: Sequence[str]


def cells_beyond(program: Program, feeds: Sequence[int | None], boundary: str) -> Beyond | None:
    """Return the cells beyond the ends that the next pass reads of the inputs that outputs feed.

    None if there are none that equal own ones.
    """
    if boundary == "constant" or program.axes < 2:
        return None
    reads = [program.footprint(feed)[:-1] if feed is not None else () for feed in feeds]
    nothing = ((0, 0),) * (program.axes - 1)
    widths = tuple(tuple((max(a, 0), max(b, 0)) for a, b in one) if one else nothing for one in reads)
    return Beyond(boundary, widths) if any(map(any, (side for one in widths for side in one))) else None


def sides_word(sides: Sides) -> int:
    """Return the kernel's argument: two bits for each axis."""
    return sum(before << 2 * axis | after << 2 * axis + 1 for axis, (before, after) in enumerate(sides))


def statements(
    beyond: Beyond, stores: Sequence[RowStore], places: Sequence[str], cells: Sequence[int]
) -> Iterator[str]:
    """Yield the statements that store rows beyond the ends, to come after those that store them.

    places: C++ of the first cell of the tile, per axis but the last. cells: rows of the tile along each.
    """
    axes = [axis for axis in range(len(places)) if beyond.margin(axis)]
    near = " || ".join(
        f"{places[axis]} < {beyond.margin(axis)} || "
        f"{places[axis]} > int32(length{axis}) - {beyond.margin(axis) + cells[axis]}"
        for axis in axes
    )
    yield f"if (sides != 0 && ({near})) {{"
    for axis in axes:
        yield "#pragma unroll 1"
        yield f"for (int copy{axis} = 0; copy{axis} < {beyond.copies(axis)}; ++copy{axis}) {{"
    yield f"if (({' | '.join(f'copy{axis}' for axis in axes)}) == 0) continue;  // the cells themselves"
    for store in stores:
        widths = beyond.widths[store.output]
        if not any(map(any, widths)):
            continue
        yield "{"
        for axis in axes:
            low, high = widths[axis]
            yield (
                f"const int32 shift{axis} = copy_beyond<Ends::{beyond.boundary}>({places[axis]} + "
                f"{store.row[axis]}, int32(length{axis}), sides & {1 << 2 * axis} ? {low} : 0, "
                f"sides & {2 << 2 * axis} ? {high} : 0, copy{axis});"
            )
        found = " && ".join(f"shift{axis} != NOWHERE" for axis in axes)
        moved = " + ".join(f"int64(shift{axis}) * int64({store.pitches[axis]})" for axis in axes)
        function, results = store.call
        yield f"if ({found}) {function}({store.target} + ({moved}), {results});"
        yield "}"
    yield "}" * len(axes)
    yield "}"
