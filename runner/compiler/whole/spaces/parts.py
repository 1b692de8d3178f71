"""Cut a function with Fourier transforms into parts: programs of one space each, between transforms.

A value of each cell is known after as many transforms as it depends on in a row: its level. All of one space
and one level is one part. A part writes what transforms read of it, what is a result, and what parts of
higher levels read of it; they compute again what depends on one array alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from meshrun.runner.compiler.trace.graph import FREE, Extents, Node, Operand, Program, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.between.cuts import resolved
from meshrun.runner.compiler.whole.between.numbers import numbered
from meshrun.runner.compiler.whole.between.recorded_loop import HostNumbers, RecordedLoop
from meshrun.runner.compiler.whole.graph import (
    ImportedValue,
    InputValue,
    LoopResult,
    Reduction,
    StateValue,
    StepSlot,
    WholeGraph,
)
from meshrun.runner.compiler.whole.program import (
    InputChange,
    WholeInput,
    WholeOutput,
    WholeProgram,
    WholeSeries,
)
from meshrun.runner.compiler.whole.spaces.dependence import (
    Definitions,
    SpaceDependence,
    operands_of,
    used_slots,
)
from meshrun.runner.compiler.whole.spaces.spaces import Between, FieldProduct, FieldTransform, Spaces
from meshrun.runner.region import Shape, real_dtype


@dataclass(frozen=True)
class Shared:
    """An array, or with a shape of () a value, that one part or transform writes and others read."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]


class SharedPlace(NamedTuple):
    """Of what a part reads or writes: a shared array; an input or a result of the function. number: of it."""

    number: int
    of_function: bool = False


@dataclass(frozen=True, eq=False)
class SpacePart:
    """A program of one space. reads, writes: what its inputs and results are. slots: of the function's tape,
    the one that each of its own is."""

    program: WholeProgram
    reads: tuple[SharedPlace, ...]
    writes: tuple[SharedPlace, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TransformStep:
    """A transform of one shared array to another."""

    transform: FieldTransform
    source: int
    target: int


@dataclass(frozen=True, eq=False)
class ProductStep:
    """A product of two shared arrays to another."""

    product: FieldProduct
    sources: tuple[int, int]
    target: int


@dataclass(frozen=True)
class LoopArray:
    """An array or a value of a loop's state, by numbers of shared ones.

    initial: before the first iteration; None: nothing. found: what an iteration finds, and what the loop
    leaves. final: what an iteration leaves.
    """

    initial: int | None
    found: int
    final: int | None


@dataclass(frozen=True, eq=False)
class LoopStep:
    """A loop over the steps that follow.

    line: in the user's file. kind: "for", "while" or "if". numbers: what the host knows of each iteration.
    state: what iterations pass on. first, again: numbers of the shared values that tell whether there is a
    first iteration, and another one; None: there is. steps: how many are its body.
    """

    line: int
    kind: str
    numbers: HostNumbers
    state: tuple[LoopArray, ...]
    first: int | None
    again: int | None
    steps: int


Step = SpacePart | TransformStep | ProductStep | LoopStep


@dataclass(frozen=True, eq=False)
class SpectralProgram(WholeProgram):
    """A function with Fourier transforms.

    Of its fields, those of `WholeProgram` are of the function as a whole: no node of cells is there. shared:
    arrays and values between parts. steps: parts and transforms, in an order that works.
    """

    shared: tuple[Shared, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def parts(self) -> list[SpacePart]:
        return [one for one in self.steps if isinstance(one, SpacePart)]

    @property
    def transforms(self) -> list[TransformStep]:
        return [one for one in self.steps if isinstance(one, TransformStep)]

    @property
    def products(self) -> list[ProductStep]:
        return [one for one in self.steps if isinstance(one, ProductStep)]

    @property
    def loop_steps(self) -> list[LoopStep]:
        return [one for one in self.steps if isinstance(one, LoopStep)]

    @property
    def staged(self) -> bool:
        return True

    @cached_property
    def fingerprint(self) -> tuple[str, ...]:
        words = [repr((one.reads, one.writes, one.slots)) for one in self.parts]
        words += [_text(one) for one in self.transforms]
        words += [f"product {one.sources} {one.product.turned} {one.target}" for one in self.products]
        words += [
            f"{one.kind} {one.numbers} {one.state} {one.first} {one.again} {one.steps}"
            for one in self.loop_steps
        ]
        return *words, *(text for part in self.parts for text in part.program.fingerprint)

    @cached_property
    def listing(self) -> Program:
        return Program(0, (), (Operand("", np.dtype(bool)),), (self.roots,), self.graph)

    @property
    def roots(self) -> tuple[Node, ...]:
        return tuple(node for part in self.parts for node in part.program.roots)

    @property
    def operations(self) -> int:
        return sum(part.program.operations for part in self.parts)

    @property
    def rounded(self) -> set[np.dtype[Any]]:
        found = {one.transform.dtype for one in self.transforms}
        found |= {one.product.dtype for one in self.products if one.product.dtype.kind in "fc"}
        return found.union(*(part.program.rounded for part in self.parts))

    @property
    def wraps(self) -> list[set[int]]:
        return [
            set[int]().union(*(program.wraps[place] for program, place in self._readers(number)))
            for number in range(len(self.inputs))
        ]

    def _readers(self, number: int) -> list[tuple[WholeProgram, int]]:
        """Return the parts that read an input of the function, and its number in each."""
        key = SharedPlace(number, True)
        return [(part.program, part.reads.index(key)) for part in self.parts if key in part.reads]

    def footprint(self, number: int) -> Extents:
        reads = [program.footprint(place) for program, place in self._readers(number)]
        return tuple(
            (max([0, *(one[axis][0] for one in reads)]), max([0, *(one[axis][1] for one in reads)]))
            for axis in range(len(self.space))
        )


def _text(step: TransformStep) -> str:
    one = step.transform
    return f"{one.kind} {one.inverse} {one.axes} {one.length} {one.dtype} {step.source} {step.target}"


MOST_REPEATED = 32  # operations of a cell that a later part computes again


def _operands(one: Between) -> Sequence[Node]:
    return [node for _, node in operands_of(one)]


@dataclass
class Walk:
    """What a part is made of: all nodes, operands first; what it reads; and the nodes that are read there."""

    order: dict[Node, None] = field(default_factory=dict)
    reads: dict[SharedPlace, WholeInput] = field(default_factory=dict)
    taken: dict[Node, SharedPlace] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Recorded:
    """What was recorded of a function. used: the slots of each loop that are needed. kind: of the device."""

    spaces: Spaces
    function: Callable[..., Any]
    inputs: Sequence[WholeInput]
    used: Mapping[RecordedLoop, set[int]]
    kind: str | None

    @cached_property
    def definitions(self) -> Definitions:
        return Definitions(self.spaces)


class PartsOf:
    """Cuts what was recorded into parts: of the function, but for the bodies of its loops."""

    def __init__(self, recorded: Recorded) -> None:
        spaces = recorded.spaces
        self._recorded = recorded
        self._levels: list[dict[Node, int]] = [{} for _ in spaces.recorders]
        self._sources: list[dict[Node, frozenset[int]]] = [{} for _ in spaces.recorders]
        self.shared: list[Shared] = []
        self._numbers: dict[Any, int] = {}  # of shared arrays and values, by what they are
        # What each part writes, by space and level; and the transforms that are needed, by level.
        self._wanted: dict[tuple[int, int], list[tuple[SharedPlace, WholeOutput]]] = {}
        self._transforms: dict[Between, TransformStep | ProductStep] = {}
        self._bodies: dict[RecordedLoop, BodyParts] = {}
        if not recorded.used:
            for one in spaces.transforms:  # in their order, so that none asks for many others
                self._level(one.source, _operands(one))

    def cut(
        self, outputs: Sequence[tuple[int, WholeOutput]], values: Sequence[tuple[int, Node]]
    ) -> tuple[tuple[Step, ...], list[int]]:
        """Return the steps, and the numbers of shared values.

        outputs: of the function, each with the number of its space. values: others, likewise.
        """
        for number, (space, output) in enumerate(outputs):
            self._want(space, SharedPlace(number, True), output)
        numbers = [self._value(space, node) for space, node in values]
        return self._steps(), numbers

    def _steps(self) -> tuple[Step, ...]:
        """Return the steps that write what is wanted."""
        parts: dict[tuple[int, int], SpacePart] = {}
        while self._wanted.keys() - parts.keys():
            key = max(self._wanted.keys() - parts.keys(), key=lambda one: one[1])
            parts[key] = self._part(*key)
        of_transforms = {one: self._level(one.source, _operands(one)) for one in self._transforms}
        steps: list[Step] = []
        of_loops = {one: one.level for one in self._bodies.values()}
        levels = {level for _, level in parts} | {*of_transforms.values(), *of_loops.values()}
        for level in sorted(levels):
            steps += [part for (_, at), part in sorted(parts.items(), key=lambda one: one[0]) if at == level]
            steps += [self._transforms[one] for one, at in of_transforms.items() if at == level]
            for body in (one for one, at in of_loops.items() if at == level):
                steps += [body.step, *body.steps]
        return tuple(steps)

    def _left(self, one: LoopResult | StateValue) -> int:
        """Return the number of what a loop leaves, or what an iteration finds."""
        if isinstance(one, StateValue):
            raise NotTraceable(
                "uses what an iteration of a loop finds outside of it, beside transforms or products",
                "the loop in a function of its own",
            )
        return self._body(one.loop).found[one.output]

    def _body(self, loop: RecordedLoop) -> BodyParts:
        """Return the body of a loop, in steps."""
        if loop not in self._bodies:
            self._bodies[loop] = BodyParts(self, loop)
        return self._bodies[loop]

    @property
    def _graphs(self) -> list[WholeGraph]:
        return [one.graph for one in self._recorded.spaces.recorders]

    def _want(self, space: int, place: SharedPlace, output: WholeOutput) -> None:
        level = self._level(space, output.nodes)
        self._wanted.setdefault((space, level), []).append((place, output))

    def _new(self, shape: Shape, dtype: np.dtype[Any]) -> int:
        self.shared.append(Shared(f"array {len(self.shared) + 1}", shape, dtype))
        return len(self.shared) - 1

    def _value(self, space: int, node: Node) -> int:
        """Return the number of a shared value, which is written by the part that knows it first."""
        key = "value", space, node
        if key not in self._numbers:
            number = self._numbers[key] = self._new((), node.dtype)
            self._want(
                space, SharedPlace(number), WholeOutput(f"value {number}", (), node.dtype, (node,), ())
            )
        return self._numbers[key]

    def _array(self, space: int, node: Node) -> int:
        """Return the number of the shared array that holds a node's values."""
        key = "array", space, node
        if key not in self._numbers:
            shape = self._graphs[space].space
            number = self._numbers[key] = self._new(shape, node.dtype)
            every = (1,) * len(shape)
            self._want(
                space,
                SharedPlace(number),
                WholeOutput(f"array {number + 1}", shape, node.dtype, (node,), every),
            )
        return self._numbers[key]

    def _result(self, one: Between) -> int:
        """Return the number of the shared array that a transform or a product writes."""
        if one not in self._transforms:
            sources = [self._operand(one.source, node) for node in _operands(one)]
            target = self._new(self._graphs[one.target].space, one.dtype)
            if isinstance(one, FieldProduct):
                self._transforms[one] = ProductStep(one, (sources[0], sources[1]), target)
            else:
                self._transforms[one] = TransformStep(one, sources[0], target)
        return self._transforms[one].target

    def _operand(self, space: int, node: Node) -> int:
        """Return the number of the shared array of an operand: what a transform alone wrote is read there."""
        earlier = self._recorded.definitions.results[space].get(node.input) if node.op == "load" else None
        if earlier is not None and not any(node.offset):
            return self._result(earlier)
        return self._array(space, node)

    def _level(self, space: int, nodes: Iterable[Node]) -> int:
        """Return the number of transforms and imports in a row that values depend on."""
        wanted, known = list(nodes), self._levels[space]
        for node in in_order(wanted, known):
            of: Sequence[Node] = node.operands
            if self._is_outside(space, node):
                known[node] = 0
                continue
            if node.op == "load" and node.input in self._recorded.definitions.results[space]:
                transform = self._recorded.definitions.results[space][node.input]
                known[node] = 1 + self._level(transform.source, _operands(transform))
                continue
            one = self._recorded.definitions.of(space, node)
            if isinstance(one, ImportedValue):
                known[node] = 1 + self._level(one.space, [one.node])
                continue
            if isinstance(one, (LoopResult, StateValue)):
                known[node] = self._level_of_state(one)
                continue
            of = self._operands(space, node)
            known[node] = self._level(space, of) if not node.operands else max(known[each] for each in of)
        return max((known[node] for node in wanted), default=0)

    def _is_outside(self, space: int, node: Node) -> bool:
        """Return whether a node is known before the steps that are cut."""
        return False

    def _level_of_state(self, one: LoopResult | StateValue) -> int:
        return 1 + self._body(one.loop).level if isinstance(one, LoopResult) else 0

    def _operands(self, space: int, node: Node) -> Sequence[Node]:
        """Return the nodes that a node is computed of, also by way of arrays and values."""
        graph = self._graphs[space]
        if node.op == "load":
            definition: Any = graph.between.get(node.input)
        elif node.op == "scalar":
            definition = graph.values[node.value]
        elif node.op == "pick":
            return graph.picked_nodes([node])
        else:
            return node.operands
        if isinstance(definition, Node):
            return (definition,)
        return definition.nodes if isinstance(definition, Reduction) else ()

    def _sources_of(self, space: int, node: Node) -> frozenset[int]:
        """Return the arrays that values of cells are computed of."""
        known = self._sources[space]
        for one in in_order([node], known):
            own = frozenset[int]()
            if one.op == "load" and one.input not in self._graphs[space].between:
                own = frozenset((one.input,))
            of = self._operands(space, one) if one.op != "scalar" else ()
            known[one] = own.union(*(self._sources_of(space, each) for each in of))
        return known[node]

    def _is_taken(self, space: int, level: int, node: Node) -> bool:
        """Return whether a part reads a value of a lower level from where another part has written it."""
        graph = self._graphs[space]
        if self._level(space, [node]) == level or not graph.is_stored(node):
            return False
        several = len(self._sources_of(space, node)) > 1
        return several or len(in_order([node])) > MOST_REPEATED

    def _walked(self, space: int, level: int, roots: Sequence[Node]) -> Walk:
        """Return what a part computes, and what it reads. Adds to what parts of lower levels write."""
        walk = Walk()

        def operands(node: Node) -> Sequence[Node]:
            place = self._place(space, level, node)
            if place is None:
                return self._operands(space, node)
            if place.of_function:
                one = self._recorded.inputs[place.number]
            else:
                known = self.shared[place.number]
                one = WholeInput(known.name, known.shape, known.dtype)
            walk.taken[node], walk.reads[place] = place, one
            return ()

        open_nodes = list(roots)[::-1]
        known: dict[Node, Sequence[Node]] = {}
        while open_nodes:
            node = open_nodes[-1]
            if node in walk.order:
                open_nodes.pop()
                continue
            if node not in known:
                known[node] = operands(node)
            missing = [one for one in known[node] if one not in walk.order]
            open_nodes += missing[::-1]
            if not missing:
                walk.order[node] = None
                open_nodes.pop()
        return walk

    def _place(self, space: int, level: int, node: Node) -> SharedPlace | None:
        """Return where a part reads a node's values; None: it computes them."""
        definition = self._recorded.definitions.of(space, node)
        if isinstance(definition, InputValue):
            return SharedPlace(definition.number, True)
        if isinstance(definition, (LoopResult, StateValue)):
            return SharedPlace(self._left(definition))
        if node.op == "scalar":
            if isinstance(definition, ImportedValue):
                return SharedPlace(self._value(definition.space, definition.node))
            if isinstance(definition, Reduction) and self._level(space, [node]) < level:
                return SharedPlace(self._value(space, node))
            return None
        if node.op == "load" and node.input in self._recorded.definitions.results[space]:
            return SharedPlace(self._result(self._recorded.definitions.results[space][node.input]))
        if node.op == "load" and definition is None:
            return SharedPlace(node.input, True)
        return SharedPlace(self._array(space, node)) if self._is_taken(space, level, node) else None

    def _part(self, space: int, level: int) -> SpacePart:
        """Return one part. Adds to what parts of lower levels write."""
        old, writes = self._graphs[space], self._wanted[space, level]
        walk = self._walked(space, level, [node for _, output in writes for node in output.nodes])

        # The same nodes in a graph of the part's own arrays.
        places, zero = {place: number for number, place in enumerate(walk.reads)}, (0,) * len(old.space)
        lengths = [old.space if one.shape else zero for one in walk.reads.values()]
        graph = WholeGraph(lengths, old.space)
        graph.points, graph.picked, graph.tables = old.points, list(old.picked), old.tables
        done: dict[Node, Node] = {}

        def reduction(one: Reduction) -> Reduction:
            return replace(one, nodes=tuple(done[node] for node in one.nodes))

        def leaf(node: Node) -> Node:
            place = places[walk.taken[node]] if node in walk.taken else -1
            if node.op == "scalar":
                value = old.values[node.value]
                if isinstance(value, Reduction) and place < 0:
                    return graph.value(reduction(value), node.dtype)
                if place < 0:
                    return graph.value(value, node.dtype)
                if isinstance(value, (InputValue, LoopResult, StateValue)):
                    return graph.value(InputValue(place, value.part), node.dtype)
                return _input_value(graph, place, node.dtype)
            if node.op == "load" and place >= 0:
                graph.wraps[place] |= old.wraps[node.input]
                return graph.load(place, node.dtype, node.offset, node.component)
            if node.op == "load":
                definition = old.between[node.input]
                if isinstance(definition, Reduction):
                    number = graph.reduced_array(reduction(definition)).input
                    return graph.load_at(number, node.dtype, node.offset)
                assert isinstance(definition, Node)
                if definition in walk.taken:
                    return graph.load_at(places[walk.taken[definition]], node.dtype, node.offset)
                return graph.load(graph.array_between(done[definition]), node.dtype, node.offset)
            if node.op == "table":
                return graph.table(old.tables.roots[node.input], node.value, node.offset)
            if node.op == "pick" and isinstance(picked := old.picked[node.value[1]], tuple):
                graph.picked[node.value[1]] = tuple(done[one] for one in picked)
            return graph.leaf(node)

        for node in walk.order:
            if node in walk.taken and node.op not in ("load", "scalar"):
                done[node] = graph.load(places[walk.taken[node]], node.dtype, zero)
            elif node.operands:
                operands = [done[one] for one in node.operands]
                done[node] = graph.operation(node.op, node.dtype, operands, node.line)
            else:
                done[node] = leaf(node)

        tape = copy.copy(self._recorded.spaces.recorders[0].tape)
        keys = dict(tape.slots)
        whole = WholeProgram(
            old.space,
            tuple(walk.reads.values()),
            tuple(replace(one, nodes=tuple(done[node] for node in one.nodes)) for _, one in writes),
            graph,
            {},
            between=graph.computed_arrays,
            values=graph.definitions,
            tape=tape,
        )
        program = resolved(numbered(whole, self._recorded.function), self._recorded.kind)
        slots = tuple(keys[key] for key, _ in sorted(tape.slots.items(), key=lambda one: one[1]))
        return SpacePart(program, tuple(walk.reads), tuple(place for place, _ in writes), slots)


class BodyParts(PartsOf):
    """Cuts the body of a loop into parts.

    outer: what the loop is in. level: in its steps, as of `_level`. found: of each slot that is needed, the
    number of what an iteration finds. step, steps: the loop, and its body.
    """

    def __init__(self, outer: PartsOf, loop: RecordedLoop) -> None:
        super().__init__(outer._recorded)
        if loop.checks:
            reason = NotTraceable(
                "reduces the cells that a condition picks in a loop, beside transforms or products",
                "the loop in a function of its own",
            )
            reason.line = loop.checks[0].line
            raise reason
        self._outer, self._loop, self.shared = outer, loop, outer.shared
        self._differs = SpaceDependence(outer._recorded.spaces, loop.number)
        self.level = 0
        slots = {number: loop.slots[number] for number in sorted(outer._recorded.used[loop])}
        first = None if loop.first is None else self._from_outside(0, loop.first, is_value=True)
        initials = {
            number: None
            if one.initial is None
            else self._from_outside(one.space, one.initial, is_value=one.is_value)
            for number, one in slots.items()
        }
        shapes = {n: () if one.is_value else self._graphs[one.space].space for n, one in slots.items()}
        self.found = {number: self._new(shapes[number], one.dtype) for number, one in slots.items()}
        finals: dict[int, int] = {}
        for number, one in slots.items():
            if one.final is not None:
                finals[number] = self._new(shapes[number], one.dtype)
                every = (1,) * len(shapes[number])
                output = WholeOutput(one.name, shapes[number], one.dtype, (one.final,), every)
                self._want(one.space, SharedPlace(finals[number]), output)
        again = None if loop.again is None else self._value(0, loop.again)
        self.steps = self._steps()
        self.step = LoopStep(
            loop.line,
            loop.kind,
            HostNumbers(loop.items, loop.index, tuple(loop.carried), loop.unrolled),
            tuple(LoopArray(initials[n], self.found[n], finals.get(n)) for n in slots),
            first,
            again,
            len(self.steps),
        )

    def _from_outside(self, space: int, node: Node, *, is_value: bool) -> int:
        """Return the number of a shared array or value that is there before the loop."""
        self.level = max(self.level, self._outer._level(space, [node]))
        return self._outer._value(space, node) if is_value else self._outer._operand(space, node)

    def _left(self, one: LoopResult | StateValue) -> int:
        if isinstance(one, StateValue) and one.loop == self._loop.number:
            return self.found[one.slot]
        return super()._left(one)

    def _is_outside(self, space: int, node: Node) -> bool:
        return not self._differs.of(space, node)

    def _operand(self, space: int, node: Node) -> int:
        if self._is_outside(space, node):
            return self._from_outside(space, node, is_value=False)
        return super()._operand(space, node)

    def _place(self, space: int, level: int, node: Node) -> SharedPlace | None:
        if not self._is_outside(space, node):
            return super()._place(space, level, node)
        definition = self._recorded.definitions.of(space, node)
        if isinstance(definition, InputValue):
            return SharedPlace(definition.number, True)
        if isinstance(definition, (LoopResult, StateValue)):
            self.level = max(self.level, self._outer._level(space, [node]))
            return SharedPlace(self._outer._left(definition))
        if node.op == "scalar":
            known = definition is None or isinstance(definition, StepSlot)
            return None if known else SharedPlace(self._from_outside(space, node, is_value=True))
        if node.op == "load":
            if node.input in self._recorded.definitions.results[space]:
                own = self._graphs[space].load(node.input, node.dtype, (0,) * len(node.offset))
                return SharedPlace(self._from_outside(space, own, is_value=False))
            return SharedPlace(node.input, True) if definition is None else None
        # What takes operations is computed once, before the loop.
        stored = node.op not in FREE and self._graphs[space].is_stored(node)
        return SharedPlace(self._from_outside(space, node, is_value=False)) if stored else None


def _input_value(graph: WholeGraph, place: int, dtype: np.dtype[Any]) -> Node:
    """Return a value that is an input of a part."""
    if dtype.kind != "c":
        return graph.value(InputValue(place), dtype)
    parts = [graph.value(InputValue(place, part), real_dtype(dtype)) for part in ("real", "imag")]
    return graph.operation("complex", dtype, parts)


def spectral_program(
    spaces: Spaces,
    function: Callable[..., Any],
    inputs: Sequence[WholeInput],
    outputs: Sequence[tuple[int, WholeOutput]],
    series: Sequence[WholeSeries],
    changed: Mapping[int, InputChange],
    kind: str | None,
) -> SpectralProgram:
    """Return what was recorded, in parts. Raises NotTraceable.

    outputs: each with the number of its space. kind: of the device, as of `resolved`.
    """
    main = spaces.recorders[0]
    if any(main.graph.vary(one.nodes) for one in series):
        raise NotTraceable(
            "has series of values at points beside transforms", "one function for each, or values as series"
        )
    checks = [(number, check) for number, one in enumerate(spaces.recorders) for check in one.checks]
    values = [(0, node) for one in series for node in one.nodes]
    values += [(number, check.count) for number, check in checks]
    roots = [(space, node) for space, output in outputs for node in output.nodes] + values
    made = PartsOf(Recorded(spaces, function, inputs, used_slots(spaces, roots), kind))
    steps, numbers = made.cut(outputs, values)

    # What the rest of a run asks of the function as a whole.
    graph = WholeGraph([], main.space)
    nodes = [graph.scalar(number, made.shared[number].dtype) for number in numbers]
    rows = []
    for one in series:
        own, nodes = tuple(nodes[: len(one.nodes)]), nodes[len(one.nodes) :]
        rows.append(replace(one, nodes=own))
    counts = [replace(check, count=node) for (_, check), node in zip(checks, nodes, strict=True)]
    return SpectralProgram(
        main.space,
        tuple(inputs),
        tuple(replace(one, nodes=()) for _, one in outputs),
        graph,
        changed,
        tuple(rows),
        checks=tuple(counts),
        tape=main.tape,
        shared=tuple(made.shared),
        steps=steps,
    )
