"""The transposes on a GPU against NumPy: every bit, odd sizes, poisoned results, broken kernels found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons import pseudorandom
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.bench.lessons.transpose import lesson as transpose
from meshrun.jobs.bench.lessons.transpose.methods import BEST, SINGLE, THREADS, launch, variants

cupy = pytest.importorskip("cupy", reason="needs CuPy")
blas = pytest.importorskip("meshrun.runner.device.raw.blas")

SEEDS = itertools.count()  # other numbers each time: stale results of a correct run are wrong
SHAPES = [(1, 1), (1, 31), (31, 1), (33, 31), (64, 64), (200, 72), (72, 200), (4097, 129), (1000, 4104)]


def placed(shape: tuple[int, int], itemsize: int, offset: int = 0) -> Any:
    """Poisoned, `offset` elements from an aligned address, with as much poison behind it."""
    memory = cupy.full((shape[0] * shape[1] + 64) * itemsize, 0xA5, cupy.uint8).view(f"u{itemsize}")
    return memory[offset : offset + shape[0] * shape[1]].reshape(shape)


def transposed(run: Any, planned: Any, source: Any, out: Any) -> None:
    run((planned.blocks,), (THREADS,), (source, out, *np.array(source.shape, np.int64)))


def wrong(run: Any, planned: Any, shape: tuple[int, int], itemsize: int, offset: int = 0) -> int:
    """How many elements, of the result and of the poison behind it, are not what they should be."""
    random = np.random.default_rng(next(SEEDS)).integers(0, 2 ** (8 * itemsize) - 1, shape, f"u{itemsize}")
    source, out = placed(shape, itemsize, offset), placed(shape[::-1], itemsize, offset)
    source.set(random)
    transposed(run, planned, source, out)
    behind = out.base.get().view(np.uint8)[(offset + random.size) * itemsize :]
    return int((out.get() != random.T).sum()) + int((behind != 0xA5).sum())


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("method", ["naive", "tiled", "vectorised"])
def test_kernels_are_right(method: str, itemsize: int) -> None:
    for shape in SHAPES:
        for offset in (0, 1):
            planned = launch(method, shape, itemsize, offset * itemsize)
            run = kernels.load(planned.file, planned.instance)
            assert wrong(run, planned, shape, itemsize, offset) == 0, (shape, offset)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_every_variant_is_right(itemsize: int) -> None:
    for variant in variants(itemsize):
        for shape in ((8, 8), (64, 64), (1032, 264), (264, 1032), (2048, 136)):
            planned = launch("vectorised", shape, itemsize, variant=variant)
            assert planned.instance == variant.instance(itemsize, 16 // itemsize)
            assert wrong(kernels.load(planned.file, planned.instance), planned, shape, itemsize) == 0


@pytest.mark.parametrize("name", ["transpose_naive", "transpose_tiled", "transpose_vectorised"])
def test_load_by_name_alone(name: str) -> None:
    shape = (64, 128)
    a = cupy.asarray(np.random.default_rng(1).standard_normal(shape, np.float32))
    out = cupy.empty(shape[::-1], np.float32)
    planned = launch(name.removeprefix("transpose_"), shape, 4)
    transposed(kernels.load(name), planned, a, out)
    np.testing.assert_array_equal(out.get(), a.get().T)


BROKEN = {
    "reads a stale tile": ("tiled", "__syncthreads();", ""),
    "skips the last row": ("tiled", "top + i < rows &&", "top + i < rows - 1 &&"),
    "reads another column": ("vectorised", "i ^ row / V % DOWN", "i ^ row % DOWN"),
    "skips the last rows": (
        "vectorised",
        "if (i < height && row < width * V)",
        "if (i < height - 1 && row < width * V)",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_kernel_is_found(fault: str, broken: Callable[..., Any]) -> None:
    method, right, instead = BROKEN[fault]
    planned = launch(method, (200, 72), 4)
    run = broken(planned.file, planned.instance, right, instead)
    # Without its barrier a warp may be lucky; not in every tile of this many.
    assert sum(wrong(run, planned, (200, 72), 4) for _ in range(1 if "stale" not in fault else 20)) > 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_geam(dtype: str, shape: tuple[int, int]) -> None:
    a = cupy.asarray(np.random.default_rng(2).standard_normal(shape).astype(dtype))
    out = cupy.full(shape[::-1], np.nan, dtype)
    stream = cupy.cuda.get_current_stream()
    blas.geam(*shape, np.dtype(dtype), a.data.ptr, out.data.ptr, stream)
    np.testing.assert_array_equal(out.get(), a.get().T)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_geam_changes_no_bit_of_what_the_lesson_moves(dtype: str) -> None:
    shape, words = (1024, 4096), f"u{np.dtype(dtype).itemsize}"
    source, out = cupy.empty(shape[0] * shape[1], words), cupy.zeros(shape[0] * shape[1], words)
    pseudorandom.fill(cupy, source)
    stream = cupy.cuda.get_current_stream()
    blas.geam(*shape, np.dtype(dtype), source.data.ptr, out.data.ptr, stream)
    assert transpose.count_mismatches(cupy, out, shape) == (0, 0)


def test_the_lesson(context: Callable[..., Context]) -> None:
    lesson = transpose.measure(context(options={"shapes": ("1024x1024", "4097x129", "64x4096")}))
    assert lesson.mismatches == ()
    assert [len(table.rows) for table in lesson.tables] == [3, 3, 3]
    assert all(row[1] is not None for table in lesson.tables for row in table.rows)


def test_more_than_four_billion_bytes() -> None:
    shape = (65536, 32768 + 4)
    if cupy.cuda.Device().mem_info[0] < 2.2 * 4 * shape[0] * shape[1]:
        pytest.skip("needs 19 GB of free GPU memory")
    source = cupy.empty(shape[0] * shape[1], cupy.uint32)
    out = cupy.full_like(source, 0xA5A5A5A5)
    pseudorandom.fill(cupy, source)
    for planned in (launch("vectorised", shape, 4), launch("vectorised", shape, 4, 4)):
        assert planned.instance in (BEST[4].instance(4, 4), SINGLE.instance(4, 1))
        out[...] = 0xA5A5A5A5
        transposed(kernels.load(planned.file, planned.instance), planned, source.reshape(shape), out)
        assert transpose.count_mismatches(cupy, out, shape) == (0, 0)
