"""What stages compute again and read, for the decision which arrays they write.

An array that no stage writes is computed by each stage that reads it, at each distance at which it does, of
what the array is computed of. Stages and arrays may be of coarse grids: of fewer cells, and a stage of a
coarse grid reads a finer one at some of its cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshrun.runner.compiler.trace.graph import Node, Offset
from meshrun.runner.compiler.whole.between.levels import (
    Demand,
    demands_of,
    lattices,
    parts_of,
    positions_of,
    shared_cells,
    whole_space,
)
from meshrun.runner.compiler.whole.graph import LEAVES
from meshrun.runner.compiler.whole.program import WholeProgram
from meshrun.runner.region import Shape

FREE = ("cast", "where", *LEAVES)  # operations that cost nothing


@dataclass(frozen=True)
class RepeatedWork:
    """What it costs not to write an array, for each of its cells.

    distances: at which it is read. operations: that are done again. nbytes: that are written and read less,
    without what is read instead; below 0 if that is more. parts: into which the stages that read it would be
    split, at most, as they read coarser grids.
    """

    distances: int
    operations: float
    nbytes: float
    parts: int


class StageCosts:
    """The stages that read each array, as far as is decided: from the last array to the first.

    results: what is computed of the arrays in the end, one list of nodes per stage. written: of the arrays
    that may be written, by number, the node of their cells; each after those that it is computed of.
    """

    def __init__(
        self,
        program: WholeProgram,
        written: Mapping[int, Node],
        results: Sequence[Sequence[Node]],
    ) -> None:
        self._program, self._written = program, written
        # What an array holds may be used at the own cell too, where it is no load.
        self._defines = {node: number for number, node in written.items()}
        # The cells of the arrays and of the stages of results, whose numbers are below 0.
        everywhere = whole_space(len(self._space))
        self._grids = dict.fromkeys(written, everywhere)
        every, needs = [node for nodes in results for node in nodes], dict[int, dict[Node, Demand]]()
        if program.has_strides:
            found = lattices(replace(program, between=written), used=self._defines)
            self._grids, needs = found.grids, found.needs
            needs[-1] = demands_of(every, positions_of(everywhere, self._space), found.complete)
        stages = {-1 - number: nodes for number, nodes in enumerate(results)}
        self._grids |= dict.fromkeys(stages, everywhere)
        self._cells = {n: max(math.prod(one.lengths(self._space)), 1) for n, one in self._grids.items()}
        # The operations for each cell of an array, and what it is computed of.
        self._operations: dict[int, float] = {}
        self._sources: dict[int, dict[int, set[Offset]]] = {}
        self._weigh(every, needs)
        # At which distances each stage reads each array, and all that it reads.
        self._uses: dict[int, dict[int, set[Offset]]] = {number: {} for number in written}
        self._reading: dict[int, set[int]] = {}
        self._decided: dict[int, bool] = {}  # whether each array is written
        for number, nodes in stages.items():
            self._note(nodes, {number: [self._zero]})

    @property
    def _space(self) -> Shape:
        return self._program.space

    @property
    def _zero(self) -> Offset:
        return (0,) * len(self._space)

    def of(self, number: int) -> RepeatedWork:
        """Return what it costs not to write an array. All later ones are decided."""
        stages, size, grid = self._uses[number], self._written[number].dtype.itemsize, self._grids[number]
        distances, own = set[Offset]().union(*stages.values()), self._cells[number]
        if not self._program.has_strides or not stages:
            again = max(len(distances) - 1, 0)
            return RepeatedWork(len(distances), again * self._operations[number], 2 * max(size, 1), 1)
        computed = sum(
            shared_cells(self._grids[stage], at, grid, self._space)
            for stage, several in stages.items()
            for at in several
        )
        operations = max(computed / own - 1, 0) * self._operations[number]
        # Each stage that reads the array reads what it is computed of, unless it does so anyway.
        sources = self._sources[number]
        further = sum(self._nbytes(one) for stage in stages for one in sources.keys() - self._reading[stage])
        further -= sum(map(self._nbytes, sources))
        parts = [
            parts_of(self._grids[stage].step, self._grids[one].step)
            for stage in stages
            for one in sources
            if one in self._grids
        ]
        nbytes = max(size, 1) * (1 + len(stages)) - further / own
        return RepeatedWork(len(distances), operations, nbytes, max(parts, default=1))

    def decide(self, number: int, *, written: bool) -> None:
        """Note whether an array is written. All later ones are decided."""
        node, stages = self._written[number], self._uses[number]
        del self._defines[node]
        self._decided[number] = written
        if written:
            self._note([node], {number: [self._zero]})
            self._defines[node] = number
            return
        for stage in stages:
            self._reading[stage].discard(number)
        self._note([node], stages)

    def _weigh(self, results: Sequence[Node], needs: Mapping[int, Mapping[Node, Demand]]) -> None:
        """Find the operations for each cell of each array, and what each is computed of.

        needs: of a function with coarse grids, where each of these operations is needed.
        """
        grids, distances = self._grids, dict[int, set[Offset]]()
        for number, wanted in [(-1, results), *((n, [node]) for n, node in self._written.items())]:
            others = self._defines.keys() - {self._written.get(number)}
            path = main_path(self._program, wanted, others.__contains__)
            reads = self._sources[number] = {}
            for node in path:
                if node.op == "load":
                    reads.setdefault(node.input, set()).add(node.offset)
                elif node in others:
                    reads.setdefault(self._defines[node], set()).add(self._zero)
            for one, several in reads.items():
                distances.setdefault(one, set()).update(several)
            counted = [one for one in path if one.op not in FREE]
            self._operations[number] = len(counted)
            if self._program.has_strides:  # operations of which some cells need none
                of_own = needs[number]
                cells = sum(math.prod(map(len, of_own[one])) for one in counted if one in of_own)
                self._operations[number] = cells / self._cells[number]
        # Arrays that are read at one distance are part of what reads them: so is their work.
        for number in self._written:
            for one, (*_, at) in self._sources[number].items():
                if one in self._written and len(distances[one]) == 1:
                    share = shared_cells(grids[number], at, grids[one], self._space) / self._cells[number]
                    self._operations[number] += share * self._operations[one]

    def _note(self, nodes: Iterable[Node], stages: Mapping[int, Iterable[Offset]]) -> None:
        """Note what nodes read that stages compute. stages: of each, at which distances from its cells."""
        for node in main_path(self._program, nodes, self._is_of_array):
            if node.op == "load":
                number, offset = node.input, node.offset
            elif self._is_of_array(node):
                number, offset = self._defines[node], self._zero
            else:
                continue
            for stage, distances in stages.items():
                self._reading.setdefault(stage, set()).add(number)
                if number not in self._uses:
                    continue
                own, other = self._grids[stage], self._grids[number]
                steps = tuple(map(math.lcm, own.step, other.step))
                near = {_near(self._space, offset, one, steps) for one in distances}
                near = {one for one in near if shared_cells(own, one, other, self._space)}
                if near:
                    self._uses[number].setdefault(stage, set()).update(near)

    def _is_of_array(self, node: Node) -> bool:
        """Return whether a node is read from an array, or may be: that of one that is decided later."""
        number = self._defines.get(node)
        return number is not None and self._decided.get(number, True)

    def _nbytes(self, number: int) -> int:
        """Return the bytes of an array, or of an input."""
        program = self._program
        if number in self._written:
            return self._cells[number] * self._written[number].dtype.itemsize
        if number < len(program.inputs):
            return math.prod(program.inputs[number].shape) * program.inputs[number].dtype.itemsize
        return math.prod(self._space) * program.dtype_between(number).itemsize


def _near(space: Shape, offset: Offset, further: Offset, steps: Sequence[int]) -> Offset:
    """Return the nearest of the distances that lead to the same cell.

    steps: of grids, per axis; around the ends of space, they go on as between them if they divide its length.
    """
    axes = zip(offset, further, space, steps, strict=True)
    return tuple(a + b if n % step else (a + b + (n - 1) // 2) % n - (n - 1) // 2 for a, b, n, step in axes)


def main_path(
    program: WholeProgram, nodes: Iterable[Node], stop: Callable[[Node], bool] | None = None
) -> list[Node]:
    """Return the nodes that most cells need: of conditions on the position, the branch of more cells.

    stop: returns whether what a node is computed of is left out. None: it never is.
    """
    found: dict[Node, None] = {}
    open_nodes = list(nodes)
    while open_nodes:
        node = open_nodes.pop()
        if node in found:
            continue
        found[node] = None
        if stop is not None and stop(node):
            continue
        if node.op == "where" and node.operands[0].op == "inside":
            axis, low, high, step = node.operands[0].value
            # One position may be half of the cells of a coarse grid.
            coarse = program.has_strides and high - low == 1
            if step == 1 and axis >= 0 and not coarse:
                length = program.space[axis]
                most = 2 * (min(high, length) - max(low, 0)) >= length
                open_nodes.append(node.operands[1 if most else 2])
                continue
        open_nodes += node.operands
    return list(found)
