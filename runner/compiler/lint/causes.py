"""Say by which lines a function's result depends on how its array is cut, and what to write instead."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshrun.runner.compiler.lint.source import integer
from meshrun.runner.compiler.lint.statements import Kind, Statement, element_of, statements_of
from meshrun.runner.compiler.trace.block import PLACES
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.whole_axes import SHIFTS
from meshrun.runner.compiler.traced import trace_of
from meshrun.runner.plan.task import Task

MOST_LINES = 3  # that are named
# The likeliest kinds: where only some places of a part differ, where all do, and where two calls differ.
RANK, CELL, STATE, DRAW, LOOP, WHOLE, PLACE, STRIDE, FILTER, READ, LENGTH = Kind
LOCAL = (RANK, CELL, FILTER, WHOLE, STRIDE, LOOP, PLACE, READ, DRAW, STATE, LENGTH)
EVERYWHERE = (RANK, DRAW, STATE, WHOLE, PLACE, LOOP, READ, STRIDE, FILTER, CELL, LENGTH)
UNREPEATABLE = (DRAW, STATE)
TRACED = (WHOLE, PLACE, STRIDE, READ, LENGTH)  # which a trace finds by their axis


@dataclass(frozen=True)
class Cause:
    """What a result depends on the cut by. sentence: the file, the lines and what they do."""

    sentence: str
    hint: str


def explain(task: Task, axis: int, *, everywhere: bool, repeatable: bool) -> Cause | None:
    """Return the likeliest cause of a difference along `axis`; None without one.

    everywhere: all places of a part along the axis differ. repeatable: calls on the same blocks agree.
    """
    order = UNREPEATABLE if not repeatable else EVERYWHERE if everywhere else LOCAL
    found = [one for one in statements_of(task.job.function) if one.is_along(axis, len(task.shape))]
    kind = next((kind for kind in order if any(one.kind is kind for one in found)), None)
    if repeatable and (kind is None or kind in TRACED):
        traced = _traced_cause(task, axis)
        if traced is not None:
            return traced
    if kind is None:
        return None
    chosen = [one for one in found if one.kind is kind]
    places = dict.fromkeys((one.source.file, one.line, one.text) for one in chosen)
    named = [f"{file}, line {line}: `{text}`" for file, line, text in list(places)[:MOST_LINES]]
    return Cause(f"{'; '.join(named)} {kind.value}", _hint(task, axis, chosen[0]))


def _traced_cause(task: Task, axis: int) -> Cause | None:
    """Return the function of all cells along an axis, or the index of certain ones, that a trace meets."""
    try:
        trace_of(task)
    except NotTraceable as reason:
        name, along = reason.whole
        if axis not in along or (name in SHIFTS and task.widths[axis] != (0, 0)):
            return None
        code = getattr(inspect.unwrap(task.job.function), "__code__", None)
        place = f"{code.co_filename}, line {reason.line}: " if code is not None and reason.line else ""
        kind = PLACE if name == PLACES else WHOLE
        return Cause(f"{place}{name} {kind.value}", _general_hint(task, axis, kind))
    return None


# What to write instead


def _hint(task: Task, axis: int, cause: Statement) -> str:
    return _cell_hint(task, axis, cause) if cause.kind is CELL else _general_hint(task, axis, cause.kind)


def _general_hint(task: Task, axis: int, kind: Kind) -> str:
    parameter = f"the parameter `here` (`{_head(task)}`)"
    if kind in (PLACE, STRIDE, LENGTH):
        return (
            f"{parameter}: here.offset[{axis}] is the block's place along axis {axis}, "
            f"here.shape[{axis}] the array's length"
        )
    if kind is DRAW:
        return f"{parameter}: here.uniform(seed) and here.normal(seed) depend on a cell's place only"
    if kind is STATE:
        return f"a result that follows from the block, parameters, and {parameter}"
    if kind is RANK:
        return f"here.offset[{axis}] and here.shape[{axis}], which say where the block is in the array"
    if kind is FILTER:
        return "halo= in the decorator, as wide as the filter reads, and the result without those cells"
    if kind is LOOP:
        return (
            f"a function of each cell and its neighbours, with halo= in the decorator; or {_whole_axis(task)}"
        )
    reduced = "compute a value of the whole array first (@meshrun.reduce_blocks) and pass it as a parameter"
    return f"{reduced}; or {_whole_axis(task)}"


def _whole_axis(task: Task) -> str:
    return "a @meshrun.job, whose meshrun.read_block(world, input, split=1) has whole columns"


def _head(task: Task) -> str:
    """Return the first line of the function with the parameter `here`."""
    return f"def {task.job.function.__name__}({', '.join(task.job.arrays)}, *, here)"


def _cell_hint(task: Task, axis: int, cause: Statement) -> str:
    """Return how to write cells by their index in the array."""
    target, value = _written(cause.node)
    base = ast.unparse(target.value) if target is not None else ""
    low, high = task.widths[axis] if base in task.job.arrays else (0, 0)
    length = f"{base}.shape[{axis}]" if low or high else f"here.block[{axis}]"
    xp = "xp" if "xp" in task.job.services else _numpy_of(task.job.function)
    placed = f"at = here.offset[{axis}] {f'- {low} ' if low else ''}+ {xp}.arange({length})"
    axes = len(task.shape)
    element = None if cause.index is None else element_of(cause.index, axis, axes)
    condition = _condition(element, axis, low, high)
    if target is not None and condition and isinstance(value, (ast.Constant, ast.Name, ast.UnaryOp)):
        parts = [":"] * axis
        if isinstance(target.slice, ast.Tuple):
            parts = [ast.unparse(one) for one in target.slice.elts]
        parts[axis : axis + 1] = [condition]
        sign = _sign(cause.node)
        instead = f"{base}[{', '.join(parts)}] {sign} {ast.unparse(value)}"
    else:
        wide = f"at[:{', None' * (axes - 1 - axis)}]" if axis < axes - 1 else "at"
        instead = f"{xp}.where({(condition or 'at == 0').replace('at ', f'{wide} ')}, a, b)"
    return f"`{_head(task)}` with `{placed}`, and `{instead}`"


def _written(node: ast.AST) -> tuple[ast.Subscript | None, ast.expr | None]:
    """Return the target and the value of an assignment."""
    target: ast.expr | None = None
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        target = node.target
    return (target if isinstance(target, ast.Subscript) else None), getattr(node, "value", None)


def _sign(node: ast.AST) -> str:
    """Return the sign of an assignment, such as "+="."""
    if not isinstance(node, ast.AugAssign):
        return "="
    return f"{ast.unparse(ast.BinOp(ast.Name('a'), node.op, ast.Name('b'))).split()[1]}="


def _numpy_of(function: Callable[..., Any]) -> str:
    """Return the name by which a function's module knows NumPy."""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    known = (name for name, one in names.items() if inspect.ismodule(one) and one.__name__ == "numpy")
    return next(known, "numpy")


def _condition(element: ast.expr | None, axis: int, low: int, high: int) -> str:
    """Return the condition on `at`, the places in the array, for an index in a block; "" if it has none.

    low, high: cells of the block before and behind its own ones."""

    def place(value: int) -> str:
        if value >= 0:
            return str(value - low)
        behind = -value - high
        return f"here.shape[{axis}] {'-' if behind >= 0 else '+'} {abs(behind)}"

    if isinstance(element, ast.Slice) and element.step is None:
        first, last = integer(element.lower), integer(element.upper)
        ends = [f"at >= {place(first)}"] if first else []
        ends += [f"at < {place(last)}"] if last is not None else []
        return " & ".join(f"({one})" for one in ends) if len(ends) > 1 else "".join(ends)
    value = integer(element)
    return "" if value is None else f"at == {place(value)}"
