"""A key of all that a plain function computes with, to know that its trace is still right.

Functions are traced by calling them: what they read besides their arguments becomes part of the kernel. The
key of a function holds its code and the values of its defaults, its closure and the globals that it and the
functions that it calls name. Equal keys mean equal traces. A function that may read anything else (the clock,
a file, random numbers, attributes of objects) has no key.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.functions.composites import FUNCTIONS

LARGEST = 4096  # bytes of an array that is compared by its elements
SCALARS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
PURE_BUILTINS = frozenset(
    [
        "abs",
        "all",
        "any",
        "bool",
        "dict",
        "divmod",
        "enumerate",
        "filter",
        "float",
        "frozenset",
        "int",
        "isinstance",
        "len",
        "list",
        "map",
        "max",
        "min",
        "pow",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "zip",
        "ArithmeticError",
        "AssertionError",
        "Exception",
        "IndexError",
        "KeyError",
        "TypeError",
        "ValueError",
    ]
)
# NumPy's names, beside those that are traced, whose results follow from their arguments.
PURE_NUMPY = frozenset(
    [
        "arange",
        "array",
        "asarray",
        "ascontiguousarray",
        "can_cast",
        "empty",
        "errstate",
        "eye",
        "finfo",
        "full",
        "iinfo",
        "linspace",
        "ndarray",
        "ones",
        "outer",
        "promote_types",
        "result_type",
        "zeros",
    ]
)
# Attributes by which a function reaches, from any array module, what does not follow from its arguments.
IMPURE = frozenset(
    ["random", "fromfile", "load", "loadtxt", "genfromtxt", "memmap", "fromregex", "ctypeslib", "ctypes"]
)
# Modules of meshrun whose functions compute with their arguments only, and are the same as long as it runs.
OWN_MODULES = "meshrun.jobs."
WRITES = ("IMPORT_", "STORE_GLOBAL", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_ATTR", "LOAD_BUILD_CLASS")
LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")

Path = tuple[str, ...]  # a name, and the attributes that are read from it at once
Open = tuple[types.FunctionType, ...]  # functions whose keys are being made


class _NoKey(Exception):
    """A function may read something that a key does not hold."""


@dataclass(frozen=True, eq=False)
class _Same:
    """An object that equals itself only; the key keeps it alive."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def key_of(value: Any) -> Hashable | None:
    """Return a key of a function or of a value that it is given. None if there is none.

    Functions of equal keys compute the same of the same arguments. Values of equal keys are equal to the bit.
    """
    try:
        return _value(value, ())
    except _NoKey:
        return None


def _value(value: Any, opened: Open) -> Hashable:
    if type(value) in SCALARS or isinstance(value, (np.dtype, np.generic)):
        return type(value), _bits(value)
    if type(value) in (tuple, list, set, frozenset):  # equal sets may differ in their order
        return type(value), tuple(_value(one, opened) for one in value)
    if type(value) is dict:
        return dict, tuple((_value(name, opened), _value(one, opened)) for name, one in value.items())
    if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.nbytes <= LARGEST:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, types.FunctionType) and not _is_own(value):
        return _function(value, opened)
    if isinstance(value, types.FunctionType) or _is_pure(value):
        return _Same(value)
    raise _NoKey


def _bits(value: Any) -> Any:
    """Return a scalar so that zeros of two signs differ, and NaN equals itself."""
    if type(value) is float:
        return value.hex()
    return np.asarray(value).tobytes() if isinstance(value, (complex, np.inexact)) else value


def _is_own(function: types.FunctionType) -> bool:
    """Return whether a function was written in OWN_MODULES; `__module__` may be that of one it wraps."""
    return str(function.__globals__.get("__name__")).startswith(OWN_MODULES)


def _is_pure(value: Any) -> bool:
    """Return whether a type, or a function that is not written in Python, computes with arguments only."""
    if isinstance(value, np.ufunc):
        return True
    if isinstance(value, type):
        return value.__module__ == "numpy" or value.__name__ in PURE_BUILTINS
    if isinstance(value, types.BuiltinFunctionType):
        of_builtins = value.__module__ == "builtins" and value.__name__ in PURE_BUILTINS
        return of_builtins or value.__module__ in ("math", "_operator")
    try:
        return value in FUNCTIONS  # such as numpy.where
    except TypeError:  # it has no hash
        return False


def _function(function: types.FunctionType, opened: Open) -> Hashable:
    if function in opened:  # it calls itself
        return "called by itself", opened.index(function)
    opened = (*opened, function)
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    values: list[Hashable] = []
    for name, *attributes in _paths(code):
        if name in cells:
            try:
                found = cells[name].cell_contents
            except ValueError:  # it is not assigned yet
                raise _NoKey from None
        elif name in function.__globals__:
            found = function.__globals__[name]
        elif name in PURE_BUILTINS:
            found = getattr(builtins, name)
        else:
            raise _NoKey
        values.append(_read(found, attributes, opened))
    given = (function.__defaults__, function.__kwdefaults__, vars(function))
    return code, tuple(values), tuple(_value(one, opened) for one in given)


def _read(value: Any, attributes: list[str], opened: Open) -> Hashable:
    """Return a key of what is read of a value: an attribute of a module, or the value itself."""
    for attribute in attributes:
        if not isinstance(value, types.ModuleType):
            break
        module, value = value, getattr(value, attribute, None)
        if module is np and attribute in PURE_NUMPY:
            return _Same(value)
    return _value(value, opened)  # no key of a module, which might be read anywhere


@functools.lru_cache(maxsize=1024)
def _paths(code: types.CodeType) -> tuple[Path, ...]:
    """Return the global and free names that code reads, with the attributes that follow. Raises _NoKey."""
    found: dict[Path, None] = {}
    path: list[str] = []
    for instruction in instructions(code):
        name, value = instruction.opname, instruction.argval
        if name.startswith(WRITES) or (name == "STORE_DEREF" and value in code.co_freevars):
            raise _NoKey
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            if value in IMPURE or value.startswith("__"):
                raise _NoKey
            if path:
                path.append(value)
                continue
        if path:
            found[tuple(path)] = None
        is_read = name in LOADS and (not name.endswith("DEREF") or value in code.co_freevars)
        path = [value] if is_read else []
    return tuple(found)


def instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function, and of those that are defined in it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from instructions(constant)
