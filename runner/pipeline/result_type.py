"""Shape and dtype of a job's result, if not declared: found by one small trial call.

A run in memory needs no trial: it takes the type from its first piece, which is part of the result
(`pipeline`). A forecast or a streamed run, which must know the type before any cell is computed, calls
the function on zeros. These are not cells of the array, so no row is computed twice, and whatever the
function counts or stores per row stays right. What it prints during the trial is not shown.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np

from runner.device.api import Backend
from runner.job.block_context import BlockContext
from runner.plan.task import Task
from runner.region import Array, Region, Shape

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
    """Return the type of the result of `task`, by a call on as few zeros as possible.

    first_row: reads the array's first row. A function that raises on zeros (one that inverts a matrix, say)
    is called on that row instead, which the run then computes again; without `first_row` its exception
    propagates.
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
    except BaseException:  # a user's function may raise anything
        if first_row is None:
            raise
    with hide_output():
        return call(*first_row())


def with_known_result(task: Task, backend: Backend) -> Task:
    """Return `task` with its result type, for a forecast; exceptions of the trial on zeros propagate."""
    return task if task.result is not None else task.with_result(*result_type(task, backend))


def type_of(task: Task, result: Array) -> ResultType:
    """Return the type of a result computed from any part of the array."""
    return tuple(result.shape[task.leading :]), np.dtype(result.dtype)


def type_without_cells(task: Task) -> ResultType:
    """Return the type of the result for an empty array, on which no function is called: the input's."""
    return task.shape[task.leading :], task.dtype


@contextmanager
def hide_output(*, failures: bool = True) -> Iterator[None]:
    """Hide what a trial call prints; the call whose result is used prints it again.

    failures: show what was printed before the call raised.
    """
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    except BaseException:
        if failures:
            sys.stdout.write(printed.getvalue())
        raise
