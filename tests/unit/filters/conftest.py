"""How a job is applied in these tests: whole, in slabs, and against its own reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.runner.device.api import poison
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.halo import normalize

PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "constant": "constant", "wrap": "wrap"}
Array = np.ndarray[Any, Any]


def whole_and_in_slabs(job: Job, array: Array, boundary: str = "reflect", **parameters: Any) -> Array:
    """The job's result for the whole array.

    Asserts that any cut along axis 0 gives the same bits, that the input is left alone, and that
    the job's reference agrees.
    """
    assert job.check is not None
    assert job.out is not None
    job.check(array.shape, array.dtype, **parameters)
    widths = normalize(job.halo_for(parameters), array.ndim)
    padded = np.pad(array, widths, PAD[boundary])
    before = padded.copy()
    result = call(job, padded, array.shape, parameters)

    rows, halo = array.shape[0], sum(widths[0])
    for step in (1, 3):
        slabs = []
        for row in range(0, rows, step):
            block = np.ascontiguousarray(padded[row : min(row + step, rows) + halo])
            slabs.append(call(job, block, (len(block) - halo, *array.shape[1:]), parameters))
        np.testing.assert_array_equal(np.concatenate(slabs), result)
    np.testing.assert_array_equal(padded, before)
    agree(job, padded, result, parameters)
    return result


def call(job: Job, block: Array, shape: tuple[int, ...], parameters: dict[str, Any]) -> Array:
    assert job.out is not None
    out_shape, dtype = job.out(shape, block.dtype, **parameters)
    size = int(np.prod(out_shape))
    # As the runner's views may be: aligned to the itemsize and no better.
    out = np.empty(size + 1, dtype)[1:].reshape(out_shape)
    poison(out)
    services = {"xp": np} if "xp" in job.services else {}
    job.function(block, out=out, **services, **parameters)
    return out


def agree(job: Job, padded: Array, result: Array, parameters: dict[str, Any]) -> None:
    """Compare with the reference as `--verify` does."""
    assert job.reference is not None
    with np.errstate(all="ignore"):
        expected = job.reference(padded.astype(np.float64), **parameters, input_dtype=padded.dtype)
        expected, tolerance = expected if isinstance(expected, tuple) else (expected, None)
        assert expected.shape == result.shape
        if result.dtype.kind in "iu":
            limits = np.iinfo(result.dtype)
            unsure = 0.0 if tolerance is None else tolerance
            low, high = (
                np.clip(np.nan_to_num(np.rint(edge)), limits.min, limits.max)
                for edge in (expected - unsure, expected + unsure)
            )
            assert np.all((low <= result) & (result <= high))
            return
        eps = np.finfo(result.dtype).eps
        if tolerance is None:
            finite = np.abs(padded[np.isfinite(padded)], dtype=np.float64)
            tolerance = job.ulps * eps * finite.max(initial=0)
        tolerance = (
            tolerance + eps * (np.abs(expected) + tolerance) + np.finfo(result.dtype).smallest_subnormal
        )
        wide = result.astype(np.float64)
        same = (result == expected.astype(result.dtype)) | (np.isnan(expected) & np.isnan(wide))
        bad = ~(same | (np.abs(wide - expected) <= tolerance) | np.isinf(tolerance))
    assert not bad.any(), (wide[bad][:5], expected[bad][:5])


@pytest.fixture
def apply_job() -> Callable[..., Array]:
    return whole_and_in_slabs


@pytest.fixture
def noise() -> Callable[..., Array]:
    """noise(shape, dtype): random values over an integer type's whole range with both ends; normal floats."""

    def make(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
        generator = np.random.default_rng([seed, *shape])
        kind = np.dtype(dtype)
        if kind.kind == "f":
            return (generator.standard_normal(shape) * 100).astype(kind)
        if kind.kind == "b":
            return generator.integers(0, 2, shape).astype(kind)
        limits = np.iinfo(kind)
        array = generator.integers(limits.min, limits.max, shape, kind, endpoint=True)
        array.flat[0], array.flat[-1] = limits.max, limits.min
        return array

    return make
