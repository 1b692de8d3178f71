"""A formula in x: parsed once, then folded over any algebra (arrays, stand-ins for them, error bounds).

Nothing of Python is run: the syntax tree may hold only what is listed here.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

Value = TypeVar("Value")

BINARY = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "power",
}
COMPARISON = {
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
CONSTANTS = {"pi": math.pi, "e": math.e}
# What the user writes: NumPy's function, number of arguments.
FUNCTIONS = {
    "abs": ("absolute", 1),
    "sqrt": ("sqrt", 1),
    "exp": ("exp", 1),
    "expm1": ("expm1", 1),
    "log": ("log", 1),
    "log1p": ("log1p", 1),
    "log2": ("log2", 1),
    "log10": ("log10", 1),
    "sin": ("sin", 1),
    "cos": ("cos", 1),
    "tan": ("tan", 1),
    "arcsin": ("arcsin", 1),
    "arccos": ("arccos", 1),
    "arctan": ("arctan", 1),
    "sinh": ("sinh", 1),
    "cosh": ("cosh", 1),
    "tanh": ("tanh", 1),
    "floor": ("floor", 1),
    "ceil": ("ceil", 1),
    "min": ("minimum", 2),
    "max": ("maximum", 2),
    "where": ("where", 3),
    "clip": ("clip", 3),
}
LONGEST, DEEPEST = 1000, 40  # characters; levels of the tree


@functools.lru_cache
def parse(text: str) -> ast.expr:
    """The syntax tree of `text`; UserError where it holds anything but arithmetic on x."""
    if len(text) > LONGEST:
        raise _refuse(text[:40] + "...", f"{len(text)} characters", f"at most {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as reason:
        raise _refuse(text, str(reason) or type(reason).__name__, "a formula in x") from reason
    _check(tree, text, 0)
    return tree


def fold(tree: ast.expr, x: Value, constant: Callable[[float], Value], apply: Callable[..., Value]) -> Value:
    """The value of the tree: `constant(number)` at its leaves, `apply(NumPy's name, *operands)` above."""

    def value(node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=int() | float() as number):
                return constant(float(number))
            case ast.Name(id=name):
                return x if name == "x" else constant(CONSTANTS[name])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return apply("negative", value(operand))
            case ast.UnaryOp(operand=operand):
                return value(operand)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2)):
                return apply("square", value(left))  # one product, where pow() takes dozens of operations
            case ast.BinOp(left=left, op=op, right=right):
                return apply(BINARY[type(op)], value(left), value(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [value(side) for side in (left, *others)]
                pairs = zip(ops, sides, sides[1:], strict=False)
                tests = [apply(COMPARISON[type(op)], a, b) for op, a, b in pairs]
                return functools.reduce(lambda a, b: apply("multiply", a, b), tests)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return call(name, *(value(argument) for argument in arguments))
        raise AssertionError(f"parse() let {node} pass")

    def call(name: str, *operands: Value) -> Value:
        if name == "clip":
            return apply("minimum", apply("maximum", operands[0], operands[1]), operands[2])
        return apply(FUNCTIONS[name][0], *operands)

    return value(tree)


def evaluate(tree: ast.expr, x: Any, dtype: np.dtype[Any]) -> Any:
    """The tree's value for an array x of the floating-point `dtype`, in that dtype throughout; a scalar for a
    tree without x. Of plain NumPy functions, so that one kernel can be made of it."""

    def apply(name: str, *operands: Any) -> Any:
        if name == "where":
            return np.where(operands[0] != 0, operands[1], operands[2])
        result = getattr(np, name)(*operands)
        return result if result.dtype == dtype else result.astype(dtype)  # a comparison is 1 or 0

    return fold(tree, x, dtype.type, apply)


def _check(node: ast.expr, text: str, depth: int) -> None:
    if depth > DEEPEST:
        raise _refuse(text, "a deeper formula", f"at most {DEEPEST} levels of brackets and operators")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if not _is_number(number):
                raise _refuse(text, "a number that float64 cannot hold", "smaller numbers")
            children: list[ast.expr] = []
        case ast.Name(id=name) if name == "x" or name in CONSTANTS:
            children = []
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            children = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            children = [left, right]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in COMPARISON for op in ops):
            children = [left, *others]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            if len(arguments) != FUNCTIONS[name][1]:
                raise _refuse(text, f"{name} of {len(arguments)} arguments", f"{FUNCTIONS[name][1]}")
            children = arguments
        case _:
            operators = "+ - * / // % ** < <= > >= == !="
            known = f"numbers, x, {', '.join(CONSTANTS)}, {operators}, {', '.join(FUNCTIONS)}"
            raise _refuse(text, ast.get_source_segment(text.strip(), node), known)
    for child in children:
        _check(child, text, depth + 1)


def _is_number(number: int | float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _refuse(text: str, got: object, expected: str) -> UserError:
    return UserError(
        f"the expression {text!r} cannot be used",
        got=got,
        expected=expected,
        hint=option("expression", "sqrt(x) + 1"),
    )
