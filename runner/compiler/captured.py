"""Values that a job's function captures: they compute its results as its parameters do.

The code of a function is in its file. The variables around it are not: `make(gain)` returns a job with
another gain for each call. Of a function that no file holds, such as one of a notebook, neither are the
globals that it names. Each value gets a text that is the same in every process for equal values.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.lint.source import named
from meshrun.runner.job.declaration import Job

SCALARS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
REPORTED = 1 << 20  # bytes, from which on an array that every rank holds whole is reported
SHOWN = 60  # characters of a text that is shown as it is


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
