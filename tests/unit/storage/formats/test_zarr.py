"""Zarr stores: whatever zarr-python writes is read, and a broken chunk never passes for values."""

from __future__ import annotations

import errno
import importlib
import math
import os
import tracemalloc
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.region import Region
from meshrun.runner.storage.formats.registry import check_output, commit, open_sink, open_source, read_back

zarr = pytest.importorskip("zarr")
numcodecs = pytest.importorskip("numcodecs")
zarr_module = importlib.import_module("meshrun.runner.storage.formats.zarr")
codecs = zarr.codecs

ARRAY = np.random.default_rng(0).random((10, 7)).astype("f4")
WHOLE = Region((0, 0), ARRAY.shape)
STORES: dict[str, dict[str, Any]] = {
    "v3": {},
    "v3 uncompressed": {"compressors": None},
    "v3 gzip": {"compressors": codecs.GzipCodec()},
    "v3 blosc": {"compressors": codecs.BloscCodec()},
    "v3 checksums": {"compressors": codecs.Crc32cCodec()},
    "v3 sharded": {"shards": (8, 6)},
    "v3 sharded blosc": {"shards": (8, 6), "compressors": codecs.BloscCodec()},
    "v3 big-endian": {"dtype": ">f4", "serializer": codecs.BytesCodec(endian="big")},
    "v2": {"zarr_format": 2},
    "v2 uncompressed": {"zarr_format": 2, "compressors": None},
    "v2 blosc": {"zarr_format": 2, "compressors": numcodecs.Blosc()},
    "v2 zlib": {"zarr_format": 2, "compressors": numcodecs.Zlib()},
    "v2 lzma": {"zarr_format": 2, "compressors": numcodecs.LZMA()},
    "v2 columns first": {"zarr_format": 2, "order": "F"},
    "v2 big-endian": {"zarr_format": 2, "dtype": ">f4"},
}


def make(path: Path, name: str | None = None, values: np.ndarray = ARRAY, **more: Any) -> Any:
    wanted = {"shape": values.shape, "chunks": (4, 3), "dtype": values.dtype, **more}
    array = zarr.create_array(path, name=name, **wanted)
    array[...] = values
    return array


def read(path: Path, region: Region = WHOLE) -> np.ndarray:
    source = open_source(path)
    target = np.full(region.shape, 77, source.dtype)
    source.read(region, target)
    return target


@pytest.mark.parametrize("kind", STORES)
def test_what_zarr_writes_is_read(tmp_path: Path, kind: str) -> None:
    make(tmp_path / "a.zarr", **STORES[kind])
    source = open_source(tmp_path / "a.zarr")
    assert (source.shape, source.dtype) == (ARRAY.shape, np.dtype("f4"))
    assert source.dtype.isnative
    assert source.chunks == STORES[kind].get("shards", (4, 3))
    np.testing.assert_array_equal(read(tmp_path / "a.zarr"), ARRAY)
    np.testing.assert_array_equal(read(tmp_path / "a.zarr", Region((3, 1), (9, 5))), ARRAY[3:9, 1:5])
    np.testing.assert_array_equal(source.array[2:5, ::2], ARRAY[2:5, ::2])


@pytest.mark.parametrize("shape", [(), (1,), (0, 3)])
def test_small_and_empty_arrays(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.full(shape, 5, "i2")
    sink = open_sink(tmp_path / "a.zarr", shape, values.dtype, "nonce")
    sink.create()
    region = Region((0,) * len(shape), shape)
    sink.write(region, values)
    sink.sync()
    commit(sink)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr", mode="r")[...], values)
    np.testing.assert_array_equal(read(tmp_path / "a.zarr", region), values)


def test_a_chunk_that_was_never_written_is_the_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    array = zarr.create_array(path, shape=(10, 7), chunks=(4, 3), dtype="f4", fill_value=9)
    array[:4, :3] = 1
    expected = np.full((10, 7), 9, "f4")
    expected[:4, :3] = 1
    np.testing.assert_array_equal(read(path), expected)


# Broken chunks

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "the last byte is missing": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "a few bytes": lambda data: data[:9],
}
NO_CHECK = {("v3 uncompressed", "zeros"), ("v2 uncompressed", "zeros")}  # as good as any other values


@pytest.mark.parametrize("region", [WHOLE, Region((4, 1), (6, 2)), Region((5, 0), (6, 7))])
@pytest.mark.parametrize(
    ("kind", "damage"), [pair for pair in product(STORES, DAMAGE) if pair not in NO_CHECK]
)
def test_a_broken_chunk_is_named(tmp_path: Path, kind: str, damage: str, region: Region) -> None:
    path = tmp_path / "a.zarr"
    array = make(path, **STORES[kind])
    key = array.metadata.encode_chunk_key((0, 0) if "sharded" in kind else (1, 0))
    data = (path / key).read_bytes()
    (path / key).write_bytes(DAMAGE[damage](data))
    with pytest.raises(RunError, match=rf"a\.zarr is broken: chunk {key} cannot be read"):
        read(path, region)


def test_a_folder_in_a_chunks_place_is_no_missing_chunk(tmp_path: Path) -> None:
    make(tmp_path / "a.zarr")
    chunk = tmp_path / "a.zarr" / "c" / "1" / "1"
    chunk.unlink()
    chunk.mkdir()
    with pytest.raises(RunError, match="chunk c/1/1 cannot be read: got a folder"):
        read(tmp_path / "a.zarr")


def forged_zstd(content: bytes) -> bytes:
    """The frame, with a content size of 3 GiB in 8 bytes. Its own has one segment and 1 byte."""
    assert content[4] & 0xE3 == 0x20
    return content[:4] + bytes([content[4] | 0xC0]) + (3 << 30).to_bytes(8, "little") + content[6:]


def forged_blosc(content: bytes) -> bytes:
    return content[:4] + (3 << 29).to_bytes(4, "little") + content[8:]


@pytest.mark.parametrize(
    ("kind", "forge", "size"),
    [
        ("v3", forged_zstd, 3 << 30),
        ("v3 blosc", forged_blosc, 3 << 29),
        ("v2", forged_zstd, 3 << 30),
        ("v2 blosc", forged_blosc, 3 << 29),
    ],
)
def test_a_chunk_that_promises_more_than_its_cells_is_refused_before_memory_is_reserved(
    tmp_path: Path, kind: str, forge: Callable[[bytes], bytes], size: int
) -> None:
    make(tmp_path / "a.zarr", **STORES[kind])
    chunk = tmp_path / "a.zarr" / ("0.0" if kind.startswith("v2") else "c/0/0")
    chunk.write_bytes(forge(chunk.read_bytes()))
    expected = rf"chunk .*0.0 cannot be read: got {size:,} bytes promised, expected 48 in a chunk"
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match=expected):
            read(tmp_path / "a.zarr")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [1, 200, 300, 70_000])
@pytest.mark.parametrize("version", [2, 3])
def test_the_size_in_a_zstandard_frame_is_found(tmp_path: Path, version: int, length: int) -> None:
    values = np.arange(1, length + 1).astype("u1")
    make(tmp_path / "a.zarr", values=values, chunks=values.shape, zarr_format=version)
    header = (tmp_path / "a.zarr" / ("0" if version == 2 else "c/0")).read_bytes()[: zarr_module.HEADER]
    assert zarr_module._promised("Zstd", header) == length
    np.testing.assert_array_equal(read(tmp_path / "a.zarr", Region((0,), (length,))), values)


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_a_float_that_zarr_has_no_name_for_is_refused(tmp_path: Path, dtype: Any) -> None:
    if np.finfo(dtype).bits <= 64:
        pytest.skip("this machine's longest float is a double")
    with pytest.raises(UserError, match=r"Zarr cannot hold this result.*ends in \.npy"):
        open_sink(tmp_path / "a.zarr", (3,), np.dtype(dtype), "nonce")


def test_other_chunks_than_the_broken_one_are_read(tmp_path: Path) -> None:
    make(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "c" / "1" / "1").write_bytes(b"junk")
    np.testing.assert_array_equal(read(tmp_path / "a.zarr", Region((0, 0), (4, 7))), ARRAY[:4])


BROKEN: dict[str, tuple[str, str]] = {
    "no JSON": ("zarr.json", "{"),
    "no array": ("zarr.json", "[]"),
    "keys are missing": ("zarr.json", '{"zarr_format": 3, "node_type": "array"}'),
    "a future version": ("zarr.json", '{"zarr_format": 9, "node_type": "array"}'),
    "v2 no JSON": (".zarray", "{"),
    "v2 keys are missing": (".zarray", '{"zarr_format": 2}'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_descriptions_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.zarr"
    path.mkdir()
    file, text = BROKEN[name]
    (path / file).write_text(text)
    for place in (path, Path(f"{path}:x")):
        with pytest.raises(UserError, match=r"a\.zarr"):
            open_source(place)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "b.zarr").write_text("a file")
    for name, words in (("a", "is not a Zarr store"), ("b", "got a file"), ("c", "does not exist")):
        with pytest.raises(UserError, match=words):
            open_source(tmp_path / f"{name}.zarr")
    for dtype in ("U4", "M8[s]"):
        zarr.create_array(tmp_path / f"{dtype[0]}.zarr", shape=(3,), dtype=dtype)
        with pytest.raises(UserError, match="does not hold numbers"):
            open_source(tmp_path / f"{dtype[0]}.zarr")


# Several arrays


def test_an_array_in_a_group_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    make(path, "group/one")
    np.testing.assert_array_equal(read(path), ARRAY)  # the only one
    make(path, "group/two", ARRAY + 1)
    np.testing.assert_array_equal(read(Path(f"{path}:group/two")), ARRAY + 1)
    with pytest.raises(
        UserError, match=r"holds 2 arrays: got group/one, group/two\. Try: .*a\.zarr:group/one"
    ):
        open_source(path)
    for name in ("group", "group/three"):
        with pytest.raises(UserError, match=rf"no array {name}: got group/one, group/two"):
            open_source(Path(f"{path}:{name}"))
    for number in range(9):
        make(path, f"m{number}")
    with pytest.raises(
        UserError, match=r"got group/one, group/two, m0, m1, m2, m3, m4, m5, \.\.\. \(11 in all\)"
    ):
        open_source(path)


def test_an_empty_group_holds_no_array(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "a.zarr")
    with pytest.raises(UserError, match="holds no array"):
        open_source(tmp_path / "a.zarr")


def test_an_array_is_written_into_a_group(tmp_path: Path) -> None:
    sink = open_sink(Path(f"{tmp_path}/a.zarr:group/one"), ARRAY.shape, ARRAY.dtype, "nonce")
    sink.create()
    sink.write(WHOLE, ARRAY)
    sink.sync()
    commit(sink)
    np.testing.assert_array_equal(zarr.open(tmp_path / "a.zarr", mode="r")["group/one"][...], ARRAY)
    for name in ("group/one", "x"):
        check_output(Path(f"{tmp_path}/a.zarr:{name}"))
    for path, alone in (("a.zarr", False), ("a.zarr:x", True)):
        with pytest.raises(UserError, match=r"holds other arrays, which would be lost.*group/one"):
            check_output(tmp_path / path, alone=alone)


# Writing


@given(
    st.lists(st.one_of(st.integers(0, 9), st.integers(1, 10**9)), max_size=5).map(tuple),
    st.sampled_from(["u1", "f4", "c16"]),
)
def test_chunks_are_of_about_16_mib(shape: tuple[int, ...], dtype: str) -> None:
    chunks, size = zarr_module.zarr_chunks(shape, np.dtype(dtype)), np.dtype(dtype).itemsize
    assert len(chunks) == len(shape)
    assert all(1 <= chunk <= max(length, 1) for chunk, length in zip(chunks, shape, strict=True))
    assert math.prod(chunks) * size <= 16 << 20
    if math.prod(shape) * size >= 16 << 20:
        assert math.prod(chunks) * size > 8 << 20
    cut = next((axis for axis in reversed(range(len(shape))) if chunks[axis] < shape[axis]), 0)
    assert all(chunk == 1 for chunk in chunks[:cut]), "whole trailing axes, part of one, and single rows"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_module, "CHUNK", 3 * 7 * 4)  # three rows of ARRAY


@pytest.mark.usefixtures("small_chunks")
def test_regions_that_cut_a_chunk_are_refused(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "a.zarr", ARRAY.shape, ARRAY.dtype, "nonce")
    assert sink.chunks == (3, 7)
    sink.create()
    for first, last in ((0, 2), (1, 3), (2, 10), (8, 9)):
        with pytest.raises(ValueError, match="cuts chunks"):
            sink.write(WHOLE.rows(first, last), ARRAY[first:last])
    with pytest.raises(ValueError, match="cuts chunks"):
        sink.write(Region((0, 0), (3, 6)), ARRAY[:3, :6])
    for first, last in ((9, 10), (0, 6), (6, 9)):
        sink.write(WHOLE.rows(first, last), ARRAY[first:last])
    np.testing.assert_array_equal(read_back(sink).array[...], ARRAY)


@pytest.mark.usefixtures("small_chunks")
def test_every_chunk_is_written_also_where_it_is_the_fill_value(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "a.zarr", ARRAY.shape, ARRAY.dtype, "nonce")
    sink.create()
    sink.write(WHOLE, np.zeros_like(ARRAY))
    chunks = {path.name for path in (sink.partial / "c").iterdir()}
    assert chunks == {"0", "1", "2", "3"}


@pytest.mark.usefixtures("small_chunks")
def test_sync_reaches_every_file_and_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(zarr_module, "_sync", synced.append)
    sink = open_sink(tmp_path / "a.zarr", ARRAY.shape, ARRAY.dtype, "nonce")
    sink.create()
    sink.write(WHOLE.rows(0, 6), ARRAY[:6])
    sink.sync()
    written = set(sink.partial.rglob("*")) | {sink.partial, tmp_path}
    assert set(synced) == written
    assert len(synced) == len(written)
    synced.clear()
    sink.write(WHOLE.rows(9, 10), ARRAY[9:])
    sink.sync()
    chunk = sink.partial / "c" / "3" / "0"
    assert {chunk, chunk.parent} <= set(synced)
    assert sink.partial / "c" / "0" / "0" not in synced


@pytest.mark.parametrize(
    ("run_id", "hint"), [("nonce", "another disk"), ("stream", "make room, .* --resume")]
)
def test_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str, hint: str
) -> None:
    sink = open_sink(tmp_path / "a.zarr", ARRAY.shape, ARRAY.dtype, run_id)
    sink.create()

    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("zarr.storage._local._put", full)
    with pytest.raises(
        RunError,
        match=r"cannot write .*a\.zarr: No space left.*bytes free there.*280 bytes for this part.*" + hint,
    ):
        sink.write(WHOLE, ARRAY)


def test_an_output_in_whose_place_something_else_is(tmp_path: Path) -> None:
    (tmp_path / "a.zarr").write_text("a file")
    (tmp_path / "b.zarr").mkdir()
    (tmp_path / "b.zarr" / "precious").touch()
    with pytest.raises(UserError, match="is a file"):
        check_output(tmp_path / "a.zarr")
    with pytest.raises(UserError, match="is not a Zarr store"):
        check_output(tmp_path / "b.zarr")
    with pytest.raises(UserError, match=r"does not exist.*mkdir -p"):
        check_output(tmp_path / "missing" / "a.zarr")
    check_output(tmp_path / "c.zarr")


@pytest.mark.parametrize("exchanged", [True, False])
def test_an_old_store_is_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged: bool
) -> None:
    make(tmp_path / "a.zarr")
    sink = open_sink(tmp_path / "a.zarr", (3,), np.dtype("f4"), "nonce")
    sink.create()

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if exchanged:
        monkeypatch.setattr("meshrun.runner.storage.formats.registry.exchange", refuse)
    else:
        monkeypatch.setattr("meshrun.runner.storage.formats.registry.exchange", lambda one, other: False)
        monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunError, match="cannot write"):
        commit(sink)
    np.testing.assert_array_equal(read(tmp_path / "a.zarr"), ARRAY)
    assert sink.partial.exists()


def test_what_is_left_of_an_old_store_is_not_in_the_way(tmp_path: Path) -> None:
    """A run that was killed while it removed the store that it had replaced leaves some of that."""
    make(tmp_path / "a.zarr")
    sink = open_sink(tmp_path / "a.zarr", (3,), np.dtype("f4"), "nonce")
    (left := sink.partial.with_suffix(".replaced")).mkdir()
    (left / "zarr.json").touch()
    sink.create()
    sink.write(Region((0,), (3,)), np.ones(3, "f4"))
    commit(sink)
    assert os.listdir(tmp_path) == ["a.zarr"]
    np.testing.assert_array_equal(read(tmp_path / "a.zarr", Region((0,), (3,))), np.ones(3))


def test_what_a_killed_writer_had_begun_is_gone_from_the_finished_store(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "a.zarr", ARRAY.shape, ARRAY.dtype, "nonce")
    sink.create()
    sink.write(WHOLE, ARRAY)
    (sink.partial / "c" / "0" / "0.c0ffee.partial").write_bytes(b"half a chunk")
    commit(sink)
    assert not list((tmp_path / "a.zarr").rglob("*.partial"))
    np.testing.assert_array_equal(read(tmp_path / "a.zarr"), ARRAY)
