"""Find ends of a function of whole arrays whose cells are copies of others: kernels of several steps need not
compute them by conditions, nor read further for them.

`u[0] = u[-2]; u[-1] = u[1]` makes the last two cells of an axis repeat its first two. From then on, all cells
are computed like those between the ends, if the array is read around its ends with a period that is two cells
shorter than the axis.

`u[0] = u[1]` fills an end with the cell beside it. From then on, it is a cell beyond an array that is one
cell shorter, whose boundary is the nearest cell.

Both hold for what follows a first step, whatever is in the array before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from meshrun.runner.compiler.passes.ends import ends_of, specialised
from meshrun.runner.compiler.trace.graph import PLACES, Extents, Graph, Node, Program, in_order
from meshrun.runner.region import Shape

MOST_ENDS = 8  # cells at both ends of an axis that may be copies
LEAVES = ("load", "constant", "scalar", *PLACES)

Results = tuple[tuple[Node, ...], ...]
Box = tuple[Shape, Shape]  # first place, and the one after the last, per axis


@dataclass(frozen=True)
class CopiedEnds:
    """A program without the conditions of ends that are copies.

    program: of the other cells. repeats: per axis, how many of the last cells are equal to the first ones.
    filled: per axis, how many cells at each end are equal to the one beside them. first_steps: steps of the
    function as it is, after which these cells are equal.
    """

    program: Program
    repeats: tuple[int, ...]
    filled: Extents
    first_steps: int = 0


def copied_ends_of(program: Program, feeds: Sequence[int]) -> CopiedEnds:
    """Return the ends that are copies, and the program of the other cells.

    Ends that are filled are looked for over three axes, if no cell is read around an end or beyond it.

    Parameters
    ----------
    program: of a function whose outputs feed inputs.
    feeds: of each output, the number of the input.
    """
    repeats, filled, steps = [0] * program.axes, [(0, 0)] * program.axes, [0]
    first, last = [0] * program.axes, list(program.lengths)
    known = all(node.operands or node.op in LEAVES for node in program.nodes)
    ends = ends_of(program) if known and program.has_places else ()

    # Ends that meet.
    for axis, (before, after) in enumerate(ends):
        meeting = _repeats_along(program, feeds, axis) if 0 < before + after <= MOST_ENDS else None
        if meeting is not None:
            repeats[axis], more = meeting
            first[axis], last[axis] = before, program.lengths[axis] - after
            steps.append(more)

    # Ends that are filled.
    within = program.axes == 3 and len(steps) == 1 and _reads_within(program, ends)
    for axis, (before, after) in enumerate(ends if within else ()):
        copies = _filled_along(program, feeds, axis) if 0 < before + after <= MOST_ENDS else None
        if copies is not None:
            filled[axis], more = copies
            low, high = filled[axis]
            first[axis], last[axis] = low, program.lengths[axis] - high
            steps.append(more)

    if len(steps) > 1:
        results = specialised(program.graph, program.results, tuple(first), tuple(last))
        program = replace(program, results=results)
        program = program if program.has_places else replace(program, lengths=())
    return CopiedEnds(program, tuple(repeats), tuple(filled), max(steps))


def _repeats_along(program: Program, feeds: Sequence[int], axis: int) -> tuple[int, int] | None:
    """Return how many cells of an axis repeat others, and after how many steps; None: ends do not meet."""
    (before, after), length = ends_of(program)[axis], program.lengths[axis]
    boxes, at_ends = list(_boxes_beside(program, axis)), [*range(before), *range(length - after, length)]

    # Most ends read no cell around them.
    reads = [
        position + node.offset[axis]
        for position in at_ends
        for node in replace(program, results=_at(program, boxes[0], axis, position)).loads
    ]
    if all(0 <= read < length for read in reads):
        return None

    # The program of the cells between the ends, which no condition along the axis may be left in.
    first, last = [0] * program.axes, list(program.lengths)
    first[axis], last[axis] = before, length - after
    between = replace(program, results=specialised(program.graph, program.results, tuple(first), tuple(last)))
    if any(node.op in PLACES and node.value[0] == axis for node in between.nodes):
        return None
    fed_alone = all(node.input in feeds for node in program.loads)
    low, high = _reach(between, axis)

    for repeated in range(before + after, -1, -1):
        within = repeated == 0 or (low <= before and high <= after and fed_alone)
        period = length - repeated
        if not within or period - max(low, high) <= length // 2 + 1:
            continue
        cells = _Cells(program, feeds, axis, boxes, period)
        if cells.are_alike(between, at_ends):
            steps = cells.first_steps([(at, at - period) for at in range(period, length)])
            if steps is not None:
                return repeated, steps
    return None


def _filled_along(program: Program, feeds: Sequence[int], axis: int) -> tuple[tuple[int, int], int] | None:
    """Return how many cells at each end of an axis are filled, and after how many steps; None: none are."""
    (before, after), length = ends_of(program)[axis], program.lengths[axis]
    boxes, low, high, most = list(_boxes_beside(program, axis)), 0, 0, 0
    first, last = [0] * program.axes, list(program.lengths)
    first[axis], last[axis] = before, length - after
    between = replace(program, results=specialised(program.graph, program.results, tuple(first), tuple(last)))
    if any(node.offset[axis] for node in between.loads if node.input not in feeds):
        return None  # what is not computed has values of its own at the ends
    reach = max(_reach(between, axis))
    for cells in range(min(before, reach), 0, -1):
        steps = _Cells(program, feeds, axis, boxes, low=cells).first_steps(
            [(at, cells) for at in range(cells)]
        )
        if steps is not None:
            low, most = cells, max(most, steps)
            break
    for cells in range(min(after, reach), 0, -1):
        source = length - 1 - cells
        pairs = [(at, source) for at in range(source + 1, length)]
        steps = _Cells(program, feeds, axis, boxes, high=cells).first_steps(pairs)
        if steps is not None:
            high, most = cells, max(most, steps)
            break
    return ((low, high), most) if low + high else None


def _reach(program: Program, axis: int) -> tuple[int, int]:
    """Return how many cells before and after the own one a program reads along an axis."""
    offsets = [node.offset[axis] for node in program.loads]
    return max((-at for at in offsets), default=0), max(offsets, default=0)


def _reads_within(program: Program, ends: Extents) -> bool:
    """Return whether no cell reads one beyond the array, or around its ends."""
    for axis, (before, after) in enumerate(ends):
        length, first, last = program.lengths[axis], [0] * program.axes, list(program.lengths)
        parts = [(before, length - after), *((at, at + 1) for at in range(before))]
        for low, high in (*parts, *((at, at + 1) for at in range(length - after, length))):
            first[axis], last[axis] = low, high
            results = specialised(program.graph, program.results, tuple(first), tuple(last))
            down, up = _reach(replace(program, results=results), axis)
            if down > low or high + up > length:
                return False
    return True


def _boxes_beside(program: Program, axis: int) -> Iterator[Box]:
    """Yield boxes that differ along the other axes: between the ends first, then each cell at an end."""
    ranges = []
    for other, (before, after) in enumerate(ends_of(program)):
        length = program.lengths[other]
        ranges.append([(before, length - after)])
        if other != axis:
            ranges[-1] += [(at, at + 1) for at in (*range(before), *range(length - after, length))]
    for box in product(*ranges):
        yield tuple(a for a, _ in box), tuple(b for _, b in box)


def _at(program: Program, box: Box, axis: int, position: int) -> Results:
    """Return the results of a box at one position of an axis."""
    first, last = list(box[0]), list(box[1])
    first[axis], last[axis] = position, position + 1
    return specialised(program.graph, program.results, tuple(first), tuple(last))


@dataclass
class _Cells:
    """Compares cells of one axis.

    boxes: of cells that differ along the other axes. period: of an axis whose ends meet. low, high: cells at
    each end that are filled.
    """

    program: Program
    feeds: Sequence[int]
    axis: int
    boxes: Sequence[Box]
    period: int = 0
    low: int = 0
    high: int = 0
    _graph: Graph = field(default_factory=Graph)

    def are_alike(self, between: Program, positions: Sequence[int]) -> bool:
        """Return whether a program computes these cells, too, where all fields have the period and it is read
        with that."""
        return all(
            self._in_place(_at(self.program, box, self.axis, at), at, self.feeds)
            == self._in_place(_at(between, box, self.axis, at), at, self.feeds, self.period)
            for box in self.boxes
            for at in positions
        )

    def first_steps(self, pairs: Sequence[tuple[int, int]]) -> int | None:
        """Return the steps after which pairs of cells are equal, whatever is in the fields; None if never."""
        equal, steps = set[int](), 0
        while pairs and equal != set(self.feeds):
            found = set(self.feeds)
            for box, pair in product(self.boxes, pairs):
                one, other = (self._in_place(_at(self.program, box, self.axis, at), at, equal) for at in pair)
                found -= {feed for feed, a, b in zip(self.feeds, one, other, strict=True) if a != b}
                if found <= equal:
                    return None
            equal, steps = found, steps + 1
        return steps

    def _in_place(self, results: Results, position: int, equal: Collection[int], turn: int = 0) -> Results:
        """Return results of the cells at a position of the axis, in which loads have places of the array
        along it: of inputs whose pairs are `equal`, the same place for both. turn: cells after which the
        array is read from its begin again; 0: all."""
        done, length = dict[Node, Node](), self.program.lengths[self.axis]
        for node in in_order(node for nodes in results for node in nodes):
            if node.op == "load":
                offset = list(node.offset)
                place = (offset[self.axis] + position) % (turn or length)
                if node.input in equal:
                    place = place % self.period if self.period else place
                    place = min(max(place, self.low), length - 1 - self.high)
                offset[self.axis] = place
                done[node] = self._graph.load(node.input, node.dtype, tuple(offset), node.component)
            elif node.op == "place" and node.value[0] == self.axis:
                done[node] = self._graph.constant(node.value[1] + position, node.dtype)
            elif not node.operands:
                done[node] = self._graph.leaf(node)
            else:
                operands = [done[operand] for operand in node.operands]
                done[node] = self._graph.operation(node.op, node.dtype, operands, node.line)
        return tuple(tuple(done[node] for node in nodes) for nodes in results)
