"""Convolution against scipy.ndimage.convolve: sizes odd and even, dtypes, rounding, saturation."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from meshrun.jobs.filters.convolve import convolve
from meshrun.jobs.filters.dtypes import SUPPORTED
from meshrun.jobs.filters.weights import read
from meshrun.runner.errors import UserError

Apply = Callable[..., np.ndarray[Any, Any]]


def scipys(array: np.ndarray[Any, Any], kernel: Any, boundary: str = "reflect") -> np.ndarray[Any, Any]:
    weights = np.array(kernel, np.float64)
    weights = weights.reshape(*weights.shape, *(1,) * (array.ndim - weights.ndim))
    return ndimage.convolve(array.astype(np.float64), weights, mode=boundary)


def text(kernel: np.ndarray[Any, Any]) -> str:
    return "; ".join(" ".join(repr(float(value)) for value in row) for row in kernel) + ";"


@pytest.mark.parametrize("boundary", ["reflect", "mirror", "nearest", "wrap", "constant"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 4), (3, 2), (4, 5), (5, 3), (6, 6)])
def test_every_size_is_where_scipy_puts_it(apply_job: Apply, shape: tuple[int, int], boundary: str) -> None:
    generator = np.random.default_rng(shape)
    kernel = generator.integers(-9, 9, shape)
    kernel[0, 0] = 5
    array = generator.integers(-1000, 1000, (11, 12), np.int32)
    found = apply_job(convolve, array, boundary, kernel=text(kernel))
    np.testing.assert_array_equal(found, scipys(array, kernel, boundary))


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_kernels_of_any_number_of_axes_work_on_the_leading_ones(
    apply_job: Apply, tmp_path: Path, axes: int
) -> None:
    kernel = np.random.default_rng(axes).integers(-5, 6, (2, 3, 2, 3)[:axes])
    path = str(tmp_path / "kernel.npy")
    np.save(path, kernel)
    array = np.random.default_rng(7).integers(-99, 99, (5, 6, 4, 3), np.int32)
    np.testing.assert_array_equal(apply_job(convolve, array, kernel=path), scipys(array, kernel))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_integers_saturate(apply_job: Apply, noise: Apply, dtype: str) -> None:
    array, kernel = noise((20, 21), dtype), [[1, -2, 0], [3, 1, -1]]
    limits = np.iinfo(dtype)
    expected = np.clip(scipys(array, kernel), limits.min, limits.max)
    np.testing.assert_array_equal(apply_job(convolve, array, kernel="1 -2 0; 3 1 -1"), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
@pytest.mark.parametrize("kernel", ["1 2 1; 2 4 2; 1 2 1", "1 1; 1 1; 1 1", "1 1 1; 1 1 1; 1 1 1", "-1 -1;"])
def test_normalized_integers_are_rounded_once_half_to_even(
    apply_job: Apply, noise: Apply, dtype: str, kernel: str
) -> None:
    array = noise((12, 13), dtype)
    weights = read(kernel, True)
    exact = scipys(array, weights.values).astype(np.int64)
    expected = [round(Fraction(int(value), int(weights.divisor))) for value in exact.flat]
    found = apply_job(convolve, array, kernel=kernel, normalize=True)
    np.testing.assert_array_equal(found.ravel(), expected)


def test_fractional_weights_on_integers_round_half_to_even(apply_job: Apply) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    np.testing.assert_array_equal(apply_job(convolve, array, kernel="0.5;"), np.rint(array / 2))
    np.testing.assert_array_equal(apply_job(convolve, array, kernel="0.5;", dtype="float32"), array / 2)


def test_fractional_weights_agree_with_the_reference_at_ties(apply_job: Apply) -> None:
    # Sums of tenths come out a last bit off x.5 as often as on it; apply_job compares exactly.
    array = np.random.default_rng(5).integers(0, 255, (60, 70), np.uint8)
    apply_job(convolve, array, kernel="0.1 0.2 0.1; 0.3 0.1 0.2")
    apply_job(convolve, array, kernel="0.1 0.2 0.1; 0.3 0.1 0.25", normalize=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("normalize", [False, True])
def test_floats(apply_job: Apply, noise: Apply, dtype: str, normalize: bool) -> None:
    array, kernel = noise((16, 17, 3), dtype), np.array([[0.1, 2, -0.3], [4, 5.5, 0.6]])
    found = apply_job(convolve, array, kernel=text(kernel), normalize=normalize)
    expected = scipys(array, kernel / (kernel.sum() if normalize else 1))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=np.finfo(dtype).eps * 12 * 500)


def test_products_are_summed_in_order_without_fusing(apply_job: Apply) -> None:
    array = np.random.default_rng(1).standard_normal((9, 9)).astype(np.float32)
    kernel = np.random.default_rng(2).standard_normal((2, 3))
    padded, flipped = np.pad(array, ((0, 1), (1, 1)), "symmetric"), np.flip(kernel).astype(np.float32)
    expected = flipped[0, 0] * padded[:9, :9]
    for i, j in [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]:
        expected = expected + flipped[i, j] * padded[i : i + 9, j : j + 9]
    np.testing.assert_array_equal(apply_job(convolve, array, kernel=text(kernel)), expected)


def test_a_weight_of_zero_does_not_spread_nan(apply_job: Apply) -> None:
    array = np.zeros((5, 5), np.float32)
    array[2, 2] = np.nan
    assert np.isnan(apply_job(convolve, array, kernel="0 1 0; 0 0 0; 0 1 0")).sum() == 2
    assert not apply_job(convolve, np.ones((3, 3), np.float32), kernel="0 0; 0 0").any()


def test_signed_results(apply_job: Apply, noise: Apply) -> None:
    array = noise((9, 9), "uint8")
    found = apply_job(convolve, array, kernel="1 0 -1; 2 0 -2; 1 0 -1", dtype="int16")
    np.testing.assert_array_equal(found, scipys(array, [[1, 0, -1], [2, 0, -2], [1, 0, -1]]))


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_identity(apply_job: Apply, noise: Apply, dtype: str) -> None:
    array = noise((5, 6, 2), dtype)
    np.testing.assert_array_equal(apply_job(convolve, array, kernel="0 0 0; 0 1 0; 0 0 0"), array)


def test_texts() -> None:
    assert read("1 2 1", False).values.shape == (3,)
    assert read("1 2 1;", False).values.shape == (1, 3)
    assert read(" 1, 2; 3,4 ", False).values.tolist() == [[1, 2], [3, 4]]
    assert read("1 2 3 4", False).widths == [(1, 2)]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "kernel.npy"
    for second, size in enumerate((3, 5)):
        np.save(path, np.ones(size))
        os.utime(path, (second, second))
        assert read(str(path), False).values.shape == (size,)


@pytest.mark.parametrize("kernel", ["", ";", "a b", "1 2; 3", "nan", "inf 1", "1 2;;3 4", "no/such.npy"])
def test_bad_texts_are_refused_with_an_example(kernel: str) -> None:
    with pytest.raises(UserError, match='Try: --kernel "1 2 1; 2 4 2; 1 2 1"'):
        convolve.check((9, 9), np.dtype(np.uint8), kernel=kernel)


@pytest.mark.parametrize(
    "values",
    [np.ones((2, 0)), np.array(3.0), np.array(["a"]), np.ones(2, complex), np.array([None])],
    ids=["empty", "scalar", "text", "complex", "object"],
)
def test_bad_files_are_refused(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    path = tmp_path / "kernel.npy"
    np.save(path, values, allow_pickle=True)
    with pytest.raises(UserError, match="cannot be used"):
        read(str(path), False)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for name, content in [("empty.npy", b""), ("text.npy", b"1 2 1")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="cannot be used"):
            read(str(tmp_path / name), False)


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(UserError, match="more axes than the array"):
        convolve.check((9,), np.dtype(np.uint8), kernel="1 2; 3 4")
    with pytest.raises(UserError, match="sum to 0"):
        convolve.check((9, 9), np.dtype(np.uint8), kernel="1 -1", normalize=True)
    with pytest.raises(UserError, match="would not be exact"):
        convolve.check((9, 9), np.dtype(np.int32), kernel="1e9 1e9")
    with pytest.raises(UserError, match="total size 1,048,576, expected less than 1,048,576"):
        convolve.check((9, 9), np.dtype(np.int64), kernel="1048575 -1")
    convolve.check((9, 9), np.dtype(np.uint64), kernel="1048574 -1")
    convolve.check((9, 9), np.dtype(np.int64), kernel="1e9 0.5")  # in float64
    with pytest.raises(UserError, match="cannot work on elements of this type"):
        convolve.check((9, 9), np.dtype(np.complex64), kernel="1")


def test_the_command_line_sees_its_options() -> None:
    kernel, normalize, dtype = convolve.parameters
    assert kernel.required
    assert kernel.type is str
    assert "or a .npy file" in kernel.help
    assert normalize.type is bool
    assert not normalize.default
    assert dtype.help


def test_the_reference_allows_whole_numbers_no_error() -> None:
    """Else an integer result next to a tie, or off by one, would pass."""
    assert convolve.reference is not None
    block = np.random.default_rng(8).integers(0, 65535, (9, 9)).astype(np.float64)
    for values, limit in ((block, 1e-8), (block + 0.1, 1e-7), (np.float32(block / 7), 1.0)):
        _, tolerance = convolve.reference(np.float64(values), kernel="1 2 1; 2 4 2; 1 2 1", normalize=True)
        assert tolerance.max() < limit
