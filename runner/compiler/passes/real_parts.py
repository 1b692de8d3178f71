"""Write a program of complex numbers as one of real numbers, for kernels.

A complex input or output becomes one with another trailing axis, of its real and imaginary parts: they lie
beside each other in memory. A complex value becomes two. Additions, choices and casts have NumPy's bits;
products, quotients and functions agree with NumPy's within rounding, as NumPy's own do from one machine to
the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Graph, Node, Operand, Program, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.region import Array, real_dtype

Parts = tuple[Node, ...]  # of a real value, one node; of a complex one, its real and imaginary part
BOOL = np.dtype(bool)
MOST_MULTIPLIED = 100  # exponents from here on are no products, in NumPy either


def has_complex(program: Program) -> bool:
    """Return whether some value, input or output of a program is complex."""
    operands = (*program.inputs, *program.outputs)
    return any(one.dtype.kind == "c" for one in operands) or any(
        node.dtype.kind == "c" for node in program.nodes
    )


def views_of_parts(arrays: Sequence[Array]) -> list[Array]:
    """Return views in which complex numbers are pairs along a further axis."""
    return [one[..., None].view(real_dtype(one.dtype)) if one.dtype.kind == "c" else one for one in arrays]


def in_real_parts(program: Program) -> Program:
    """Return a program of real numbers; the same one if it has no others.

    Raises NotTraceable for functions of complex numbers that have no kernel.
    """
    if not has_complex(program):
        return program
    write = _Writer(Graph())
    parts: dict[Node, Parts] = {}
    for node in program.nodes:
        try:
            parts[node] = write.node(node, [parts[one] for one in node.operands])
        except NotTraceable as reason:
            reason.line = node.line
            raise
    results = tuple(tuple(part for node in result for part in parts[node]) for result in program.results)
    inputs, outputs = tuple(map(_real_operand, program.inputs)), tuple(map(_real_operand, program.outputs))
    return replace(program, inputs=inputs, outputs=outputs, results=results, graph=write.graph)


def value_in_parts(graph: Graph, node: Node) -> Parts:
    """Return the parts of an expression of scalars and constants, as expressions of real numbers.

    graph: of the expression, and of its parts. Raises NotTraceable for functions of complex numbers that have
    no real form.
    """
    write, parts = _Writer(graph), dict[Node, Parts]()
    for one in in_order([node]):
        try:
            parts[one] = write.node(one, [parts[operand] for operand in one.operands])
        except NotTraceable as reason:
            reason.line = one.line
            raise
    return parts[node]


def _real_operand(one: Operand) -> Operand:
    if one.dtype.kind != "c":
        return one
    return Operand(one.name, real_dtype(one.dtype), (*one.trailing, 2))


def _is_zero(node: Node) -> bool:
    return bool(node.op == "constant" and node.value == 0)


class _Writer:
    """Write nodes of a graph of real numbers."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.line = graph, 0
        self._magnitudes: dict[Node, Parts] = {}  # of which numbers

    def node(self, node: Node, operands: Sequence[Parts]) -> Parts:
        """Return the parts of a node. operands: the parts of its operands."""
        self.line = node.line
        if node.op in ("load", "constant"):
            return self._leaf(node)
        if not operands:
            if node.dtype.kind == "c":
                raise NotTraceable("has a complex number that is only known in each step")
            return (self.graph.copied(node),)
        function = getattr(self, f"_{node.op}", None)
        if all(one.dtype.kind != "c" for one in (node, *node.operands)):
            reals = [one for (one,) in operands]
            if node.op == "square" and reals[0] in self._magnitudes:
                squares = (self.op("multiply", part, part) for part in self._magnitudes[reals[0]])
                return (self.op("add", *squares),)
            return (self.graph.operation(node.op, node.dtype, reals, node.line),)
        if node.op == "cast":
            return self._cast(node.dtype, operands[0])
        if function is None:
            raise NotTraceable(f"computes numpy.{node.op} of complex numbers, which has no kernel")
        parts: Parts = function(*operands)
        return parts

    def _leaf(self, node: Node) -> Parts:
        kind = real_dtype(node.dtype)
        if node.op == "constant":
            values = (node.value.real, node.value.imag) if node.dtype.kind == "c" else (node.value,)
            return tuple(self.graph.constant(value, kind) for value in values)
        if node.dtype.kind != "c":
            return (self.graph.load(node.input, kind, node.offset, node.component),)
        pair = (2 * node.component, 2 * node.component + 1)
        return tuple(self.graph.load(node.input, kind, node.offset, one) for one in pair)

    # Real operations: the dtype is that of the operands

    def op(self, name: str, *operands: Node) -> Node:
        return self.graph.operation(name, operands[-1].dtype, operands, self.line)

    def test(self, name: str, *operands: Node) -> Node:
        return self.graph.operation(name, BOOL, operands, self.line)

    def number(self, value: float, like: Node) -> Node:
        return self.graph.constant(value, like.dtype)

    # What changes dtypes

    def _cast(self, dtype: np.dtype[Any], z: Parts) -> Parts:
        if dtype == BOOL:
            return (self._is_true(z),)
        kind = real_dtype(dtype)
        real = self.graph.operation("cast", kind, [z[0]], self.line)
        if dtype.kind != "c":
            return (real,)
        imag = z[1] if len(z) == 2 else self.graph.constant(0, kind)
        return real, self.graph.operation("cast", kind, [imag], self.line)

    def _real(self, z: Parts) -> Parts:
        return z[:1]

    def _imag(self, z: Parts) -> Parts:
        return z[1:]

    def _complex(self, real: Parts, imag: Parts) -> Parts:
        return (*real, *imag)

    def _where(self, condition: Parts, a: Parts, b: Parts) -> Parts:
        return tuple(
            self.graph.operation("where", x.dtype, [condition[0], x, y], self.line)
            for x, y in zip(a, b, strict=True)
        )

    # Arithmetic

    def _each(self, name: str, *operands: Parts) -> Parts:
        return tuple(self.op(name, *parts) for parts in zip(*operands, strict=True))

    def _positive(self, z: Parts) -> Parts:
        return z

    def _negative(self, z: Parts) -> Parts:
        return self._each("negative", z)

    def _rint(self, z: Parts) -> Parts:
        return self._each("rint", z)

    def _conjugate(self, z: Parts) -> Parts:
        return z[0], self.op("negative", z[1])

    def _add(self, a: Parts, b: Parts) -> Parts:
        return self._each("add", a, b)

    def _subtract(self, a: Parts, b: Parts) -> Parts:
        return self._each("subtract", a, b)

    def _multiply(self, a: Parts, b: Parts) -> Parts:
        if any(map(_is_zero, (*a, *b))):
            return self._multiply_by_axis(a, b)
        op = self.op
        real = op("subtract", op("multiply", a[0], b[0]), op("multiply", a[1], b[1]))
        return real, op("add", op("multiply", a[0], b[1]), op("multiply", a[1], b[0]))

    def _multiply_by_axis(self, a: Parts, b: Parts) -> Parts:
        """Multiply numbers of which one part is a constant 0: a real or an imaginary one.

        The products with this part are left out. Where the other number is finite, they add zeros.
        """
        z, (real, imag) = (a, b) if any(map(_is_zero, b)) else (b, a)
        if _is_zero(imag):
            return self.op("multiply", z[0], real), self.op("multiply", z[1], real)
        return self.op("negative", self.op("multiply", z[1], imag)), self.op("multiply", z[0], imag)

    def _square(self, z: Parts) -> Parts:
        return self._multiply(z, z)

    def _divide(self, a: Parts, b: Parts) -> Parts:
        """Divide as NumPy does, by Smith's formula: by the larger part of the divisor first."""
        op, one = self.op, self.number(1, b[0])
        if _is_zero(b[1]):  # of a real number: infinite where it is 0 of either sign
            zero = self.test("equal", b[0], self.number(0, b[0]))
            scales = self._where((zero,), (self.number(np.inf, b[0]),), (op("divide", one, b[0]),)) * 2
            return self._each("multiply", a, scales)
        real, imag = op("absolute", b[0]), op("absolute", b[1])

        # Where the real part is larger; both zero: infinite or not a number.
        ratio = op("divide", b[1], b[0])
        scale = op("divide", one, op("add", b[0], op("multiply", b[1], ratio)))
        first = (
            op("multiply", op("add", a[0], op("multiply", a[1], ratio)), scale),
            op("multiply", op("subtract", a[1], op("multiply", a[0], ratio)), scale),
        )
        zero = self.test("logical_and", *(self.test("equal", x, self.number(0, x)) for x in (real, imag)))
        by_zero = op("divide", a[0], real), op("divide", a[1], real)
        parts = self._where((zero,), by_zero, first)

        # Where the imaginary part is.
        ratio = op("divide", b[0], b[1])
        scale = op("divide", one, op("add", b[1], op("multiply", b[0], ratio)))
        second = (
            op("multiply", op("add", op("multiply", a[0], ratio), a[1]), scale),
            op("multiply", op("subtract", op("multiply", a[1], ratio), a[0]), scale),
        )
        return self._where((self.test("greater_equal", real, imag),), parts, second)

    def _reciprocal(self, z: Parts) -> Parts:
        return self._divide((self.number(1, z[0]), self.number(0, z[0])), z)

    def _power(self, z: Parts, exponent: Parts) -> Parts:
        """Multiply by squaring, as NumPy does for small integers."""
        real, imag = (one.value if one.op == "constant" else None for one in exponent)
        small = real is not None and imag == 0 and real == np.rint(real) and abs(real) < MOST_MULTIPLIED
        if not small:
            raise NotTraceable(
                "raises complex numbers to a power that is no small integer, which has no kernel",
                "np.exp(exponent * np.log(z))",
            )
        assert real is not None
        unit: Parts = (self.number(1, z[0]), self.number(0, z[0]))
        left, result, square = abs(int(real)), unit, z
        while left:
            if left & 1:
                result = square if result is unit else self._multiply(result, square)
            left >>= 1
            square = self._square(square) if left else square
        return self._divide(unit, result) if real < 0 else result

    # Functions

    def _absolute(self, z: Parts) -> Parts:
        size = self.op("hypot", *z)
        self._magnitudes[size] = z
        return (size,)

    def _exp(self, z: Parts) -> Parts:
        real, imag = z
        size, zero = self.op("exp", real), self.test("equal", imag, self.number(0, imag))
        turned = tuple(self.op("multiply", size, self.op(name, imag)) for name in ("cos", "sin"))
        return self._where((zero,), (size, imag), turned)

    def _log(self, z: Parts) -> Parts:
        op, number = self.op, self.number
        parts = [op("absolute", one) for one in z]
        high, low = op("maximum", *parts), op("minimum", *parts)
        # Near 1, the logarithm of the square less 1 keeps its digits.
        one, size = number(1, high), op("hypot", *z)
        more = op("multiply", op("subtract", high, one), op("add", high, one))
        near = op("multiply", number(0.5, high), op("log1p", op("add", more, op("multiply", low, low))))
        between = self.test(
            "logical_and",
            self.test("greater", size, number(0.5, size)),
            self.test("less", size, number(2, size)),
        )
        (real,) = self._where((between,), (near,), (op("log", size),))
        return real, op("arctan2", z[1], z[0])

    def _sqrt(self, z: Parts) -> Parts:
        op, (real, imag) = self.op, z
        half, zero = self.number(0.5, real), self.number(0, real)
        size = op("add", op("multiply", half, op("absolute", real)), op("multiply", half, op("hypot", *z)))
        root = op("sqrt", size)
        other = op("divide", imag, op("add", root, root))
        left = self.test("less", real, zero)
        turned = self._where((left,), (op("absolute", other), op("copysign", root, imag)), (root, other))
        # Zero, and what has an infinite imaginary part.
        turned = self._where((self.test("equal", root, zero),), (zero, imag), turned)
        return self._where((self.test("isinf", imag),), (op("absolute", imag), imag), turned)

    def _sin(self, z: Parts) -> Parts:
        return self._turned(z, ("sin", "cosh"), ("cos", "sinh"))

    def _cos(self, z: Parts) -> Parts:
        real, imag = self._turned(z, ("cos", "cosh"), ("sin", "sinh"))
        return real, self.op("negative", imag)

    def _sinh(self, z: Parts) -> Parts:
        return self._turned(z, ("sinh", "cos"), ("cosh", "sin"))

    def _cosh(self, z: Parts) -> Parts:
        return self._turned(z, ("cosh", "cos"), ("sinh", "sin"))

    def _turned(self, z: Parts, *names: tuple[str, str]) -> Parts:
        """Return products of a function of the real part and one of the imaginary part."""
        return tuple(self.op("multiply", self.op(a, z[0]), self.op(b, z[1])) for a, b in names)

    # Comparisons: NumPy orders by the real part, then by the imaginary one

    def _is_true(self, z: Parts) -> Node:
        return self._any(*(self.test("not_equal", one, self.number(0, one)) for one in z))

    def _any(self, *tests: Node) -> Node:
        return reduce(lambda a, b: self.test("logical_or", a, b), tests)

    def _all(self, *tests: Node) -> Node:
        return reduce(lambda a, b: self.test("logical_and", a, b), tests)

    def _equal(self, a: Parts, b: Parts) -> Parts:
        return (self._all(self.test("equal", a[0], b[0]), self.test("equal", a[1], b[1])),)

    def _not_equal(self, a: Parts, b: Parts) -> Parts:
        return (self._any(self.test("not_equal", a[0], b[0]), self.test("not_equal", a[1], b[1])),)

    def _ordered(self, strict: str, name: str, a: Parts, b: Parts) -> Parts:
        known = [self.test("logical_not", self.test("isnan", one)) for one in (a[1], b[1])]
        first = self._all(self.test(strict, a[0], b[0]), *known)
        then = self._all(self.test("equal", a[0], b[0]), self.test(name, a[1], b[1]))
        return (self._any(first, then),)

    def _less(self, a: Parts, b: Parts) -> Parts:
        return self._ordered("less", "less", a, b)

    def _less_equal(self, a: Parts, b: Parts) -> Parts:
        return self._ordered("less", "less_equal", a, b)

    def _greater(self, a: Parts, b: Parts) -> Parts:
        return self._ordered("greater", "greater", a, b)

    def _greater_equal(self, a: Parts, b: Parts) -> Parts:
        return self._ordered("greater", "greater_equal", a, b)

    def _logical_not(self, z: Parts) -> Parts:
        return (self.test("logical_not", self._is_true(z)),)

    def _logical_and(self, a: Parts, b: Parts) -> Parts:
        return (self._all(self._is_true(a), self._is_true(b)),)

    def _logical_or(self, a: Parts, b: Parts) -> Parts:
        return (self._any(self._is_true(a), self._is_true(b)),)

    def _logical_xor(self, a: Parts, b: Parts) -> Parts:
        return (self.test("not_equal", self._is_true(a), self._is_true(b)),)

    def _isnan(self, z: Parts) -> Parts:
        return (self._any(*(self.test("isnan", one) for one in z)),)

    def _isinf(self, z: Parts) -> Parts:
        return (self._any(*(self.test("isinf", one) for one in z)),)

    def _isfinite(self, z: Parts) -> Parts:
        return (self._all(*(self.test("isfinite", one) for one in z)),)
