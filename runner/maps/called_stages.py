"""Stages beyond an array's edges, of a function that cannot be traced, by a call on a small array of cells.

A `TracedCell` is a number that knows which of the block's cells it was computed from. NumPy computes with
such cells as it does with numbers. The function may write parts of arrays, and change single cells.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from inspect import unwrap
from types import FrameType
from typing import Any

import numpy as np

from meshrun.runner.compiler.lint.edge_stages import axes_with_edges
from meshrun.runner.compiler.lint.needs import needs_of
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.samples import samples
from meshrun.runner.compiler.trace.rebound import FunctionCopies
from meshrun.runner.compiler.trace.timed import StepTape
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.maps.kept_values import KeptValues
from meshrun.runner.plan.task import Task
from meshrun.runner.region import Shape

MOST_OPERATIONS = 1 << 18  # on single cells, about 0.5 s


def called_stage_lines(task: Task) -> list[int]:
    """Return the lines that compute a stage beyond the array's edges, and those that read it.

    As `edge_stages.stage_lines`, for a function that cannot be traced. One that calls what takes no arrays of
    objects, such as SciPy, is followed up to this call.
    """
    axes = axes_with_edges(task)
    if not axes or task.kernel is not None:
        return []
    kept = KeptValues.of(task.job.function, task.parameters)
    calls = CellCalls(getattr(unwrap(task.job.function), "__code__", None), axes, ())
    try:
        with hide_output(failures=False), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            needs = needs_of(task.job.function, len(task.shape), task.parameters)
            sample = next(iter(samples(task, needs.lengths)))
            calls.own = sample.task.shape
            blocks = [
                calls.block(block, one.widths[: task.leading])
                for block, one in zip(sample.padded, sample.task.fields, strict=True)
            ]
            outs = [calls.array(np.zeros(shape)) for shape, _ in sample.task.filled(calls.own) or ()]
            # The function and its helpers make their own arrays of cells, too.
            space: Any = _Namespace(calls)
            function = FunctionCopies(StepTape(), {"numpy": space, "cupy": space}).of(task.job.function)
            here = BlockContext(0, 1, "", (0,) * len(calls.own), calls.own, calls.own, None, space)
            replace(sample.task, job=replace(task.job, function=function)).returned(
                blocks, here, outs or None
            )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # cells are no numbers to every function; what was seen until then holds
        pass
    finally:
        kept.restore()
    return sorted({line for pair in calls.stages for line in pair if line})


@dataclass
class CellCalls:
    """What the calls on cells have seen.

    code: of the user's function. axes: those whose edges do not meet. own: lengths of the block without its
    halo. stages: lines that compute a cell beyond the edges from its neighbours, each with a line that reads
    it. operations: those done so far, on single cells.
    """

    code: Any
    axes: tuple[int, ...]
    own: Shape
    stages: set[tuple[int, int]] = field(default_factory=set)
    operations: int = 0

    def line(self) -> int:
        """Return the line of the user's function that runs now; 0 if unknown."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self.code:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def count(self, operations: int) -> None:
        """Count operations on single cells; raise RuntimeError for too many."""
        self.operations += operations
        if self.operations > MOST_OPERATIONS:
            raise RuntimeError(f"more than {MOST_OPERATIONS} operations")

    def block(self, values: np.ndarray[Any, Any], widths: Iterable[tuple[int, int]]) -> CellArray:
        """Return a padded block as cells."""
        self.count(values.size)
        lows = [low for low, _ in widths]
        cells = np.empty(values.shape, object)
        for index in np.ndindex(values.shape):
            place = tuple(at - low for at, low in zip(index, lows, strict=False))
            cells[index] = TracedCell(self, values[index], place, place)
        return self.array(cells)

    def array(self, cells: Any) -> CellArray:
        """Return an array of cells and numbers."""
        found = np.asarray(cells, object).view(CellArray)
        found.calls = self
        return found

    def compute(self, operation: Any, *values: Any) -> Any:
        """Return the result of an operation on single numbers, at least one of them a cell."""
        self.count(1)
        cells = [value for value in values if isinstance(value, TracedCell)]
        result = operation(*(value.value if isinstance(value, TracedCell) else value for value in values))
        if not cells:
            return result
        low = tuple(map(min, *(cell.low for cell in cells))) if len(cells) > 1 else cells[0].low
        high = tuple(map(max, *(cell.high for cell in cells))) if len(cells) > 1 else cells[0].high
        return TracedCell(self, result, low, high, self.line())

    def note_read(self, cells: Iterable[Any]) -> None:
        """Note the cells beyond the edges, of a part that is read, that neighbours have decided.

        A value between two cells, such as a flux, belongs to an edge itself, not to a cell beyond it.
        """
        for cell in cells:
            if isinstance(cell, TracedCell):
                for axis in self.axes:
                    low, high = cell.low[axis], cell.high[axis]
                    if low != high and not -2 < low + high < 2 * self.own[axis]:
                        self.stages.add((cell.line, self.line()))


class TracedCell(np.lib.mixins.NDArrayOperatorsMixin):
    """A number, and the first and the last of the block's cells, along each axis, that decide it.

    line: of the user's function, where it is computed.
    """

    __slots__ = ("calls", "high", "line", "low", "value")

    def __init__(self, calls: CellCalls, value: Any, low: Shape, high: Shape, line: int = 0) -> None:
        self.calls, self.value, self.low, self.high, self.line = calls, value, low, high, line

    def __bool__(self) -> bool:
        return bool(self.value)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return _computed(self.calls, ufunc, method, inputs, options)


class CellArray(np.ndarray[Any, Any]):
    """An array of cells and numbers, whose reads in parts are noted."""

    calls: CellCalls

    def __array_finalize__(self, source: Any) -> None:
        if source is not None and hasattr(source, "calls"):
            self.calls = source.calls

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        if not isinstance(part, np.ndarray):
            self.calls.note_read([part])
        elif part.size < self.size:
            self.calls.note_read(part.flat)
        return part

    def astype(self, *given: Any, **named: Any) -> Any:
        kind = np.dtype(given[0] if given else named["dtype"])
        return self.calls.array(_each_cell(self.calls, kind.type, 1)(_plain(self)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return _computed(self.calls, ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, given: Any, named: Any) -> Any:
        if function is np.where and len(given) == 3:
            return self.calls.array(_each_cell(self.calls, _chosen, 3)(*map(_plain, given)))
        found = super().__array_function__(function, [CellArray], given, named)
        is_plain = type(found) is np.ndarray and found.dtype == object
        return self.calls.array(found) if is_plain else found


class _Namespace:
    """NumPy, whose new arrays have cells, whatever dtype is asked for."""

    def __init__(self, calls: CellCalls) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if name in ("zeros", "empty", "ones", "full", "asarray", "array", "ascontiguousarray"):

            def make(*given: Any, dtype: Any = None, **named: Any) -> Any:
                first = 1 + (name == "full")  # what follows is the dtype
                return self._calls.array(function(*given[:first], dtype=object, **named))

            return make
        if name.endswith("_like"):

            def make_like(*given: Any, dtype: Any = None, **named: Any) -> Any:
                return function(*given[: 1 + (name == "full_like")], **named)

            return make_like
        return function


def _chosen(condition: Any, value: Any, other: Any) -> Any:
    return value if condition else other


def _each_cell(calls: CellCalls, operation: Any, count: int) -> Any:
    return np.frompyfunc(lambda *values: calls.compute(operation, *values), count, 1)


def _plain(value: Any) -> Any:
    """Return an operand that NumPy does not ask how to compute with it."""
    if isinstance(value, TracedCell):
        alone = np.empty((), object)
        alone[()] = value
        return alone
    return value.view(np.ndarray) if isinstance(value, CellArray) else value


def _computed(calls: CellCalls, ufunc: np.ufunc, method: str, inputs: Any, options: dict[str, Any]) -> Any:
    """Compute a ufunc of one result, or its reduction, cell by cell."""
    if method not in ("__call__", "reduce") or ufunc.nout != 1:
        return NotImplemented
    each = _each_cell(calls, ufunc, 2 if method == "reduce" else len(inputs))
    # The results have no dtype; `out` gets them below.
    values = map(_plain, inputs)
    kept = {name: value for name, value in options.items() if name in ("axis", "keepdims")}
    found = each.reduce(*values, **kept) if method == "reduce" else each(*values)
    if options.get("out"):
        (out,) = options["out"]
        out.view(np.ndarray)[...] = found
        return out
    return calls.array(found) if isinstance(found, np.ndarray) else found
