"""Loops of a function whose iterations are computed by one program: its body.

While a function is traced, a loop is recorded in the function's own graph: the state that an iteration finds
are arrays and values without a definition, and what it leaves is computed of them. `with_bodies` makes the
body a program of its own. Its inputs are the state and what it reads from outside of the loop, which is
computed once, before the first iteration. A branch is a loop of at most one iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import FREE, Node, in_order
from meshrun.runner.compiler.trace.timed import StepTape
from meshrun.runner.compiler.whole.graph import (
    LEAVES,
    InputValue,
    LoopResult,
    Reduction,
    StateValue,
    StepSlot,
    ValueCheck,
    WholeGraph,
)
from meshrun.runner.compiler.whole.program import WholeInput, WholeOutput, WholeProgram
from meshrun.runner.region import Shape, real_dtype


@dataclass(eq=False)
class Slot:
    """One array or value of a loop's state.

    name: of the variable, for messages. dtype: of it. initial: before the first iteration; None: nothing,
    as an iteration sets it. is_value: whether all cells share it. leaf: what an iteration finds. final: what
    it leaves. space: the number of the space whose array it is; values are of the first one.
    """

    name: str
    dtype: np.dtype[Any]
    initial: Node | None
    is_value: bool
    leaf: Node | None = None
    final: Node | None = None
    space: int = 0


@dataclass(frozen=True)
class Carried:
    """A number that the host computes for each iteration of that of the last one.

    number: of the tape. initial: before the first iteration. final: after one. Both are numbers of Python, or
    numbers of the tape where `on_tape`.
    """

    number: int
    initial: Any
    final: Any
    on_tape: tuple[bool, bool]


@dataclass(frozen=True)
class HostNumbers:
    """What the host knows of each iteration.

    items: over which a loop goes; None: over no range. index: number of the tape that is the item. carried:
    other numbers of the tape that change. unrolled: iterations before these, which were traced one by one.
    """

    items: range | None
    index: int | None
    carried: tuple[Carried, ...]
    unrolled: int


@dataclass(eq=False)
class RecordedLoop:
    """A loop as it is traced.

    number: in the order in which loops begin. statement: "for", "while" or "if", and the line in the user's
    file. items: over which it goes; None: over no range. index: number of the tape that is the item. carried:
    other numbers of the tape that change. first: whether there is a first iteration; None: there is. again:
    whether another one follows, as the body knows at its end; None: it does. checks: of values in the body.
    unrolled: iterations before these, which are traced one by one.
    """

    number: int
    statement: tuple[str, int]
    items: range | None = None
    index: int | None = None
    slots: list[Slot] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    first: Node | None = None
    again: Node | None = None
    checks: tuple[ValueCheck, ...] = ()
    unrolled: int = 0

    @property
    def kind(self) -> str:
        return self.statement[0]

    @property
    def line(self) -> int:
        return self.statement[1]

    @property
    def outside(self) -> list[Node]:
        """The nodes from outside of the loop that it begins with."""
        return [one for one in (*(slot.initial for slot in self.slots), self.first) if one is not None]

    @property
    def inside(self) -> list[Node]:
        """The nodes that each iteration computes."""
        finals = [*(slot.final for slot in self.slots), self.again]
        return [one for one in finals if one is not None] + [check.count for check in self.checks]


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop, with its body as a program.

    body: its inputs are the state and what it reads from outside. inputs: what these are at first, of the
    function's graph. feeds: of each of the body's outputs, the input that it becomes in the next iteration.
    again: the output that tells whether another iteration follows. The others are as of `RecordedLoop`.
    """

    number: int
    line: int
    kind: str
    body: WholeProgram
    inputs: tuple[Node, ...]
    feeds: tuple[int | None, ...]
    first: Node | None
    again: int | None
    numbers: HostNumbers

    @property
    def text(self) -> str:
        return f"{self.kind} {self.line} {self.numbers.items} {self.feeds}"

    @property
    def outside(self) -> list[Node]:
        return [*self.inputs, *(() if self.first is None else (self.first,))]

    def mapped(self, of: Callable[[Sequence[Node], Sequence[bool]], Iterable[Node]]) -> Loop:
        """Return the loop in another graph. of: returns the nodes in it, given which of them are values."""
        are_values = [not one.shape for one in self.body.inputs] + [True] * (self.first is not None)
        nodes = list(of(self.outside, are_values))
        count = len(self.inputs)
        return replace(self, inputs=tuple(nodes[:count]), first=None if self.first is None else nodes[count])


def loops_of(definitions: Iterable[Any]) -> list[Any]:
    """Return the loops whose results are among what defines arrays and values."""
    return list(dict.fromkeys(one.loop for one in definitions if isinstance(one, LoopResult)))


def loops_within(program: WholeProgram) -> Iterator[Loop]:
    """Yield the loops of a program, each before those in its body."""
    for loop in program.loops:
        yield loop
        yield from loops_within(loop.body)


class MappedLoops:
    """Results of loops in another graph. of: as of `Loop.mapped`."""

    def __init__(self, of: Callable[[Sequence[Node], Sequence[bool]], Iterable[Node]]) -> None:
        self._of = of
        self._loops: dict[Loop, Loop] = {}

    def result(self, one: LoopResult) -> LoopResult:
        if one.loop not in self._loops:
            self._loops[one.loop] = one.loop.mapped(self._of)
        return replace(one, loop=self._loops[one.loop])


def with_bodies(program: WholeProgram, numbered: Callable[[WholeProgram], WholeProgram]) -> WholeProgram:
    """Return a traced program whose loops have programs as bodies. numbered: gives a body final numbers."""
    graph = program.graph
    if not any(isinstance(one, LoopResult) for one in (*graph.between.values(), *graph.values)):
        return program
    used = _used_results(program)
    made: dict[RecordedLoop, tuple[Loop, dict[int, int]]] = {}

    def of(one: Any) -> Any:
        if not isinstance(one, LoopResult):
            return one
        slots = used.get(one.loop)
        if slots is None or one.output not in slots:
            return one  # nothing reads it
        if one.loop not in made:
            made[one.loop] = _with_body(program, one.loop, used, numbered)
        loop, outputs = made[one.loop]
        return replace(one, loop=loop, output=outputs[one.output])

    # The definitions stay where they are: nodes name them by their numbers.
    graph.between = {number: of(one) for number, one in graph.between.items()}
    graph.values = [of(one) for one in graph.values]
    between = {number: one for number, one in graph.computed_arrays.items() if not _is_unused(one)}
    values = {n: one for n, one in program.values.items() if not _is_unused(graph.values[n])}
    found: dict[int, Any] = {n: graph.values[n] for n in values}
    return replace(program, between=between, values=found)


def _is_unused(definition: Any) -> bool:
    """Return whether something is the result of a loop that nothing reads."""
    return isinstance(definition, LoopResult) and isinstance(definition.loop, RecordedLoop)


def _definitions(graph: WholeGraph, nodes: Iterable[Node], seen: set[Node]) -> Iterator[Any]:
    """Yield what defines the arrays and values that nodes read, and what these read."""
    open_nodes = list(nodes)
    while open_nodes:
        for node in in_order([open_nodes.pop()], seen):
            seen.add(node)
            one: Any = None
            if node.op == "load":
                one = graph.between.get(node.input)
            elif node.op == "scalar":
                one = graph.values[node.value]
            elif node.op == "pick":
                open_nodes += graph.picked_nodes([node])
            if isinstance(one, Node):
                open_nodes.append(one)
            elif isinstance(one, Reduction):
                open_nodes += one.nodes
            elif one is not None:
                yield one


def _used_results(program: WholeProgram) -> dict[RecordedLoop, set[int]]:
    """Return the slots of each loop that are needed: by what follows it, or by a later iteration."""
    used: dict[RecordedLoop, set[int]] = {}
    roots = [node for output in program.outputs for node in output.nodes]
    roots += [node for series in program.series for node in series.nodes]
    roots += [one for values in program.graph.picked if isinstance(values, tuple) for one in values]
    roots += [check.count for check in program.checks]
    seen = set[Node]()
    by_number: dict[int, RecordedLoop] = {}
    open_nodes = roots
    while open_nodes:
        later: list[Node] = []
        for one in _definitions(program.graph, open_nodes, seen):
            if isinstance(one, LoopResult):
                loop, slot = one.loop, one.output
            elif isinstance(one, StateValue):
                loop, slot = by_number[one.loop], one.slot
            else:
                continue
            if loop not in used:
                used[loop], by_number[loop.number] = set(), loop
                later += [check.count for check in loop.checks]
                later += [node for node in (loop.first, loop.again) if node is not None]
            if slot not in used[loop]:
                used[loop].add(slot)
                initial, final = loop.slots[slot].initial, loop.slots[slot].final
                later += [node for node in (initial, final) if node is not None]
        open_nodes = later
    return used


def _with_body(
    program: WholeProgram,
    loop: RecordedLoop,
    used: Mapping[RecordedLoop, set[int]],
    numbered: Callable[[WholeProgram], WholeProgram],
) -> tuple[Loop, dict[int, int]]:
    """Return a loop with its body, and which of the body's outputs each used slot is.

    used: the slots of each loop that are needed.
    """
    slots = sorted(used[loop])
    dependence = LoopDependence(program.graph, program.tape, loop.number)
    # Once to know what it reads from outside, which are its first arrays; and again.
    keys: dict[Any, Shape] = {}
    for _ in range(2):
        body = _Body(program, loop, used, dependence, keys)
        ends = [loop.slots[slot].final for slot in slots]
        finals = [body.of([node]) for node in ends if node is not None]
        again = [] if loop.again is None else body.of([loop.again])
        checks = tuple(replace(one, count=body.of([one.count])[0]) for one in loop.checks)
        keys = body.keys
    order = list(keys)
    outputs = []
    for slot, nodes in zip(slots, finals, strict=True):
        one = loop.slots[slot]
        shape = () if one.is_value else program.space
        every = () if one.is_value else (1,) * len(program.space)
        outputs.append(WholeOutput(one.name, shape, one.dtype, tuple(nodes), every))
    if again:
        outputs.append(WholeOutput("again", (), np.dtype(bool), tuple(again), ()))
    inputs = tuple(body.input(key) for key in order)
    values = body.graph.definitions
    tape = replace(program.tape, slots=dict(program.tape.slots))
    made = WholeProgram(
        program.space,
        inputs,
        tuple(outputs),
        body.graph,
        {},
        (),
        body.graph.computed_arrays,
        values,
        checks,
        tape,
    )
    feeds = [order.index(("slot", slot)) if ("slot", slot) in keys else None for slot in slots]
    found = Loop(
        loop.number,
        loop.line,
        loop.kind,
        numbered(made),
        tuple(body.outside(key) for key in order),
        tuple(feeds + [None] * len(again)),
        loop.first,
        len(slots) if again else None,
        HostNumbers(loop.items, loop.index, tuple(loop.carried), loop.unrolled),
    )
    return found, {slot: place for place, slot in enumerate(slots)}


class LoopDependence:
    """Whether nodes differ from iteration to iteration of a loop. number: of the loop."""

    def __init__(self, graph: WholeGraph, tape: StepTape, number: int) -> None:
        self._graph, self._tape, self._number = graph, tape, number
        self._known: dict[Node, bool] = {}
        self._slots = {slot: key[0] for key, slot in tape.slots.items()}

    def of(self, node: Node) -> bool:
        known = self._known
        for one in in_order([node], known):
            definition: Any = None
            if one.op == "load":
                definition = self._graph.between.get(one.input)
            elif one.op == "scalar":
                definition = self._graph.values[one.value]
            elif one.op not in LEAVES:
                known[one] = any(known[operand] for operand in one.operands)
                continue
            known[one] = self._defined(definition)
        return known[node]

    def nodes(self, nodes: Iterable[Node]) -> set[Node]:
        """Return what an iteration computes for nodes, also for reductions and before the loops within it.

        Of what does not differ from iteration to iteration, only the last node is among them.
        """
        seen, open_nodes = set[Node](), list(nodes)
        while open_nodes:
            node = open_nodes.pop()
            if node in seen:
                continue
            seen.add(node)
            if not self.of(node):
                continue
            open_nodes += node.operands
            definition: Any = None
            if node.op == "load":
                definition = self._graph.between[node.input]
            elif node.op == "scalar":
                definition = self._graph.values[node.value]
            if isinstance(definition, Node):
                open_nodes.append(definition)
            elif isinstance(definition, Reduction):
                open_nodes += definition.nodes
            elif isinstance(definition, LoopResult):
                open_nodes += definition.loop.outside
        return seen

    def _defined(self, definition: Any) -> bool:
        if isinstance(definition, Node):
            return self.of(definition)
        if isinstance(definition, Reduction):
            return any(map(self.of, definition.nodes))
        if isinstance(definition, LoopResult):
            return bool(definition.loop.number > self._number)
        if isinstance(definition, StateValue):
            return definition.loop >= self._number
        if isinstance(definition, StepSlot):
            return self._tape.changes_in(self._slots[definition.slot], self._number)
        return False


class _Body:
    """Makes the graph of a loop's body. keys: what it reads from outside, each with its lengths."""

    def __init__(
        self,
        program: WholeProgram,
        loop: RecordedLoop,
        used: Mapping[RecordedLoop, set[int]],
        dependence: LoopDependence,
        keys: Mapping[Any, Shape],
    ) -> None:
        self._program, self._loop, self._used, self._depends = program, loop, used, dependence.of
        self.keys: dict[Any, Shape] = dict(keys)
        self.graph = WholeGraph(list(keys.values()), program.space)
        self._numbers = {key: number for number, key in enumerate(keys)}
        self._arrays: dict[int, int] = {}  # between stages, by their numbers in the function's graph
        self._loops: dict[RecordedLoop, RecordedLoop] = {}
        self._done: dict[Node, Node] = {}
        for slot in sorted(used[loop]):
            one = loop.slots[slot]
            if one.initial is not None:
                self._number(("slot", slot), self._zero if one.is_value else program.space)

    @property
    def _zero(self) -> Shape:
        """No offset, or no length, along any axis."""
        return (0,) * len(self.graph.space)

    def _number(self, key: Any, lengths: Shape) -> int:
        if key not in self._numbers:
            self.keys[key] = lengths
            self._numbers[key] = self.graph.new_array(lengths)
        return self._numbers[key]

    def input(self, key: Any) -> WholeInput:
        """Return an input of the body."""
        kind: str
        what: Any
        kind, what = key
        if kind == "slot":
            slot = self._loop.slots[what]
            return WholeInput(slot.name, () if slot.is_value else self._program.space, slot.dtype)
        if kind == "value":
            return WholeInput("value", (), what.dtype)
        if kind == "array" and what.input < len(self._program.inputs):
            given: WholeInput = self._program.inputs[what.input]
            return given
        node = self.outside(key)
        return WholeInput("array", self._program.space, node.dtype)

    def outside(self, key: tuple[str, Any]) -> Node:
        """Return what an input of the body is at first."""
        what: Any
        kind, what = key
        if kind == "slot":
            initial: Node | None = self._loop.slots[what].initial
            assert initial is not None
            return initial
        node: Node = what
        return node

    def of(self, nodes: Iterable[Node]) -> list[Node]:
        """Return nodes of the function's graph as nodes of the body's."""
        wanted, done = list(nodes), self._done
        open_nodes = list(wanted)
        while open_nodes:
            node = open_nodes[-1]
            if node in done:
                open_nodes.pop()
                continue
            made = self._from_outside(node) if not self._depends(node) else None
            if made is None and node.op not in LEAVES:
                left = [one for one in node.operands if one not in done]
                if left:
                    open_nodes += left
                    continue
                operands = [done[one] for one in node.operands]
                made = self.graph.operation(node.op, node.dtype, operands, node.line)
            done[node] = made if made is not None else self._leaf(node)
            open_nodes.pop()
        return [done[node] for node in wanted]

    def _from_outside(self, node: Node) -> Node | None:
        """Return the input that a node is whose value is the same in all iterations; None: it is computed."""
        source = self._program.graph
        leaves = source.dependence(node).leaves
        if node.op in ("constant", "place", "inside"):
            return self.graph.leaf(node)
        if node.op == "load":
            number = self._number_of_load(node)
            self.graph.wraps[number] |= source.wraps[node.input]
            return self.graph.load_at(number, node.dtype, node.offset, node.component)
        if node.op == "table":
            return self._stored(node)
        if not leaves:
            scalars = [one for one in in_order([node]) if one.op == "scalar"]
            if all(isinstance(source.values[one.value], StepSlot) for one in scalars):
                return self._slot(node) if node.op == "scalar" else None
            return self._value(("value", node), node.dtype)
        works = any(one.op not in FREE for one in in_order([node]))
        return self._stored(node) if works and ("load" in leaves or "table" in leaves) else None

    def _number_of_load(self, node: Node) -> int:
        source = self._program.graph
        own = source.load(node.input, node.dtype, self._zero)
        return self._number(("array", own), source.lengths[node.input])

    def _stored(self, node: Node) -> Node:
        """Return a node that is computed once, before the loop, and stored in an array."""
        number = self._number(("node", node), self._program.space)
        return self.graph.load_at(number, node.dtype, self._zero)

    def _value(self, key: Any, dtype: np.dtype[Any]) -> Node:
        number = self._number(key, self._zero)
        if dtype.kind != "c":
            return self.graph.value(InputValue(number), dtype)
        parts = [self.graph.value(InputValue(number, part), real_dtype(dtype)) for part in ("real", "imag")]
        return self.graph.operation("complex", dtype, parts)

    def _slot(self, node: Node) -> Node:
        definition = self._program.graph.values[node.value]
        assert isinstance(definition, StepSlot)
        return self.graph.step_slot(definition.slot, node.dtype)

    def _leaf(self, node: Node) -> Node:
        """Return a leaf that differs from iteration to iteration."""
        source, graph = self._program.graph, self.graph
        if node.op == "load":
            state = source.between[node.input]
            if isinstance(state, StateValue) and state.loop == self._loop.number:
                array = self._number(("slot", state.slot), source.lengths[node.input])
            else:
                array = self._between(node.input)
                if isinstance(graph.between[array], Node):
                    return graph.load(array, node.dtype, node.offset)
            graph.wraps[array] |= source.wraps[node.input]
            return graph.load_at(array, node.dtype, node.offset)
        assert node.op == "scalar", node.op
        definition = source.values[node.value]
        if isinstance(definition, StateValue):
            if definition.loop == self._loop.number:
                number = self._number(("slot", definition.slot), self._zero)
                return graph.value(InputValue(number, definition.part), node.dtype)
            return graph.value(definition, node.dtype)
        if isinstance(definition, StepSlot):
            return self._slot(node)
        if isinstance(definition, LoopResult):
            return graph.value(replace(definition, loop=self._copied(definition.loop)), node.dtype)
        if isinstance(definition, Reduction):
            return graph.value(replace(definition, nodes=tuple(self.of(definition.nodes))), node.dtype)
        assert isinstance(definition, Node)
        return graph.value(self.of([definition])[0], node.dtype)

    def _between(self, number: int) -> int:
        """Return an array between stages of the body, or of the state of a loop within it."""
        if number not in self._arrays:
            definition = self._program.graph.between[number]
            if isinstance(definition, Node):
                made = self.graph.array_between(self.of([definition])[0])
            elif isinstance(definition, Reduction):
                nodes = tuple(self.of(definition.nodes))
                made = self.graph.reduced_array(replace(definition, nodes=nodes)).input
            elif isinstance(definition, StateValue):
                made = self.graph.new_array(self._program.graph.lengths[number])
                self.graph.between[made] = definition
            else:
                made = self.graph.left_array(replace(definition, loop=self._copied(definition.loop))).input
            self._arrays[number] = made
        return self._arrays[number]

    def _copied(self, loop: RecordedLoop) -> RecordedLoop:
        """Return a loop within this one, in the body's graph."""
        if loop in self._loops:
            return self._loops[loop]

        def one(node: Node | None) -> Node | None:
            return None if node is None else self.of([node])[0]

        copied = self._loops[loop] = replace(loop, slots=[])
        needed = self._used.get(loop, set())
        copied.slots = [
            replace(slot, initial=one(slot.initial), final=one(slot.final), leaf=None)
            if number in needed
            else replace(slot, initial=None, final=None, leaf=None)
            for number, slot in enumerate(loop.slots)
        ]
        copied.first, copied.again = one(loop.first), one(loop.again)
        copied.checks = tuple(replace(check, count=self.of([check.count])[0]) for check in loop.checks)
        return copied
