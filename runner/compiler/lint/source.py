"""The source of a job's function and of those that it calls."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from meshrun.runner.compiler.inferred_halo import LIBRARIES

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


def functions_of(function: Any, seen: dict[CodeType, FunctionType] | None = None) -> list[FunctionType]:
    """Return a function and those that it names by its globals and its closure.

    None is of a library or of meshrun, whose jobs have tests: reading their source would take milliseconds.
    """
    seen = {} if seen is None else seen
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType) or function.__code__ in seen:
        return list(seen.values())
    library = (function.__module__ or "").split(".")[0] in LIBRARIES
    if library or function.__code__.co_filename.startswith(OWN):
        return list(seen.values())
    seen[function.__code__] = function
    for value in named(function).values():
        if not isinstance(value, ModuleType):
            functions_of(value, seen)
    return list(seen.values())


def named(function: FunctionType) -> dict[str, Any]:
    """Return the globals and the variables around it that a function names."""
    code = function.__code__
    found = {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@functools.lru_cache(maxsize=256)
def source_of(code: CodeType) -> FunctionSource | None:
    """Return the source of a function's code; None where there is none, as for what was typed."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.decorator_list = []
    own = frozenset((*code.co_varnames, *code.co_cellvars))
    return FunctionSource(tree, tuple(lines), first, code.co_filename, own)


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
