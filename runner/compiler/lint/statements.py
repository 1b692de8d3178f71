"""Statements by which a function's result may depend on how its array is cut, by kind."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from meshrun.runner.compiler.lint.source import (
    FunctionSource,
    dotted,
    functions_of,
    integer,
    is_carried,
    parts_of,
    source_of,
)
from meshrun.runner.compiler.trace.whole_axes import WHOLE_AXES

_FILTERS = """
    binary_closing binary_dilation binary_erosion binary_fill_holes binary_opening convolve convolve1d
    convolve2d correlate correlate1d correlate2d distance_transform_edt fftconvolve gaussian_filter
    gaussian_filter1d gaussian_gradient_magnitude gaussian_laplace generic_filter grey_closing grey_dilation
    grey_erosion grey_opening label laplace maximum_filter median_filter medfilt medfilt2d minimum_filter
    morphological_gradient percentile_filter prewitt rank_filter rotate shift sobel uniform_filter
    uniform_filter1d wiener zoom
"""
FILTERS = frozenset(_FILTERS.split())  # of SciPy's, which read the neighbours of a cell
_DRAWS = """
    choice integers normal permutation permuted rand randint randn random random_sample shuffle
    standard_normal time perf_counter uuid4 urandom
"""
DRAWS = frozenset(_DRAWS.split())  # functions that return something else at each call
PLACED = frozenset(
    ["arange", "fromfunction", "indices", "linspace", "logspace", "meshgrid", "mgrid", "ogrid"]
)
PUTS = frozenset(["fill_diagonal", "itemset", "place", "put", "put_along_axis", "putmask"])
RANKS = (["here", "rank"], ["here", "size"], ["here", "host"])
CHANGES = frozenset(["append", "add", "extend", "insert", "pop", "remove", "setdefault", "update"])
REDUCTIONS = frozenset([*WHOLE_AXES, "reduce", "accumulate", "reduceat"])


class Kind(Enum):
    """What a statement does, to write behind its text."""

    RANK = "depends on the rank that computes the block"
    CELL = "writes cells by their index in a block, not in the array"
    STATE = "keeps a value from one call to the next"
    DRAW = "returns something else at each call or for each block"
    LOOP = "carries values along the cells of one block"
    WHOLE = "takes the cells of one block"
    PLACE = "begins anew in each block"
    STRIDE = "counts from the first cell of each block"
    FILTER = "reads neighbours that are not in the block"
    READ = "takes cells by their index in a block, not in the array"
    LENGTH = "uses the length of one block"


@dataclass(frozen=True)
class Statement:
    """A statement of a kind. node: the part of it that is of the kind. index: of the cells that it takes;
    None: of all, or not known."""

    kind: Kind
    source: FunctionSource
    node: ast.AST
    index: ast.expr | None = None

    @property
    def line(self) -> int:
        return self.source.line_of(self.node)

    @property
    def text(self) -> str:
        return self.source.text_of(self.node)

    def is_along(self, axis: int, axes: int) -> bool:
        """Return whether the statement takes certain cells along `axis` of so many, or is not about cells."""
        if self.index is None:
            return True
        element = element_of(self.index, axis, axes)
        if isinstance(element, ast.Slice):
            return any(end is not None for end in (element.lower, element.upper, element.step))
        is_all = isinstance(element, ast.Constant) and element.value in (None, ...)
        return element is not None and not is_all and not _is_condition(element)


def _is_condition(element: ast.expr) -> bool:
    """Return whether an index is written as a condition on cells."""
    if isinstance(element, ast.UnaryOp):
        return isinstance(element.op, ast.Invert)
    both = isinstance(element, ast.BinOp) and isinstance(element.op, (ast.BitAnd, ast.BitOr))
    return both or isinstance(element, ast.Compare)


def statements_of(function: Callable[..., Any]) -> list[Statement]:
    """Return the statements of the kinds in a function and in those that it calls."""
    sources = (source_of(each.__code__) for each in functions_of(function))
    return [one for source in sources if source is not None for one in _in_source(source)]


def element_of(index: ast.expr, axis: int, axes: int) -> ast.expr | None:
    """Return the part of an index that is for `axis` of an array of so many axes; None for all its cells."""
    parts = parts_of(index)
    dots = [n for n, one in enumerate(parts) if isinstance(one, ast.Constant) and one.value is ...]
    if not dots or axis < dots[0]:
        return parts[axis] if axis < len(parts) else None
    place = axis - axes + len(parts)  # counted from the end
    return parts[place] if place > dots[0] else None


def _in_source(source: FunctionSource) -> Iterator[Statement]:
    declared = [node for node in ast.walk(source.tree) if isinstance(node, (ast.Global, ast.Nonlocal))]
    shared = {name for node in declared for name in node.names}
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    yield from _of_target(source, shared, node, part)
        elif isinstance(node, ast.Call):
            names = dotted(node.func)
            kind = _kind_of_call(names)
            if kind is None and names[-1:] and names[-1] in CHANGES and names[0] not in {"", *source.own}:
                kind = Kind.STATE
            if kind is not None:
                yield Statement(kind, source, node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield Statement(Kind.WHOLE, source, node)
        elif isinstance(node, ast.For) and is_carried(node):
            yield Statement(Kind.LOOP, source, node)
        elif isinstance(node, ast.Subscript):
            yield from _of_subscript(source, node)
        elif isinstance(node, ast.Attribute) and dotted(node) in RANKS:
            yield Statement(Kind.RANK, source, node)
        elif isinstance(node, ast.Attribute) and node.attr in ("shape", "size"):
            yield Statement(Kind.LENGTH, source, node)


def _of_target(
    source: FunctionSource, shared: set[str], node: ast.AST, target: ast.expr
) -> Iterator[Statement]:
    """Yield what an assignment writes: cells by their index, or something that outlives the call."""
    root: ast.expr = target
    while isinstance(root, (ast.Subscript, ast.Attribute)):
        root = root.value
    name = root.id if isinstance(root, ast.Name) else ""
    if name in shared or (root is not target and name and name not in source.own):
        yield Statement(Kind.STATE, source, node)
    elif isinstance(target, ast.Subscript):
        flat = isinstance(target.value, ast.Attribute) and target.value.attr == "flat"
        yield Statement(Kind.CELL, source, node, None if flat else target.slice)


def _kind_of_call(names: list[str]) -> Kind | None:
    """Return the kind of a call. names: of what is called, as `dotted`."""
    name = names[-1] if names else ""
    if "random" in names[:-1] or (name in DRAWS and names[:-1] != ["here"]):
        return Kind.DRAW
    kinds = {Kind.CELL: PUTS, Kind.FILTER: FILTERS, Kind.WHOLE: REDUCTIONS, Kind.PLACE: PLACED}
    kinds |= {Kind.STATE: frozenset(["next"]), Kind.LENGTH: frozenset(["len"])}
    return next((kind for kind, known in kinds.items() if name in known), None)


def _of_subscript(source: FunctionSource, node: ast.Subscript) -> Iterator[Statement]:
    """Yield what an index that is read takes."""
    last = dotted(node.value)[-1:]
    if last and last[0] in PLACED:  # mgrid[...]
        yield Statement(Kind.PLACE, source, node)
    elif last != ["shape"]:
        parts = parts_of(node.slice)
        if any(isinstance(one, ast.Slice) and one.step is not None for one in parts):
            yield Statement(Kind.STRIDE, source, node, node.slice)
        elif isinstance(node.ctx, ast.Load) and any(integer(one) is not None for one in parts):
            yield Statement(Kind.READ, source, node, node.slice)
