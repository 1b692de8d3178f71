"""Task: one map job planned for its arrays, with their partition, halo and result types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from runner.errors import RunError, UserError
from runner.job.block_context import BlockContext
from runner.job.declaration import Job
from runner.plan.grid import Partition, parse_grid
from runner.plan.halo import BOUNDARIES, Widths, check_widths, normalize
from runner.region import Array, Region, Shape

NUMBERS = "biufc"  # kinds of dtypes
ArrayType = tuple[Shape, np.dtype[Any]]


@dataclass(frozen=True)
class Field:
    """One input array of a task. widths: its halo per axis; axes that other inputs do not have get none."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    partition: Partition
    widths: Widths

    @property
    def padded_shape(self) -> Shape:
        """Shape of the largest block, that of rank 0, with its halo."""
        return self.padded(self.partition[0].shape)

    def padded(self, cells: Shape) -> Shape:
        return tuple(n + sum(width) for n, width in zip(cells, self.widths, strict=True))


class TaskKernel(Protocol):
    """Computes what a job's function returns, to the bit."""

    def __call__(self, blocks: Sequence[Array], outs: Sequence[Array]) -> None:
        """Fill `outs`, one per result, from padded blocks; rows of either may be apart in memory."""


@dataclass(frozen=True)
class Task:
    """One map job, its parameters, and its input arrays with their partition.

    results: shape and dtype of each output array; None until they are known. steps: taken on each chunk.
    kernel: is called in place of the function; the results are known then.
    `shape`, `dtype`, `partition` and `widths` are those of the first input, in whose indices regions and the
    block context are given.
    """

    job: Job
    parameters: dict[str, Any]
    fields: tuple[Field, ...]
    boundary: str
    cval: float
    results: tuple[ArrayType, ...] | None = None
    steps: int = 1
    kernel: TaskKernel | None = None

    @property
    def shape(self) -> Shape:
        return self.fields[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.fields[0].dtype

    @property
    def partition(self) -> Partition:
        return self.fields[0].partition

    @property
    def widths(self) -> Widths:
        return self.fields[0].widths

    @property
    def known(self) -> tuple[ArrayType, ...]:
        """The `results`, which must be known."""
        assert self.results is not None
        return self.results

    @cached_property
    def cut_axes(self) -> tuple[bool, ...]:
        """Whether each axis may be computed in parts: axis 0, split axes and axes with a halo."""
        parted = (
            axis == 0 or parts > 1 or width != (0, 0)
            for axis, (parts, width) in enumerate(zip(self.partition.grid, self.widths, strict=True))
        )
        return tuple(parted)

    @property
    def fills(self) -> bool:
        """Whether the results are filled in arrays of the runner's, instead of being returned."""
        return self.kernel is not None or "out" in self.job.services

    @property
    def strided_out(self) -> bool:
        """Whether the results that are filled may have their rows apart in memory."""
        return self.kernel is not None or self.job.strided_out

    @property
    def has_halo(self) -> bool:
        return any(width != (0, 0) for width in self.widths)

    @property
    def leading(self) -> int:
        """Number of leading axes that inputs and results share: up to the last cut axis."""
        return max(axis + 1 for axis, cut in enumerate(self.cut_axes) if cut)

    def field_region(self, number: int, region: Region) -> Region:
        """Return the region of input `number` beside `region`, which is in the first input's indices."""
        return self._beside(region, self.fields[number].shape) if number else region

    def output_region(self, region: Region, number: int = 0) -> Region:
        """Return the region of output `number` that holds the result for `region` of the first input."""
        return self._beside(region, self.known[number][0])

    def _beside(self, region: Region, shape: Shape) -> Region:
        tail = shape[self.leading :]
        return Region(
            region.start[: self.leading] + (0,) * len(tail), region.stop[: self.leading] + tuple(tail)
        )

    def input_bytes(self, region: Region) -> int:
        """Bytes of all inputs in a region."""
        return sum(
            self.field_region(number, region).size * field.dtype.itemsize
            for number, field in enumerate(self.fields)
        )

    def padded_bytes(self, region: Region) -> int:
        """Bytes of all inputs in a region with its halo."""
        return sum(
            math.prod(field.padded(self.field_region(number, region).shape)) * field.dtype.itemsize
            for number, field in enumerate(self.fields)
        )

    def result_bytes(self, region: Region) -> int:
        """Bytes of all results for a region; one that is not known counts as large as the first input."""
        types = self.results or ((self.shape, self.dtype),) * len(self.job.output_names)
        cells = math.prod(region.shape[: self.leading])
        return sum(cells * math.prod(shape[self.leading :]) * dtype.itemsize for shape, dtype in types)

    def declared(self, shape: Shape) -> tuple[ArrayType, ...] | None:
        """Shape and dtype of each result for own cells of `shape`; None if only a call can tell."""
        job = self.job
        if self.kernel is not None:
            leading = shape[: self.leading]
            return tuple((leading + known[self.leading :], dtype) for known, dtype in self.known)
        if job.out is not None:
            found = job.out(shape, self.dtype, **self.parameters)
            pairs = [found] if len(job.output_names) == 1 else found
            return tuple((tuple(out_shape), np.dtype(out_dtype)) for out_shape, out_dtype in pairs)
        if not self.fills:
            return None
        return tuple(self._like_input(name, shape) for name in job.feeds or (None,))

    def _like_input(self, name: str | None, shape: Shape) -> ArrayType:
        """Shape and dtype of a result that is filled and not declared: as the input that it feeds."""
        number = next((n for n, field in enumerate(self.fields) if field.name == name), 0)
        field = self.fields[number]
        return shape[: self.leading] + (field.shape if number else shape)[self.leading :], field.dtype

    def with_results(self, types: Sequence[ArrayType]) -> Task:
        """types: per result, the lengths of its axes after the `leading` ones, and its dtype."""
        leading = self.shape[: self.leading]
        return replace(self, results=tuple((leading + tail, dtype) for tail, dtype in types))

    def with_grid(self, grid: Shape) -> Task:
        """Return the task with another partition. grid: one number per axis of the first input."""
        fields = tuple(
            replace(field, partition=Partition(field.shape, _grid_of(grid, len(field.shape))))
            for field in self.fields
        )
        return replace(self, fields=fields)

    def call(
        self, blocks: Sequence[Array], here: BlockContext, outs: Sequence[Array] | None
    ) -> tuple[Array, ...]:
        """Call the job on padded blocks; return its results, checked (RunError for a wrong type or shape)."""
        if self.kernel is not None:
            assert outs is not None
            self.kernel(blocks, outs)
            return tuple(outs)
        out = None if outs is None else outs[0] if len(outs) == 1 else tuple(outs)
        services = {"out": out, "xp": here.xp, "here": here}
        wanted = {name: services[name] for name in self.job.services}
        returned = self.job.function(*blocks, **wanted, **self.parameters)
        if returned is None and outs is not None:
            returned = tuple(outs)
        results = self._separate(returned)
        declared = self.declared(here.block) or (None,) * len(results)
        for name, result, expected in zip(self.job.output_names, results, declared, strict=True):
            self._check(result, here, None if expected is None else expected[0], name)
        return results

    def _separate(self, returned: Any) -> tuple[Array, ...]:
        """Return the results as a tuple of as many as are declared."""
        names = self.job.output_names
        if len(names) == 1:
            return returned if isinstance(returned, tuple) and len(returned) == 1 else (returned,)
        if isinstance(returned, (tuple, list)) and len(returned) == len(names):
            return tuple(returned)
        count = len(returned) if isinstance(returned, (tuple, list)) else 1
        raise RunError(
            f"job {self.job.name} did not return {len(names)} results",
            got=f"{count} ({type(returned).__name__})",
            expected=f"a tuple: {', '.join(names)}",
        )

    def _check(self, result: Any, here: BlockContext, declared: Shape | None, output: str) -> None:
        leading = here.block[: self.leading]
        name = self.job.name
        which = f" for {output}" if len(self.job.output_names) > 1 else ""
        if not isinstance(result, here.xp.ndarray):
            several = isinstance(result, (tuple, list))
            raise RunError(
                f"job {name} did not return an array{which}",
                got=f"{len(result)} results" if several else type(result).__name__,
                expected=f"a {here.xp.__name__} array of shape {here.block}",
                hint=f"outputs={len(result)} in the decorator"
                if several
                else "return the result, or fill the parameter `out`",
            )
        if result.dtype.kind not in NUMBERS:
            raise RunError(
                f"job {name} did not return numbers{which}",
                got=f"dtype {result.dtype}",
                expected="a numeric dtype",
            )
        if declared is not None and tuple(result.shape) != declared:
            raise RunError(
                f"job {name} returned a block of the wrong shape{which}", got=result.shape, expected=declared
            )
        if tuple(result.shape[: self.leading]) != leading:
            raise RunError(
                f"job {name} returned a block of the wrong shape{which}",
                got=result.shape,
                expected=f"{leading} first: the block without its halo",
                hint=f"halo=({self.job.halo}, {self.job.halo}): one number is for every axis, channels too"
                if isinstance(self.job.halo, int) and self.job.halo and len(self.shape) > 2
                else "out=(shape, dtype) -> (shape, dtype) in the decorator, if that is meant",
            )


def plan_task(
    job: Job,
    parameters: dict[str, Any],
    inputs: Sequence[ArrayType],
    ranks: int,
    *,
    grid: str | None = None,
    boundary: str | None = None,
    cval: float | None = None,
) -> Task:
    """Check the inputs against the job and partition them; raises UserError if they do not fit.

    inputs: shape and dtype of each array, in the order of the job's parameters.
    """
    for name, (shape, dtype) in zip(job.arrays, inputs, strict=True):
        which = f"the input {name}" if len(inputs) > 1 else "the input"
        if not shape:
            raise UserError(f"{which} is a scalar", got="no axes", expected="an array")
        if dtype.kind not in NUMBERS:
            raise UserError(f"{which} holds no numbers", got=f"dtype {dtype}", expected="a numeric dtype")
    shape, dtype = inputs[0]
    if job.check is not None:
        job.check(shape, dtype, **parameters)
    chosen = boundary or job.boundary
    if chosen not in BOUNDARIES:
        raise UserError("unknown boundary", got=chosen, expected=", ".join(BOUNDARIES))
    common = min(len(one) for one, _ in inputs)
    widths = normalize(job.halo_for(parameters), common)
    check_widths(widths, shape[:common])
    parts = parse_grid(str(ranks) if grid is None else grid, shape, ranks)
    constant = job.cval if cval is None else cval
    fields = []
    for name, (one, of_one) in zip(job.arrays, inputs, strict=True):
        if chosen == "constant":
            _check_constant(constant, of_one)
        wide = widths + ((0, 0),) * (len(one) - common)
        fields.append(Field(name, one, of_one, Partition(one, _grid_of(parts, len(one))), wide))
    task = Task(job, parameters, tuple(fields), chosen, constant)
    _check_same_grid(task)
    declared = task.declared(shape)
    if declared is not None:
        for result, _ in declared:
            if result[: task.leading] != shape[: task.leading]:
                raise _changes_a_cut_axis(task, result)
        task = replace(task, results=declared)
    return task


def _grid_of(grid: Shape, ndim: int) -> Shape:
    """Return `grid` for an array of `ndim` axes."""
    return (*grid, *(1,) * ndim)[:ndim]


def _check_same_grid(task: Task) -> None:
    """Raise UserError if inputs differ along an axis along which they are cut."""
    first, shared = task.fields[0], task.leading
    for field in task.fields[1:]:
        if field.shape[:shared] != first.shape[:shared]:
            axes = f"the first {shared} axes" if shared > 1 else "the first axis"
            raise UserError(
                f"job {task.job.name}: its inputs have different shapes",
                got=", ".join(f"{one.name} {'x'.join(map(str, one.shape))}" for one in task.fields),
                expected=f"the same lengths along {axes}, along which arrays are cut",
            )


def _changes_a_cut_axis(task: Task, result: Shape) -> UserError:
    """Axis 0 and axes up to the last with a halo are always cut; others only by --grid."""
    always = max((axis + 1 for axis, width in enumerate(task.widths) if width != (0, 0)), default=1)
    axes = f"lengths along the first {always} axes" if always > 1 else "length along the first axis"
    hint = f"a result with the input's {axes}, which every --grid cuts"
    if result[:always] == task.shape[:always]:
        hint = f"--grid {'x'.join('0' * always)}, which cuts no other axis"
    return UserError(
        f"job {task.job.name}: the result changes an axis along which the array is cut",
        got=f"{result} from {task.shape}",
        expected=f"the first {f'{task.leading} axes' if task.leading > 1 else 'axis'} unchanged",
        hint=hint,
    )


def _check_constant(cval: float, dtype: np.dtype[Any]) -> None:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not (float(cval).is_integer() and limits.min <= cval <= limits.max):
            raise UserError(
                "--cval does not fit the input's dtype",
                got=cval,
                expected=f"a whole number from {limits.min} to {limits.max} ({dtype})",
            )


def check_feeds(task: Task) -> None:
    """Raise UserError if an output cannot become the input that it feeds, or none feeds any."""
    job = task.job
    if not any(job.feeds):
        raise UserError(
            f"job {job.name} cannot take steps: none of its outputs feeds an input",
            expected="feeds= in its decorator",
        )
    fields = {field.name: field for field in task.fields}
    for output, name, (shape, dtype) in zip(job.output_names, job.feeds, task.known, strict=True):
        if name is None:
            continue
        field = fields[name]
        if (shape, dtype) != (field.shape, field.dtype):
            hint = f"return result.astype({field.dtype})" if shape == field.shape else "one pass, no --steps"
            raise UserError(
                f"job {job.name} cannot take steps: its {_what(job.output_names, output)} cannot become its "
                f"input {name}",
                got=f"{dtype} of shape {'x'.join(map(str, shape))}",
                expected=f"{field.dtype} of shape {'x'.join(map(str, field.shape))}",
                hint=hint,
            )


def _what(names: Sequence[str], name: str) -> str:
    return "result" if len(names) == 1 else f"result {name}"
