"""The job matmul and meshrun.matmul on a GPU, every precision beside float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.jobs.linalg.matmul.job import matmul
from meshrun.jobs.linalg.matmul.precision import choose
from meshrun.jobs.linalg.matmul.products import open_products
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.run.execute import Options, run

PRECISIONS = {"float64": 1e-13, "float32": 1e-5, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 2e-2}


def made(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(sum(shape)).standard_normal(shape) * 4
    return (values + 1j * values[::-1] if dtype.startswith("complex") else values).astype(dtype)


def close(got: Any, a: Any, b: Any, allowed: float) -> None:
    wide = "complex128" if a.dtype.kind == "c" else "float64"
    expected, reach = a.astype(wide) @ b.astype(wide), abs(a.astype(wide)) @ abs(b.astype(wide))
    assert (abs(got - expected) <= allowed * reach).all()


@pytest.mark.parametrize("word", PRECISIONS)
@pytest.mark.parametrize("algorithm", ["ring", "summa"])
@pytest.mark.parametrize("shape", [(257, 129, 1023), (1, 7, 1), (3, 0, 2), (3000, 500, 1100)])
def test_files(tmp_path: Path, word: Any, algorithm: str, shape: tuple[int, int, int]) -> None:
    dtype = "float64" if word == "float64" else "float32"
    a, b = made(dtype, *shape[:2]), made(dtype, *shape[1:])
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    parameters = {"precision": word, "algorithm": algorithm}
    run(matmul, files, tmp_path / "c.npy", parameters, Options(device="cuda", verify="sample"))
    close(np.load(tmp_path / "c.npy"), a, b, PRECISIONS[word])


@pytest.mark.parametrize("dtype", ["float16", "complex64", "complex128", "int32", "uint8"])
def test_dtypes(dtype: str) -> None:
    import cupy

    a, b = made("float32", 65, 300).astype(dtype), made("float32", 300, 77).astype(dtype)
    found = meshrun.matmul(cupy.asarray(a), cupy.asarray(b))
    assert found.dtype == (a @ b).dtype
    if a.dtype.kind in "iu":
        np.testing.assert_array_equal(found.get(), a @ b)
    else:
        close(found.get(), a, b, 1e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("word", ["float32", "bfloat16"])
def test_little_memory(tmp_path: Path, word: str) -> None:
    from dataclasses import replace

    from meshrun.runner.options.stream_options import StreamOptions

    a, b = made("float32", 3000, 2000), made("float32", 2000, 2500)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    options = replace(Options(device="cuda", verify="full"), stream=StreamOptions(device_memory=24 << 20))
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    record = run(matmul, files, tmp_path / "c.npy", {"precision": word}, options)
    assert "turns" in record["result"]["algorithm"]
    close(np.load(tmp_path / "c.npy"), a, b, PRECISIONS[word])


def stored(array: np.ndarray[Any, Any], *, gpu: bool) -> np.ndarray[Any, Any]:
    """The upper halves of a factor as --precision bfloat16 rounds it."""
    precision = choose(array.dtype, np.dtype(np.float32), "bfloat16", gpu=gpu)
    if not gpu:
        found: Any = open_products(CpuBackend(), precision).stored(array)
        return found.view(np.uint32) >> 16
    import cupy

    from meshrun.runner.device.cuda import CudaBackend

    found = open_products(CudaBackend(0), precision).stored(cupy.asarray(array)).get()
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("lower", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_bfloat16_has_the_bits_of_a_cpu(lower: int) -> None:
    bits = (np.arange(1 << 16, dtype=np.uint32) << 16) + np.uint32(lower)
    values = bits.view(np.float32)[None, :]
    for one in (values, values[:, 1:], values[:, :-1]):  # addresses and sizes that are no multiples of 16
        np.testing.assert_array_equal(stored(one, gpu=True), stored(one, gpu=False))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "uint64", "float16", "float64"])
def test_other_dtypes_become_bfloat16_as_on_a_cpu(dtype: str) -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal((131, 141)) * 10.0 ** generator.integers(-42, 42, (131, 141))
    values.flat[:8] = [np.inf, -np.inf, np.nan, -np.nan, 1 + 2.0**-8 + 2.0**-30, 3.4e38, -1e39, 0.0]
    if np.dtype(dtype).kind in "iu":
        values = generator.integers(0, 2**63 - 1, (131, 141)) >> generator.integers(0, 62, (131, 141))
    values = values.astype(dtype)
    for one in (values, values[:, 3:], values.T):
        np.testing.assert_array_equal(stored(one, gpu=True), stored(one, gpu=False))


def test_rounding_a_factor_takes_one_pass() -> None:
    """Less than two copies of its bytes; several kernels in turn take more."""
    import cupy

    from meshrun.runner.device.cuda import CudaBackend

    array = cupy.ones((8192, 8192), np.float32)
    products = open_products(CudaBackend(0), choose(array.dtype, array.dtype, "bfloat16", gpu=True))
    out, copy = cupy.empty(array.shape, np.uint16), cupy.empty_like(array)

    def seconds(work: Any) -> float:
        work()
        times = []
        for _ in range(10):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(begin, end))
        return min(times)

    assert seconds(lambda: products.store(array, out)) < 2 * seconds(lambda: cupy.copyto(copy, array))


def test_infinities_and_nan_become_bfloat16() -> None:
    import cupy

    a = cupy.asarray([[np.inf, np.nan, 1.0, 3.4e38, 1.00390625, 1.01171875]], dtype="float32")
    found = meshrun.matmul(
        cupy.eye(6, dtype="float32") * a.T, cupy.eye(6, dtype="float32"), precision="bfloat16"
    )
    diagonal = cupy.diag(meshrun.matmul(cupy.diag(cupy.asarray([1, 1, 1.00390625, 1.01171875], "float32")),
                                        cupy.eye(4, dtype="float32"), precision="bfloat16"))  # fmt: skip
    assert cupy.isnan(found[1, 1])
    np.testing.assert_array_equal(diagonal.get(), [1, 1, 1.0, 1.015625])  # half to even
