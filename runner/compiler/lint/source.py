"""The source of a job's function and of those that it calls."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

# They slice what is theirs, or return whole blocks, and look at no array of the run's.
LIBRARIES = {"numpy", "cupy", "scipy", *sys.stdlib_module_names}
OWN = tuple(f"{Path(__file__).parents[3] / room}{os.sep}" for room in ("runner", "jobs"))
LONGEST = 72  # characters of a quoted line


@dataclass(frozen=True)
class FunctionSource:
    """The source of one function. first: its first line in the file. own: the names of its variables."""

    tree: ast.AST
    lines: tuple[str, ...]
    first: int
    file: str
    own: frozenset[str]

    def line_of(self, node: ast.AST) -> int:
        """Return the line of the file."""
        line: int = getattr(node, "lineno", 1)
        return self.first + line - 1

    def text_of(self, node: ast.AST) -> str:
        """Return the line of a node, to quote it."""
        line = self.lines[getattr(node, "lineno", 1) - 1].strip()
        return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def functions_of(function: Any) -> list[FunctionType]:
    """Return a function and those that it reaches by its globals and the variables around it.

    None is of a library or of meshrun, whose jobs have tests: reading their source would take milliseconds.
    """
    reached = (value for value in reached_by(function, attributes=False) if isinstance(value, FunctionType))
    return [each for each in reached if not hasattr(each, "__wrapped__")]


def reached_by(function: Any, *, attributes: bool) -> Iterator[Any]:
    """Yield a function, and the values that it reaches by the names in its code, each once.

    Functions of libraries are left out. attributes: yield also what it names of modules, classes and objects,
    and look into meshrun's functions.
    """
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        value = waiting.pop(0)
        code = getattr(value, "__code__", None)
        key = id(value if code is None else code)  # a method is another object each time
        if key in seen or (isinstance(code, CodeType) and _is_left_out(value, own=not attributes)):
            continue
        seen.add(key)
        yield value
        waiting[:0] = _held_by(value, attributes=attributes)


def _is_left_out(function: Any, *, own: bool) -> bool:
    """Return whether a function is a library's. own: or meshrun's."""
    return _is_of_library(function.__module__) or (own and function.__code__.co_filename.startswith(OWN))


def _is_of_library(module: str | None) -> bool:
    return (module or "").split(".")[0] in LIBRARIES


def _held_by(value: Any, *, attributes: bool) -> list[Any]:
    """Return what a value holds that a call of it may use."""
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, MethodType):
        bound = _attributes([value.__self__], value.__func__) if attributes else ()
        return [value.__func__, *bound]
    if not isinstance(value, FunctionType):  # such as a function with a cache
        return [value.__wrapped__] if "__wrapped__" in getattr(value, "__dict__", ()) else []
    values = list(named(value).values())
    more = _attributes(values, value) if attributes else ()
    return [*values, value.__defaults__, value.__kwdefaults__, *vars(value).values(), *more]


def _attributes(owners: Sequence[Any], function: Any) -> Iterator[Any]:
    """Yield the attributes that a function names of modules, classes and objects that are no library's."""
    names = list(dict.fromkeys(names_in(function.__code__)))
    for owner in owners:
        kind = owner if isinstance(owner, type) else type(owner)
        module = owner.__name__ if isinstance(owner, ModuleType) else kind.__module__
        for name in names if not _is_of_library(module) else ():
            value = inspect.getattr_static(owner, name, None)
            is_method = isinstance(value, FunctionType) and not isinstance(owner, (ModuleType, type))
            yield MethodType(value, owner) if is_method else value


def named(function: FunctionType) -> dict[str, Any]:
    """Return the globals and the variables around it that a function names."""
    code = function.__code__
    found = {name: function.__globals__[name] for name in names_in(code) if name in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():  # it is assigned
            found[name] = cell.cell_contents
    return found


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the globals and attributes that code names, and functions that are defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


@functools.lru_cache(maxsize=256)
def source_of(code: CodeType) -> FunctionSource | None:
    """Return the source of a function's code; None where there is none, as for what was typed."""
    # inspect.getsourcelines would first resolve the path of each module of the process, in 10 ms.
    linecache.checkcache(code.co_filename)
    following = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    try:
        lines = inspect.getblock(following)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (SyntaxError, ValueError):
        return None
    if not lines:
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.decorator_list = []
    own = frozenset((*code.co_varnames, *code.co_cellvars))
    return FunctionSource(tree, tuple(lines), code.co_firstlineno, code.co_filename, own)


# Parts of expressions


def dotted(node: ast.AST) -> list[str]:
    """Return the names of `np.random.rand`; after an expression, such as `(a + b).mean`, "" is the first."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return [node.id, *names]
    return ["", *names] if names else []


def integer(node: ast.AST | None, names: Mapping[str, Any] | None = None) -> int | None:
    """Return the integer that is written, or that a name stands for; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = integer(node.operand, names)
        return None if value is None else -value
    value = number(node, names)
    return value if type(value) is int else None


def number(node: ast.AST | None, names: Mapping[str, Any] | None) -> Any:
    if isinstance(node, ast.Name):
        return (names or {}).get(node.id)
    return node.value if isinstance(node, ast.Constant) else None


def parts_of(index: ast.expr) -> list[ast.expr]:
    """Return the elements of an index: one for each axis."""
    return list(index.elts) if isinstance(index, ast.Tuple) else [index]


def is_carried(loop: ast.For) -> bool:
    """Return whether a loop writes elements by its own variable."""
    variables = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    return any(
        isinstance(one, ast.Subscript)
        and isinstance(one.ctx, ast.Store)
        and any(isinstance(name, ast.Name) and name.id in variables for name in ast.walk(one.slice))
        for one in ast.walk(loop)
    )
