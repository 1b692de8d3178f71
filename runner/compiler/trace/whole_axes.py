"""Functions whose results depend on all elements along axes, and which axes these are in a call."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import TracedArray

_WHOLE_AXES = """
    all any amax amin argmax argmin average count_nonzero cumprod cumsum max mean median min nanargmax
    nanargmin nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanquantile nanstd nansum nanvar
    percentile prod ptp quantile std sum var
"""
# Functions and methods whose results depend on all elements along axes; None: along all if no axis is named.
WHOLE_AXES: dict[str, Any] = {
    **dict.fromkeys(_WHOLE_AXES.split()),
    **dict.fromkeys(["sort", "argsort", "partition", "argpartition", "trapezoid", "unwrap"], -1),
    **dict.fromkeys(["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"], -1),
    **dict.fromkeys(["fft2", "ifft2", "rfft2", "irfft2"], (-2, -1)),
    **dict.fromkeys(["fftn", "ifftn", "rfftn", "irfftn", "fftshift", "ifftshift", "flip", "unique"]),
    **{"flipud": 0, "fliplr": 1, "rot90": (0, 1), "histogram": None, "roll": None, "gradient": None},
    **dict.fromkeys(["trace", "diagonal", "diag"], (0, 1)),
    **dict.fromkeys(
        ["tril", "triu", "inv", "det", "solve", "svd", "eig", "eigh", "qr", "cholesky"], (-2, -1)
    ),
    **dict.fromkeys(["norm", "cov", "corrcoef", "convolve", "correlate"]),
    **dict.fromkeys(["pad", "matmul", "dot", "inner", "vdot", "tensordot", "einsum"]),  # see _summed_over
}
# Of them, those that are right inside a halo.
SHIFTS = frozenset(f"numpy.{name}" for name in ("roll", "gradient", "pad", "convolve", "correlate"))


def cell_axes(array: Any, axis: Any) -> tuple[int, ...]:
    """Return the grid axes among a block's axes. axis: as NumPy's functions take it."""
    if not isinstance(array, TracedArray):
        return ()
    axes = range(array.ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    layout: Any = array.layout()
    along = (layout.grid[operator.index(one)] for one in axes)
    return tuple(sorted({one for one in along if one is not None}))


def whole_axes(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return the grid axes whose cells one result of this call depends on. function: one of WHOLE_AXES."""
    name = function.__name__
    if name in ("matmul", "dot", "inner", "vdot", "tensordot", "einsum"):
        summed = _summed_over(name, *args, **kwargs)
        return tuple(sorted({axis for array, axes in summed for axis in cell_axes(array, axes)}))
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    if name == "pad":
        widths = np.broadcast_to(np.asarray(given["pad_width"]), (args[0].ndim, 2))
        return cell_axes(args[0], np.flatnonzero(widths.any(1)).tolist())
    return cell_axes(args[0], given.get("axis", given.get("axes", WHOLE_AXES[name])))


def _summed_over(
    name: str, a: Any, b: Any, *others: Any, axes: Any = 2, **options: Any
) -> list[tuple[Any, Any]]:
    """Return the operands of a product of arrays, each with those of its axes that it sums over."""
    if name == "einsum":
        return _summed_by_einsum(a, [b, *others])
    if name == "vdot":
        return [(a, None), (b, None)]
    if name == "tensordot":
        axes = others[0] if others else axes
        pairs = (range(-axes, 0), range(axes)) if isinstance(axes, int) else axes
        of_a, of_b = (list(one) if isinstance(one, (list, tuple, range)) else [one] for one in pairs)
        return [(a, of_a), (b, of_b)]
    return [(a, -1), (b, -1 if name == "inner" or np.ndim(b) < 2 else -2)]


def _summed_by_einsum(subscripts: Any, operands: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the operands of numpy.einsum, each with those of its axes that it sums over; [] if unknown."""
    if not isinstance(subscripts, str) or "." in subscripts:
        return []
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    kept = output if arrow else [one for one in inputs if inputs.count(one) == 1]
    return [
        (array, [axis for axis, letter in enumerate(letters) if letter not in kept])
        for array, letters in zip(operands, inputs.split(","), strict=True)
    ]
