"""The lesson `transpose`: launches, check, tables and sentences; the kernels are simulated."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lesson_box import Kernel, LessonBox

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons import pseudorandom, show
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.bench.lessons.transpose import lesson as transpose
from meshrun.jobs.bench.lessons.transpose.lesson import sentences
from meshrun.jobs.bench.lessons.transpose.methods import BEST, SINGLE, TimedTranspose, launch, variants
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import single_rank_world

SHAPES = ("1x1", "31x33", "16x48", "129x40")


def context(box: LessonBox | None = None, **options: Any) -> Context:
    return Context(single_rank_world(CpuBackend()), box, samples=2, options={"shapes": SHAPES, **options})


def transposed(source: Any, target: Any, rows: Any, columns: Any, itemsize: int) -> None:
    matrix = source.view(f"u{itemsize}").reshape(rows, columns)
    target.view(matrix.dtype).reshape(columns, rows)[...] = matrix.T


def skips_the_last_row(source: Any, target: Any, rows: Any, columns: Any, itemsize: int) -> None:
    before = target.view(f"u{itemsize}").reshape(columns, rows)[:, -1].copy()
    transposed(source, target, rows, columns, itemsize)
    target.view(f"u{itemsize}").reshape(columns, rows)[:, -1] = before


def box(monkeypatch: pytest.MonkeyPatch, tiled: Any = transposed, **others: Any) -> LessonBox:
    """A GPU whose kernels are NumPy's; `tiled`: what that kernel does."""

    def kernel(act: Any, itemsize: int) -> Kernel:
        return Kernel(lambda *arguments: act(*arguments, itemsize), lambda *arguments: 1e-4)

    known = {}
    for itemsize in (2, 4, 8):
        word = kernels.CTYPE[f"uint{8 * itemsize}"]
        known[f"transpose_naive<{word}>"] = kernel(transposed, itemsize)
        known[f"transpose_tiled<{word}>"] = kernel(tiled, itemsize)
        known[BEST[itemsize].instance(itemsize, 16 // itemsize)] = kernel(transposed, itemsize)
        known[SINGLE.instance(itemsize, 1)] = kernel(transposed, itemsize)
    made = LessonBox(known, **others)

    def geam(rows: int, columns: int, dtype: Any, source: int, target: int, stream: Any) -> None:
        arrays = [made.kept[address] for address in (source, target)]

        def act() -> None:
            """By arithmetic, as cuBLAS: a NaN may change its bits, a subnormal number become zero."""
            matrix, out = arrays[0].view(dtype).reshape(rows, columns), arrays[1].view(dtype)
            normal = np.isfinite(matrix) & (abs(matrix) >= np.finfo(dtype).tiny)
            out.reshape(columns, rows)[...] = np.where(
                normal, matrix, np.where(np.isnan(matrix), np.nan, 0)
            ).T

        made._issue(stream, act, "kernel", 1e-4)

    monkeypatch.setattr(kernels, "load", made.load)
    monkeypatch.setitem(sys.modules, "meshrun.runner.device.raw.blas", SimpleNamespace(geam=geam))
    return made


def test_every_method_is_measured_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = transpose.measure(context(box(monkeypatch)))
    assert lesson.mismatches == ()
    assert [table.title for table in lesson.tables] == ["float16", "float32", "float64"]
    for table in lesson.tables:
        assert [row[0] for row in table.rows] == ["1 x 1", "31 x 33", "16 x 48", "129 x 40"]
        by_title = [dict(zip(table.titles, row, strict=True)) for row in table.rows]
        for row in by_title:
            missing = {title for title, value in row.items() if value is None}
            expected = (
                {"cuBLAS geam (GB/s)", "cuBLAS geam (% of copy)"} if table.title == "float16" else set()
            )
            assert missing == expected
    # 129 x 40 float32, read and written, in the 100 us that the simulated kernel takes
    assert lesson.tables[1].rows[3][3] == pytest.approx(2 * 129 * 40 * 4 / 1e-4 / 1e9, rel=0.2)
    assert "float64" in show.text(lesson)


@pytest.mark.parametrize("shape", ["31x33", "2x1", "48x48"])
def test_a_kernel_that_skips_the_last_row_is_found(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    lesson = transpose.measure(context(box(monkeypatch, skips_the_last_row), shapes=(shape,)))
    assert len(lesson.mismatches) == 3
    assert all("tiled" in sentence for sentence in lesson.mismatches)
    columns = shape.partition("x")[2]
    elements_are = "element is" if columns == "1" else "elements are"
    assert f"{columns} {elements_are} wrong" in lesson.mismatches[1]


def test_a_kernel_that_copies_is_found_even_where_the_matrix_is_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def copies(source: Any, target: Any, *others: Any) -> None:
        target[...] = source

    lesson = transpose.measure(context(box(monkeypatch, copies), shapes=("48x48",)))
    assert len(lesson.mismatches) == 3


def test_a_matrix_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = box(monkeypatch, free=1 << 20)
    lesson = transpose.measure(context(made, shapes=("16x16", "512x512"), dtypes=("float64",)))
    assert [row[0] for row in lesson.tables[0].rows] == ["16 x 16"]
    assert any(output.startswith("float64, 512 x 512 is left out") for output in lesson.explanation)
    assert made.used == 0


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = transpose.measure(context(box(monkeypatch, free=1000), dtypes=("float64",), shapes=("512x512",)))
    assert lesson.tables[0].rows == ()
    assert "left out" in show.text(lesson)


def test_on_a_cpu() -> None:
    lesson = transpose.measure(context())
    assert lesson.mismatches == ()
    assert lesson.tables[0].titles[1:4] == ("copy (GB/s)", "strided (GB/s)", "blocked (GB/s)")
    assert all(value for table in lesson.tables for row in table.rows for value in row)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_elements_of_different_places_are_different(itemsize: int) -> None:
    rows, columns = 37, 65536 // 37
    source = np.empty(rows * columns, f"u{itemsize}")
    pseudorandom.fill(np, source)
    right = np.ascontiguousarray(source.reshape(rows, columns).T).reshape(-1)
    assert transpose.count_mismatches(np, right, (rows, columns)) == (0, 0)
    swapped = right.copy()
    swapped[[5, 70]] = swapped[[70, 5]]
    assert transpose.count_mismatches(np, swapped, (rows, columns)) == (2, 5)
    count, _ = transpose.count_mismatches(np, source, (rows, columns))
    assert count > 0.99 * source.size
    count, _ = transpose.count_mismatches(np, np.roll(right, 1), (rows, columns))
    assert count > 0.99 * source.size


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_elements_are_normal_numbers(dtype: str) -> None:
    """Arithmetic may change the bits of a NaN, and flush subnormal numbers to zero."""
    bits = np.empty(1 << 20, f"u{np.dtype(dtype).itemsize}")
    pseudorandom.fill(np, bits)
    numbers = bits.view(dtype)
    assert np.isfinite(numbers).all()
    assert (abs(numbers) >= np.finfo(dtype).tiny).all()
    assert 0.49 < np.signbit(numbers).mean() < 0.51
    assert np.unique(bits).size > 0.99 * min(bits.size, 1 << 14)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("shift", [1, 16, 64, 4096, 65536])
def test_a_shifted_matrix_is_found(itemsize: int, shift: int) -> None:
    rows, columns = 96, 4096
    source = np.empty(rows * columns, f"u{itemsize}")
    pseudorandom.fill(np, source)
    shifted = np.roll(source, shift).reshape(rows, columns).T.reshape(-1)
    count, _ = transpose.count_mismatches(np, shifted, (rows, columns))
    assert count > 0.99 * source.size


def test_rows_of_65536_two_byte_elements_differ() -> None:
    source = np.empty(8 * 65536, np.uint16)
    pseudorandom.fill(np, source)
    rows = source.reshape(8, 65536)
    assert all((rows[0] != row).mean() > 0.99 for row in rows[1:])


@pytest.mark.parametrize(
    ("shape", "itemsize", "addresses", "vector", "blocks"),
    [
        ((128, 64), 4, (256, 512), 4, 1),
        ((65, 64), 4, (256, 512), 1, 2),
        ((132, 64), 4, (256, 512), 4, 2),
        ((64, 66), 4, (256, 512), 1, 2),
        ((64, 64), 4, (256, 516), 1, 1),
        ((64, 64), 4, (264, 512), 1, 1),
        ((128, 136), 2, (256, 512), 8, 2),
        ((128, 132), 2, (256, 512), 1, 6),
        ((64, 34), 8, (256, 512), 2, 2),
        ((32, 33), 8, (256, 512), 1, 1),
    ],
)
def test_sixteen_bytes_are_moved_at_a_time_where_that_is_possible(
    shape: tuple[int, int], itemsize: int, addresses: tuple[int, ...], vector: int, blocks: int
) -> None:
    found = launch("vectorised", shape, itemsize, *addresses)
    expected = (BEST[itemsize] if vector > 1 else SINGLE).instance(itemsize, vector)
    assert (found.instance, found.blocks) == (expected, blocks)


def test_grids_of_the_other_kernels() -> None:
    assert launch("naive", (17, 33), 4).blocks == 3 * 2
    assert launch("tiled", (33, 65), 2) == launch("tiled", (64, 96), 2)
    assert launch("tiled", (33, 65), 8).instance == "transpose_tiled<unsigned long long>"
    with pytest.raises(UserError, match="too many tiles"):
        launch("naive", (1 << 40, 1), 4)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_variants_fit_shared_memory_and_hold_the_default(itemsize: int) -> None:
    found = variants(itemsize)
    assert BEST[itemsize] in found
    assert len({one.instance(itemsize, 16 // itemsize) for one in found}) == len(found)
    for one in found:
        down, across = one.tile(16 // itemsize)
        assert down * across * itemsize <= 48 << 10


@pytest.mark.parametrize("text", ["", "8192", "8192x", "0x3", "-1x3", "3x4x5", "axb", "3 x 4", "3x04"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a matrix shape"):
        transpose.parse(text)


def test_shapes() -> None:
    assert transpose.parse("4097x129") == (4097, 129)


def timed(shape: tuple[int, int], **seconds: float | None) -> TimedTranspose:
    return TimedTranspose(shape, np.dtype(np.float32), seconds)


def test_sentences() -> None:
    large = timed((4096, 4096), copy=1.0, naive=4.0, tiled=2.0, vectorised=1.25)
    odd = timed((4097, 4097), copy=1.0, naive=4.0, tiled=2.0, vectorised=2.0)
    small = timed((16, 16), copy=1.0, naive=4.0, tiled=2.0, vectorised=1.25)
    output = " ".join(sentences([large, small], 1 << 20))
    assert "Largest matrix (float32, 4096 x 4096): vectorised is best, at 80 % of a copy's" in output
    assert "Tiled is 2.00 times as fast as naive (median)." in output
    assert "Vectorised is 1.60 times as fast as tiled (median)." in output
    assert "Matrix and result fit in the L2 cache of 1 MiB: float32, 16 x 16." in output
    assert "Vectorised" not in " ".join(sentences([odd], 0))
    assert sentences([], 0) == []
    slower = timed((4096, 4096), copy=1.0, naive=1.0, tiled=2.0, vectorised=4.0)
    output = " ".join(sentences([slower], 0))
    assert "naive is best" in output
    assert "Tiled is 0.50 times as fast as naive" in output
    assert "cache" not in output
