"""Arrays of any values of a dtype."""

from __future__ import annotations

import numpy as np

from meshrun.runner.region import Array


def noise(shape: tuple[int, ...], dtype: str) -> Array:
    """Return values all over the dtype's range, extremes included; floats with specials."""
    generator, kind = np.random.default_rng([0, *shape]), np.dtype(dtype)
    if kind.kind == "b":  # any byte but 0 is true
        return generator.choice(np.array([0, 1, 255], np.uint8), shape).view(bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        array = generator.integers(limits.min, limits.max, shape, kind, endpoint=True)
        array.flat[::3], array.flat[1::7] = limits.max, limits.min
        return array
    array = (generator.standard_normal(shape) * 10.0 ** generator.integers(-3, 4, shape)).astype(kind)
    array.flat[::50], array.flat[1::70] = np.inf, np.nan
    return array
