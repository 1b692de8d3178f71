"""The job matmul and meshrun.matmul on a GPU, every precision beside float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from jobs.linalg.matmul.job import matmul
from runner.run.execute import Options, run

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

    from runner.plan.stream_options import StreamOptions

    a, b = made("float32", 3000, 2000), made("float32", 2000, 2500)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    options = replace(Options(device="cuda", verify="full"), stream=StreamOptions(device_memory=24 << 20))
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    record = run(matmul, files, tmp_path / "c.npy", {"precision": word}, options)
    assert "turns" in record["result"]["algorithm"]
    close(np.load(tmp_path / "c.npy"), a, b, PRECISIONS[word])


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
