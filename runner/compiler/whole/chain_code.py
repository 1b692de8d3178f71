"""C++ of stages over small arrays, for CUDA and the host: one function that computes all of them in turn.

A stage of few cells takes less time than a launch of its kernel, or a call of it. A chain is called once for
many of them. On a GPU, one block of threads computes it, and waits for its own threads between two stages.
The boxes of a single stage are computed at once, each by blocks of its own.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import (
    HEADER,
    KERNELS,
    at_place,
    ctype,
    expression,
    host_operations,
    memory_type,
    place_type,
    slot,
)
from meshrun.runner.compiler.passes.real_parts import has_complex
from meshrun.runner.compiler.trace.graph import PLACES, Extents, Node, Program
from meshrun.runner.compiler.whole.point_code import launch_keeping
from meshrun.runner.region import Array, Shape, address_of

PARAMETERS = "const uint64* in, const uint64* out, const int64* at, const uint64* scalars"
NO_CODE = ("point", "pick", "table")  # operations that a chain has no code for


@dataclass(frozen=True, eq=False)
class ChainBox:
    """Cells that a chain computes, and the arrays that they are computed of and written to.

    blocks: of each input, these cells with a halo of `widths`. outs: of each output, these cells. first:
    position of the first cell. All are contiguous along the last axis of cells and their components.
    """

    program: Program
    widths: Extents
    blocks: Sequence[Array]
    outs: Sequence[Array]
    first: Shape

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    @property
    def shape(self) -> Shape:
        return tuple(self.outs[0].shape[: self.program.axes])

    def addresses(self) -> list[int]:
        """Return where the first cell of each input and each output is."""
        low = [before for before, _ in self.widths]
        return [*(address_of(one, low) for one in self.blocks), *map(address_of, self.outs)]

    def numbers(self) -> list[int]:
        """Return the cells and the first position per axis, and each array's strides along leading axes."""
        axes = self.program.axes
        strides = [stride for one in (*self.blocks, *self.outs) for stride in one.strides[: axes - 1]]
        return [*self.shape, *self.first[:axes], *strides]


def has_code(program: Program) -> bool:
    """Return whether a chain can compute a program."""
    plain = not has_complex(program) and not any(node.op in NO_CODE for node in program.nodes)
    return plain and not any(one.combine for one in program.outputs)


def chain_source(stages: Sequence[Sequence[Program]], threads: int = 0) -> str:
    """Return the text of a chain. stages: the programs of each one's boxes. threads: of a block on a GPU; 0:
    text for the host.

    The function `chain` takes the addresses of all boxes, one after the other, their numbers, and the slots
    of the program's values.
    """
    texts: dict[str, str] = {}  # of functions, by what they compute, their names
    calls, words, numbers = [], 0, 0
    for stage in stages:
        if threads:
            calls.append("    __syncthreads();")
        for box, program in enumerate(stage):
            body = _body(program, on_device=threads > 0)
            name = texts.setdefault(body, f"cells{len(texts)}")
            inputs, outputs, axes = len(program.inputs), len(program.outputs), program.axes
            given = f"arrays + {words}, arrays + {words + inputs}, numbers + {numbers}, scalars"
            own = f"if (blockIdx.y == {box}) " if threads and len(stages) == 1 else ""
            calls.append(f"    {own}{name}({given});")
            words, numbers = words + inputs + outputs, numbers + 2 * axes + (inputs + outputs) * (axes - 1)
    kind = "INLINE void" if threads else "static __attribute__((noinline)) void"
    text = (KERNELS / ("chain.cu" if threads else "chain.cpp")).read_text()
    parts = {
        "@functions": "\n".join(
            f"{kind} {name}({PARAMETERS}) {{\n{body}\n}}" for body, name in texts.items()
        ),
        "@calls": "\n".join(calls),
        "@threads": str(threads),
        "@arrays": str(words),
        "@numbers": str(numbers),
    }
    for name, part in parts.items():
        text = text.replace(name, part)
    return (HEADER.read_text().replace("#pragma once\n", "") if threads else host_operations()) + text


def _body(program: Program, *, on_device: bool) -> str:
    """Write what computes the cells of a box: a loop over them, of the block's threads on a GPU."""
    axes, last = program.axes, program.axes - 1
    kind, place = ("int" if on_device else "int64"), place_type(program)
    memory = ctype if on_device else memory_type
    lines = [f"    const {kind} n{axis} = at[{axis}];" for axis in range(axes)]
    placed = sorted({node.value[0] for node in program.nodes if node.op in PLACES})
    lines += [f"    const {place} f{axis} = at[{axes + axis}];" for axis in placed]

    # The cell's index along each axis.
    if on_device:
        count = " * ".join(f"n{axis}" for axis in range(axes))
        first = "blockIdx.x * blockDim.x + threadIdx.x"
        lines.append(f"    for (int i = {first}; i < {count}; i += gridDim.x * blockDim.x) {{")
        rest = "i"
        for axis in range(last, 0, -1):
            lines.append(f"        const int c{axis} = {rest} % n{axis}, r{axis} = {rest} / n{axis};")
            rest = f"r{axis}"
        lines.append(f"        const int c0 = {rest};")
    else:
        lines += [f"    for (int64 c{axis} = 0; c{axis} < n{axis}; ++c{axis}) {{" for axis in range(last)]

    # The rows that are read and written. No stage reads what it writes.
    rows = _rows(program)
    for (number, offset), name in rows.items():
        kind = memory(program.inputs[number].dtype)
        lines.append(_pointer(f"const {kind}", name, f"in[{number}]", offset, number))
    for number, one in enumerate(program.outputs):
        array = len(program.inputs) + number
        lines.append(_pointer(memory(one.dtype), f"o{number}", f"out[{number}]", (0,) * last, array))
    if not on_device:
        lines += ["#pragma GCC ivdep", f"        for (int64 c{last} = 0; c{last} < n{last}; ++c{last}) {{"]
    lines += _cell(program, rows)
    return "\n".join([*lines, "    }" + "}" * (0 if on_device else last)])


def _rows(program: Program) -> dict[tuple[int, Shape], str]:
    """Return names of the rows that a cell reads, by input and offset along the leading axes."""
    keys = dict.fromkeys((node.input, tuple(node.offset[:-1])) for node in program.loads)
    return {key: f"i{number}" for number, key in enumerate(keys)}


def _pointer(kind: str, name: str, address: str, offset: Shape, array: int) -> str:
    """Write the address of a row's first cell. kind: C++ type; array: its number, the inputs first."""
    axes = len(offset) + 1
    terms = [
        f" + (c{axis} + {further}) * at[{2 * axes + array * (axes - 1) + axis}]"
        for axis, further in enumerate(offset)
    ]
    return f"        {kind}* const {name} = ({kind}*)({address}{''.join(terms)});"


def _cell(program: Program, rows: Mapping[tuple[int, Shape], str]) -> list[str]:
    """Write what computes the cell at index c of each axis."""
    last, place = program.axes - 1, place_type(program)
    names: dict[Node, str] = {}
    lines = []
    for number, node in enumerate(program.nodes):
        if node.op == "load":
            count = program.inputs[node.input].components
            row = rows[node.input, tuple(node.offset[:-1])]
            text = f"{row}[{count} * c{last} + {node.offset[-1] * count + node.component}]"
            text += " != 0" if node.dtype.kind == "b" else ""
        elif node.op in PLACES:
            axis = node.value[0]
            text = at_place(node, f"{place}(f{axis} + {place}(c{axis}))")
        else:
            text = slot(node) if node.op == "scalar" else expression(node, names)
        names[node] = f"v{number}"
        lines.append(f"            const {ctype(node.dtype)} v{number} = {text};")
    for number, (one, result) in enumerate(zip(program.outputs, program.results, strict=True)):
        for component, node in enumerate(result):
            lines.append(f"            o{number}[{one.components} * c{last} + {component}] = {names[node]};")
    return lines


@dataclass(frozen=True, eq=False)
class Chain:
    """A compiled chain of boxes.

    function: on a GPU, what launches the kernel; on the host, the library's function. xp: numpy or cupy.
    blocks: on a GPU, of threads, for a box and for how many boxes at once. threads: of each; 0 on the host.
    """

    function: Any
    xp: ModuleType
    blocks: tuple[int, int] = (1, 1)
    threads: int = 0

    def bind(self, boxes: Sequence[ChainBox], scalars: Array) -> Callable[[], None]:
        """Return what computes the boxes, whose memory must be there. scalars: the slots of the values."""
        addresses = [address for box in boxes for address in box.addresses()]
        numbers = [number for box in boxes for number in box.numbers()]
        if self.threads:
            words = self.xp.asarray(np.array([*addresses, *numbers], np.int64))
            arguments = np.uint64(address_of(words)), np.uint64(address_of(scalars))
            launch = functools.partial(self.function, self.blocks, (self.threads, 1), arguments)
            return functools.partial(launch_keeping, launch, words)
        given = (
            (ctypes.c_ulonglong * len(addresses))(*addresses),
            (ctypes.c_longlong * len(numbers))(*numbers),
            ctypes.c_void_p(address_of(scalars)),
        )
        return functools.partial(self.function, *given)
