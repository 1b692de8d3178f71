"""Reductions that a kernel does while it computes the cells: maxima and minima, in any order.

The first reductions of a step are often of the state at its begin: the largest speed, for a step in time. The
kernel that writes this state, in the step before, has its cells in registers, and reduces them: see `Ahead`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshrun.runner.compiler.trace.graph import Node, in_order
from meshrun.runner.compiler.whole.between.cuts import rebuilt
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.compiler.whole.program import WholeOutput
from meshrun.runner.programs.cells import StageCells
from meshrun.runner.programs.stages import KernelStage, ReductionStage, StagedProgram


@dataclass(frozen=True, eq=False)
class Ahead:
    """Reductions of the next step's inputs by the kernel that writes them.

    kernel: number of its stage. cells: what it computes: the stage's results, then the cells of each
    reduction. reductions: numbers of the reductions' stages, which are the first ones.
    """

    kernel: int
    cells: StageCells
    reductions: tuple[int, ...]


def best_cells(stage: ReductionStage) -> StageCells | None:
    """Return the cells of a reduction of which a kernel can keep the best one; None for others."""
    reduction, cells = stage.reduction, stage.cells
    (output,) = cells.program.outputs
    real = output.dtype.kind in "biuf" and reduction.dtype.kind in "biuf"
    whole = stage.value is not None and set(reduction.step) == {1} and 0 not in reduction.length
    if reduction.ufunc not in ("maximum", "minimum") or not real or not whole:
        return None
    if _has_points(output.nodes):  # they are written after the kernel
        return None
    kept = _kept(cells.program.graph, output, output.nodes[0], reduction.ufunc)
    return replace(cells, program=replace(cells.program, outputs=(kept,)))


def _has_points(nodes: Sequence[Node]) -> bool:
    return any(node.op == "point" for node in in_order(nodes))


def _kept(graph: WholeGraph, output: WholeOutput, node: Node, combine: str) -> WholeOutput:
    """Return an output of which only the best cell is kept. Small elements have no keys of their own."""
    dtype = node.dtype
    if dtype.itemsize < np.dtype(np.int32).itemsize:
        dtype = np.dtype(np.float32 if dtype.kind == "f" else np.int32)
    cast = graph.operation("cast", dtype, [node], node.line)
    return replace(output, dtype=dtype, nodes=(cast,), combine=combine)


def reduced_ahead(program: StagedProgram, feeds: Sequence[int | None]) -> Ahead | None:
    """Return which reductions of a step can be done at the end of the step before; None if none can.

    They come first, read own cells of the state alone, and one kernel writes all that they read. feeds: of
    each output, the number of the input that it becomes in the next step.
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
    if not isinstance(kernel, KernelStage) or not isinstance(kernel.cells, StageCells):
        return None
    if len(program.space) != len(kernel.cells.program.space):
        return None
    if any(_has_points(one.nodes) for one in kernel.cells.program.outputs):
        return None
    state = {
        feed: writers[output][1]
        for output, feed in enumerate(feeds)
        if feed is not None and output in writers and writers[output][0] == last
    }
    fed = {feed for feed in feeds if feed is not None}
    graph, kept, numbers = kernel.cells.program.graph, list[WholeOutput](), list[int]()
    for number, stage in enumerate(program.stages):
        cells = best_cells(stage) if isinstance(stage, ReductionStage) else None
        if cells is None or not isinstance(stage, ReductionStage):
            break
        node = _of_results(graph, stage, kernel, state, fed)
        if node is None:
            break
        (output,) = cells.program.outputs
        node = _within(graph, node, stage, program)
        kept.append(_kept(graph, output, node, output.combine))
        numbers.append(number)
    plain = all(one.shape == program.space for one in kernel.cells.program.outputs)
    if not kept or not plain:
        return None
    whole = kernel.cells.program
    cells = replace(kernel.cells, program=replace(whole, outputs=(*whole.outputs, *kept)))
    return Ahead(last, cells, tuple(numbers))


def _of_results(
    graph: WholeGraph, stage: ReductionStage, kernel: KernelStage, state: dict[int, Node], fed: set[int]
) -> Node | None:
    """Return the cells of a reduction by what a kernel writes, and reads; None if it reads more."""
    done: dict[Node, Node] = {}
    nodes = stage.cells.program.outputs[0].nodes
    for node in in_order(nodes):
        if node.op == "load":
            number = stage.cells.reads[node.input]
            if any(node.offset) or node.component:
                return None
            if number in state and state[number].dtype == node.dtype:
                done[node] = state[number]
            elif number not in fed and number in kernel.cells.reads:
                done[node] = graph.load(kernel.cells.reads.index(number), node.dtype, node.offset)
            else:
                return None
        elif node.op in ("constant", "place", "inside"):
            done[node] = graph.leaf(node)
        elif node.operands:
            done[node] = rebuilt(graph, node, [done[one] for one in node.operands])
        else:
            return None
    return done[nodes[0]]


def _within(graph: WholeGraph, node: Node, stage: ReductionStage, program: StagedProgram) -> Node:
    """Return a node that is what changes no result where a reduction takes no cell."""
    reduction = stage.reduction
    smallest = reduction.ufunc == "maximum"
    if node.dtype.kind == "f":
        fill = -np.inf if smallest else np.inf
    elif node.dtype.kind == "b":
        fill = not smallest
    else:
        limits = np.iinfo(node.dtype)
        fill = limits.min if smallest else limits.max
    other = graph.constant(fill, node.dtype)
    for axis, (first, length) in enumerate(zip(reduction.first, reduction.length, strict=True)):
        if (first, length) != (0, program.space[axis]):
            condition = graph.inside(axis, first, first + length)
            node = graph.operation("where", node.dtype, [condition, node, other], node.line)
    return node
