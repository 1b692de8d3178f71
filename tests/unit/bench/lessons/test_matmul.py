"""The lesson `matmul`: launches, Freivalds' check, table and sentences; the kernels are simulated."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from lesson_box import Kernel, LessonBox

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons import pseudorandom, show
from meshrun.jobs.bench.lessons.matmul import freivalds
from meshrun.jobs.bench.lessons.matmul import lesson as matmul
from meshrun.jobs.bench.lessons.matmul.lesson import sentences
from meshrun.jobs.bench.lessons.matmul.methods import (
    PRECISIONS,
    LessonPrecision,
    Matrices,
    ProductShape,
    TimedProduct,
    launch,
)
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.world.world import single_rank_world

NAMES = list(PRECISIONS)


def context(box: LessonBox | None = None, **options: Any) -> Context:
    return Context(single_rank_world(CpuBackend()), box, samples=2, options={"side": 33, **options})


def product(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any, dtype: Any) -> None:
    """Multiply in float32 and round once, as all kernels do."""
    left, right = a.view(dtype).reshape(m, k), b.view(dtype).reshape(k, n)
    c.view(dtype).reshape(m, n)[...] = (left.astype(np.float32) @ right.astype(np.float32)).astype(dtype)


def skips_the_last_row(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any, dtype: Any) -> None:
    last = c.view(dtype)[-n:].copy()
    product(a, b, c, m, n, k, dtype)
    c.view(dtype)[-n:] = last


def box(monkeypatch: pytest.MonkeyPatch, tiled: Any = product, **others: Any) -> LessonBox:
    """A GPU whose kernels are NumPy's; `tiled`: what that kernel does."""

    def kernel(act: Any, name: str, seconds: float) -> Kernel:
        dtype = PRECISIONS[name].dtype
        return Kernel(lambda *arguments: act(*arguments, dtype), lambda *arguments: seconds)

    known = {f"matmul_register<{wide}>": kernel(product, "float32", 1e-3) for wide in ("true", "false")}
    for name in ("float32", "float16", "bfloat16"):
        known[f"matmul_naive<{kernels.CTYPE[name]}, float>"] = kernel(product, name, 4e-3)
        known[f"matmul_tiled<{kernels.CTYPE[name]}, float>"] = kernel(tiled, name, 2e-3)
    made = LessonBox(known, **others)

    def gemm(name: str, shape: ProductShape, addresses: tuple[int, int, int], stream: Any) -> None:
        arrays = [made.kept[address] for address in addresses]
        act = kernel(product, name, 5e-4)
        made._issue(stream, lambda: act.call(*arrays, *shape), "kernel", 5e-4)

    monkeypatch.setattr(kernels, "load", made.load)
    monkeypatch.setitem(sys.modules, "meshrun.runner.device.raw.blas", SimpleNamespace(gemm=gemm))
    return made


def test_every_kernel_is_measured_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    made = box(monkeypatch)
    lesson = matmul.measure(context(made))
    assert lesson.mismatches == ()
    assert [row[:2] for row in lesson.tables[0].rows] == [
        ("float32", "naive"), ("float32", "tiled"), ("float32", "register"), ("float32", "cuBLAS"),
        ("tf32", "cuBLAS"),
        ("float16", "naive"), ("float16", "tiled"), ("float16", "cuBLAS"),
        ("bfloat16", "naive"), ("bfloat16", "tiled"), ("bfloat16", "cuBLAS"),
    ]  # fmt: skip
    for row in lesson.tables[0].rows:
        error, bound = row[5:]
        assert isinstance(error, float)
        assert isinstance(bound, float)
        assert 0 <= error < bound
    assert lesson.tables[0].rows[3][4] == 100
    assert lesson.tables[0].rows[2][4] == pytest.approx(50, rel=0.05)
    assert lesson.tables[0].rows[3][3] == pytest.approx(2 * 33**3 / 5e-4 / 1e12, rel=0.05)
    assert any("the best kernel here, register, reaches 50 %" in output for output in lesson.explanation)
    assert "TFLOP/s" in show.text(lesson)
    assert made.used == 0


def test_a_kernel_that_skips_the_last_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = matmul.measure(context(box(monkeypatch, skips_the_last_row)))
    assert len(lesson.mismatches) >= 3
    assert all("tiled" in sentence for sentence in lesson.mismatches)
    assert lesson.mismatches[0].startswith("float32, tiled: 1 row of integer products has")


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = matmul.measure(context(box(monkeypatch, free=100_000), side=36))
    assert lesson.tables[0].rows
    lesson = matmul.measure(context(box(monkeypatch, free=10_000), side=36))
    assert lesson.tables[0].rows == ()
    assert sum("is left out" in output for output in lesson.explanation) == 4
    assert show.text(lesson)


def test_on_a_cpu() -> None:
    lesson = matmul.measure(context(side=130))
    assert lesson.mismatches == ()
    assert [row[:2] for row in lesson.tables[0].rows] == [
        ("float32", "blocks of 64"), ("float32", "BLAS"), ("float64", "blocks of 64"), ("float64", "BLAS"),
    ]  # fmt: skip
    assert all(value is not None for row in lesson.tables[0].rows for value in row)


def opened(shape: ProductShape, precision: LessonPrecision, *, exact: bool) -> Matrices:
    m, n, k = shape
    words = f"u{precision.dtype.itemsize}"
    matrices = Matrices(*(np.empty(count, words) for count in (m * k, k * n, m * n)), operations={})
    freivalds.fill(np, matrices, shape, precision, exact=exact)
    return matrices


def multiplied(matrices: Matrices, shape: ProductShape, precision: LessonPrecision) -> Any:
    """The right product, as the precision's elements; changes to it are changes to `matrices.c`."""
    dtype = precision.dtype if precision.name == "float64" else np.float32
    m, n, k = shape
    left = matrices.a.view(precision.dtype).reshape(m, k).astype(dtype)
    right = matrices.b.view(precision.dtype).reshape(k, n).astype(dtype)
    c = matrices.c.view(precision.dtype).reshape(m, n)
    c[...] = (left @ right).astype(precision.dtype)
    return c


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (65, 33, 1500), (40, 300, 129)])
def test_integer_products_are_compared_exactly(name: str, shape: ProductShape) -> None:
    precision = PRECISIONS[name]
    matrices = opened(shape, precision, exact=True)
    c = multiplied(matrices, shape, precision)
    assert np.abs(c.astype(np.float64)).max() <= 256
    assert freivalds.wrong_rows(np, matrices, shape, precision) == 0
    c[-1, -1] += precision.dtype.type(1)
    assert freivalds.wrong_rows(np, matrices, shape, precision) == 1
    c[-1, -1] = np.nan
    assert freivalds.wrong_rows(np, matrices, shape, precision) == 1


@pytest.mark.parametrize("name", NAMES)
def test_elements_that_change_places_are_found(name: str) -> None:
    shape, precision = (50, 60, 70), PRECISIONS[name]
    matrices = opened(shape, precision, exact=True)
    c = multiplied(matrices, shape, precision)
    c[10], c[11] = c[11].copy(), c[10].copy()
    assert freivalds.wrong_rows(np, matrices, shape, precision) == 2
    c[10], c[11] = c[11].copy(), c[10].copy()
    c[:, [3, 4]] = c[:, [4, 3]]
    assert freivalds.wrong_rows(np, matrices, shape, precision) > 40


@pytest.mark.parametrize("name", NAMES)
def test_an_error_of_rounding_is_within_the_bound_and_a_wrong_row_is_not(name: str) -> None:
    shape, precision = (65, 70, 129), PRECISIONS[name]
    matrices = opened(shape, precision, exact=False)
    c = multiplied(matrices, shape, precision)
    bound = freivalds.bound(shape, precision)
    error = freivalds.error(np, matrices, shape, precision)
    assert 0 <= error < bound
    if precision.results:
        assert error > 0
    kept = c[-1].copy()
    c[-1] = 0
    assert freivalds.error(np, matrices, shape, precision) > bound
    c[-1] = kept
    c[7, 3] = np.nan
    assert freivalds.error(np, matrices, shape, precision) == np.inf


def test_sums_in_less_than_float32_are_found() -> None:
    shape, precision = (40, 64, 256), PRECISIONS["float32"]
    matrices = opened(shape, precision, exact=False)
    m, n, k = shape
    a = matrices.a.view(np.float32).reshape(m, k).astype(ml_dtypes.bfloat16).astype(np.float32)
    b = matrices.b.view(np.float32).reshape(k, n).astype(ml_dtypes.bfloat16).astype(np.float32)
    c = matrices.c.view(np.float32).reshape(m, n)
    c[...] = a @ b
    assert freivalds.error(np, matrices, shape, precision) > freivalds.bound(shape, precision)


def test_random_numbers_are_spread_and_differ_by_seed() -> None:
    (_, index), (_, other) = (next(pseudorandom.indices(np, 100_000, seed)) for seed in (1, 2))
    numbers = pseudorandom.uniform(index)
    assert numbers.dtype == np.float32
    assert -1 <= numbers.min() < -0.999
    assert 0.999 < numbers.max() < 1
    assert abs(numbers.mean()) < 0.01
    assert numbers.std() == pytest.approx(3**-0.5, rel=0.01)
    assert abs(np.corrcoef(numbers, pseudorandom.uniform(other))[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
    signs = pseudorandom.signs(index, 0.25)
    assert {-1.0, 0.0, 1.0} == set(signs.tolist())
    assert np.abs(signs).mean() == pytest.approx(0.25, abs=0.01)
    assert abs(signs.mean()) < 0.01


def test_bfloat16_is_stored_as_ml_dtypes_rounds_it() -> None:
    precision = PRECISIONS["bfloat16"]
    shape = (300, 40, 50)
    matrices = opened(shape, precision, exact=False)
    (_, index) = next(pseudorandom.indices(np, 300 * 50, 1))
    expected = pseudorandom.uniform(index).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(matrices.a, expected.view(np.uint16))


@pytest.mark.parametrize(
    ("shape", "addresses", "instance", "blocks"),
    [
        ((128, 128, 4), (256, 512, 768), "matmul_register<true>", 1),
        ((129, 132, 8), (256, 512, 768), "matmul_register<true>", 4),
        ((128, 130, 8), (256, 512, 768), "matmul_register<false>", 2),
        ((128, 128, 5), (256, 512, 768), "matmul_register<false>", 1),
        ((128, 128, 8), (256, 520, 768), "matmul_register<false>", 1),
    ],
)
def test_four_elements_are_moved_at_a_time_where_that_is_possible(
    shape: ProductShape, addresses: tuple[int, ...], instance: str, blocks: int
) -> None:
    found = launch("register", PRECISIONS["float32"], shape, *addresses)
    assert (found.instance, found.blocks, found.threads) == (instance, blocks, 256)


def test_grids_of_the_other_kernels() -> None:
    found = launch("naive", PRECISIONS["bfloat16"], (9, 33, 5))
    assert (found.instance, found.blocks, found.threads) == ("matmul_naive<__nv_bfloat16, float>", 4, 256)
    found = launch("tiled", PRECISIONS["float16"], (33, 32, 5))
    assert (found.instance, found.blocks, found.threads) == ("matmul_tiled<__half, float>", 2, 1024)


def test_sentences() -> None:
    def timed(precision: str, method: str, seconds: float) -> TimedProduct:
        return TimedProduct(precision, method, (1000, 1000, 1000), seconds, None, 1.0)

    output = " ".join(
        sentences(
            [
                timed("float32", "naive", 1e-3),
                timed("float32", "tiled", 2e-3),
                timed("float32", "cuBLAS", 4e-3),
                timed("tf32", "cuBLAS", 1e-3),
            ]
        )
    )
    assert "float32: the best kernel here, naive, reaches 400 % of cuBLAS' 0.5 TFLOP/s" in output
    assert "against its own float32: tf32 4.0 times." in output
    assert "float16" not in output
    assert sentences([timed("float64", "blocks of 64", 2e-3), timed("float64", "BLAS", 1e-3)]) == [
        "float64: BLAS is 2.00 times as fast as in blocks of 64 x 64."
    ]
    assert sentences([]) == []
