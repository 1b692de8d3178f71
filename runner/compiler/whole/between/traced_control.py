"""Loops and conditions of a function while it is traced.

A loop over a range, or one whose condition is a value of the program, is traced once: a first time to learn
what an iteration changes, and again with stand-ins for that state. What an iteration leaves must be like what
it finds: views of the same arrays, of the same shapes and dtypes. Where the first iteration differs from the
others, as it makes an array or turns a Python number into a value, it is traced by itself.

A branch on a value becomes a choice of both results per cell where that takes a few operations, or else a
loop of at most one iteration.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from meshrun.runner.compiler.control.plain import UNBOUND, LocalState, PlainControl, called
from meshrun.runner.compiler.trace.array import MOST_NODES, real_dtype
from meshrun.runner.compiler.trace.graph import FREE, Node, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import Timed, nodes_of
from meshrun.runner.compiler.whole.array import (
    Scalar,
    Storage,
    Tracing,
    Whole,
    made,
    made_scalar,
    taken,
)
from meshrun.runner.compiler.whole.between.loops import Carried, LoopDependence, RecordedLoop, Slot
from meshrun.runner.compiler.whole.graph import LoopResult, Reduction, StateValue, ValueCheck
from meshrun.runner.compiler.whole.points import Listed

FEW = 4  # iterations that are traced one by one
MOST_CHOSEN = 64  # operations of both branches, per cell, that are computed rather than branched over
MOST_COUNTED = 10_000  # iterations for which a number at the end is computed while the function is traced
RESULT = "<result>"  # the variable of what the function returns
NUMBERS = (bool, int, float, complex)
HINT = "arrays of one shape and dtype in all iterations, and values such as np.float64(0) for numbers"


class NotAlike(Exception):
    """What an iteration leaves is not like what it found. The text says what."""


class MoreChanges(Exception):
    """An iteration changes more than the first one did. changes: what it is now."""

    def __init__(self, changes: Changes) -> None:
        super().__init__()
        self.changes = changes


@dataclass
class IterationJournal:
    """What is to be undone of an iteration. written: storages, as they were before."""

    born: int
    checks: int
    written: dict[Storage, tuple[list[Node], bool, int]] = field(default_factory=dict)


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


@dataclass
class Leaf:
    """A value in the state. path: the variable, and where in it the value is. names: of the variable."""

    path: tuple[Any, ...]
    value: Any

    @property
    def name(self) -> str:
        return str(self.path[0])


class TracedControl(PlainControl):
    """Loops and conditions of one call of a function. recorder: of the call. dtypes: of the inputs."""

    def __init__(self, recorder: Tracing, dtypes: Iterable[np.dtype[Any]]) -> None:
        self._recorder, self._dtypes = recorder, set(dtypes)
        self._numbers = itertools.count()

    # Logical operators

    def is_traced(self, value: Any) -> bool:
        """Return whether a value is not known while the function is traced, and all cells share it."""
        return (
            isinstance(value, Timed)
            or (isinstance(value, Whole) and not value._axes and not value._of_cells())
            or (isinstance(value, Scalar))
        )

    def truth(self, value: Any) -> Any:
        if not self.is_traced(value):
            return super().truth(value)
        return value if _is_truth(value) or isinstance(value, Timed) else value != 0

    def both(self, first: Any, second: Callable[[], Any]) -> Any:
        if not self.is_traced(first):
            return super().both(first, second)
        other = called(second)
        if not (_is_truth(first) and _is_truth(other)):
            return self.choice(first, lambda: other, lambda: first)
        return np.logical_and(first, other) if self.is_traced(other) else (first if other else False)

    def either(self, first: Any, second: Callable[[], Any]) -> Any:
        if not self.is_traced(first):
            return super().either(first, second)
        other = called(second)
        if not (_is_truth(first) and _is_truth(other)):
            return self.choice(first, lambda: first, lambda: other)
        return np.logical_or(first, other) if self.is_traced(other) else (True if other else first)

    def negated(self, value: Any) -> Any:
        if isinstance(value, Timed):
            return self._recorder.tape.call(self._recorder.line(), operator.not_, value)
        return np.logical_not(value) if self.is_traced(value) else super().negated(value)

    def choice(self, test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        if not self.is_traced(test):
            return super().choice(test, then, otherwise)
        result = UNBOUND

        def taking(function: Callable[[], Any]) -> Callable[[], None]:
            def take() -> None:
                nonlocal result
                result = called(function)

            return take

        self.branch(test, taking(then), taking(otherwise), LocalState(lambda: (result,), ("result",)))
        return result

    def extreme(
        self, better: Callable[[Any, Any], Any], function: Callable[..., Any], *values: Any, **options: Any
    ) -> Any:
        items = values[0] if len(values) == 1 and type(values[0]) in (list, tuple) else values
        if options or not any(isinstance(item, Whole) and self.is_traced(item) for item in items):
            return super().extreme(better, function, *values, **options)
        return functools.reduce(
            lambda best, item: self.choice(better(item, best), lambda: item, lambda: best), items
        )

    def check(self, value: Any, message: Callable[[], Any] | None) -> None:
        if not self.is_traced(value) or isinstance(value, Timed):
            super().check(value, message)
            return
        condition = self._condition(value)
        if condition.op == "constant":
            super().check(condition.value, message)
            return
        said = ""
        if message is not None:
            with suppress(NotTraceable):  # it formats a value
                said = f": {called(message)}"
        recorder = self._recorder
        count = recorder.graph.operation("cast", np.dtype(np.int64), [condition], recorder.line())
        recorder.checks.append(ValueCheck(count, f"fails an assertion{said}", recorder.line()))

    # Statements

    def branch(
        self, test: Any, then: Callable[[], None], otherwise: Callable[[], None] | None, state: LocalState
    ) -> None:
        if not self.is_traced(test):
            super().branch(test, then, otherwise, state)
            return
        line = self._line_of(then)
        condition = self._condition(test)
        if condition.op == "constant":
            super().branch(bool(condition.value), then, otherwise, state)
            return
        if self._choose(condition, then, otherwise, state):
            return
        # Each side is a loop of at most one iteration.
        graph = self._recorder.graph
        self._record(RecordedLoop(-1, line, "if", range(1), first=condition), state, lambda _: called(then))
        if otherwise is not None:
            opposite = graph.operation("logical_not", condition.dtype, [condition], line)
            loop = RecordedLoop(-1, line, "if", range(1), first=opposite)
            self._record(loop, state, lambda _: called(otherwise))

    def while_loop(self, test: Callable[[], Any], body: Callable[[], None], state: LocalState) -> None:
        # Iterations whose condition is known are traced one by one.
        wanted, unrolled = called(test), 0
        while not self.is_traced(wanted):
            if not wanted:
                return
            called(body)
            wanted, unrolled = called(test), unrolled + 1
        first = self._condition(wanted)
        loop = RecordedLoop(-1, body.__code__.co_firstlineno, "while", first=first, unrolled=unrolled)
        self._record(loop, state, lambda _: called(body), lambda: called(test))

    def for_loop(
        self,
        iterable: Iterable[Any],
        go_on: Callable[[], Any] | None,
        body: Callable[[Any], None],
        state: LocalState,
    ) -> None:
        items: Any = iterable if isinstance(iterable, range) else list(iterable)
        peeled = 0
        while isinstance(items, range) and len(items) > FEW and peeled < 2:
            loop = RecordedLoop(-1, body.__code__.co_firstlineno, "for", items, unrolled=peeled)
            try:
                self._record(loop, state, lambda item: called(body, item), go_on, unrolled=True)
                return
            except (NotAlike, NotTraceable):
                if len(items) > MOST_COUNTED:
                    raise
            # The first iteration by itself.
            called(body, items[0])
            items, peeled = items[1:], peeled + 1
            if go_on is not None:
                more = go_on()
                if self.is_traced(more):
                    rest = items
                    self.branch(more, partial(self.for_loop, rest, go_on, body, state), None, state)
                    return
                if not more:
                    return
        for number, item in enumerate(items):
            called(body, item)
            more = True if go_on is None else go_on()
            if self.is_traced(more):
                left = items[number + 1 :]
                if len(left):
                    self.branch(more, partial(self.for_loop, left, go_on, body, state), None, state)
                return
            if not more:
                return

    # The state

    def _line_of(self, statement: Callable[..., Any]) -> int:
        """Return the line of a statement in the user's file."""
        code: Any = getattr(statement, "__code__", None)
        return code.co_firstlineno if code is not None else self._recorder.line()

    def _condition(self, value: Any) -> Node:
        """Return the node of a condition."""
        recorder = self._recorder
        if isinstance(value, Timed):
            (node,) = nodes_of(recorder.graph, value.typed(np.dtype(bool))).ravel()
        else:
            (node,) = taken(value.copy() if not isinstance(value, Scalar) else value).ravel()
        return recorder.graph.operation("cast", np.dtype(bool), [node], recorder.line())

    @contextmanager
    def _journal(self) -> Iterator[IterationJournal]:
        recorder = self._recorder
        journal = IterationJournal(next(Storage.numbers), len(recorder.checks))
        recorder.journals.append(journal.written)
        try:
            yield journal
        finally:
            recorder.journals.pop()

    def _undo(self, journal: IterationJournal, state: LocalState, values: Sequence[Any], copies: Any) -> None:
        for storage, (nodes, changed, line) in journal.written.items():
            storage.nodes[:], storage.changed, storage.line = nodes, changed, line
        del self._recorder.checks[journal.checks :]
        _restore(copies)
        state.set(values)

    def _leaves(self, state: LocalState, values: Sequence[Any] | None = None) -> list[Leaf]:
        values = state.get() if values is None else values
        pairs = zip(state.names, values, strict=True)
        return [leaf for name, value in pairs for leaf in _flattened((name,), value)]

    def _alone(self, value: Any) -> Any:
        """Return a value of a cell that is not the own one as a value that all cells share."""
        is_cell = isinstance(value, Whole) and not value._axes and not value._storage.extents
        if not is_cell or not self._recorder.graph.vary(value.read().ravel()):
            return value
        (node,) = taken(value).ravel()
        if isinstance(value, Scalar):
            return _weak(made_scalar(self._recorder, {}, node), value._weak)
        return made(self._recorder, (), {}, np.full((), node, object), value.dtype)

    def _run(self, state: LocalState, body: Callable[[], Any]) -> tuple[list[Leaf], list[Leaf]]:
        """Run an iteration. Return the state before it and after it, of values by themselves."""
        before = [Leaf(one.path, self._alone(one.value)) for one in self._leaves(state)]
        body()
        return before, [Leaf(one.path, self._alone(one.value)) for one in self._leaves(state)]

    def _choose(
        self,
        condition: Node,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None,
        state: LocalState,
    ) -> bool:
        """Choose between what both branches leave, if that takes few operations; else do nothing."""
        recorder, graph = self._recorder, self._recorder.graph
        counts = len(graph.between), len(graph.values)
        sides = [self._side(side, state) for side in (then, otherwise)]
        (one, other), line = sides, self._line_of(then)
        if not (one.cheap and other.cheap) or (len(graph.between), len(graph.values)) != counts:
            return False
        # A variable that only one side binds is read only where it is bound.
        for at, name in enumerate(state.names):
            if (one.values[at] is UNBOUND) is not (other.values[at] is UNBOUND):
                mine, theirs = (one, other) if one.values[at] is UNBOUND else (other, one)
                mine.values[at] = theirs.values[at]
                mine.leaves.pop((name,))
                mine.leaves |= {path: value for path, value in theirs.leaves.items() if path[0] == name}
        if one.leaves.keys() != other.leaves.keys():
            return False

        def chosen(storage: Storage, beside: Storage) -> list[Node]:
            """Return what is in one memory after one side, or else in another after the other one."""
            pairs = zip(one.of(storage), other.of(beside), strict=True)
            return [
                a if a is b else graph.operation("where", a.dtype, [condition, a, b], line) for a, b in pairs
            ]

        # What the branches leave, and where they differ.
        merged = {storage: chosen(storage, storage) for storage in {**one.written, **other.written}}
        stores: dict[tuple[Storage, Storage], Storage] = {}
        replaced: dict[tuple[Any, ...], Any] = {}
        for path, leaf in one.leaves.items():
            if _same_number(leaf, other.leaves[path]):
                replaced[path] = leaf
                continue
            value, beside = self._of_one_dtype(self._as_alike(leaf), self._as_alike(other.leaves[path]))
            if not (isinstance(value, Whole) and isinstance(beside, Whole)) or not _is_alike(value, beside):
                return False
            pair = value._storage, beside._storage
            if pair not in stores:
                stores[pair] = pair[0] if pair[0] is pair[1] else Storage(chosen(*pair), pair[0].extents)
            replaced[path] = _over(value, stores[pair])
        nodes = [node for several in merged.values() for node in several]
        nodes += [node for storage in stores.values() for node in storage.nodes]
        if sum(node.op not in FREE for node in in_order(nodes)) > MOST_CHOSEN:
            return False

        # Bind the variables, and write memory.
        for storage, now in merged.items():
            recorder.note_write(storage)
            storage.nodes[:] = now
            if not storage.changed:
                storage.changed, storage.line = True, line
        self._set(state, one.values, replaced)
        return True

    def _side(self, side: Callable[[], None] | None, state: LocalState) -> BranchSide:
        """Trace a side of a branch; then the state is as it was before."""
        recorder = self._recorder
        values, copies = state.get(), _copies(state.get())
        with self._journal() as journal:
            try:
                if side is not None:
                    called(side)
                leaves = {one.path: self._alone(one.value) for one in self._leaves(state)}
                cheap = len(recorder.checks) == journal.checks and _unchanged(copies)
                end = list(state.get())
                after = {one: list(one.nodes) for one in journal.written}
            finally:
                self._undo(journal, state, values, copies)
        # Memory that is made by the side keeps what it has written.
        for storage, nodes in after.items():
            if storage.born > journal.born:
                storage.nodes[:] = nodes
        written = {one: nodes for one, nodes in after.items() if one.born < journal.born}
        return BranchSide(end, leaves, written, cheap)

    def _as_alike(self, value: Any) -> Any:
        """Return a number as a value of the program."""
        recorder = self._recorder
        if isinstance(value, Timed) and np.ndim(value.sample) == 0:
            kind = type(value.sample)
            (node,) = nodes_of(recorder.graph, value).ravel()
        elif isinstance(value, (*NUMBERS, np.generic)):
            kind, array = type(value), np.asarray(value)
            node = recorder.graph.constant(array, array.dtype)
        else:
            return value
        return _weak(made_scalar(recorder, {}, node), kind if kind in NUMBERS else None)

    def _of_one_dtype(self, one: Any, other: Any) -> tuple[Any, Any]:
        """Return two values, one that is a number of Python's as the other's dtype.

        Only where all inputs have that dtype: the number would take it where it meets a field.
        """
        for weak, strong in ((one, other), (other, one)):
            if not (isinstance(weak, Scalar) and isinstance(strong, Scalar)):
                continue
            if weak._weak in (int, float) and strong._weak is None and self._dtypes == {strong.dtype}:
                (node,) = weak.read().ravel()
                node = self._recorder.graph.operation("cast", strong.dtype, [node], self._recorder.line())
                typed = made_scalar(self._recorder, {}, node)
                return (typed, strong) if weak is one else (strong, typed)
        return one, other

    def _set(self, state: LocalState, values: Sequence[Any], replaced: Mapping[tuple[Any, ...], Any]) -> None:
        """Bind the variables to values, with some in place of others."""
        names = list(state.names)
        after = {path[0]: None for path in replaced}
        found = list(values)
        for name in after:
            at = names.index(name)
            if (name,) in replaced:
                found[at] = replaced[name,]
            else:
                found[at] = _rebuilt((name,), found[at], replaced)
        state.set(found)

    # Loops

    def _record(
        self,
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
        values, copies = state.get(), _copies(state.get())
        try:
            # What does an iteration change?
            with self._journal() as journal:
                try:
                    item = None if loop.items is None else loop.items[0]
                    before, after = self._run(state, lambda: body(item))
                    spaces = self._recorder.spaces
                    if spaces is not None and spaces.transforms:
                        raise NotAlike("there are transforms or products beside it")
                    if not _unchanged(copies):
                        raise NotAlike("a list, dictionary or array of Python's changes")
                    known = self._changes(before, after, journal, [])
                    coarse = [one for one in (*known.moved, *known.written) if _is_coarse(one)]
                    if unrolled and coarse:  # its levels are planned in one program
                        raise NotAlike(f"{known.names.get(coarse[0])} is of a coarse grid")
                finally:
                    self._undo(journal, state, values, copies)
            while True:
                with self._journal() as journal:
                    try:
                        self._trace_body(loop, state, values, known, body, more, journal)
                        if unrolled and self._is_of_cells(loop):
                            raise NotAlike("it computes each cell by itself")
                        self._leave(loop, state, known, journal)
                        break
                    except MoreChanges as more_changes:
                        self._undo(journal, state, values, copies)
                        known = more_changes.changes
                        loop = replace(loop, slots=[], carried=[])
                    except BaseException:
                        self._undo(journal, state, values, copies)
                        raise
        except NotAlike as reason:
            if unrolled:
                raise
            what = {"if": "branches", "while": "loops"}.get(loop.kind, "loops")
            failure = NotTraceable(f"{what} on a value, and {reason}", HINT)
            failure.line = loop.line
            raise failure from None

    def _changes(
        self,
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
            if isinstance(one, Whole) and isinstance(other, Whole):
                self._note_array(changes, leaf, one, other)
                continue
            if one is other or _same_number(one, other):
                continue
            self._number_changes(changes, leaf, other)
        for path in ends:
            if path not in {one.path for one in before} and not any(
                one.value is UNBOUND and path[0] == one.path[0] for one in before
            ):
                raise NotAlike(f"{path[0]} is not what it was")
        self._note_memory(changes, journal, old, stand_ins)
        return changes

    def _note_array(self, changes: Changes, leaf: Leaf, one: Whole, other: Whole) -> None:
        """Note which memory an array has after an iteration in place of that before it."""
        if not _is_alike(one, other):
            raise NotAlike(f"{leaf.name} {_described(one)} becomes {_described(other)}")
        x, y = one._storage, other._storage
        if leaf.name == RESULT:  # what another branch returns: nothing reads it before the function ends
            if x is not y:
                changes.returned[leaf.path] = one
            return
        if changes.mapping.setdefault(x, y) is not y:
            raise NotAlike(f"{leaf.name} shares memory with another array, and no longer does")
        changes.names.setdefault(x, leaf.name)

    def _note_memory(
        self, changes: Changes, journal: IterationJournal, old: set[Storage], stand_ins: Sequence[Storage]
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
            self._check_storage(storage, changes.names.get(storage, "an array"))

    def _number_changes(self, changes: Changes, leaf: Leaf, other: Any) -> None:
        """Note that a number changes, or becomes a value."""
        one, name = leaf.value, leaf.name
        kinds = [type(value.sample) if isinstance(value, Timed) else type(value) for value in (one, other)]
        if isinstance(other, Whole) or isinstance(one, Whole):
            a, b = self._as_alike(one), self._as_alike(other)
            are_values = isinstance(a, Whole) and isinstance(b, Whole) and not a._axes and not b._axes
            if are_values and a.dtype == b.dtype and a._weak is b._weak:
                changes.values[leaf.path] = a
                return
            raise NotAlike(f"{name} {_described(one)} becomes {_described(other)}")
        if kinds[0] is kinds[1] and kinds[0] in NUMBERS:
            changes.numbers[leaf.path] = one
            return
        if isinstance(one, np.generic) and isinstance(other, np.generic) and one.dtype == other.dtype:
            changes.values[leaf.path] = self._as_alike(one)
            return
        raise NotAlike(f"{name} {_described(one)} becomes {_described(other)}")

    def _check_storage(self, storage: Storage, name: str) -> None:
        space = self._recorder.space
        if not storage.extents:
            if self._recorder.graph.vary(storage.nodes):
                raise NotAlike(f"{name} is made of points")
            return
        if sorted(storage.extents) != list(range(len(space))):
            raise NotAlike(f"{name} has not all axes of the fields")
        if any(one.first < 0 or one.stop > n for one, n in zip(storage.extents.values(), space, strict=True)):
            raise NotAlike(f"{name} is longer than the fields")

    def _slot(
        self, loop: RecordedLoop, name: str, initial: Node | None, dtype: Any, *, is_value: bool
    ) -> Slot:
        """Return a further slot of the state, with what an iteration finds."""
        graph, number = self._recorder.graph, len(loop.slots)
        slot = Slot(name, dtype, initial, is_value)
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
            graph.states[array] = loop.number, number
            slot.leaf = graph.load(array, dtype, (0,) * len(graph.space))
        loop.slots.append(slot)
        return slot

    def _trace_body(
        self,
        loop: RecordedLoop,
        state: LocalState,
        values: Sequence[Any],
        known: Changes,
        body: Callable[[Any], None],
        more: Callable[[], Any] | None,
        journal: IterationJournal,
    ) -> None:
        """Trace an iteration with stand-ins for the state that is known to change."""
        recorder, tape = self._recorder, self._recorder.tape
        loop.number = next(self._numbers)
        leaves = [Leaf(one.path, self._alone(one.value)) for one in self._leaves(state, values)]

        scalars = self._stand_in(loop, state, values, known, leaves)
        item: Any = None
        if loop.kind == "for" and loop.items is not None:
            item = tape.of_loop(loop.number, loop.items[0])
            loop.index = item._number

        checks = len(recorder.checks)
        born = next(Storage.numbers)
        before, after = self._run(state, lambda: body(item))
        stands = [*known.stands.values(), *scalars]
        inner = IterationJournal(born, checks, journal.written)
        found = self._changes(before, after, inner, stands)
        extra = [one for one in (*found.moved, *found.written) if one not in stands]
        turned = [path for path in known.numbers if path in found.values]
        paths = {*known.numbers, *known.values}
        if extra or turned or not {*found.numbers, *found.values} <= paths:
            joined = self._joined(known, found, extra, turned)
            joined.returned = {one.path: one.value for one in leaves if one.path in found.returned}
            raise MoreChanges(joined)
        if more is not None:
            wanted = more()
            loop.again = self._condition(wanted) if self.is_traced(wanted) else None
            if loop.again is None and not wanted:
                loop.again = recorder.graph.truth(False)
        loop.checks = tuple(recorder.checks[checks:])
        del recorder.checks[checks:]

        self._note_ends(loop, state, known, found, after)

    def _stand_in(
        self,
        loop: RecordedLoop,
        state: LocalState,
        values: Sequence[Any],
        known: Changes,
        leaves: Sequence[Leaf],
    ) -> list[Storage]:
        """Bind the variables to stand-ins for the state; return the memory of those that are numbers."""
        recorder, tape = self._recorder, self._recorder.tape
        for path, one in known.returned.items():
            known.result_slots[path] = [
                self._slot(loop, RESULT, node, node.dtype, is_value=not one._storage.extents)
                for node in one._storage.nodes
            ]
            self._check_storage(one._storage, "what is returned")

        # Stand-ins: in place for what is only written, new ones for what others take the place of.
        known.stands = {}
        for storage in (*known.moved, *known.written):
            name, is_value = known.names.get(storage, "array"), not storage.extents
            slots = [self._slot(loop, name, node, node.dtype, is_value=is_value) for node in storage.nodes]
            nodes = [slot.leaf for slot in slots if slot.leaf is not None]
            known.slots[storage] = slots
            if storage in known.written:
                recorder.note_write(storage)
                storage.nodes[:] = nodes
                known.stands[storage] = storage
            else:
                known.stands[storage] = Storage(nodes, storage.extents)
        replaced: dict[tuple[Any, ...], Any] = {}
        scalars: list[Storage] = []
        for leaf in leaves:
            value = leaf.value
            if leaf.path in known.numbers:
                sample = value.sample if isinstance(value, Timed) else value
                known.tape[leaf.path] = tape.of_loop(loop.number, sample)
                replaced[leaf.path] = known.tape[leaf.path]
            elif leaf.path in known.values:
                initial = known.values[leaf.path]
                (node,) = initial.read().ravel()
                slot = known.value_slots[leaf.path] = self._slot(
                    loop, leaf.name, node, node.dtype, is_value=True
                )
                assert slot.leaf is not None
                scalar = replaced[leaf.path] = _weak(made_scalar(recorder, {}, slot.leaf), initial._weak)
                scalars.append(scalar._storage)
            elif isinstance(value, Whole) and value._storage in known.stands:
                stand = known.stands[value._storage]
                replaced[leaf.path] = value if stand is value._storage else _over(value, stand)
        self._set(state, values, replaced)
        return scalars

    def _note_ends(
        self, loop: RecordedLoop, state: LocalState, known: Changes, found: Changes, after: Sequence[Leaf]
    ) -> None:
        """Note what an iteration leaves of the state."""
        # What it leaves.
        ends = {one.path: one.value for one in after}
        for storage, stand in known.stands.items():
            end = found.mapping.get(stand, stand)
            known.ends[storage] = end
            for slot, node in zip(known.slots[storage], end.nodes, strict=True):
                slot.final = node
        for path, slot in known.value_slots.items():
            (slot.final,) = self._as_alike(ends[path]).read().ravel()
        for path, timed in known.tape.items():
            initial, final = known.numbers[path], ends[path]
            loop.carried.append(
                Carried(
                    timed._number,
                    initial._number if isinstance(initial, Timed) else initial,
                    final._number if isinstance(final, Timed) else final,
                    (isinstance(initial, Timed), isinstance(final, Timed)),
                )
            )
        for path, slots in known.result_slots.items():
            self._check_storage(ends[path]._storage, "what is returned")
            for slot, node in zip(slots, ends[path]._storage.nodes, strict=True):
                slot.final = node
        known.after, known.end = ends, state.get()
        for node in in_order(loop.inside):
            if node.op in ("point", "pick"):
                raise NotAlike("it reads or writes lists of points")

    def _joined(
        self, known: Changes, found: Changes, extra: Sequence[Storage], turned: Sequence[tuple[Any, ...]]
    ) -> Changes:
        """Return what an iteration changes, with what one with stand-ins has shown.

        extra: further storages that change. turned: paths of numbers that become values.
        """
        values = {**found.values, **known.values}
        values |= {path: self._as_alike(known.numbers[path]) for path in turned}
        numbers = {
            path: one for path, one in {**found.numbers, **known.numbers}.items() if path not in values
        }
        moved = [one for one in extra if one in found.moved]
        written = [one for one in extra if one not in moved]
        return Changes(
            names={**found.names, **known.names},
            written=[one for one in (*known.written, *written) if one not in moved],
            moved=[*known.moved, *(one for one in moved if one not in known.moved)],
            numbers=numbers,
            values=values,
        )

    def _is_of_cells(self, loop: RecordedLoop) -> bool:
        """Return whether iterations compute each cell of itself alone, by few operations."""
        if loop.again is not None or loop.checks or loop.items is None:
            return False
        graph, depends = (
            self._recorder.graph,
            LoopDependence(self._recorder.graph, self._recorder.tape, loop.number),
        )
        nodes = in_order(loop.inside)
        for node in nodes:
            if node.op == "load" and depends.of(node) and (node.input in graph.between or any(node.offset)):
                return False
            if node.op == "scalar" and isinstance(graph.values[node.value], (Reduction, LoopResult)):
                return False
        return len(nodes) * len(loop.items) <= MOST_NODES

    def _leave(
        self, loop: RecordedLoop, state: LocalState, known: Changes, journal: IterationJournal
    ) -> None:
        """Leave the state as it is after the loop."""
        recorder = self._recorder
        results: dict[Storage, list[Node]] = {}  # by the storage that an iteration leaves
        for storage, end in known.ends.items():
            numbers = [loop.slots.index(slot) for slot in known.slots[storage]]
            results[end] = [self._result(loop, number) for number in numbers]
        # Storages that are the function's own keep their place.
        stores: dict[Storage, Storage] = {}
        for storage in known.written:
            storage.nodes[:] = results[known.ends[storage]]
            stores[storage] = storage
        self._leave_moved(loop, known, results, journal)
        replaced: dict[tuple[Any, ...], Any] = {}
        for path, value in known.after.items():
            if path in known.value_slots:
                slot = known.value_slots[path]
                found = made_scalar(recorder, {}, self._result(loop, loop.slots.index(slot)))
                replaced[path] = _weak(found, known.values[path]._weak)
            elif path in known.result_slots:
                numbers = [loop.slots.index(slot) for slot in known.result_slots[path]]
                extents = value._storage.extents
                replaced[path] = _over(value, Storage([self._result(loop, n) for n in numbers], extents))
            elif (
                isinstance(value, Timed) and self._recorder.tape.changes_in(value._number, loop.number)
            ) or (path in known.numbers and loop.first is not None):
                replaced[path] = self._last_number(loop, known, path, value)
            elif isinstance(value, Whole):
                end = value._storage
                if end not in stores:
                    stores[end] = self._stored(loop, path[0], value, results)
                replaced[path] = _over(value, stores[end])
            else:
                replaced[path] = value
        self._set(state, known.end, replaced)

    def _stored(
        self, loop: RecordedLoop, name: Any, value: Whole, results: Mapping[Storage, list[Node]]
    ) -> Storage:
        """Return the memory of an array after the loop: of the state, or one that an iteration makes."""
        end = value._storage
        if end in results:
            return Storage(list(results[end]), end.extents)
        depends = LoopDependence(self._recorder.graph, self._recorder.tape, loop.number)
        if not any(map(depends.of, end.nodes)):
            return end
        self._check_storage(end, str(name))
        nodes = []
        for node in end.nodes:
            slot = Slot(str(name), node.dtype, None, not end.extents, final=node)
            loop.slots.append(slot)
            nodes.append(self._result(loop, len(loop.slots) - 1))
        return Storage(nodes, end.extents)

    def _leave_moved(
        self,
        loop: RecordedLoop,
        known: Changes,
        results: Mapping[Storage, list[Node]],
        journal: IterationJournal,
    ) -> None:
        """Leave what is in memory that other memory takes the place of, for other names of it.

        If nothing reads it, it is not computed.
        """
        recorder = self._recorder
        of_stand = {stand: storage for storage, stand in known.stands.items()}
        next_of = {storage: of_stand.get(known.ends[storage]) for storage in known.moved}
        for storage in known.moved:
            stand = known.stands[storage]
            if loop.kind == "if":
                if stand in journal.written:
                    self._keep_first(loop, known, storage, stand.nodes)
                continue
            # The names that memory has, iteration by iteration, until it has the first one again.
            cycle = [storage]
            while (following := next_of[cycle[-1]]) not in (storage, None):
                assert following is not None
                cycle.append(following)
            if next_of[cycle[-1]] is None:
                if len(cycle) > 1 and any(known.stands[one] in journal.written for one in cycle):
                    raise NotAlike(f"{known.names[storage]} is written, and then has another name")
                if stand in journal.written:
                    self._keep_first(loop, known, storage, stand.nodes)
                continue
            if not any(known.stands[one] in journal.written for one in cycle):
                continue
            count, length = loop.items, len(cycle)
            # Memory number p is named r after n iterations if r is n places before p in the cycle.
            if count is not None and loop.again is None:
                name = cycle[-len(count) % length]
                nodes = results[known.ends[name]]
            else:
                nodes = self._by_count(loop, known, cycle, results)
            recorder.note_write(storage)
            storage.nodes[:] = nodes
            if not storage.changed:
                storage.changed, storage.line = True, loop.line

    def _keep_first(
        self, loop: RecordedLoop, known: Changes, storage: Storage, nodes: Sequence[Node]
    ) -> None:
        """Leave what the first iteration writes into memory that it then replaces. nodes: at its end."""
        graph = self._recorder.graph
        first = graph.truth(True)
        if loop.kind != "if":
            count = loop.slots[self._counter(loop, known)].leaf
            assert count is not None
            none = graph.constant(0, count.dtype)
            first = graph.operation("equal", np.dtype(bool), [count, none], loop.line)
        slots = [
            self._slot(loop, "array", node, node.dtype, is_value=not storage.extents)
            for node in storage.nodes
        ]
        for slot, node in zip(slots, nodes, strict=True):
            assert slot.leaf is not None
            slot.final = graph.operation("where", slot.dtype, [first, node, slot.leaf], loop.line)
        self._recorder.note_write(storage)
        storage.nodes[:] = [self._result(loop, loop.slots.index(slot)) for slot in slots]
        if not storage.changed:
            storage.changed, storage.line = True, loop.line

    def _counter(self, loop: RecordedLoop, known: Changes) -> int:
        """Return the slot of the number of iterations so far."""
        if known.counter is None:
            graph, kind = self._recorder.graph, np.dtype(np.int64)
            slot = self._slot(loop, "iterations", graph.constant(0, kind), kind, is_value=True)
            assert slot.leaf is not None
            slot.final = graph.operation("add", kind, [slot.leaf, graph.constant(1, kind)], loop.line)
            known.counter = len(loop.slots) - 1
        return known.counter

    def _by_count(
        self,
        loop: RecordedLoop,
        known: Changes,
        cycle: Sequence[Storage],
        results: Mapping[Storage, list[Node]],
    ) -> list[Node]:
        """Return what memory has, which depends on the number of iterations."""
        graph = self._recorder.graph
        kind = np.dtype(np.int64)
        done = self._result(loop, self._counter(loop, known))
        count = graph.operation("remainder", kind, [done, graph.constant(len(cycle), kind)], loop.line)
        nodes = results[known.ends[cycle[0]]]
        for after in range(1, len(cycle)):
            others = results[known.ends[cycle[-after]]]
            here = graph.operation("equal", np.dtype(bool), [count, graph.constant(after, kind)], loop.line)
            nodes = [
                graph.operation("where", one.dtype, [here, other, one], loop.line)
                for one, other in zip(nodes, others, strict=True)
            ]
        return nodes

    def _result(self, loop: RecordedLoop, number: int) -> Node:
        """Return what a slot of the state is after the loop."""
        graph, slot = self._recorder.graph, loop.slots[number]
        if not slot.is_value:
            return graph.left_array(LoopResult(loop, number, slot.dtype))
        if slot.dtype.kind != "c":
            return graph.value(LoopResult(loop, number, slot.dtype), slot.dtype)
        kind = real_dtype(slot.dtype)
        parts = [graph.value(LoopResult(loop, number, kind, part), kind) for part in ("real", "imag")]
        return graph.operation("complex", slot.dtype, parts)

    def _last_number(self, loop: RecordedLoop, known: Changes, path: tuple[Any, ...], value: Any) -> Any:
        """Return a number after the loop: of Python if it is known, else a value."""
        tape, items = self._recorder.tape, loop.items
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
                return self._counted(loop, value._number)
        last = self._as_alike(value)
        (node,) = last.read().ravel()
        initial = None
        if path in known.numbers:
            (initial,) = self._as_alike(known.numbers[path]).read().ravel()
        slot = Slot(str(path[0]), node.dtype, initial, True, final=node)
        loop.slots.append(slot)
        found = made_scalar(self._recorder, {}, self._result(loop, len(loop.slots) - 1))
        return _weak(found, last._weak)

    def _counted(self, loop: RecordedLoop, number: int) -> Any:
        """Return a number of the tape in the last iteration."""
        assert loop.items is not None
        tape, given = self._recorder.tape, {one.number: one.initial for one in loop.carried}
        for item in loop.items:
            if loop.index is not None:
                given[loop.index] = item
            with np.errstate(all="ignore"):
                numbers = tape.numbers(0, given)
            for one in loop.carried:
                given[one.number] = numbers[one.final] if one.on_tape[1] else one.final
        return numbers[number]


@dataclass
class Changes:
    """What an iteration changes.

    mapping: which memory the variables have after an iteration in place of that before it. names: of
    variables, for messages. written: storages that are written and keep their place; moved: those whose
    variables get others. numbers: those of Python that the host computes; values: numbers that become values.
    returned: what another branch has returned. The others are of the traced body: of each storage, its
    stand-in, slots and what it becomes; of numbers, those of the tape; the state after it; and the slot that
    counts iterations.
    """

    mapping: dict[Storage, Storage] = field(default_factory=dict)
    names: dict[Storage, str] = field(default_factory=dict)
    written: list[Storage] = field(default_factory=list)
    moved: list[Storage] = field(default_factory=list)
    numbers: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    values: dict[tuple[Any, ...], Whole] = field(default_factory=dict)
    stands: dict[Storage, Storage] = field(default_factory=dict)
    slots: dict[Storage, list[Slot]] = field(default_factory=dict)
    ends: dict[Storage, Storage] = field(default_factory=dict)
    tape: dict[tuple[Any, ...], Timed] = field(default_factory=dict)
    value_slots: dict[tuple[Any, ...], Slot] = field(default_factory=dict)
    returned: dict[tuple[Any, ...], Whole] = field(default_factory=dict)
    result_slots: dict[tuple[Any, ...], list[Slot]] = field(default_factory=dict)
    after: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    end: Sequence[Any] = ()
    counter: int | None = None


def _flattened(path: tuple[Any, ...], value: Any) -> Iterator[Leaf]:
    """Yield the values in containers."""
    if type(value) in (list, tuple):
        for number, one in enumerate(value):
            yield from _flattened((*path, number), one)
    elif type(value) is dict:
        for key, one in value.items():
            yield from _flattened((*path, key), one)
    else:
        yield Leaf(path, value)


def _rebuilt(path: tuple[Any, ...], value: Any, replaced: Mapping[tuple[Any, ...], Any]) -> Any:
    """Return a value with others in place of some that it contains; lists stay themselves."""
    if path in replaced:
        return replaced[path]
    if type(value) is tuple:
        return tuple(_rebuilt((*path, number), one, replaced) for number, one in enumerate(value))
    if type(value) is list:
        value[:] = [_rebuilt((*path, number), one, replaced) for number, one in enumerate(value)]
    elif type(value) is dict:
        for key in value:
            value[key] = _rebuilt((*path, key), value[key], replaced)
    return value


def _copies(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the lists, dictionaries and arrays of Python's in the state, each with a copy."""
    found: list[tuple[Any, Any]] = []
    open_values = list(values)
    while open_values:
        value = open_values.pop()
        if type(value) in (list, dict) or (type(value) is np.ndarray and value.flags.writeable):
            found.append((value, value.copy()))
        if type(value) in (list, tuple):
            open_values += value
        elif type(value) is dict:
            open_values += value.values()
    return found


def _unchanged(copies: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether lists and dictionaries have as many entries, and arrays the same numbers."""
    for one, copied in copies:
        if isinstance(one, np.ndarray):
            if one.tobytes() != copied.tobytes():
                return False
        elif len(one) != len(copied) or (isinstance(one, dict) and one.keys() != copied.keys()):
            return False
    return True


def _restore(copies: Sequence[tuple[Any, Any]]) -> None:
    for one, copied in copies:
        if isinstance(one, dict):
            one.clear()
            one.update(copied)
        else:
            one[:] = copied


def _over(value: Whole, storage: Storage) -> Whole:
    """Return the same view of other memory."""
    found = type(value)(
        value._recorder, storage, value._axes, value._fixed, value._cells, value.dtype, value._part
    )
    return _weak(found, value._weak) if isinstance(value, Scalar) else found


def _weak(value: Any, kind: Any) -> Any:
    """Return a scalar as a number of Python's, of a kind; of booleans, Python's are like NumPy's."""
    value._weak = None if kind is bool else kind
    return value


def _is_alike(one: Whole, other: Whole) -> bool:
    """Return whether two arrays are the same view of memory of the same form."""
    if any(isinstance(axis, Listed) for axis in (*one._axes, *other._axes)):
        return False
    x, y = one._storage, other._storage
    return (
        type(one) is type(other)
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


def _is_truth(value: Any) -> bool:
    """Return whether a value is true or false, rather than another number."""
    sample = value.sample if isinstance(value, Timed) else value
    return isinstance(sample, (bool, np.bool_)) or (isinstance(sample, Whole) and sample.dtype == np.bool_)


def _same_number(one: Any, other: Any) -> bool:
    """Return whether two values of Python's are the same."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, (Timed, Whole)):
        return isinstance(one, Timed) and isinstance(other, Timed) and one._number == other._number
    if isinstance(one, (*NUMBERS, np.generic)):
        return repr(one) == repr(other)
    if isinstance(one, (str, bytes, slice, range)):
        return bool(one == other)
    return False


def _is_coarse(storage: Storage) -> bool:
    return any(one.step != 1 for one in storage.extents.values())


def _described(value: Any) -> str:
    if isinstance(value, Timed):
        value = value.sample
    if isinstance(value, Whole):
        kind = f" of shape {value.shape}" if value.shape else ""
        return f"({value.dtype}{kind})"
    return f"({type(value).__name__})"


def _reads_any(tape: Any, number: int, wanted: set[int], but: set[Any]) -> bool:
    """Return whether a number of a tape is computed of some."""
    if number in but:
        return False
    if number in wanted:
        return True
    return number > 0 and any(
        _reads_any(tape, one, wanted, but) for one in tape.calls[number - 1].references()
    )
