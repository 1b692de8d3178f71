"""How an array is split over ranks during a Fourier transform: pure integer arithmetic.

The ranks form a grid of one axis (slabs) or two (pencils); each axis of the grid splits one axis of the
array. An axis can be transformed where it is whole, so the split moves from axes that are still to be
transformed to others, by an all-to-all among the ranks along that axis of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Literal

from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition, bounds, factorizations
from meshrun.runner.region import Region, Shape
from meshrun.runner.spelling import option

Decomposition = Literal["auto", "slab", "pencil"]
Real = Literal["", "forward", "inverse"]

# What a cell of an all-to-all costs, as a multiple of a cell of a transform along one axis. On H200s, with
# bytes at 4.3 TB/s of memory and 0.34 TB/s of NVLink: 2 / 4.3 to 1 / 0.34, and packing.
EXCHANGE = 6.0
RANKS_MOST = 1 << 17  # that are looked at for enough memory


@dataclass(frozen=True)
class Transform:
    """Transform these axes, which are whole. shape: of the whole array, after it.

    half: it is the one axis of a real transform that loses or gets back its half.
    """

    axes: Shape
    shape: Shape
    half: bool = False


@dataclass(frozen=True)
class Redistribution:
    """Move the split of an axis of the grid from `old` to `new`."""

    grid_axis: int
    old: int
    new: int
    shape: Shape


@dataclass(frozen=True)
class Passage:
    """An exchange in parts along the axis `along`, and the transforms of each part before and after it."""

    exchange: Redistribution
    along: int
    before: tuple[Transform, ...]
    after: tuple[Transform, ...]


@dataclass(frozen=True)
class TransformPlan:
    """The stages of one transform.

    shape: of the input. grid: number of ranks along each axis of the grid. splits: per axis of the grid, the
    array's axis that it splits at first. last_splits, last_shape: after all stages.
    """

    shape: Shape
    grid: Shape
    splits: Shape
    stages: tuple[Transform | Redistribution, ...]

    @cached_property
    def last_shape(self) -> Shape:
        return self.stages[-1].shape if self.stages else self.shape

    @cached_property
    def last_splits(self) -> Shape:
        splits = list(self.splits)
        for stage in self.stages:
            if isinstance(stage, Redistribution):
                splits[stage.grid_axis] = stage.new
        return tuple(splits)

    @property
    def exchanges(self) -> list[Redistribution]:
        return [stage for stage in self.stages if isinstance(stage, Redistribution)]

    @cached_property
    def steps(self) -> tuple[Transform | Passage, ...]:
        """The same transforms and exchanges, in the order in which they are done: those that can be done on
        parts of the array are, beside the exchange of other parts."""
        runs: list[list[Transform]] = [[]]
        for stage in self.stages:
            if isinstance(stage, Redistribution):
                runs.append([])
            else:
                runs[-1].append(stage)
        splits, steps = list(self.splits), list[Transform | Passage]()
        run = runs[0]
        for exchange, following in zip(self.exchanges, runs[1:], strict=True):
            passages = [
                _passage(exchange, along, run, following) for along in _cuttable(exchange, self.grid, splits)
            ]
            # Most transforms beside the exchange; of equals the outermost axis, whose parts are contiguous.
            first, passage, run = max(
                passages,
                key=lambda one: (_axes(one[1].before) + _axes(one[1].after), -one[1].along),
            )
            steps += [*first, passage]
            splits[exchange.grid_axis] = exchange.new
        return (*steps, *run)

    @property
    def name(self) -> str:
        return "slab" if len(self.grid) == 1 else "pencil"

    @property
    def first(self) -> Split:
        return Split(self.shape, self.grid, self.splits)

    @property
    def last(self) -> Split:
        return Split(self.last_shape, self.grid, self.last_splits)

    @cached_property
    def cost(self) -> float:
        """Relative time of the slowest rank, that with the largest blocks."""
        splits, cells, total = list(self.splits), largest(self.shape, self.grid, self.splits), 0.0
        for stage in self.stages:
            if isinstance(stage, Transform):
                after = largest(stage.shape, self.grid, splits)
                total += max(cells, after) * len(stage.axes)
            else:
                splits[stage.grid_axis] = stage.new
                after = largest(stage.shape, self.grid, splits)
                total += EXCHANGE * max(cells, after) * (1 - 1 / self.grid[stage.grid_axis])
            cells = after
        return total

    @cached_property
    def largest_block(self) -> int:
        """Cells of the largest block of any rank at any stage."""
        splits, found = list(self.splits), [largest(self.shape, self.grid, self.splits)]
        for stage in self.stages:
            if isinstance(stage, Redistribution):
                splits[stage.grid_axis] = stage.new
            found.append(largest(stage.shape, self.grid, splits))
        return max(found)

    @cached_property
    def busy(self) -> int:
        """The least number of ranks with cells, over all stages."""
        shape, splits, found = self.shape, list(self.splits), []
        for stage in (None, *self.stages):
            if isinstance(stage, Redistribution):
                splits[stage.grid_axis] = stage.new
            shape = stage.shape if stage else shape
            found.append(math.prod(min(n, shape[axis]) for n, axis in zip(self.grid, splits, strict=True)))
        return min(found)


@dataclass(frozen=True)
class Split:
    """An array of `shape` whose axes `splits` are split by the axes of a grid of ranks, in C order."""

    shape: Shape
    grid: Shape
    splits: Shape

    def transposed(self, order: Sequence[int]) -> Split:
        """Return the split of the array with its axes in this order."""
        splits = tuple(list(order).index(axis) for axis in self.splits)
        return Split(tuple(self.shape[axis] for axis in order), self.grid, splits)

    def __getitem__(self, rank: int) -> Region:
        """Return a rank's region."""
        start, stop = [0] * len(self.shape), list(self.shape)
        places = Partition(self.grid, self.grid).coordinates(rank)
        for axis, parts, place in zip(self.splits, self.grid, places, strict=True):
            start[axis], stop[axis] = bounds(self.shape[axis], parts, place)
        return Region(tuple(start), tuple(stop))


def _cuttable(exchange: Redistribution, grid: Shape, splits: Sequence[int]) -> list[int]:
    """Return the axes of which every rank has several cells; if there are none, the one that is split."""
    parts = {axis: grid[number] for number, axis in enumerate(splits)}
    parts[exchange.new] = parts[exchange.old]
    several = [axis for axis, n in enumerate(exchange.shape) if n >= 2 * parts.get(axis, 1)]
    return several or [exchange.old]


def _passage(
    exchange: Redistribution, along: int, run: Sequence[Transform], following: Sequence[Transform]
) -> tuple[list[Transform], Passage, list[Transform]]:
    """Return an exchange in parts along an axis, with the transforms to do before and after all parts.

    run, following: the transforms before and after the exchange. A part has not the whole of the axis
    `along`. If `along` is split, there are no parts while the ranks' ranges of it are together.
    """
    first, before, after, last = list[Transform](), list(run), list(following), list[Transform]()
    if along == exchange.new:
        first, before = before, []
    elif along == exchange.old:
        after, last = [], after
    whole = [number for number, stage in enumerate(before) if along in stage.axes]
    if whole:
        alone, rest = _apart(before[whole[-1]], along)
        first, before = [*before[: whole[-1]], alone], [*rest, *before[whole[-1] + 1 :]]
    whole = [number for number, stage in enumerate(after) if along in stage.axes]
    if whole:
        alone, rest = _apart(after[whole[0]], along)
        after, last = [*after[: whole[0]], *rest], [alone, *after[whole[0] + 1 :]]
    return first, Passage(exchange, along, tuple(before), tuple(after)), last


def _apart(stage: Transform, axis: int) -> tuple[Transform, list[Transform]]:
    """Return the transform along one of a stage's axes, and that along the others."""
    others = tuple(other for other in stage.axes if other != axis)
    return replace(stage, axes=(axis,)), [replace(stage, axes=others)] if others else []


def _axes(stages: Sequence[Transform]) -> int:
    return sum(len(stage.axes) for stage in stages)


def largest(shape: Shape, grid: Shape, splits: Sequence[int]) -> int:
    """Return the cells of the largest block: that of rank 0."""
    lengths = list(shape)
    for parts, axis in zip(grid, splits, strict=True):
        start, stop = bounds(lengths[axis], parts, 0)
        lengths[axis] = stop - start
    return math.prod(lengths)


def stages_of(
    shape: Shape, axes: Sequence[int], grid: Shape, splits: Shape, real: Real, length: int
) -> TransformPlan | None:
    """Return the stages from an initial split; None if there are none: fewer whole axes than needed.

    axes: to transform; with `real`, the last one is the one whose other half is left out, and `length` its
    number of cells after the transform.
    """
    half = axes[-1] if real else None
    remaining, current, now, stages = list(axes), shape, list(splits), list[Transform | Redistribution]()
    while remaining:
        # The half axis is transformed first when it loses its half, and last when it gets it back.
        if real == "forward" and half in remaining:
            wanted = [half] if half not in now else []
        else:
            wanted = [axis for axis in remaining if axis not in now and (axis != half or remaining == [half])]
        if wanted:
            halves = half is not None and wanted == [half]
            if halves:
                current = tuple(length if axis == half else n for axis, n in enumerate(current))
            stages.append(Transform(tuple(wanted), current, halves))
            remaining = [axis for axis in remaining if axis not in wanted]
            continue
        need = [half] if real == "forward" and half in remaining else remaining
        old = max((axis for axis in need if axis in now), key=lambda axis: (axis != half, now.index(axis)))
        free = [axis for axis in range(len(shape)) if axis not in now]
        if not free:
            return None
        # To an axis that is done, if there is one, and of these the longest.
        new = max(free, key=lambda axis: (axis not in remaining, current[axis], -axis))
        grid_axis = now.index(old)
        stages.append(Redistribution(grid_axis, old, new, current))
        now[grid_axis] = new
    return TransformPlan(shape, grid, splits, tuple(stages))


def plan_transform(
    shape: Shape,
    axes: Sequence[int],
    ranks: int,
    *,
    real: Real = "",
    length: int = 0,
    decomposition: Decomposition = "auto",
    split: int | None = None,
) -> TransformPlan:
    """Return the cheapest plan by a model of cells and ranks (`TransformPlan.cost`).

    split: the input's split, of slabs, which may leave ranks without cells; None: chosen. Raises UserError if
    the array cannot be split so.
    """
    if ranks == 1:
        return _alone(shape, axes, real, length, split or 0)
    found = [
        plan
        for grid in _grids(ranks, len(shape), decomposition)
        for splits in permutations(range(len(shape)), len(grid))
        if split is None or splits == (split,)
        if (plan := stages_of(shape, axes, grid, splits, real, length)) is not None
    ]
    if not found:
        kind = "pencils" if decomposition == "pencil" else "parts"
        raise UserError(
            f"this transform cannot be split into {ranks} {kind}",
            got=f"shape {shape}, transformed along {_listed(axes)}",
            expected="three axes or more, and ranks that are no prime number"
            if decomposition == "pencil"
            else "another axis, along which to split it while this one is transformed",
            hint=option("decomposition", "auto") if decomposition == "pencil" else option("ranks", 1),
            everywhere=True,
        )
    best = min(found, key=lambda plan: (plan.cost, len(plan.grid), plan.splits))
    if best.busy < ranks and decomposition != "auto" and split is None and 0 not in shape:
        raise UserError(
            f"more ranks than {'planes' if best.name == 'slab' else 'pencils'}",
            got=f"{ranks} ranks for an array of shape {shape}",
            expected=f"at most {best.busy}",
            hint=f"{option('ranks', best.busy)}, or {option('decomposition', 'auto')}",
            everywhere=True,
        )
    return best


def enough_ranks(
    shape: Shape,
    axes: Sequence[int],
    cells: int,
    least: int,
    *,
    real: Real,
    length: int,
    decomposition: Decomposition,
) -> int | None:
    """Return a number of ranks, `least` or more, whose blocks have at most so many cells; None if none has.

    Numbers that the blocks need at least are tried one after the other, then in steps of a sixteenth.
    """
    ranks = max(least, -(-math.prod(shape) // max(cells, 1)))
    while cells > 0 and ranks <= RANKS_MOST:
        try:
            plan = plan_transform(shape, axes, ranks, real=real, length=length, decomposition=decomposition)
        except UserError:
            plan = None
        if plan is not None and plan.largest_block <= cells:
            return ranks
        ranks += max(ranks // 16, 1)
    return None


def _alone(shape: Shape, axes: Sequence[int], real: Real, length: int, split: int) -> TransformPlan:
    """Return the plan of a single rank, where every axis is whole."""
    inner = stages_of((*shape, 1), axes, (1,), (len(shape),), real, length)
    assert inner is not None
    stages = tuple(replace(one, shape=one.shape[:-1]) for one in inner.stages)
    return TransformPlan(shape, (1,), (split,), stages)


def _grids(ranks: int, axes: int, decomposition: Decomposition) -> Iterator[Shape]:
    if decomposition != "pencil":
        yield (ranks,)
    if decomposition != "slab" and axes >= 3:
        yield from (grid for grid in factorizations(ranks, 2) if min(grid) > 1)


def _listed(axes: Sequence[int]) -> str:
    return f"ax{'is' if len(axes) == 1 else 'es'} {', '.join(map(str, axes))}"
