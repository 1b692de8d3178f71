"""The state of a loop or a branch while a function is traced: its variables, and what is undone of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.runner.compiler.control.plain import LocalState
from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.trace.refusal import NotTraceable, refusal_of
from meshrun.runner.compiler.trace.timed import Timed, nodes_of
from meshrun.runner.compiler.whole.array import (
    ArrayOrScalar,
    Scalar,
    Storage,
    Tracing,
    Whole,
    made,
    made_scalar,
    taken,
)
from meshrun.runner.compiler.whole.graph import WholeGraph

RESULT = "<result>"  # the variable of what the function returns
NUMBERS = (bool, int, float, complex)


class NotAlike(Exception):
    """What an iteration leaves is not like what it found. The text says what."""


@contextmanager
def errors_refused() -> Iterator[None]:
    """Refuse what code raises that a value decides to run: the function's handlers must not catch it."""
    try:
        yield
    except (NotTraceable, NotAlike, RecursionError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as reason:  # a user's function may raise anything
        raise refusal_of(reason).with_traceback(reason.__traceback__) from reason


@dataclass
class IterationJournal:
    """What is to be undone of an iteration.

    born: number of the next storage. checks, chosen: how many there were of each. written: storages, as they
    were before.
    """

    born: int
    checks: int
    chosen: int
    written: dict[Storage, tuple[list[Node], bool, int]] = field(default_factory=dict)


@dataclass
class Leaf:
    """A value in the state. path: the variable, and where in it the value is. names: of the variable."""

    path: tuple[Any, ...]
    value: Any

    @property
    def name(self) -> str:
        return str(self.path[0])


def is_traced(value: Any) -> bool:
    """Return whether a value is not known while the function is traced, and all cells share it."""
    return (
        isinstance(value, Timed)
        or (isinstance(value, Whole) and not value._axes and not value._of_cells())
        or (isinstance(value, Scalar))
    )


class StateTracer:
    """Runs parts of a function on its variables. recorder: of the call. dtypes: of the inputs."""

    def __init__(self, recorder: Tracing, dtypes: Iterable[np.dtype[Any]]) -> None:
        self.recorder, self.dtypes = recorder, set(dtypes)
        self.loop_numbers = itertools.count()
        self._brought: dict[tuple[Any, ...], Any] = {}  # values of other spaces, by their memory and nodes

    def line_of(self, statement: Callable[..., Any]) -> int:
        """Return the line of a statement in the user's file."""
        code: Any = getattr(statement, "__code__", None)
        return code.co_firstlineno if code is not None else self.recorder.line()

    def condition(self, value: Any) -> Node:
        """Return the node of a condition."""
        recorder, value = self.recorder, self.brought(value)
        if isinstance(value, Timed):
            (node,) = nodes_of(recorder.graph, value.typed(np.dtype(bool))).ravel()
        else:
            (node,) = taken(value.copy() if not isinstance(value, Scalar) else value).ravel()
        return recorder.graph.operation("cast", np.dtype(bool), [node], recorder.line())

    @contextmanager
    def journal(self) -> Iterator[IterationJournal]:
        recorder = self.recorder
        journal = IterationJournal(next(Storage.numbers), len(recorder.checks), len(recorder.chosen))
        recorder.journals.append(journal.written)
        try:
            yield journal
        finally:
            recorder.journals.pop()

    def undo(self, journal: IterationJournal, state: LocalState, values: Sequence[Any], copies: Any) -> None:
        for storage, (nodes, changed, line) in journal.written.items():
            storage.nodes[:], storage.changed, storage.line = nodes, changed, line
        del self.recorder.checks[journal.checks :]
        del self.recorder.chosen[journal.chosen :]
        _restore(copies)
        state.set(values)

    def leaves(self, state: LocalState, values: Sequence[Any] | None = None) -> list[Leaf]:
        values = state.get() if values is None else values
        pairs = zip(state.names, values, strict=True)
        return [leaf for name, value in pairs for leaf in _flattened((name,), value)]

    def alone(self, value: Any) -> Any:
        """Return a value of a cell that is not the own one as a value that all cells share."""
        value = self.brought(value)
        is_cell = isinstance(value, Whole) and not value._axes and not value._storage.extents
        if not is_cell or not self.recorder.graph.vary(value.read().ravel()):
            return value
        (node,) = taken(value).ravel()
        if isinstance(value, Scalar):
            return weak_as(made_scalar(self.recorder, {}, node), value._weak)
        return made(self.recorder, (), {}, np.full((), node, object), value.dtype)

    def brought(self, value: Any) -> Any:
        """Return a value of another space, such as a sum of a spectrum, as one of the first space."""
        other = isinstance(value, Whole) and value._recorder is not self.recorder
        if not other or value._axes or value._recorder.spaces is not self.recorder.spaces:
            return value
        key = value._storage, *value._storage.nodes
        if key not in self._brought:
            self._brought[key] = self.recorder.spaces.brought(value, self.recorder)
        return self._brought[key]

    def space_of(self, recorder: Tracing) -> int:
        """Return the number of a recorder's space."""
        number: int = self.recorder.spaces.recorders.index(recorder)
        return number

    def graph_of(self, space: int) -> WholeGraph:
        """Return the graph of a space. space: its number."""
        graph: WholeGraph = self.recorder.spaces.recorders[space].graph
        return graph

    def run(self, state: LocalState, body: Callable[[], Any]) -> tuple[list[Leaf], list[Leaf]]:
        """Run an iteration. Return the state before it and after it, of values by themselves."""
        before = [Leaf(one.path, self.alone(one.value)) for one in self.leaves(state)]
        born = next(Storage.numbers)
        body()
        self._copy_own_parts(state, before, born)
        return before, [Leaf(one.path, self.alone(one.value)) for one in self.leaves(state)]

    def _copy_own_parts(self, state: LocalState, before: Sequence[Leaf], born: int) -> None:
        """Let the real or imaginary part of an array that only one variable sees be an array of its own.

        Such as `u = np.fft.ifft2(spectrum).real` for a variable that held a real array. before: the state
        before the iteration. born: number of the first storage that the iteration has made.
        """
        held = {one.name: one.value for one in before if len(one.path) == 1}
        seen = Counter(one.value._storage for one in self.leaves(state) if isinstance(one.value, Whole))
        values = list(state.get())
        for number, (name, value) in enumerate(zip(state.names, values, strict=True)):
            old = held.get(name)
            if not (isinstance(old, Whole) and isinstance(value, Whole) and value._part and not old._part):
                continue
            if value._storage.born > born and seen[value._storage] == 1:
                values[number] = value.copy()
                state.set(values)

    def as_alike(self, value: Any) -> Any:
        """Return a number as a value of the program."""
        recorder = self.recorder
        if isinstance(value, Timed) and np.ndim(value.sample) == 0:
            kind = type(value.sample)
            (node,) = nodes_of(recorder.graph, value).ravel()
        elif isinstance(value, (*NUMBERS, np.generic)):
            kind, array = type(value), np.asarray(value)
            node = recorder.graph.constant(array, array.dtype)
        else:
            return value
        return weak_as(made_scalar(recorder, {}, node), kind if kind in NUMBERS else None)

    def of_one_dtype(self, one: Any, other: Any) -> tuple[Any, Any]:
        """Return two values, one that is a number of Python's as the other's dtype.

        Only where all inputs have that dtype: the number would take it where it meets a field.
        """
        for weak, strong in ((one, other), (other, one)):
            if not (isinstance(weak, Scalar) and isinstance(strong, Scalar)):
                continue
            if weak._weak in (int, float) and strong._weak is None and self.dtypes == {strong.dtype}:
                (node,) = weak.read().ravel()
                node = self.recorder.graph.operation("cast", strong.dtype, [node], self.recorder.line())
                typed = made_scalar(self.recorder, {}, node)
                return (typed, strong) if weak is one else (strong, typed)
        return one, other

    def bind(self, state: LocalState, values: Sequence[Any], replaced: Mapping[tuple[Any, ...], Any]) -> None:
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


def copies_of(values: Sequence[Any]) -> list[tuple[Any, Any]]:
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


def are_unchanged(copies: Sequence[tuple[Any, Any]]) -> bool:
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


def over(value: Whole, storage: Storage) -> Whole:
    """Return the same view of other memory."""
    found = type(value)(
        value._recorder, storage, value._axes, value._fixed, value._cells, value.dtype, value._part
    )
    return weak_as(found, value._weak) if isinstance(value, Scalar) else found


def scalar_like(value: Scalar, node: Node) -> Scalar:
    """Return a scalar of the same kind with another value."""
    found = type(value)(value._recorder, Storage([node], {}), (), {}, np.zeros((), int), node.dtype)
    made: Scalar = weak_as(found, value._weak)
    return made


def without_array(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two values; if one is an array of shape () and the other a scalar, as what is one of both."""
    if not ((_is_array(one) and _is_scalar(other)) or (_is_scalar(one) and _is_array(other))):
        return one, other
    cell = np.zeros((), int)
    stores = [Storage(list(taken(value).ravel()), {}) for value in (one, other)]
    one, other = (
        ArrayOrScalar(value._recorder, storage, (), {}, cell, value.dtype)
        for value, storage in zip((one, other), stores, strict=True)
    )
    return one, other


def _is_array(value: Any) -> bool:
    """Return whether a value is an array of shape ()."""
    is_array = isinstance(value, Whole) and not isinstance(value, Scalar)
    return is_array and not value._axes and not value._storage.extents


def _is_scalar(value: Any) -> bool:
    """Return whether a value is a scalar of NumPy's."""
    return isinstance(value, Scalar) and value._weak is None


def weak_as(value: Any, kind: Any) -> Any:
    """Return a scalar as a number of Python's, of a kind; of booleans, Python's are like NumPy's."""
    value._weak = None if kind is bool else kind
    return value
