"""What a traced function changes besides its arrays: variables and objects from outside of it.

A trace calls the function once, for all steps. A counter, a list that grows or an attribute would change with
each call of the function itself.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.refusal import NotTraceable

MOST_COMPARED = 20_000  # elements, of all objects that a function names
MOST_OF_ARRAY = 1000  # cells of an array that are compared
DEEPEST = 6  # containers in each other
SCALARS = (int, float, complex, str, bytes, bool, type(None))
CALLED = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, np.ufunc)
STORES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF")
MISSING = object()


class ChangesOutside(NotTraceable):
    """The function changes what is outside of it.

    name: of the variable. line: of the user's file; 0 if unknown.
    """

    def __init__(self, name: str, line: int = 0) -> None:
        super().__init__(
            f"changes {name}, which is outside of the function and keeps the change for its next call",
            "an input that the function also returns, or the parameter step for the number of the step",
        )
        self.line = line


@dataclass(frozen=True)
class _Noted:
    """A value that a function names. given: what a copy of the function gets. state: of the value then.

    code: of the function; None: unknown.
    """

    name: str
    value: Any
    given: Any
    state: Hashable
    code: types.CodeType | None


class OutsideState:
    """What functions name, as it was before they were called."""

    def __init__(self) -> None:
        self._noted: dict[tuple[int, str], _Noted] = {}

    def note(self, holder: Any, name: str, values: tuple[Any, Any], code: types.CodeType | None) -> None:
        """Keep the state of a value.

        holder: globals, a cell, or what else has the name. values: the value, and what copies get of it.
        code: of the function that names it; None: unknown.
        """
        if (id(holder), name) not in self._noted:
            state = _Walk().state(values[0], DEEPEST)
            self._noted[id(holder), name] = _Noted(name, *values, state, code)

    def check(self, functions: Mapping[types.FunctionType, types.CodeType]) -> None:
        """Raise ChangesOutside for the first change.

        functions: copies that were called, and the originals' codes; the copies' globals and the variables
        around them are theirs alone.
        """
        for function, code in functions.items():
            for name, line in _assigned(code):
                holder, value = _variable(function, name)
                noted = self._noted.get((id(holder), name))
                if value is not (MISSING if noted is None else noted.given):
                    raise ChangesOutside(name, line)
        for noted in self._noted.values():
            if _Walk().state(noted.value, DEEPEST) != noted.state:
                originals = [*functions.values()]
                codes = [noted.code] if noted.code else originals
                own = [code for code in codes if code.co_filename == originals[0].co_filename]
                raise ChangesOutside(noted.name, _first_line(own, noted.name))


def _variable(function: types.FunctionType, name: str) -> tuple[Any, Any]:
    """Return the cell or the globals that hold a variable, and its value."""
    code = function.__code__
    if name not in code.co_freevars:
        return function.__globals__, function.__globals__.get(name, MISSING)
    cell = (function.__closure__ or ())[code.co_freevars.index(name)]
    try:
        return cell, cell.cell_contents
    except ValueError:  # it is not assigned yet
        return cell, MISSING


def _assigned(code: types.CodeType) -> Iterator[tuple[str, int]]:
    """Yield the outer variables and globals that a function and those in it assign, with the line."""
    for one, line in _with_lines(code):
        inner = one.opname.endswith("DEREF") and one.argval not in code.co_freevars
        if one.opname in STORES and not inner:
            yield one.argval, line


def _first_line(codes: Sequence[types.CodeType], name: str) -> int:
    """Return the line that names a variable first, or where the first function begins; 0: unknown."""
    for code in codes:
        for one, line in _with_lines(code):
            if one.argval == name:
                return line
    return codes[0].co_firstlineno if codes else 0


def _with_lines(code: types.CodeType) -> Iterator[tuple[dis.Instruction, int]]:
    """Yield the instructions of a function, and of those in it, with their lines."""
    starts, line = dict(dis.findlinestarts(code)), 0
    for one in dis.get_instructions(code):
        line = starts.get(one.offset) or line
        yield one, line
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_lines(constant)


class _Walk:
    """Reads objects, and what they hold, up to a number of elements."""

    def __init__(self) -> None:
        self._left = MOST_COMPARED

    def state(self, value: Any, depth: int) -> Hashable:
        """Return what differs if an object has changed, as far as it can be seen."""
        self._left -= 1
        if type(value) in SCALARS:
            return type(value), repr(value)
        if depth == 0 or self._left <= 0 or isinstance(value, (*CALLED, type)):
            return id(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return id(value), len(value), tuple(self.state(one, depth - 1) for one in self._few(value))
        if isinstance(value, np.ndarray):
            cells, every = value.view(np.ndarray), max(value.size // MOST_OF_ARRAY, 1)
            return id(value), value.shape, cells.ravel()[::every].tobytes()
        is_mapping = isinstance(value, (dict, types.MappingProxyType))
        names: Mapping[Any, Any] = value if is_mapping else getattr(value, "__dict__", {})
        own = [(name, one) for name, one in names.items() if not str(name).startswith("__")]
        parts = ((self.state(name, depth - 1), self.state(one, depth - 1)) for name, one in self._few(own))
        return id(value), len(own), tuple(parts)

    def _few(self, values: Iterable[Any]) -> Iterator[Any]:
        return islice(values, max(self._left, 0))
