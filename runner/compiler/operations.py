"""Write a program's nodes as C++ for CUDA and the host, with the operations of kernels/operations.cuh."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from meshrun.runner.compiler.trace.graph import Node, Program

KERNELS = Path(__file__).parent / "kernels"
HEADER = KERNELS / "operations.cuh"
ELEMENTARY = KERNELS / "elementary.hpp"  # functions on the host, which platforms round in their own ways
# Functions that NumPy, a GPU's library and elementary.hpp round in their own ways.
INEXACT = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt", "power", "float_power", "hypot"),
        *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2"),
        *("sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh"),
    )
)
PERIODIC = frozenset(["sin", "cos", "tan"])
WHOLE_POWERS = range(3, 8)  # exponents for which products take the place of logarithms
MOST_NARROW_PLACE = 2**30  # positions below it, and differences of them, fit 32 bits
# And operations on complex numbers: NumPy's loops contract products on some machines.
INEXACT_COMPLEX = frozenset(["multiply", "divide", "square", "reciprocal", "sqrt", "absolute"])
TWO_TYPES = frozenset(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])


def inexact_operations(nodes: Iterable[Node]) -> list[str]:
    """Return the names of the operations among nodes whose last bits depend on the machine."""
    names = set()
    for node in nodes:
        if node.op in INEXACT:
            names.add(node.op)
        elif node.op in INEXACT_COMPLEX and node.operands[0].dtype.kind == "c":
            names.add(f"complex {node.op}")
    return sorted(names)


def host_operations() -> str:
    """Return the text of all operations for a C++17 compiler on the host."""
    return ELEMENTARY.read_text().replace("#pragma once\n", "") + HEADER.read_text().replace(
        "#pragma once\n", ""
    )


def ctype(dtype: np.dtype[Any]) -> str:
    """Return the C++ type of a dtype, as operations.cuh names it."""
    if dtype.kind == "f":
        return {2: "Half", 4: "float", 8: "double"}[dtype.itemsize]
    return str(dtype.name)


def memory_type(dtype: np.dtype[Any]) -> str:
    """Return the C++ type of a dtype's elements in memory, on the host.

    GCC vectorises no loop over `bool`.
    """
    return "uint8" if dtype.kind == "b" else ctype(dtype)


def literal(value: Any, dtype: np.dtype[Any]) -> str:
    """Return the C++ literal of a constant, to the bit."""
    scalar = np.asarray(value, dtype)
    if dtype.kind == "b":
        return "true" if scalar else "false"
    if dtype.kind == "f" and (dtype.itemsize == 2 or not math.isfinite(scalar)):
        kind = np.dtype(f"u{dtype.itemsize}")
        return f"numpy::bits<{ctype(dtype)}>({kind.name}({scalar.view(kind)}u))"
    if dtype.kind == "f":
        return float(scalar).hex() + ("f" if dtype.itemsize == 4 else "")
    number = int(scalar)
    if dtype.kind == "u":
        return f"{ctype(dtype)}({number}ull)"
    lowest = number == np.iinfo(np.int64).min  # no literal of C++
    return f"int64({number + 1}ll - 1)" if lowest else f"{ctype(dtype)}({number}ll)"


def expression(node: Node, names: Mapping[Node, str]) -> str:
    """Return the C++ expression of an operation or constant. names: of the operands."""
    if node.op == "constant":
        return literal(node.value, node.dtype)
    operands = [names[one] for one in node.operands]
    exponent = whole_exponent(node)
    if exponent:
        return f"numpy::whole_power<{exponent}, {ctype(node.dtype)}>({operands[0]})"
    kind = ctype(node.operands[-1].dtype)
    if node.op == "cast":
        types = f"{ctype(node.dtype)}, {kind}"
    elif node.op in TWO_TYPES:
        types = f"{ctype(node.operands[0].dtype)}, {kind}"
    else:
        types = kind
    return f"numpy::{node.op}<{types}>({', '.join(operands)})"


def whole_exponent(node: Node) -> int:
    """Return the exponent of a power of floats if it is one of WHOLE_POWERS; else 0."""
    if node.op not in ("power", "float_power") or node.dtype.kind != "f":
        return 0
    exponent = node.operands[1]
    is_whole = exponent.op == "constant" and exponent.value in WHOLE_POWERS
    return int(exponent.value) if is_whole else 0


def place_type(program: Program) -> str:
    """Return the C++ type of positions in the whole array, with all that is compared with them."""
    bounds = [*program.lengths, *(at for node in program.conditions for at in node.value[1:])]
    return "int32" if max(map(abs, bounds), default=0) < MOST_NARROW_PLACE else "int64"


def at_place(node: Node, place: str) -> str:
    """Return the C++ expression of a leaf of op "place" or "inside".

    place: C++ of the cell's position along the leaf's axis in the whole array, of `place_type`.
    """
    if node.op == "place":
        return f"(int64({place}) + {node.value[1]}ll)"
    _, low, high, step = node.value
    return f"numpy::inside<{low}ll, {max(high, low)}ll, {step}>({place})"


def slot(node: Node) -> str:
    """Return the C++ expression of a leaf of op "scalar". The slots are in the variable `scalars`."""
    return f"numpy::slot<{ctype(node.dtype)}>(scalars + {node.value})"


def compiler_options(arithmetic: str) -> tuple[str, ...]:
    """Return NVRTC's options for "strict" arithmetic, or for "fast", which contracts a * b + c."""
    return ("--fmad=true",) if arithmetic == "fast" else ()


def line_of(program: Program, source: str, at: int) -> int:
    """Return the line of the user's file that line `at` of a kernel's text computes; 0 if it is not one."""
    lines = source.splitlines()
    text = lines[at - 1] if 0 < at <= len(lines) else ""
    operations = set(re.findall(r"(?:numpy|packed)::(?:near_|whole_)?(\w+)<", text))
    found = {node.line for node in program.nodes if node.op in operations and node.line}
    return found.pop() if len(found) == 1 else 0
