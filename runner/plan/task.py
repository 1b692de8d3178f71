"""Task: one map job planned for one array, with its partition, halo and result type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from runner.errors import RunError, UserError
from runner.job.block_context import BlockContext
from runner.job.declaration import Job
from runner.plan.grid import Partition, parse_grid
from runner.plan.halo import BOUNDARIES, Widths, check_widths, normalize
from runner.region import Array, Region, Shape

NUMBERS = "biufc"  # kinds of dtypes


@dataclass(frozen=True)
class Task:
    """One map job, its parameters, and the shape, dtype and partition of the array it is applied to.

    shape, dtype: of the input. result: shape and dtype of the output, None until it is known.
    """

    job: Job
    parameters: dict[str, Any]
    shape: Shape
    dtype: np.dtype[Any]
    partition: Partition
    widths: Widths
    boundary: str
    cval: float
    result: tuple[Shape, np.dtype[Any]] | None = None

    @property
    def known(self) -> tuple[Shape, np.dtype[Any]]:
        """`result`, once it is known."""
        assert self.result is not None
        return self.result

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
        """Whether the job fills the parameter `out` instead of returning a result."""
        return "out" in self.job.services

    @property
    def leading(self) -> int:
        """Number of leading axes that the result shares with the input: up to the last cut axis."""
        return max(axis + 1 for axis, cut in enumerate(self.cut_axes) if cut)

    def declared(self, shape: Shape) -> tuple[Shape, np.dtype[Any]] | None:
        """Shape and dtype of the result for own cells of `shape`; None if only a call can tell."""
        if self.job.out is not None:
            out_shape, out_dtype = self.job.out(shape, self.dtype, **self.parameters)
            return tuple(out_shape), np.dtype(out_dtype)
        return (shape, self.dtype) if self.fills else None

    def output_region(self, region: Region) -> Region:
        """Return the output region that holds the result of the input's `region`."""
        tail = self.known[0][self.leading :]
        return Region(
            region.start[: self.leading] + (0,) * len(tail), region.stop[: self.leading] + tuple(tail)
        )

    def with_result(self, tail: Shape, dtype: np.dtype[Any]) -> Task:
        return replace(self, result=(self.shape[: self.leading] + tail, dtype))

    def call(self, block: Array, here: BlockContext, out: Array | None) -> Array:
        """Call the job on a padded block; return its result, checked (RunError for a wrong type or shape)."""
        services = {"out": out, "xp": here.xp, "here": here}
        wanted = {name: services[name] for name in self.job.services}
        returned = self.job.function(block, **wanted, **self.parameters)
        result = out if returned is None else returned
        self._check(result, here)
        return result

    def _check(self, result: Any, here: BlockContext) -> None:
        declared = self.declared(here.block)
        leading = here.block[: self.leading]
        name = self.job.name
        if not isinstance(result, here.xp.ndarray):
            raise RunError(
                f"job {name} did not return an array",
                got=type(result).__name__,
                expected=f"a {here.xp.__name__} array of shape {here.block}",
                hint="return the result, or fill the parameter `out`",
            )
        if result.dtype.kind not in NUMBERS:
            raise RunError(
                f"job {name} did not return numbers", got=f"dtype {result.dtype}", expected="a numeric dtype"
            )
        if declared is not None and tuple(result.shape) != declared[0]:
            raise RunError(
                f"job {name} returned a block of the wrong shape", got=result.shape, expected=declared[0]
            )
        if tuple(result.shape[: self.leading]) != leading:
            raise RunError(
                f"job {name} returned a block of the wrong shape",
                got=result.shape,
                expected=f"{leading} first: the block without its halo",
                hint=f"halo=({self.job.halo}, {self.job.halo}): one number is for every axis, channels too"
                if isinstance(self.job.halo, int) and self.job.halo and len(self.shape) > 2
                else "out=(shape, dtype) -> (shape, dtype) in the decorator, if that is meant",
            )


def plan_task(
    job: Job,
    parameters: dict[str, Any],
    shape: Shape,
    dtype: np.dtype[Any],
    ranks: int,
    *,
    grid: str | None = None,
    boundary: str | None = None,
    cval: float | None = None,
) -> Task:
    """Check the input against the job and partition it; raises UserError if they do not fit."""
    if not shape:
        raise UserError("the input is a scalar", got="no axes", expected="an array")
    if dtype.kind not in NUMBERS:
        raise UserError("the input holds no numbers", got=f"dtype {dtype}", expected="a numeric dtype")
    if job.check is not None:
        job.check(shape, dtype, **parameters)
    chosen = boundary or job.boundary
    if chosen not in BOUNDARIES:
        raise UserError("unknown boundary", got=chosen, expected=", ".join(BOUNDARIES))
    widths = normalize(job.halo_for(parameters), len(shape))
    check_widths(widths, shape)
    parts = parse_grid(str(ranks) if grid is None else grid, shape, ranks)
    constant = job.cval if cval is None else cval
    if chosen == "constant":
        _check_constant(constant, dtype)
    task = Task(job, parameters, shape, dtype, Partition(shape, parts), widths, chosen, constant)
    declared = task.declared(shape)
    if declared is not None:
        if declared[0][: task.leading] != shape[: task.leading]:
            raise _changes_a_cut_axis(task, declared[0])
        task = replace(task, result=declared)
    return task


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
