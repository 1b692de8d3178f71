"""`np.fft` of distributed arrays: transformed as `meshrun.fft` and the like do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.jobs.transforms import fourier
from meshrun.runner.arrays.distributed_array import array_of
from meshrun.runner.arrays.operations.split_array import SplitArray, begin
from meshrun.runner.arrays.operations.table import FUNCTIONS, implements
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import split_along
from meshrun.runner.region import Shape

# NumPy's functions of one axis, of two and of several, of each transform.
OF_NUMPY = {
    "fft": ("fft", "fft2", "fftn"),
    "ifft": ("ifft", "ifft2", "ifftn"),
    "rfft": ("rfft", "rfft2", "rfftn"),
    "irfft": ("irfft", "irfft2", "irfftn"),
}


def transformed(name: str, a: SplitArray, sizes: Sequence[int] | None, axes: Shape, norm: str | None) -> Any:
    """Return a transform, split by rows. Collective.

    name: "fft", "ifft", "rfft" or "irfft". sizes: of the result along each axis; of `a`, but for the last one
    of "irfft".
    """
    world = a.world
    options: dict[str, Any] = {"axes": list(axes), "norm": norm or "backward"}
    lengths = [a.shape[axis] for axis in axes]
    if name == "irfft":
        lengths[-1] = 2 * (lengths[-1] - 1) if sizes is None else int(sizes[-1])
        options["length"] = lengths[-1]
    if sizes is not None and list(sizes) != lengths:
        raise UserError(
            f"np.fft.{name} of a distributed array neither cuts nor pads it",
            got=f"{tuple(sizes)} for lengths {tuple(lengths)}",
            hint="a slice, or np.pad, before the transform",
            everywhere=True,
        )
    begin(world, f"np.fft.{name}", a, axes, norm, sizes)
    rows = world.xp.ascontiguousarray(a.fetched(split_along(a.shape, 0, world.size)))
    own = getattr(fourier, name)(rows, world, **options)
    shape = list(a.shape)
    if name == "rfft":
        shape[axes[-1]] = shape[axes[-1]] // 2 + 1
    elif name == "irfft":
        shape[axes[-1]] = lengths[-1]
    return array_of(world, split_along(tuple(shape), 0, world.size), own)


def _of_one_axis(name: str) -> Callable[..., Any]:
    def call(a: SplitArray, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
        return transformed(name, a, None if n is None else [n], (axis % a.ndim,), norm)

    return call


def _of_axes(name: str, default: Sequence[int] | None) -> Callable[..., Any]:
    def call(
        a: SplitArray,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = default,
        norm: str | None = None,
    ) -> Any:
        chosen = range(a.ndim) if axes is None else axes
        return transformed(name, a, s, tuple(axis % a.ndim for axis in chosen), norm)

    return call


for transform, (one, two, several) in OF_NUMPY.items():
    FUNCTIONS[getattr(np.fft, one)] = _of_one_axis(transform)
    FUNCTIONS[getattr(np.fft, two)] = _of_axes(transform, (-2, -1))
    FUNCTIONS[getattr(np.fft, several)] = _of_axes(transform, None)


def _shifted(x: SplitArray, axes: Any, *, back: bool) -> Any:
    chosen = tuple(range(x.ndim)) if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)
    by = tuple((-(x.shape[axis] // 2) if back else x.shape[axis] // 2) for axis in chosen)
    return np.roll(x, by, chosen)


@implements(np.fft.fftshift)
def fftshift(x: SplitArray, axes: Any = None) -> Any:
    return _shifted(x, axes, back=False)


@implements(np.fft.ifftshift)
def ifftshift(x: SplitArray, axes: Any = None) -> Any:
    return _shifted(x, axes, back=True)
