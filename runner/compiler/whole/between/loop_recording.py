"""Loops are recorded: an iteration is traced to learn what it changes, and again with stand-ins for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from meshrun.runner.compiler.control.plain import LocalState
from meshrun.runner.compiler.trace.array import MOST_NODES
from meshrun.runner.compiler.trace.graph import in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import Timed
from meshrun.runner.compiler.whole.array import Storage, Whole
from meshrun.runner.compiler.whole.between.item_rows import ItemRows, IterationTrace, with_item
from meshrun.runner.compiler.whole.between.iteration_changes import (
    Changes,
    TracedBody,
    changes_of,
    check_storage,
    joined_changes,
)
from meshrun.runner.compiler.whole.between.loop_results import leave_state, new_slot
from meshrun.runner.compiler.whole.between.recorded_loop import Carried, LoopDependence, RecordedLoop
from meshrun.runner.compiler.whole.between.traced_state import (
    RESULT,
    IterationJournal,
    Leaf,
    NotAlike,
    StateTracer,
    are_unchanged,
    copies_of,
    errors_refused,
    is_traced,
    over,
    scalar_like,
)
from meshrun.runner.compiler.whole.graph import LoopResult, Reduction, StateValue

FEW_WITH_TRANSFORMS = 16  # iterations of a counted loop that are traced one by one beside transforms
PART_HINT = "a copy of the part, as in np.fft.ifft2(spectrum).real.copy()"
SHARED_HINT = "an array of its own for each variable, by .copy()"
HINT = "arrays of one shape and dtype in all iterations, and values such as np.float64(0) for numbers"


class MoreChanges(Exception):
    """An iteration changes more than the first one did, or picks rows by its number.

    changes: what it is now. first: an iteration that picks rows.
    """

    def __init__(self, changes: Changes, first: IterationTrace | None = None) -> None:
        super().__init__()
        self.changes, self.first = changes, first


def record_loop(
    tracer: StateTracer,
    loop: RecordedLoop,
    state: LocalState,
    body: Callable[[Any], None],
    more: Callable[[], Any] | None = None,
    *,
    unrolled: bool = False,
) -> None:
    """Trace a loop, and leave the state as it is after it.

    more: returns the condition of another iteration. unrolled: whether its iterations may be traced one
    by one instead. Raises NotAlike or NotTraceable; then nothing is changed.
    """
    values, copies = state.get(), copies_of(state.get())

    def iteration(item: Any) -> None:
        with errors_refused():
            body(item)

    try:
        # What does an iteration change?
        with tracer.journal() as journal:
            try:
                item = None if loop.items is None else loop.items[0]
                before, after = tracer.run(state, lambda: iteration(item))
                few = loop.items is not None and len(loop.items) <= FEW_WITH_TRANSFORMS
                if unrolled and few and tracer.recorder.spaces.transforms:
                    raise NotAlike("its few iterations are parts between transforms")
                if not are_unchanged(copies):
                    raise NotAlike("a list, dictionary or array of Python's changes")
                known = changes_of(tracer, before, after, journal, [])
                coarse = [one for one in (*known.moved, *known.written) if _is_coarse(one)]
                if unrolled and coarse:  # its levels are planned in one program
                    raise NotAlike(f"{known.names.get(coarse[0])} is of a coarse grid")
            finally:
                tracer.undo(journal, state, values, copies)
        first: IterationTrace | None = None  # of a loop that picks rows by its number
        while True:
            with tracer.journal() as journal:
                try:
                    known.item = 0 if loop.items is None else loop.items[-1 if first is not None else 0]
                    traced = _trace_body(tracer, loop, state, values, known, iteration, more, journal)
                    first = _by_its_rows(tracer, loop, first, known)
                    if unrolled and _is_of_cells(tracer, loop):
                        raise NotAlike("it computes each cell by itself")
                    leave_state(tracer, loop, state, traced, journal)
                    break
                except MoreChanges as more_changes:
                    tracer.undo(journal, state, values, copies)
                    known, first = more_changes.changes, more_changes.first
                    loop = replace(loop, slots=[], carried=[])
                except BaseException:
                    tracer.undo(journal, state, values, copies)
                    raise
    except NotAlike as reason:
        if unrolled:
            raise
        what = {"if": "branches", "while": "loops"}.get(loop.kind, "loops")
        hint = SHARED_HINT if "memory" in str(reason) else HINT
        hint = PART_HINT if "part of an array" in str(reason) else hint
        failure = NotTraceable(f"{what} on a value, and {reason}", hint)
        failure.line = loop.line
        raise failure from None


def _by_its_rows(
    tracer: StateTracer, loop: RecordedLoop, first: IterationTrace | None, known: Changes
) -> IterationTrace | None:
    """Let a loop pick rows by its number, if it does. Raises MoreChanges to have the last iteration traced.

    first: the first iteration; None while it is traced.
    """
    rows = tracer.recorder.item_rows
    if loop.index is None or rows is None or loop.index not in rows.picked:
        return first
    own = IterationTrace(loop, known.item, loop.index)
    if first is None:
        raise MoreChanges(known, own)
    with_item(tracer, first, own)
    return first


def _trace_body(
    tracer: StateTracer,
    loop: RecordedLoop,
    state: LocalState,
    values: Sequence[Any],
    known: Changes,
    body: Callable[[Any], None],
    more: Callable[[], Any] | None,
    journal: IterationJournal,
) -> TracedBody:
    """Trace an iteration with stand-ins for the state that is known to change."""
    recorder, tape = tracer.recorder, tracer.recorder.tape
    loop.number = next(tracer.loop_numbers)
    leaves = [Leaf(one.path, tracer.alone(one.value)) for one in tracer.leaves(state, values)]

    traced, scalars = _stand_in(tracer, loop, state, values, known, leaves)
    item: Any = None
    if loop.kind == "for" and loop.items is not None:
        item = tape.of_loop(loop.number, known.item)
        loop.index = item._number
        if recorder.item_rows is None:
            recorder.item_rows = ItemRows(tape)
        recorder.item_rows.items[loop.index] = loop.items

    checks, chosen = len(recorder.checks), len(recorder.chosen)
    born = next(Storage.numbers)
    before, after = tracer.run(state, lambda: body(item))
    stands = [*traced.stands.values(), *scalars]
    inner = IterationJournal(born, checks, chosen, journal.written)
    found = changes_of(tracer, before, after, inner, stands)
    extra = [one for one in (*found.moved, *found.written) if one not in stands]
    turned = [path for path in known.numbers if path in found.values]
    paths = {*known.numbers, *known.values}
    if extra or turned or not {*found.numbers, *found.values} <= paths:
        wider = joined_changes(tracer, known, found, extra, turned)
        wider.returned = {one.path: one.value for one in leaves if one.path in found.returned}
        raise MoreChanges(wider)
    if more is not None:
        wanted = more()
        loop.again = tracer.condition(wanted) if is_traced(wanted) else None
        if loop.again is None and not wanted:
            loop.again = recorder.graph.truth(False)
    loop.checks = tuple(recorder.checks[checks:])
    del recorder.checks[checks:], recorder.chosen[chosen:]

    _note_ends(tracer, loop, state, traced, found, after)
    return traced


def _stand_in(
    tracer: StateTracer,
    loop: RecordedLoop,
    state: LocalState,
    values: Sequence[Any],
    known: Changes,
    leaves: Sequence[Leaf],
) -> tuple[TracedBody, list[Storage]]:
    """Bind the variables to stand-ins. Return these, and the memory of those that are numbers."""
    recorder, tape = tracer.recorder, tracer.recorder.tape
    traced = TracedBody(known)
    for path, one in known.returned.items():
        traced.result_slots[path] = [
            new_slot(tracer, loop, RESULT, node, one._recorder, is_value=not one._storage.extents)
            for node in one._storage.nodes
        ]
        check_storage(one._recorder, one._storage, "what is returned")

    # Stand-ins: in place for what is only written, new ones for what others take the place of.
    for storage in (*known.moved, *known.written):
        name, is_value = known.names.get(storage, "array"), not storage.extents
        space = known.recorders.get(storage, recorder)
        slots = [new_slot(tracer, loop, name, node, space, is_value=is_value) for node in storage.nodes]
        nodes = [slot.leaf for slot in slots if slot.leaf is not None]
        traced.slots[storage] = slots
        if storage in known.written:
            recorder.note_write(storage)
            storage.nodes[:] = nodes
            traced.stands[storage] = storage
        else:
            traced.stands[storage] = Storage(nodes, storage.extents)
    replaced: dict[tuple[Any, ...], Any] = {}
    scalars: list[Storage] = []
    for leaf in leaves:
        value = leaf.value
        if leaf.path in known.numbers:
            sample = value.sample if isinstance(value, Timed) else value
            traced.tape[leaf.path] = tape.of_loop(loop.number, sample)
            replaced[leaf.path] = traced.tape[leaf.path]
        elif leaf.path in known.values:
            initial = known.values[leaf.path]
            (node,) = initial.read().ravel()
            slot = traced.value_slots[leaf.path] = new_slot(
                tracer, loop, leaf.name, node, recorder, is_value=True
            )
            assert slot.leaf is not None
            scalar = replaced[leaf.path] = scalar_like(initial, slot.leaf)
            scalars.append(scalar._storage)
        elif isinstance(value, Whole) and value._storage in traced.stands:
            stand = traced.stands[value._storage]
            replaced[leaf.path] = value if stand is value._storage else over(value, stand)
    tracer.bind(state, values, replaced)
    return traced, scalars


def _note_ends(
    tracer: StateTracer,
    loop: RecordedLoop,
    state: LocalState,
    traced: TracedBody,
    found: Changes,
    after: Sequence[Leaf],
) -> None:
    """Note what an iteration leaves of the state."""
    # What it leaves.
    ends = {one.path: one.value for one in after}
    for storage, stand in traced.stands.items():
        end = found.mapping.get(stand, stand)
        traced.ends[storage] = end
        for slot, node in zip(traced.slots[storage], end.nodes, strict=True):
            slot.final = node
    for path, slot in traced.value_slots.items():
        (slot.final,) = tracer.as_alike(ends[path]).read().ravel()
    for path, timed in traced.tape.items():
        initial, final = traced.changes.numbers[path], ends[path]
        loop.carried.append(
            Carried(
                timed._number,
                initial._number if isinstance(initial, Timed) else initial,
                final._number if isinstance(final, Timed) else final,
                (isinstance(initial, Timed), isinstance(final, Timed)),
            )
        )
    for path, slots in traced.result_slots.items():
        check_storage(ends[path]._recorder, ends[path]._storage, "what is returned")
        for slot, node in zip(slots, ends[path]._storage.nodes, strict=True):
            slot.final = node
    traced.after, traced.end = ends, state.get()


def _is_of_cells(tracer: StateTracer, loop: RecordedLoop) -> bool:
    """Return whether iterations compute each cell of itself alone, by few operations."""
    if loop.again is not None or loop.checks or loop.items is None or tracer.recorder.spaces.transforms:
        return False
    graph = tracer.recorder.graph
    depends = LoopDependence(graph, tracer.recorder.tape, loop.number)
    nodes = in_order(loop.inside)
    for node in nodes:
        if node.op == "load" and depends.of(node):
            is_computed = not isinstance(graph.between[node.input], StateValue)
            if is_computed or any(node.offset):
                return False
        if node.op == "scalar" and isinstance(graph.values[node.value], (Reduction, LoopResult)):
            return False
    return len(nodes) * len(loop.items) <= MOST_NODES


def _is_coarse(storage: Storage) -> bool:
    return any(one.step != 1 for one in storage.extents.values())
