"""What a job's function returns, where that is not declared: shape and dtype, seen from one small call.

A run in memory needs no such trial: it takes the type from its first piece, which is part of the result
(`pipeline`). Whoever must know the type before any cell is computed, a forecast and a streamed run, calls
the function on zeros: they are no cells of the array, so that no row of it is computed twice, and what the
function counts or stores of its rows stays right. What it prints in the trial is not shown.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np

from runner.backend import Backend
from runner.comm import Array
from runner.here import BlockContext
from runner.partition import Region, Shape
from runner.work import Task

ResultType = tuple[Shape, np.dtype[Any]]  # lengths of the axes after the `leading` ones, and the dtype
Row = tuple[Region, Array]  # some own cells of the array, and their padded block


def result_type(
    task: Task,
    backend: Backend,
    *,
    ranks: int = 1,
    host: str = "",
    first_row: Callable[[], Row] | None = None,
) -> ResultType:
    """The type of the result of `task`, which does not declare it, from a call on as few zeros as can be.

    first_row: reads the array's first row. A function that raises on zeros, as one that inverts a matrix
    may, is called on that row instead, which a run computes once more; without `first_row` what it raised
    is raised.
    """
    if 0 in task.shape:
        return type_without_cells(task)
    cells = tuple(1 if cut else n for cut, n in zip(task.cut_axes, task.shape, strict=True))
    region = Region((0,) * len(cells), cells)
    padded = tuple(n + sum(width) for n, width in zip(cells, task.widths, strict=True))

    def call(region: Region, block: Array) -> ResultType:
        stream, xp = backend.stream, backend.xp
        here = BlockContext(0, ranks, host, region.start, region.shape, task.shape, stream, xp)
        return type_of(task, task.call(block, here, None))

    zeros = backend.empty(padded, task.dtype)
    zeros.fill(0)
    try:
        with np.errstate(all="ignore"), hide_output(failures=first_row is None):
            return call(region, zeros)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a user's function raises what it likes
        if first_row is None:
            raise
    with hide_output():
        return call(*first_row())


def with_known_result(task: Task, backend: Backend) -> Task:
    """`task` with its result's shape and dtype, for a forecast; raises what the function raises on zeros."""
    return task if task.result is not None else task.with_result(*result_type(task, backend))


def type_of(task: Task, result: Array) -> ResultType:
    """The type of a result of any part of the array."""
    return tuple(result.shape[task.leading :]), np.dtype(result.dtype)


def type_without_cells(task: Task) -> ResultType:
    """For an array without cells, on which no function is called: the input's own."""
    return task.shape[task.leading :], task.dtype


@contextmanager
def hide_output(*, failures: bool = True) -> Iterator[None]:
    """Hide what a call prints whose result is not used: it will be printed by the call that is.

    failures: show what was printed before the call failed.
    """
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    except BaseException:
        if failures:
            sys.stdout.write(printed.getvalue())
        raise
