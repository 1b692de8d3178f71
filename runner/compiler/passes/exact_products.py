"""Compute `a + 4 * b` by one instruction where this changes no bit.

A product with a power of two is exact unless it overflows, so that rounding the sum of `a` and the exact
product gives the bits of NumPy's two operations; infinities and NaN give the same either way. Products of
finite elements cannot overflow if the fields are small enough to begin with: how small is found from how much
each step can make them grow, and the kernel compares what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Node, Program, in_order

LEAST = 32  # as an exponent of 2: larger fields are unusual
SLACK = 1 + 2.0**-9  # at least the relative error of one rounding, of any dtype
FUSED = "fused"  # the operation a * b + c, rounded once
SAME = ("positive", "negative", "absolute", "fabs", "cast", "rint", "floor", "ceil", "trunc")
LARGER = ("minimum", "maximum", "fmin", "fmax", "where")
TRUTH = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "isnan", "isfinite", "isinf")


def with_exact_products(program: Program) -> Program:
    """Return the program with a FUSED node for each sum or difference with such a product.

    The program itself if it has none.
    """
    graph, made = program.graph, dict[Node, Node]()
    for node in program.nodes:
        operands = [made[one] for one in node.operands]
        found = _product(node)
        if found is not None:
            place, factor, other = found
            times = made[other]
            sign = -1 if node.op == "subtract" and place == 1 else 1
            rest = operands[1 - place]
            if node.op == "subtract" and place == 0:
                rest = graph.operation("negative", node.dtype, [rest], node.line)
            constant = graph.constant(sign * factor, node.dtype)
            made[node] = graph.operation(FUSED, node.dtype, [constant, times, rest], node.line)
        elif operands != list(node.operands):
            made[node] = graph.operation(node.op, node.dtype, operands, node.line)
        else:
            made[node] = node
    results = tuple(tuple(made[one] for one in result) for result in program.results)
    return program if results == program.results else replace(program, results=results)


def largest_field(program: Program, feeds: Sequence[int], steps: int, outside: float) -> float:
    """Return how large the elements of fed fields may be before `steps` steps in which no product overflows.

    A power of two; 0 if there is no such product, or no useful limit. outside: what elements beyond the array
    may be in each step.
    """
    if not any(map(_product, program.nodes)):
        return 0.0
    low, high = -1, 1024  # the largest safe exponent is from low to before high
    while high - low > 1:
        middle = (low + high) // 2
        safe = _safe(program, feeds, steps, 2.0**middle, abs(outside))
        low, high = (middle, high) if safe else (low, middle)
    return 2.0**low if low >= LEAST else 0.0


def _product(node: Node) -> tuple[int, float, Node] | None:
    """Return which operand of a sum is a product with a power of two, that factor, and what it multiplies."""
    if node.op not in ("add", "subtract") or node.dtype not in (np.float32, np.float64):
        return None
    for place in (1, 0):
        product = node.operands[place]
        if product.op != "multiply":
            continue
        for constant, other in (product.operands, product.operands[::-1]):
            if constant.op == "constant" and other.op != "constant":
                factor = float(constant.value)
                if math.isfinite(factor) and abs(factor) >= 1 and abs(math.frexp(factor)[0]) == 0.5:
                    return place, factor, other
    return None


def _safe(program: Program, feeds: Sequence[int], steps: int, largest: float, outside: float) -> bool:
    """Return whether no product of _product overflows in so many steps from elements up to `largest`."""
    fields = dict.fromkeys(feeds, largest)
    for _ in range(steps):
        bounds = _bounds(program, {place: max(one, outside) for place, one in fields.items()})
        for node in program.nodes:
            found = _product(node)
            if found is not None and not bounds[found[2]] * abs(found[1]) <= _largest(node.dtype):
                return False
        for place, result in zip(feeds, program.results, strict=True):
            fields[place] = max(bounds[one] for one in result)
    return True


def _bounds(program: Program, fields: Mapping[int, float]) -> dict[Node, float]:
    """Return how large the finite elements of each node may be. fields: the same of inputs."""
    bounds: dict[Node, float] = {}
    for node in in_order(one for result in program.results for one in result):
        given = [bounds[one] for one in node.operands]
        if node.op == "load":
            found = fields.get(node.input, math.inf)
        elif node.op == "constant":
            found = abs(float(node.value))
        elif node.op in ("add", "subtract"):
            found = given[0] + given[1]
        elif node.op == "multiply":
            found = given[0] * given[1]
        elif node.op in SAME:
            found = given[0]
        elif node.op in LARGER:
            found = max(given[-2:])
        elif node.op in TRUTH:
            found = 1.0
        else:
            found = math.inf
        found = math.inf if math.isnan(found) else found * SLACK  # 0 times infinity is NaN
        limit = _largest(node.dtype)
        if node.dtype.kind != "f":  # integers wrap
            found = limit
        elif found > limit:
            found = limit if node.op == "load" else math.inf
        bounds[node] = found
    return bounds


def _largest(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return float(np.finfo(dtype).max)
    return 1.0 if dtype.kind == "b" else float(max(-int(np.iinfo(dtype).min), np.iinfo(dtype).max))
