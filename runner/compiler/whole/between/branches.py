"""Branches on a value: both sides are computed, and each cell takes one of them, where that is cheap."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.runner.compiler.control.plain import UNBOUND, LocalState, called
from meshrun.runner.compiler.trace.graph import FREE, Node, in_order
from meshrun.runner.compiler.whole.array import ChosenMemory, Scalar, Storage, Whole
from meshrun.runner.compiler.whole.between.iteration_changes import is_alike, is_same_number
from meshrun.runner.compiler.whole.between.traced_state import (
    StateTracer,
    are_unchanged,
    copies_of,
    errors_refused,
    over,
    without_array,
)
from meshrun.runner.compiler.whole.graph import StepSlot

MOST_CHOSEN = 64  # operations of both branches, per cell, that are computed rather than branched over


@dataclass
class BranchSide:
    """What a side of a branch leaves: the variables' values, those within them, and memory that it writes.

    cheap: whether it may be computed where the other one is taken.
    """

    values: list[Any]
    leaves: dict[tuple[Any, ...], Any]
    written: dict[Storage, list[Node]]
    cheap: bool

    def of(self, storage: Storage) -> list[Node]:
        return self.written.get(storage, storage.nodes)


def choose(
    tracer: StateTracer,
    condition: Node,
    then: Callable[[], None],
    otherwise: Callable[[], None] | None,
    state: LocalState,
) -> bool:
    """Choose between what both branches leave, if that takes few operations; else do nothing."""
    recorder, graph = tracer.recorder, tracer.recorder.graph
    counts, born = (len(graph.between), len(graph.values)), next(Storage.numbers)
    sides = [_side(tracer, side, state) for side in (then, otherwise)]
    (one, other), line = sides, tracer.line_of(then)
    if not (one.cheap and other.cheap) or not _may_choose(tracer, condition, counts):
        return False
    _bind_alike(one, other, state.names)
    if one.leaves.keys() != other.leaves.keys():
        return False

    def chosen(storage: Storage, beside: Storage) -> list[Node]:
        """Return what is in one memory after one side, or else in another after the other one."""
        pairs = zip(one.of(storage), other.of(beside), strict=True)
        return [a if a is b else graph.operation("where", a.dtype, [condition, a, b], line) for a, b in pairs]

    # What the branches leave, and where they differ.
    merged = {storage: chosen(storage, storage) for storage in {**one.written, **other.written}}
    stores: dict[tuple[Storage, Storage], Storage] = {}
    named = set[Storage]()  # memory of arrays, which may be written
    replaced: dict[tuple[Any, ...], Any] = {}
    for path, leaf in one.leaves.items():
        if is_same_number(leaf, other.leaves[path]):
            replaced[path] = leaf
            continue
        value, beside = tracer.of_one_dtype(tracer.as_alike(leaf), tracer.as_alike(other.leaves[path]))
        value, beside = without_array(value, beside)
        if not (isinstance(value, Whole) and isinstance(beside, Whole)) or not is_alike(value, beside):
            return False
        pair = value._storage, beside._storage
        if pair not in stores:
            stores[pair] = pair[0] if pair[0] is pair[1] else Storage(chosen(*pair), pair[0].extents)
        if not isinstance(value, Scalar):
            named.add(pair[0])
        replaced[path] = over(value, stores[pair])
    nodes = [node for several in merged.values() for node in several]
    nodes += [node for storage in stores.values() for node in storage.nodes]
    if _operations(tracer, nodes, counts[0]) > MOST_CHOSEN:
        return False

    # Bind the variables, and write memory.
    for storage, now in merged.items():
        recorder.note_write(storage)
        storage.nodes[:] = now
        recorder.note_written(storage)
        if not storage.changed:
            storage.changed, storage.line = True, line
    tracer.bind(state, one.values, replaced)

    # An array that was there before the branch may have other names.
    for (first, second), chosen_memory in stores.items():
        if first is not second and first in named and min(first.born, second.born) < born:
            recorder.chosen.append(ChosenMemory(condition, first, second, weakref.ref(chosen_memory), line))
    return True


def _bind_alike(one: BranchSide, other: BranchSide, names: Sequence[str]) -> None:
    """Let both sides bind a variable that only one of them binds: it is read only where it is bound."""
    for at, name in enumerate(names):
        if (one.values[at] is UNBOUND) is not (other.values[at] is UNBOUND):
            mine, theirs = (one, other) if one.values[at] is UNBOUND else (other, one)
            mine.values[at] = theirs.values[at]
            mine.leaves.pop((name,))
            mine.leaves |= {path: value for path, value in theirs.leaves.items() if path[0] == name}


def _may_choose(tracer: StateTracer, condition: Node, counts: tuple[int, int]) -> bool:
    """Return whether both sides may be computed, in view of the arrays and values that they have added.

    That is none, but where the number of a loop that picks rows decides, as in `if i % 3 == 0`: rows are
    moved, and what is computed of them may be written. counts: of arrays and values before.
    """
    graph, rows, tape = tracer.recorder.graph, tracer.recorder.item_rows, tracer.recorder.tape
    arrays, values = [*graph.between.values()][counts[0] :], graph.values[counts[1] :]
    if not arrays and not values:
        return True
    are_moved = all(isinstance(one, Node) for one in arrays)
    if not are_moved or not all(isinstance(one, (Node, StepSlot)) for one in values):
        return False
    if rows is None or not rows.picked:
        return False
    numbers = {slot: key[0] for key, slot in tape.slots.items()}
    leaves = [graph.values[node.value] for node in in_order([condition]) if node.op == "scalar"]
    slots = [leaf.slot for leaf in leaves if isinstance(leaf, StepSlot)]
    return len(slots) == len(leaves) and {numbers[slot] for slot in slots} <= tape.depending_on(rows.picked)


def _operations(tracer: StateTracer, nodes: Sequence[Node], first: int) -> int:
    """Return the number of operations of nodes, also of what they read of arrays. first: of these arrays."""
    between = tracer.recorder.graph.between
    added = {number: one for number, one in [*between.items()][first:] if isinstance(one, Node)}
    seen: dict[Node, None] = {}
    open_nodes = list(nodes)
    while open_nodes:
        further = in_order(open_nodes, seen)
        seen |= dict.fromkeys(further)
        open_nodes = [added.pop(node.input) for node in further if node.op == "load" and node.input in added]
    return sum(node.op not in FREE for node in seen)


def _side(tracer: StateTracer, side: Callable[[], None] | None, state: LocalState) -> BranchSide:
    """Trace a side of a branch; then the state is as it was before."""
    recorder = tracer.recorder
    values, copies = state.get(), copies_of(state.get())
    with tracer.journal() as journal:
        try:
            if side is not None:
                with errors_refused():
                    called(side)
            leaves = {one.path: tracer.alone(one.value) for one in tracer.leaves(state)}
            cheap = len(recorder.checks) == journal.checks and are_unchanged(copies)
            end = list(state.get())
            after = {one: list(one.nodes) for one in journal.written}
        finally:
            tracer.undo(journal, state, values, copies)
    # Memory that is made by the side keeps what it has written.
    for storage, nodes in after.items():
        if storage.born > journal.born:
            storage.nodes[:] = nodes
    written = {one: nodes for one, nodes in after.items() if one.born < journal.born}
    return BranchSide(end, leaves, written, cheap)
