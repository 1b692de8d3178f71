"""Find the shapes and dtypes of a job's results by a small trial call, if they are not declared.

A run in memory needs no trial: it takes the type from its first piece, which is part of the result
(`in_memory`). A forecast or a streamed run needs the type before any cell is computed, and calls the
function on a small array of zeros (`samples`). These are not cells of the array, so no row is
computed twice, and anything that the function counts or stores per row stays correct. Its output during the
trial is hidden.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np

from meshrun.runner.compiler.samples import samples
from meshrun.runner.device.api import Backend, poisoned
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.plan.task import Task
from meshrun.runner.region import Array, Region, Shape

ResultType = tuple[Shape, np.dtype[Any]]  # lengths of the axes after the `leading` ones, and the dtype
Row = tuple[Region, list[Array]]  # a region of the first array, and each input's padded block
ONE_AT_A_TIME = threading.RLock()  # ranks that are threads have one sys.stdout


def result_types(
    task: Task,
    backend: Backend,
    *,
    ranks: int = 1,
    host: str = "",
    first_row: Callable[[], Row] | None = None,
) -> tuple[ResultType, ...]:
    """Return the types of the results of `task`, by a call on a small array.

    first_row: reads the arrays' first row. A function that raises on every small array is called on that row
    instead, which the run then computes again; without `first_row` its first exception propagates.
    """
    if any(0 in field.shape for field in task.fields):
        return types_without_cells(task)

    def call(one: Task, region: Region, blocks: list[Array]) -> tuple[ResultType, ...]:
        stream, xp = backend.stream, backend.xp
        here = BlockContext(0, ranks, host, region.start, region.shape, one.shape, stream, xp)
        return types_of(task, one.call(blocks, here, poisoned(backend, one.filled(region.shape))))

    failure: BaseException | None = None
    with np.errstate(all="ignore"), hide_output(failures=False):
        for sample in samples(task, short=False):
            try:
                shape, blocks = sample.task.shape, [backend.xp.array(block) for block in sample.padded]
                return call(sample.task, Region((0,) * len(shape), shape), blocks)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as reason:  # a user's function may raise anything
                failure = failure or reason
    if first_row is None:
        assert failure is not None
        raise failure
    with hide_output():
        return call(task, *first_row())


def with_known_results(task: Task, backend: Backend) -> Task:
    """Return `task` with its result types, for a forecast; exceptions of the trial on zeros propagate."""
    return task if task.results is not None else task.with_results(result_types(task, backend))


def types_of(task: Task, results: Sequence[Array]) -> tuple[ResultType, ...]:
    """Return the types of results computed from any part of the arrays."""
    return tuple((tuple(one.shape[task.leading :]), np.dtype(one.dtype)) for one in results)


def types_without_cells(task: Task) -> tuple[ResultType, ...]:
    """Return the result types for empty arrays, on which no function is called.

    They are those of the inputs that the results feed, and of the first one if they feed none.
    """
    fed = (task.fields[place or 0] for place in task.feed_numbers)
    return tuple((one.shape[task.leading :], one.dtype) for one in fed)


@contextmanager
def hide_output(*, failures: bool = True) -> Iterator[None]:
    """Hide what a trial call prints; the call whose result is used prints it again.

    failures: show what was printed before the call raised.
    """
    printed = io.StringIO()
    try:
        with ONE_AT_A_TIME, redirect_stdout(printed):
            yield
    except BaseException:
        if failures:
            sys.stdout.write(printed.getvalue())
        raise
