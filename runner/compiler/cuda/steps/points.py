"""Cells near points, in kernels of several steps over two axes: computed after the other cells of their row.

A warp knows of each row of its tile whether one of its cells is near a point: whether a write to points
changes it, or a series has a value of it. Only then does it compute the row's values with the conditions on
points, in each of the steps, also in the rows and columns that it computes for its own cells alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from meshrun.runner.compiler.cuda.steps.layout import Axis, Layout, NotFusable, StepKernel, first_column
from meshrun.runner.compiler.operations import ctype
from meshrun.runner.compiler.trace.graph import Node, Offset, in_order
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.compiler.whole.point_code import PointSet
from meshrun.runner.region import Array, HostArray, Shape, address_of

LIST_LEAVES = ("cell", "point", "pick")  # leaves of which each of a lane's columns has a value of its own
MOST_LISTS = 48  # lists of points that a row is compared with
MOST_OPERATIONS = 3  # for a cell near points, over those of other cells; `FEW_OPERATIONS` are always few
FEW_OPERATIONS = 64
POINT_ROWS = 40  # rows of which one word says whether they have cells near points
MOST_PLACES = 1 << (64 - POINT_ROWS)  # rows of tiles with such cells
NEAREST_TILES = 3  # at most, that have the same column


@dataclass(frozen=True)
class PointTables:
    """Which cells of one launch are near points.

    near: a word per tile and row: bit n says whether a cell of the row n further down is near a point; the
    bits from `POINT_ROWS` on, the place of the first such row in `cells`. cells: for each such row, and each
    list, the number of the point that each column of the tile has, from 1 on; 0: none. first: row of a tile's
    first word. rows: words of a tile.
    """

    near: Array
    cells: Array
    first: int
    rows: int


@dataclass(frozen=True)
class OwnPoints:
    """The points of a series that a rank owns.

    positions: in the whole array, (points, 2), each once. columns: of each, its column in a row of the
    series. of_each: for all columns of a row, the column of the point at the same place.
    """

    positions: HostArray
    columns: HostArray
    of_each: HostArray


@dataclass(frozen=True)
class SeriesTarget:
    """Where a launch writes rows of series.

    rows: of each series, an array of (rows, components, own points). before: an integer on the device, how
    many rows there were when the launch, or the graph that holds it, began; more: of that graph's launches
    before this one.
    """

    rows: Sequence[Array]
    before: Array
    more: int


@dataclass(eq=False)
class StepPoints:
    """What kernels of several steps compute beside their program. Raises NotFusable for what they cannot.

    writes: cells whose values are written over the program's. series: cells whose values are recorded.
    """

    layout: Layout
    writes: Sequence[PointSet]
    series: Sequence[PointSet] = ()
    lists: dict[tuple[int, Offset], int] = field(default_factory=dict, init=False)
    picked: dict[int, int] = field(default_factory=dict, init=False)  # values of lists: number of an argument

    def __post_init__(self) -> None:
        layout, program = self.layout, self.layout.program
        if program.axes != 2:
            raise NotFusable(f"has points, and {program.axes} instead of 2 axes")
        if not isinstance(program.graph, WholeGraph):
            raise NotFusable("has points and complex numbers")
        if any(layout.repeats) or any(map(any, layout.filled)):
            raise NotFusable("has series beside ends that are copies of other cells")
        if any(one.late or one.kept for one in layout.ends):
            raise NotFusable("has points, and cells near the array's ends that read further than others")
        for one, nodes in zip(self.series, self._recorded, strict=True):
            repeated = len(np.unique(one.cells.positions, axis=0)) < len(one.cells.positions)
            if repeated and any(node.op == "pick" and node.value[-1] is None for node in in_order(nodes)):
                raise NotFusable("has a series with a value for each point, of which some are the same")
        for node in in_order(node for nodes in (*self._written, *self._recorded) for node in nodes):
            if node.op == "load" and any(
                abs(at) > reach for at, reach in zip(node.offset, layout.radius, strict=True)
            ):
                raise NotFusable("reads further at points than elsewhere")
            if node.op in ("point", "pick"):
                self.lists.setdefault(self._key(node), len(self.lists))
            if node.op == "pick":
                self.picked.setdefault(node.value[1], len(self.picked))
        if self.count > MOST_LISTS:
            raise NotFusable(f"compares cells with {self.count} lists of points")
        if self.operations > max(FEW_OPERATIONS, MOST_OPERATIONS * layout.interior.operations):
            raise NotFusable(f"has {self.operations} operations for a cell near points")

    @property
    def graph(self) -> WholeGraph:
        assert isinstance(self.layout.program.graph, WholeGraph)
        return self.layout.program.graph

    @property
    def count(self) -> int:
        """Number of lists: of conditions, and of the points of each series."""
        return len(self.lists) + len(self.series)

    @property
    def operations(self) -> int:
        """Operations for a cell near points, beside those for every cell."""
        nodes = in_order(node for each in (*self._written, *self._recorded) for node in each)
        return sum(bool(node.operands) for node in nodes)

    @cached_property
    def _nodes(self) -> list[list[Node]]:
        """The values of each set, of those that are written before those of series.

        What the program has computed of a cell is a leaf, "cell", whose value is the number of the plane.
        """
        program = self.layout.program
        sets = [*self.writes, *self.series]
        dense = [node for result in program.results for node in result]
        planes = [
            self.layout.state.index((place, component))
            for place, result in zip(self.layout.feeds, program.results, strict=True)
            for component in range(len(result))
        ]
        # All at once, so that equal values stay the same node.
        every = self.graph.with_constant_picks([*dense, *(node for one in sets for node in one.cells.nodes)])
        made = {
            node: Node("cell", node.dtype, value=plane)
            for node, plane in zip(every, planes, strict=False)
            if node.operands
        }
        for node in in_order(every[len(dense) :], made):
            operands = [made[one] for one in node.operands]
            alike = all(a is b for a, b in zip(operands, node.operands, strict=True))
            made[node] = node if alike else self.graph.operation(node.op, node.dtype, operands, node.line)
        values = iter(every[len(dense) :])
        return [[made[next(values)] for _ in one.cells.nodes] for one in sets]

    @property
    def _written(self) -> list[list[Node]]:
        return self._nodes[: len(self.writes)]

    @property
    def _recorded(self) -> list[list[Node]]:
        return self._nodes[len(self.writes) :]

    def _key(self, node: Node) -> tuple[int, Offset]:
        """Return the list of points of a leaf, and how far from its points the cells are."""
        points, *_, shift = node.value
        return points, (0, 0) if shift is None else shift

    # The text

    def written(self) -> list[tuple[int, Node]]:
        """Return the number of each plane that is written to at points, and its value."""
        found = []
        for one, nodes in zip(self.writes, self._written, strict=True):
            assert one.output is not None
            place = self.layout.feeds[one.output]
            found += [(self.layout.state.index((place, n)), node) for n, node in enumerate(nodes)]
        return found

    def recorded(self) -> list[tuple[int, int, Node]]:
        """Return of each value of a series: the number of the series, the component, and the value."""
        return [
            (number, component, node)
            for number, nodes in enumerate(self._recorded)
            for component, node in enumerate(nodes)
        ]

    def expression(self, node: Node, tile: int) -> str:
        """Return the C++ of a leaf of `LIST_LEAVES`. tile: columns of a tile."""
        (column,) = node.offset
        if node.op == "cell":
            return f"out.w{node.value}[{column}]"
        number = self.number(self.lists[self._key(node)], column, tile)
        if node.op == "point":
            return f"{number} != 0"
        return f"at.all.picked{self.picked[node.value[1]]}[most({number}, 1) - 1]"

    def number(self, which: int, column: int, tile: int) -> str:
        """Return the C++ of the number of the point that a lane's column has in a list."""
        return f"cells[{which * tile + column}]"

    def fields(self) -> list[tuple[str, str]]:
        """Return the kernel's arguments, C++ types and names, in the order of `values`."""
        found = [("const uint64*", "near_points"), ("int64", "near_first"), ("int64", "near_rows")]
        found.append(("const int*", "point_cells"))
        found += [
            (f"const {ctype(one.dtype)}*", f"picked{at}") for at, one in enumerate(self.tables_of_values())
        ]
        for number, one in enumerate(self.series):
            kind = ctype(one.cells.nodes[0].dtype)
            found += [(f"{kind}*", f"series{number}"), ("int64", f"series_points{number}")]
        return found + ([("const int64*", "rows_before"), ("int64", "rows_more")] if self.series else [])

    # What a launch reads

    def tables_of_values(self) -> list[HostArray]:
        """Return what lists have for each point, in the order of the arguments."""
        return [np.asarray(self.graph.picked[number]) for number in self.picked]

    def values(
        self, tables: PointTables, picked: Sequence[Array], recording: SeriesTarget | None = None
    ) -> list[int]:
        """Return the kernel's arguments. picked: `tables_of_values`, on the device."""
        values = [address_of(tables.near), tables.first, tables.rows, address_of(tables.cells)]
        values += map(address_of, picked)
        if recording is not None:
            for one in recording.rows:
                values += [address_of(one), one.shape[-1]]
            values += [address_of(recording.before), recording.more]
        return values

    def tables(self, kernel: StepKernel, axes: Sequence[Axis], own: Sequence[OwnPoints]) -> PointTables:
        """Return which cells are near points, for a launch on these axes. own: of each series."""
        y, x = axes
        reach = kernel.steps * kernel.radius[0]
        first, rows = -2 * reach, y.own + 3 * reach + 2 * kernel.radius[0] + POINT_ROWS
        columns = np.array([first_column(kernel, x, tile) for tile in range(-(-x.own // kernel.valid))])
        width = kernel.valid + 2 * kernel.margin

        # Row, column and number of each cell of each list, in places of this launch.
        found: list[tuple[HostArray, HostArray, HostArray]] = []
        for (points, shift), _ in self.lists.items():
            positions = self.graph.points[points]
            _, last = np.unique(positions[::-1], axis=0, return_index=True)  # of repeated points, the last
            numbers = len(positions) - 1 - last
            at = (positions[numbers] - np.array(shift)) % np.array(self.graph.space)
            where, kept = _images(at, axes, (first, columns[0]), (rows, columns[-1] + width - columns[0]))
            if not kernel.wraps:
                where, kept = at - np.array([y.start, x.start]), np.arange(len(at))
            found.append((*where.T, numbers[kept] + 1))
        for one in own:
            at = one.positions - np.array([y.start, x.start])
            mine = ((at >= 0) & (at < np.array([y.own, x.own]))).all(1)
            found.append((*at[mine].T, one.columns[mine] + 1))

        # The rows of tiles that have such cells.
        keys, places = [], []
        for row, column, number in found:
            nearest = np.searchsorted(columns, column, "right") - 1
            for back in range(NEAREST_TILES):
                tile = nearest - back
                inside = (tile >= 0) & (row >= first) & (row < first + rows)
                inside &= column < columns[np.maximum(tile, 0)] + width
                keys.append(tile[inside] * rows + row[inside] - first)
                places.append((column[inside] - columns[tile[inside]], number[inside]))
        near, which = np.unique(np.concatenate(keys), return_inverse=True)
        if len(near) >= MOST_PLACES:
            raise NotFusable(f"has {len(near)} rows of tiles near points")
        cells = np.zeros((max(len(near), 1), self.count, width), np.int32)
        starts = np.cumsum([0, *map(len, keys)])
        for turn, (column, number) in enumerate(places):
            cells[which[starts[turn] : starts[turn + 1]], turn // NEAREST_TILES, column] = number

        # Of each row, which of those from it on are near.
        words = np.searchsorted(near, np.arange(len(columns) * rows)).astype(np.uint64)
        words <<= np.uint64(POINT_ROWS)
        for bit in range(POINT_ROWS):
            above = near[near % rows >= bit] - bit
            words[above] |= np.uint64(1 << bit)
        return PointTables(words, cells, first, rows)


def _images(
    positions: HostArray, axes: Sequence[Axis], first: Sequence[int], lengths: Sequence[int]
) -> tuple[HostArray, HostArray]:
    """Return places of positions of an array that wraps around, from `first` on, and which each is."""
    where, kept = positions, np.arange(len(positions))
    for axis, (one, low, length) in enumerate(zip(axes, first, lengths, strict=True)):
        # The first place of each, and as many more as there are within.
        place = low + (where[:, axis] - one.start - low) % one.length
        turns = np.arange(-(-length // one.length))
        every = (place[:, None] + turns * one.length).ravel()
        where, kept = np.repeat(where, len(turns), 0), np.repeat(kept, len(turns))
        where[:, axis] = every
        inside = every < low + length
        where, kept = where[inside], kept[inside]
    return where, kept


def own_points(sets: Iterable[PointSet], first: Shape, last: Shape) -> list[OwnPoints]:
    """Return the points of series within a box; of points at one place, the last has the column."""
    found = []
    for one in sets:
        _, here = one.cells.owned(first, last)
        places, latest, which = np.unique(here[::-1], axis=0, return_index=True, return_inverse=True)
        columns = len(here) - 1 - latest
        found.append(OwnPoints(places, columns, columns[which.reshape(-1)[::-1]]))
    return found
