"""The text of a kernel of several steps: the statements that compute its cells, and what is before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from meshrun.runner.compiler.cuda.steps.layout import Layout, cast, part_of
from meshrun.runner.compiler.operations import KERNELS, at_place, ctype, expression, literal, slot
from meshrun.runner.compiler.passes.branches import Branch, cost, find_branches, write
from meshrun.runner.compiler.passes.ends import specialised
from meshrun.runner.compiler.passes.exact_products import with_exact_products
from meshrun.runner.compiler.passes.kept_stages import KeptStages
from meshrun.runner.compiler.trace.graph import BOOL, PLACES, Graph, Node, Offset, in_order
from meshrun.runner.device.api import HEADERS
from meshrun.runner.region import Shape

Results = tuple[tuple[Node, ...], ...]


def source(
    layout: Layout,
    boundary: str,
    cval: float,
    name: str,
    constants: dict[str, int],
    kept: KeptStages | None = None,
    largest: float = 0.0,
    *,
    sends: bool = False,
) -> str:
    """Return the whole text of a kernel.

    constants: what kernels/*.cuh expect to be defined. kept: the values that the kernel keeps. largest: of
    the elements of fields, if products need not be rounded inside the array (`exact_products`); 0: they are
    everywhere. sends: whether the kernel stores rows into other ranks' halos, over two axes.
    """
    three = layout.program.axes == 3
    numbers = (
        ["height"]
        if three
        else ["height", "lead", "low_tiles", "high_tiles", "tiles", "edge_height", "known"]
    )
    axes = "zxy" if three else "xy"
    pitches = ["planes", "pitch"] if three else ["pitch"]
    fields = []  # C++ type and name of each argument of 64 bits
    planes, singles, pairs = [], list[str](), list[str]()
    for number, plane in enumerate(layout.state):
        kind, operand = ctype(layout.operand(plane).dtype), layout.operand(plane)
        planes.append(f"X({number}, {kind}, {literal(cast(cval, operand.dtype), operand.dtype)})")
        if constants["VECTOR"] == 1 or operand.components == 1:
            singles.append(planes[-1])
        elif plane[1] == 0:
            pairs.append(f"X({number}, {number + 1}, {kind})")
        for side, pointer in (("in", f"const {kind}*"), ("out", f"{kind}*")):
            fields += [(pointer, f"{side}{number}"), *(("int64", f"{side}_{one}{number}") for one in pitches)]
    for number, plane in enumerate(layout.fixed):
        fields.append((f"const {ctype(layout.operand(plane).dtype)}*", f"fixed{number}"))
        fields += [("int64", f"fixed_{one}{number}") for one in pitches]
    fields += _fields_of_sending(layout) if sends else []
    if layout.program.scalars:
        fields.append(("const uint64*", "scalars"))
    given = [*([numbers[0]] if three else numbers), *(f"{axis}{n}" for axis in axes for n in range(5))]
    values = [f"int({one})" for one in numbers]
    alike = dict.fromkeys(
        axes, (0, 0, 0)
    )  # the cells that equal others: the last ones, and those at each end
    for axis, repeated, filled in zip(
        "zyx"[-len(layout.repeats) :], layout.repeats, layout.filled, strict=True
    ):
        alike[axis] = (repeated, *filled)
    for axis in axes:
        values.append(f"{{{', '.join([*(f'int({axis}{n})' for n in range(5)), *map(str, alike[axis])])}}}")
    values += [f"{kind}({name})" if kind == "int64" else f"({kind})({name})" for kind, name in fields]
    signature = ", ".join(f"int64 {one}" for one in [*given, *(one for _, one in fields)])
    texts = _texts(layout, constants, cval, kept, exact=largest > 0)
    kept_rows = []
    if kept:
        for n, (one, lead) in enumerate(zip(kept.operands, kept.leads, strict=True)):
            kept_rows.append(f"X({n}, {ctype(one.dtype)}, {lead})")
    return "\n".join(
        [
            *(f"#define {one} {value}" for one, value in constants.items()),
            f"#define LARGEST {largest.hex()}",
            f"#define BOUNDARY {boundary.upper()}",
            f"#define PLANES(X) {' '.join(planes)}",
            f"#define SINGLES(X) {' '.join(singles)}",
            f"#define PAIRS(X) {' '.join(pairs)}",
            f"#define VALUES(X) {' '.join(kept_rows)}",
            file_text("operations.cuh"),
            *([file_text("flags.cuh", HEADERS)] if sends else []),
            file_text("async_copies.cuh"),
            file_text("steps.cuh"),
            "namespace steps {",
            f"struct Arguments {{ int {', '.join(numbers)}; Axis {', '.join(axes)};",
            *(f"    {kind} {one};" for kind, one in fields),
            "};",
            "}",
            file_text(f"steps_{3 if three else 2}d.cuh"),
            *([file_text("sending_2d.cuh")] if sends else []),
            "namespace steps {",
            *texts,
            "}",
            f"KERNEL({name}, {signature}) {{",
            f"    steps::run{'_and_send' if sends else ''}(steps::Arguments{{{', '.join(values)}}});",
            "}",
            "",
        ]
    )


def _texts(
    layout: Layout, constants: dict[str, int], cval: float, kept: KeptStages | None, *, exact: bool
) -> list[str]:
    """Return the functions that compute a lane's cells.

    kept: the values that the kernel keeps. exact: whether products need not be rounded where there are no
    edges.
    """
    program, graph, axes = layout.program, layout.program.graph, layout.program.axes
    three = axes == 3
    result = (
        "const Planes& planes, int here, const Place& at, Patch& out"
        if three
        else ("Rows& rows, int here, const Place& at, Row& out")
    )

    def text(
        results: Results, *, exactly: bool = False, whole_lanes: bool = False, late: int = 0
    ) -> list[str]:
        one = replace(program, results=results)
        one, at_ends = with_exact_products(one) if exactly else one, results is not layout.interior.results
        return body(layout, one.results, constants, cval, at_ends=at_ends, whole_lanes=whole_lanes, late=late)

    def within(first: int, last: int) -> Results:
        """Return the results for some rows or planes, where conditions along its columns are open."""
        zeros = (0,) * (axes - 1)
        return specialised(graph, program.results, (first, *zeros), (last, *program.lengths[1:]))

    # Which text is for which loop: inside the array, at its ends along all axes but the first, along which
    # conditions are decided, and at any edge.
    # The loop for edges computes kept values again, and keeps those that the loop inside begins with.
    edges, near, keeping = program.results, layout.ends[0], list[str]()
    if kept is None:
        inside = text(layout.interior.results, exactly=exact)
    else:
        computed = with_exact_products(kept.program) if exact else kept.program
        inside = body(layout, computed.results, constants, cval, leads=kept.leads)
        values = kept.program.results[len(layout.feeds) :]
        keeping = ["    move_up(rows, LEVEL - 1);", "    {"]
        keeping += [*body(layout, values, constants, cval, leads=kept.leads), "    }"]
    parts = [("WHERE == INSIDE", inside)]
    if layout.has_ends:
        sides = program.results if axes == 1 else within(near.before, program.lengths[0] - near.after)
        # Over fewer than three axes, lanes of these tiles are within the array, or beyond (`in_whole_lanes`).
        parts.append(("WHERE == SIDES", text(sides, exactly=exact, whole_lanes=not three)))
    elif not three:
        parts = [("!EDGE", inside)]
    if near.late:
        edges = within(near.before, program.lengths[0])
    general = text(edges)
    if axes == 2 and near.before + near.after and layout.ends[1].before + layout.ends[1].after:
        # Most tiles at an end along y are not at one along x, whose conditions are then decided for them.
        first, last = [near.before if near.late else 0, layout.ends[1].before], list(program.lengths)
        last[1] -= layout.ends[1].after
        rows = text(specialised(graph, program.results, tuple(first), tuple(last)))
        of_tile = "near_end(at.all.x, at.column - int(threadIdx.x) % LANES * C)"
        general = [f"    if ({of_tile}) {{", *general, "    } else {", *rows, "    }"]
    general = [*keeping, *general]
    found = [
        "template <Where WHERE, int LEVEL>",
        f"INLINE void compute({result}) {{",
        f"    [[maybe_unused]] constexpr bool EDGE = WHERE {'!= INSIDE' if three else '== EDGES'};",
        *([] if three else ["    [[maybe_unused]] constexpr int RING = EDGE ? SLOTS : PERIOD;"]),
    ]
    if len(parts) == 1 and inside == general:
        found += [*general, "}"]
    else:
        for number, (condition, lines) in enumerate(parts):
            found += [f"    {'} else ' if number else ''}if constexpr ({condition}) {{", *lines]
        found += ["    } else {", *general, "    }", "}"]
    if near.late:
        found += ["template <int LEVEL>", f"INLINE void compute_late({result}) {{"]
        found += [
            "    [[maybe_unused]] constexpr bool EDGE = true;",
            "    [[maybe_unused]] constexpr int RING = SLOTS;",
            *text(within(0, near.before), late=near.late),
            "}",
        ]
    return found


def _fields_of_sending(layout: Layout) -> list[tuple[str, str]]:
    """Return the arguments that kernels/sending_2d.cuh needs, in the order of `layout.Sending.values`."""
    fields = [("State*", "state"), ("u64*", "arrived"), ("u64*", "failure"), ("u64", "patience")]
    fields += [("int64", "near_rows"), ("int64", "strips_near")]
    for side in ("before", "after"):
        fields += [("int64", f"{side}_rank"), ("u64*", f"{side}_count"), ("int64", f"{side}_strips")]
        for number, plane in enumerate(layout.state):
            fields.append((f"{ctype(layout.operand(plane).dtype)}*", f"{side}{number}"))
            fields.append(("int64", f"{side}_rows{number}"))
    return fields


def file_text(name: str, folder: Path = KERNELS) -> str:
    """Return the text of a file of kernels/. Texts that include no files can be cached by their contents."""
    return (folder / name).read_text(encoding="utf-8").replace("#pragma once\n", "")


class LaneCells:
    """The values of a lane's cells, as nodes for the lane's first cell.

    A place or a condition on it is that of a cell, whose distance from the lane's first one is the leaf's
    offset: beyond an array that wraps around, the cells of a lane need not follow each other. columns: of a
    lane, if its first cell is at a multiple of them in the array: a condition on the ends of the last axis is
    then known for most cells of a lane; 0: it may be at any position. lengths: of the array, if any.
    """

    def __init__(self, graph: Graph, columns: int, lengths: Shape) -> None:
        self._graph, self._columns, self._lengths = graph, columns, lengths
        self._leaves: dict[tuple[str, Any, int], Node] = {}

    def moved(self, nodes: Iterable[Node], shift: Offset) -> list[Node]:
        """Return the same values for the cell that is `shift` away."""
        wanted, done = list(nodes), dict[Node, Node]()
        for node in in_order(wanted):
            if node.op in PLACES:
                axis = node.value[0]
                cell = (node.offset[0] if node.offset else 0) + shift[axis]
                if (known := self._known(node, cell)) is not None:
                    done[node] = self._graph.constant(known, BOOL)
                    continue
                leaf = replace(node, offset=(cell,))
                done[node] = self._leaves.setdefault((node.op, node.value, cell), leaf)
            elif node.op == "load":
                offset = tuple(a + b for a, b in zip(node.offset, shift, strict=True))
                done[node] = self._graph.load(node.input, node.dtype, offset, node.component)
            elif all(done[one] is one for one in node.operands):
                done[node] = node
            else:
                operands = [done[one] for one in node.operands]
                done[node] = self._graph.operation(node.op, node.dtype, operands, node.line)
        return [done[node] for node in wanted]

    def _known(self, node: Node, cell: int) -> bool | None:
        """Return a condition if it is the same for the cells of all lanes, so far from the first one."""
        if node.op != "inside" or not self._columns or node.value[0] != len(self._lengths) - 1:
            return None
        _, low, high, step = node.value

        def before(position: int) -> int:
            """Return how many of these cells are before a position of the array."""
            return (position - cell % self._columns + self._columns - 1) // self._columns

        every = before(self._lengths[-1])
        holds = before(min(high, self._lengths[-1])) - before(max(low, 0)) if step == 1 else -1
        return False if holds == 0 else True if holds == every else None

    def home(self, node: Node, axes: int) -> Node:
        """Return a node, moved so that the first that it reads is of the lane's first cell."""
        for leaf in in_order([node]):
            shift = [0] * axes
            if leaf.op == "load":
                shift = [-at for at in leaf.offset]
            elif leaf.op in PLACES:
                shift[leaf.value[0]] = -leaf.offset[0]
            else:
                continue
            return self.moved([node], tuple(shift))[0]
        return node


@dataclass
class Writer:
    """Write the statements that compute nodes, each node once.

    columns, rows: of a lane. at_ends: whether they are for cells near the array's ends: there, a condition on
    the place holds for some lane of nearly all warps, and is worth no branch.
    """

    layout: Layout
    columns: int
    rows: int
    cval: float
    cells: LaneCells
    at_ends: bool

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[Node, str] = {}
        self._declared = 0
        self._reads: dict[Node, tuple[int, int] | None] = {}
        self._others: dict[Node, Node | None] = {}
        self._lines_of_memory: set[str] = set()
        self._branches: dict[Node, Branch[Node]] = {}

    def plan(self, results: Iterable[Node]) -> None:
        """Find the branches. results: all that will be written."""
        axes = self.layout.program.axes

        def condition(node: Node) -> Node | None:
            if node.op != "where" or self._is_of_other_lane(node):
                return None
            if self.at_ends and node.operands[0].op == "inside":
                return None
            return self.cells.home(node.operands[0], axes)

        self._branches = find_branches(results, self._needs, condition, cost, self._is_of_other_lane)

    def name(self, wanted: Node, plain: bool = False) -> str:
        """Write the statements that compute a node, and return the variable that holds it.

        plain: without branches.
        """
        waiting = [wanted]
        while waiting:
            node = waiting[-1]
            if node in self._names:
                waiting.pop()
                continue
            branch = None if plain else self._branches.get(node)
            needs = branch.before if branch else self._needs(node)
            missing = [one for one in needs if one not in self._names]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if branch:
                self._branch(branch)
            else:
                text, name = self._text(node), self._declare(node)
                self._names[node] = name
                self.lines.append(f"    const {ctype(node.dtype)} {name} = {text};")
        return self._names[wanted]

    def _branch(self, branch: Branch[Node]) -> None:
        """Write a branch, which all threads of a warp take or none: they exchange values after it."""
        outside = frozenset(self._lines_of_memory)

        def leave() -> None:
            self._lines_of_memory = set(outside)

        write(
            branch,
            self._needs,
            self.name,
            _kind,
            self._declare,
            self.lines,
            self._names,
            "in_any_lane",
            leave,
        )

    def _declare(self, _: Node) -> str:
        self._declared += 1
        return f"v{self._declared - 1}"

    def _needs(self, node: Node) -> Sequence[Node]:
        other = self._of_other_lane(node)
        return node.operands if other is None else (other,)

    def _is_of_other_lane(self, node: Node) -> bool:
        return self._of_other_lane(node) is not None

    def _text(self, node: Node) -> str:
        other, reads = self._of_other_lane(node), self._reads_of(node)
        if other is not None and reads is not None:
            return f"from_{'left' if reads[1] < 0 else 'right'}({self._names[other]})"
        if node.op == "load":
            return self._load(node)
        if node.op in PLACES:
            return self._place(node)
        if node.op == "scalar":
            # A row of slots for each step.
            self._declare_once("const uint64* scalars", "at.all.scalars + (LEVEL - 1) * SCALARS")
            return slot(node)
        return expression(node, {one: self._names[one] for one in node.operands})

    def _of_other_lane(self, node: Node) -> Node | None:
        """Return the equal node of the next lane, if the node reads that lane's cells only."""
        if node not in self._others:
            reads = self._reads_of(node)
            if reads is None or (reads[1] >= 0 and reads[0] < self.columns):
                self._others[node] = None
            else:
                shift = self.columns if reads[1] < 0 else -self.columns
                far = (0,) * (self.layout.program.axes - 1)
                self._others[node] = self.cells.moved([node], (*far, shift))[0]
        return self._others[node]

    def _reads_of(self, node: Node) -> tuple[int, int] | None:
        return node_reads(node, self._reads, self.layout.program.axes - 1)

    def _place(self, node: Node) -> str:
        """Return the value of a place or of a condition on it."""
        letter = "zyx"[node.value[0] - self.layout.program.axes]
        own, (cell,) = {"z": "plane", "y": "row", "x": "column"}[letter], node.offset
        line = self._line(f"at_{letter}", [cell])
        # At the ends, registers for what is the same for all rows are better used otherwise.
        first = f"opaque(at.{own})" if self.at_ends else f"at.{own}"
        self._declare_once(f"const int {line}", f"at.all.{letter}.position({first} + {cell})")
        return at_place(node, line)

    def _declare_once(self, variable: str, text: str) -> None:
        """Write a variable's declaration, unless there is one that can be seen here."""
        if variable not in self._lines_of_memory:
            self._lines_of_memory.add(variable)
            self.lines.append(f"    {variable} = {text};")

    def _load(self, node: Node) -> str:
        *others, column = node.offset
        first, *middle = others or [0]
        plane = (node.input, node.component)
        kept = node.input - len(self.layout.program.inputs)
        if kept >= 0:
            return f"rows.value{kept}[LEVEL - 1][modulo(here + {first}, RING)][{column}]"
        operand = self.layout.operand(plane)
        kind, constant = ctype(operand.dtype), literal(cast(self.cval, operand.dtype), operand.dtype)
        if plane in self.layout.state:
            number = self.layout.state.index(plane)
            if not middle and first < -self.layout.radius[0]:
                row = first + self.layout.radius[0] + self.layout.ends[0].kept
                return f"rows.kept{number}[LEVEL - 1][{row}][{column}]"
            if not middle:
                return f"rows.w{number}[LEVEL - 1][modulo(here + {first}, RING)][{column}]"
            if 0 <= middle[0] < self.rows:
                cell = middle[0] * self.columns + column
                return f"planes.w{number}[LEVEL - 1][modulo(here + {first}, SLOTS)][{cell}]"
            line = self._line(f"b{number}", others)
            text = f"beside<LEVEL, {kind}>(at, SHARED{number}, here, {first}, {middle[0]})"
        elif middle:
            number = self.layout.fixed.index(plane)
            line = self._line(f"f{number}", others)
            pointer = self._line(f"p{number}", others[:1])
            given = f"at.all.fixed{number}, at.all.fixed_planes{number}, at, at.plane + {first}"
            self._declare_once(f"const {kind}* {pointer}", f"plane_of<EDGE>({given})")
            given = f"int(at.all.fixed_pitch{number}), {operand.components}, at, {middle[0]}, {constant}"
            text = f"fixed<EDGE, {part_of(operand, node.component)}>({pointer}, {given})"
        else:
            number = self.layout.fixed.index(plane)
            line = self._line(f"f{number}", others)
            pointers = ", ".join(f"at.all.{one}{number}" for one in ("fixed", "fixed_pitch"))
            away = ", ".join(map(str, others or [0]))
            given = f"{operand.components}, at, {away}, {constant}"
            text = f"fixed<EDGE, {part_of(operand, node.component)}>({pointers}, {given})"
        self._declare_once(f"const Lane<{kind}> {line}", text)
        return f"{line}.v[{column}]"

    def _line(self, start: str, others: Sequence[int]) -> str:
        return "_".join([start, *(f"{'m' if one < 0 else 'p'}{abs(one)}" for one in others)])


def _kind(node: Node) -> str:
    return ctype(node.dtype)


def node_reads(
    node: Node, known: dict[Node, tuple[int, int] | None], last: int = -1
) -> tuple[int, int] | None:
    """Return the first and last column that a node reads; None if it reads none.

    known: earlier results. last: the last axis. A lane's own cells have the places along it.
    """
    waiting = [node]
    while waiting:
        one = waiting[-1]
        missing = [operand for operand in one.operands if operand not in known]
        if one in known or not missing:
            waiting.pop()
            parts = [known[operand] for operand in one.operands]
            found = [part for part in parts if part is not None]
            if one.op == "load":
                known[one] = one.offset[-1], one.offset[-1]
            elif one.op in PLACES and one.value[0] == last:
                known[one] = 0, 0
            else:
                known[one] = (min(a for a, _ in found), max(b for _, b in found)) if found else None
        waiting += missing
    return known[node]


def body(
    layout: Layout,
    results: Results,
    constants: dict[str, int],
    cval: float,
    *,
    leads: Sequence[int] = (),
    at_ends: bool = False,
    whole_lanes: bool = False,
    late: int = 0,
) -> list[str]:
    """Return the statements that compute a lane's cells of all planes.

    results: of the layout's planes, if any, and then kept values. leads: of the values, as of `KeptStages`.
    at_ends: as of `Writer`. whole_lanes: whether lanes begin at multiples of their columns in the array.
    late: how many rows further up the cells are than the lane's row.
    """
    rows, columns = constants.get("H", 1), constants["C"]
    program, outputs = layout.program, len(results) - len(leads)
    lane = LaneCells(program.graph, columns if whole_lanes else 0, program.lengths)
    writer = Writer(layout, columns, rows, cval, lane, at_ends)
    cells = []  # plane and cell of a result, and its node
    for row, column in product(range(rows), range(columns)):
        shift = {1: (column,), 2: (-late, column), 3: (0, row, column)}[program.axes]
        for place, result in zip(layout.feeds, results[:outputs], strict=outputs > 0):
            for component, node in enumerate(lane.moved(result, shift)):
                number = layout.state.index((place, component))
                cells.append((number, row * columns + column, node))
    # A kept value is written before what reads it, also before a branch in which that is computed.
    for number, (lead, result) in enumerate(zip(leads, results[outputs:], strict=True)):
        nodes = [lane.moved(result, (lead, column))[0] for column in range(columns)]
        writer.plan(nodes)
        row_of = f"rows.value{number}[LEVEL - 1][modulo(here + {lead}, RING)]"
        writer.lines += [
            f"    {row_of}[{column}] = {writer.name(node)};" for column, node in enumerate(nodes)
        ]
    writer.plan(node for *_, node in cells)
    ends = [f"    out.w{number}[{cell}] = {writer.name(node)};" for number, cell, node in cells]
    return writer.lines + ends
