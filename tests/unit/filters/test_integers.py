"""Integers of every size, and bool, against Python's integers: exact, saturated, never wrapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from meshrun.jobs.filters.convolve import convolve
from meshrun.jobs.filters.dtypes import SUPPORTED, ExactSums, store
from meshrun.jobs.filters.elementwise import elementwise
from meshrun.jobs.filters.grayscale import grayscale
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError
from meshrun.runner.job.declaration import Job
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

Apply = Callable[..., np.ndarray[Any, Any]]
Array = np.ndarray[Any, Any]
INTEGERS = [name for name in SUPPORTED if np.dtype(name).kind in "biu"]
LAPLACIAN = [[1, 1, 1], [1, -8, 1], [1, 1, 1]]


def exact(array: Array, kernel: Any) -> Array:
    """The convolution in Python's integers, boundary reflect."""
    weights = np.flip(np.array(kernel, object))
    before = [(n - 1 - n // 2, n // 2) for n in weights.shape]
    padded = np.pad(array, before, "symmetric").astype(object) + 0  # of bool, 0 and 1
    sums = np.zeros(array.shape, object)
    for place in np.ndindex(*weights.shape):
        part = tuple(slice(a, a + n) for a, n in zip(place, array.shape, strict=True))
        sums += weights[place] * padded[part]
    return sums


def saturated(sums: Array, dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(sums, int(limits.min), int(limits.max)).astype(dtype)


def inputs(noise: Apply, dtype: str) -> list[Array]:
    """All over the range, only its ends, small ones, and ones whose sums are large and need no saturation."""
    kind = np.dtype(dtype)
    generator = np.random.default_rng(5)
    if dtype == "bool":
        return [noise((17, 19), dtype), np.ones((4, 5), bool)]
    limits = np.iinfo(kind)
    ends = generator.choice(np.array([limits.min, limits.max], kind), (12, 13))
    small = generator.integers(max(limits.min, -100), 100, (15, 14), kind)
    middle = noise((15, 16), dtype) // kind.type(40)
    return [noise((17, 19), dtype), ends, small, middle]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("result", ["same", "int16", "int64"])
def test_laplacian_is_exact_and_saturates(apply_job: Apply, noise: Apply, dtype: str, result: str) -> None:
    for array in inputs(noise, dtype):
        found = apply_job(laplacian, array, dtype=result)
        assert found.dtype == ({"bool": "uint8"}.get(dtype, dtype) if result == "same" else result)
        np.testing.assert_array_equal(found, saturated(exact(array, LAPLACIAN), found.dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("result", ["float32", "float64"])
def test_laplacian_in_floats_is_rounded(apply_job: Apply, noise: Apply, dtype: str, result: str) -> None:
    for array in inputs(noise, dtype):
        found = apply_job(laplacian, array, dtype=result)
        sums = exact(array, LAPLACIAN)
        nearest = np.array([float(int(one)) for one in sums.flat]).reshape(sums.shape)  # Python rounds right
        np.testing.assert_array_equal(found, nearest.astype(result))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kernel", [[[1, -2, 0], [3, 1, -1]], [[1, 2, 1], [2, 4, 2], [1, 2, 1]]])
def test_convolve_is_exact_and_saturates(
    apply_job: Apply, noise: Apply, dtype: str, kernel: list[list[int]]
) -> None:
    text = "; ".join(" ".join(map(str, row)) for row in kernel)
    for array in inputs(noise, dtype):
        sums = exact(array, kernel)
        found = apply_job(convolve, array, kernel=text)
        np.testing.assert_array_equal(found, saturated(sums, found.dtype))
        assert found.dtype == {"bool": "uint8"}.get(dtype, dtype)
        total = sum(map(sum, kernel))
        mean = apply_job(convolve, array, kernel=text, normalize=True)
        if np.dtype(dtype).itemsize < 8:
            expected = [round(Fraction(int(one), total)) for one in sums.flat]
        else:  # the sum as float64, divided in float64
            expected = [round(float(int(one)) / total) for one in sums.flat]
        np.testing.assert_array_equal(mean.ravel(), saturated(np.array(expected, object), mean.dtype))


def test_convolve_counts_the_neighbours_of_a_mask(apply_job: Apply) -> None:
    mask = np.random.default_rng(3).random((20, 30)) < 0.4
    found = apply_job(convolve, mask, kernel="1 1 1; 1 0 1; 1 1 1")
    wanted = ndimage.convolve(mask.astype(np.uint8), [[1, 1, 1], [1, 0, 1], [1, 1, 1]])
    np.testing.assert_array_equal(found, wanted)


def test_fractional_weights_on_64_bits_are_float64s(apply_job: Apply, noise: Apply) -> None:
    for dtype in ("int64", "uint64"):
        array = noise((12, 13), dtype)
        expected = ndimage.convolve(array.astype(np.float64), [[0.5, 0.25]])
        found = apply_job(convolve, array, kernel="0.5 0.25;", dtype="float64")
        np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_the_largest_weights_are_exact_and_more_are_refused(apply_job: Apply, noise: Apply) -> None:
    for dtype in ("int64", "uint64"):
        for array in inputs(noise, dtype):
            found = apply_job(convolve, array // array.dtype.type(2**19), kernel="1048570 -5;")
            sums = exact(array // array.dtype.type(2**19), [[1048570, -5]])
            np.testing.assert_array_equal(found, saturated(sums, dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_elementwise_rounds_and_saturates(apply_job: Apply, dtype: str) -> None:
    if dtype == "bool":
        ends = np.array([False, True])
    else:
        limits = np.iinfo(dtype)
        ends = np.array([limits.min, 0, 1, limits.max], dtype)
    made = apply_job(elementwise, ends, expression="x * 2", dtype="same").dtype
    for text, function in (("x * 2", lambda x: x * 2.0), ("-x - 1", lambda x: -x - 1.0), ("x", lambda x: x)):
        wanted = [int(function(float(int(one)))) for one in ends]
        found = apply_job(elementwise, ends, expression=text, dtype="same")
        np.testing.assert_array_equal(found, saturated(np.array(wanted, object), made))
    found = apply_job(elementwise, np.float32([1e30, -1e30, np.nan, 2.5]), expression="x", dtype="int64")
    assert found.tolist() == [2**63 - 1, -(2**63), 0, 2]


def test_grayscale_of_bool_is_uint8(apply_job: Apply, noise: Apply) -> None:
    array = noise((9, 8, 3), "bool")
    found = apply_job(grayscale, array)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, apply_job(grayscale, array.astype(np.uint8)))


def test_bytes_of_a_mask_other_than_1_are_true(apply_job: Apply) -> None:
    """As in a raw file of 0 and 255 that is read as bool."""
    mask = np.random.default_rng(2).choice(np.array([0, 255], np.uint8), (9, 10))
    np.testing.assert_array_equal(apply_job(laplacian, mask.view(bool)), apply_job(laplacian, mask // 255))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint32", "int16"])
def test_store_is_pythons_rounding(dtype: str) -> None:
    limits = np.iinfo(dtype)
    edges = [float(limits.min), float(limits.max), 2.0**53 + 2, 2.0**62, 2.0**63, 2.0**64, 0.5, 1.5]
    values = [edge * sign for edge in edges for sign in (1, 1 - 2.0**-53, 1 + 2.0**-52)]
    out = np.empty(len(values), dtype)
    store(np.array(values), out)
    assert out.tolist() == [min(max(round(value), int(limits.min)), int(limits.max)) for value in values]


def test_exact_sums_take_the_short_way_only_where_it_is_exact() -> None:
    """Two values on either side of the limit, with weights of 16: by one int64, and by halves."""
    for value, halves in ((2**59 - 1, False), (2**59, True)):
        sums = ExactSums(lambda part: part * 16, np.array([value, -value]), 16)
        assert (sums.high is not None) == halves
        out = np.empty(2, np.int64)
        sums.store(out)
        assert out.tolist() == [min(value * 16, 2**63 - 1), -value * 16]


# ---- whole runs, verified against the references


@pytest.mark.parametrize("dtype", ["bool", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(
    ("job", "parameters"),
    [
        (laplacian, {}),
        (laplacian, {"dtype": "float32"}),
        (convolve, {"kernel": "1 2 1; 2 4 2; 1 2 1", "normalize": True}),
        (convolve, {"kernel": "0.5 -1 2 3; 1 0 0.25 1"}),
        (grayscale, {}),
        (elementwise, {"expression": "where(x > 100, sqrt(x), -x)", "dtype": "same"}),
    ],
    ids=lambda value: value.name if isinstance(value, Job) else None,
)
def test_verified_runs_on_three_ranks(
    tmp_path: Path, noise: Apply, dtype: str, job: Job, parameters: dict[str, Any]
) -> None:
    array = noise((21, 23, 3), dtype)
    np.save(tmp_path / "in.npy", array)

    def rank(control: Any) -> None:
        world = open_world("cpu", control=control)
        run(job, tmp_path / "in.npy", tmp_path / "out.npy", parameters, Options(verify="full"), world=world)

    run_ranks(3, rank)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), job(array, **parameters))  # type: ignore[operator]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("divisor", [1, 2**12, 2**40])
def test_a_wrong_cell_of_64_bits_is_found(tmp_path: Path, noise: Apply, dtype: str, divisor: int) -> None:
    """Off by one where float64 holds the sums, by 2^-40 of the value where it does not."""
    array = noise((15, 16), dtype) // np.dtype(dtype).type(divisor)
    np.save(tmp_path / "in.npy", array)

    def wrong(block: Array, *, out: Array, dtype: str = "same") -> None:
        laplacian.function(block, out=out)
        inside = (out > 2**20) & (out < np.iinfo(out.dtype).max // 3 * 2)
        at = np.unravel_index(np.argmax(inside), out.shape)
        assert inside[at]
        out[at] += out.dtype.type(max(int(out[at]) >> 40, 1))

    with pytest.raises(RunError, match="verification failed: cell"):
        run(
            replace(laplacian, function=wrong),
            tmp_path / "in.npy",
            tmp_path / "out.npy",
            {},
            Options(device="cpu", verify="full"),
        )
