"""Write the values of strips as C++: single elements, and words of small ones (kernels/packed.cuh)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshrun.runner.compiler.operations import at_place, ctype, expression, slot
from meshrun.runner.compiler.passes.branches import (
    Branch,
    Conditions,
    common_values,
    cost,
    find_branches,
    write,
)
from meshrun.runner.compiler.passes.strips import BYTE, LOGIC, WORD, Strip, Strips, above, byte, operand_bound
from meshrun.runner.compiler.trace.graph import PLACES, Node, Offset, Operand, Program

Row = tuple[int, Offset]
"""An input and a row of it, relative to the thread's first."""


class Value(NamedTuple):
    """What a variable of a thread holds: elements of a strip from `place` on.

    form: "scalar", one element. "word", as many as it has lanes. "pair", those of a word of bytes, apart.
    "memory", a word as it is stored.
    """

    form: str
    strip: Strip
    place: int


class Leaves(NamedTuple):
    """What the leaves of a program are read from.

    inputs: of the program. places: C++ of the position in the whole array of the thread's first cell, per
    axis.
    """

    inputs: Sequence[Operand]
    places: Sequence[str]


@dataclass(frozen=True)
class _Recipe:
    """How a value is computed. write: return its C++ for the names of what it needs. kind: the type of a
    variable for it, or "" without one."""

    needs: Sequence[Value]
    write: Callable[[Sequence[str]], str]
    kind: str = ""


class Values:
    """Write values and what they need, each once: what few cells need, in branches.

    lines: what was written. rows: of the inputs that are read, the number of each. What most cells need is
    read before all else: windows has, of rows of small elements, the first and last ones; loaded has, of the
    other rows, the elements. What few cells need is read in their branch. places: of `Leaves`.
    """

    def __init__(self, program: Program, strips: Strips, places: Sequence[str] = ()) -> None:
        self._leaves = Leaves(program.inputs, places)
        self._conditions = Conditions(program.graph)
        self._names: dict[Value, str] = {}
        self._recipes: dict[Value, _Recipe] = {}
        self._branches: dict[Value, Branch[Value]] = {}
        self._declared = 0
        self.lines = list[str]()
        self.windows: dict[Row, tuple[int, int]] = {}
        loads = [(one, range(one.low, one.high)) for one in strips.all if one.node.op == "load"]
        self._find_windows((strip, place) for strip, places in loads for place in places)
        self.rows = {
            row: number for number, row in enumerate(sorted(self.windows, key=lambda row: row[::-1]))
        }
        self.loaded: dict[Row, set[int]] = {row: set() for row in self.rows}

    def _find_windows(self, loads: Iterable[tuple[Strip, int]]) -> None:
        """Find the windows that hold these places of loads."""
        self.windows.clear()
        for strip, place in loads:
            row, element = self._row(strip), self._element_of(strip, place)
            first, last = self.windows.get(row, (element, element))
            self.windows[row] = min(element, first), max(element, last)

    def _row(self, strip: Strip) -> Row:
        return strip.node.input, strip.at

    def _element_of(self, strip: Strip, place: int) -> int:
        """Return the element of a row that a load reads for a place."""
        return place * self._leaves.inputs[strip.node.input].components + strip.node.component

    def plan(self, results: Iterable[Value], address: Callable[[Row, int], str] | None = None) -> None:
        """Find the branches. results: all that will be written.

        address: returns the C++ of the address of an element of a row. Loads that only branches need are then
        written there.
        """
        results = tuple(results)
        self._branches = find_branches(
            results, self._needs, self._condition, lambda one: cost(one.strip.node)
        )
        if address is None or not self._branches:
            return
        everywhere = set(common_values(results, self._needs, self._branches))
        in_words = {
            self._row(one.strip) for one in self._recipes if one.strip.node.op == "load" and one.strip.lanes
        }
        late = [
            one for one in self._recipes
            if one.strip.node.op == "load" and one not in everywhere and self._row(one.strip) not in in_words
        ]  # fmt: skip
        read = (self._reads(one) for one in self._recipes.keys() - set(late))
        windows = dict(self.windows)
        self._find_windows(one for one in read if one)
        self.windows |= {row: windows[row] for row in in_words}
        self._recipes = {one: self._late_load(one, address) for one in late}

    def _reads(self, value: Value) -> tuple[Strip, int] | None:
        """Return the load whose element a value is, or is computed from without a variable for it."""
        _, strip, place = value
        if strip.node.op != "load" and _is_float_of_small(strip):
            ((strip, further),) = strip.operands
            place += further
        return (strip, place) if strip.node.op == "load" else None

    def _late_load(self, value: Value, address: Callable[[Row, int], str]) -> _Recipe:
        _, strip, place = value
        operand = self._leaves.inputs[strip.node.input]
        at = address(self._row(strip), self._element_of(strip, place))
        kind, bits = ctype(operand.dtype), 8 * operand.dtype.itemsize
        if operand.dtype.itemsize >= WORD:
            return _Recipe([], lambda _: f"__ldg({at})", kind)
        word = f"fetch_few<1>(reinterpret_cast<const uint{bits}*>({at})).words[0]"
        if kind == "bool":
            return _Recipe([], lambda _: f"packed::element<uint8, 0>({word}) != 0", kind)
        return _Recipe([], lambda _: f"packed::element<{kind}, 0>({word})", kind)

    @property
    def branches(self) -> int:
        """Return the number of branches."""
        return len(set(map(id, self._branches.values())))

    def name(self, wanted: Value, plain: bool = False) -> str:
        """Write what a value needs and is not written yet, then the value; return its name.

        plain: without branches.
        """
        stack = [wanted]
        while stack:
            value = stack[-1]
            if value in self._names:
                stack.pop()
                continue
            branch = None if plain else self._branches.get(value)
            needs = branch.before if branch else self._needs(value)
            missing = [one for one in needs if one not in self._names]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if branch:
                write(branch, self._needs, self.name, _ctype, self._declare, self.lines, self._names)
            else:
                self._write(value)
        return self._names[wanted]

    def _write(self, value: Value) -> None:
        recipe = self._recipe(value)
        text = recipe.write([self._names[one] for one in recipe.needs])
        if recipe.kind:
            name = self._declare(value)
            self.lines.append(f"const {recipe.kind} {name} = {text};")
            text = name
        self._names[value] = text

    def _declare(self, _: Value) -> str:
        self._declared += 1
        return f"v{self._declared}"

    def _needs(self, value: Value) -> Sequence[Value]:
        return self._recipe(value).needs

    def _condition(self, value: Value) -> Node | None:
        strip = value.strip
        if value.form != "scalar" or strip.lanes or strip.node.op != "where":
            return None
        return self._conditions(strip.node.operands[0])

    def _recipe(self, value: Value) -> _Recipe:
        if value not in self._recipes:
            self._recipes[value] = self._new_recipe(value)
        return self._recipes[value]

    def _new_recipe(self, value: Value) -> _Recipe:
        _, strip, place = value
        if value.form == "memory":
            return self._stored(strip, place)
        if strip.node.op == "constant":
            return self._constant(value)
        if value.form == "scalar":
            return self._scalar(strip, place)
        aligned = strip.aligned(place)
        if aligned != place:
            after = strip.aligned(place + strip.lanes)
            of = "" if value.form == "pair" else f"{WORD // strip.lanes}, "
            function = f"packed::from<{of}{place - aligned}>"
            return _call(function, [Value(value.form, strip, one) for one in (aligned, after)], _kind(value))
        return self._pair(strip, place) if value.form == "pair" else self._word(strip, place)

    def _stored(self, strip: Strip, place: int) -> _Recipe:
        """A word as it is stored."""
        node, lanes = strip.node, WORD // strip.node.dtype.itemsize
        if strip.lanes == lanes:
            word = [Value("word", strip, place)]
            return _call("packed::ones<1>", word) if node.dtype.kind == "b" else _Recipe(word, _first)
        function = f"packed::gather<{ctype(node.dtype)}>"
        if node.op == "cast" and node.dtype == np.float16 and node.operands[0].dtype == np.float32:
            ((strip, further),) = strip.operands
            function, place = "packed::halves", place + further
        return _call(function, [Value("scalar", strip, place + lane) for lane in range(lanes)])

    def _constant(self, value: Value) -> _Recipe:
        node = value.strip.node
        if value.form == "scalar":
            return _Recipe([], lambda _: expression(node, {}))
        if value.form == "pair":
            return _call("packed::split", [value._replace(form="word")], "packed::Pair")
        return _Recipe([], lambda _: f"{_pattern(node)}u")

    def _scalar(self, strip: Strip, place: int) -> _Recipe:
        node, kind = strip.node, ctype(strip.node.dtype)
        if strip.lanes:
            word, lane = _part(strip, place)
            function = (
                f"packed::flag<{WORD // strip.lanes}, " if kind == "bool" else f"packed::element<{kind}, "
            )
            return _call(f"{function}{lane}>", [word], kind)
        if node.op == "load":
            return self._element(strip, place)
        if _is_float_of_small(strip):
            ((operand, further),) = strip.operands
            of = ctype(operand.node.dtype)
            if operand.lanes:
                word, lane = _part(operand, place + further)
                return _call(f"packed::as_float<{of}, {lane}>", [word], kind)
            text, lane = self._part_of_row(operand, place + further)
            return _Recipe([], lambda _: f"packed::as_float<{of}, {lane}>({text})", kind)
        if node.op == "scalar":
            return _Recipe([], lambda _: slot(node), kind)
        if node.op in PLACES:
            cell = self._leaves.places[node.value[0]] + (f" + {place}" if not strip.uniform and place else "")
            return _Recipe([], lambda _: at_place(node, cell), kind)
        needs = [
            Value("scalar", one, 0 if one.uniform else place + further) for one, further in strip.operands
        ]
        return _Recipe(
            needs,
            lambda names: expression(node, dict(zip(node.operands, names, strict=True))),
            kind,
        )

    def _element(self, strip: Strip, place: int) -> _Recipe:
        """An element of a row that is read by elements, or by words that hold parts of cells."""
        operand, row = self._leaves.inputs[strip.node.input], self._row(strip)
        if operand.dtype.itemsize >= WORD:
            element = self._element_of(strip, place)
            return _Recipe([], lambda _: self._hoisted(row, element))
        word, lane = self._part_of_row(strip, place)
        if operand.dtype.kind == "b":
            return _Recipe([], lambda _: f"packed::element<uint8, {lane}>({word}) != 0", "bool")
        kind = ctype(operand.dtype)
        return _Recipe([], lambda _: f"packed::element<{kind}, {lane}>({word})", kind)

    def _hoisted(self, row: Row, element: int) -> str:
        """Return the name of an element that is read before all else."""
        self.loaded[row].add(element)
        return element_name(self.rows[row], element)

    def _part_of_row(self, strip: Strip, place: int) -> tuple[str, int]:
        """Return the word of a row of small elements that holds one, and which of them it is."""
        operand, row = self._leaves.inputs[strip.node.input], self._row(strip)
        element = self._element_of(strip, place) - self.windows[row][0]
        word, lane = divmod(element, WORD // operand.dtype.itemsize)
        return f"row{self.rows[row]}.words[{word}]", lane

    def _word(self, strip: Strip, place: int) -> _Recipe:
        node = strip.node
        if node.op == "load":
            word, _ = self._part_of_row(strip, place)
            if node.dtype.kind == "b":
                return _Recipe([], lambda _: f"packed::not_equal<uint8>({word}, 0u)", "uint32")
            return _Recipe([], lambda _: word)
        if strip.bound:
            return _call("packed::join", [Value("pair", strip, place)], "uint32")
        needs = [Value("word", one, place + further) for one, further in strip.operands]
        return _Recipe(needs, lambda names: _packed(node, names), "uint32")

    def _pair(self, strip: Strip, place: int) -> _Recipe:
        if not strip.bound:
            return _call("packed::split", [Value("word", strip, place)], "packed::Pair")
        bounds = [operand_bound(strip, one) for one, _ in strip.operands]
        factors = [byte(one.node) for one, _ in strip.operands if one.node.op == "constant"]
        op, scaled = strip.node.op, strip.node.op == "multiply"
        needs = [
            Value("pair" if bound == (one.bound or BYTE) else "word", one, place + further)
            for bound, (one, further) in zip(bounds, strip.operands, strict=True)
            if not (scaled and one.node.op == "constant")
        ]

        def write(names: Sequence[str]) -> str:
            pairs = [
                name if one.form == "pair" else f"packed::split({name})"
                for one, name in zip(needs, names, strict=True)
            ]
            if scaled:
                return f"packed::scaled<{factors[0]}u>({pairs[0]})"
            if op == "add":
                return f"packed::add({', '.join(pairs)})"
            from_pair = pairs[0] if op == "subtract" else "{0, 0}"
            return f"packed::subtract<{above(bounds[-1])}u>({from_pair}, {pairs[-1]})"

        return _Recipe(needs, write, "packed::Pair")


def element_name(row: int, element: int) -> str:
    """Return the name of an element of a row that is read by elements."""
    return f"e{row}_{element}".replace("-", "m")


def unit_name(row: int, first: int, count: int) -> str:
    """Return the name of what one load reads, of so many elements from `first` on."""
    return f"u{row}_{first}".replace("-", "m") if count > 1 else element_name(row, first)


def _first(names: Sequence[str]) -> str:
    return names[0]


def _ctype(value: Value) -> str:
    return ctype(value.strip.node.dtype)


def _kind(value: Value) -> str:
    return "packed::Pair" if value.form == "pair" else "uint32"


def _call(function: str, needs: Sequence[Value], kind: str = "") -> _Recipe:
    return _Recipe(needs, lambda names: f"{function}({', '.join(names)})", kind)


def _part(strip: Strip, place: int) -> tuple[Value, int]:
    """Return the word that holds a place, and which of its elements that is."""
    aligned = strip.aligned(place)
    return Value("word", strip, aligned), place - aligned


def _is_float_of_small(strip: Strip) -> bool:
    """Return whether a strip is the float32 of small integers that are in words."""
    if strip.node.op != "cast" or strip.node.dtype != np.float32:
        return False
    ((operand, _),) = strip.operands
    small = operand.node.dtype.kind in "iu" and operand.node.dtype.itemsize < WORD
    return small and (operand.lanes > 0 or operand.node.op == "load")


def _pattern(node: Node) -> int:
    """Return a word of a small constant in all elements."""
    if node.dtype.kind == "b":
        return 0xFFFFFFFF if node.value else 0
    bits = int.from_bytes(node.value.tobytes(), "little")
    return bits * (0x01010101 if node.dtype.itemsize == 1 else 0x00010001)


def _packed(node: Node, names: Sequence[str]) -> str:
    """Return the C++ of an operation on words of small elements. names: of its operands."""
    of = node.operands[-1].dtype
    if node.op == "cast":
        if node.dtype.kind == "b":
            return f"packed::not_equal<{ctype(of)}>({names[0]}, 0u)"
        return f"packed::ones<{node.dtype.itemsize}>({names[0]})" if of.kind == "b" else names[0]
    if node.op == "positive":
        return names[0]
    if node.op in ("invert", "logical_not"):
        return f"~{names[0]}"
    if node.op.startswith("bitwise") or (of.kind == "b" and node.op in LOGIC):
        return f" {LOGIC[node.op]} ".join(names)
    if of.kind == "b":
        return (
            f"~({names[0]} ^ {names[1]})"
            if node.op == "equal"
            else f"packed::where_flags({', '.join(names)})"
        )
    return f"packed::{node.op}<{ctype(of)}>({', '.join(names)})"
