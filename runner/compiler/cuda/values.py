"""Generate a CUDA kernel that computes values from values, by one thread: no launch waits for the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import HEADER, KERNELS, ctype, expression, literal, slot
from meshrun.runner.compiler.trace.graph import Node, in_order

HEADERS = (HEADER, KERNELS / "best.cuh")


@dataclass(frozen=True)
class BestKey:
    """A value that is the best key of a reduction (kernels/best.cuh).

    key: its number. combine: as of `Operand`. computed: the dtype that has keys. dtype: of the value.
    """

    key: int
    combine: str
    computed: np.dtype[Any]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class ValueKernel:
    """A kernel's text. It takes the slots of all values, and the keys, which it sets back to none."""

    name = "values"
    source: str = field(repr=False)


def emit(values: Sequence[tuple[int, Node | BestKey]]) -> ValueKernel:
    """Write the kernel that computes values, by their numbers, one after the other.

    An expression reads values of the slots; those that are computed before it are there.
    """
    lines, names = list[str](), dict[Node, str]()
    for number, value in values:
        if isinstance(value, BestKey):
            kind, least = ctype(value.computed), literal(value.combine == "minimum", np.dtype(bool))
            found = f"numpy::from_key<{kind}, {least}>(keys[{value.key}])"
            result = f"numpy::cast<{ctype(value.dtype)}, {kind}>({found})"
            lines += [f"numpy::set_slot<{ctype(value.dtype)}>(slots + {number}, {result});"]
            lines += [f"keys[{value.key}] = 0;"]
            continue
        names.clear()  # a slot may have changed
        for node in in_order([value]):
            text = slot(node).replace("scalars", "slots") if node.op == "scalar" else expression(node, names)
            names[node] = f"v{number}_{len(names)}"
            lines.append(f"const {ctype(node.dtype)} {names[node]} = {text};")
        lines.append(f"numpy::set_slot<{ctype(value.dtype)}>(slots + {number}, {names[value]});")
    texts = [path.read_text(encoding="utf-8") for path in HEADERS]
    headers = "\n".join(text.replace("#pragma once\n", "") for text in texts)
    text = (KERNELS / "values.cu").read_text(encoding="utf-8")
    return ValueKernel(text.replace("// @headers@", headers).replace("// @body@", "\n    ".join(lines)))
