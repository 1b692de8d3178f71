"""numpy.fft on traced arrays: transforms of all cells of a space, and shifts of spectra."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import Functions, stored
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.array import Along, Inner, Tracing, Whole, made
from meshrun.runner.compiler.whole.spaces.spaces import Kind
from meshrun.runner.region import real_dtype

NORMS = ("backward", "ortho", "forward")


def _transform(name: str, a: Any, lengths: Any, axes: Any, norm: str | None, out: Any) -> Any:
    """Return numpy.fft's function of that name. lengths: what the function is given as n or s."""
    # NumPy's dtype, and its errors for others and for axes that do not exist, are those of a small array.
    function: Any = getattr(np.fft, name)
    of_axes = {"axes" if name[-1] in "2n" else "axis": axes}
    dtype = function(np.ones((2,) * a.ndim, a.dtype), norm=norm, **of_axes).dtype

    given = range(a.ndim) if axes is None else axes if np.ndim(axes) else (axes,)
    chosen = tuple(int(axis) % a.ndim for axis in given)
    if len(set(chosen)) < len(chosen):
        raise NotTraceable(f"transforms an axis twice (numpy.fft.{name})", "each axis once")
    kind: Kind = "forward" if name[0] == "r" else "inverse" if name[:2] == "ir" else "complex"
    inverse = name[0] == "i"
    length = _checked_lengths(name, a, lengths, chosen, kind)

    # The cells, in the dtype that is transformed.
    field = whole_field(f"numpy.fft.{name}", a, chosen)
    recorder: Tracing = field._recorder
    spaces = recorder.spaces
    assert spaces is not None
    real = real_dtype(dtype)
    working = real if kind == "forward" else np.result_type(real, np.complex64)
    cells = field.cast(field.read(), working)

    # The factor is applied where the result is read.
    count = math.prod(
        [*(a.shape[axis] for axis in chosen[:-1]), length if kind == "inverse" else a.shape[chosen[-1]]]
    )
    divided = {"backward": inverse, "forward": not inverse, "ortho": True}[norm or "backward"]
    factor = 1 / (math.sqrt(count) if norm == "ortho" else count) if divided else 1.0
    results = np.empty(cells.shape, object)
    target = recorder
    for index, node in np.ndenumerate(cells):
        operand = recorder, node
        target, load = spaces.transformed(kind, inverse, chosen, length, operand, dtype)
        results[index] = _scaled(target, load, factor)
    axes_of = [Along(axis, 0, 1, n) for axis, n in enumerate(target.space)]
    inner = [axis for axis in field._axes if isinstance(axis, Inner)]
    shape = tuple(axis.length for axis in inner)
    return stored(made(target, [*axes_of, *inner], {}, results.reshape(shape), dtype), out)


def _scaled(recorder: Tracing, node: Any, factor: float) -> Any:
    if factor == 1:
        return node
    graph, line, real = recorder.graph, recorder.line(), real_dtype(node.dtype)
    scale = graph.constant(real.type(factor), real)
    if node.dtype.kind != "c":
        return graph.operation("multiply", real, [node, scale], line)
    parts = [graph.operation(part, real, [node], line) for part in ("real", "imag")]
    return graph.operation(
        "complex",
        node.dtype,
        [graph.operation("multiply", real, [part, scale], line) for part in parts],
        line,
    )


def _checked_lengths(name: str, a: Whole, lengths: Any, axes: Sequence[int], kind: Kind) -> int:
    """Return the cells of the result along the last axis. Raises NotTraceable for what cuts or pads."""
    own = a.shape[axes[-1]]
    given = [None] * len(axes) if lengths is None else list(lengths) if np.ndim(lengths) else [lengths]
    if len(given) != len(axes):
        raise ValueError("Shape and axes have different lengths.")
    last = given[-1]
    found = own // 2 + 1 if kind == "forward" else 2 * (own - 1) if kind == "inverse" else own
    if kind == "inverse" and last is not None and last // 2 + 1 == own:
        found, last = int(last), None
    others = [n for n, axis in zip([*given[:-1], last], axes, strict=True) if n not in (None, a.shape[axis])]
    if others:
        raise NotTraceable(
            f"cuts or pads an array (n= or s= of numpy.fft.{name})",
            "an array that is as long as the transform",
        )
    if found < 1:
        raise ValueError(f"Invalid number of FFT data points ({found}) specified.")
    return found


def whole_field(name: str, a: Whole, chosen: Sequence[int]) -> Whole:
    """Return an array that has all cells of its space. Refuses others.

    name: of NumPy's function. chosen: the axes that it transforms.
    """
    spaces = a._recorder.spaces
    assert spaces is not None
    if any(isinstance(axis, Along) and axis.axis < 0 for axis in a._axes):  # lines of numbers
        frame = spaces.filled(a.shape, 0, a.dtype)
        if isinstance(frame, Whole) and len(frame._recorder.space) == a.ndim:
            frame[...] = a
            a = frame
    inner = [isinstance(axis, Inner) for axis in a._axes]
    if any(inner[axis] for axis in chosen):
        raise NotTraceable(
            f"transforms an axis of components ({name})",
            "the transforms along axes of the field, or np.fft in NumPy before the run",
        )
    along = [axis for axis in a._axes if isinstance(axis, Along)]
    if any(axis.step < 0 and axis.length > 1 for axis in along):
        raise NotTraceable(f"transforms a reversed array ({name})", "the array in its own order")
    if any(axis.step != 1 for axis in along):
        raise NotTraceable(
            f"transforms every second cell, or a coarse grid ({name})",
            "the transform of the fine field, or a function of the coarse one",
        )
    space = a._recorder.space
    ordered = [axis.axis for axis in along] == [*range(len(space))] and sorted(inner) == inner
    if a._fixed or not ordered:
        raise NotTraceable(
            f"transforms one row of a field, or a field whose axes are in another order ({name})",
            "the transform of the whole field along axis= or axes=",
        )
    if any((axis.first, axis.length) != (0, n) for axis, n in zip(along, space, strict=True)):
        raise NotTraceable(f"transforms a part of a field ({name})", "a field of its own, or the whole field")
    return a


def _of_axis(name: str) -> Callable[..., Any]:
    def transform(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
        return _transform(name, a, n, axis, norm, out)

    return transform


def _of_axes(name: str, default: Any) -> Callable[..., Any]:
    def transform(a: Any, s: Any = None, axes: Any = default, norm: Any = None, out: Any = None) -> Any:
        return _transform(name, a, s, axes, norm, out)

    return transform


def _shifted(sign: int, x: Any, axes: Any = None) -> Any:
    """Return numpy.fft.fftshift, or ifftshift with a sign of -1."""
    given = range(x.ndim) if axes is None else axes if np.ndim(axes) else (axes,)
    chosen = tuple(int(axis) % x.ndim for axis in given)
    shifts = [x.shape[axis] // 2 if sign > 0 else -(x.shape[axis] // 2) for axis in chosen]
    return np.roll(x, tuple(shifts), chosen)


FUNCTIONS: Functions = {
    **{getattr(np.fft, name): _of_axis(name) for name in ("fft", "ifft", "rfft", "irfft")},
    **{getattr(np.fft, name): _of_axes(name, (-2, -1)) for name in ("fft2", "ifft2", "rfft2", "irfft2")},
    **{getattr(np.fft, name): _of_axes(name, None) for name in ("fftn", "ifftn", "rfftn", "irfftn")},
    np.fft.fftshift: partial(_shifted, 1),
    np.fft.ifftshift: partial(_shifted, -1),
}
