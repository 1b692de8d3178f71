"""Permute the axes of an array that is split over ranks: redistribute in parts, and transpose each part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from meshrun.jobs import kernels
from meshrun.runner.arrays.operations.split_array import SplitArray
from meshrun.runner.arrays.redistribute import exchange_in_parts
from meshrun.runner.errors import UserError
from meshrun.runner.plan.redistribution import change_split, count_parts
from meshrun.runner.region import Array, Shape
from meshrun.runner.run.array_call import host_array
from meshrun.runner.run.main_program.remote_array import RemoteArray
from meshrun.runner.spelling import option, python_caller
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import World

EDGE = 128  # cells of a tile's edge on a CPU: two tiles fit the cache
WORD = {2: "uint16", 4: "uint32", 8: "uint64"}  # bytes of an element, for kernels that only move it


@python_caller()
def transpose(
    x: Array,
    world: World | None = None,
    *,
    axes: Sequence[int] | None = None,
    split: int = 0,
    to_split: int = 0,
) -> Array:
    """Return the array with its axes permuted, as numpy.transpose, as a C-contiguous copy. Collective.

    Parameters
    ----------
    x : numpy.ndarray, cupy.ndarray or DistributedArray
        This rank's part of an array that is split over all ranks of `world` (`World.redistribute`), or the
        whole array. Of any dtype.
    world : World, optional
        The ranks. None: `x` is the whole array. A distributed array knows its world.
    axes : sequence of int, optional
        For each axis of the result, that of `x`. None: in reverse.
    split : int
        The axis along which `x` is split.
    to_split : int
        The axis along which the result is split.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or DistributedArray
        This rank's part of the result, or the whole one.

    Raises
    ------
    UserError
        On every rank, for axes that are no permutation.

    Examples
    --------
    >>> turned = meshrun.transpose(u, axes=(2, 0, 1))
    """
    if isinstance(x, SplitArray | RemoteArray):
        return np.transpose(x, checked_permutation(x.shape, axes)).copy()
    x = x if hasattr(x, "__cuda_array_interface__") else host_array(x)
    order = checked_permutation(tuple(x.shape), axes)
    if world is not None:
        if not -x.ndim <= to_split < x.ndim:
            raise UserError(
                "there is no such axis to split", got=to_split, expected=f"{-x.ndim} to {x.ndim - 1}"
            )
        shape = world.whole_shape(x, split, axes=order, to_split=to_split % x.ndim)
        return exchanged(world, x, order, split % x.ndim, to_split % x.ndim, shape)
    return permuted(x, order)


def exchanged(
    group: Group, block: Array, order: Sequence[int], split: int, to_split: int, shape: Shape
) -> Array:
    """Return this rank's block of the permuted array, split along its axis `to_split`. Collective.

    block: of an array of `shape`, split along `split`. Parts are some rows of each rank's block of the
    result; while one is on its way, the next is packed, and the one before transposed.
    """
    new, rank = order[to_split], group.rank
    if group.size == 1 or new == split:
        return permuted(block, order)
    parts = count_parts(shape, split, new, new, group.size, block.dtype.itemsize)
    plan = change_split(shape, split, new, new, group.size, parts)
    mine = plan.after[rank].shape
    result = group.backend.empty(tuple(mine[axis] for axis in order), np.dtype(block.dtype))

    def land(number: int) -> Array:
        return group.backend.empty(plan.received(rank, number).shape, np.dtype(block.dtype))

    def finish(number: int, part: Array) -> None:
        rows = plan.received_cells(rank, number)[new]
        permuted(part, order, result[(slice(None),) * to_split + (rows,)])

    exchange_in_parts(group, plan, lambda number: block, land, finish)
    return result


def checked_permutation(shape: Shape, axes: Sequence[int] | None) -> Shape:
    """Return the axes, counted from the first; UserError unless each is there once."""
    given = range(len(shape))[::-1] if axes is None else axes
    order = tuple(axis + len(shape) if axis < 0 else axis for axis in given)
    if sorted(order) != list(range(len(shape))):
        numbers = ", ".join(map(str, range(len(shape))))
        raise UserError(
            "the axes are no permutation",
            got=", ".join(map(str, given)) or "none",
            expected=f"each of {numbers} once: the array has shape {shape}",
            hint=option("axes", ",".join(map(str, reversed(range(len(shape)))))),
        )
    return order


def permuted(block: Array, order: Sequence[int], out: Array | None = None) -> Array:
    """Return a C-contiguous copy of a block with its axes in this order; or fill `out`, and return it."""
    view = block.transpose(order)
    if out is None:
        out = _new(block, view.shape)
    if block.size == 0 or view.flags.c_contiguous:
        out[...] = view
    elif hasattr(block, "__cuda_array_interface__"):
        _on_gpu(block, view, order, out)
    else:
        _in_tiles(view, out)
    return out


def _new(block: Array, shape: Shape) -> Array:
    if isinstance(block, np.ndarray):
        return np.empty(shape, block.dtype)
    return block.__class__(shape, block.dtype)


def _in_tiles(view: Any, out: Any) -> None:
    """Copy tile by tile where NumPy would read or write a cache line for each cell.

    Tiles are cut along the last axis of the result, and along the one whose cells are neighbours in `view`.
    """
    near = min(range(view.ndim), key=lambda axis: (view.shape[axis] == 1, abs(view.strides[axis])))
    last = view.ndim - 1
    steps = [range(0, n, EDGE if axis in (near, last) else max(n, 1)) for axis, n in enumerate(view.shape)]
    for starts in product(*steps):
        tile = tuple(slice(start, start + step.step) for start, step in zip(starts, steps, strict=True))
        out[tile] = view[tile]


def as_matrix(shape: Shape, order: Sequence[int]) -> tuple[int, int] | None:
    """Return rows and columns if the permutation is the transpose of one matrix: a rotation of the axes."""
    used = [axis for axis in order if shape[axis] != 1]
    kept = sorted(used)
    if not used or used == kept:
        return None
    turn = kept.index(used[0])
    if used != kept[turn:] + kept[:turn]:
        return None
    return math.prod(shape[axis] for axis in kept[:turn]), math.prod(shape[axis] for axis in kept[turn:])


def _on_gpu(block: Array, view: Array, order: Sequence[int], out: Array) -> None:
    """Copy with a kernel that moves tiles, where it applies; otherwise with CuPy's."""
    matrix, word = as_matrix(tuple(block.shape), order), WORD.get(block.dtype.itemsize)
    if matrix is None or word is None or not (block.flags.c_contiguous and out.flags.c_contiguous):
        out[...] = view
        return
    rows, columns = matrix
    source, target = (array.reshape(-1).view(word) for array in (block, out))
    aligned = kernels.address(block) % 16 == kernels.address(out) % 16 == 0
    if word == "uint32" and rows % 4 == columns % 4 == 0 and aligned:
        kernel, tile = kernels.load("transpose_vectorised"), (128, 64)
    else:
        kernel, tile = kernels.load("transpose_tiled", kernels.instance("transpose_tiled", word)), (32, 32)
    blocks = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    kernel((blocks,), (256,), (source, target, np.int64(rows), np.int64(columns)))
