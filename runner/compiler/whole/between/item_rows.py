"""Rows that an iteration of a counted loop picks by the loop's number: `u[i] = a * u[i - 1] + u[n - 1 - i]`.

While an iteration is traced, such a row has the position of one iteration. It is traced for the first one and
for the last one. What both compute is the same but for conditions on the place: where these differ by a
multiple of what the loop's numbers do, the iteration compares the place with that multiple of its own number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshrun.runner.compiler.trace.graph import BOOL, PLACE, Node
from meshrun.runner.compiler.trace.timed import StepTape, Timed, nodes_of
from meshrun.runner.compiler.whole.array import ItemRow
from meshrun.runner.compiler.whole.between.recorded_loop import RecordedLoop
from meshrun.runner.compiler.whole.between.traced_state import NotAlike, StateTracer
from meshrun.runner.compiler.whole.graph import Reduction, StateValue, StepSlot, WholeGraph

PICKING: tuple[Callable[..., Any], ...] = (operator.add, operator.sub, operator.mul)


@dataclass
class ItemRows:
    """The rows that the loops which are traced pick by their numbers.

    items: of each loop, by the number of the tape that is its item. picked: loops that have picked rows.
    """

    tape: StepTape
    items: dict[int, range] = field(default_factory=dict)
    picked: set[int] = field(default_factory=set)

    def position(self, timed: Timed, length: int) -> ItemRow | None:
        """Return the row that a number picks in the iteration that is traced; None: it is none of a loop.

        length: of the axis. The number is a multiple of a loop's item plus a constant, and in no iteration
        below 0, where it would count from the end.
        """
        number, step, distance = timed._number, 1, 0
        while number not in self.items:
            call = self.tape.calls[number - 1] if number > 0 else None
            if call is None or call.function not in PICKING or len(call.references()) != 1:
                return None
            first, second = call.arguments
            (number,) = call.references()
            other, is_first = (first, True) if isinstance(first, int) else (second, False)
            if not isinstance(other, int) or isinstance(other, bool):
                return None
            if call.function is operator.mul:
                step *= other
            elif call.function is operator.add:
                distance += step * other
            elif is_first:
                distance, step = distance + step * other, -step
            else:
                distance -= step * other
        items = self.items[number]
        ends = [step * item + distance for item in (items[0], items[-1])]
        if min(ends) < 0 or max(ends) >= length:
            return None
        self.picked.add(number)
        return ItemRow.of(step * int(self.tape.samples[number]) + distance, number, step)


@dataclass
class IterationTrace:
    """What one iteration computes. item: its number; index: of the tape, that is the item."""

    loop: RecordedLoop
    item: int
    index: int


def with_item(tracer: StateTracer, first: IterationTrace, last: IterationTrace) -> None:
    """Let what the last iteration computes be what each one computes. Raises NotAlike if both differ."""
    if last.loop.again is not None or last.loop.checks or len(first.loop.slots) != len(last.loop.slots):
        raise NotAlike("its iterations differ")
    done: dict[tuple[Node, Node], Node] = {}
    for one, other in zip(first.loop.slots, last.loop.slots, strict=True):
        if one.space or other.space or one.final is None or other.final is None:
            raise NotAlike("it picks rows of a spectrum")
        other.final = _joined(tracer, (first, last), one.final, other.final, done)


def _joined(
    tracer: StateTracer,
    traces: tuple[IterationTrace, IterationTrace],
    first: Node,
    last: Node,
    done: dict[tuple[Node, Node], Node],
) -> Node:
    """Return what each iteration computes, of what two compute."""
    graph, open_pairs = tracer.recorder.graph, [(first, last)]
    while open_pairs:
        one, other = pair = open_pairs[-1]
        if pair in done:
            open_pairs.pop()
            continue
        if not one.operands and not other.operands:
            # Arrays that the iteration writes, and reads elsewhere, are joined by what defines them.
            definitions = [graph.between.get(node.input) if node.op == "load" else None for node in pair]
            mine, others = (_computed_of(definition) for definition in definitions)
            if mine is None or others is None:
                done[pair] = _joined_leaf(tracer, traces, one, other)
            elif (one.offset, one.component) != (other.offset, other.component):
                raise NotAlike("its iterations differ")
            elif (mine, others) not in done:
                open_pairs.append((mine, others))
            else:
                number = _array_of(graph, definitions, done[mine, others])
                done[pair] = graph.load(number, other.dtype, other.offset, other.component)
            continue
        if (one.op, one.dtype, len(one.operands)) != (other.op, other.dtype, len(other.operands)):
            raise NotAlike("its iterations differ")
        pairs = [*zip(one.operands, other.operands, strict=True)]
        if left := [each for each in pairs if each not in done]:
            open_pairs += left
            continue
        done[pair] = graph.operation(other.op, other.dtype, [done[each] for each in pairs], other.line)
    return done[first, last]


def _computed_of(definition: Any) -> Node | None:
    """Return the cells that define an array of an iteration; None if nothing that it computes does."""
    if isinstance(definition, Reduction):
        return definition.nodes[0] if len(definition.nodes) == 1 else None
    return definition if isinstance(definition, Node) else None


def _array_of(graph: WholeGraph, definitions: Sequence[Any], node: Node) -> int:
    """Return the number of an array of each iteration, by those of two. node: the cells that define it."""
    first, last = definitions
    if not isinstance(last, Reduction):
        return graph.array_between(node)
    if not isinstance(first, Reduction) or replace(first, nodes=(node,)) != replace(last, nodes=(node,)):
        raise NotAlike("its iterations differ")
    return graph.reduced_array(replace(last, nodes=(node,))).input


def _joined_leaf(
    tracer: StateTracer, traces: tuple[IterationTrace, IterationTrace], one: Node, other: Node
) -> Node:
    """Return a leaf of each iteration, of those of two."""
    graph, (first, last) = tracer.recorder.graph, traces
    if one is other:
        return other
    if one.op == other.op == "inside":
        (axis, low, high, _), (other_axis, other_low, other_high, _) = one.value, other.value
        is_row = axis == other_axis and high - low == other_high - other_low == 1
        step, rest = divmod(other_low - low, last.item - first.item)
        if is_row and rest == 0:
            item: Any = Timed(tracer.recorder.tape, last.index)
            if step != 1:
                item = item * step
            (row,) = nodes_of(graph, item + (other_low - step * last.item), PLACE).ravel()
            return graph.operation("equal", BOOL, [graph.place(axis), row], last.loop.line)
    kinds = [(node.op, node.dtype, node.offset, node.component) for node in (one, other)]
    same = kinds[0] == kinds[1]
    if same and one.op == "load":
        states = [graph.between.get(node.input) for node in (one, other)]
        if _is_same_state(traces, *states):
            return other
    if same and one.op == "scalar":
        values = [graph.values[node.value] for node in (one, other)]
        if _is_same_state(traces, *values) or _is_same_number(tracer.recorder.tape, traces, *values):
            return other
    raise NotAlike("its iterations differ")


def _is_same_state(traces: tuple[IterationTrace, IterationTrace], one: Any, other: Any) -> bool:
    """Return whether two arrays or values are the same part of the state, as each iteration finds it."""
    return (
        isinstance(one, StateValue)
        and isinstance(other, StateValue)
        and (one.loop, other.loop) == tuple(trace.loop.number for trace in traces)
        and (one.slot, one.part) == (other.slot, other.part)
    )


def _is_same_number(
    tape: StepTape, traces: tuple[IterationTrace, IterationTrace], one: Any, other: Any
) -> bool:
    """Return whether two numbers of the tape are computed alike by each iteration."""
    if not (isinstance(one, StepSlot) and isinstance(other, StepSlot)):
        return False
    keys = {slot: key for key, slot in tape.slots.items()}
    (number, *what), (other_number, *other_what) = keys[one.slot], keys[other.slot]
    # Both iterations record the same calls after their items, unless they differ.
    distance = traces[1].index - traces[0].index
    if what != other_what or other_number - number != distance:
        return False
    return all(
        _call_text(tape, at, 0) == _call_text(tape, at + distance, distance)
        for at in range(traces[0].index + 1, number + 1)
    )


def _call_text(tape: StepTape, number: int, distance: int) -> str:
    """Return a call as text. distance: of the numbers that it takes, from those of another call."""
    call = tape.calls[number - 1]
    references = [one - distance for one in call.references()]
    return f"{call.function} {references} {[one for one in call.arguments if isinstance(one, (int, float))]}"
