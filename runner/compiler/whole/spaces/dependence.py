"""What the nodes of several spaces depend on: whether they differ from iteration to iteration of a loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from meshrun.runner.compiler.trace.graph import Node, in_order
from meshrun.runner.compiler.whole.graph import (
    ImportedValue,
    LoopResult,
    Reduction,
    StateValue,
    StepSlot,
)

if TYPE_CHECKING:
    from meshrun.runner.compiler.whole.between.recorded_loop import RecordedLoop
    from meshrun.runner.compiler.whole.spaces.spaces import Between, Spaces


def operands_of(one: Between) -> tuple[tuple[int, Node], ...]:
    """Return what a transform or a product is computed of, each with the number of its space."""
    nodes = one.nodes if hasattr(one, "nodes") else (one.node,)
    return tuple((one.source, node) for node in nodes)


class Definitions:
    """What defines the arrays and values that nodes of several spaces read."""

    def __init__(self, spaces: Spaces) -> None:
        self.graphs = [one.graph for one in spaces.recorders]
        self.results, self.tape = spaces.results, spaces.recorders[0].tape

    def of(self, space: int, node: Node) -> Any:
        """Return what defines an array or a value; None for other nodes, and for inputs."""
        if node.op == "load":
            return self.results[space].get(node.input) or self.graphs[space].between.get(node.input)
        return self.graphs[space].values[node.value] if node.op == "scalar" else None

    def read(self, space: int, node: Node) -> tuple[tuple[int, Node], ...]:
        """Return the nodes by which an array or a value is defined, but for loops; each with its space."""
        definition = self.of(space, node)
        if node.op == "pick":
            return tuple((space, one) for one in self.graphs[space].picked_nodes([node]))
        if isinstance(definition, Node):
            return ((space, definition),)
        if isinstance(definition, Reduction):
            return tuple((space, one) for one in definition.nodes)
        if isinstance(definition, ImportedValue):
            return ((definition.space, definition.node),)
        is_result = node.op == "load" and node.input in self.results[space]
        return operands_of(definition) if is_result else ()


class SpaceDependence:
    """Whether nodes differ from iteration to iteration of a loop. number: of the loop."""

    def __init__(self, spaces: Spaces, number: int) -> None:
        self._definitions, self._number = Definitions(spaces), number
        self._known: dict[Node, bool] = {}

    def of(self, space: int, node: Node) -> bool:
        known = self._known
        for one in in_order([node], known):
            known[one] = (
                self._differs(self._definitions.of(space, one))
                or any(known[operand] for operand in one.operands)
                or any(self.of(*read) for read in self._definitions.read(space, one))
            )
        return known[node]

    def _differs(self, definition: Any) -> bool:
        if isinstance(definition, LoopResult):
            return bool(definition.loop.number > self._number)
        if isinstance(definition, StateValue):
            return definition.loop >= self._number
        if isinstance(definition, StepSlot):
            tape = self._definitions.tape
            numbers = {slot: key[0] for key, slot in tape.slots.items()}
            return tape.changes_in(numbers[definition.slot], self._number)
        return False


def used_slots(spaces: Spaces, roots: Iterable[tuple[int, Node]]) -> dict[RecordedLoop, set[int]]:
    """Return the slots of each loop that are needed: by what follows it, or by a later iteration.

    roots: what is needed of the function, each with the number of its space.
    """
    definitions, seen = Definitions(spaces), set[Node]()
    used: dict[RecordedLoop, set[int]] = {}
    by_number: dict[int, RecordedLoop] = {}
    open_nodes = list(roots)
    while open_nodes:
        space, root = open_nodes.pop()
        for node in in_order([root], seen):
            seen.add(node)
            open_nodes += definitions.read(space, node)
            one = definitions.of(space, node)
            if isinstance(one, LoopResult):
                loop, number = one.loop, one.output
            elif isinstance(one, StateValue):
                loop, number = by_number[one.loop], one.slot
            else:
                continue
            if loop not in used:
                used[loop], by_number[loop.number] = set(), loop
                open_nodes += [(0, end) for end in (loop.first, loop.again) if end is not None]
            if number not in used[loop]:
                used[loop].add(number)
                slot = loop.slots[number]
                open_nodes += [(slot.space, end) for end in (slot.initial, slot.final) if end is not None]
    return used
