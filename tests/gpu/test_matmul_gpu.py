"""The matrix products on a GPU against float64, element by element; odd sizes, broken kernels found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons.matmul import lesson as matmul
from meshrun.jobs.bench.lessons.matmul.methods import PRECISIONS, LessonPrecision, ProductShape, launch
from meshrun.jobs.bench.lessons.protocol import Context

cupy = pytest.importorskip("cupy", reason="needs CuPy")
blas = pytest.importorskip("meshrun.runner.device.raw.blas")

SHAPES = [(1, 1, 1), (31, 33, 35), (129, 1, 7), (1, 129, 300), (4, 4, 4), (130, 132, 12), (257, 140, 20),
          (129, 257, 31), (256, 384, 512), (4097, 129, 67)]  # fmt: skip


def factors(shape: ProductShape, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    m, n, k = shape
    generator = np.random.default_rng(shape)
    return generator.standard_normal((m, k)).astype(dtype), generator.standard_normal((k, n)).astype(dtype)


def on_gpu(array: Any) -> Any:
    """As unsigned integers: CuPy has no bfloat16."""
    return cupy.asarray(array.view(f"u{array.itemsize}"))


def excess(c: Any, a: Any, b: Any, precision: LessonPrecision) -> float:
    """The largest error as a part of what rounding allows an element: k eps |A| |B|, and its own rounding."""
    exact, scale = a.astype(float) @ b.astype(float), abs(a.astype(float)) @ abs(b.astype(float))
    allowed = (a.shape[1] * precision.sums + 2 * precision.inputs + precision.results) * scale
    error = abs(c.astype(float) - exact)
    return float(np.where(np.isfinite(error), error / allowed, np.inf).max())


def product(run: Any, planned: Any, shape: ProductShape, precision: LessonPrecision) -> float:
    """`excess` of a poisoned result, infinite where something beside it was written."""
    m, n, _ = shape
    a, b = factors(shape, precision.dtype)
    memory = cupy.full((m * n + 64) * precision.dtype.itemsize, 0xFF, cupy.uint8)  # NaN in every type
    run((planned.blocks,), (planned.threads,), (on_gpu(a), on_gpu(b), memory, *np.array(shape, np.int64)))
    got = memory.get()
    if (got[m * n * precision.dtype.itemsize :] != 0xFF).any():
        return np.inf
    return excess(got.view(precision.dtype)[: m * n].reshape(m, n), a, b, precision)


@pytest.mark.parametrize(
    ("method", "name"),
    [("register", "float32")]
    + [(method, name) for method in ("naive", "tiled") for name in ("float32", "float16", "bfloat16")],
)
def test_kernels_are_right(method: str, name: str) -> None:
    for shape in SHAPES:
        planned = launch(method, PRECISIONS[name], shape)
        run = kernels.load(planned.file, planned.instance)
        assert product(run, planned, shape, PRECISIONS[name]) <= 1, shape


def test_the_register_kernel_without_alignment_is_right() -> None:
    for shape in SHAPES:
        planned = launch("register", PRECISIONS["float32"], shape, 4)
        assert planned.instance.endswith("<false>")
        run = kernels.load(planned.file, planned.instance)
        assert product(run, planned, shape, PRECISIONS["float32"]) <= 1, shape


@pytest.mark.parametrize("name", ["matmul_naive", "matmul_tiled", "matmul_register"])
def test_load_by_name_alone(name: str) -> None:
    shape = (130, 132, 12)
    planned = launch(name.removeprefix("matmul_"), PRECISIONS["float32"], shape)
    assert product(kernels.load(name), planned, shape, PRECISIONS["float32"]) <= 1


BROKEN = {
    "skips the last row": ("tiled", "if (row < m && column < n)", "if (row < m - 1 && column < n)"),
    "skips the end of k": ("tiled", "begin + x < k ?", "begin + x < k - 1 ?"),
    "multiplies a stale slice": (
        "register",
        "if (rest > 0) store_slice(buffer);",
        "if (rest > DEPTH) store_slice(buffer);",
    ),
    "skips the last rows": (
        "register",
        "if (target_row >= m) continue;",
        "if (target_row >= m - 1) continue;",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_kernel_is_found(fault: str, broken: Callable[..., Any]) -> None:
    method, right, instead = BROKEN[fault]
    shape, precision = (130, 132, 36), PRECISIONS["float32"]
    planned = launch(method, precision, shape)
    run = broken(planned.file, planned.instance, right, instead, ("--fmad=true",))
    assert product(run, planned, shape, precision) > 1


@pytest.mark.parametrize("name", ["float32", "tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gemm(name: str, shape: ProductShape) -> None:
    precision = PRECISIONS[name]
    a, b = factors(shape, precision.dtype)
    left, right = on_gpu(a), on_gpu(b)
    out = cupy.full((shape[0], shape[1]), 2 ** (8 * a.itemsize) - 1, f"u{a.itemsize}")
    stream = cupy.cuda.get_current_stream()
    blas.gemm(name, shape, (left.data.ptr, right.data.ptr, out.data.ptr), stream)
    assert excess(out.get().view(precision.dtype), a, b, precision) <= 1


def test_gemm_uses_tf32_only_where_it_is_asked_to() -> None:
    shape = (512, 512, 64)
    a, b = factors(shape, np.dtype(np.float32))
    found = []
    for name in ("float32", "tf32", "float32"):
        out = cupy.zeros(shape[:2], np.float32)
        left, right = cupy.asarray(a), cupy.asarray(b)
        addresses = (left.data.ptr, right.data.ptr, out.data.ptr)
        blas.gemm(name, shape, addresses, cupy.cuda.get_current_stream())
        found.append(excess(out.get(), a, b, PRECISIONS["float32"]))
    assert found[0] <= 1
    assert found[1] > 1
    assert found[2] <= 1


@pytest.mark.parametrize("side", [1, 129, 512])
def test_the_lesson(side: int, context: Callable[..., Context]) -> None:
    lesson = matmul.measure(context(options={"side": side}))
    assert lesson.mismatches == ()
    assert len(lesson.tables[0].rows) == 11


def test_cupy_knows_the_bits_of_bfloat16() -> None:
    numbers = np.linspace(-3, 3, 100).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(on_gpu(numbers).get().view(ml_dtypes.bfloat16), numbers)
