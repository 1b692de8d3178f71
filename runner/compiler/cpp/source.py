"""Write traced programs as C++ for the host's processor: a loop over a row for each, in kernels/host.cpp.

Where few cells need much (`branches.common_path`), a row is computed in runs of segments: those in which no
cell needs it by a loop that leaves it out, the others by the loop that computes all. Both loops are
vectorised, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshrun.runner.compiler.operations import HEADER, KERNELS, ctype, expression
from meshrun.runner.compiler.passes.branches import common_path
from meshrun.runner.compiler.trace.graph import Node, Operand, Program, in_order, merge_components

MOST_STEPS = 256  # of one call
Rows = dict[tuple[int, tuple[int, ...]], str]
"""Names of the rows that are read: of an input, at an offset along the leading axes."""


def source(programs: Sequence[Program]) -> str:
    """Return the C++ text of a library of programs."""
    skeleton = (KERNELS / "host.cpp").read_text()
    texts = [
        skeleton.replace("@cells", _cells(*merge_components(program))).replace("@number", str(number))
        for number, program in enumerate(programs)
    ]
    return "\n".join((HEADER.read_text(), *texts))


def _cells(program: Program, merged: int) -> str:
    """Write what computes a row.

    merged: elements that a cell had before its trailing axes became part of the row.
    """
    rows: Rows = {}
    for node in program.loads:
        rows.setdefault((node.input, node.offset[:-1]), f"r{len(rows)}")
    given = [f"({ctype(program.inputs[key[0]].dtype)} const*)({_address(*key)})" for key in rows]
    given += [f"({ctype(one.dtype)}*)out[{place}]" for place, one in enumerate(program.outputs)]
    n = f"n * {merged}" if merged > 1 else "n"
    common = common_path(program)
    lines = [
        f"constexpr int AXES = {program.axes}, INPUTS = {len(program.inputs)}, "
        f"OUTPUTS = {len(program.outputs)};",
        f"constexpr int MOST_STEPS = {MOST_STEPS};",
        *_loop("cells", program, rows),
    ]
    if common:
        lines += [*_loop("common_cells", common.program, rows), *_test(program, common.test, rows)]
    lines += [
        *_runs(program, rows, tested=common is not None),
        "static inline void row(const char* const* in, const int64 (*strides)[AXES],",
        "                       char* const* out, int64 n) {",
        f"    runs({n}, {', '.join(given)});",
        "}",
    ]
    return "\n".join(lines)


def _loop(name: str, program: Program, rows: Rows) -> list[str]:
    """Write a function that computes n cells."""
    lines, names = _values(program.nodes, program.inputs, rows)
    for place, (one, result) in enumerate(zip(program.outputs, program.results, strict=True)):
        lines += [
            f"        o{place}[{_place(one.components, component)}] = {names[node]};"
            for component, node in enumerate(result)
        ]
    parameters = ", ".join(_parameters(program, rows))
    return [
        f"static __attribute__((noinline, noclone)) void {name}(int64 n, {parameters}) {{",
        "    for (int64 x = 0; x < n; ++x) {",
        *lines,
        "    }",
        "}",
    ]


def _test(program: Program, test: Node, rows: Rows) -> list[str]:
    """Write a function that tells whether a cell of a segment needs more than the common path."""
    lines, values = _values(in_order([test]), program.inputs, rows)
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
    names = [*rows.values(), *(f"o{place}" for place in range(len(program.outputs)))]
    counts = [program.inputs[number].components for number, _ in rows]
    counts += [one.components for one in program.outputs]

    def moved(by: str) -> str:
        pairs = zip(names, counts, strict=True)
        return ", ".join(f"{name} + {_place(count, 0, by)}" for name, count in pairs)

    given = ", ".join(names)
    lines = [
        f"static void runs(int64 n, {', '.join(_parameters(program, rows))}) {{",
        f"    if (n < SEGMENT) return cells(n, {given});",
        "    const int64 tail = n - SEGMENT;",
        "    const auto compute = [&](auto&& loop, int64 first, int64 last) {",
        "        const int64 end = last > n ? last - SEGMENT : last;",
        f"        if (end > first) loop(end - first, {moved('first')});",
        f"        if (last > n && last > first) loop(SEGMENT, {moved('tail')});",
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
    nodes: Iterable[Node], inputs: Sequence[Operand], rows: Rows
) -> tuple[list[str], dict[Node, str]]:
    """Write the values of cell x; return the lines, and the names of the nodes."""
    names: dict[Node, str] = {}
    lines = []
    for number, node in enumerate(nodes):
        if node.op == "load":
            count = inputs[node.input].components
            row = rows[node.input, node.offset[:-1]]
            text = f"{row}[{_place(count, node.offset[-1] * count + node.component)}]"
        else:
            text = expression(node, names)
        names[node] = f"v{number}"
        lines.append(f"        const {ctype(node.dtype)} v{number} = {text};")
    return lines, names


def _parameters(program: Program, rows: Rows) -> list[str]:
    read = [f"const {ctype(program.inputs[number].dtype)}* {name}" for (number, _), name in rows.items()]
    written = [f"{ctype(one.dtype)}* __restrict__ o{place}" for place, one in enumerate(program.outputs)]
    return read + written


def _place(count: int, element: int, x: str = "x") -> str:
    """Return the index of an element, counted from cell x; count: elements of a cell."""
    return (x if count == 1 else f"{count} * {x}") + (f" + {element}" if element else "")


def _address(number: int, offset: Sequence[int]) -> str:
    terms = [f" + {at}ll * strides[{number}][{axis}]" for axis, at in enumerate(offset) if at]
    return f"in[{number}]{''.join(terms)}"
