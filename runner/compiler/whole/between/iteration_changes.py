"""What an iteration of a loop changes of the variables that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.runner.compiler.control.plain import UNBOUND
from meshrun.runner.compiler.trace.timed import Timed
from meshrun.runner.compiler.whole.array import Along, Scalar, Storage, Tracing, Whole
from meshrun.runner.compiler.whole.between.recorded_loop import Slot
from meshrun.runner.compiler.whole.between.traced_state import (
    NUMBERS,
    RESULT,
    IterationJournal,
    Leaf,
    NotAlike,
    StateTracer,
    without_array,
)
from meshrun.runner.compiler.whole.points import Listed


@dataclass
class Changes:
    """What an iteration changes.

    mapping: which memory the variables have after an iteration in place of that before it. names: of
    variables, for messages. written: storages that are written and keep their place; moved: those whose
    variables get others. numbers: those of Python that the host computes; values: numbers that become values.
    returned: what another branch has returned. recorders: of memory, the recorder of its space. item: of a
    counted loop, that of the iteration which is traced.
    """

    mapping: dict[Storage, Storage] = field(default_factory=dict)
    names: dict[Storage, str] = field(default_factory=dict)
    written: list[Storage] = field(default_factory=list)
    moved: list[Storage] = field(default_factory=list)
    numbers: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    values: dict[tuple[Any, ...], Scalar] = field(default_factory=dict)
    returned: dict[tuple[Any, ...], Whole] = field(default_factory=dict)
    recorders: dict[Storage, Tracing] = field(default_factory=dict)
    item: int = 0


@dataclass
class TracedBody:
    """An iteration that is traced with stand-ins for the state.

    changes: what it changes. stands, slots, ends: of each storage that changes, its stand-in, its slots of
    the state, and what it becomes. value_slots, result_slots: of values, and of what is returned. tape: of
    numbers, those of the tape. after: the state after the iteration, by where each value is; end: by
    variable. counter: the slot that counts iterations, once it is asked for.
    """

    changes: Changes
    stands: dict[Storage, Storage] = field(default_factory=dict)
    slots: dict[Storage, list[Slot]] = field(default_factory=dict)
    ends: dict[Storage, Storage] = field(default_factory=dict)
    value_slots: dict[tuple[Any, ...], Slot] = field(default_factory=dict)
    result_slots: dict[tuple[Any, ...], list[Slot]] = field(default_factory=dict)
    tape: dict[tuple[Any, ...], Timed] = field(default_factory=dict)
    after: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    end: Sequence[Any] = ()
    counter: int | None = None


def changes_of(
    tracer: StateTracer,
    before: Sequence[Leaf],
    after: Sequence[Leaf],
    journal: IterationJournal,
    stand_ins: Sequence[Storage],
) -> Changes:
    """Return what an iteration changes. Raises NotAlike. stand_ins: storages for the state."""
    changes = Changes()
    ends = {one.path: one.value for one in after}
    old = {one.value._storage for one in before if isinstance(one.value, Whole)}
    for leaf in before:
        name, one = leaf.name, leaf.value
        if leaf.path not in ends:
            if one is UNBOUND:
                continue  # a container
            raise NotAlike(f"{name} is not what it was")
        other = ends[leaf.path]
        if one is UNBOUND:
            continue
        if other is UNBOUND:
            raise NotAlike(f"{name} is deleted")
        # What nobody can change in place has no memory of its own: two names of it part freely.
        has_memory = isinstance(one, Whole) and (leaf.name == RESULT or not isinstance(one, Scalar))
        if has_memory and type(one) is type(other):
            _note_array(changes, leaf, one, other)
            continue
        if is_same_number(one, other):
            continue
        _number_changes(tracer, changes, leaf, other)
    for path in ends:
        if path not in {one.path for one in before} and not any(
            one.value is UNBOUND and path[0] == one.path[0] for one in before
        ):
            raise NotAlike(f"{path[0]} is not what it was")
    _note_memory(tracer, changes, journal, old, stand_ins)
    return changes


def _note_array(changes: Changes, leaf: Leaf, one: Whole, other: Whole) -> None:
    """Note which memory an array has after an iteration in place of that before it."""
    if not is_alike(one, other):
        raise NotAlike(f"{leaf.name} {_described(one)} becomes {_described(other)}")
    x, y = one._storage, other._storage
    if leaf.name == RESULT:  # what another branch returns: nothing reads it before the function ends
        if x is not y:
            changes.returned[leaf.path] = one
        return
    if changes.mapping.setdefault(x, y) is not y:
        raise NotAlike(f"{leaf.name} shares memory with another array, and no longer does")
    changes.names.setdefault(x, leaf.name)
    changes.recorders[x] = one._recorder


def _note_memory(
    tracer: StateTracer,
    changes: Changes,
    journal: IterationJournal,
    old: set[Storage],
    stand_ins: Sequence[Storage],
) -> None:
    """Note the memory that an iteration writes, or that other memory takes the place of.

    old: of the variables before it. stand_ins: for the state.
    """
    if len(set(changes.mapping.values())) < len(changes.mapping):
        raise NotAlike("two arrays become one")
    # Storages that change: those that are written, and those that others take the place of.
    written = [
        one
        for one, (nodes, *_) in journal.written.items()
        if (one.born < journal.born or one in stand_ins) and one.nodes != nodes
    ]
    moved = [x for x, y in changes.mapping.items() if x is not y]
    for storage in moved:
        other = changes.mapping[storage]
        if other in old and other not in moved:
            raise NotAlike(f"{changes.names[storage]} becomes another name of an array")
    changes.moved = moved
    changes.written = [one for one in written if one not in moved]
    for storage in (*moved, *changes.written):
        recorder = changes.recorders.get(storage, tracer.recorder)
        check_storage(recorder, storage, changes.names.get(storage, "an array"))


def _number_changes(tracer: StateTracer, changes: Changes, leaf: Leaf, other: Any) -> None:
    """Note that a number changes, or becomes a value."""
    one, name = leaf.value, leaf.name
    kinds = [type(value.sample) if isinstance(value, Timed) else type(value) for value in (one, other)]
    if isinstance(other, Whole) or isinstance(one, Whole):
        a, b = without_array(tracer.as_alike(one), tracer.as_alike(other))
        # Python computes with 1.0 as NumPy does with np.float64(1), but not as with a smaller dtype.
        if isinstance(b, Scalar) and b.dtype in (np.float64, np.int64):
            a, b = tracer.of_one_dtype(a, b)
        if isinstance(a, Scalar) and isinstance(b, Scalar) and a.dtype == b.dtype and a._weak is b._weak:
            if tracer.recorder.graph.vary([*a._storage.nodes, *b._storage.nodes]):
                raise NotAlike(f"{name} is made of points")
            changes.values[leaf.path] = a
            return
        raise NotAlike(f"{name} {_described(one)} becomes {_described(other)}")
    if kinds[0] is kinds[1] and kinds[0] in NUMBERS:
        changes.numbers[leaf.path] = one
        return
    if isinstance(one, np.generic) and isinstance(other, np.generic) and one.dtype == other.dtype:
        changes.values[leaf.path] = tracer.as_alike(one)
        return
    raise NotAlike(f"{name} {_described(one)} becomes {_described(other)}")


def check_storage(recorder: Tracing, storage: Storage, name: str) -> None:
    """Raise NotAlike for memory that is no state. recorder: of its space."""
    space = recorder.space
    if not storage.extents:
        if recorder.graph.vary(storage.nodes):
            raise NotAlike(f"{name} is made of points")
        return
    if sorted(storage.extents) != list(range(len(space))):
        raise NotAlike(f"{name} has not all axes of the fields")
    if any(one.first < 0 or one.stop > n for one, n in zip(storage.extents.values(), space, strict=True)):
        raise NotAlike(f"{name} is longer than the fields")


def joined_changes(
    tracer: StateTracer,
    known: Changes,
    found: Changes,
    extra: Sequence[Storage],
    turned: Sequence[tuple[Any, ...]],
) -> Changes:
    """Return what an iteration changes, with what one with stand-ins has shown.

    extra: further storages that change. turned: paths of numbers that become values.
    """
    values = {**found.values, **known.values}
    values |= {path: tracer.as_alike(known.numbers[path]) for path in turned}
    numbers = {path: one for path, one in {**found.numbers, **known.numbers}.items() if path not in values}
    moved = [one for one in extra if one in found.moved]
    written = [one for one in extra if one not in moved]
    return Changes(
        names={**found.names, **known.names},
        written=[one for one in (*known.written, *written) if one not in moved],
        moved=[*known.moved, *(one for one in moved if one not in known.moved)],
        numbers=numbers,
        values=values,
        recorders={**found.recorders, **known.recorders},
    )


def is_alike(one: Whole, other: Whole) -> bool:
    """Return whether two arrays are the same view of memory of the same form."""
    if any(isinstance(axis, Listed) for axis in (*one._axes, *other._axes)):
        return False
    x, y = one._storage, other._storage
    return (
        type(one) is type(other)
        and one._recorder is other._recorder
        and one.dtype == other.dtype
        and one._part == other._part
        and one._axes == other._axes
        and one._fixed == other._fixed
        and one._cells.shape == other._cells.shape
        and bool((one._cells == other._cells).all())
        and x.extents == y.extents
        and len(x.nodes) == len(y.nodes)
        and one._weak is other._weak
    )


def is_same_number(one: Any, other: Any) -> bool:
    """Return whether two values of Python's, or two values of the program, are the same."""
    if one is other:
        return True
    if isinstance(one, Scalar) and type(one) is type(other):
        return one._weak is other._weak and list(one.read().ravel()) == list(other.read().ravel())
    if type(one) is not type(other) or isinstance(one, (Timed, Whole)):
        return isinstance(one, Timed) and isinstance(other, Timed) and one._number == other._number
    if isinstance(one, (*NUMBERS, np.generic)):
        return repr(one) == repr(other)
    if isinstance(one, (str, bytes, slice, range)):
        return bool(one == other)
    return False


def _described(value: Any) -> str:
    if isinstance(value, Timed):
        value = value.sample
    if isinstance(value, Whole):
        kind = f" of shape {value.shape}" if value.shape else ""
        turned = any(isinstance(axis, Along) and axis.step < 0 for axis in value._axes)
        parts = {"real": ", the real part of an array", "imag": ", the imaginary part of an array"}
        return f"({value.dtype}{kind}{parts.get(value._part, '')}{', reversed' if turned else ''})"
    return f"({type(value).__name__})"
