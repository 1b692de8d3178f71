"""C++ of the cells near points, for CUDA and the host: their values, with the operations of all kernels.

A set of cells has a table, with a column for each cell: where its values go, where the cells lie that it
reads, and what conditions and lists of points have for it. The code depends on no shape and no rank.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.cpp import host
from meshrun.runner.compiler.operations import (
    HEADER,
    KERNELS,
    ctype,
    expression,
    host_operations,
    slot,
)
from meshrun.runner.compiler.trace.evaluate import at_places
from meshrun.runner.compiler.trace.graph import PLACES, Node
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.graph import WholeGraph
from meshrun.runner.compiler.whole.point_pass import PointCells, array_module, numbers_of
from meshrun.runner.region import Array, HostArray, Shape, address_of
from meshrun.runner.system.cached_files import cache_folder
from meshrun.runner.system.compiler import find_compiler

THREADS = 128  # of a block
LEADING = 2  # rows of a table before those of leaves
PARAMETERS = "const uint64* in, const uint64* out, const uint64* scalars, const int64* table, int64 count"


@dataclass(frozen=True)
class PointPlace:
    """The cells of a set that are computed, and arrays that hold what they read and write.

    first, last: the box of cells, positions per axis of space; last is the position after them. origin: the
    position whose cell is at the arrays' addresses. whole: per axis, whether the box is all of space and is
    read instead of cells beyond its ends. inputs, outs: arrays of such strides.
    """

    first: Shape
    last: Shape
    origin: Shape
    whole: tuple[bool, ...]
    inputs: Sequence[Array]
    outs: Sequence[Array]


@dataclass(frozen=True)
class PointArrays:
    """Arrays that the code of sets reads and writes.

    inputs, outs: views whose first cell is at the origin of the sets' `PointPlace`. scalars: the slots of a
    step's numbers, if there are some. rows: of each set that is a series, an array of rows. written: how many
    rows each block of threads (`blocks_of_threads`) has written, which a launch on a GPU counts up.
    """

    inputs: Sequence[Array]
    outs: Sequence[Array]
    scalars: Array | None = None
    rows: Sequence[Array] = ()
    written: Array | None = None


@dataclass(frozen=True)
class Table:
    """What a set's code reads of its cells, in the order of their rows along axis 0.

    values: (rows of the table, cells). rows: of each cell along axis 0, counted from the origin.
    """

    values: HostArray
    rows: HostArray


@dataclass(eq=False)
class PointSet:
    """Cells whose values are written over an output, or to a row of a series.

    output: the number of the output; of a series, of that which has its values, or None. series: whether
    values go to a row, of (components, cells).
    """

    cells: PointCells
    output: int | None
    series: bool = False

    @cached_property
    def nodes(self) -> list[Node]:
        """The values of a cell, per component: picked numbers are constants."""
        return self.cells.graph.with_constant_picks(self.cells.nodes)

    @cached_property
    def order(self) -> tuple[Node, ...]:
        """The nodes to compute, operands before their users."""
        return PointCells(
            self.cells.graph, self.cells.space, tuple(self.nodes), self.cells.positions, self.cells.known
        ).order

    @cached_property
    def leaves(self) -> list[Node]:
        """The nodes that have a row of the table."""
        return [node for node in self.order if node.op in ("load", "point", "pick", *PLACES)]

    @property
    def row_bytes(self) -> int:
        """Bytes of a cell's values."""
        return len(self.nodes) * self.nodes[0].dtype.itemsize

    def text(self, number: int) -> str:
        """Return a function that computes cell i of the set."""
        lines, names = [], dict[Node, str]()
        read = {*self.nodes, *(operand for node in self.order for operand in node.operands)}
        for component, node in enumerate(self.cells.known):
            if node in read and node not in names:
                kind, names[node] = ctype(node.dtype), f"k{component}"
                text = f"((const {kind}*)out[{self.output}])[table[i] + {component}]"
                lines.append(f"const {kind} k{component} = {text};")
        rows = {node: f"table[{LEADING + at} * count + i]" for at, node in enumerate(self.leaves)}
        for at, node in enumerate(self.order):
            kind = ctype(node.dtype)
            if node.op == "load":
                text = f"((const {kind}*)in[{node.input}])[{rows[node]}]"
            elif node in rows:
                text = _from_bits(rows[node], node.dtype)
            else:
                text = slot(node) if node.op == "scalar" else expression(node, names)
            names[node] = f"v{at}"
            lines.append(f"const {kind} v{at} = {text};")
        for component, node in enumerate(self.nodes):
            kind = ctype(node.dtype)
            target = f"(({kind}*)to)[{component} * count + table[count + i]]"
            if not self.series:
                target = f"(({kind}*)out[{self.output}])[table[i] + {component}]"
            lines.append(f"{target} = {names[node]};")
        body = "\n".join(f"    {line}" for line in lines)
        return f"INLINE void cell{number}({PARAMETERS}, int64 i, uint64 to) {{\n{body}\n}}\n"

    def table(self, place: PointPlace) -> Table:
        """Return the table of the cells at a place."""
        graph, space = self.cells.graph, self.cells.space
        mine, here = self.cells.owned(place.first, place.last)
        at, origin = self.cells.positions[mine], np.array(place.origin)
        rows = [np.zeros(len(mine), np.int64), np.arange(len(mine))]
        if self.output is not None:
            out = place.outs[self.output]
            rows[0] = (here - origin) @ np.array(out.strides[: len(space)]) // out.itemsize
        for node in self.leaves:
            if node.op == "load":
                rows.append(_elements(graph, node, here, place))
            elif node.op in PLACES:
                rows.append(_bits(at_places(node, at[:, node.value[0]])))
            else:
                points, *_, shift = node.value
                number = mine
                if shift is not None:
                    number = numbers_of(graph.points[points], at + np.array(shift), space)
                values = (
                    number >= 0 if node.op == "point" else np.asarray(graph.picked[node.value[1]])[number]
                )
                rows.append(_bits(values))
        order = np.argsort(here[:, 0], kind="stable")
        along = (here[order, 0] - origin[0]).astype(np.int64)
        return Table(np.ascontiguousarray(np.stack(rows)[:, order], np.int64), np.ascontiguousarray(along))


def is_computable(sets: Sequence[PointSet]) -> bool:
    """Return whether the code can compute all values: none is a complex number."""
    return not any(node.dtype.kind == "c" for one in sets for node in (*one.order, *one.cells.known))


def _elements(graph: WholeGraph, node: Node, here: HostArray, place: PointPlace) -> HostArray:
    """Return the elements that a load reads, counted from an array's address."""
    # The block of an array that broadcasts has all axes, too: it repeats its cells.
    block, axes = place.inputs[node.input], len(graph.space)
    total = np.zeros(len(here), np.int64)
    for axis, stride in enumerate(block.strides[:axes]):
        at = here[:, axis] + node.offset[axis]
        at = at % graph.space[axis] if place.whole[axis] else at
        total += (at - place.origin[axis]) * stride
    inner = np.unravel_index(node.component, block.shape[axes:] or (1,))
    total += sum(int(one) * stride for one, stride in zip(inner, block.strides[axes:], strict=False))
    return total // int(block.itemsize)


def _bits(values: HostArray) -> HostArray:
    """Return the bits of values as integers."""
    if values.dtype.kind == "f":
        values = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
    return values.astype(np.int64)


def _from_bits(text: str, dtype: np.dtype[Any]) -> str:
    """Return the C++ of a value whose bits are an integer."""
    if dtype.kind == "b":
        return f"({text} != 0)"
    if dtype.kind == "f":
        return f"numpy::bits<{ctype(dtype)}>(uint{8 * dtype.itemsize}({text}))"
    return f"{ctype(dtype)}({text})"


# On the host


class _Call(ctypes.Structure):
    """A set's part of steps: struct Points of kernels/host.cpp."""

    _fields_ = (
        ("compute", ctypes.c_void_p), ("rows", ctypes.c_void_p), ("table", ctypes.c_void_p),
        ("count", ctypes.c_longlong), ("to", ctypes.c_void_p), ("row_bytes", ctypes.c_longlong),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class HostPoints:
    """Compiled code of sets, on one processor."""

    sets: Sequence[PointSet]
    loaded: ctypes.CDLL

    def calls(self, tables: Sequence[Table], rows: Sequence[HostArray] = ()) -> Sequence[Any]:
        """Return what `HostProgram.steps` takes. rows: of each set, the array with the first step's row."""
        found = []
        for number, (one, table) in enumerate(zip(self.sets, tables, strict=True)):
            compute = ctypes.cast(self.loaded[f"compute{number}"], ctypes.c_void_p)
            count = len(table.rows)
            to = rows[number].ctypes.data if rows else 0
            found.append(
                _Call(
                    compute,
                    table.rows.ctypes.data,
                    table.values.ctypes.data,
                    count,
                    to,
                    count * one.row_bytes,
                )
            )
        return found

    def bind(self, tables: Sequence[Table], arrays: PointArrays) -> Callable[..., None]:
        """Return what computes all cells of the sets, given the number of the row of series."""
        addresses = [
            (ctypes.c_ulonglong * max(len(some), 1))(*map(address_of, some))
            for some in (arrays.inputs, arrays.outs)
        ]
        slots = ctypes.c_void_p(0 if arrays.scalars is None else arrays.scalars.ctypes.data)

        def compute(row: int = 0) -> None:
            for number, table in enumerate(tables):
                count, to = len(table.rows), address_of(arrays.rows[number], (row,)) if arrays.rows else 0
                self.loaded[f"compute{number}"](
                    *addresses, slots, ctypes.c_void_p(table.values.ctypes.data),
                    ctypes.c_longlong(count), ctypes.c_longlong(0), ctypes.c_longlong(count),
                    ctypes.c_ulonglong(to),
                )  # fmt: skip

        return compute


def host_points(sets: Sequence[PointSet]) -> HostPoints:
    """Compile sets for the host. Raises NotTraceable without a compiler, NotCompiled if it fails."""
    compiler = find_compiler()
    if compiler is None:
        raise NotTraceable("no C++ compiler on this host", "CXX=/path/to/g++, or install one")
    texts = [host_operations()]
    for number, one in enumerate(sets):
        texts += [
            one.text(number),
            f'extern "C" void compute{number}({PARAMETERS}, int64 begin, int64 end, uint64 to) {{\n'
            f"    for (int64 i = begin; i < end; ++i) cell{number}(in, out, scalars, table, count, i, to);\n"
            "}\n",
        ]
    return HostPoints(sets, host.library("\n".join(texts), compiler, cache_folder()))


# On a GPU


def device_source(sets: Sequence[PointSet]) -> str:
    """Return the text of the kernel `points`, which computes all cells of the sets; see kernels/points.cu."""
    lines = []
    for number, one in enumerate(sets):
        lines += [
            f"    if (0 <= i && i < n{number})",
            f"        cell{number}(in, out, scalars, table, n{number}, i,",
            f"                     to[{number}] + row * n{number} * {one.row_bytes});",
            f"    i -= n{number};",
            f"    table += n{number} * {LEADING + len(one.leaves)};",
        ]
    parts = {
        "@cells": "\n".join(one.text(number) for number, one in enumerate(sets)),
        "@threads": str(THREADS),
        "@counts": "".join(f", int64 n{number}" for number in range(len(sets))),
        "@sets": "\n".join(lines),
    }
    text = (KERNELS / "points.cu").read_text()
    for name, part in parts.items():
        text = text.replace(name, part)
    return HEADER.read_text().replace("#pragma once\n", "") + text


@dataclass(frozen=True, eq=False)
class DevicePoints:
    """A compiled kernel of sets."""

    sets: Sequence[PointSet]
    launch: Callable[..., None]
    # What is on the device, of the same tables and addresses.
    _uploaded: dict[Any, tuple[Sequence[Table], Array, Array]] = field(default_factory=dict)

    def bind(self, tables: Sequence[Table], arrays: PointArrays) -> Callable[[], None]:
        """Return the launch that computes all cells of the sets. It can be captured.

        Only the first call with the same tables and arrays uploads something: each step of a CUDA graph has
        other scalars, and is bound while the graph is recorded.
        """
        counts = [len(table.rows) for table in tables]
        if not sum(counts):
            return _nothing
        xp, scalars, written = array_module(arrays.inputs[0]), arrays.scalars, arrays.written
        fields = [address_of(one) for one in (*arrays.inputs, *arrays.outs)]
        to = [address_of(one) for one in arrays.rows] or [0] * len(tables)
        key = (*map(id, tables), *fields, *to)
        if key not in self._uploaded:
            addresses = xp.asarray(np.array([*fields, *to], np.uint64))
            values = xp.asarray(np.concatenate([one.values.ravel() for one in tables]))
            self._uploaded[key] = tables, addresses, values
        _, addresses, table = self._uploaded[key]
        starts = np.cumsum([0, len(arrays.inputs), len(arrays.outs)]) * 8 + address_of(addresses)
        others = [0 if one is None else address_of(one) for one in (scalars, table, written)]
        arguments = (*map(np.uint64, starts), *map(np.uint64, others), *map(np.int64, counts))
        launch = functools.partial(self.launch, (blocks_of_threads(tables),), (THREADS,), arguments)
        return functools.partial(launch_keeping, launch, (addresses, table, *arrays.rows, written, scalars))


def blocks_of_threads(tables: Sequence[Table]) -> int:
    """Return the blocks of threads for all cells of tables."""
    return -(-sum(len(table.rows) for table in tables) // THREADS)


def launch_keeping(launch: Callable[[], None], _kept: Any) -> None:
    """Launch. _kept: what the launch has addresses of."""
    launch()


def _nothing() -> None:
    """Do nothing: no cell is here."""
