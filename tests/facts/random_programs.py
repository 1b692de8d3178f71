"""Programs of operations that hypothesis draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from meshrun.runner.compiler.trace.graph import Graph, Node, Operand, Program

DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
          "float16", "float32", "float64")  # fmt: skip


@st.composite
def programs(draw: st.DrawFn, dtypes: Sequence[str] = DTYPES) -> Program:
    """Draw operations on loads at any offsets, from several inputs into several outputs."""
    axes, graph = draw(st.integers(1, 3)), Graph()
    trailing = st.sampled_from([(), (), (2,), (3,), (2, 2)])
    inputs = [
        Operand(f"input{number}", np.dtype(draw(st.sampled_from(dtypes))), draw(trailing))
        for number in range(draw(st.integers(1, 3)))
    ]
    offset = st.tuples(*[st.integers(-2, 2)] * axes)
    known: list[Node] = []
    for number, one in enumerate(inputs):
        for _ in range(draw(st.integers(1, 3))):
            component = draw(st.integers(0, one.components - 1))
            known.append(graph.load(number, one.dtype, draw(offset), component))
    known.append(graph.constant(draw(st.integers(0, 3)), inputs[0].dtype))
    for _ in range(draw(st.integers(1, 8))):
        known.append(_operation(draw, graph, known))
    outputs, results = [], []
    for number in range(draw(st.integers(1, 3))):
        first = draw(st.sampled_from(known))
        same = [node for node in known if node.dtype == first.dtype]
        output = Operand(f"output{number}", first.dtype, draw(trailing))
        outputs.append(output)
        results.append((first, *(draw(st.sampled_from(same)) for _ in range(output.components - 1))))
    return Program(axes, tuple(inputs), tuple(outputs), tuple(results), graph)


@st.composite
def with_choices(draw: st.DrawFn) -> Program:
    """Draw programs with nested choices among all that they compute."""
    program = draw(programs())
    graph = program.graph
    conditions = [node for node in program.nodes if node.dtype == np.dtype(bool)]
    known = {one.dtype: [node for node in program.nodes if node.dtype == one.dtype] for one in program.nodes}
    results = []
    for result in program.results:
        cells = []
        for first in result:
            node = first
            for _ in range(draw(st.integers(1, 3)) if conditions else 0):
                other = draw(st.sampled_from(known[node.dtype]))
                pair = draw(st.permutations([node, other]))
                node = graph.operation("where", node.dtype, [draw(st.sampled_from(conditions)), *pair])
            cells.append(node)
        results.append(tuple(cells))
    return replace(program, results=tuple(results))


def _operation(draw: st.DrawFn, graph: Graph, known: list[Node]) -> Node:
    a = draw(st.sampled_from(known))
    b = draw(st.sampled_from([node for node in known if node.dtype == a.dtype]))
    boolean = np.dtype(bool)
    kinds = ["add", "multiply", "maximum", "minimum", "less", "equal", "cast", "where", "shifted"]
    if a.dtype.kind == "b":
        kinds = ["logical_and", "logical_or", "cast", "where", "shifted"]
    elif a.dtype.kind == "f":
        kinds += ["subtract", "divide", "sqrt", "absolute", "floor"]
    else:
        kinds += ["subtract", "bitwise_and", "bitwise_xor", "absolute", "floor_divide", "remainder"]
    op = draw(st.sampled_from(kinds))
    if op == "shifted":
        places = [node.offset for node in known if node.op == "load"]
        back = tuple(-one for one in places[0])
        return graph.shifted([a], back)[0]
    if op == "cast":  # what a float becomes as an integer out of range is undefined
        to = DTYPES if a.dtype.kind != "f" else ("float16", "float32", "float64", "bool")
        return graph.operation("cast", np.dtype(draw(st.sampled_from(to))), [a])
    if op == "where":
        conditions = [node for node in known if node.dtype == boolean]
        if not conditions:
            return graph.operation("less", boolean, [a, b])
        return graph.operation("where", a.dtype, [draw(st.sampled_from(conditions)), a, b])
    if op in ("sqrt", "absolute", "floor"):
        return graph.operation(op, a.dtype, [a])
    result = boolean if op in ("less", "equal", "logical_and", "logical_or") else a.dtype
    return graph.operation(op, result, [a, b])
