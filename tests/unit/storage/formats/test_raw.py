"""Raw files: nothing but values, so that everything else is told, and what is told is checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.form import Form
from meshrun.runner.region import Region
from meshrun.runner.storage.formats import flat as flat_module
from meshrun.runner.storage.formats.registry import open_source, reopen

ARRAY = np.arange(24, dtype="f4").reshape(4, 6)


def read(path: Path, form: Form, region: Region | None = None) -> np.ndarray:
    source = open_source(path, form)
    region = region or Region((0,) * len(source.shape), source.shape)
    target = np.empty(region.shape, source.dtype)
    source.read(region, target)
    np.testing.assert_array_equal(target, source.array[region.slices])
    return target


@pytest.mark.parametrize("suffix", [".raw", ".bin", ".DAT"])
@pytest.mark.parametrize("dtype", ["f4", ">f4", "i2", ">i8", ">c8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes(tmp_path: Path, suffix: str, dtype: str, order: str) -> None:
    path, array = tmp_path / f"a{suffix}", ARRAY.astype(dtype)
    path.write_bytes(array.tobytes(order))
    form = Form((4, 6), np.dtype(dtype).str, order)
    got = read(path, form)
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(read(path, form, Region((1, 2), (3, 5))), array[1:3, 2:5])
    source = open_source(path, form)
    np.testing.assert_array_equal(reopen(source).array, array)


@pytest.mark.parametrize("shape", [(), (0, 3), (24,)])
def test_shapes_without_rows(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, "f4")
    (tmp_path / "a.raw").write_bytes(array.tobytes())
    np.testing.assert_array_equal(read(tmp_path / "a.raw", Form(shape, "float32")), array)


@pytest.mark.parametrize(
    ("form", "missing"),
    [
        (None, "no --input-shape and no --input-dtype"),
        (Form((4, 6)), "no --input-dtype"),
        (Form(dtype="f4"), "no --input-shape"),
    ],
)
def test_what_a_raw_file_does_not_say_must_be_told(tmp_path: Path, form: Form | None, missing: str) -> None:
    (tmp_path / "a.raw").write_bytes(ARRAY.tobytes())
    with pytest.raises(UserError, match=rf"96 bytes.*{missing}.*--input-shape 1000x1000"):
        open_source(tmp_path / "a.raw", form)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [((4, 7), "f4", 112), ((4, 5), "f4", 80), ((4, 6), "f8", 192), ((10**9, 10**9), "f8", 8 * 10**18)],
)
def test_a_size_that_contradicts_is_refused(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, expected: int
) -> None:
    (tmp_path / "a.raw").write_bytes(ARRAY.tobytes())
    with pytest.raises(UserError, match=rf"a\.raw.*got 96 bytes, expected {expected:,} for shape"):
        open_source(tmp_path / "a.raw", Form(shape, dtype))


def test_negative_lengths_and_unknown_orders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(ARRAY.tobytes())
    with pytest.raises(UserError, match="does not have this shape"):
        open_source(tmp_path / "a.raw", Form((-4, -6), "f4"))
    with pytest.raises(UserError, match="unknown --input-order"):
        open_source(tmp_path / "a.raw", Form((4, 6), "f4", "K"))


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    path.write_bytes(ARRAY.tobytes())
    source = open_source(path, Form((4, 6), "f4"))
    path.write_bytes(ARRAY.tobytes()[:50])
    with pytest.raises(RunError, match=r"a\.raw became shorter while it was read"):
        source.read(Region((0, 0), (4, 6)), np.empty((4, 6), "f4"))


@given(st.data())
def test_any_region_of_any_order_with_small_buffers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Buffers and gaps of a few bytes, so that every way of reading takes its turn."""
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    array = np.arange(np.prod(shape), dtype=data.draw(st.sampled_from(["i2", ">i4"]))).reshape(shape)
    order = data.draw(st.sampled_from("CF"))
    path = tmp_path_factory.getbasetemp() / "small.raw"
    path.write_bytes(array.tobytes(order))
    pairs = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    region = Region(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat_module, "BUFFER", data.draw(st.sampled_from([4, 8, 32, 1 << 18])))
        patch.setattr(flat_module, "GAP", data.draw(st.sampled_from([0, 8, 64, 1 << 15])))
        got = read(path, Form(shape, array.dtype.str, order), region)
        spread = np.empty([2 * n for n in region.shape], got.dtype)[(slice(None, None, 2),) * len(shape)]
        open_source(path, Form(shape, array.dtype.str, order)).read(region, spread)
    np.testing.assert_array_equal(got, array[region.slices])
    np.testing.assert_array_equal(spread, got)


def test_rows_are_read_in_one_piece_and_short_gaps_along_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(64 * 1024))
    source = open_source(tmp_path / "a.raw", Form((16, 4096), "u1"))
    whole_read, sizes = flat_module.os.preadv, []

    def count(descriptor: int, buffers: list[memoryview], position: int) -> int:
        sizes.append(len(buffers[0]))
        return whole_read(descriptor, buffers, position)

    monkeypatch.setattr(flat_module.os, "preadv", count)
    for gap, region, expected in [
        (1 << 15, Region((2, 0), (9, 4096)), [7 * 4096]),
        (1 << 15, Region((2, 5), (9, 6)), [7 * 4096]),
        (1 << 10, Region((2, 5), (9, 1000)), [995] * 7),
    ]:
        monkeypatch.setattr(flat_module, "GAP", gap)
        sizes.clear()
        source.read(region, np.empty(region.shape, "u1"))
        assert sizes == expected


def resident_file_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile")) << 10


def test_what_is_read_does_not_become_this_processs_memory(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.raw", 64
    path.write_bytes(bytes(rows << 20))
    source = open_source(path, Form((rows, 1 << 20), "u1"))
    target = np.ones((1, 1 << 20), "u1")
    before = resident_file_bytes()
    for row in range(rows):
        source.read(Region((row, 0), (row + 1, 1 << 20)), target)
    assert resident_file_bytes() - before < 8 << 20
    assert source.array.max() == 0  # a map, by comparison, does
    assert resident_file_bytes() - before > 32 << 20
