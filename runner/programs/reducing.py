"""Reductions that a kernel does while it computes cells: maxima, minima, sums. No order changes their bits.

On a CPU, those of floats that are added, in the same step.

A kernel that writes arrays has their cells, and those that it reads, in registers. It can reduce them, too:

    within  reductions of the same step that read no more than the kernel does, and that it does not need
    ahead   the first reductions of the next step, of the state that the kernel writes: the largest speed, for
            a step in time. If they read it at several distances, the kernel computes it at each of them: for
            the product with a matrix that an iteration of conjugate gradients begins with
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshrun.runner.compiler.trace.graph import Node, in_order
from meshrun.runner.compiler.whole.between.cuts import OPERATIONS_PER_BYTE, Moves
from meshrun.runner.compiler.whole.between.stage_costs import FREE, main_path
from meshrun.runner.compiler.whole.graph import Reduction, WholeGraph, rebuilt
from meshrun.runner.compiler.whole.program import WholeOutput
from meshrun.runner.programs.cells import StageCells
from meshrun.runner.programs.stages import (
    KernelStage,
    LoopStage,
    ReductionStage,
    Stage,
    StagedProgram,
    ValueStage,
    with_wider_halos,
)
from meshrun.runner.region import Shape

SUMMED = np.dtype(np.float32), np.dtype(np.float64)  # whose sums kernels of CPUs make
LOAD = 4  # operations in the time of a load: a multiprocessor computes 128 lanes a cycle, and loads 32


@dataclass(frozen=True, eq=False)
class ReducingKernel:
    """A kernel stage that also does reductions.

    cells: what it computes: the stage's results, then the cells of each reduction. within, ahead: numbers of
    the reductions' stages, of this step and of the next one.
    """

    cells: StageCells
    within: tuple[int, ...]
    ahead: tuple[int, ...]


def combined_cells(stage: ReductionStage, kind: str = "cuda") -> StageCells | None:
    """Return the cells of a reduction that a kernel can combine; None for others. kind: of the device."""
    reduction, cells = stage.reduction, stage.cells
    (output,) = cells.program.outputs
    if kind == "cpu" and (reduction.ufunc != "add" or not {output.dtype, reduction.dtype} <= set(SUMMED)):
        return None
    real = output.dtype.kind in "biuf" and reduction.dtype.kind in "biuf"
    whole = stage.value is not None and 0 not in reduction.length
    if reduction.ufunc not in ("maximum", "minimum", "add") or not real or not whole:
        return None
    if cells.lattice is not None or _has_points(output.nodes):  # points are written after the kernel
        return None
    # The kernel computes all cells of a box, also those between the ones that are reduced.
    space = tuple(
        first + length for first, length in zip(reduction.first, bounding_lengths(reduction), strict=True)
    )
    node = _inside(cells.program.graph, output.nodes[0], reduction, space, reduction.first)
    kept = _kept(cells.program.graph, output, node, reduction.ufunc)
    return replace(cells, program=replace(cells.program, outputs=(kept,)))


def _can_reduce(stage: Stage) -> bool:
    """Return whether a kernel that computes all cells of a stage at once could reduce them, too."""
    if isinstance(stage, (ValueStage, LoopStage)) or not isinstance(stage.cells, StageCells):
        return False
    outputs = stage.cells.program.outputs
    return stage.cells.lattice is None and not any(_has_points(one.nodes) for one in outputs)


def _has_points(nodes: Sequence[Node]) -> bool:
    return any(node.op == "point" for node in in_order(nodes))


def _kept(graph: WholeGraph, output: WholeOutput, node: Node, combine: str) -> WholeOutput:
    """Return an output whose cells are combined. Small elements are combined as larger ones."""
    dtype = node.dtype
    if dtype.itemsize < np.dtype(np.int32).itemsize:
        dtype = np.dtype(np.float32 if dtype.kind == "f" else np.int32)
    cast = graph.operation("cast", dtype, [node], node.line)
    return replace(output, dtype=dtype, nodes=(cast,), combine=combine)


# Which kernel does which reductions


def prepared_for_kernels(program: StagedProgram, feeds: Sequence[int | None] = ()) -> StagedProgram:
    """Return a program, with the bodies of its loops, for a GPU whose kernels also do reductions.

    Reductions come late, and arrays have the halos that `reducing_kernels` of the same feeds read. feeds: of
    each output, the number of the input that it becomes in the next step; none: only bodies have some.
    """
    stages = [
        replace(one, body=prepared_for_kernels(one.body, one.loop.feeds))
        if isinstance(one, LoopStage)
        else one
        for one in program.stages
    ]
    program = replace(program, stages=tuple(stages))
    if not feeds:
        return with_wider_halos(program, [])
    program = with_late_reductions(program)
    return with_wider_halos(program, [one.cells for one in reducing_kernels(program, feeds).values()])


def with_late_reductions(program: StagedProgram) -> StagedProgram:
    """Return a program with reductions after the next kernel, where it can do them and does not need them."""
    stages = list(program.stages)
    for stage in program.reductions:
        begin = stages.index(stage)
        kernels = [n for n in range(begin + 1, len(stages)) if isinstance(stages[n], KernelStage)]
        if not kernels or combined_cells(stage) is None or not _reads_no_more(stage, stages[kernels[0]]):
            continue
        # What depends on the reduction comes after it; none of that may be needed before.
        between, needed = stages[begin + 1 : kernels[0] + 1], {stage.value}
        earlier, later = list[Stage](), list[tuple[int, Node]]()
        for one in between:
            if isinstance(one, ValueStage):
                moved = []
                for number, node in one.nodes:
                    if needed & _values_of([node]):
                        needed.add(number)
                        moved.append((number, node))
                later += moved
                left = tuple(pair for pair in one.nodes if pair not in moved)
                earlier += [ValueStage(left)] if left else []
            else:
                earlier.append(one)
        if any(isinstance(one, LoopStage) for one in between):
            continue
        if any(
            not isinstance(one, (ValueStage, LoopStage)) and needed & set(one.cells.values) for one in between
        ):
            continue
        after: list[Stage] = [stage, *([ValueStage(tuple(later))] if later else [])]
        stages[begin : kernels[0] + 1] = [*earlier, *after]
    return replace(program, stages=tuple(stages))


def _values_of(nodes: Iterable[Node]) -> set[int | None]:
    return {node.value for node in in_order(nodes) if node.op == "scalar"}


def _reads_no_more(stage: ReductionStage, kernel: Stage) -> bool:
    """Return whether a kernel has all cells that a reduction reads, in its blocks."""
    if isinstance(kernel, (ValueStage, LoopStage)) or not _can_reduce(kernel):
        return False
    if not set(stage.cells.reads) <= set(kernel.cells.reads):
        return False
    for number, footprint in zip(stage.cells.reads, stage.cells.footprints, strict=True):
        most = kernel.cells.footprints[kernel.cells.reads.index(number)]
        if any(
            low > before or high > after for (low, high), (before, after) in zip(footprint, most, strict=True)
        ):
            return False
    return True


def reducing_kernels(
    program: StagedProgram, feeds: Sequence[int | None], kind: str = "cuda"
) -> dict[int, ReducingKernel]:
    """Return the kernel stages that also do reductions, by their numbers.

    feeds: of each output, the number of the input that it becomes in the next step. kind: of the device.
    """
    found = {}
    ahead_by, ahead = _ahead(program, feeds) if kind == "cuda" else (-1, {})
    for number, kernel in enumerate(program.stages):
        plain = isinstance(kernel, KernelStage) and all(
            one.shape == program.space for one in kernel.cells.program.outputs
        )
        if not isinstance(kernel, KernelStage) or not plain or not _can_reduce(kernel):
            continue
        assert isinstance(kernel.cells, StageCells)
        reductions = _within_step(program, number, kernel, feeds, kind)
        kept = {one: _kept_of(program, kernel, one, node) for one, node in reductions.items()}
        coming = ahead if number == ahead_by else {}
        kept |= {one: _kept_of(program, kernel, one, node) for one, node in coming.items()}
        if not kept:
            continue
        nodes = [node for output in kept.values() for node in output.nodes]
        values = tuple(sorted({*kernel.cells.values, *(one for one in _values_of(nodes) if one is not None)}))
        whole = kernel.cells.program
        outputs = replace(whole, outputs=(*whole.outputs, *kept.values()))
        cells = replace(kernel.cells, program=outputs, values=values)
        found[number] = ReducingKernel(cells, tuple(reductions), tuple(coming))
    return found


def _kept_of(program: StagedProgram, kernel: KernelStage, number: int, node: Node) -> WholeOutput:
    """Return the cells of a reduction as an output of a kernel. node: of the kernel's graph."""
    stage, graph = program.stages[number], kernel.cells.program.graph
    assert isinstance(stage, ReductionStage)
    (output,) = stage.cells.program.outputs
    inside = _inside(graph, node, stage.reduction, program.space, (0,) * len(program.space))
    return _kept(graph, output, inside, stage.reduction.ufunc)


def _within_step(
    program: StagedProgram, number: int, kernel: KernelStage, feeds: Sequence[int | None], kind: str
) -> dict[int, Node]:
    """Return the reductions between a kernel and the next one that it can do, with their cells."""
    written = {}
    for at, place in enumerate(kernel.writes):
        node = kernel.cells.program.outputs[at].nodes[0]
        if not place.of_output:
            written[place.number] = node
        elif feeds[place.number] is not None:
            fed = feeds[place.number]
            written |= {n: node for n, one in enumerate(program.arrays) if one.becomes == fed}
    known = set(program.dtypes) - _made_from(program, number)
    found = {}
    for after in range(number + 1, len(program.stages)):
        stage = program.stages[after]
        if isinstance(stage, (KernelStage, LoopStage)):
            break
        if not isinstance(stage, ReductionStage) or combined_cells(stage, kind) is None:
            continue
        cells = _of_results(stage, kernel, written, set(), anywhere=True)
        if cells is not None and set(stage.cells.values) <= known:
            found[after] = cells
    return found


def _made_from(program: StagedProgram, number: int) -> set[int]:
    """Return the values that stages from a number on make."""
    made = set()
    for stage in program.stages[number:]:
        if isinstance(stage, ValueStage):
            made |= {value for value, _ in stage.nodes}
        elif isinstance(stage, ReductionStage) and stage.value is not None:
            made.add(stage.value)
        elif isinstance(stage, LoopStage):
            made |= {value for _, value, _ in stage.results}
    return made


def _ahead(program: StagedProgram, feeds: Sequence[int | None]) -> tuple[int, dict[int, Node]]:
    """Return the kernel that can do the first reductions of the next step, and these with their cells.

    One kernel, the last one, writes all that they read of the state. Cells beside the own ones are computed
    again, where that takes no longer than the kernel's bytes.
    """
    writers = {
        place.number: (number, stage.cells.program.outputs[at].nodes[0])
        for number, stage in enumerate(program.stages)
        if isinstance(stage, KernelStage)
        for at, place in enumerate(stage.writes)
        if place.of_output
    }
    last = max((number for number, _ in writers.values()), default=-1)
    kernel = program.stages[last] if last >= 0 else None
    if not isinstance(kernel, KernelStage) or not _can_reduce(kernel):
        return -1, {}
    if len(program.space) != len(kernel.cells.program.space):
        return -1, {}
    state = {
        feed: writers[output][1]
        for output, feed in enumerate(feeds)
        if feed is not None and output in writers and writers[output][0] == last
    }
    fed, found = {feed for feed in feeds if feed is not None}, dict[int, Node]()
    for number, stage in enumerate(program.stages):
        if not isinstance(stage, ReductionStage) or combined_cells(stage) is None:
            break
        node = _of_results(stage, kernel, state, fed, anywhere=False)
        if node is None or stage.cells.values:
            break
        beside = any(any(map(any, footprint)) for footprint in stage.cells.footprints)
        if beside and not _is_worth_computing(kernel, [*found.values(), node]):
            break
        found[number] = node
    return last, found


def _is_worth_computing(kernel: KernelStage, reduced: Sequence[Node]) -> bool:
    """Return whether a kernel that also computes such nodes takes no longer than its bytes do."""
    assert isinstance(kernel.cells, StageCells)
    program = kernel.cells.program
    results = [node for one in program.outputs for node in one.nodes]
    nodes = main_path(program, [*results, *reduced])
    loads = [node for node in nodes if node.op == "load"]
    inputs = {node.input: node.dtype.itemsize for node in loads}
    nbytes = sum(inputs.values()) + sum(node.dtype.itemsize for node in results)
    rate = OPERATIONS_PER_BYTE["cuda"][8 if max(node.dtype.itemsize for node in nodes) > 4 else 4]
    # Neighbours come out of the caches: of them, loads take time and memory none.
    work = sum(node.op not in FREE for node in nodes) + LOAD * (len(loads) - len(inputs))
    return work <= nbytes * rate


def _of_results(
    stage: ReductionStage, kernel: KernelStage, written: dict[int, Node], changed: set[int], *, anywhere: bool
) -> Node | None:
    """Return the cells of a reduction by what a kernel writes, and reads; None if it reads other cells.

    written: the nodes of arrays that it writes, by their numbers. changed: arrays that have other cells once
    the reduction reads them. anywhere: it may read cells of this step beside the own one, as far as the
    kernel does; else, cells of the next step, which are computed again.
    """
    graph, done = kernel.cells.program.graph, dict[Node, Node]()
    nodes, moves, wraps = stage.cells.program.outputs[0].nodes, Moves(kernel.cells.program), graph.wraps
    for node in in_order(nodes):
        if node.op == "load":
            number = stage.cells.reads[node.input]
            beside = any(node.offset)
            if node.component:
                return None
            if number in written and written[number].dtype == node.dtype and not (beside and anywhere):
                graph.wraps = [*map(set, wraps)]
                done[node] = moves.moved(written[number], node.offset)
                around_ends, graph.wraps = graph.wraps != wraps, wraps
                # Around the ends of the array, others of its cells are read.
                if around_ends or (beside and stage.cells.program.graph.wraps[node.input]):
                    return None
            elif number not in changed and number in kernel.cells.reads and number not in written:
                place = kernel.cells.reads.index(number)
                pairs = zip(node.offset, kernel.cells.footprints[place], strict=True)
                if any(at < -low or at > high for at, (low, high) in pairs):
                    return None
                done[node] = graph.load(place, node.dtype, node.offset)
            else:
                return None
        elif node.op in ("constant", "place", "inside") or (node.op == "scalar" and anywhere):
            done[node] = graph.leaf(node)
        elif node.operands:
            done[node] = rebuilt(graph, node, [done[one] for one in node.operands])
        else:
            return None
    return done[nodes[0]]


def bounding_lengths(reduction: Reduction) -> Shape:
    """Return the lengths of the box from the first to the last cell of a reduction, per axis."""
    pairs = zip(reduction.length, reduction.step, strict=True)
    return tuple((length - 1) * step + 1 for length, step in pairs)


def _inside(graph: WholeGraph, node: Node, reduction: Reduction, last: Shape, first: Shape) -> Node:
    """Return a node that is what changes no result where a reduction takes no cell.

    first, last: the positions that are computed, per axis: the first one, and the last + 1.
    """
    fill: float = 0
    if reduction.ufunc != "add":
        smallest = reduction.ufunc == "maximum"
        if node.dtype.kind == "f":
            fill = -np.inf if smallest else np.inf
        elif node.dtype.kind == "b":
            fill = not smallest
        else:
            limits = np.iinfo(node.dtype)
            fill = limits.min if smallest else limits.max
    other = graph.constant(fill, node.dtype)
    for axis, length in enumerate(bounding_lengths(reduction)):
        begin, step = reduction.first[axis], reduction.step[axis]
        if (begin, begin + length, step) != (first[axis], last[axis], 1):
            condition = graph.inside(axis, begin, begin + length, step)
            node = graph.operation("where", node.dtype, [condition, node, other], node.line)
    return node
