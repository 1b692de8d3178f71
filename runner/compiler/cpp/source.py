"""Write traced programs as C++ for the host's processor: a loop over a row for each, in kernels/host.cpp.

Where few cells need much (`branches.common_path`), a row is computed in runs of segments: those in which no
cell needs it by a loop that leaves it out, the others by the loop that computes all. Both loops are
vectorised, and give the same bits.

Cells near the ends of the whole array, which a function writes by index, are computed by loops of their own:
at the ends of rows, in each row at the ends of other axes, and where both meet. Each has the conditions that
are open there. Those between are computed by the loop of the interior (`ends.interior`), which has none.

Costly values that cells of the interior have in common are computed by loops of their own, a row at a time
(`kept_rows`), and kept in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from meshrun.runner.compiler.operations import (
    KERNELS,
    PERIODIC,
    at_place,
    ctype,
    expression,
    host_operations,
    memory_type,
    place_type,
    slot,
)
from meshrun.runner.compiler.passes.branches import common_path
from meshrun.runner.compiler.passes.ends import ends_of, interior, specialised
from meshrun.runner.compiler.passes.kept_rows import KeptRows, kept_rows
from meshrun.runner.compiler.trace.graph import PLACES, Node, Program, in_order, merge_components

MOST_STEPS = 256  # of one call
CELLS_KEPT = 4096  # of a row of one axis: as many cells at once as costly values of them stay in a cache
MOST_PARTS = 9  # of the rows, each with a loop of its own: three axes with one cell at each end
Range = tuple[int, int]  # a first position, and the one after the last
Rows = dict[tuple[int, tuple[int, ...]], str]
"""Names of the rows that are read: of an input, at an offset along the leading axes."""


def source(programs: Sequence[Program]) -> str:
    """Return the C++ text of a library of programs."""
    skeleton = (KERNELS / "host.cpp").read_text()
    texts = [
        skeleton.replace("@cells", _cells(*merge_components(program))).replace("@number", str(number))
        for number, program in enumerate(programs)
    ]
    adds = any(one.combine for program in programs for one in program.outputs)
    sums = [(KERNELS / name).read_text() for name in ("exact.cuh", "exact_sum.cpp")] if adds else []
    return "\n".join((host_operations(), *sums, *texts))


def _cells(program: Program, merged: int) -> str:
    """Write what computes a row.

    merged: elements that a cell had before its trailing axes became part of the row.
    """
    rows = _rows_read(program)
    placed = {node.value[0] for node in program.nodes if node.op in PLACES}
    lengths = [program.lengths[axis] if axis in placed else 0 for axis in range(program.axes)]
    inner = interior(program)
    common = common_path(inner)
    # A test tells which cells need most of the costly values; without one, all need them.
    stored, kept = (inner, []) if common else kept_rows(inner)
    lines = [
        f"constexpr int AXES = {program.axes}, INPUTS = {len(program.inputs)}, "
        f"OUTPUTS = {len(program.outputs)}, SCALARS = {program.scalars};",
        f"constexpr int MOST_STEPS = {MOST_STEPS};",
        *_sums(program, CELLS_KEPT if kept and program.axes == 1 else 0),
        f"constexpr int64 LENGTHS[] = {{{', '.join(map(str, lengths))}}};",
        f"typedef {place_type(program)} Place;",
        *_held(kept),
        *_loop("cells", stored, _rows_read(stored) if kept else rows),
    ]
    if inner is not program:
        *others, (before, after) = _between(program)
        lines += _loop("cells_at_ends", program, rows)
        lines += _loop("ends_of_rows", _within(program, [*others, (0, program.lengths[-1])]), rows)
        for number, box in enumerate(_rows_at_ends(program)):
            lines += _loop(f"rows_at_ends{number}", _within(program, [*box, (before, after)]), rows)
    if common:
        lines += [*_loop("common_cells", common.program, rows), *_test(inner, common.test, rows)]
    lines += _runs(stored, _rows_read(stored) if kept else rows, tested=common is not None)
    lines += _runs_with_kept(program, stored, kept, rows) if kept else []
    return "\n".join([*lines, *_row(program, inner, rows, merged, kept=bool(kept))])


def _rows_read(program: Program) -> Rows:
    """Name the rows that a program reads."""
    rows: Rows = {}
    for node in program.loads:
        rows.setdefault((node.input, node.offset[:-1]), f"r{len(rows)}")
    return rows


def _sums(program: Program, most: int) -> list[str]:
    """Write the sums of the results that are added up: `out` has the words of each, as of exact.cuh.

    most: cells of a row to compute at once; 0: all.
    """
    added = {n: ctype(one.dtype) for n, one in enumerate(program.outputs) if one.combine}
    return [
        f"constexpr int64 MOST_CELLS = {'ROW' if added else most};  // of a row, at once; 0: all",
        "struct Sums {",
        *(f"    Summed<{dtype}> s{n};" for n, dtype in added.items()),
        "    explicit Sums(char* const* out)",
        *([f"        : {', '.join(f's{n}(out[{n}])' for n in added)}"] if added else []),
        "    {}",
        f"    void lead(char** to) {{ {' '.join(f'to[{n}] = s{n}.room();' for n in added)} }}",
        f"    void written(int64 n) {{ {' '.join(f's{n}.written(n);' for n in added)} }}",
        f"    void finish() {{ {' '.join(f's{n}.finish();' for n in added)} }}",
        "};",
    ]


def _held(kept: Sequence[KeptRows]) -> list[str]:
    """Write the memory of the values that are kept, and the loops that compute them."""
    if not kept:
        return ["struct Held {};"]
    values = [
        f"{{{one.rows[0]}, {one.rows[1]}, {one.columns[0]}, {one.columns[1]}, {value.dtype.itemsize}}}"
        for one in kept
        for value in one.program.outputs
    ]
    lines = [
        f"constexpr KeptValue KEPT[] = {{{', '.join(values)}}};",
        f"struct Held : Kept<AXES, INPUTS, {len(values)}> {{}};",
    ]
    for number, one in enumerate(kept):
        lines += _loop(f"keep{number}", one.program, _rows_read(one.program))
    return lines


def _runs_with_kept(program: Program, stored: Program, kept: Sequence[KeptRows], rows: Rows) -> list[str]:
    """Write a function that computes n cells of a row in the interior, and before them the values to keep.

    stored: the program of the interior that loads these values. rows: read by `program`.
    """
    inputs = len(program.inputs)
    places = [f"p{axis}" for axis in range(program.axes if program.lengths else 0)]

    def value(number: int, row: str, column: int = 0) -> str:
        dtype = memory_type(stored.inputs[number].dtype)
        return f"held.at<{dtype}>(KEPT, {number - inputs}, {row}) + {column}"

    lines = [
        "// first: the cell of the row at which its n cells begin",
        "static void runs_with_kept(int64 n, const char* const* in, const int64 (*strides)[AXES],",
        f"                           int64 first, Held& held, {', '.join(_parameters(program, rows))}) {{",
        "    const bool follows = held.follows(KEPT, in, strides, first, n);",
    ]
    for number, one in enumerate(kept):
        (low, high), (left, right) = one.rows, one.columns
        given = []
        for key in _rows_read(one.program):
            if key[0] >= inputs:
                given.append(value(key[0], f"row + {(0, *key[1])[-1]}", left))
                continue
            dtype, count = memory_type(program.inputs[key[0]].dtype), program.inputs[key[0]].components
            further = f" + row * strides[{key[0]}][AXES - 2]" if program.axes > 1 else ""
            given.append(f"({dtype} const*)({_address(*key)}{further}) + {count} * (first + {left})")
        given += [value(one.first + at, "row", left) for at in range(len(one.program.outputs))]
        lines += [
            f"    for (int64 row = follows ? {high} : {low}; row <= {high}; ++row)",
            f"        keep{number}(n + {right - left}, {', '.join([*given, *places, 'scalars'])});",
        ]
    read = [
        value(key[0], str((0, *key[1])[-1])) if key[0] >= inputs else rows[key] for key in _rows_read(stored)
    ]
    written = [f"o{place}" for place in range(len(program.outputs))]
    return [*lines, f"    runs(n, {', '.join([*read, *written, *places, 'scalars'])});", "}"]


def _row(program: Program, inner: Program, rows: Rows, merged: int, *, kept: bool) -> list[str]:
    """Write the function that computes a row: the cells in the interior, and those before and after them.

    inner: the program of the interior; the same one if all cells are in it. kept: whether it loads values
    that are kept.
    """
    given = [
        (name, f"({memory_type(program.inputs[key[0]].dtype)} const*)({_address(*key)})")
        for key, name in rows.items()
    ]
    given += [
        (f"o{place}", f"({memory_type(one.dtype)}*)out[{place}]") for place, one in enumerate(program.outputs)
    ]
    lines = [
        "static inline void row(const char* const* in, const int64 (*strides)[AXES],",
        "                       char* const* out, int64 n, const Where<AXES>& where) {",
        *(f"    const auto {name} = {text};" for name, text in given),
        *(f"    const Place p{axis} = Place(where.at[{axis}]);" for axis in range(program.axes)),
        "    const uint64* const scalars = where.scalars;",
    ]
    if inner is program:
        n = f"n * {merged}" if merged > 1 else "n"
        loop = f"runs_with_kept({n}, in, strides, 0, where.held, " if kept else f"runs({n}, "
        return [*lines, f"    {loop}{_given(program, rows)});", "}"]

    # The row's cells that are far from the ends of the last axis; whether it is far from those of others.
    last, (*others, (before, after)) = program.axes - 1, _between(program)
    n = f"n * {merged}" if merged > 1 else "n"
    lines += [
        f"    const int64 count = {n};",
        "    int64 begin = 0, end = count;",
    ]
    if (before, after) != (0, program.lengths[last]):
        lines += [
            f"    if (begin < {before} - p{last}) begin = {before} - p{last};",
            f"    if (end > {after}ll - p{last}) end = {after}ll - p{last};",
        ]
    kinds = enumerate(_rows_at_ends(program))
    return [
        *lines,
        "    if (begin >= end) begin = end = count;",
        "    const auto compute = [&](auto&& loop, int64 first, int64 last) {",
        f"        if (last > first) loop(last - first, {_given(program, rows, 'first')});",
        "    };",
        *(
            [
                "    const auto interior = [&](int64 cells, auto... given) {",
                "        runs_with_kept(cells, in, strides, begin, where.held, given...);",
                "    };",
            ]
            if kept
            else []
        ),
        "    const auto parts = [&](auto&& at_ends, auto&& between) {",
        "        compute(at_ends, 0, begin);",
        "        compute(between, begin, end);",
        "        compute(at_ends, end, count);",
        "    };",
        f"    if ({_is_within(others)}) return parts(ends_of_rows, {'interior' if kept else 'runs'});",
        *(
            f"    if ({_is_within(box)}) return parts(cells_at_ends, rows_at_ends{number});"
            for number, box in kinds
        ),
        "    parts(cells_at_ends, cells_at_ends);",
        "}",
    ]


def _between(program: Program) -> list[Range]:
    """Return the positions between the ends, per axis."""
    lengths = zip(program.lengths, ends_of(program), strict=True)
    return [(before, length - after) for length, (before, after) in lengths]


def _rows_at_ends(program: Program) -> list[list[Range]]:
    """Return the rows that are near the ends of other axes, in parts of the same conditions; [] for many."""
    ranges = []
    for length, (first, last) in zip(program.lengths[:-1], _between(program), strict=False):
        ranges.append([(first, last), *((at, at + 1) for at in (*range(first), *range(last, length)))])
    if math.prod(map(len, ranges)) > MOST_PARTS:
        return []
    return [list(box) for box in product(*ranges)][1:]


def _is_within(box: Sequence[Range]) -> str:
    """Return C++ of whether a row is in a box."""
    terms = (f"numpy::inside<{first}, {last}ll, 1>(p{axis})" for axis, (first, last) in enumerate(box))
    return " & ".join(terms) or "true"


def _within(program: Program, box: Sequence[Range]) -> Program:
    """Return the program for the positions of a box: the first one and the one after the last, per axis."""
    first, last = zip(*box, strict=True)
    return replace(program, results=specialised(program.graph, program.results, first, last))


def _loop(name: str, program: Program, rows: Rows) -> list[str]:
    """Write a function that computes n cells.

    If a cell has the sine of a number that is far from 0, all of them are computed again: only the C library
    takes such numbers, and a loop that calls it is not vectorised. Other cells get the same bits as before.
    """
    periodic = any(node.op in PERIODIC for node in program.nodes)
    parameters = ", ".join(_parameters(program, rows))
    lines = [f"static __attribute__((noinline, noclone)) void {name}(int64 n, {parameters}) {{"]
    if periodic:
        lines += ["    uint8 far = 0;", *_over_cells(program, rows, near=True), "    if (!far) return;"]
    return [*lines, *_over_cells(program, rows), "}"]


def _over_cells(program: Program, rows: Rows, *, near: bool = False) -> list[str]:
    """Write the loop over n cells. near: take arguments of PERIODIC as near, and note others in `far`."""
    lines, names = _values(program.nodes, program, rows, near=near)
    for place, (one, result) in enumerate(zip(program.outputs, program.results, strict=True)):
        lines += [
            f"        o{place}[{_place(one.components, component)}] = {names[node]};"
            for component, node in enumerate(result)
        ]
    return ["    for (int64 x = 0; x < n; ++x) {", *lines, "    }"]


def _test(program: Program, test: Node, rows: Rows) -> list[str]:
    """Write a function that tells whether a cell of a segment needs more than the common path."""
    lines, values = _values(in_order([test]), program, rows)
    return [
        f"static inline bool selects(int64 first, {', '.join(_parameters(program, rows))}) {{",
        "    uint8 any = 0;",
        "    for (int64 x = first; x < first + SEGMENT; ++x) {",
        *lines,
        f"        any |= {values[test]};",
        "    }",
        "    return any;",
        "}",
    ]


def _runs(program: Program, rows: Rows, *, tested: bool) -> list[str]:
    """Write a function that computes a row of n cells, in runs of segments.

    The last segment ends with the row, and overlaps the one before: no loop has a rest that is no vector.
    tested: whether `selects` tells which loop computes a segment.
    """
    given = _given(program, rows)
    lines = [
        f"static void runs(int64 n, {', '.join(_parameters(program, rows))}) {{",
        f"    if (n < SEGMENT) return cells(n, {given});",
        "    const int64 tail = n - SEGMENT;",
        "    const auto compute = [&](auto&& loop, int64 first, int64 last) {",
        "        const int64 end = last > n ? last - SEGMENT : last;",
        f"        if (end > first) loop(end - first, {_given(program, rows, 'first')});",
        f"        if (last > n && last > first) loop(SEGMENT, {_given(program, rows, 'tail')});",
        "    };",
    ]
    if not tested:
        return [*lines, "    compute(cells, 0, (n + SEGMENT - 1) / SEGMENT * SEGMENT);", "}"]
    return [
        *lines,
        f"    const auto needs = [&](int64 x) {{ return selects(x < tail ? x : tail, {given}); }};",
        "    for (int64 first = 0, last = 0; first < n; first = last) {",
        "        while (last < n && !needs(last)) last += SEGMENT;",
        "        compute(common_cells, first, last);",
        "        first = last;",
        "        while (last < n && needs(last)) last += SEGMENT;",
        "        compute(cells, first, last);",
        "    }",
        "}",
    ]


def _values(
    nodes: Iterable[Node], program: Program, rows: Rows, *, near: bool = False
) -> tuple[list[str], dict[Node, str]]:
    """Write the values of cell x; return the lines, and the names of the nodes. near: as of `_over_cells`."""
    names: dict[Node, str] = {}
    lines = []
    for number, node in enumerate(nodes):
        if node.op == "load":
            count = program.inputs[node.input].components
            row = rows[node.input, node.offset[:-1]]
            text = f"{row}[{_place(count, node.offset[-1] * count + node.component)}]"
            text += " != 0" if node.dtype.kind == "b" else ""
        elif node.op in PLACES:
            axis = node.value[0]
            text = at_place(node, f"Place(p{axis} + Place(x))" if axis == program.axes - 1 else f"p{axis}")
        elif node.op == "scalar":
            text = slot(node)
        elif near and node.op in PERIODIC:
            kind, argument = ctype(node.dtype), names[node.operands[0]]
            lines.append(f"        far |= numpy::far<{kind}>({argument});")
            text = f"numpy::near_{node.op}<{kind}>({argument})"
        else:
            text = expression(node, names)
        names[node] = f"v{number}"
        lines.append(f"        const {ctype(node.dtype)} v{number} = {text};")
    return lines, names


def _parameters(program: Program, rows: Rows) -> list[str]:
    """Return the parameters of a loop: rows, positions of the first cell, and the slots of scalars."""
    read = [
        f"const {memory_type(program.inputs[number].dtype)}* {name}" for (number, _), name in rows.items()
    ]
    written = [
        f"{memory_type(one.dtype)}* __restrict__ o{place}" for place, one in enumerate(program.outputs)
    ]
    places = [f"Place p{axis}" for axis in range(program.axes if program.lengths else 0)]
    return [*read, *written, *places, "const uint64* scalars"]


def _given(program: Program, rows: Rows, by: str = "") -> str:
    """Return what a loop is given. by: C++ of how many cells its first one lies after the row's first."""
    names = [*rows.values(), *(f"o{place}" for place in range(len(program.outputs)))]
    counts = [program.inputs[number].components for number, _ in rows]
    counts += [one.components for one in program.outputs]
    places = [f"p{axis}" for axis in range(program.axes if program.lengths else 0)]
    if by:
        names = [f"{name} + {_place(count, 0, by)}" for name, count in zip(names, counts, strict=True)]
        places[-1:] = [f"Place({one} + {by})" for one in places[-1:]]
    return ", ".join([*names, *places, "scalars"])


def _place(count: int, element: int, x: str = "x") -> str:
    """Return the index of an element, counted from cell x; count: elements of a cell."""
    return (x if count == 1 else f"{count} * {x}") + (f" + {element}" if element else "")


def _address(number: int, offset: Sequence[int]) -> str:
    terms = [f" + {at}ll * strides[{number}][{axis}]" for axis, at in enumerate(offset) if at]
    return f"in[{number}]{''.join(terms)}"
