"""round_bfloat16.cu, run on the host as products round factors on a GPU: the bits of the CPU's path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import host_kernels
import ml_dtypes
import numpy as np
import pytest

from meshrun.jobs.linalg.matmul import products
from meshrun.jobs.linalg.matmul.precision import Precision, choose
from meshrun.jobs.linalg.matmul.products import CudaProducts, NumpyProducts
from meshrun.runner.device.cpu import CpuBackend

pytestmark = pytest.mark.usefixtures("kernels_on_host")
Array = np.ndarray[Any, Any]
# Of float32: about ties, NaN with and without a payload in the upper half.
LOWER = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)


@pytest.fixture(autouse=True)
def _addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "address", lambda array: array.ctypes.data)


def on_gpu(precision: Precision) -> CudaProducts:
    backend: Any = SimpleNamespace(xp=np, empty=lambda shape, dtype: np.full(shape, 0xBAD, dtype))
    return CudaProducts(precision, backend)


def chosen(dtype: Any, *, gpu: bool) -> Precision:
    return choose(np.dtype(dtype), np.dtype(np.float32), "bfloat16", gpu=gpu)


def same(array: Array) -> None:
    """Assert that both backends store the same factor."""
    host = NumpyProducts(chosen(array.dtype, gpu=False), CpuBackend()).stored(array)
    expected = host.view(np.uint32) >> 16
    got = on_gpu(chosen(array.dtype, gpu=True)).stored(array)
    assert got.dtype == np.uint16
    np.testing.assert_array_equal(got, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("lower", LOWER)
def test_every_upper_half(lower: int) -> None:
    bits = (np.arange(1 << 16, dtype=np.uint32) << 16) + np.uint32(lower)
    same(bits.view(np.float32).reshape(256, 256))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float64"])
def test_other_dtypes(dtype: str) -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal((31, 41)) * 10.0 ** generator.integers(-42, 42, (31, 41))
    values.flat[:8] = [np.inf, -np.inf, np.nan, -np.nan, 1 + 2.0**-8 + 2.0**-30, 3.4e38, -1e39, 0.0]
    if dtype == "int64":
        values = generator.integers(-(2**62), 2**62, (31, 41)) >> generator.integers(0, 62, (31, 41))
    same(values.astype(dtype))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 4095, 4096, 4097, 4099, 9001])
@pytest.mark.parametrize("skipped", [0, 1])
def test_counts_and_addresses(count: int, skipped: int) -> None:
    source = np.random.default_rng(count).standard_normal(count + 2).astype(np.float32)[skipped:][:count]
    out = np.full(count + 2, 0xBAD, np.uint16)
    on_gpu(chosen("float32", gpu=True)).store(source[None, :], out[skipped:][None, :count])
    expected = source.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(out[skipped:][:count], expected)
    assert set(out[:skipped]) | set(out[skipped + count :]) == {0xBAD}


def test_arrays_with_gaps() -> None:
    array = np.random.default_rng(1).standard_normal((2100, 12)).astype(np.float32)
    for columns in (slice(3, 10), slice(4, 12), slice(4, 9), slice(2, 3), slice(3, 3)):
        same(array[:, columns])
        same(array[:1, columns])
    same(array.T)
    same(array[::3])
    same(array[::-1])
    same(array[:0])
    same(np.broadcast_to(array[:1], (5, 12)))


def test_one_launch_rounds_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, launch = [], products.launch
    monkeypatch.setattr(products, "launch", lambda *words: (launched.append(words), launch(*words)))
    array = np.random.default_rng(2).standard_normal((3000, 28)).astype(np.float32)
    for part in (array, array[:, 4:12], array[:, 3:10]):
        same(part)
    names = [instance for _, instance, *_ in launched]
    assert names == ["round_bfloat16<float, 4>", "round_bfloat16<float, 4>", "round_bfloat16<float, 1>"]


def test_the_launch_is_the_kernels() -> None:
    text = (host_kernels.KERNELS / "round_bfloat16.cu").read_text()
    assert f"THREADS = {products.THREADS}, DEPTH = {products.DEPTH};" in text
