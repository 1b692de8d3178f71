"""The split probe: a function that computes other bits where its array is cut otherwise is refused.

A small array is computed whole, and cut in two and in three along each axis that a run may cut. The calls are
those of a run (`Task.call`), on the run's device if the function is called there, with the run's boundary,
parameters and dtypes. A function that raises on every small array is not judged: the run shows its error.
One whose calls take longer than `PATIENCE` is called on parts of two, and not on those of three.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from meshrun.runner.compiler.lint.causes import explain
from meshrun.runner.compiler.lint.needs import needs_of
from meshrun.runner.compiler.result_type import hide_output, result_buffers, types_of
from meshrun.runner.compiler.samples import Sample, samples
from meshrun.runner.device.api import Backend
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.maps.reduce import to_host
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.world.world import World

PATIENCE = 1.0  # seconds of calls after which an array is no longer cut in three
ROUNDING = 4096  # times the dtype's epsilon and the largest magnitude: what rounding may explain
Results = tuple[HostArray, ...]


@dataclass(frozen=True)
class Difference:
    """Where a part's result differs from the whole array's.

    axis: along which the array was cut. everywhere: along this axis, every place of the part has a cell that
    differs. rounding: the largest difference over the largest magnitude, if it is not more than rounding;
    else None. repeatable: two calls on the same blocks return the same.
    """

    axis: int
    everywhere: bool
    rounding: float | None
    repeatable: bool


def check_split(world: World, task: Task) -> None:
    """Raise UserError on every rank if the task's result depends on how its array is cut. Collective."""
    world.on_root(lambda: refuse_split(world, task))


def refuse_split(world: World, task: Task) -> None:
    """Raise UserError if the task's result depends on how its array is cut. On one rank.

    Jobs with `split_dependent=True` in the decorator, and arrays without cells, are skipped.
    """
    if (
        task.job.kind != "map"
        or task.job.split_dependent
        or task.job.whole
        or any(0 in field.shape for field in task.fields)
    ):
        return
    # A function that became a kernel has been compared with it in NumPy.
    backend = world.backend if task.kernel is None else CpuBackend()
    error = refusal(task, backend, world.here.host)
    if error is not None:
        raise error


def refusal(task: Task, backend: Backend, host: str = "") -> UserError | None:
    """Return the error of a task whose result depends on how its array is cut; None for others."""
    found = find_difference(task, backend, host)
    return None if found is None else _error(task, found)


def find_difference(task: Task, backend: Backend, host: str = "") -> Difference | None:
    """Return the first difference between a small array's result and its parts' results; None without one."""
    needs = needs_of(task.job.function, len(task.shape), task.parameters)
    with hide_output(failures=False), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for magnitude in (1.0, *needs.magnitudes):
            for sample in _samples(task, needs.lengths, magnitude):
                judged, difference = _judged(sample, backend, host)
                if difference is not None:
                    return difference
                if judged:
                    break
    return None


def _samples(task: Task, lengths: Sequence[int], magnitude: float) -> Iterator[Sample]:
    """Yield the samples, up to the first whose results `out=` cannot declare."""
    try:
        yield from samples(task, lengths, magnitude)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a user's function may raise anything
        return


def _computed(
    sample: Sample, region: Region, backend: Backend, host: str, part: int = 0, parts: int = 1
) -> Results | None:
    """Return the results for a region of a sample, on the host; None if the function raises."""
    task, shape = sample.task, sample.task.shape
    here = BlockContext(part, parts, host, region.start, region.shape, shape, backend.stream, backend.xp)
    try:
        blocks = sample.blocks(region, backend.xp)
        results = task.call(blocks, here, result_buffers(task, region.shape, backend))
        backend.synchronize()
        return tuple(np.asarray(result if backend.xp is np else to_host(result)) for result in results)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a user's function may raise anything
        return None


def _judged(sample: Sample, backend: Backend, host: str) -> tuple[bool, Difference | None]:
    """Compare a sample's results with those of its parts.

    Return whether there were results of the whole and of a part along each axis that may be cut, and the
    first difference. A function whose calls take long is called on no parts of three."""
    task, until = sample.task, time.monotonic() + PATIENCE
    whole = _computed(sample, sample.everything, backend, host)
    if whole is None:
        return False, None
    if task.results is None:
        sample = Sample(task.with_results(types_of(task, whole)), sample.padded)
    seen: set[int] = set()
    for axis, region, part, count in _parts(task):
        if count > 2 and time.monotonic() > until:
            break
        found = _computed(sample, region, backend, host, part, count)
        if found is None:  # the run shows the error, if its blocks raise it too
            continue
        seen.add(axis)
        difference = _difference(sample.task, axis, region, whole, found)
        if difference is not None:
            again = _computed(sample, sample.everything, backend, host)
            same = again is not None and all(map(_equal, whole, again))
            return True, Difference(axis, *difference, same)
    return seen == _cut_axes(task), None


def _cut_axes(task: Task) -> set[int]:
    return {axis for axis, cut in enumerate(task.cut_axes) if cut}


def _parts(task: Task) -> Iterator[tuple[int, Region, int, int]]:
    """Yield the parts of an array that is cut along each axis in two, then in three: the axis, the part, its
    number, and how many there are."""
    of_axes = [(axis, ends) for axis in _cut_axes(task) for ends in cuts(task.shape[axis], task.units[axis])]
    for axis, ends in sorted(of_axes, key=lambda one: len(one[1])):
        for part, (first, last) in enumerate(pairwise(ends)):
            yield axis, _part(task.shape, axis, first, last), part, len(ends) - 1


def cuts(length: int, unit: int) -> Iterator[list[int]]:
    """Yield the places at which an axis is cut in two and in three.

    The second part begins at a unit that is a multiple neither of 2 nor of 3, and parts differ in length:
    functions that count from the first cell of a block, or branch on its length, show it.
    """
    units = length // unit
    if units > 1:
        first = next((k for k in range(max(units // 3, 1), units) if k % 2 and k % 3), 1)
        yield [0, unit * first, length]
    if units > 2:
        first = max(units // 4, 1)
        yield [0, unit * first, unit * max(first + 1, 2 * units // 3), length]


def _part(shape: Shape, axis: int, first: int, last: int) -> Region:
    start = tuple(first if other == axis else 0 for other in range(len(shape)))
    return Region(start, tuple(last if other == axis else n for other, n in enumerate(shape)))


def _difference(
    task: Task, axis: int, region: Region, whole: Results, found: Results
) -> tuple[bool, float | None] | None:
    """Return whether a part differs at all places along an axis, and by how much if it is rounding; None if
    its bits are the whole array's. Other types are left to the run, which refuses them."""
    for number, (one, other) in enumerate(zip(whole, found, strict=True)):
        expected = one[task.output_region(region, number).slices]
        if expected.shape != other.shape or expected.dtype != other.dtype or _equal(expected, other):
            continue
        differs = _differing(expected, other)
        if differs.any():
            others = tuple(a for a in range(differs.ndim) if a != axis)
            return bool(differs.any(axis=others).all()), _rounding(expected, other)
    return None


def _equal(one: HostArray, other: HostArray) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _differing(one: HostArray, other: HostArray) -> HostArray:
    """Return which cells differ; NaN equals NaN."""
    unlike: HostArray = one != other
    if one.dtype.kind in "fc":
        unlike &= ~(np.isnan(one) & np.isnan(other))
        unlike |= (one == 0) & (other == 0) & (np.signbit(one.real) != np.signbit(other.real))
    return unlike


def _rounding(one: HostArray, other: HostArray) -> float | None:
    """Return the largest difference over the largest magnitude, where it is as small as by rounding."""
    if one.dtype.kind not in "fc" or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    magnitude = float(np.abs(one.astype(wide)).max())
    relative = float(np.abs(one.astype(wide) - other.astype(wide)).max()) / magnitude if magnitude else 0.0
    small = relative <= ROUNDING * float(np.finfo(one.dtype).eps)
    return relative if small and math.isfinite(relative) else None


def _error(task: Task, found: Difference) -> UserError:
    """Return the error: what is wrong, in which line, and what to write instead."""
    accepted = "split_dependent=True in the decorator, which accepts it"
    what = f"job {task.job.name}: its result depends on how the array is cut along axis {found.axis}"
    if not found.repeatable:
        what = f"job {task.job.name} returns other numbers at each call"
    elif found.rounding is not None:
        what = (
            f"job {task.job.name}: the last bits of its result depend on how the array is cut along axis "
            f"{found.axis} (a difference of rounding: {found.rounding:.1g} of the largest value)"
        )
    cause = explain(task, found.axis, everywhere=found.everywhere, repeatable=found.repeatable)
    if cause is None:
        hint = f"a function of each cell and its neighbours; or {accepted}"
        return UserError(what, hint=hint, everywhere=True)
    return UserError(f"{what}. {cause.sentence}", hint=f"{cause.hint}; or {accepted}", everywhere=True)
