"""Programs of operations that are computed in words of small elements, and blocks to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Graph, Node, Operand, Program

SMALL = ("uint8", "int8", "uint16", "int16")
BOOL = np.dtype(bool)
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def program_of(graph: Graph, results: Sequence[Node], *dtypes: Any) -> Program:
    """Return a program over two axes with one output for each result."""
    inputs = tuple(Operand(f"i{number}", np.dtype(dtype)) for number, dtype in enumerate(dtypes))
    outputs = tuple(Operand(f"o{number}", one.dtype) for number, one in enumerate(results))
    return Program(2, inputs, outputs, tuple((one,) for one in results), graph)


def operations(graph: Graph, a: Node, b: Node) -> list[Node]:
    """Return every operation on integers that is computed in words."""
    kind = a.dtype
    two = ["add", "subtract", "minimum", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor"]
    found = [graph.operation(op, kind, (a, b)) for op in two]
    found += [graph.operation(op, BOOL, (a, b)) for op in COMPARISONS]
    found += [graph.operation(op, kind, (a,)) for op in ("negative", "invert", "positive")]
    less, same_bits = found[9], found[7]
    found.append(graph.operation("where", kind, (less, a, b)))
    for op in (
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "equal",
    ):
        found.append(graph.operation(op, BOOL, (less, same_bits)))
    found.append(graph.operation("logical_not", BOOL, (less,)))
    found.append(graph.operation("where", BOOL, (less, same_bits, graph.operation("cast", BOOL, (b,)))))
    found.append(graph.operation("cast", kind, (less,)))
    other = np.dtype(f"{'i' if kind.kind == 'u' else 'u'}{kind.itemsize}")
    found.append(graph.operation("cast", other, (a,)))
    factors = (0, 1, 3, kind.type(-1) if kind.kind == "i" else np.iinfo(kind).max)
    for factor in factors:
        found.append(graph.operation("multiply", kind, (graph.constant(factor, kind), a)))
    if kind.itemsize == 2:
        found.append(graph.operation("multiply", kind, (a, b)))
    return found


def of_integers(dtype: str) -> tuple[Program, list[Any]]:
    """Return each operation on two elements, and all pairs of bytes or many of two bytes."""
    kind, graph = np.dtype(dtype), Graph()
    a, b = graph.load(0, kind, (0, 0)), graph.load(1, kind, (0, 0))
    some = np.arange(256) if kind.itemsize == 1 else np.r_[0:300, 0x7F00:0x8100, 0xFF00:0x10000]
    one, other = np.meshgrid(some, some[:: kind.itemsize])
    blocks = [np.ascontiguousarray(each.astype(kind)) for each in (one, other)]
    return program_of(graph, operations(graph, a, b), kind, kind), blocks


def of_neighbours(dtype: str) -> tuple[Program, list[Any]]:
    """Return sums and differences of cells of a row that are up to 8 cells apart."""
    kind, graph = np.dtype(dtype), Graph()
    near = [graph.load(0, kind, (0, x)) for x in range(-5, 6)]
    centre = near[5]
    results = [graph.operation("add", kind, (centre, one)) for one in near]
    results += [graph.operation("bitwise_xor", kind, (centre, one)) for one in near]
    results += graph.shifted([results[0]], (0, 3)) + graph.shifted([results[12]], (0, 1))
    results.append(graph.operation("subtract", kind, (results[3], results[-1])))
    block = np.random.default_rng(1).integers(0, 65536, (7, 91)).astype(kind)
    return program_of(graph, results, kind), [block]


def of_sums(dtype: str) -> tuple[Program, list[Any]]:
    """Return long sums, differences and products of bytes: in 16 bits they are too large."""
    kind, graph = np.dtype(dtype), Graph()
    a, b = graph.load(0, kind, (0, 0)), graph.load(1, kind, (0, 1))
    total, results = a, []
    for turn in range(530):
        total = graph.operation("add" if turn % 3 else "subtract", kind, (total, b))
        if turn % 100 == 99:
            results.append(total)
    doubled = a
    for _ in range(20):
        doubled = graph.operation("add", kind, (doubled, doubled))
        results.append(doubled)
    scaled = graph.operation("add", kind, (a, b))
    for factor in (255, 7, 254, 3):
        times = graph.constant(np.uint8(factor).astype(kind), kind)
        scaled = graph.operation("negative", kind, (graph.operation("multiply", kind, (scaled, times)),))
        results.append(scaled)
    blocks = [np.random.default_rng(seed).integers(200, 256, (4, 40)).astype(kind) for seed in (1, 2)]
    return program_of(graph, results, kind, kind), blocks


def of_floats(trailing: tuple[int, ...]) -> tuple[Program, list[Any]]:
    """Return small integers as floats, all of them."""
    graph, results = Graph(), []
    kinds = [np.dtype(one) for one in SMALL]
    for number, kind in enumerate(kinds):
        for component in range(3 if trailing else 1):
            one = graph.load(number, kind, (0, 0), component)
            results.append(graph.operation("cast", np.dtype(np.float32), (one,)))
    inputs = tuple(Operand(f"i{number}", kind, trailing) for number, kind in enumerate(kinds))
    outputs = tuple(Operand(f"o{number}", one.dtype) for number, one in enumerate(results))
    program = Program(2, inputs, outputs, tuple((one,) for one in results), graph)
    values = np.arange(65536).reshape(256, 256, *(1 for _ in trailing))
    shape = (256, 256, *trailing)
    return program, [np.ascontiguousarray(np.broadcast_to(values.astype(kind), shape)) for kind in kinds]
