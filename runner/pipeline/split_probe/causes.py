"""Find the lines of a function by which its result depends on how its array is cut, and what to write instead.

The source is read for statements of the usual kinds: cells written by their index in a block, values kept
from one call to the next, random numbers, loops that carry values along, and functions of all cells. The
trace, where there is one, finds the latter by axis.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from runner.fuse.trace import PLACES, SHIFTS, WHOLE_AXES, NotTraceable
from runner.pipeline.fusing import LIBRARIES, trace_of
from runner.plan.task import Task

LONGEST = 72  # characters of a quoted line
MOST_LINES = 3  # that are named
_FILTERS = """
    binary_closing binary_dilation binary_erosion binary_fill_holes binary_opening convolve convolve2d
    correlate correlate2d distance_transform_edt fftconvolve gaussian_filter gaussian_filter1d
    gaussian_gradient_magnitude gaussian_laplace generic_filter grey_closing grey_dilation grey_erosion
    grey_opening label laplace maximum_filter median_filter medfilt medfilt2d minimum_filter
    morphological_gradient percentile_filter prewitt rank_filter rotate shift sobel uniform_filter
    uniform_filter1d wiener zoom
"""
FILTERS = frozenset(_FILTERS.split())  # of SciPy's, which read the neighbours of a cell
_RANDOM = """
    choice integers normal permutation permuted rand randint randn random random_sample shuffle
    standard_normal time perf_counter uuid4 urandom
"""
RANDOM = frozenset(_RANDOM.split())  # functions that return something else at each call
PLACED = frozenset(["arange", "fromfunction", "indices", "linspace", "logspace", "meshgrid", "mgrid", "ogrid"])
PUTS = frozenset(["fill_diagonal", "itemset", "place", "put", "put_along_axis", "putmask"])

CELL, STATE, DRAW, LOOP, WHOLE, PLACE, STRIDE, FILTER, READ, LENGTH = range(10)
# Which kind is the likeliest: where only some places of a part differ, where all do, and where calls differ.
LOCAL = (CELL, FILTER, WHOLE, STRIDE, LOOP, PLACE, READ, DRAW, STATE, LENGTH)
EVERYWHERE = (DRAW, STATE, WHOLE, PLACE, LOOP, READ, STRIDE, FILTER, CELL, LENGTH)
UNREPEATABLE = (DRAW, STATE)
DOES = {
    CELL: "writes cells of each block, not of the array",
    STATE: "keeps a value from one call to the next",
    DRAW: "returns something else at each call",
    LOOP: "carries values along the cells of one block",
    WHOLE: "takes the cells of one block",
    PLACE: "begins anew in each block",
    STRIDE: "counts from the first cell of each block",
    FILTER: "reads neighbours that are not in the block",
    READ: "takes cells of each block, not of the array",
    LENGTH: "uses the length of one block",
}
WHOLE_HINT = "compute a value of the whole array first (@meshrun.reduce_blocks) and pass it as a parameter"


@dataclass(frozen=True)
class Cause:
    """What a result may depend on the cut by. sentence: names the file, the lines and what they do."""

    sentence: str
    hint: str


@dataclass(frozen=True)
class _Statement:
    """A statement of one of the kinds. index: of the cells it takes; None: not known. node: the statement."""

    kind: int
    line: int
    text: str
    file: str
    node: ast.AST
    index: ast.expr | None = None


def explain(task: Task, axis: int, *, everywhere: bool, repeatable: bool) -> Cause | None:
    """Return the likeliest cause of a difference along `axis`; None without one.

    everywhere: all places of a part along the axis differ. repeatable: calls on the same blocks agree.
    """
    order = EVERYWHERE if everywhere else LOCAL
    order = order if repeatable else UNREPEATABLE
    found = [one for one in _statements(task.job.function) if _is_along(one, axis, len(task.shape))]
    kinds = [kind for kind in order if any(one.kind == kind for one in found)]
    if repeatable and (not kinds or kinds[0] in (WHOLE, PLACE, STRIDE, READ, LENGTH)):
        traced = _traced_cause(task, axis)
        if traced is not None:
            return traced
    if not kinds:
        return None
    chosen = [one for one in found if one.kind == kinds[0]]
    lines = list(dict.fromkeys((one.line, one.text) for one in chosen))[:MOST_LINES]
    texts = " and ".join(f"`{text}`" for _, text in lines)
    numbers = " and ".join(str(line) for line, _ in lines)
    place = f"{chosen[0].file}, line{'s' if len(lines) > 1 else ''} {numbers}: "
    does = DOES[kinds[0]] if len(lines) == 1 else DOES[kinds[0]].replace("s ", " ", 1)
    return Cause(f"{place}{texts} {does}", _hint(task, axis, chosen[0]))


def _traced_cause(task: Task, axis: int) -> Cause | None:
    """Return the function of all cells along an axis, or the index of certain ones, that a trace meets."""
    try:
        trace_of(task)
    except NotTraceable as reason:
        name, along = reason.whole
        if axis not in along or (name in SHIFTS and task.widths[axis] != (0, 0)):
            return None
        code = getattr(inspect.unwrap(task.job.function), "__code__", None)
        place = "" if code is None else f"{code.co_filename}, line {reason.line}: "
        kind = PLACE if name == PLACES else READ if name.startswith("the index") else WHOLE
        does = "takes the cells of one block" if kind == READ else DOES[kind]
        return Cause(f"{place}{name} {does}", _general_hint(task, axis, kind))
    return None


def lengths_needed(function: Callable[..., Any], axes: int) -> list[int]:
    """Return how many cells a part needs along each axis for what a function's constants index or compare."""
    needed = [0] * axes
    for source in _sources(function):
        for axis, constant in _constants(source.tree):
            if axis < axes:
                needed[axis] = max(needed[axis], constant + 2)
    return needed


# Reading the source


@dataclass(frozen=True)
class _Source:
    """The source of a function. first: its first line in the file. names: of its own variables."""

    tree: ast.AST
    lines: tuple[str, ...]
    first: int
    file: str
    names: frozenset[str]

    def text(self, node: ast.AST) -> str:
        line = self.lines[node.lineno - 1].strip()  # type: ignore[attr-defined]
        return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def _sources(function: Callable[..., Any]) -> list[_Source]:
    """Return the sources of a function and of those of the user's that it names, where they can be had."""
    return [source for code in _codes(function, {}) if (source := _source(code)) is not None]


def _codes(function: Any, seen: dict[CodeType, None]) -> list[CodeType]:
    """Return the code of a function and of those that it names by its globals and its closure."""
    if isinstance(function, functools.partial):
        return _codes(function.func, seen)
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if not isinstance(function, FunctionType) or code in seen:
        return list(seen)
    if (function.__module__ or "").split(".")[0] in LIBRARIES:
        return list(seen)
    seen[function.__code__] = None
    around = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    for value in [*map(function.__globals__.get, _names(function.__code__)), *around]:
        if not isinstance(value, ModuleType):
            _codes(value, seen)
    return list(seen)


def _is_set(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # not assigned yet
        return False
    return True


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@functools.lru_cache(maxsize=256)
def _source(code: CodeType) -> _Source | None:
    """Return the source of a function's code; None where it cannot be read, as for what was typed."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.decorator_list = []
    own = frozenset((*code.co_varnames, *code.co_cellvars))
    return _Source(tree, tuple(lines), first, code.co_filename, own)


def _statements(function: Callable[..., Any]) -> list[_Statement]:
    """Return the statements of the kinds in a function and those that it calls, in order."""
    return [one for source in _sources(function) for one in _of_source(source)]


def _of_source(source: _Source) -> Iterator[_Statement]:
    shared = {
        name
        for node in ast.walk(source.tree)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }

    def statement(kind: int, node: ast.AST, index: ast.expr | None = None, shown: Any = None) -> _Statement:
        shown = shown or node
        return _Statement(kind, source.first + shown.lineno - 1, source.text(shown), source.file, node, index)

    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    yield from _of_target(source, shared, node, part, statement)
        elif isinstance(node, ast.Call):
            yield from _of_call(source, node, statement)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield statement(WHOLE, node)
        elif isinstance(node, ast.For) and _is_carried(node):
            yield statement(LOOP, node)
        elif isinstance(node, ast.Subscript):
            yield from _of_subscript(node, statement)
        elif isinstance(node, ast.Attribute) and node.attr in ("shape", "size"):
            yield statement(LENGTH, node)


def _of_target(
    source: _Source, shared: set[str], node: ast.AST, target: ast.expr, statement: Any
) -> Iterator[_Statement]:
    """Yield what an assignment writes: a cell by its index, or something that outlives the call."""
    root = target
    while isinstance(root, (ast.Subscript, ast.Attribute)):
        root = root.value
    name = root.id if isinstance(root, ast.Name) else ""
    written = isinstance(target, (ast.Subscript, ast.Attribute))
    if name in shared or (written and name and name not in source.names):
        yield statement(STATE, node)
    elif isinstance(target, ast.Subscript):
        flat = isinstance(target.value, ast.Attribute) and target.value.attr == "flat"
        yield statement(CELL, node, None if flat else target.slice)


def _of_call(source: _Source, node: ast.Call, statement: Any) -> Iterator[_Statement]:
    names = _dotted(node.func)
    if not names:
        return
    name = names[-1]
    if "random" in names[:-1] or (name in RANDOM and not names[:-1] == ["here"]):
        yield statement(DRAW, node)
    elif name == "next":
        yield statement(STATE, node)
    elif name in PUTS:
        yield statement(CELL, node)
    elif name in FILTERS:
        yield statement(FILTER, node)
    elif name in WHOLE_AXES or name in ("reduce", "accumulate", "reduceat"):
        yield statement(WHOLE, node)
    elif name in PLACED:
        yield statement(PLACE, node)
    elif name == "len":
        yield statement(LENGTH, node)


def _of_subscript(node: ast.Subscript, statement: Any) -> Iterator[_Statement]:
    """Yield what an index that is read takes."""
    base = _dotted(node.value)
    if base and base[-1] in PLACED:
        yield statement(PLACE, node)
    if base and base[-1] == "shape":
        return
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(one, ast.Slice) and one.step is not None for one in parts):
        yield statement(STRIDE, node, node.slice)
    elif isinstance(node.ctx, ast.Load) and any(_constant(one) is not None for one in parts):
        yield statement(READ, node, node.slice)


def _is_carried(loop: ast.For) -> bool:
    """Return whether a loop writes elements by its own variable."""
    variables = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    return any(
        isinstance(one, ast.Subscript)
        and isinstance(one.ctx, ast.Store)
        and any(isinstance(name, ast.Name) and name.id in variables for name in ast.walk(one.slice))
        for one in ast.walk(loop)
    )


def _dotted(node: ast.expr) -> list[str]:
    """Return the names of `np.random.rand`, and the last ones of what follows a call: [..., "mean"]."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else ["", *names] if names else []


def _constant(node: ast.expr | None) -> int | None:
    """Return the value of an integer as it is written; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _constant(node.operand)
        return None if value is None else -value
    is_number = isinstance(node, ast.Constant) and type(node.value) is int
    return node.value if is_number else None  # type: ignore[union-attr]


def _element(index: ast.expr, axis: int, axes: int) -> ast.expr | None:
    """Return the part of an index that is for `axis` of an array of so many axes; None for all its cells."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    ellipsis = next(
        (n for n, one in enumerate(parts) if isinstance(one, ast.Constant) and one.value is ...), len(parts)
    )
    behind = len(parts) - ellipsis - 1  # elements after `...`
    place = axis if axis < ellipsis else axis - axes + len(parts) if axis >= axes - behind else -1
    return parts[place] if 0 <= place < len(parts) else None


def _is_along(one: _Statement, axis: int, axes: int) -> bool:
    """Return whether a statement that takes certain cells takes them along `axis`."""
    if one.index is None:
        return True
    element = _element(one.index, axis, axes)
    if element is None or (isinstance(element, ast.Constant) and element.value in (None, ...)):
        return False
    if isinstance(element, ast.Slice):
        return any(end is not None for end in (element.lower, element.upper, element.step))
    return not isinstance(element, ast.Compare)


# Constants that an array must be longer than


def _constants(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield the axes that constants index or whose lengths they are compared with, and their magnitudes."""
    lengths = dict(_length_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            base = _dotted(node.value)
            if base[-1:] == ["shape"]:
                continue
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for axis, part in enumerate(parts):
                ends = (part.lower, part.upper) if isinstance(part, ast.Slice) else (part,)
                yield from ((axis, abs(value)) for end in ends if (value := _constant(end)) is not None)
        elif isinstance(node, ast.Compare):
            yield from _compared([node.left, *node.comparators], lengths)
        elif isinstance(node, ast.Call) and _dotted(node.func) in (["min"], ["max"]):
            yield from _compared(node.args, lengths)
        elif isinstance(node, ast.Call) and _dotted(node.func)[-1:] == ["put"]:
            yield from ((0, abs(value)) for one in node.args if (value := _constant(one)) is not None)
        elif isinstance(node, ast.For) and _is_carried(node) and isinstance(node.iter, ast.Call):
            values = map(_constant, node.iter.args)
            yield from ((0, abs(value)) for value in values if value is not None)


def _compared(sides: Sequence[ast.expr], lengths: dict[str, int]) -> Iterator[tuple[int, int]]:
    axes = {
        axis for side in sides for part in ast.walk(side) if (axis := _axis_of(part, lengths)) is not None
    }
    for side in sides:
        value = _constant(side)
        if value is not None:
            yield from ((axis, abs(value)) for axis in axes)


def _length_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the variables that are assigned the length of an axis, and the axis."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            is_shape = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
            if isinstance(target, (ast.Tuple, ast.List)) and is_shape:
                yield from (
                    (one.id, axis) for axis, one in enumerate(target.elts) if isinstance(one, ast.Name)
                )
            elif isinstance(target, ast.Name) and (axis := _axis_of(node.value, {})) is not None:
                yield target.id, axis


def _axis_of(node: ast.AST, lengths: dict[str, int]) -> int | None:
    """Return the axis whose length an expression is: `x.shape[1]`, `len(x)`, `x.size` or a variable."""
    if isinstance(node, ast.Name):
        return lengths.get(node.id)
    if isinstance(node, ast.Subscript) and _dotted(node.value)[-1:] == ["shape"]:
        value = _constant(node.slice)
        return value if value is not None and value >= 0 else None
    if isinstance(node, ast.Call) and _dotted(node.func) == ["len"]:
        return 0
    return 0 if isinstance(node, ast.Attribute) and node.attr == "size" else None


# What to write instead


def _hint(task: Task, axis: int, cause: _Statement) -> str:
    if cause.kind == CELL:
        return _cell_hint(task, axis, cause)
    return _general_hint(task, axis, cause.kind)


def _general_hint(task: Task, axis: int, kind: int) -> str:
    if kind in (PLACE, STRIDE, LENGTH):
        return (
            f"the parameter `here` (`def {task.job.function.__name__}({', '.join(task.job.arrays)}, *, here)`): "
            f"here.offset[{axis}] is the block's place along axis {axis}, here.shape[{axis}] the array's length"
        )
    if kind == DRAW:
        return "the parameter `here`: here.uniform(seed) and here.normal(seed) depend on a cell's place only"
    if kind == STATE:
        return "a value that follows from the block, its place (the parameter `here`) and parameters"
    if kind == FILTER:
        return (
            "a halo as wide as the filter reads (halo= in the decorator), and the result without those cells"
        )
    if kind == LOOP:
        return (
            "a function of each cell and its neighbours, with halo= in the decorator; or a @meshrun.job, "
            + WHOLE_AXIS
        )
    return f"{WHOLE_HINT}; or a @meshrun.job, {WHOLE_AXIS}"


WHOLE_AXIS = "which can read blocks that are whole along an axis (meshrun.read_block(world, input, split=1))"


def _cell_hint(task: Task, axis: int, cause: _Statement) -> str:
    """Return how to write cells by their index in the array."""
    target, value = _written(cause.node)
    base = ast.unparse(target.value) if target is not None else "result"
    low, high = task.widths[axis] if base in task.job.arrays else (0, 0)
    xp = "xp" if "xp" in task.job.services else _numpy_of(task.job.function)
    length = f"{base}.shape[{axis}]" if low or high else f"here.block[{axis}]"
    at = f"at = here.offset[{axis}] {f'- {low} ' if low else ''}+ {xp}.arange({length})"
    element = None if cause.index is None else _element(cause.index, axis, len(task.shape))
    condition = _condition(element, axis, low, high)
    wide = f"at[:{', None' * (len(task.shape) - 1 - axis)}]" if axis < len(task.shape) - 1 else "at"
    if target is not None and condition and _is_scalar(value):
        before = [":"] * axis
        if isinstance(target.slice, ast.Tuple):
            before = [ast.unparse(one) for one in target.slice.elts[:axis]]
        after = (
            [ast.unparse(one) for one in target.slice.elts[axis + 1 :]]
            if isinstance(target.slice, ast.Tuple)
            else []
        )
        sign = f"{_operator(cause.node)}=" if isinstance(cause.node, ast.AugAssign) else "="
        places = ", ".join([*before, condition, *after])
        instead = f"{base}[{places}] {sign} {ast.unparse(value)}"  # type: ignore[arg-type]
    else:
        instead = f"{xp}.where({(condition or 'at == 0').replace('at ', wide + ' ')}, a, b) for all cells"
    arrays = ", ".join(task.job.arrays)
    return f"`def {task.job.function.__name__}({arrays}, *, here)` with `{at}`, and `{instead}`"


def _written(node: ast.AST) -> tuple[ast.Subscript | None, ast.expr | None]:
    if isinstance(node, ast.Assign):
        target: ast.expr = node.targets[0]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        target = node.target
    else:
        return None, None
    return (target if isinstance(target, ast.Subscript) else None), node.value


def _is_scalar(value: ast.expr | None) -> bool:
    return _constant(value) is not None or isinstance(value, (ast.Constant, ast.Name))


def _operator(node: ast.AugAssign) -> str:
    return ast.unparse(ast.BinOp(ast.Name("a"), node.op, ast.Name("b"))).split()[1]


def _numpy_of(function: Callable[..., Any]) -> str:
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return next(
        (
            n
            for n, one in names.items()
            if getattr(one, "__name__", None) == "numpy" and inspect.ismodule(one)
        ),
        "numpy",
    )


def _condition(element: ast.expr | None, axis: int, low: int, high: int) -> str:
    """Return the condition on the place `at` in the array that is true for an index of a block's."""

    def place(value: int) -> str:
        if value >= 0:
            return str(value - low)
        behind = -value - high
        return f"here.shape[{axis}] {'-' if behind >= 0 else '+'} {abs(behind)}"

    if isinstance(element, ast.Slice) and element.step is None:
        first, last = _constant(element.lower), _constant(element.upper)
        parts = [f"at >= {place(first)}"] if first else []
        parts += [f"at < {place(last)}"] if last is not None else []
        return " & ".join(f"({one})" for one in parts) if len(parts) > 1 else "".join(parts)
    value = None if element is None else _constant(element)
    return "" if value is None else f"at == {place(value)}"
