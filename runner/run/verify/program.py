"""`verify` of a function of whole arrays in stages: call the function itself, with NumPy.

Rank 0 reads the whole inputs from their files, takes the steps in a plain loop, and compares every cell of
what is on the disk. Where sums are added in another order, floats may differ by rounding. A function may make
that any difference: if cells are wrong then, it is called again with arrays whose sums are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.job.whole_call import call_whole
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray, Region
from meshrun.runner.run.verify.compare import differs
from meshrun.runner.run.verify.results import Mismatch, drop_cached, mismatch_error
from meshrun.runner.run.verify.rounded_once import RoundedOnce
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Sink, Source, own_source, read_back, reopen
from meshrun.runner.system.host_memory import free_host_memory
from meshrun.runner.world.world import World

AGAINST = "the function itself, called with NumPy on the whole arrays"
ROUNDED_ONCE = f"{AGAINST}, with sums that are rounded once"
ROUNDED = 64.0  # units in the last place of the largest value, for each step
TEMPORARIES = 4  # times as many bytes of results of NumPy's functions as of the arrays


def compare_with_plain(
    world: World, task: Task, sources: Sequence[Source], sinks: Sequence[Sink], steps: int
) -> tuple[str, tuple[RunError | None, int, int]]:
    """Compare the files that `sinks` wrote after so many steps. Collective.

    Return what they are compared with; the error of a wrong cell, and the numbers of boxes and cells that
    this rank compared. Raises UserError on every rank if the whole arrays do not fit the memory of rank 0's
    host.
    """
    drop_cached(world, sinks)

    def compare() -> tuple[str, tuple[RunError | None, int, int]]:
        _check_memory(task)
        against, cells = AGAINST, 0
        wrong: Mismatch | None = None
        for kind in (np.ndarray, RoundedOnce):
            expected = _plain(task, sources, steps, kind)
            compared = (_compared(task, n, read_back(sinks[n]), one, steps) for n, one in enumerate(expected))
            wrong, cells = next(filter(None, compared), None), sum(one.size for one in expected)
            against = AGAINST if kind is np.ndarray else ROUNDED_ONCE
            if wrong is None or not task.job.program.rounded:
                break
        return against, (None if wrong is None else mismatch_error(world, task, wrong), 1, cells)

    against, found = world.on_root(compare)
    return against, found if world.rank == 0 else (found[0], 0, 0)


def _check_memory(task: Task) -> None:
    whole = Region((0,) * len(task.shape), task.shape)
    needed, free = TEMPORARIES * (task.input_bytes(whole) + task.result_bytes(whole)), free_host_memory()
    if needed > free:
        raise UserError(
            f"job {task.job.name} is verified with whole arrays, which do not fit rank 0's host",
            got=f"about {needed:,} bytes needed",
            expected=f"at most {free:,}",
            hint=option("verify", "off"),
        )


def _plain(task: Task, sources: Sequence[Source], steps: int, kind: type[HostArray]) -> list[HostArray]:
    """Return the results of the plain function after so many steps. kind: of the arrays that it gets."""
    arrays = []
    taken = len(task.job.arrays) - len(task.job.constants)  # the others are known to the function
    for source in map(reopen, map(own_source, sources[:taken])):
        array = np.empty(source.shape, source.dtype)
        source.read(Region((0,) * array.ndim, array.shape), array)
        arrays.append(array)
    results: list[HostArray] = []
    for step in range(steps):
        with np.errstate(all="ignore"):
            given = [array.copy().view(kind) for array in arrays]
            returned = call_whole(task.job, given, task.parameters, step)
        several = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        several = [] if returned is None else several
        if len(several) == len(task.job.series):  # the fields are those that it changes
            several = [given[number] for number in task.job.program.changed] + several
        results = [np.array(result) for result in several[: len(task.job.output_names)]]
        for number, feed in enumerate(task.feed_numbers):
            if feed is not None:
                arrays[feed] = results[number]
    return results


def _compared(task: Task, number: int, written: Source, expected: HostArray, steps: int) -> Mismatch | None:
    """Return what is wrong of output `number`; None if nothing is."""
    everything = Region((0,) * expected.ndim, expected.shape)
    got = np.empty(expected.shape, written.dtype)
    own_source(written).read(everything, got)
    tolerance = 0.0
    rounded = task.job.program.rounded
    if expected.dtype.kind in "fc" and (rounded or task.job.program.inexact):
        finite = np.abs(expected[np.isfinite(expected)])
        eps = max(float(np.finfo(one).eps) for one in (expected.dtype, *rounded))
        tolerance = steps * ROUNDED * eps * float(finite.max(initial=0.0))
    bad = differs(got, expected, tolerance)
    if not np.any(bad):
        return None
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    names = task.job.output_names
    name = names[number] if len(names) > 1 else ""
    return Mismatch(
        first, got[first], expected[first], tolerance, int(np.sum(bad)), got.size, everything, name
    )
