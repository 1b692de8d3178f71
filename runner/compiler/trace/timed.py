"""Numbers that a function computes of the step's number and of tables in time, and that all cells share.

A traced function gets a `Timed` in place of the number, and of each row of a table. What it computes of
these is recorded on a tape, and computed again for each step by the same calls of Python and NumPy on the
host: to the bit, and once per step rather than once per cell. Where such a number meets a field, it takes a
slot in the dtype in which NumPy computes there: Python's numbers are weak, NumPy's are not (NEP 50).
"""

from __future__ import annotations

import builtins
import math
import operator
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import SLOT, Graph, Node
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.errors import UserError
from meshrun.runner.job.series import Parameters
from meshrun.runner.region import HostArray

MOST_ELEMENTS = 16  # of a row that all cells use
BATCH = 1 << 12  # steps whose index into a table is checked at once


@dataclass(frozen=True)
class _Ref:
    """A number on the tape, as an argument of a call."""

    number: int


@dataclass(frozen=True)
class _Call:
    """One call on the tape. line: of the user's file. table: the table of which it takes rows, or ""."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    line: int
    table: str = ""

    def references(self) -> list[int]:
        return [one.number for one in _leaves((self.arguments, dict(self.options))) if isinstance(one, _Ref)]


@dataclass
class StepTape:
    """What is computed for each step.

    file: of the user's function, for messages. lift: makes a traced array of one of NumPy's that has a value
    for each cell; None where there are none. samples: the value of each number in step 0; the first one is
    the step's. slots: of each slot, which number it is, which of its elements, and the dtype. loops: of the
    numbers that change from iteration to iteration of a loop, the loop's number.
    """

    file: str = ""
    lift: Callable[[HostArray], Any] | None = field(default=None, repr=False)
    calls: list[_Call] = field(default_factory=list)
    samples: list[Any] = field(default_factory=lambda: [0])
    slots: dict[tuple[int, int, np.dtype[Any]], int] = field(default_factory=dict)
    loops: dict[int, int] = field(default_factory=dict)

    @property
    def step(self) -> Timed:
        return Timed(self, 0)

    def call(
        self, line: int, function: Callable[..., Any], *arguments: Any, table: str = "", **options: Any
    ) -> Any:
        """Record a call, and return its result as a `Timed`."""
        given, named = _replaced(arguments), _replaced(options)
        made = _Call(function, given, named, line, table)
        with np.errstate(all="ignore"):
            value = function(*_values(given, self.samples), **_values(named, self.samples))
        self.calls.append(made)
        self.samples.append(value)
        return Timed(self, len(self.samples) - 1)

    def of_loop(self, loop: int, sample: Any) -> Timed:
        """Return a number that changes from iteration to iteration. sample: in the first one."""
        number = len(self.samples)
        self.calls.append(_Call(_same, (sample,), {}, 0))
        self.samples.append(sample)
        self.loops[number] = loop
        return Timed(self, number)

    def changes_in(self, number: int, loop: int) -> bool:
        """Return whether a number changes from iteration to iteration of a loop, or of one within it."""
        if number in self.loops:
            return self.loops[number] >= loop
        return number > 0 and any(self.changes_in(one, loop) for one in self.calls[number - 1].references())

    def text(self) -> str:
        """Return the tape as text, equal for equal tapes."""
        lines = []
        for call in self.calls:
            leaves = [
                f"{one.dtype}{one.shape}{one.tobytes().hex()}" if isinstance(one, np.ndarray) else repr(one)
                for one in _leaves((call.arguments, dict(call.options)))
            ]
            lines.append(f"{getattr(call.function, '__name__', call.function)} {leaves} {call.table}")
        return "\n".join(map(str, (*lines, *self.slots)))

    def slot(self, number: int, element: int, dtype: np.dtype[Any]) -> int:
        return self.slots.setdefault((number, element, dtype), len(self.slots))

    def keep(self, count: int) -> None:
        """Forget all slots but the first ones, which a program reads."""
        self.slots = {key: slot for key, slot in self.slots.items() if slot < count}

    def row(self, step: int, given: Mapping[int, Any] = MappingProxyType({})) -> HostArray:
        """Return the slots of a step: uint64. given: as of `numbers`, which raises the same."""
        row: HostArray = self.rows(step, 1, given)[0]
        return row

    def rows(self, first: int, count: int, given: Mapping[int, Any] = MappingProxyType({})) -> HostArray:
        """Return a row of slots, uint64, for each of some steps. given: as of `numbers`."""
        with np.errstate(all="ignore"):
            return np.stack([self.row_of(self.numbers(step, given)) for step in range(first, first + count)])

    def row_of(self, values: Sequence[Any]) -> HostArray:
        """Return the slots of a step. values: all its numbers."""
        row = np.zeros(max(len(self.slots), 1), np.uint64)
        with np.errstate(all="ignore"):
            for (number, element, dtype), slot in self.slots.items():
                cell = np.asarray(_typed(values[number], dtype)).ravel()[element : element + 1]
                row[slot : slot + 1].view(np.uint8)[: dtype.itemsize] = cell.astype(dtype).view(np.uint8)
        return row

    def numbers(self, step: int, given: Mapping[int, Any] = MappingProxyType({})) -> list[Any]:
        """Return all numbers of a step. given: what those of loops are.

        Raises UserError for what cannot be computed in it.
        """
        values: list[Any] = [step]
        for number, (call, sample) in enumerate(zip(self.calls, self.samples[1:], strict=True), 1):
            if number in given:
                values.append(given[number])
                continue
            try:
                value = call.function(*_values(call.arguments, values), **_values(call.options, values))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as reason:  # a user's function may raise anything
                raise self._failure(f"{type(reason).__name__}: {reason}", step, call.line) from reason
            if _kind(value) != _kind(sample):
                what = f"a number that is {_kind(sample)} in step 0 is {_kind(value)}"
                raise self._failure(what, step, call.line, "a float, such as 2.0 instead of 2, in the line")
            values.append(value)
        return values

    def depending_on(self, given: Collection[int]) -> set[int]:
        """Return the numbers that are computed of some numbers, with these."""
        found = set(given)
        for number, call in enumerate(self.calls, 1):
            if not found.isdisjoint(call.references()):
                found.add(number)
        return found

    def check(self, steps: int) -> None:
        """Raise UserError, with the length needed, if so many steps take rows beyond a table's end."""
        wanted = [call for call in self.calls if call.table]
        needed = {number for call in wanted for number in call.references()}
        for number in reversed(range(1, len(self.calls) + 1)):
            if number in needed:
                needed |= set(self.calls[number - 1].references())
        beyond: dict[int, tuple[int, int]] = {}  # per call: the first such step, and the last row
        for first in range(0, steps if wanted else 0, BATCH):
            numbers = range(first, min(first + BATCH, steps))
            values: dict[int, Any] = {0: np.array(numbers, object)}
            for number, call in enumerate(self.calls, 1):
                if call.table:
                    for step, row in zip(numbers, _beyond(call, values), strict=True):
                        if row >= 0:
                            start, last = beyond.get(number, (step, row))
                            beyond[number] = start, max(last, row)
                if number in needed:
                    values[number] = _for_all(call, values, len(numbers))
        for number, (step, _) in beyond.items():
            call = self.calls[number - 1]
            rows = [row for other, (_, row) in beyond.items() if self.calls[other - 1].table == call.table]
            raise self._too_short(call, steps, step, max(rows))

    def _too_short(self, call: _Call, steps: int, step: int, last: int) -> UserError:
        """Return the error of a table that ends before a row that is taken. last: the last row taken."""
        return UserError(
            f"the table {call.table} is too short for {steps:,} steps{self._place(call.line)}",
            got=f"{len(call.arguments[0]):,} rows; step {step:,} takes one beyond them",
            expected=f"{last + 1:,} rows",
            hint=f"a longer table, or the index np.minimum(step, len({call.table}) - 1)",
            everywhere=True,
        )

    def _failure(self, what: str, step: int, line: int, hint: str | None = None) -> UserError:
        return UserError(
            f"step {step:,} cannot be computed{self._place(line)}", why=what, hint=hint, everywhere=True
        )

    def _place(self, line: int) -> str:
        return f" ({self.file}, line {line})" if line else ""


def _same(value: Any) -> Any:
    return value


class Timed:
    """A number of the step, or a short array of such, as a traced function sees it."""

    __array_priority__ = 900.0

    def __init__(self, tape: StepTape, number: int, dtype: np.dtype[Any] | None = None) -> None:
        self._tape, self._number, self._dtype = tape, number, dtype

    def typed(self, dtype: np.dtype[Any]) -> Timed:
        """Return the number, to be converted to a dtype where it meets a field."""
        return Timed(self._tape, self._number, dtype)

    def dtype_of(self, like: np.dtype[Any] | None) -> np.dtype[Any]:
        """Return the dtype where it meets a field. like: of an array that it is written to."""
        return self._dtype or like or np.asarray(self.sample).dtype

    @property
    def sample(self) -> Any:
        """The value in step 0, which tells the type."""
        return self._tape.samples[self._number]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(self.sample, name):
            raise AttributeError(f"{type(self.sample).__name__!r} object has no attribute {name!r}")
        value = getattr(self.sample, name)
        if name in ("dtype", "shape", "ndim", "size", "itemsize", "nbytes"):
            return value
        if callable(value):
            return partial(_record, self._tape, _call_method, name, self)
        return _record(self._tape, operator.attrgetter(name), self)

    def __getitem__(self, index: Any) -> Any:
        return _record(self._tape, operator.getitem, self, index)

    def __len__(self) -> int:
        return len(self.sample)

    def __iter__(self) -> Any:
        return (self[number] for number in range(len(self.sample)))

    def __repr__(self) -> str:
        return f"a number of the step, such as {self.sample!r}"

    def _refused(self) -> Any:
        raise NotTraceable(
            "decides by the number of the step (if, while, and, or, not)",
            "np.where(step < 10, a, b), or & | ~",
        )

    __bool__ = _refused

    def _as_integer(self) -> Any:
        raise NotTraceable(
            "picks cells, or counts a loop, by the number of the step",
            "np.where for cells; for a table, a parameter annotated meshrun.Series",
        )

    __index__ = _as_integer

    def _as_number(self) -> Any:
        raise NotTraceable(
            "converts a number of the step to a number of another type",
            "NumPy's functions instead of those of math, and no float() or int()",
        )

    __float__ = __int__ = __complex__ = _as_number

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise NotTraceable("makes an array of NumPy's of a number of the step", "a parameter instead")

    __hash__ = object.__hash__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(_is_field(one) for one in (*inputs, *(options.get("out") or ()))):
            return NotImplemented
        lift = self._tape.lift
        own = [np.size(one.sample) for one in inputs if isinstance(one, Timed)]
        if lift is not None and method == "__call__" and max(own) == 1:
            given = [lift(one) if _has_cells(one) else one for one in inputs]
            if any(map(_is_field, given)):
                return ufunc(*given, **options)
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        return _record(self._tape, function, *inputs, **options)

    def __array_function__(
        self, function: Callable[..., Any], kinds: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if any(not issubclass(kind, (Timed, np.ndarray)) for kind in kinds):
            return NotImplemented
        if function in (np.ndim, np.shape, np.size):
            return function(self.sample)
        return _record(self._tape, function, *args, **kwargs)


def _has_cells(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.size > 1


def _is_field(value: Any) -> bool:
    """Return whether a value is a traced array, which has a function's operations recorded itself."""
    return hasattr(value, "_recorder")


def _record(tape: StepTape, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return tape.call(_line(tape.file), function, *arguments, **options)


def _call_method(name: str, value: Any, *given: Any, **named: Any) -> Any:
    return getattr(value, name)(*given, **named)


def _line(file: str) -> int:
    """Return the line of the user's file that runs now; 0 if unknown."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


def _binary(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the methods of an operator, with the number on the left and on the right."""
    function = getattr(operator, name)

    def left(self: Timed, other: Any) -> Any:
        if _is_field(other) or isinstance(other, np.ndarray):
            return NotImplemented  # so that Python calls a ufunc
        return _record(self._tape, function, self, other)

    def right(self: Timed, other: Any) -> Any:
        return _record(self._tape, function, other, self)

    return left, right


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a function that Python calls by a name of its own."""

    def method(self: Timed, *others: Any) -> Any:
        return _record(self._tape, function, self, *others)

    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor")
for _name in _BINARY:
    _left, _right = _binary(_name)
    setattr(Timed, f"__{_name.rstrip('_')}__", _left)
    setattr(Timed, f"__r{_name.rstrip('_')}__", _right)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Timed, f"__{_name}__", _binary(_name)[0])
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Timed, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in ("round", "divmod"):
    setattr(Timed, f"__{_name}__", _unary(getattr(builtins, _name)))


OUTSIDE = "outside of the function"  # in place of a table's name


def taken_row(tape: StepTape, name: str, table: HostArray, index: Any) -> Any:
    """Return what an index takes of a table by the step; None for an index without a number of the step."""
    if not any(isinstance(one, Timed) for one in (index if isinstance(index, tuple) else (index,))):
        return None
    return tape.call(_line(tape.file), operator.getitem, table, index, table=name)


class TimedTable(np.ndarray[Any, Any]):
    """A table in time as a traced function sees it: an array, of which rows may be taken by the step."""

    _tape: StepTape
    _name: str

    def __array_finalize__(self, source: Any) -> None:
        if isinstance(source, TimedTable):  # what is computed of a table is one, too
            self._tape, self._name = source._tape, source._name

    def __getitem__(self, index: Any) -> Any:
        row = taken_row(self._tape, self._name, self, index)
        return super().__getitem__(index) if row is None else row


def given_of(tape: StepTape, parameters: Mapping[str, Any]) -> Parameters:
    """Return a job's parameters as a traced function sees them: arrays are tables in time."""
    found = dict(parameters)
    for name, value in parameters.items():
        if isinstance(value, np.ndarray):
            found[name] = table_of(tape, name, value)
    return found


def table_of(tape: StepTape, name: str, values: HostArray) -> TimedTable:
    """Return an array of which rows may be taken by the step."""
    table = values.view(TimedTable)
    table._tape, table._name = tape, name
    return table


def nodes_of(graph: Graph, timed: Timed, kind: np.dtype[Any] | None = None) -> np.ndarray[Any, Any]:
    """Return the leaves of a number of the step, or of a short array of such.

    kind: dtype of an array that it is written to. The conversion is NumPy's, on the host.
    """
    value = np.asarray(timed.sample)
    dtype = timed.dtype_of(kind)
    if value.size > MOST_ELEMENTS:
        raise NotTraceable(f"computes with {value.size} elements of a table for each cell")
    nodes = np.empty(value.shape, object)
    if dtype.kind == "c":
        of_parts = np.dtype(f"f{dtype.itemsize // 2}")
        real, imag = (
            nodes_of(graph, Timed(timed._tape, getattr(timed, part)._number, of_parts)).ravel()
            for part in ("real", "imag")
        )
        nodes.ravel()[:] = [graph.operation("complex", dtype, pair) for pair in zip(real, imag, strict=True)]
        return nodes
    if dtype.kind not in "biuf" or dtype.itemsize > SLOT:
        raise NotTraceable(f"computes with {dtype}", "numbers of at most 8 bytes")
    for number in range(value.size):
        slot = timed._tape.slot(timed._number, number, dtype)
        nodes.ravel()[number] = graph.step_slot(slot, dtype)
    return nodes


def as_compared(inputs: Sequence[Any], kinds: Sequence[Any]) -> list[Any]:
    """Return the dtypes of a comparison's operands, in which Python's integers of the step are int64.

    An integer may be beyond the range of a field's dtype in some steps: NumPy compares it all the same.
    """
    fields = [one.dtype for one in inputs if _is_field(one)]
    if any(kind.kind not in "iu" or kind == np.uint64 for kind in fields):
        return list(kinds)
    return [
        np.dtype(np.int64) if isinstance(one, Timed) and type(one.sample) is int else kind
        for one, kind in zip(inputs, kinds, strict=True)
    ]


def scalar_of(node: Node, row: HostArray) -> Any:
    """Return the value of a leaf in a step. row: the step's slots."""
    slot = row[node.value : node.value + 1].view(np.uint8)
    return slot[: node.dtype.itemsize].view(node.dtype)[0]


def _for_all(call: _Call, values: Mapping[int, Any], count: int) -> HostArray:
    """Return what a call gives in some steps; None where it fails. values: of numbers, in each step."""
    known = {number: values[number] for number in call.references()}
    found = np.empty(count, object)
    # Python's integers, of all steps at once.
    with np.errstate(all="ignore"), suppress(Exception, NotTraceable):
        at_once = call.function(*_values(call.arguments, known), **_values(call.options, known))
        if isinstance(at_once, np.ndarray) and at_once.dtype == object and at_once.shape == (count,):
            return at_once
    for place in range(count):
        of_step = {number: value[place] for number, value in known.items()}
        # The run shows it, if it fails there too.
        with np.errstate(all="ignore"), suppress(Exception, NotTraceable):
            found[place] = call.function(*_values(call.arguments, of_step), **_values(call.options, of_step))
    return found


def _beyond(call: _Call, values: Mapping[int, Any]) -> HostArray:
    """Return the row that a call takes of its table in each step, as far as it is beyond; else -1."""
    table, index = call.arguments
    first = index[0] if isinstance(index, tuple) else index
    if not isinstance(first, _Ref):
        return np.full(len(values[0]), -1)
    length = len(table)
    rows = [operator.index(row) if isinstance(row, (int, np.integer)) else 0 for row in values[first.number]]
    return np.array([row if row >= length else -row - 1 if row < -length else -1 for row in rows], object)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for one in value for leaf in _leaves(one)]
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in _leaves(one)]
    if isinstance(value, slice):
        return _leaves((value.start, value.stop, value.step))
    return [value]


def _mapped(value: Any, of: Callable[[Any], Any]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_mapped(one, of) for one in value)
    if type(value) is dict:
        return {key: _mapped(one, of) for key, one in value.items()}
    if isinstance(value, slice):
        return slice(*(_mapped(one, of) for one in (value.start, value.stop, value.step)))
    return of(value)


def _replaced(value: Any) -> Any:
    """Return arguments with references in place of numbers of the step, and tables as arrays."""

    def of(one: Any) -> Any:
        if isinstance(one, Timed):
            return _Ref(one._number)
        return one.view(np.ndarray) if isinstance(one, np.ndarray) else one

    return _mapped(value, of)


def _values(value: Any, known: Any) -> Any:
    """Return arguments with values in place of references."""
    return _mapped(value, lambda one: known[one.number] if isinstance(one, _Ref) else one)


def _typed(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value; raise OverflowError for an integer of Python's that the dtype cannot hold."""
    return dtype.type(value) if type(value) is int else value


def _kind(value: Any) -> str:
    """Return what decides in which dtype NumPy computes with a value."""
    if isinstance(value, (np.ndarray, np.generic)):
        shape = f" of shape {value.shape}" if value.shape else ""
        return f"{value.dtype}{shape}"
    return type(value).__name__


class TimedMath:
    """The module math as a traced function sees it: its functions also take numbers of the step."""

    def __init__(self, tape: StepTape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        value = getattr(math, name)
        return of_numbers(self._tape, value) if callable(value) else value


def of_numbers(tape: StepTape, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Python's numbers that also takes numbers of the step."""

    def call(*arguments: Any, **options: Any) -> Any:
        if any(isinstance(one, Timed) for one in _leaves((arguments, options))):
            return _record(tape, function, *arguments, **options)
        return function(*arguments, **options)

    return call
