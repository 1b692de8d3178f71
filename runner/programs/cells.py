"""What a stage computes for each cell, and the arrays that it reads: of one grid, or between two levels.

A stage between levels reads arrays of finer and coarser grids than the one whose cells it computes. It
reads every array at cells in equal steps: of a coarser array, cells are computed in blocks of as many as lie
between two cells of that. The neighbours in a row are components of one cell, so that a kernel reads and
writes whole rows; each row of a block is a result of its own. What they read is read once for all of them.
Where a rank's cells begin or end within a block, the rows and the components that the rank has are computed
by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from meshrun.runner.compiler.trace.graph import Extents, Node, in_order
from meshrun.runner.compiler.whole.between.levels import (
    LatticeGraph,
    LevelGrid,
    Misaligned,
    Read,
    lattices,
    part_of,
    phases_of,
    whole_space,
)
from meshrun.runner.compiler.whole.graph import Definition, LoopResult, Reduction, WholeGraph, rebuilt
from meshrun.runner.compiler.whole.program import WholeInput, WholeOutput, WholeProgram
from meshrun.runner.compiler.whole.sizes import subgrid_of
from meshrun.runner.region import Shape


@dataclass(frozen=True, eq=False)
class StageCells:
    """Nodes that are computed for each cell of a box.

    program: of the arrays in `reads` alone, which it numbers from 0. reads: numbers of the program's arrays.
    values: numbers of the values that it reads. lattice: the positions of the cells, and of those of all
    arrays in `reads`; None: all.
    """

    program: WholeProgram
    reads: tuple[int, ...]
    values: tuple[int, ...]
    lattice: LevelGrid | None = None

    @cached_property
    def footprints(self) -> tuple[Extents, ...]:
        """How far from the own cell each array is read, per axis of space."""
        return tuple(self.program.footprint(number) for number in range(len(self.reads)))

    @cached_property
    def widths(self) -> Extents:
        """How far from the own cell any array is read, on either side: the own cells are within."""
        axes = range(len(self.program.space))
        return tuple(
            (
                max([0, *(one[axis][0] for one in self.footprints)]),
                max([0, *(one[axis][1] for one in self.footprints)]),
            )
            for axis in axes
        )

    def memory(self, number: int) -> Extents:
        """Return how wide the halo of an array must be in memory."""
        return self.widths if number in self.reads else ((0, 0),) * len(self.widths)

    def renumbered(self, places: Mapping[int, int]) -> StageCells:
        return replace(self, reads=tuple(places[number] for number in self.reads))


@dataclass(frozen=True, eq=False)
class LevelPart:
    """Some of the cells of a stage between levels.

    cells: what is computed, per cell of `lattice`. views: how each input is read. every, phases: which of the
    written arrays' cells these are, per axis; there are all results of the first phase, then of the next.
    components: cells of a row that are one cell here; their `every` is counted from the first one.
    """

    cells: StageCells
    lattice: LevelGrid
    views: tuple[Read, ...]
    every: Shape
    phases: tuple[Shape, ...]
    components: int

    @property
    def block(self) -> Shape:
        """How many cells of a written array, per axis, are one cell here."""
        last = len(self.every) - 1
        rows = [max(column) + 1 if len(self.phases) > 1 else 1 for column in zip(*self.phases, strict=True)]
        return (*rows[:last], self.components)


@dataclass(frozen=True, eq=False)
class LevelCells:
    """Cells of arrays of one lattice that are computed of arrays of others.

    program: what is computed, per position. blocks: all cells, in whole blocks. rows: the rows of blocks, one
    by one, if these have several. ends: the cells of rows, one by one, if they are components. reads, values:
    as of `StageCells`. footprints: how far from the own position each array is read, in cells of that array.
    """

    program: WholeProgram
    lattice: LevelGrid
    blocks: LevelPart
    rows: tuple[LevelPart, ...]
    ends: tuple[LevelPart, ...]
    reads: tuple[int, ...]
    footprints: tuple[Extents, ...]
    values: tuple[int, ...]

    @property
    def parts(self) -> tuple[LevelPart, ...]:
        """All parts."""
        return (self.blocks, *self.rows, *self.ends)

    def memory(self, number: int) -> Extents:
        """Return how wide the halo of an array must be in memory, for views of its block."""
        wide = [(0, 0)] * len(self.lattice.step)
        for part in self.parts:
            for view in part.views:
                if view.array == number:
                    for axis, ((low, high), n) in enumerate(zip(part.cells.widths, view.ratio, strict=True)):
                        before, after = wide[axis]
                        wide[axis] = max(before, n * (low + 1) + 1), max(after, n * (high + 2) + 1)
        return tuple(wide)

    def renumbered(self, places: Mapping[int, int]) -> LevelCells:
        def moved(part: LevelPart) -> LevelPart:
            views = tuple(replace(one, array=places[one.array]) for one in part.views)
            return replace(part, cells=part.cells.renumbered(places), views=views)

        reads = tuple(places[number] for number in self.reads)
        rows, ends = tuple(map(moved, self.rows)), tuple(map(moved, self.ends))
        return replace(self, blocks=moved(self.blocks), rows=rows, ends=ends, reads=reads)


def kernels_of(cells: StageCells | LevelCells) -> list[StageCells]:
    """Return what the kernels of a stage compute, one for each."""
    return [cells] if isinstance(cells, StageCells) else [one.cells for one in cells.parts]


def stage_cells(program: WholeProgram, results: Sequence[WholeOutput]) -> StageCells:
    """Return results as a program of the arrays that they read, all of which have all positions."""
    nodes = in_order(node for result in results for node in result.nodes)
    reads = tuple(sorted({node.input for node in nodes if node.op == "load"}))
    places = {number: place for place, number in enumerate(reads)}
    source = program.graph
    graph = WholeGraph([source.lengths[number] for number in reads], program.space)
    graph.points, graph.picked = source.points, source.picked
    for number, place in places.items():
        graph.wraps[place] = set(source.wraps[number])
    done: dict[Node, Node] = {}
    for node in nodes:
        if node.op == "load":
            done[node] = graph.load(places[node.input], node.dtype, node.offset, node.component)
        elif not node.operands:
            done[node] = graph.leaf(node)
        else:
            done[node] = rebuilt(graph, node, [done[one] for one in node.operands])
    outputs = tuple(replace(one, nodes=tuple(done[node] for node in one.nodes)) for one in results)
    inputs = tuple(_input(program, number) for number in reads)
    values = _values(in_order([*nodes, *graph.picked_nodes(nodes)]))
    return StageCells(WholeProgram(program.space, inputs, outputs, graph, {}), reads, values)


def level_cells(
    program: WholeProgram, results: Sequence[WholeOutput], lattice: LevelGrid, where: Mapping[int, LevelGrid]
) -> StageCells | LevelCells:
    """Return results at the positions of a lattice. Raises Misaligned.

    where: of arrays that have not all positions, the lattice.
    """
    nodes = [node for result in results for node in result.nodes]
    phases = phases_of(lattice, nodes, where)
    offsets: dict[int, list[Shape]] = {}
    rows = [(*row, 0) for row in product(*map(range, phases[:-1]))]
    parts = [_part(program, results, lattice, where, (phases, [row]), offsets) for row in rows]
    ends = [
        _part(program, results, lattice, where, (phases, [(*row[:-1], at)]), offsets, single=True)
        for row in rows
        for at in (range(phases[-1]) if phases[-1] > 1 else ())
    ]

    # All arrays have the cells of this lattice: it is a grid of its own.
    every = whole_space(len(program.space))
    if len(parts) == 1 and all(where.get(view.array, every) == lattice for view in parts[0].views):
        return replace(parts[0].cells, lattice=lattice)
    if len(parts) == 1:
        blocks, parts = parts[0], []
    else:
        blocks = _part(program, results, lattice, where, (phases, rows), offsets)

    reads = tuple(sorted(offsets))
    footprints = []
    for number in reads:
        steps = where.get(number, every).step
        columns = list(zip(*offsets[number], strict=True))
        footprints.append(
            tuple(
                (max(0, -(min(column) // step)), max(0, -(-max(column) // step)))
                for column, step in zip(columns, steps, strict=True)
            )
        )
    return LevelCells(
        replace(program, outputs=tuple(results), between={}, values={}),
        lattice, blocks, tuple(parts), tuple(ends), reads, tuple(footprints), _values(in_order(nodes)),
    )  # fmt: skip


def _part(
    program: WholeProgram,
    results: Sequence[WholeOutput],
    lattice: LevelGrid,
    where: Mapping[int, LevelGrid],
    chosen: tuple[Shape, Sequence[Shape]],
    offsets: dict[int, list[Shape]],
    *,
    single: bool = False,
) -> LevelPart:
    """Return one part of the cells of a lattice.

    chosen: the number of parts per axis, and which ones. offsets: of each array that is read, at which; more
    are added. single: whether cells have no components.
    """
    every, some = chosen
    components = 1 if single else every[-1]
    cells = part_of(lattice, every, some[0])
    space = cells.lengths(program.space)
    made = LatticeGraph(program, where, WholeGraph([], space), offsets=offsets)
    dimensions = len(space)
    outputs = []
    for phase, result in product(some, results):
        inner = result.shape[dimensions:] if result.shape else ()
        nodes: list[Node] = []
        for component in range(components):
            nodes += made.of(result.nodes, part_of(lattice, every, (*phase[:-1], phase[-1] + component)))
        shape = (*space, *((components,) if components > 1 else ()), *inner)
        outputs.append(WholeOutput(result.name, shape, result.dtype, tuple(nodes), ()))
    inputs = []
    for read in made.reads:
        one = _input(program, read.array)
        inner = one.shape[dimensions:]
        merged = (read.ratio[-1],) if read.ratio[-1] > 1 else ()
        inputs.append(WholeInput(one.name, (*space, *merged, *inner), one.dtype))
    made.graph.lengths = [space for _ in inputs]
    made.graph.wraps = [set(program.graph.wraps[read.array]) for read in made.reads]
    values = _values(in_order(node for output in outputs for node in output.nodes))
    whole = WholeProgram(space, tuple(inputs), tuple(outputs), made.graph, {})
    stage = StageCells(whole, tuple(read.array for read in made.reads), values)
    return LevelPart(stage, cells, tuple(made.reads), every, tuple(some), components)


def with_levels(program: WholeProgram) -> tuple[WholeProgram, dict[int, LevelGrid]]:
    """Return the lattice of each array that has not all positions, and the program. Raises Misaligned.

    Reductions of cells of such arrays are reductions of further arrays, of their cells.
    """
    # What series read decides nothing.
    series, program = program.series, replace(program, series=())
    program, where = _with_levels(program)
    return replace(program, series=series), where


def packed_levels(program: WholeProgram) -> dict[int, LevelGrid]:
    """Return the lattice of each input that has no other cells in memory than its own."""
    inputs, zero = enumerate(program.inputs), (0,) * len(program.space)
    every = {number: subgrid_of(one.shape, program.space).every for number, one in inputs if one.packed}
    return {number: LevelGrid(zero, steps) for number, steps in every.items()}


def _with_levels(program: WholeProgram) -> tuple[WholeProgram, dict[int, LevelGrid]]:
    inputs = packed_levels(program)
    if not (program.has_strides and program.has_levels) and not program.has_packed:
        return program, {}
    if any(node.op in ("point", "pick") for node in program.nodes):
        raise Misaligned("the function writes to points", _line_using(program, ("point", "pick")))
    where = _coarse(lattices(program).grids) | inputs
    if not where and not program.has_packed:
        return program, {}
    graph, written, values = program.graph, program.written, dict[int, Definition](program.values)
    reduced = []
    for number, one in program.values.items():
        if isinstance(one, Reduction) and _reads_some(one.nodes, where) and 0 not in one.length:
            (node,) = one.nodes
            if node.op == "load" and not any(node.offset):
                continue
            array = graph.new_array(program.space)
            written[array] = node
            reduced.append(array)
            load = graph.load(array, node.dtype, (0,) * len(program.space))
            values[number] = replace(one, nodes=(load,))
    for along in program.reduced.values():
        if _reads_some(along.nodes, where):
            raise Misaligned("a coarse grid is reduced along some axes", along.line)
    of_program = dict[int, Node | Reduction | LoopResult](program.between)
    program = replace(program, between=of_program | written, values=values)
    return program, _coarse(lattices(program, reduced).grids) | inputs


def _line_using(program: WholeProgram, leaves: Sequence[str]) -> int:
    """Return the line of the first operation on one of some leaves; 0 if unknown."""
    users = (node for node in program.nodes if any(one.op in leaves for one in node.operands))
    return next((node.line for node in users if node.line), 0)


def _coarse(found: Mapping[int, LevelGrid]) -> dict[int, LevelGrid]:
    return {number: one for number, one in found.items() if not one.is_space}


def _reads_some(nodes: Sequence[Node], where: Mapping[int, Any]) -> bool:
    return any(node.op == "load" and node.input in where for node in in_order(nodes))


def _values(nodes: Sequence[Node]) -> tuple[int, ...]:
    return tuple(sorted({node.value for node in nodes if node.op == "scalar"}))


def _input(program: WholeProgram, number: int) -> WholeInput:
    if number < len(program.inputs):
        return program.inputs[number]
    return WholeInput(f"array{number}", program.space, program.dtype_between(number))
