"""Generate a CUDA kernel that computes values from values, by one thread: no launch waits for the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshrun.runner.comm.small.collectives import SLOTS
from meshrun.runner.compiler.operations import HEADER, KERNELS, ctype, expression, literal, slot
from meshrun.runner.compiler.trace.graph import Node, in_order
from meshrun.runner.device.kernel_text import with_headers

HEADERS = (HEADER, KERNELS / "best.cuh", KERNELS / "exact.cuh", KERNELS / "sums.cuh")
SUM_WORDS, SUM_COPIES = 72, 64  # as in exact.cuh and sums.cuh
THREADS = 256  # of a block that adds copies of sums
SLOT = np.dtype(np.uint64)


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
class SumKey:
    """A value that is a sum (kernels/exact.cuh), which a kernel has added to copies of it.

    number: of the sum. computed: the dtype of what is added. dtype: of the value. added: whether the copies
    of all ranks are already added, by the kernel that `emit_totals` writes and an all-reduce.
    """

    number: int
    computed: np.dtype[Any]
    dtype: np.dtype[Any]
    added: bool = False


Key = BestKey | SumKey


@dataclass(frozen=True)
class ValueKernel:
    """A kernel's text. It takes the slots of all values, the keys, and the copies and totals of the sums.

    Copies are (sums, SUM_COPIES, SUM_WORDS), totals (sums, SUM_WORDS). Keys are set back to none, and words
    that are read to 0. threads: of its only block. ranks: whose keys and totals it combines, by the slots of
    `SmallCollectives.members`, which it takes then; 0: none.
    """

    name = "values"
    source: str = field(repr=False)
    threads: int = 1
    ranks: int = 0


def emit(values: Sequence[tuple[int, Node | Key]]) -> ValueKernel:
    """Write the kernel that computes values, by their numbers, one after the other.

    An expression reads values of the slots; those that are computed before it are there.
    """
    return _kernel(*_computed(values))


def emit_reduced(values: Sequence[tuple[int, Node | Key]], words: int, keys: int, ranks: int) -> ValueKernel:
    """Write the kernel that combines the keys and the sums of so many ranks, then computes values, as `emit`.

    words, keys: how many of the totals, and of the keys.
    """
    totals, _ = _added([key for _, key in values if isinstance(key, SumKey)])
    lines, _ = _computed(values)
    reduction = f"reduce_words<{ranks}>(members, totals, {words}, keys, {keys});"
    return _kernel([*totals, reduction, *lines], THREADS, ranks)


def _computed(values: Sequence[tuple[int, Node | Key]]) -> tuple[list[str], int]:
    """Return the statements that compute values, and the threads that they need."""
    lines, names, threads = list[str](), dict[Node, str](), 1
    for number, value in values:
        if isinstance(value, SumKey):
            threads, kind = THREADS, ctype(value.computed)
            lines += [_gathered(value), "if (first) {"]
            lines += [_set(number, value, f"numpy::round_sum<{kind}>(total)"), "}"]
            continue
        lines.append("if (first) {")
        if isinstance(value, BestKey):
            kind, least = ctype(value.computed), literal(value.combine == "minimum", np.dtype(bool))
            lines += [_set(number, value, f"numpy::from_key<{kind}, {least}>(keys[{value.key}])")]
            lines += [f"keys[{value.key}] = 0;"]
        else:
            names.clear()  # a slot may have changed
            for node in in_order([value]):
                text = (
                    slot(node).replace("scalars", "slots") if node.op == "scalar" else expression(node, names)
                )
                names[node] = f"v{len(names)}"
                lines.append(f"const {ctype(node.dtype)} {names[node]} = {text};")
            lines.append(f"numpy::set_slot<{ctype(value.dtype)}>(slots + {number}, {names[value]});")
        lines.append("}")
    return lines, threads


def emit_totals(sums: Sequence[SumKey]) -> ValueKernel:
    """Write the kernel that adds the copies of sums to their totals, for the other ranks."""
    return _kernel(*_added(sums))


def _added(sums: Sequence[SumKey]) -> tuple[list[str], int]:
    """Return the statements that add the copies of sums to their totals, and the threads that they need."""
    lines = list[str]()
    for one in sums:
        lines += [
            _gathered(replace(one, added=False)),
            f"numpy::store_sum(totals + {one.number * SUM_WORDS}, total);",
        ]
    return lines, THREADS


def _gathered(one: SumKey) -> str:
    """Return the statement by which a block adds the copies of a sum, or takes its total."""
    words, copies = ("totals", 1) if one.added else ("sums", SUM_COPIES)
    first = f"{words} + {one.number * copies * SUM_WORDS}"
    return f"numpy::gather_sum<{ctype(one.computed)}>({first}, {copies}, total);"


def _set(number: int, value: Key, text: str) -> str:
    """Return the statement that casts a result and writes it to its slot."""
    kind, computed = ctype(value.dtype), ctype(value.computed)
    return f"numpy::set_slot<{kind}>(slots + {number}, numpy::cast<{kind}, {computed}>({text}));"


def _kernel(lines: Sequence[str], threads: int, ranks: int = 0) -> ValueKernel:
    texts = [path.read_text(encoding="utf-8") for path in HEADERS]
    headers = "\n".join(text.replace("#pragma once\n", "") for text in texts)
    text = (KERNELS / "values.cu").read_text(encoding="utf-8")
    if ranks:
        headers += with_headers(SLOTS)
    text = text.replace("// @members@", ", Members members" if ranks else "")
    text = text.replace("// @headers@", headers).replace("// @body@", "\n    ".join(lines))
    return ValueKernel(text, threads, ranks)
