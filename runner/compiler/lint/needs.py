"""What the numbers in a job's function ask of a small array.

An array on which `new[50] = 1` is tried has more than 50 rows, and one for `if block.max() > 1000` has cells
below and above 1000.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.runner.compiler.lint.source import (
    dotted,
    functions_of,
    integer,
    is_carried,
    named,
    names_in,
    number,
    parts_of,
    source_of,
)

# What tells of one cell of a block by one value, or compares with values that no other cell may have.
OF_ANY_CELL = frozenset(
    ("any", "all", "count_nonzero", "nonzero", "flatnonzero", "argwhere", "isin", "array_equal", "allclose")
)
NOT_FINITE = frozenset(("isnan", "isinf", "isfinite", "isposinf", "isneginf"))
MOST_RARE = 4  # numbers that cells are compared with
LEAST = 2  # the largest integer that every part of a small array has room for
WITHIN = 0.25, 4.0  # magnitudes that some parts of a small array exceed, and others do not
MOST_THRESHOLDS = 2
BRANCHES = (ast.If, ast.IfExp, ast.While, ast.BoolOp, ast.Assert, ast.Match, ast.In)


@dataclass(frozen=True)
class Needs:
    """What the numbers in a function ask of a small array.

    lengths: cells that a part has at least, per axis. magnitudes: of cells, besides those near 1. rare: of
    arrays that are alike in all cells but the last few: the value of all cells, and those of the last.
    """

    lengths: tuple[int, ...]
    magnitudes: tuple[float, ...] = ()
    rare: tuple[tuple[float, ...], ...] = ()


def needs_of(function: Callable[..., Any], axes: int, parameters: Mapping[str, Any]) -> Needs:
    """Return what a function of an array of so many axes asks for, by its constants and its parameters."""
    lengths, magnitudes = [0] * axes, set()
    compared, branches, finite = set[float](), False, True
    for each in functions_of(function):
        source = source_of(each.__code__)
        words = {*names_in(each.__code__)}
        branches |= source is None or not words.isdisjoint(OF_ANY_CELL)
        finite &= source is not None and words.isdisjoint(NOT_FINITE)
        if source is None:
            continue
        values = {**named(each), **parameters}
        compared |= {*_compared(source.tree, values)}
        branches |= any(isinstance(node, BRANCHES) for node in ast.walk(source.tree))
        names = {**named(each), **parameters}
        written = (node.value for node in ast.walk(source.tree) if isinstance(node, ast.Constant))
        if not any(map(_is_large, (*names.values(), *written))):
            continue
        names |= dict(_assigned(source.tree))
        for axis, index in _indices(source.tree, names):
            if axis < axes:
                lengths[axis] = max(lengths[axis], index + 2)
        magnitudes |= set(_thresholds(source.tree, names))
    return Needs(
        tuple(lengths), tuple(sorted(magnitudes)[-MOST_THRESHOLDS:]), _rare(compared, branches, finite)
    )


def _rare(compared: set[float], branches: bool, finite: bool) -> tuple[tuple[float, ...], ...]:
    """Return the values of arrays on which `if block.any()` and `if (block == 5).all()` differ by part.

    compared: numbers that cells may be compared with. branches: whether the function may act on values of
    single cells. finite: whether it does not ask for others than finite ones.
    """
    if not (branches or not finite):
        return ()
    numbers = sorted(compared)[:MOST_RARE]
    signed = [sign * one for one in numbers for sign in (1, -1)]
    # A value that `block * 0` changes, and that is compared with nothing.
    other = next(float(one) for one in range(2, MOST_RARE + 3) if one not in numbers)
    alike: list[tuple[float, ...]] = [(0.0, 1.0), *((one, other) for one in numbers)]
    if signed:
        alike.append((other, *signed))
    return tuple(alike) if finite else (*alike, (other, math.nan), (other, math.inf))


def _compared(tree: ast.AST, names: Mapping[str, Any]) -> Iterator[float]:
    """Yield the magnitudes of the numbers that are compared with something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for part in ast.walk(node):
                value = number(part, names)
                if type(value) in (int, float) and math.isfinite(value):
                    yield abs(float(value))


def _is_large(value: Any) -> bool:
    """Return whether a value is or holds a number that a small array may not suit."""
    if isinstance(value, slice):
        return _is_large((value.start, value.stop))
    if isinstance(value, tuple):
        return any(map(_is_large, value))
    return type(value) in (int, float) and abs(value) > LEAST


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
                value = number(part, names)
                if type(value) in (int, float) and value and not WITHIN[0] <= abs(value) <= WITHIN[1]:
                    yield float(abs(value))
