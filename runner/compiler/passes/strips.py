"""Values along a row: an expression, the cells for which it is computed, and which of them share a word.

The cells of a thread's row compute the same expression at consecutive places. A `Strip` stands for all of
them, so that neighbours, which are the same values some cells further, are found again, and small elements
can be computed four or two at a time in one 32-bit word (kernels/packed.cuh).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import PLACES, Node, Offset

WORD = 4  # bytes
UNIFORM = ("constant", "scalar")  # leaves that all cells share
LOGIC = {
    "logical_and": "&", "bitwise_and": "&", "multiply": "&", "minimum": "&",
    "logical_or": "|", "bitwise_or": "|", "add": "|", "maximum": "|",
    "logical_xor": "^", "bitwise_xor": "^", "not_equal": "^",
}  # fmt: skip
"""Operations on bools, as those on all bits of a word."""

_COMPARE = frozenset(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
_BITS = frozenset(["bitwise_and", "bitwise_or", "bitwise_xor", "invert"])
_BYTES = _COMPARE | _BITS | {"add", "subtract", "negative", "minimum", "maximum", "where", "positive"}
_PAIRS = _BYTES | {"multiply"}
_HALVES = frozenset(["add", "subtract", "multiply", "negative", "absolute", "where", "positive"])
_BOOLS = frozenset([*LOGIC, "logical_not", "invert", "equal", "where"])


@dataclass(eq=False)
class Strip:
    """One expression at consecutive places of a row.

    Place 0 is the one at which the first element that it needs is that of the thread's first cell.
    node: its operation. operands: and for each, how many places further it is needed. at: of a load, the row,
    relative to the thread's first. lanes: elements in a word if it is computed in words, otherwise 0.
    bound: of a strip that is computed as pairs of bytes (kernels/packed.cuh), the largest value in 16 bits.
    low, high: places that are needed, [low, high). uniform: whether all cells of a row have the same value,
    which is at place 0.
    """

    node: Node
    operands: tuple[tuple[Strip, int], ...]
    at: Offset = ()
    lanes: int = 0
    bound: int = 0
    uniform: bool = False
    low: int = field(default=0, init=False)
    high: int = field(default=0, init=False)

    def need(self, low: int, high: int) -> None:
        """Extend the places that are needed by [low, high)."""
        empty = self.low == self.high
        self.low = low if empty else min(self.low, low)
        self.high = high if empty else max(self.high, high)

    def aligned(self, place: int) -> int:
        """Return the first place of the word that holds a place; of the last word for those after it."""
        word = (min(place, self.high - 1) - self.low) // self.lanes
        return self.low + word * self.lanes


@dataclass(frozen=True)
class PlacedStrip:
    """A result of a row: a strip, and the place of the row's first cell."""

    strip: Strip
    place: int


class Strips:
    """Make strips, one for each distinct expression.

    packed: whether small elements may be computed in words. components: elements of a cell of each input.
    last: the axis along which rows lie.
    """

    def __init__(self, packed: bool, components: list[int], last: int = 0) -> None:
        self._packed, self._components, self._last = packed, components, last
        self._made: dict[Any, Strip] = {}
        self._of: dict[Node, PlacedStrip] = {}
        self.all: list[Strip] = []
        """All strips, operands before their users."""

    def of(self, nodes: Iterable[Node]) -> None:
        """Make the strips of nodes; operands come before their users."""
        for node in nodes:
            if node not in self._of:
                self._of[node] = self._placed(node)

    def __getitem__(self, node: Node) -> PlacedStrip:
        return self._of[node]

    def _placed(self, node: Node) -> PlacedStrip:
        if node.op == "load":
            key: Any = ("load", node.input, node.offset[:-1], node.component)
            return PlacedStrip(self._strip(key, node, (), node.offset[:-1]), node.offset[-1])
        if node.op in PLACES and node.value[0] == self._last:
            return self._along_row(node)
        operands = [self._of[one] for one in node.operands]
        places = [one.place for one in operands if not one.strip.uniform]
        first = min(places, default=0)
        moved = tuple((one.strip, 0 if one.strip.uniform else one.place - first) for one in operands)
        value = node.value.tobytes() if node.op == "constant" else node.value
        key = (node.op, node.dtype.str, value, *moved)
        return PlacedStrip(self._strip(key, node, moved, ()), first)

    def _along_row(self, node: Node) -> PlacedStrip:
        """Return a leaf of positions along the row, counted such that neighbours have the same strip."""
        axis, at, *others = node.value
        if node.op == "place":
            return PlacedStrip(self._strip(("place",), replace(node, value=(axis, 0)), (), ()), at)
        high, step = others
        value = (axis, 0, high - at, step)
        return PlacedStrip(self._strip(("inside", *value), replace(node, value=value), (), ()), -at)

    def _strip(self, key: Any, node: Node, operands: tuple[tuple[Strip, int], ...], at: Offset) -> Strip:
        if key not in self._made:
            lanes = self._lanes(node, [strip for strip, _ in operands]) if self._packed else 0
            uniform = node.op in UNIFORM or (node.op in PLACES and node.value[0] != self._last)
            made = self._made[key] = Strip(node, operands, at, lanes, uniform=uniform)
            made.bound = _bound(made) if lanes == WORD else 0
            self.all.append(made)
        return self._made[key]

    def _lanes(self, node: Node, operands: list[Strip]) -> int:
        """Return how many elements are computed in a word; 0 for each by itself."""
        kind, size = node.dtype.kind, node.dtype.itemsize
        if node.op == "constant":
            return 0
        if node.op == "load":
            return WORD // size if size < WORD and self._components[node.input] == 1 else 0
        varying = [one for one in operands if one.node.op != "constant"]
        lanes = varying[0].lanes if varying else 0
        if not lanes or any(one.lanes != lanes for one in varying):
            return 0
        of = operands[-1].node.dtype  # of the operands; of where, of its values
        if node.op == "cast":
            return lanes if _cast_in_words(of, node.dtype, lanes) else 0
        if of.kind == "b":
            return lanes if node.op in _BOOLS else 0
        if of.itemsize * lanes != WORD:
            return 0
        if of.kind == "f":
            return lanes if node.op in _HALVES else 0
        if node.op == "multiply" and of.itemsize == 1:  # by a number only
            small = [one for one in operands if one.node.op == "constant"]
            return lanes if small else 0
        allowed = _BYTES if of.itemsize == 1 else _PAIRS
        if node.op in allowed and (kind in "iu" or node.op in _COMPARE):
            return lanes
        return 0


BYTE, MOST = 2**8 - 1, 2**16 - 1


def operand_bound(strip: Strip, operand: Strip) -> int:
    """Return the largest value that an operation on pairs takes: of a byte, if sums are too large."""
    bound = operand.bound or BYTE
    return bound if _sum(strip, [one.bound or BYTE for one, _ in strip.operands]) <= MOST else BYTE


def above(bound: int) -> int:
    """Return the least multiple of 256 that is not below a value."""
    return -(-bound // 256) * 256


def _bound(strip: Strip) -> int:
    """Return the largest value of a strip that is computed as pairs; 0 for those that are not."""
    if strip.node.dtype.kind == "b" or strip.node.op not in ("add", "subtract", "negative", "multiply"):
        return 0
    return _sum(strip, [operand_bound(strip, operand) for operand, _ in strip.operands])


def _sum(strip: Strip, bounds: list[int]) -> int:
    """Return the largest result of an operation on pairs."""
    if strip.node.op == "add":
        return sum(bounds)
    if strip.node.op == "multiply":
        return math.prod(
            byte(operand.node) if operand.node.op == "constant" else bound
            for (operand, _), bound in zip(strip.operands, bounds, strict=True)
        )
    return above(bounds[-1]) + sum(bounds[:-1])


def byte(node: Node) -> int:
    """Return the bits of a constant of one byte."""
    return int.from_bytes(node.value.tobytes(), "little")


def _cast_in_words(of: np.dtype[Any], to: np.dtype[Any], lanes: int) -> bool:
    """Return whether a cast leaves elements where they are in their words."""
    if to.kind == "b":
        return of.kind in "iu"
    return to.kind in "iu" and of.kind in "biu" and to.itemsize * lanes == WORD


def find_places(results: Iterable[tuple[PlacedStrip, int]], strips: Strips) -> None:
    """Find the places of all strips that are needed for results of some cells each."""
    for result, cells in results:
        result.strip.need(result.place, result.place + cells)
    for strip in reversed(strips.all):
        for operand, further in strip.operands:
            operand.need(strip.low + further, strip.high + further)
