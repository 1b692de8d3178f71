"""Fourier transforms of arrays that are split over ranks, with NumPy's conventions.

The transform of x along axes of n_j cells is X[k] = sum over m of x[m] exp(-2 pi i sum over j of k_j m_j /
n_j), as in numpy.fft. Along a whole axis it is computed by scipy.fft if it is installed, else by numpy.fft;
on GPUs by cuFFT through cupy.fft, which keeps its plans, or by `runner.device.fourier_lines`.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from meshrun.runner.arrays.redistribute import exchange_in_parts
from meshrun.runner.errors import UserError
from meshrun.runner.plan.redistribution import change_split, count_parts
from meshrun.runner.region import Array, HostArray, Shape
from meshrun.runner.spelling import joined, option
from meshrun.runner.transforms.plan import Passage, Real, Transform, TransformPlan
from meshrun.runner.world.group import Group

Execute = Callable[[Array, Array], None]  # transforms from one array to another
PLAN_MOST = 2**31 - 1  # lines of a plan of cuFFT, and elements from one cell of a line to the next
CACHE_LINE = 64  # bytes
CACHE_WAY = 4096  # bytes: cells that lie so far apart have the same few places in a processor's first cache
CROWD = 128  # cells, at least, along an axis that do not fit there
PART_BYTES = 512 << 10  # of a block that are copied and transformed at once, per thread
Norm = Literal["backward", "ortho", "forward"]
NORMS = ("backward", "ortho", "forward")
COMPLEX: dict[int, np.dtype[Any]] = {
    4: np.dtype(np.complex64),
    8: np.dtype(np.complex128),
}  # by bytes of a real number


def has_scipy() -> bool:
    """Whether scipy.fft transforms on CPUs, which works in place and in the array's precision."""
    return importlib.util.find_spec("scipy") is not None


class Local:
    """Transforms along whole axes of blocks. module: numpy or cupy. workers: threads, on a CPU."""

    def __init__(
        self, module: Any, inverse: bool, real: Real, norm: str, length: int, workers: int = 1
    ) -> None:
        self.module, self.inverse, self.real, self.norm, self.length = module, inverse, real, norm, length
        self.workers = workers
        self._more: dict[str, Any] = {}
        self._fft = module.fft
        self._scipy = module is np and has_scipy()
        if self._scipy:
            self._fft, self._more = importlib.import_module("scipy.fft"), {"workers": workers}

    @property
    def library(self) -> str:
        """What transforms, such as "scipy.fft"."""
        return "cuFFT" if self.module is not np else str(self._fft.__name__)

    def __call__(self, block: Array, stage: Transform, overwrite: bool = False) -> Array:
        """Return the transform of a block along the stage's axes, which are whole.

        overwrite: the block is no longer needed, and may be what is returned.
        """
        if block.size == 0:
            lengths = list(block.shape)
            for axis in stage.axes:
                lengths[axis] = stage.shape[axis]
            return self.module.empty(lengths, self.result_type(np.dtype(block.dtype), stage.half))
        if stage.half and self.inverse:
            return self._of("irfft", block, n=self.length, axis=stage.axes[0])
        if stage.half:
            return self._of("rfft", block, axis=stage.axes[0])
        more = {"overwrite_x": True} if overwrite and self._scipy else {}
        strides = self._plan_strides(block, stage.axes)
        if strides is not None:
            return self._by_plan(block, stage.axes[0], *strides)
        if self._scipy and len(stage.axes) == 1 and is_crowded(block, stage.axes[0]):
            return self._by_parts(block, stage.axes[0], overwrite=overwrite)
        if len(stage.axes) == 1:
            found = self._of("ifft" if self.inverse else "fft", block, axis=stage.axes[0], **more)
        else:
            found = self._of("ifftn" if self.inverse else "fftn", block, axes=stage.axes, **more)
        return block if more and np.may_share_memory(found, block) else found

    def _by_parts(self, block: HostArray, axis: int, *, overwrite: bool) -> HostArray:
        """Return the transform along an axis whose cells crowd each other out of the cache.

        Parts of the block are transformed in memory where the cells lie further apart by a cache line.
        """
        out = block if overwrite else np.empty(block.shape, block.dtype)
        length, after = block.shape[axis], block.shape[axis + 1 :]
        cells = math.prod(after[1:])  # of an index along the next axis
        step = min(max(PART_BYTES * self.workers // (length * cells * block.itemsize), 1), after[0])
        memory = np.empty((length, step * cells + CACHE_LINE // block.itemsize), block.dtype)
        for plane in np.ndindex(block.shape[:axis]):
            for begin in range(0, after[0], step):
                part = (*plane, slice(None), slice(begin, begin + step))
                lengths = block[part].shape
                room = memory[:, : math.prod(lengths[1:])].reshape(lengths)  # a view: an axis is split only
                room[...] = block[part]
                out[part] = self._of("ifft" if self.inverse else "fft", room, axis=0, overwrite_x=True)
        return out

    def result_type(self, dtype: np.dtype[Any], half: bool) -> np.dtype[Any]:
        """Return the dtype that a transform of a block of `dtype` has."""
        return result_type(dtype, self.real if half else "")

    def _plan_strides(self, block: Array, axes: Sequence[int]) -> tuple[int, int] | None:
        """Return the elements from a cell to the next, and from a line to the next, if one plan of cuFFT can
        transform a block without copies: along an axis with cells before it or after it, not both."""
        if self.module is np or len(axes) != 1 or not block.flags.c_contiguous:
            return None
        (axis,) = axes
        before, after = math.prod(block.shape[:axis]), math.prod(block.shape[axis + 1 :])
        if (before > 1 and after > 1) or max(before, after) > PLAN_MOST:
            return None
        return (1, block.shape[axis]) if after == 1 else (after, 1)

    def _by_plan(self, block: Array, axis: int, stride: int, distance: int) -> Array:
        """Return the transform along an axis by one plan, from where the block lies. cupy.fft copies a block
        to where its cells along another axis than the last are together, and the result back."""
        from meshrun.runner.device.fourier_lines import line_plan

        length, batch = block.shape[axis], block.size // block.shape[axis]
        execute = None
        if distance == 1:
            execute = line_plan(length, batch, (stride, stride), block.dtype, self.inverse)
        if execute is None:
            execute = self._cufft_plan(axis, (length, stride, distance), batch, block.dtype)
        out = self.module.empty(block.shape, block.dtype)
        execute(block, out)
        divided = {"backward": self.inverse, "forward": not self.inverse}
        if self.norm == "ortho":
            out /= math.sqrt(block.shape[axis])
        elif divided[self.norm]:
            out /= block.shape[axis]
        return out

    def _cufft_plan(
        self, axis: int, layout: tuple[int, int, int], batch: int, dtype: np.dtype[Any]
    ) -> Execute:
        """Return a plan of cuFFT. layout: cells of a line; elements to the next cell, to the next line."""
        cufft = self.module.cuda.cufft
        kind = {8: cufft.CUFFT_C2C, 16: cufft.CUFFT_Z2Z}[dtype.itemsize]
        lengths, *steps = (layout[0],), *layout[1:]
        # The arguments of PlanNd, under which cupy.fft keeps its plans, too.
        key = (lengths, lengths, *steps, lengths, *steps, kind, batch, "C", axis, None)
        plans = self.module.fft.config.get_plan_cache()
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = cufft.PlanNd(*key)
        direction = cufft.CUFFT_INVERSE if self.inverse else cufft.CUFFT_FORWARD
        return lambda source, out: plan.fft(source, out, direction)

    def _of(self, name: str, block: Array, **options: Any) -> Array:
        return getattr(self._fft, name)(block, norm=self.norm, **options, **self._more)


def is_crowded(block: HostArray, axis: int) -> bool:
    """Return whether the cells along an axis of a block on a CPU crowd each other out of the cache.

    They do if they lie a large power of two of bytes apart: as the columns of 512 x 512 cells of complex64.
    """
    if block.dtype.kind != "c" or axis == block.ndim - 1:
        return False
    return block.strides[axis] % CACHE_WAY == 0 and block.shape[axis] >= CROWD


def carry_out(
    plan: TransformPlan, groups: Sequence[Group], local: Local, block: Array, *, overwrite: bool = False
) -> Array:
    """Return this rank's block after all stages. Collective.

    groups: the ranks along each axis of the plan's grid; none for a single process. overwrite: the block is
    no longer needed.
    """
    given = None if overwrite else block
    for step in plan.steps:
        if isinstance(step, Transform):
            block = local(block, step, block is not given)
        else:
            block = _pass(step, groups[step.exchange.grid_axis], local, block, block is not given)
    return block


def _pass(passage: Passage, group: Group, local: Local, block: Array, overwrite: bool) -> Array:
    """Return the block after an exchange, with the transforms of its parts. Collective."""
    exchange, along = passage.exchange, passage.along
    old, new = exchange.old, exchange.new
    shape, dtype = list(block.shape), np.dtype(block.dtype)
    shape[old] = exchange.shape[old]  # the ranks of the group share all of the array that they have together
    for stage in passage.before:
        dtype = local.result_type(dtype, stage.half)
        for axis in stage.axes:
            shape[axis] = stage.shape[axis]
    parts = count_parts(tuple(shape), old, new, along, group.size, dtype.itemsize)
    plan = change_split(tuple(shape), old, new, along, group.size, parts)
    moved, kind = plan.after[group.rank].shape, dtype
    shape = list(moved)
    for stage in passage.after:
        kind = local.result_type(kind, stage.half)
        for axis in stage.axes:
            shape[axis] = stage.shape[axis]
    result = group.backend.empty(tuple(shape), kind)
    in_place = tuple(shape) == moved and kind == dtype

    def ready(number: int) -> Array:
        part = block[plan.sent_cells(group.rank, number)]
        for index, stage in enumerate(passage.before):
            part = local(part, stage, overwrite or index > 0)
        return part

    def land(number: int) -> Array:
        if in_place:
            return result[plan.received_cells(group.rank, number)]
        return group.backend.empty(plan.received(group.rank, number).shape, dtype)

    def finish(number: int, part: Array) -> None:
        landed = part
        for stage in passage.after:
            part = local(part, stage, True)
        if not in_place or part is not landed:
            result[plan.received_cells(group.rank, number)] = part

    exchange_in_parts(group, plan, ready, land, finish)
    return result


def checked_axes(shape: Shape, axes: Sequence[int] | int | None, real: Real, length: int | None) -> Shape:
    """Return the axes, counted from the first; UserError unless there are such axes, each once, with cells.

    length: of the result along the last axis, for an inverse real transform.
    """
    one = (int(axes),) if isinstance(axes, (int, np.integer)) else axes
    given = range(len(shape)) if one is None else one
    for axis in given:
        check_axis(axis, shape)
    if not shape:
        raise UserError("an array without axes cannot be transformed", got="shape ()")
    chosen = tuple(axis % len(shape) for axis in given)
    if not chosen or len(set(chosen)) < len(chosen):
        got = ", ".join(map(str, given)) or "none"
        raise UserError("the axes to transform must be given, each once", got=got, hint=option("axes", "0,1"))
    empty = [axis for axis in chosen if shape[axis] == 0]
    if empty:
        raise UserError(f"axis {empty[0]} has no cells to transform", got=f"shape {shape}")
    if length is not None and real != "inverse":
        raise UserError(
            "a length applies to inverse real transforms only",
            got=length,
            hint=joined(option("inverse", True), option("real", True)),
        )
    if real == "inverse" and half_length(shape, chosen, real, length) < 1:
        raise UserError(
            "the inverse real transform would have no cells",
            got=f"{shape[chosen[-1]]} along axis {chosen[-1]}" if length is None else f"a length of {length}",
            expected="a length of 1 or more",
            hint=option("length", 1) if length is None else None,
        )
    return chosen


def check_axis(axis: int, shape: Shape, use: str = "") -> None:
    if not -len(shape) <= axis < len(shape):
        expected = f"{-len(shape)} to {len(shape) - 1}" if shape else "an array with axes"
        raise UserError(f"there is no axis {axis}{use}", got=f"shape {shape}", expected=expected)


def half_length(shape: Shape, axes: Shape, real: Real, length: int | None) -> int:
    """Return the cells along the last axis after a real transform; 0 for others."""
    cells = shape[axes[-1]]
    if real == "forward":
        return cells // 2 + 1
    if real == "inverse":
        return 2 * (cells - 1) if length is None else length
    return 0


def check_norm(norm: str) -> None:
    if norm not in NORMS:
        raise UserError("unknown norm", got=norm, expected=", ".join(NORMS))


def working_type(dtype: np.dtype[Any], real: Real) -> np.dtype[Any]:
    """Return the dtype in which an array is transformed; UserError if it cannot be."""
    if dtype.kind in "biu":
        wide: np.dtype[Any] = np.dtype(np.float64)
    elif dtype.kind in "fc" and dtype.name in ("float16", "float32", "float64", "complex64", "complex128"):
        wide = np.dtype(np.float32) if dtype == np.float16 else dtype.newbyteorder("=")
    else:
        raise UserError(
            "the Fourier transform of this dtype is not available",
            got=dtype,
            expected="float16, float32, float64, complex64, complex128, integers or bool",
        )
    if real == "forward" and wide.kind == "c":
        raise UserError(
            "a real transform takes real numbers",
            got=dtype,
            hint=f"leave {option('real')} out, or add {option('inverse', True)}",
        )
    return wide if real == "forward" or wide.kind == "c" else COMPLEX[wide.itemsize]


def result_type(dtype: np.dtype[Any], real: Real) -> np.dtype[Any]:
    """Return the dtype of the transform of an array of a working type."""
    if real == "inverse":
        return np.dtype(f"f{dtype.itemsize // 2}")
    return COMPLEX[dtype.itemsize] if dtype.kind == "f" else dtype
