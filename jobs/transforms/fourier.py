"""`meshrun.fft`, `ifft`, `rfft` and `irfft`: of an array that is split over the ranks, or of a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.arrays.operations.split_array import SplitArray
from meshrun.runner.region import Array
from meshrun.runner.run.array_call import host_array
from meshrun.runner.run.main_program.remote_array import RemoteArray
from meshrun.runner.spelling import python_caller
from meshrun.runner.transforms.fourier import (
    Local,
    Norm,
    carry_out,
    check_axis,
    check_norm,
    checked_axes,
    half_length,
    working_type,
)
from meshrun.runner.transforms.line import transform_line
from meshrun.runner.transforms.plan import Real, plan_transform
from meshrun.runner.transforms.split import SplitTransform
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import World


def fft(
    x: Array,
    world: World | None = None,
    *,
    axes: Sequence[int] | int | None = None,
    norm: Norm = "backward",
    split: int = 0,
    keep_order: bool = True,
) -> Any:
    """Return the discrete Fourier transform along `axes`, as numpy.fft.fftn. Collective if there is a world.

    Parameters
    ----------
    x : numpy.ndarray, cupy.ndarray or DistributedArray
        This rank's part of an array that is split over all ranks of `world` (`World.redistribute`), or the
        whole array. Of CuPy on GPU ranks.
    world : World, optional
        The ranks. None: `x` is the whole array. A distributed array knows its world.
    axes : int or sequence of int, optional
        To transform, without repetitions. None: all.
    norm : {"backward", "forward", "ortho"}
        Which direction is divided by the number of cells: the inverse ("backward"), the other one
        ("forward"), or both by its root ("ortho").
    split : int
        The axis along which `x` is split.
    keep_order : bool
        Whether the result is split along `split` as `x` is. False saves a redistribution, and also returns
        the axis along which the result is split.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or DistributedArray
        complex64 for float16, float32 and complex64; complex128 for float64, complex128 and, converted to
        float64 first, integers and bool. Of a distributed array: one that is split along its first axis.

    Raises
    ------
    UserError
        On every rank, for axes that do not exist or have no cells, for other dtypes, and if the array cannot
        be split.

    Examples
    --------
    >>> spectrum = meshrun.fft(meshrun.load(world, "u.npy"))
    """
    return _transform(x, world, axes, False, "", norm, None, split, keep_order)


def ifft(
    x: Array,
    world: World | None = None,
    *,
    axes: Sequence[int] | int | None = None,
    norm: Norm = "backward",
    split: int = 0,
    keep_order: bool = True,
) -> Any:
    """Return the inverse of `fft`, as numpy.fft.ifftn. Collective if there is a world.

    Parameters
    ----------
    x : numpy.ndarray, cupy.ndarray or DistributedArray
        This rank's part of an array that is split over all ranks of `world` (`World.redistribute`), or the
        whole array. Of CuPy on GPU ranks.
    world : World, optional
        The ranks. None: `x` is the whole array. A distributed array knows its world.
    axes : int or sequence of int, optional
        To transform, without repetitions. None: all.
    norm : {"backward", "forward", "ortho"}
        Which direction is divided by the number of cells: the inverse ("backward"), the other one
        ("forward"), or both by its root ("ortho").
    split : int
        The axis along which `x` is split.
    keep_order : bool
        Whether the result is split along `split` as `x` is. False saves a redistribution, and also returns
        the axis along which the result is split.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or DistributedArray
        Of the dtypes of `fft`. Of a distributed array: one that is split along its first axis.

    Raises
    ------
    UserError
        On every rank, for axes that do not exist or have no cells, for other dtypes, and if the array cannot
        be split.

    Examples
    --------
    >>> u = meshrun.ifft(spectrum * filter).real
    """
    return _transform(x, world, axes, True, "", norm, None, split, keep_order)


def rfft(
    x: Array,
    world: World | None = None,
    *,
    axes: Sequence[int] | int | None = None,
    norm: Norm = "backward",
    split: int = 0,
    keep_order: bool = True,
) -> Any:
    """Return one half of the transform of real numbers, as numpy.fft.rfftn. Collective if there is a world.

    Parameters
    ----------
    x : numpy.ndarray, cupy.ndarray or DistributedArray
        This rank's part of an array that is split over all ranks of `world` (`World.redistribute`), or the
        whole array. Of CuPy on GPU ranks. Not complex.
    world : World, optional
        The ranks. None: `x` is the whole array. A distributed array knows its world.
    axes : int or sequence of int, optional
        To transform, without repetitions. None: all.
    norm : {"backward", "forward", "ortho"}
        Which direction is divided by the number of cells: the inverse ("backward"), the other one
        ("forward"), or both by its root ("ortho").
    split : int
        The axis along which `x` is split.
    keep_order : bool
        Whether the result is split along `split` as `x` is. False saves a redistribution, and also returns
        the axis along which the result is split.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or DistributedArray
        Of the dtypes of `fft`; along the last of `axes`, of n cells, n // 2 + 1. Of a distributed array: one
        that is split along its first axis.

    Raises
    ------
    UserError
        On every rank, for axes that do not exist or have no cells, for other dtypes, and if the array cannot
        be split. Also for complex numbers.

    Examples
    --------
    >>> spectrum = meshrun.rfft(meshrun.load(world, "u.npy"))
    """
    return _transform(x, world, axes, False, "forward", norm, None, split, keep_order)


def irfft(
    x: Array,
    world: World | None = None,
    *,
    axes: Sequence[int] | int | None = None,
    length: int | None = None,
    norm: Norm = "backward",
    split: int = 0,
    keep_order: bool = True,
) -> Any:
    """Return the inverse of `rfft`, of real numbers, as numpy.fft.irfftn. Collective if there is a world.

    Parameters
    ----------
    x : numpy.ndarray, cupy.ndarray or DistributedArray
        This rank's part of an array that is split over all ranks of `world` (`World.redistribute`), or the
        whole array. Of CuPy on GPU ranks.
    world : World, optional
        The ranks. None: `x` is the whole array. A distributed array knows its world.
    axes : int or sequence of int, optional
        To transform, without repetitions. None: all.
    length : int, optional
        Cells of the result along the last of `axes`. None: 2 * (m - 1) for m cells of `x`.
    norm : {"backward", "forward", "ortho"}
        Which direction is divided by the number of cells: the inverse ("backward"), the other one
        ("forward"), or both by its root ("ortho").
    split : int
        The axis along which `x` is split.
    keep_order : bool
        Whether the result is split along `split` as `x` is. False saves a redistribution, and also returns
        the axis along which the result is split.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or DistributedArray
        float32 or float64, of the precision of the complex type that `fft` returns for `x`. Of a distributed
        array: one that is split along its first axis.

    Raises
    ------
    UserError
        On every rank, for axes that do not exist or have no cells, for other dtypes, and if the array cannot
        be split. Also for a result without cells.

    Examples
    --------
    >>> u = meshrun.irfft(meshrun.rfft(u) * filter)
    """
    return _transform(x, world, axes, True, "inverse", norm, length, split, keep_order)


@python_caller()
def _transform(
    x: Array,
    world: World | None,
    axes: Sequence[int] | int | None,
    inverse: bool,
    real: Real,
    norm: str,
    length: int | None,
    split: int,
    keep_order: bool,
) -> Any:
    if isinstance(x, SplitArray | RemoteArray):
        return _transformed_by_numpy(x, axes, (inverse, real), norm, length)
    module = _module(x)
    x = host_array(x) if module is np else x
    if world is None:
        shape, ranks = tuple(x.shape), 1
    else:
        wanted = None if axes is None else np.ravel(axes).tolist()
        arguments = {"axes": wanted, "norm": norm, "length": length, "transforms": (inverse, real)}
        shape, ranks = world.whole_shape(x, split, **arguments, keep_order=keep_order), world.size
    chosen = checked_axes(shape, axes, real, length)
    check_axis(split, shape, " to be split")
    check_norm(norm)
    dtype = working_type(np.dtype(x.dtype), real)
    n = half_length(shape, chosen, real, length)
    local = Local(module, inverse, real, norm, n, 1 if world is None else world.cores)
    block = x.astype(dtype, copy=False)
    split %= x.ndim
    if world is not None and len(shape) == 1:
        result, last = transform_line(world, local, block, shape[0], n), 0
    else:
        # On CPUs, axes are transformed in an order that the number of ranks does not change.
        if module is np and len(shape) > 1:
            plan = SplitTransform(shape, chosen, real, inverse, n, split).plan(ranks)
        else:
            plan = plan_transform(
                shape, chosen, ranks, real=real, length=n, decomposition="slab", split=split
            )
        groups: list[Group] = [] if world is None else [world]
        result = carry_out(plan, groups, local, block, overwrite=block is not x)
        (last,) = plan.last_splits
    lengths = tuple(n if real and axis == chosen[-1] else cells for axis, cells in enumerate(shape))
    if not keep_order:
        return result, last
    return result if world is None else world.redistribute(result, last, split, lengths)


def _transformed_by_numpy(
    x: SplitArray | RemoteArray,
    axes: Sequence[int] | int | None,
    kind: tuple[bool, Real],
    norm: str,
    length: int | None,
) -> Any:
    """Return the transform of a distributed array, which NumPy's functions take. Collective."""
    functions = {(False, ""): np.fft.fftn, (True, ""): np.fft.ifftn, (False, "forward"): np.fft.rfftn}
    every = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    if kind != (True, "inverse"):
        function: Any = functions[kind]
        return function(x, axes=every, norm=norm)
    of_numpy: Any = np.fft.irfftn
    lengths = None if length is None else [*(x.shape[axis] for axis in every[:-1]), length]
    return of_numpy(x, s=lengths, axes=every, norm=norm)


def _module(array: Array) -> Any:
    """Return the array's module: numpy or cupy."""
    if not hasattr(array, "__cuda_array_interface__"):
        return np
    from meshrun.runner.device.cuda import CudaBackend

    return CudaBackend.xp
