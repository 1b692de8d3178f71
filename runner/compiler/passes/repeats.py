"""Find axes along which a function of whole arrays has ends that meet, written by hand.

`u[0] = u[-2]; u[-1] = u[1]` makes the last two cells of an axis copies of its first two. From then on, all
cells are computed like those between the ends, if the array is read around its ends with a period that is
two cells shorter than the axis. Kernels of several steps compute it so: without conditions, and without
reading further than other cells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from meshrun.runner.compiler.passes.ends import ends_of, specialised
from meshrun.runner.compiler.trace.graph import PLACES, Graph, Node, Program, in_order
from meshrun.runner.region import Shape

MOST_ENDS = 8  # cells at both ends of an axis that may repeat others
LEAVES = ("load", "constant", "scalar", *PLACES)

Results = tuple[tuple[Node, ...], ...]
Box = tuple[Shape, Shape]  # first place, and the one after the last, per axis


@dataclass(frozen=True)
class Repeats:
    """A program whose ends are computed like the cells between them.

    program: of all cells, which may be read around the ends. cells: per axis, how many of the last cells are
    equal to the first ones, so that the period is shorter. first_steps: steps of the function as it is, after
    which these cells are equal.
    """

    program: Program
    cells: tuple[int, ...]
    first_steps: int = 0


def repeats_of(program: Program, feeds: Sequence[int]) -> Repeats:
    """Return the program without the conditions of ends that meet.

    Parameters
    ----------
    program: of a function whose outputs feed inputs.
    feeds: of each output, the number of the input.
    """
    cells, steps = [0] * program.axes, 0
    for axis in range(program.axes):
        found = _along(program, feeds, axis)
        if found is not None:
            program, cells[axis], more = found
            steps += more
    return Repeats(program, tuple(cells), steps)


def _along(program: Program, feeds: Sequence[int], axis: int) -> tuple[Program, int, int] | None:
    """Return the program without conditions along an axis, the repeated cells and the first steps."""
    before, after = ends_of(program)[axis]
    if not 0 < before + after <= MOST_ENDS or any(
        not node.operands and node.op not in LEAVES for node in program.nodes
    ):
        return None
    length = program.lengths[axis]
    at_ends = [*range(before), *range(length - after, length)]
    boxes = list(_boxes_beside(program, axis))

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
    offsets = [node.offset[axis] for node in between.loads]
    low, high = max(0, *(-at for at in offsets), 0), max(0, *offsets, 0)

    for repeated in range(before + after, -1, -1):
        within = repeated == 0 or (low <= before and high <= after and fed_alone)
        if not within or length - repeated - max(low, high) <= length // 2 + 1:
            continue
        ends = _Ends(program, between, feeds, axis, length - repeated, boxes)
        steps = ends.first_steps() if ends.are_like_between(at_ends) else None
        if steps is not None:
            plain = between if between.has_places else replace(between, lengths=())
            return plain, repeated, steps
    return None


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
class _Ends:
    """The ends of one axis, which are compared with other cells of the axis.

    between: the program of the cells between the ends. period: of the axis. boxes: of cells that differ along
    the other axes.
    """

    program: Program
    between: Program
    feeds: Sequence[int]
    axis: int
    period: int
    boxes: Sequence[Box]

    def __post_init__(self) -> None:
        self._graph = Graph()

    def are_like_between(self, positions: Sequence[int]) -> bool:
        """Return whether cells are computed like those between, where all fields have the period."""
        return all(
            self._in_place(_at(self.program, box, self.axis, at), at, self.feeds)
            == self._in_place(_at(self.between, box, self.axis, at), at, self.feeds, self.period)
            for box in self.boxes
            for at in positions
        )

    def first_steps(self) -> int | None:
        """Return the steps after which all fields have the period, whatever they are; None if never."""
        length, steps = self.program.lengths[self.axis], 0
        repeated, periodic = range(self.period, length), set[int]()
        while repeated and periodic != set(self.feeds):
            found = set(self.feeds)
            for box, at in product(self.boxes, repeated):
                one, other = (
                    self._in_place(_at(self.program, box, self.axis, here), here, periodic)
                    for here in (at, at - self.period)
                )
                found -= {feed for feed, a, b in zip(self.feeds, one, other, strict=True) if a != b}
            if found <= periodic:
                return None
            periodic, steps = found, steps + 1
        return steps

    def _in_place(
        self, results: Results, position: int, periodic: Collection[int], turn: int = 0
    ) -> Results:
        """Return results of the cells at a position of the axis, in which loads have places of the array
        along it: of `periodic` inputs, within the first period. turn: cells after which the array is read
        from its begin again; 0: all."""
        done, turn = dict[Node, Node](), turn or self.program.lengths[self.axis]
        for node in in_order(node for nodes in results for node in nodes):
            if node.op == "load":
                offset = list(node.offset)
                offset[self.axis] = (offset[self.axis] + position) % turn
                if node.input in periodic:
                    offset[self.axis] %= self.period
                done[node] = self._graph.load(node.input, node.dtype, tuple(offset), node.component)
            elif node.op == "place" and node.value[0] == self.axis:
                done[node] = self._graph.constant(node.value[1] + position, node.dtype)
            elif not node.operands:
                done[node] = self._graph.leaf(node)
            else:
                operands = [done[operand] for operand in node.operands]
                done[node] = self._graph.operation(node.op, node.dtype, operands, node.line)
        return tuple(tuple(done[node] for node in nodes) for nodes in results)
