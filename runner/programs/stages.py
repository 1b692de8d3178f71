"""The stages of a program, in order: planned once for the shapes of its arrays.

    KernelStage     computes cells of arrays from cells of others, at some distances, and from values
    ReductionStage  combines the cells of a box, to a value or to an array with fewer axes
    ValueStage      computes values from values
    LoopStage       runs a program of its own, its body, over and over

A stage reads what stages before it have written, never what it writes itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Extents, Node, in_order
from meshrun.runner.compiler.whole.between.levels import LevelGrid, Misaligned, whole_space, with_nearest
from meshrun.runner.compiler.whole.between.recorded_loop import Loop
from meshrun.runner.compiler.whole.graph import Cut, InputValue, LoopResult, Reduction, ValueCheck, rebuilt
from meshrun.runner.compiler.whole.program import WholeOutput, WholeProgram, WholeSeries
from meshrun.runner.compiler.whole.sizes import subgrid_of
from meshrun.runner.programs.cells import LevelCells, StageCells, level_cells, stage_cells, with_levels
from meshrun.runner.region import HostArray, Shape, real_dtype

NO_WIDTH = (0, 0)
SIGNS = {
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
}


@dataclass(frozen=True, eq=False)
class KernelStage:
    """Compute cells of arrays. writes: numbers of arrays, or of outputs where `of_output`, per result."""

    cells: StageCells | LevelCells
    writes: tuple[ArrayPlace, ...]


@dataclass(frozen=True)
class ArrayPlace:
    """An array of the program, or an output. number: of it."""

    number: int
    of_output: bool = False


@dataclass(frozen=True, eq=False)
class ReductionStage:
    """Reduce cells. cells: what is combined. value, array: number of the result; one of them is None."""

    reduction: Reduction
    cells: StageCells
    value: int | None = None
    array: int | None = None


@dataclass(frozen=True, eq=False)
class ValueStage:
    """Compute values from values. nodes: of each, by its number, in order."""

    nodes: tuple[tuple[int, Node], ...]


@dataclass(frozen=True)
class LoopComparison:
    """A comparison of numbers in the condition of a loop.

    sign: ">" and so on. sides: left and right; of each, the number of a value, or a constant's text.
    """

    sign: str
    sides: tuple[int | str, int | str]


@dataclass(frozen=True, eq=False)
class LoopStage:
    """Run a body until its condition is false, or for each item of a range.

    loop: what is known of it beside the numbers below. arrays: of the program, that the body's inputs are at
    first; None for values. values: of the body's values, which value of the program each is at first; firsts:
    the same by the body's input, and the part of a complex number. writes: outputs of the body, and the
    arrays of the program that they become; results: outputs, the values, and the part of a complex number.
    first: the value that tells whether there is an iteration. compared: what the condition of another
    iteration compares, of the body's values; compared_at_first: that of the first one, of the program's.
    """

    loop: Loop
    body: StagedProgram
    arrays: tuple[int | None, ...]
    values: tuple[tuple[int, int], ...]
    firsts: Mapping[tuple[int, str], int]
    writes: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, int, str], ...]
    first: int | None
    compared: tuple[LoopComparison, ...] = ()
    compared_at_first: tuple[LoopComparison, ...] = ()


Stage = KernelStage | ReductionStage | ValueStage | LoopStage


@dataclass(frozen=True, eq=False)
class SeriesCells:
    """Cells at points, of a series: what is computed of them after all stages.

    positions: (points, axes of space).
    """

    cells: StageCells
    positions: HostArray


@dataclass(frozen=True, eq=False)
class NumberResults:
    """The results of a program that are no fields.

    values: of each output of shape (), its value, or those of its real and its imaginary part. series: the
    cells of each series; None of one that is a value.
    """

    values: dict[int, tuple[int, ...]]
    series: tuple[SeriesCells | None, ...]


@dataclass(frozen=True)
class CutReasons:
    """Why stages are cut as they are.

    cuts: why arrays are written, or are not. misaligned: why coarse grids have cells at all positions, if
    they do.
    """

    cuts: tuple[Cut, ...]
    misaligned: Misaligned | None


@dataclass(frozen=True, eq=False)
class ProgramArray:
    """An array of a program.

    shape: of its cells. widths: of its halo in memory, per axis of space; read: of the part that some stage
    reads. wraps: whether it is read around its ends. lattice: the positions of its cells; None: all. becomes:
    the input whose cells it is in the next step, if any.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    widths: Extents
    read: Extents
    wraps: bool
    lattice: LevelGrid | None = None
    becomes: int | None = None


@dataclass(frozen=True, eq=False)
class StagedProgram:
    """A function of whole arrays in stages.

    space: lengths of the axes that are split. arrays: the function's inputs first; an input of shape () is a
    value. outputs: the function's. dtypes: of the values, the slots of the step's tape first. inputs: the
    values that are inputs. numbers: the results that are no fields. reasons: of how the stages are cut.
    """

    space: Shape
    arrays: tuple[ProgramArray, ...]
    outputs: tuple[WholeOutput, ...]
    stages: tuple[Stage, ...]
    dtypes: dict[int, np.dtype[Any]]
    inputs: dict[int, InputValue]
    numbers: NumberResults
    checks: tuple[ValueCheck, ...]
    reasons: CutReasons
    function_inputs: int

    @property
    def kernels(self) -> list[KernelStage]:
        return [stage for stage in self.stages if isinstance(stage, KernelStage)]

    @property
    def loops(self) -> list[LoopStage]:
        return [stage for stage in self.stages if isinstance(stage, LoopStage)]

    @property
    def reductions(self) -> list[ReductionStage]:
        return [stage for stage in self.stages if isinstance(stage, ReductionStage)]

    @property
    def intermediates(self) -> tuple[ProgramArray, ...]:
        """The arrays that are no inputs."""
        return self.arrays[self.function_inputs :]


def plan_program(program: WholeProgram) -> StagedProgram:
    """Return the stages of a program."""
    # A result that is an array between stages is written with it.
    zero = (0,) * len(program.space)
    outputs = []
    for output in program.outputs:
        nodes = [
            program.written[node.input]
            if node.op == "load" and node.input in program.written and node.offset == zero
            else node
            for node in output.nodes
        ]
        outputs.append(replace(output, nodes=tuple(nodes)))
    program = replace(program, outputs=tuple(outputs))
    try:
        levels, where = _with_series_written(*with_levels(program))
        return _planned(with_nearest(levels, where), where)
    except Misaligned as reason:  # every array has all positions
        if program.has_packed:
            raise
        return _planned(with_nearest(program, {}), {}, reason)


def with_packed_arrays(program: WholeProgram, feeds: Sequence[int | None] = ()) -> WholeProgram:
    """Return a program whose coarse inputs and results have no cells in memory but their own.

    The same program if its stages cannot compute them so.

    feeds: of each output, the number of the input that it becomes in the next step.
    """
    steps = [subgrid_of(one.shape, program.space).every for one in program.inputs]
    in_loops = in_order(node for loop in program.loops for node in loop.outside)  # loops read whole arrays
    looped = {node.input for node in in_loops if node.op == "load"}
    inputs = {number for number, every in enumerate(steps) if max(every, default=1) > 1} - looped
    outputs = {number for number, one in enumerate(program.outputs) if max(one.every, default=1) > 1}
    # A result has the layout of the input that it becomes.
    for output, feed in enumerate(feeds):
        alike = feed in inputs and output in outputs and program.outputs[output].every == steps[feed or 0]
        if feed is not None and not alike:
            inputs.discard(feed)
            outputs.discard(output)
    whole = [one for number, one in enumerate(program.inputs) if one.shape and number not in inputs]
    if not (program.staged and whole and (inputs or outputs)):
        return program
    pairs = enumerate(program.inputs), enumerate(program.outputs)
    found = replace(
        program,
        inputs=tuple(replace(one, packed=number in inputs) for number, one in pairs[0]),
        outputs=tuple(replace(one, packed=number in outputs) for number, one in pairs[1]),
    )
    try:
        plan_program(found)
    except Misaligned:
        return program
    return found


def _with_series_written(
    program: WholeProgram, where: dict[int, LevelGrid]
) -> tuple[WholeProgram, dict[int, LevelGrid]]:
    """Return the program that writes what series compute of coarse grids to arrays, which they read."""
    graph, between, zero = program.graph, dict(program.between), (0,) * len(program.space)
    done: dict[Node, Node] = {}
    coarse, picks = set[Node](), set[Node]()  # nodes that read coarse grids; that depend on a list of points

    def read(node: Node) -> Node:
        """Return a node as a series reads it."""
        if node not in coarse or node in picks:
            return done[node]
        number = graph.new_array(program.space)
        between[number] = node
        done[node] = graph.load(number, node.dtype, zero)
        coarse.remove(node)
        return done[node]

    for node in in_order(node for one in program.series for node in one.nodes):
        if node.op in ("pick", "point") or not picks.isdisjoint(node.operands):
            picks.add(node)
        if (node.op == "load" and node.input in where) or not coarse.isdisjoint(node.operands):
            coarse.add(node)
        done[node] = rebuilt(graph, node, [read(one) for one in node.operands]) if node in picks else node
    series = tuple(replace(one, nodes=tuple(map(read, one.nodes))) for one in program.series)
    return replace(program, between=between, series=series), where


def _planned(
    program: WholeProgram, where: Mapping[int, LevelGrid], misaligned: Misaligned | None = None
) -> StagedProgram:
    """Return the stages. Raises Misaligned.

    where: of arrays that have not all positions, the lattice. misaligned: why there is none of coarse grids.
    """
    order = _Order(program)
    dimensions, count = len(program.space), len(program.inputs)
    numbers = [*range(count), *sorted(program.between)]
    places = {number: place for place, number in enumerate(numbers)}
    stages = _with_compared(
        tuple(_renumbered(stage, places) for stage in _stages(program, order, where)), order.dtypes
    )
    series = tuple(_series_cells(program, one, where, places) for one in program.series)
    reading = [one for one in map(_cells_of, stages) if one is not None]
    reading += [one.cells for one in series if one is not None]
    arrays = []
    for place, number in enumerate(numbers):
        lattice = where.get(number)
        if number < count:
            one = program.inputs[number]
            name, dtype = one.name, one.dtype
            # In memory, an input has all positions, unless it is packed.
            cells = lattice.lengths(program.space) if lattice is not None else program.space
            shape = (*cells, *one.shape[dimensions:]) if one.shape else ()
        else:
            name, shape = f"array {place - count + 1}", program.space
            if lattice is not None:
                shape = lattice.lengths(shape)
            dtype = program.dtype_between(number)
        looped = [*_in_loops(stages, place)]
        memory, read = _widths_of(reading, looped, place, dimensions)
        wraps = bool(program.graph.wraps[number]) and any(place in cells.reads for cells in reading)
        wraps = wraps or any(one.wraps for one in looped)
        arrays.append(ProgramArray(name, shape, dtype, memory, read, wraps, lattice))
    values = {
        number: tuple(node.value for node in one.nodes[0].operands or one.nodes)
        for number, one in enumerate(program.outputs)
        if not one.shape
    }
    return StagedProgram(
        program.space,
        tuple(arrays),
        program.outputs,
        stages,
        order.dtypes,
        {value: one for value, one in program.values.items() if isinstance(one, InputValue)},
        NumberResults(values, series),
        program.checks,
        CutReasons(
            tuple(replace(cut, number=places.get(cut.number, -1)) for cut in program.graph.cuts), misaligned
        ),
        count,
    )


def with_results_as_arrays(program: StagedProgram, feeds: Sequence[int | None]) -> StagedProgram:
    """Return a program of steps that writes an array between stages once, where it is a result, too.

    feeds: of each output, the number of the input that it becomes in the next step.
    """
    arrays, stages = list(program.arrays), list[Stage]()
    for stage in program.stages:
        if not isinstance(stage, KernelStage) or not isinstance(stage.cells, StageCells):
            stages.append(stage)
            continue
        outputs, left = stage.cells.program.outputs, []
        results = {
            outputs[at].nodes: feeds[place.number] for at, place in enumerate(stage.writes) if place.of_output
        }
        for at, place in enumerate(stage.writes):
            fed = None if place.of_output else results.get(outputs[at].nodes)
            if fed is None or not _are_alike(arrays[place.number], arrays[fed]):
                left.append(at)
                continue
            # Both blocks of the input have the halo of the array.
            one, other = arrays[place.number], arrays[fed]
            arrays[place.number] = replace(one, becomes=fed)
            arrays[fed] = replace(
                other,
                widths=_wider(one.widths, other.widths),
                read=_wider(one.read, other.read),
                wraps=one.wraps or other.wraps,
            )
        computed = replace(stage.cells.program, outputs=tuple(outputs[at] for at in left))
        cells = replace(stage.cells, program=computed)
        stages.append(KernelStage(cells, tuple(stage.writes[at] for at in left)))
    return replace(program, arrays=tuple(arrays), stages=tuple(stages))


def with_wider_halos(program: StagedProgram, cells: Iterable[StageCells]) -> StagedProgram:
    """Return a program whose arrays also have the halos that such cells, and bodies of loops, read."""
    reading, arrays = [*cells], list(program.arrays)
    for place, one in enumerate(program.arrays):
        looped = [*_in_loops(program.stages, place)]
        memory, read = _widths_of(reading, looped, place, len(program.space))
        # Both blocks of an input have the halo of the array that it becomes.
        for number in {place} if one.becomes is None else {place, one.becomes}:
            known = arrays[number]
            arrays[number] = replace(
                known,
                widths=_wider(known.widths, memory),
                read=_wider(known.read, read),
                wraps=known.wraps or any(inner.wraps for inner in looped),
            )
    return replace(program, arrays=tuple(arrays))


def _are_alike(one: ProgramArray, other: ProgramArray) -> bool:
    return (one.shape, one.dtype, one.lattice) == (other.shape, other.dtype, other.lattice)


class _Order:
    """After how many kernel stages each array and value is there. dtypes: of the values."""

    def __init__(self, program: WholeProgram) -> None:
        self._program = program
        self._arrays = dict.fromkeys(range(len(program.inputs)), 0)
        self._values: dict[int, int] = {}
        self._nodes: dict[Node, int] = {}
        self.dtypes: dict[int, np.dtype[Any]] = {}
        for (*_, dtype), slot in program.tape.slots.items():
            self._values[slot], self.dtypes[slot] = 0, dtype
        for number in sorted(program.between):
            self.array(number)
        for number in program.values:
            self.value(number)

    def array(self, number: int) -> int:
        if number not in self._arrays:
            program = self._program
            one = program.between[number]
            if isinstance(one, Node):
                self._arrays[number] = 1 + self.of([one])
            else:
                self._arrays[number] = self.of(one.nodes if isinstance(one, Reduction) else one.loop.outside)
        return self._arrays[number]

    def value(self, number: int) -> int:
        if number not in self._values:
            one = self._program.values[number]
            if isinstance(one, InputValue):
                self._values[number] = 0
                dtype = self._program.inputs[one.number].dtype
                self.dtypes[number] = real_dtype(dtype) if one.part else dtype
            else:
                self._values[number] = self.of(_read_by(one))
                self.dtypes[number] = one.dtype
        return self._values[number]

    def of(self, nodes: Iterable[Node]) -> int:
        """Return after how many kernel stages all that nodes read is there."""
        wanted, known = list(nodes), self._nodes
        for node in in_order(wanted, known):
            if node.op == "pick":
                known[node] = self.of(self._program.graph.picked_nodes([node]))
            elif node.op == "load":
                known[node] = self.array(node.input)
            elif node.op == "scalar":
                known[node] = self.value(node.value)
            else:
                known[node] = max((known[operand] for operand in node.operands), default=0)
        return max((known[node] for node in wanted), default=0)


def _stages(program: WholeProgram, order: _Order, where: Mapping[int, LevelGrid]) -> Iterator[Stage]:
    """Yield the stages. Each kernel stage computes all that can be computed after those before it.

    where: of arrays that have not all positions, the lattice; a stage is of one lattice.
    """
    fields = [number for number, output in enumerate(program.outputs) if output.shape]
    last = 1 + max((order.of(program.outputs[number].nodes) for number in fields), default=-1)
    last = max([last, *(order.array(number) for number in program.written)])
    for turn in range(last + 1):
        written = [number for number in sorted(program.written) if order.array(number) == turn]
        outputs = [number for number in fields if 1 + order.of(program.outputs[number].nodes) == turn]
        grids = {number: _grid_of_output(program, number) for number in outputs}
        for lattice in dict.fromkeys([*(where.get(number) for number in written), *grids.values()]):
            own = [number for number in written if where.get(number) == lattice]
            results = [
                WholeOutput(
                    f"array {number}",
                    program.space,
                    program.written[number].dtype,
                    (program.written[number],),
                    (),
                )
                for number in own
            ]
            places = [ArrayPlace(number) for number in own]
            of_function = [number for number in outputs if grids[number] == lattice]
            results += [program.outputs[number] for number in of_function]
            places += [ArrayPlace(number, True) for number in of_function]
            yield KernelStage(_cells(program, results, where, lattice), tuple(places))
        yield from _between(program, order, turn, where)


def _grid_of_output(program: WholeProgram, number: int) -> LevelGrid | None:
    """Return the positions of a result's cells in memory; None: all."""
    output = program.outputs[number]
    return LevelGrid((0,) * len(program.space), output.every) if output.packed else None


def _cells(
    program: WholeProgram,
    results: Sequence[WholeOutput],
    where: Mapping[int, LevelGrid],
    lattice: LevelGrid | None = None,
) -> StageCells | LevelCells:
    """Return what is computed at the positions of a lattice; None: at all."""
    nodes = in_order(node for result in results for node in result.nodes)
    if lattice is None and not any(node.op == "load" and node.input in where for node in nodes):
        return stage_cells(program, results)
    return level_cells(program, results, lattice or whole_space(len(program.space)), where)


def _between(
    program: WholeProgram, order: _Order, turn: int, where: Mapping[int, LevelGrid]
) -> Iterator[Stage]:
    """Yield the reductions and the arithmetic of values between two kernel stages, in an order that works."""
    arrays = [number for number in (*program.reduced, *program.left) if order.array(number) == turn]
    values = [
        number
        for number, one in program.values.items()
        if order.value(number) == turn and not isinstance(one, InputValue)
    ]
    open_ones = [*(("array", number) for number in arrays), *(("value", number) for number in values)]
    expressions: list[tuple[int, Node]] = []
    while open_ones:
        # The first one that reads none of the others.
        ready = next(one for one in open_ones if not _reads(program, one) & set(open_ones))
        open_ones.remove(ready)
        kind, number = ready
        definition = program.between[number] if kind == "array" else program.values[number]
        if isinstance(definition, Node):
            expressions.append((number, definition))
            continue
        if expressions:
            yield ValueStage(tuple(expressions))
            expressions = []
        if isinstance(definition, LoopResult):  # all results of the loop
            of_loop = definition.loop
            yield _loop_stage(program, of_loop)
            open_ones = [one for one in open_ones if _loop_of(program, one) is not of_loop]
            continue
        assert isinstance(definition, Reduction)
        results = [
            WholeOutput(f"cells{place}", program.space, node.dtype, (node,), ())
            for place, node in enumerate(definition.nodes)
        ]
        value, array = (None, number) if kind == "array" else (number, None)
        lattice = next((where[load.input] for load in definition.nodes if load.input in where), None)
        cells = _cells(program, results, where, lattice)
        assert isinstance(cells, StageCells)
        if lattice is not None:  # cells of an array of this lattice
            pairs = [*zip(definition.first, definition.step, definition.length, strict=True)]
            definition = replace(
                definition,
                first=tuple(lattice.cell(axis, first) for axis, (first, *_) in enumerate(pairs)),
                step=tuple(max(s // n, 1) for (_, s, _), n in zip(pairs, lattice.step, strict=True)),
            )
        yield ReductionStage(definition, cells, value, array)
    if expressions:
        yield ValueStage(tuple(expressions))


def _loop_stage(program: WholeProgram, loop: Loop) -> LoopStage:
    body, compared = plan_program(loop.body), tuple[LoopComparison, ...]()
    if loop.again is not None:
        (again,) = body.numbers.values[loop.again]
        stages, compared = comparisons(body.stages, again, body.dtypes)
        body = replace(body, stages=stages)
    arrays = tuple(
        None if not one.shape else node.input for one, node in zip(loop.body.inputs, loop.inputs, strict=True)
    )
    firsts: dict[tuple[int, str], int] = {}
    for number, (one, node) in enumerate(zip(loop.body.inputs, loop.inputs, strict=True)):
        if not one.shape:
            parts = (
                zip(("real", "imag"), node.operands, strict=True) if one.dtype.kind == "c" else [("", node)]
            )
            firsts |= {(number, part): each.value for part, each in parts}
    values = tuple((value, firsts[one.number, one.part]) for value, one in body.inputs.items())
    left = {n: one for n, one in program.between.items() if isinstance(one, LoopResult) and one.loop is loop}
    results = [
        (one.output, n, one.part)
        for n, one in program.values.items()
        if isinstance(one, LoopResult) and one.loop is loop
    ]
    writes = tuple((one.output, n) for n, one in left.items())
    first = None if loop.first is None else loop.first.value
    return LoopStage(loop, body, arrays, values, firsts, writes, tuple(results), first, compared)


def _with_compared(stages: tuple[Stage, ...], dtypes: dict[int, np.dtype[Any]]) -> tuple[Stage, ...]:
    """Return stages whose loops tell what the condition of their first iteration compares.

    dtypes: of the values; those of further ones are added.
    """
    for number, stage in enumerate(stages):
        if isinstance(stage, LoopStage) and stage.loop.kind == "while" and stage.first is not None:
            stages, compared = comparisons(stages, stage.first, dtypes)
            known = replace(stage, compared_at_first=compared)
            stages = (*stages[:number], known, *stages[number + 1 :])
    return stages


def comparisons(
    stages: tuple[Stage, ...], condition: int, dtypes: dict[int, np.dtype[Any]]
) -> tuple[tuple[Stage, ...], tuple[LoopComparison, ...]]:
    """Return what a condition compares, and the stages with what is compared as values of their own.

    dtypes: of the values; those of further ones are added.
    """
    # The stage that computes the condition.
    pairs = [(n, one) for n, one in enumerate(stages) if isinstance(one, ValueStage)]
    stage = next(((n, one) for n, one in pairs if condition in dict(one.nodes)), None)
    if stage is None:
        return stages, ()
    place, values = stage
    nodes, compared = list(values.nodes), []

    # A side that is a number of one kind in all iterations is a constant; others become values.
    def side(node: Node) -> int | str:
        if node.op == "constant":
            return f"{node.value:.6g}"
        number = max(dtypes) + 1
        dtypes[number] = node.dtype
        nodes.append((number, node))
        return number

    for node in in_order([dict(values.nodes)[condition]]):
        if node.op in SIGNS and all(one.dtype.kind in "iuf" for one in node.operands):
            left, right = map(side, node.operands)
            compared.append(LoopComparison(SIGNS[node.op], (left, right)))
    return (*stages[:place], ValueStage(tuple(nodes)), *stages[place + 1 :]), tuple(compared)


def _loop_of(program: WholeProgram, one: tuple[str, int]) -> Loop | None:
    """Return the loop that leaves an array or a value; None for others."""
    kind, number = one
    definition = program.between[number] if kind == "array" else program.values[number]
    return definition.loop if isinstance(definition, LoopResult) else None


def _read_by(definition: Reduction | LoopResult | Node) -> Sequence[Node]:
    """Return the nodes that something is computed of."""
    if isinstance(definition, Node):
        return [definition]
    return definition.nodes if isinstance(definition, Reduction) else definition.loop.outside


def _reads(program: WholeProgram, one: tuple[str, int]) -> set[tuple[str, int]]:
    """Return the arrays and values that a reduction, a loop or an expression of values reads."""
    kind, number = one
    definition = program.between[number] if kind == "array" else program.values[number]
    assert not isinstance(definition, InputValue)
    nodes = in_order(_read_by(definition))
    arrays = {("array", node.input) for node in nodes if node.op == "load"}
    return arrays | {("value", node.value) for node in nodes if node.op == "scalar"}


def _renumbered(stage: Stage, places: dict[int, int]) -> Stage:
    """Return a stage with the program's final numbers of arrays."""
    if isinstance(stage, ValueStage):
        return stage
    if isinstance(stage, LoopStage):
        arrays = tuple(None if one is None else places[one] for one in stage.arrays)
        return replace(stage, arrays=arrays, writes=tuple((output, places[n]) for output, n in stage.writes))
    if isinstance(stage, ReductionStage):
        array = None if stage.array is None else places[stage.array]
        return replace(stage, cells=stage.cells.renumbered(places), array=array)
    writes = tuple(one if one.of_output else ArrayPlace(places[one.number]) for one in stage.writes)
    return KernelStage(stage.cells.renumbered(places), writes)


def _cells_of(stage: Stage) -> StageCells | LevelCells | None:
    return None if isinstance(stage, (ValueStage, LoopStage)) else stage.cells


def _in_loops(stages: Iterable[Stage], place: int) -> Iterator[ProgramArray]:
    """Yield what an array is in the bodies of loops: what it is read as, and what it is written as."""
    for stage in stages:
        if isinstance(stage, LoopStage):
            for number, array in enumerate(stage.arrays):
                if array == place:
                    yield stage.body.arrays[number]
            for output, array in stage.writes:
                feed = stage.loop.feeds[output]
                if array == place and feed is not None:
                    yield stage.body.arrays[feed]


def _series_cells(
    program: WholeProgram, series: WholeSeries, where: Mapping[int, LevelGrid], places: Mapping[int, int]
) -> SeriesCells | None:
    """Return the cells of a series; None if it is a value."""
    if not program.graph.vary(series.nodes):
        return None
    results = [WholeOutput(series.name, program.space, series.dtype, (node,), ()) for node in series.nodes]
    return SeriesCells(stage_cells(program, results).renumbered(places), series.positions)


def _widths_of(
    reading: Sequence[StageCells | LevelCells], looped: Iterable[ProgramArray], place: int, dimensions: int
) -> tuple[Extents, Extents]:
    """Return the halo of an array in memory, and the part of it that is read.

    reading: all cells that are read. looped: what the array is in the bodies of loops.
    """
    memory = read = (NO_WIDTH,) * dimensions
    for cells in reading:
        if place in cells.reads:
            memory = _wider(memory, cells.memory(place))
            read = _wider(read, cells.footprints[cells.reads.index(place)])
    for one in looped:
        memory, read = _wider(memory, one.widths), _wider(read, one.read)
    return memory, read


def _wider(one: Extents, other: Extents) -> Extents:
    return tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
