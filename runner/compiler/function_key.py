"""What a function reads besides its arguments, to know whether another function computes the same.

In this process, a key: functions are traced by calling them, and what they read becomes part of the kernel.
The key of a function holds its code and the values of its defaults, its closure and the globals that it and
the functions that it calls name. Equal keys mean equal traces. A function that may read anything else (the
clock, a file, random numbers, attributes of objects) has no key.

In every process, texts: a run that is resumed, or of several ranks, needs the same function in each. The code
of a function is in its file. The variables around it are not: `make(gain)` returns a job with another gain
for each call. Of a function that no file holds, such as one of a notebook, neither are the globals that it
names. Each of these values gets a text that is the same in every process for equal values.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import hashlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.lint.source import named
from meshrun.runner.job.declaration import Job

SCALARS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
REPORTED = 1 << 20  # bytes, from which on an array that every rank holds whole is reported
SHOWN = 60  # characters of a text that is shown as it is
LARGEST = 4096  # bytes of an array that is compared by its elements
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
# The functions of numpy.fft, whose results follow from their arguments.
FOURIER = frozenset(getattr(np.fft, name) for name in np.fft.__all__)
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

NamePath = tuple[str, ...]  # a name, and the attributes that are read from it at once
Open = tuple[FunctionType, ...]  # functions whose keys are being made


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
    if isinstance(value, FunctionType) and not _is_own(value) and value not in FOURIER:
        return _function(value, opened)
    if isinstance(value, FunctionType) or _is_pure(value):
        return _Same(value)
    raise _NoKey


def _bits(value: Any) -> Any:
    """Return a scalar so that zeros of two signs differ, and NaN equals itself."""
    if type(value) is float:
        return value.hex()
    return np.asarray(value).tobytes() if isinstance(value, (complex, np.inexact)) else value


def _is_own(function: FunctionType) -> bool:
    """Return whether a function was written in OWN_MODULES; `__module__` may be that of one it wraps."""
    return str(function.__globals__.get("__name__")).startswith(OWN_MODULES)


def _is_pure(value: Any) -> bool:
    """Return whether a type, or a function that is not written in Python, computes with arguments only."""
    if isinstance(value, np.ufunc):
        return True
    if isinstance(value, type):
        return value.__module__ == "numpy" or value.__name__ in PURE_BUILTINS
    if isinstance(value, BuiltinFunctionType):
        of_builtins = value.__module__ == "builtins" and value.__name__ in PURE_BUILTINS
        return of_builtins or value.__module__ in ("math", "_operator")
    from meshrun.runner.compiler.trace.functions.composites import FUNCTIONS

    try:
        return value in FUNCTIONS or value in FOURIER  # such as numpy.where
    except TypeError:  # it has no hash
        return False


def _function(function: FunctionType, opened: Open) -> Hashable:
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
        if not isinstance(value, ModuleType):
            break
        module, value = value, getattr(value, attribute, None)
        if module is np and attribute in PURE_NUMPY:
            return _Same(value)
    return _value(value, opened)  # no key of a module, which might be read anywhere


@functools.lru_cache(maxsize=1024)
def _paths(code: CodeType) -> tuple[NamePath, ...]:
    """Return the global and free names that code reads, with the attributes that follow. Raises _NoKey."""
    found: dict[NamePath, None] = {}
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


def instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function, and of those that are defined in it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from instructions(constant)


class _Unknown(Exception):
    """A value has no text. Its argument: what it is."""


@dataclass(frozen=True)
class Captured:
    """The captured variables of a function. values: the text of each, or its hash. unknown: what each of the
    others is."""

    values: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


def captured(job: Job) -> Captured:
    """Return what the job's function captures, and what the functions around it do that wrap it."""
    chain: list[Any] = [job.function]
    while hasattr(chain[-1], "__wrapped__"):
        chain.append(chain[-1].__wrapped__)
    variables: dict[str, list[Any]] = {}
    if not isinstance(chain[-1], FunctionType):  # a method
        variables["function"] = [chain.pop()]
    for function in reversed(chain):
        for name, value in _around(function) if isinstance(function, FunctionType) else ():
            if not any(value is one for one in chain):
                variables.setdefault(name, []).append(value)
    values, unknown = {}, {}
    for name, all_of_name in variables.items():
        try:
            text = ", ".join(_text(value, ()) for value in all_of_name)
            values[name] = text if len(text) <= SHOWN else hashlib.sha256(text.encode()).hexdigest()[:16]
        except _Unknown as reason:
            unknown[name] = str(reason)
    return Captured(values, unknown)


def value_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the text of each variable outside of a function that it names; not of one without a text."""
    inner = inspect.unwrap(function)
    texts: dict[str, str] = {}
    for name, value in named(inner).items() if isinstance(inner, FunctionType) else ():
        with contextlib.suppress(_Unknown):
            texts[name] = _text(value, ())
    return texts


def source_file(function: Callable[..., Any]) -> Path | None:
    """Return the file that holds a function; None for one of a notebook."""
    try:
        path = inspect.getsourcefile(function)
    except TypeError:  # not written in Python
        return None
    return Path(path) if path is not None and os.path.exists(path) else None


def code_text(code: CodeType) -> str:
    """Return instructions, names and constants as text, but no file names or line numbers."""
    return f"code {code.co_code.hex()} {code.co_names} {_each(code.co_consts, ())}"


def _around(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables around a function and, if no file holds it, the globals that it names."""
    in_file = source_file(function) is not None
    if in_file and not function.__code__.co_freevars:
        return
    for name, value in named(function).items():
        if not in_file or name in function.__code__.co_freevars:
            yield name, value


def _text(value: Any, opened: tuple[Any, ...]) -> str:
    """Return the text of a value. opened: the values around it. Raises _Unknown."""
    if type(value) in SCALARS:
        return repr(value)
    if any(value is one for one in opened):  # it holds itself
        return f"around {next(place for place, one in enumerate(opened) if one is value)}"
    opened = (*opened, value)
    for text_of in (_text_of_values, _text_of_data, _text_of_callable):
        if (text := text_of(value, opened)) is not None:
            return text
    name = value.__qualname__ if isinstance(value, type) else type(value).__name__
    raise _Unknown(f"the class {name}" if isinstance(value, type) else f"an object of {name}")


def _text_of_values(value: Any, opened: tuple[Any, ...]) -> str | None:
    """Return the text of what consists of other values."""
    kind = type(value)
    if isinstance(value, tuple):  # also a named one
        return f"{'' if kind is tuple else _text(kind, opened)}({_each(value, opened)})"
    if kind is list:
        return f"[{_each(value, opened)}]"
    if kind is dict:
        return f"dict({_each([part for pair in value.items() for part in pair], opened)})"
    if kind in (set, frozenset):
        return f"{kind.__name__}({', '.join(sorted(_text(one, opened) for one in value))})"
    if kind is slice:
        return f"slice({_each((value.start, value.stop, value.step), opened)})"
    if isinstance(value, Job):
        return f"job({_each((value.function, value.halo, value.boundary, value.cval), opened)})"
    if is_dataclass(value) and not isinstance(value, type):
        parts = tuple(getattr(value, one.name) for one in fields(value))
        return f"{_text(kind, opened)}({_each(parts, opened)})"
    return None


def _text_of_data(value: Any, opened: tuple[Any, ...]) -> str | None:
    """Return the text of an array, and of what is a name or a number."""
    if type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic):
        return _array_text(value)
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
        return _array_text(value.get())
    if isinstance(value, (np.dtype, range)):
        return repr(value)
    if isinstance(value, PurePath):
        return f"path {str(value)!r}"
    if isinstance(value, Enum):
        return f"{_text(type(value), opened)}.{value.name}"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    return None


def _text_of_callable(value: Any, opened: tuple[Any, ...]) -> str | None:
    """Return the text of a function, a class that can be imported, or code."""
    if isinstance(value, functools.partial):
        return f"partial({_each((value.func, value.args, value.keywords), opened)})"
    if isinstance(value, MethodType):
        return f"method({_each((value.__func__, value.__self__), opened)})"
    if isinstance(value, np.ufunc):
        return f"ufunc {value.__name__}"
    if (name := _imported_name(value)) is not None:
        return name
    if isinstance(value, FunctionType):
        around = [part for pair in _around(value) for part in pair]
        parts = (value.__defaults__, value.__kwdefaults__, *around)
        return f"function({code_text(value.__code__)}, {_each(parts, opened)})"
    if isinstance(value, CodeType):
        return code_text(value)
    if hasattr(value, "__wrapped__"):  # such as a function with a cache
        return f"{type(value).__name__}({_text(value.__wrapped__, opened)})"
    return None


def _each(values: Sequence[Any], opened: tuple[Any, ...]) -> str:
    return ", ".join(_text(value, opened) for value in values)


def _array_text(array: Any) -> str:
    """Return dtype, shape and the hash of the elements in C order."""
    if array.dtype.hasobject:
        raise _Unknown("an array of objects")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{type(array).__name__} {array.dtype} {array.shape} {hashlib.sha256(flat.data).hexdigest()}"


def _imported_name(value: Any) -> str | None:
    """Return the name by which other processes import a function or a class; None if they cannot."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


def held_whole(function: Callable[..., Any], constants: Sequence[Any]) -> dict[str, int]:
    """Return the bytes of each large array from outside of a function that every rank holds whole.

    constants: what a function of whole arrays uses; those of the fields' shape are cut. A function of blocks
    has the arrays that it names.
    """
    inner = inspect.unwrap(function)
    found = {
        one.name: math.prod(n for n, step in zip(one.values.shape, one.values.strides, strict=True) if step)
        * one.values.itemsize
        for one in constants
        if 0 in one.values.strides
    }
    if not constants and isinstance(inner, FunctionType):
        known = inspect.getclosurevars(inner)
        named = {**known.globals, **known.nonlocals}
        found = {name: one.nbytes for name, one in named.items() if isinstance(one, np.ndarray)}
    return {name: nbytes for name, nbytes in found.items() if nbytes >= REPORTED}
