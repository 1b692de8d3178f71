"""The split probe: a function that computes other bits where its array is cut otherwise is refused.

A small array is computed whole, and cut in two and in three along each axis that a run may cut. The calls
are those of a run, on its device if the function is called there, with its boundary, parameters and dtypes.
A function that raises on every small array is not judged: the run shows its error. One whose calls take
longer than `PATIENCE` is called on parts of two, and not on those of three, and on no cells of either sign.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from meshrun.runner.compiler.lint.needs import needs_of
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.samples import Sample, samples
from meshrun.runner.device.api import Backend, poisoned
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.maps.kept_values import KeptValues
from meshrun.runner.maps.reduce import to_host
from meshrun.runner.plan.task import Task
from meshrun.runner.region import Array, HostArray, Shape
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


def refuse_split(world: World, task: Task, kept: KeptValues | None) -> None:
    """Raise UserError if the task's result depends on how its array is cut. On one rank.

    kept: what the function may keep, as it was before its first call; None: as it is. Jobs with
    `split_dependent=True` in the decorator, and arrays without cells, are skipped.
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
    error = refusal(task, backend, world.here.host, kept)
    if error is not None:
        raise error


def refusal(task: Task, backend: Backend, host: str = "", kept: KeptValues | None = None) -> UserError | None:
    """Return the error of a task whose result depends on how its array is cut; None for others.

    kept: as of `refuse_split`; None: as it is.
    """
    if kept is None:
        kept = KeptValues.of(task.job.function, task.parameters)
    try:
        return _refusal(task, backend, host, kept)
    finally:
        kept.restore()


def _refusal(task: Task, backend: Backend, host: str, kept: KeptValues) -> UserError | None:
    needs = needs_of(task.job.function, len(task.shape), task.parameters)
    with hide_output(failures=False), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first: tuple[SampleCalls, Results] | None = None
        began = time.monotonic()
        kinds: list[dict[str, Any]] = [{"magnitude": one} for one in (1.0, *needs.magnitudes)]
        # A kernel does not branch on the values of cells.
        rare = [{"rare": one} for one in needs.rare if task.kernel is None]
        for kind in (*kinds, {"signed": True}, *rare):
            if kind not in kinds and time.monotonic() > began + PATIENCE:
                break
            for sample in _samples(task, needs.lengths, kind):
                calls = SampleCalls(sample, backend, host, kept)
                whole = calls.whole()
                if first is None and whole is not None:
                    first = calls, whole
                judged, difference = (False, None) if whole is None else _judged(calls, whole)
                if difference is not None:
                    return _error(task, difference)
                if judged:
                    break
        # A function that keeps cells for its next call returns other ones after those of other arrays.
        if first is not None and not _same_again(*first):
            return _error(task, Difference(0, everywhere=True, rounding=None, repeatable=False))
    return None


def _samples(task: Task, lengths: Sequence[int], kind: dict[str, Any]) -> Iterator[Sample]:
    """Yield the samples, up to the first whose results `out=` cannot declare. kind: options of `samples`."""
    try:
        yield from samples(task, lengths, **kind)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a user's function may raise anything
        return


@dataclass
class SampleCalls:
    """Calls of a function on a sample and on its parts.

    kept: what the function may keep, to which it is set back before each call, as in a process that has not
    called it; None: it keeps what it has. unwritten: poisoned results, of a function that fills them.
    """

    sample: Sample
    backend: Backend
    host: str
    kept: KeptValues | None = None
    unwritten: list[Array] | None = None

    def whole(self) -> Results | None:
        """Return the results for all cells, on the host; None if the function raises."""
        return self.computed(0, 0, self.sample.task.shape[0])

    def computed(self, axis: int, first: int, last: int, part: int = 0, parts: int = 1) -> Results | None:
        """Return the results for cells of an axis, on the host; None if the function raises."""
        task, xp = self.sample.task, self.backend.xp
        shape = task.shape
        offset, own = [0] * len(shape), list(shape)
        offset[axis], own[axis] = first, last - first
        stream = self.backend.stream
        here = BlockContext(part, parts, self.host, tuple(offset), tuple(own), shape, stream, xp)
        ends = (last + sum(field.widths[axis]) for field in task.fields)
        padded = zip(self.sample.padded, ends, strict=True)
        if self.kept is not None:
            self.kept.restore()
        try:
            if parts == 1:
                self.unwritten = poisoned(self.backend, task.filled(shape))
            blocks = [xp.array(whole[_along(axis, first, end)]) for whole, end in padded]
            outs = self.unwritten and [
                out[_result_cells(shape, axis, first, last, out)].copy() for out in self.unwritten
            ]
            # The whole's results are checked, and those of parts compared with them.
            results = (task.call if parts == 1 else task.returned)(blocks, here, outs)
            return tuple(np.asarray(result if xp is np else to_host(result)) for result in results)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a user's function may raise anything
            return None


def _same_again(calls: SampleCalls, whole: Results) -> bool:
    """Return whether the function returns the same results again, with what it has kept.

    They may not be in an array that it keeps, which the next call overwrites.
    """
    calls = replace(calls, kept=None)
    again = calls.whole()
    if again is not None:
        calls.computed(0, 1, calls.sample.task.shape[0], 1, 2)
    return again is not None and all(map(_equal, whole, again))


def _judged(calls: SampleCalls, whole: Results) -> tuple[bool, Difference | None]:
    """Compare a sample's results with those of its parts.

    Return whether there were results of a part along each axis that may be cut, and the first difference. A
    function whose calls take long is called on no parts of three."""
    task, until = calls.sample.task, time.monotonic() + PATIENCE
    shape, axes = task.shape, [axis for axis, cut in enumerate(task.cut_axes) if cut]
    seen: set[int] = set()
    # All axes are cut in two, then in three.
    cut = ((axis, ends) for axis in axes for ends in cuts(shape[axis], task.units[axis]))
    for axis, ends in sorted(cut, key=lambda pair: len(pair[1])):
        parts = len(ends) - 1
        for part, (first, last) in enumerate(pairwise(ends)):
            if parts > 2 and time.monotonic() > until:
                return seen == set(axes), None
            results = calls.computed(axis, first, last, part, parts)
            cells = [_result_cells(shape, axis, first, last, result) for result in whole]
            expected = [result[own] for result, own in zip(whole, cells, strict=True)]
            # The run shows the error of a part without results, if its blocks raise it too.
            if results is None or [one.shape for one in results] != [one.shape for one in expected]:
                continue
            seen.add(axis)
            difference = _difference(axis, expected, results)
            if difference is not None:
                return True, Difference(axis, *difference, _same_again(calls, whole))
    return seen == set(axes), None


def _along(axis: int, first: int, last: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(first, last))


def _result_cells(shape: Shape, axis: int, first: int, last: int, result: Array) -> tuple[slice, ...]:
    """Return where a result has the cells for an input's from `first` to `last` along an axis."""
    length = result.shape[axis]
    return _along(axis, first * length // shape[axis], last * length // shape[axis])


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


def _difference(
    axis: int, expected: Sequence[HostArray], results: Results
) -> tuple[bool, float | None] | None:
    """Return whether a part differs at all places along an axis, and by how much if it is rounding; None if
    its bits are the whole array's. Other types are left to the run, which refuses them."""
    for own, result in zip(expected, results, strict=True):
        if own.dtype != result.dtype or _equal(own, result):
            continue
        differs = _differing(own, result)
        if differs.any():
            others = tuple(a for a in range(differs.ndim) if a != axis)
            return bool(differs.any(axis=others).all()), _rounding(own, result)
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
    relative = (
        float(np.abs(one.astype(wide) - other.astype(wide)).max()) / magnitude if magnitude else math.inf
    )
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
    from meshrun.runner.compiler.lint.causes import explain

    cause = explain(task, found.axis, everywhere=found.everywhere, repeatable=found.repeatable)
    if cause is None:
        hint = f"a function of each cell and its neighbours; or {accepted}"
        return UserError(what, hint=hint, everywhere=True)
    return UserError(f"{what}. {cause.sentence}", hint=f"{cause.hint}; or {accepted}", everywhere=True)
