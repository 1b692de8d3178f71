"""Copies of the user's functions, in whose globals modules are replaced.

A traced function is called as a copy where what it names must be seen: so are the user's functions that it
calls. The originals stay as they are.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshrun.runner.compiler.control.convert import convert
from meshrun.runner.compiler.control.plain import CONTROL, PlainControl
from meshrun.runner.compiler.trace.outside_state import ChangesOutside, OutsideState
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import OUTSIDE, StepTape, TimedMath, of_numbers, table_of

HEAP_TYPE = 1 << 9  # flag of classes that are written in Python
EXTREMES = {"min": operator.lt, "max": operator.gt}  # which of two items takes the place of the other
LIBRARIES = ("numpy", "cupy", "scipy", "meshrun")


class FunctionCopies:
    """Copies of functions and of their globals, whose math functions, min and max take numbers of the step.

    tape: of what the functions of math compute of the step. modules: what stands in for modules, by name.
    values: what stands in for other values, by their id. control: does what the loops and conditions of the
    functions say; None: they stay Python's.
    """

    def __init__(
        self,
        tape: StepTape,
        modules: Mapping[str, Any] | None = None,
        values: Mapping[int, Any] | None = None,
        control: PlainControl | None = None,
    ) -> None:
        self._tape, self._control = tape, control
        self._modules = {"math": TimedMath(tape), **(modules or {})}
        self._values = dict(values or {})
        self._globals: dict[int, dict[str, Any]] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._codes: dict[types.FunctionType, types.CodeType] = {}  # of each copy, that of the original
        self._classes: dict[int, type] = {}
        self._objects: dict[int, Any] = {}
        self._outside = OutsideState()

    def check_unchanged(self) -> None:
        """Raise ChangesOutside if the functions that were called have changed what is outside of them."""
        self._outside.check(self._codes)

    def of_array(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return an array from outside of the function, of which rows may be taken by the step."""
        return table_of(self._tape, OUTSIDE, array)

    def of(self, value: Any) -> Any:
        """Return a value as a copied function sees it."""
        if isinstance(value, types.ModuleType):
            if value.__name__ in self._modules:
                return self._modules[value.__name__]
            return value if _is_library(value.__name__) else _Seen(self, value)
        if id(value) in self._values:
            return self._values[id(value)]
        if type(value) is np.ndarray and value.ndim and value.dtype.kind in "biufc":
            return self.of_array(value)
        if isinstance(value, types.BuiltinFunctionType) and value.__module__ == math.__name__:
            return of_numbers(self._tape, value)
        if isinstance(value, functools.partial):
            keywords = {name: self.of(one) for name, one in value.keywords.items()}
            return functools.partial(self.of(value.func), *map(self.of, value.args), **keywords)
        if isinstance(value, np.vectorize):
            return calls_each_cell
        if isinstance(value, type):
            return self._class(value)
        plain = value.function if getattr(value, "whole", False) is True else value
        if isinstance(plain, types.FunctionType) and not _is_library(plain.__module__ or ""):
            return self._function(plain)
        if _is_plain_class(type(value)):
            return self._object(value)
        return value

    def _class(self, kind: type) -> type:
        """Return a class of the user's whose methods are copies."""
        if not _is_plain_class(kind):
            return kind
        if id(kind) not in self._classes:
            bases = tuple(self._class(base) for base in kind.__bases__)
            own = {name: one for name, one in vars(kind).items() if name not in ("__dict__", "__weakref__")}
            copied = self._classes[id(kind)] = type(kind)(kind.__name__, bases, own)
            # Methods may name the class, also by super().
            for name, one in own.items():
                if isinstance(one, (staticmethod, classmethod)):
                    setattr(copied, name, type(one)(self.of(one.__func__)))
                elif isinstance(one, property):
                    get, store, delete = (
                        None if part is None else self.of(part) for part in (one.fget, one.fset, one.fdel)
                    )
                    setattr(copied, name, property(get, store, delete, one.__doc__))
                elif isinstance(one, types.FunctionType):
                    setattr(copied, name, self.of(one))
            attributes = vars(copied)
            self._outside.note(copied, kind.__name__, (attributes, attributes), None)
        return self._classes[id(kind)]

    def _object(self, value: Any) -> Any:
        """Return an object of a copied class, which shares its attributes with the user's."""
        if id(value) not in self._objects:
            copied: Any = object.__new__(self._class(type(value)))
            object.__setattr__(copied, "__dict__", value.__dict__)
            self._objects[id(value)] = copied
        return self._objects[id(value)]

    def of_module(self, module: types.ModuleType, name: str) -> Any:
        """Return an attribute of a module of the user's."""
        value = getattr(module, name)
        given = self.of(value)
        self._outside.note(module, f"{module.__name__}.{name}", (value, given), None)
        return given

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        if (known := self._functions.get(id(function))) is not None:
            return known
        space = self._globals.setdefault(id(function.__globals__), dict(function.__globals__))
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        code = function.__code__
        if self._control is not None:
            space[CONTROL] = self._control
            code = convert(function) or code
        copied = types.FunctionType(code, space, function.__name__, function.__defaults__, cells or None)
        copied.__kwdefaults__ = function.__kwdefaults__
        copied.__dict__.update(function.__dict__)
        self._functions[id(function)] = copied
        self._codes[copied] = function.__code__
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._outside.note(
                default, f"a default of {function.__name__}", (default, default), function.__code__
            )
        attributes = copied.__dict__
        self._outside.note(
            copied, f"an attribute of {function.__name__}", (attributes,) * 2, function.__code__
        )
        # What it names: globals, also in the functions inside it, and the variables around it.
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            for name in code.co_names:
                if name in function.__globals__:
                    value = function.__globals__[name]
                    space[name] = self.of(value)
                    self._outside.note(space, name, (value, space[name]), function.__code__)
                elif name in EXTREMES:
                    space[name] = of_numbers(self._tape, getattr(builtins, name))
                    if self._control is not None:
                        space[name] = functools.partial(self._control.extreme, EXTREMES[name], space[name])
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        around = zip(function.__code__.co_freevars, cells, function.__closure__ or (), strict=True)
        for name, cell, original in around:
            try:
                cell.cell_contents = self.of(original.cell_contents)
                values = original.cell_contents, cell.cell_contents
                self._outside.note(cell, name, values, function.__code__)
            except ValueError:  # a variable without a value yet
                continue
        return copied


class _Seen:
    """A module of the user's as a copied function sees it."""

    def __init__(self, copies: FunctionCopies, module: types.ModuleType) -> None:
        self._copies, self._original = copies, module

    def __getattr__(self, name: str) -> Any:
        return self._copies.of_module(self._original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise ChangesOutside(f"{self._original.__name__}.{name}")
        super().__setattr__(name, value)


def calls_each_cell(*arrays: Any, **options: Any) -> Any:
    """Stand in for a function that numpy.vectorize has made."""
    raise NotTraceable("calls a function for each cell (numpy.vectorize)", "np.where(condition, a, b)")


def _is_plain_class(kind: type) -> bool:
    """Return whether a class is the user's, and one whose objects have their attributes in a dict."""
    if type(kind) is not type or _is_library(kind.__module__ or "") or _is_installed(kind.__module__):
        return False
    every = kind.__mro__[:-1]
    return all(base.__flags__ & HEAP_TYPE and "__slots__" not in vars(base) for base in every)


def _is_installed(module: str) -> bool:
    return "site-packages" in (getattr(sys.modules.get(module), "__file__", None) or "")


def _is_library(name: str) -> bool:
    return name.partition(".")[0] in LIBRARIES or name.partition(".")[0] in sys.stdlib_module_names
