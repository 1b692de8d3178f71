"""What a recorded loop leaves: the state after it, by the state after an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.control.plain import LocalState
from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.trace.timed import Timed
from meshrun.runner.compiler.whole.array import Along, Storage, Tracing, Whole, made_scalar
from meshrun.runner.compiler.whole.between.iteration_changes import TracedBody, check_storage
from meshrun.runner.compiler.whole.between.recorded_loop import RecordedLoop, Slot
from meshrun.runner.compiler.whole.between.traced_state import (
    IterationJournal,
    NotAlike,
    StateTracer,
    over,
    scalar_like,
    weak_as,
)
from meshrun.runner.compiler.whole.graph import LoopResult, StateValue
from meshrun.runner.compiler.whole.spaces.dependence import SpaceDependence
from meshrun.runner.region import real_dtype

MOST_COUNTED = 10_000  # iterations for which a number at the end is computed while the function is traced


def leave_state(
    tracer: StateTracer, loop: RecordedLoop, state: LocalState, traced: TracedBody, journal: IterationJournal
) -> None:
    """Leave the state as it is after the loop."""
    results: dict[Storage, list[Node]] = {}  # by the storage that an iteration leaves
    for storage, end in traced.ends.items():
        numbers = [loop.slots.index(slot) for slot in traced.slots[storage]]
        results[end] = [_result(tracer, loop, number) for number in numbers]
    # Storages that are the function's own keep their place.
    stores: dict[Storage, Storage] = {}
    for storage in traced.changes.written:
        storage.nodes[:] = results[traced.ends[storage]]
        tracer.recorder.note_written(storage)
        stores[storage] = storage
    _leave_moved(tracer, loop, traced, results, journal)
    replaced: dict[tuple[Any, ...], Any] = {}
    for path, value in traced.after.items():
        if path in traced.value_slots:
            slot = traced.value_slots[path]
            found = _result(tracer, loop, loop.slots.index(slot))
            replaced[path] = scalar_like(traced.changes.values[path], found)
        elif path in traced.result_slots:
            numbers = [loop.slots.index(slot) for slot in traced.result_slots[path]]
            extents = value._storage.extents
            replaced[path] = over(value, Storage([_result(tracer, loop, n) for n in numbers], extents))
        elif (isinstance(value, Timed) and tracer.recorder.tape.changes_in(value._number, loop.number)) or (
            path in traced.changes.numbers and loop.first is not None
        ):
            replaced[path] = _last_number(tracer, loop, traced, path, value)
        elif isinstance(value, Whole):
            end = value._storage
            if end not in stores:
                stores[end] = _stored(tracer, loop, path[0], value, results)
            replaced[path] = over(value, stores[end])
        else:
            replaced[path] = value
    tracer.bind(state, traced.end, replaced)


def _stored(
    tracer: StateTracer, loop: RecordedLoop, name: Any, value: Whole, results: Mapping[Storage, list[Node]]
) -> Storage:
    """Return the memory of an array after the loop: of the state, or one that an iteration makes."""
    end = value._storage
    if end in results:
        return Storage(list(results[end]), end.extents)
    number = tracer.space_of(value._recorder)
    depends = SpaceDependence(tracer.recorder.spaces, loop.number)
    if not any(depends.of(number, node) for node in end.nodes):
        return end
    extents = dict(end.extents)
    if extents or value._axes:  # a row of a field is kept as a field, of which it is a row
        space = value._recorder.space
        extents |= {axis: Along(axis, 0, 1, space[axis]) for axis in value._fixed if axis not in extents}
        extents = dict(sorted(extents.items()))
    check_storage(value._recorder, Storage(end.nodes, extents), str(name))
    nodes = []
    for node in end.nodes:
        slot = Slot(str(name), node.dtype, None, not extents, final=node, space=number)
        loop.slots.append(slot)
        nodes.append(_result(tracer, loop, len(loop.slots) - 1))
    return Storage(nodes, extents)


def _leave_moved(
    tracer: StateTracer,
    loop: RecordedLoop,
    traced: TracedBody,
    results: Mapping[Storage, list[Node]],
    journal: IterationJournal,
) -> None:
    """Leave what is in memory that other memory takes the place of, for other names of it.

    If nothing reads it, it is not computed.
    """
    recorder = tracer.recorder
    _check_spectra(tracer, traced, journal)
    of_stand = {stand: storage for storage, stand in traced.stands.items()}
    next_of = {storage: of_stand.get(traced.ends[storage]) for storage in traced.changes.moved}
    for storage in traced.changes.moved:
        stand = traced.stands[storage]
        if loop.kind == "if":
            if stand in journal.written:
                _keep_first(tracer, loop, traced, storage, stand.nodes)
            continue
        # The names that memory has, iteration by iteration, until it has the first one again.
        cycle = [storage]
        while (following := next_of[cycle[-1]]) not in (storage, None):
            assert following is not None
            cycle.append(following)
        if next_of[cycle[-1]] is None:
            if len(cycle) > 1 and any(traced.stands[one] in journal.written for one in cycle):
                raise NotAlike(f"{traced.changes.names[storage]} is written, and then has another name")
            if stand in journal.written:
                _keep_first(tracer, loop, traced, storage, stand.nodes)
            continue
        if not any(traced.stands[one] in journal.written for one in cycle):
            continue
        count, length = loop.items, len(cycle)
        # Memory number p is named r after n iterations if r is n places before p in the cycle.
        if count is not None and loop.again is None:
            name = cycle[-len(count) % length]
            nodes = results[traced.ends[name]]
        else:
            nodes = _by_count(tracer, loop, traced, cycle, results)
        recorder.note_write(storage)
        storage.nodes[:] = nodes
        if not storage.changed:
            storage.changed, storage.line = True, loop.line


def _check_spectra(tracer: StateTracer, traced: TracedBody, journal: IterationJournal) -> None:
    """Raise NotAlike for memory of another space that is written, and then has another name."""
    changes = traced.changes
    for storage in changes.moved:
        elsewhere = changes.recorders.get(storage) not in (None, tracer.recorder)
        if elsewhere and traced.stands[storage] in journal.written:
            raise NotAlike(f"{changes.names[storage]} is written, and then has another name")


def _keep_first(
    tracer: StateTracer, loop: RecordedLoop, traced: TracedBody, storage: Storage, nodes: Sequence[Node]
) -> None:
    """Leave what the first iteration writes into memory that it then replaces. nodes: at its end."""
    graph = tracer.recorder.graph
    first = graph.truth(True)
    if loop.kind != "if":
        count = loop.slots[_counter(tracer, loop, traced)].leaf
        assert count is not None
        none = graph.constant(0, count.dtype)
        first = graph.operation("equal", np.dtype(bool), [count, none], loop.line)
    slots = [
        new_slot(tracer, loop, "array", node, tracer.recorder, is_value=not storage.extents)
        for node in storage.nodes
    ]
    for slot, node in zip(slots, nodes, strict=True):
        assert slot.leaf is not None
        slot.final = graph.operation("where", slot.dtype, [first, node, slot.leaf], loop.line)
    tracer.recorder.note_write(storage)
    storage.nodes[:] = [_result(tracer, loop, loop.slots.index(slot)) for slot in slots]
    if not storage.changed:
        storage.changed, storage.line = True, loop.line


def _counter(tracer: StateTracer, loop: RecordedLoop, traced: TracedBody) -> int:
    """Return the slot of the number of iterations so far."""
    if traced.counter is None:
        graph, kind = tracer.recorder.graph, np.dtype(np.int64)
        zero = graph.constant(0, kind)
        slot = new_slot(tracer, loop, "iterations", zero, tracer.recorder, is_value=True)
        assert slot.leaf is not None
        slot.final = graph.operation("add", kind, [slot.leaf, graph.constant(1, kind)], loop.line)
        traced.counter = len(loop.slots) - 1
    return traced.counter


def _by_count(
    tracer: StateTracer,
    loop: RecordedLoop,
    traced: TracedBody,
    cycle: Sequence[Storage],
    results: Mapping[Storage, list[Node]],
) -> list[Node]:
    """Return what memory has, which depends on the number of iterations."""
    graph = tracer.recorder.graph
    kind = np.dtype(np.int64)
    done = _result(tracer, loop, _counter(tracer, loop, traced))
    count = graph.operation("remainder", kind, [done, graph.constant(len(cycle), kind)], loop.line)
    nodes = results[traced.ends[cycle[0]]]
    for after in range(1, len(cycle)):
        others = results[traced.ends[cycle[-after]]]
        here = graph.operation("equal", np.dtype(bool), [count, graph.constant(after, kind)], loop.line)
        nodes = [
            graph.operation("where", one.dtype, [here, other, one], loop.line)
            for one, other in zip(nodes, others, strict=True)
        ]
    return nodes


def new_slot(
    tracer: StateTracer, loop: RecordedLoop, name: str, initial: Node, recorder: Tracing, *, is_value: bool
) -> Slot:
    """Return a further slot of the state, with what an iteration finds. recorder: of its space."""
    graph, number, dtype = recorder.graph, len(loop.slots), initial.dtype
    slot = Slot(name, dtype, initial, is_value, space=tracer.space_of(recorder))
    if is_value:
        if dtype.kind == "c":
            parts = [
                graph.value(StateValue(loop.number, number, part), real_dtype(dtype))
                for part in ("real", "imag")
            ]
            slot.leaf = graph.operation("complex", dtype, parts)
        else:
            slot.leaf = graph.value(StateValue(loop.number, number), dtype)
    else:
        array = graph.new_array(graph.space)
        graph.between[array] = StateValue(loop.number, number)
        slot.leaf = graph.load(array, dtype, (0,) * len(graph.space))
    loop.slots.append(slot)
    return slot


def _result(tracer: StateTracer, loop: RecordedLoop, number: int) -> Node:
    """Return what a slot of the state is after the loop."""
    slot = loop.slots[number]
    graph = tracer.graph_of(slot.space)
    if not slot.is_value:
        return graph.left_array(LoopResult(loop, number, slot.dtype))
    if slot.dtype.kind != "c":
        return graph.value(LoopResult(loop, number, slot.dtype), slot.dtype)
    kind = real_dtype(slot.dtype)
    parts = [graph.value(LoopResult(loop, number, kind, part), kind) for part in ("real", "imag")]
    return graph.operation("complex", slot.dtype, parts)


def _last_number(
    tracer: StateTracer, loop: RecordedLoop, traced: TracedBody, path: tuple[Any, ...], value: Any
) -> Any:
    """Return a number after the loop: of Python if it is known, else a value."""
    tape, items = tracer.recorder.tape, loop.items
    if (
        isinstance(value, Timed)
        and loop.kind == "for"
        and items is not None
        and loop.again is None
        and len(items) <= MOST_COUNTED
    ):
        outside = [one.initial for one in loop.carried if one.on_tape[0]]
        others = {number: one for number, one in tape.loops.items() if one != loop.number}
        numbers = {one.number for one in loop.carried} | {loop.index}
        if not outside and not _reads_any(tape, value._number, {0, *others}, numbers):
            return _counted(tracer, loop, value._number)
    last = tracer.as_alike(value)
    (node,) = last.read().ravel()
    initial = None
    if path in traced.changes.numbers:
        (initial,) = tracer.as_alike(traced.changes.numbers[path]).read().ravel()
    slot = Slot(str(path[0]), node.dtype, initial, True, final=node)
    loop.slots.append(slot)
    found = made_scalar(tracer.recorder, {}, _result(tracer, loop, len(loop.slots) - 1))
    return weak_as(found, last._weak)


def _counted(tracer: StateTracer, loop: RecordedLoop, number: int) -> Any:
    """Return a number of the tape in the last iteration."""
    assert loop.items is not None
    tape, given = tracer.recorder.tape, {one.number: one.initial for one in loop.carried}
    for item in loop.items:
        if loop.index is not None:
            given[loop.index] = item
        with np.errstate(all="ignore"):
            numbers = tape.numbers(0, given)
        for one in loop.carried:
            given[one.number] = numbers[one.final] if one.on_tape[1] else one.final
    return numbers[number]


def _reads_any(tape: Any, number: int, wanted: set[int], but: set[Any]) -> bool:
    """Return whether a number of a tape is computed of some."""
    if number in but:
        return False
    if number in wanted:
        return True
    return number > 0 and any(
        _reads_any(tape, one, wanted, but) for one in tape.calls[number - 1].references()
    )
