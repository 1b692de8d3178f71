"""The Laplacian against scipy.ndimage, over dtypes, boundaries, cuts and extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from meshrun.jobs.filters.dtypes import SUPPORTED, is_wide
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.runner.errors import UserError

Apply = Callable[..., np.ndarray[Any, Any]]
# Of these float64, in which scipy computes, holds every sum; test_integers has the others.
EXACT = [name for name in SUPPORTED if not is_wide(np.dtype(name))]
KERNEL = np.ones((3, 3)) - 9 * (np.arange(9) == 4).reshape(3, 3)


def scipys(array: np.ndarray[Any, Any], boundary: str) -> np.ndarray[Any, Any]:
    kernel = KERNEL.reshape(3, 3, *(1,) * (array.ndim - 2))
    return ndimage.correlate(array.astype(np.float64), kernel, mode=boundary)


def saturated(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (11, 13), (10, 12, 3), (4, 5, 2, 3)])
@pytest.mark.parametrize("dtype", EXACT)
def test_is_scipys(apply_job: Apply, noise: Apply, dtype: str, shape: tuple[int, ...]) -> None:
    array = noise(shape, dtype)
    result = apply_job(laplacian, array)
    expected = scipys(array, "reflect")
    assert result.dtype == ("uint8" if dtype == "bool" else dtype)
    if np.dtype(dtype).kind == "f":
        np.testing.assert_allclose(result, expected, rtol=0, atol=40 * np.finfo(dtype).eps * 1000)
    else:
        np.testing.assert_array_equal(result, saturated(expected, result.dtype))


@pytest.mark.parametrize("boundary", ["nearest", "mirror", "wrap", "constant"])
def test_boundaries(apply_job: Apply, noise: Apply, boundary: str) -> None:
    array = noise((6, 5), "uint8")
    result = apply_job(laplacian, array, boundary, dtype="int32")
    np.testing.assert_array_equal(result, scipys(array, boundary))


@pytest.mark.parametrize("result", ["int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("dtype", EXACT)
def test_result_dtypes(apply_job: Apply, noise: Apply, dtype: str, result: str) -> None:
    array = noise((9, 8), dtype)
    found = apply_job(laplacian, array, dtype=result)
    assert found.dtype == result
    expected = scipys(array, "reflect")
    if result.startswith("int") and np.dtype(dtype).kind != "f":
        np.testing.assert_array_equal(found, saturated(expected, result))
    elif np.dtype(dtype).kind != "f":
        np.testing.assert_array_equal(found, expected.astype(result))
    else:
        np.testing.assert_allclose(found, np.clip(expected, -32768, 32767), atol=0.51)


def test_an_impulse_shows_every_tap(apply_job: Apply) -> None:
    array = np.zeros((9, 9), np.int32)
    array[4, 4] = 1
    expected = np.zeros_like(array)
    expected[3:6, 3:6] = KERNEL
    np.testing.assert_array_equal(apply_job(laplacian, array), expected)


def test_the_order_of_sums_is_the_documented_one(apply_job: Apply) -> None:
    array = (np.random.default_rng(3).standard_normal((20, 30)) * 1e3).astype(np.float32)
    p = np.pad(array, 1, "symmetric")
    across = (p[:, :-2] + p[:, 1:-1]) + p[:, 2:]
    expected = ((across[:-2] + across[1:-1]) + across[2:]) - np.float32(9) * array
    np.testing.assert_array_equal(apply_job(laplacian, array), expected)


def test_float16_overflows_to_infinity_and_not_before(apply_job: Apply) -> None:
    array = np.full((3, 3), 60000, np.float16)
    assert not apply_job(laplacian, array).any()  # a sum of nine passes 65504 on the way
    array[1, 1] = -60000
    assert np.isposinf(apply_job(laplacian, array)[1, 1])


def test_nan_and_infinity_do_not_spread_beyond_neighbours(apply_job: Apply) -> None:
    array = np.zeros((7, 7), np.float32)
    array[3, 3] = np.nan
    assert np.isnan(apply_job(laplacian, array)).sum() == 9
    assert apply_job(laplacian, array, dtype="int16")[3, 3] == 0


@pytest.mark.parametrize("dtype", ["complex64", "longdouble", "datetime64[s]"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(UserError, match=r"got [\w\[\]]+, expected bool, uint8"):
        laplacian.check((4, 4), np.dtype(dtype))


def test_one_axis_is_refused() -> None:
    with pytest.raises(UserError, match="rows and columns"):
        laplacian.check((4,), np.dtype(np.float32))


def test_the_command_line_sees_its_option() -> None:
    (option,) = laplacian.parameters
    assert option.name == "dtype"
    assert option.type == ("same", "int16", "int32", "int64", "float32", "float64")
    assert option.help.startswith("of the result.")
