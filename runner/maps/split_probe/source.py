"""The source of a job's function and of those that it calls, and what its numbers ask of a small array.

An array on which `new[50] = 1` is tried has more than 50 rows, and one for `if block.max() > 1000` has cells
below and above 1000.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from meshrun.runner.compiler.decide import LIBRARIES

OWN = tuple(f"{Path(__file__).parents[3] / room}{os.sep}" for room in ("runner", "jobs"))
LONGEST = 72  # characters of a quoted line
LEAST = 2  # the largest integer that every part of a small array has room for
SMALL_INTEGER = dis.opmap.get("LOAD_SMALL_INT")  # has no constant, from Python 3.14 on
WITHIN = 0.25, 4.0  # magnitudes that some parts of a small array exceed, and others do not
MOST_THRESHOLDS = 2


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


@dataclass(frozen=True)
class Needs:
    """What the numbers in a function ask of a small array.

    lengths: cells that a part has at least, per axis. magnitudes: of cells, besides those near 1.
    """

    lengths: tuple[int, ...]
    magnitudes: tuple[float, ...] = ()


def needs_of(function: Callable[..., Any], axes: int, parameters: Mapping[str, Any]) -> Needs:
    """Return what a function of an array of so many axes asks for, by its constants and its parameters."""
    lengths, magnitudes = [0] * axes, set()
    for each in functions_of(function):
        names = {**_named(each), **parameters}
        if not (any(map(_is_large, names.values())) or _has_numbers(each.__code__)):
            continue  # parsing takes most of the time
        source = source_of(each.__code__)
        if source is None:
            continue
        names = {**names, **dict(_assigned(source.tree))}
        for axis, index in _indices(source.tree, names):
            if axis < axes:
                lengths[axis] = max(lengths[axis], index + 2)
        magnitudes |= set(_thresholds(source.tree, names))
    return Needs(tuple(lengths), tuple(sorted(magnitudes)[-MOST_THRESHOLDS:]))


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
    for value in _named(function).values():
        if not isinstance(value, ModuleType):
            functions_of(value, seen)
    return list(seen.values())


def _named(function: FunctionType) -> dict[str, Any]:
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


def _has_numbers(code: CodeType) -> bool:
    """Return whether code holds a number that a small array may not suit."""
    loads = SMALL_INTEGER is not None and any(
        operation == SMALL_INTEGER and value > LEAST
        for operation, value in zip(code.co_code[::2], code.co_code[1::2], strict=True)
    )
    return loads or any(map(_is_large, code.co_consts))


def _is_large(value: Any) -> bool:
    if isinstance(value, CodeType):
        return _has_numbers(value)
    if isinstance(value, slice):
        return _is_large((value.start, value.stop))
    if isinstance(value, tuple):
        return any(map(_is_large, value))
    return type(value) in (int, float) and abs(value) > LEAST


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
    value = _number(node, names)
    return value if type(value) is int else None


def _number(node: ast.AST | None, names: Mapping[str, Any] | None) -> Any:
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


# What the numbers are for


def _assigned(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the variables that are assigned an integer."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (value := integer(node.value)) is not None:
            yield from ((one.id, value) for one in node.targets if isinstance(one, ast.Name))


def _indices(tree: ast.AST, names: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the integers that index an axis or that its length is compared with: axis and magnitude."""
    lengths = dict(_lengths(tree))
    for node in ast.walk(tree):
        given: list[tuple[int, ast.AST | None]] = []
        if isinstance(node, ast.Subscript) and dotted(node.value)[-1:] != ["shape"]:
            for axis, part in enumerate(parts_of(node.slice)):
                ends = (part.lower, part.upper) if isinstance(part, ast.Slice) else (part,)
                given += [(axis, end) for end in ends]
        elif isinstance(node, ast.Compare):
            given = _beside_lengths([node.left, *node.comparators], lengths)
        elif isinstance(node, ast.Call) and dotted(node.func) in (["min"], ["max"]):
            given = _beside_lengths(node.args, lengths)
        elif isinstance(node, ast.Call) and dotted(node.func)[-1:] == ["put"]:
            given = [(0, one) for argument in node.args for one in ast.walk(argument)]
        elif isinstance(node, ast.For) and is_carried(node) and isinstance(node.iter, ast.Call):
            given = [(0, one) for one in node.iter.args]
        for axis, one in given:
            value = integer(one, names)
            if value is not None:
                yield axis, abs(value)


def _beside_lengths(
    sides: Sequence[ast.expr], lengths: Mapping[str, int]
) -> list[tuple[int, ast.AST | None]]:
    """Return what lengths are compared with, each with their axis."""
    axes = {_axis_of(part, lengths) for side in sides for part in ast.walk(side)} - {None}
    return [(axis, side) for axis in axes if axis is not None for side in sides]


def _lengths(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the variables that are assigned the length of an axis, and the axis."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, (ast.Tuple, ast.List)) and dotted(node.value)[-1:] == ["shape"]:
                yield from (
                    (one.id, axis) for axis, one in enumerate(target.elts) if isinstance(one, ast.Name)
                )
            elif isinstance(target, ast.Name) and (axis := _axis_of(node.value, {})) is not None:
                yield target.id, axis


def _axis_of(node: ast.AST, lengths: Mapping[str, int]) -> int | None:
    """Return the axis whose length an expression is: `x.shape[1]`, `len(x)`, `x.size` or a variable."""
    if isinstance(node, ast.Name):
        return lengths.get(node.id)
    if isinstance(node, ast.Subscript) and dotted(node.value)[-1:] == ["shape"]:
        value = integer(node.slice)
        return value if value is not None and value >= 0 else None
    is_length = isinstance(node, ast.Call) and dotted(node.func) == ["len"]
    return 0 if is_length or (isinstance(node, ast.Attribute) and node.attr == "size") else None


def _thresholds(tree: ast.AST, names: Mapping[str, Any]) -> Iterator[float]:
    """Yield the magnitudes of numbers in conditions by which a function branches."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            for part in ast.walk(node.test):
                value = _number(part, names)
                if type(value) in (int, float) and value and not WITHIN[0] <= abs(value) <= WITHIN[1]:
                    yield float(abs(value))
