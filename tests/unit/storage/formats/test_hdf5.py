"""HDF5 files: what h5py writes is read, flat where it is flat; what we write h5py reads."""

from __future__ import annotations

import importlib
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.region import Region
from meshrun.runner.storage.formats.flat import FlatSink, FlatSource
from meshrun.runner.storage.formats.registry import check_output, commit, open_sink, open_source

h5py = pytest.importorskip("h5py")
hdf5 = importlib.import_module("meshrun.runner.storage.formats.hdf5")

ARRAY = np.random.default_rng(0).random((10, 7)).astype("f4")
WHOLE = Region((0, 0), ARRAY.shape)


def save(path: Path, name: str = "data", values: Any = ARRAY, **more: Any) -> Path:
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=values, **more)
    return path


def read(path: Path, region: Region | None = None) -> np.ndarray:
    source = open_source(path)
    region = region or Region((0,) * len(source.shape), source.shape)
    target = np.full(region.shape, 77).astype(source.dtype)
    source.read(region, target)
    np.testing.assert_array_equal(target, source.array[region.slices])
    return target


STORED: dict[str, tuple[dict[str, Any], bool]] = {
    "contiguous": ({}, True),
    "chunked": ({"chunks": (4, 3)}, False),
    "compressed": ({"chunks": (4, 3), "compression": "gzip"}, False),
    "shuffled": ({"chunks": (4, 3), "compression": "lzf", "shuffle": True}, False),
    "checksums": ({"chunks": (4, 3), "fletcher32": True}, False),
    "growing": ({"maxshape": (None, 7)}, False),
}


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("dtype", ["?", "i1", "<u2", ">i4", "f2", ">f4", "f8", "c8", ">c16"])
def test_what_h5py_writes_is_read(tmp_path: Path, kind: str, dtype: str) -> None:
    more, flat = STORED[kind]
    array = (ARRAY * 100).astype(dtype)
    path = save(tmp_path / "a.h5", values=array, **more)
    source = open_source(path)
    assert (source.shape, source.dtype) == (array.shape, array.dtype.newbyteorder("="))
    assert source.dtype.isnative
    assert isinstance(source, FlatSource) == flat
    if "chunks" in more:
        assert source.chunks == (4, 3)
    np.testing.assert_array_equal(read(path), array)
    np.testing.assert_array_equal(read(path, Region((3, 1), (9, 5))), array[3:9, 1:5])


def test_a_user_block_moves_what_follows(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["data"] = ARRAY
    assert isinstance(open_source(tmp_path / "a.h5"), FlatSource)
    np.testing.assert_array_equal(read(tmp_path / "a.h5"), ARRAY)


def test_what_is_contiguous_and_still_not_flat(tmp_path: Path) -> None:
    """Not written yet, virtual, or of a type that NumPy has not."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("unwritten", (3, 4), "f4", fillvalue=5)
        file["flat"] = ARRAY
        layout = h5py.VirtualLayout((10, 7), "f4")
        layout[...] = h5py.VirtualSource(".", "flat", (10, 7))
        file.create_virtual_dataset("virtual", layout)
        space = h5py.h5s.create_simple((4,))
        bits = h5py.h5d.create(file.id, b"bits", h5py.h5t.STD_B32LE, space)
        bits.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, 2, 2000, 5], "u4"), h5py.h5t.STD_B32LE)
    expected = {
        "unwritten": np.full((3, 4), 5),
        "virtual": ARRAY,
        "bits": [1, 2, 2000, 5],
    }
    for name, values in expected.items():
        assert not isinstance(open_source(Path(f"{path}:/{name}")), FlatSource), name
        np.testing.assert_array_equal(read(Path(f"{path}:/{name}")), values)


@pytest.mark.parametrize("name", ["external", "linked", "by/group", "soft", "virtual"])
def test_values_in_another_file_are_refused(tmp_path: Path, name: str) -> None:
    other, path = tmp_path / "other.h5", tmp_path / "a.h5"
    with h5py.File(other, "w") as file:
        file["secret"] = ARRAY
        file["group/group"] = ARRAY
    (tmp_path / "raw").write_bytes(ARRAY.tobytes())
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "external", ARRAY.shape, ARRAY.dtype, external=[(str(tmp_path / "raw"), 0, ARRAY.nbytes)]
        )
        file["linked"] = h5py.ExternalLink(str(other), "/secret")
        file["by"] = h5py.ExternalLink(str(other), "/group")
        file["soft"] = h5py.SoftLink("/by/group")
        layout = h5py.VirtualLayout(ARRAY.shape, ARRAY.dtype)
        layout[...] = h5py.VirtualSource(str(other), "secret", ARRAY.shape)
        file.create_virtual_dataset("virtual", layout)
    with pytest.raises(UserError, match="is in another file: got ") as caught:
        open_source(Path(f"{path}:/{name}"))
    assert ("raw" if name == "external" else "other.h5") in str(caught.value)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_small_and_empty_arrays(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values, region = np.full(shape, 5, "i2"), Region((0,) * len(shape), shape)
    sink = open_sink(tmp_path / "a.h5", shape, values.dtype, "nonce")
    sink.create()
    sink.write(region, values)
    sink.sync()
    commit(sink)
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["data"][()], values)
    np.testing.assert_array_equal(read(tmp_path / "a.h5"), values)


def test_threads_read_compressed_parts(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((64, 50))
    source = open_source(save(tmp_path / "a.h5", values=array, chunks=(5, 7), compression="gzip"))

    def part(row: int) -> np.ndarray:
        target = np.empty((1, 50))
        source.read(Region((row, 0), (row + 1, 50)), target)
        return target

    with ThreadPoolExecutor(8) as pool:
        np.testing.assert_array_equal(np.concatenate(list(pool.map(part, range(64)))), array)


# Names


def test_datasets_are_named(tmp_path: Path) -> None:
    path = save(tmp_path / "a.h5", "group/one")
    with h5py.File(path, "a") as file:
        file["text"] = "not an array of numbers"
        file["table"] = np.zeros(3, [("x", "f4")])
        file["nothing"] = h5py.Empty("f4")
    np.testing.assert_array_equal(read(path), ARRAY)  # the only one
    save(path, "group/two", ARRAY + 1)
    for slash in ("", "/"):
        np.testing.assert_array_equal(read(Path(f"{path}:{slash}group/two")), ARRAY + 1)
    with pytest.raises(
        UserError, match=r"holds 2 arrays: got group/one, group/two\. Try: .*a\.h5:/group/one"
    ):
        open_source(path)
    for name in ("group", "three"):
        with pytest.raises(UserError, match=rf"no array {name}: got group/one, group/two"):
            open_source(Path(f"{path}:{name}"))
    for name, says in (
        ("text", "not hold numbers"),
        ("table", "not hold numbers"),
        ("nothing", "null dataspace"),
    ):
        with pytest.raises(UserError, match=says):
            open_source(Path(f"{path}:/{name}"))
    for number in range(9):
        save(path, f"m{number}")
    with pytest.raises(UserError, match=r"group/two, m0, m1, m2, m3, m4, m5, \.\.\. \(11 in all\)"):
        open_source(path)


@pytest.mark.filterwarnings("error")
def test_an_enumeration_is_read_as_its_numbers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["states"] = np.array([0, 1, 1], h5py.enum_dtype({"off": 0, "on": 1}, "i1"))
    source = open_source(tmp_path / "a.h5:states")
    assert (source.dtype, source.dtype.metadata) == (np.dtype("i1"), None)
    np.testing.assert_array_equal(read(tmp_path / "a.h5:states"), [0, 1, 1])


def test_a_file_without_arrays(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("empty")
    with pytest.raises(UserError, match="holds no array of numbers"):
        open_source(tmp_path / "a.h5")


# Broken files


@pytest.mark.parametrize(
    "content", [b"", b"no HDF5 at all" * 9, b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" * 99]
)
def test_what_is_no_hdf5_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.h5").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.h5 is not a readable HDF5 file"):
        open_source(tmp_path / "a.h5")


@pytest.mark.parametrize("kind", STORED)
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path / "a.h5", **STORED[kind][0])
    os.truncate(path, path.stat().st_size - 5)
    with pytest.raises(UserError, match=r"a\.h5 is not a readable HDF5 file: .*truncated"):
        open_source(path)


def save_integers(path: Path, name: str, size: int, signed: bool, order: Any, **more: Any) -> np.ndarray:
    """Write integers of a size that NumPy may lack, from the least to the greatest, and return them."""
    kind = (h5py.h5t.STD_I64LE if signed else h5py.h5t.STD_U64LE).copy()
    kind.set_size(size)
    kind.set_order(order)
    low, high = (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) if signed else (0, (1 << 8 * size) - 1)
    dtype = np.dtype(f"{'i' if signed else 'u'}8")
    array = np.array([[low, low + 1, 1], [77, high - 1, high]], dtype)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if more:
        properties.set_chunk((1, 2))
        properties.set_deflate(6)
    with h5py.File(path, "a") as file:
        space = h5py.h5s.create_simple(array.shape)
        dataset = h5py.h5d.create(file.id, name.encode(), kind, space, properties)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


@pytest.mark.parametrize("size", [1, 3, 5, 7, 8])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("order", [h5py.h5t.ORDER_LE, h5py.h5t.ORDER_BE])
@pytest.mark.parametrize("compressed", [{}, {"deflate": True}], ids=["contiguous", "compressed"])
def test_integers_of_any_size_are_read(
    tmp_path: Path, size: int, signed: bool, order: int, compressed: dict[str, bool]
) -> None:
    array = save_integers(tmp_path / "a.h5", "x", size, signed, order, **compressed)
    found = read(tmp_path / "a.h5")
    assert found.dtype == np.dtype(f"{'i' if signed else 'u'}{1 << (size - 1).bit_length()}")
    np.testing.assert_array_equal(found, array)
    target = np.zeros((2, 2), found.dtype, order="F")
    open_source(tmp_path / "a.h5").read(Region((0, 1), (2, 3)), target)
    np.testing.assert_array_equal(target, array[:, 1:])


def save_times(path: Path) -> None:
    """Write a dataset of a type that NumPy lacks."""
    with h5py.File(path, "a") as file:
        h5py.h5d.create(file.id, b"times", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((4,)))


def test_a_dataset_of_a_strange_type_does_not_break_the_others(tmp_path: Path) -> None:
    """Its dtype was asked for, whichever dataset was named: "a.h5 is broken"."""
    path = save(tmp_path / "a.h5", "plain")
    save_times(path)
    for name in (path, Path(f"{path}:/plain")):
        source = open_source(name)
        np.testing.assert_array_equal(source.array[...], ARRAY)
    with pytest.raises(UserError, match=r"a\.h5:/times does not hold numbers: got elements of 32 bits"):
        open_source(Path(f"{path}:/times"))


@pytest.mark.parametrize("kind", ["compressed", "checksums"])
def test_a_broken_chunk_is_named(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path / "a.h5", "group/x", **STORED[kind][0])
    with h5py.File(path) as file:
        chunk = file["group/x"].id.get_chunk_info_by_coord((4, 3))
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + chunk.size // 2)
        raw.write(bytes(chunk.size // 2))
    with pytest.raises(RunError, match=r"a\.h5 is broken: chunk \(1, 1\) of group/x cannot be read"):
        read(path)
    np.testing.assert_array_equal(read(path, Region((0, 0), (4, 7))), ARRAY[:4])


STREAMS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "short": (lambda cells: zlib.compress(cells[:44]), "got 44 bytes decoded, expected 48"),
    "empty": (lambda cells: zlib.compress(b""), "got 0 bytes decoded, expected 48"),
    "long": (lambda cells: zlib.compress(cells + b"more"), "got more than 48 bytes decoded, expected 48"),
    "endless": (lambda cells: zlib.compress(bytes(1 << 20)), "got more than 48 bytes decoded, expected 48"),
    "cut": (lambda cells: zlib.compress(cells, 0)[:40], "got 33 bytes decoded before its stream is cut"),
    "nothing": (lambda cells: b"x", "got 0 bytes decoded before its stream is cut"),
    "no stream": (lambda cells: b"no stream", "got .*incorrect header check"),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_chunk_whose_stream_holds_other_than_its_cells_is_named(
    tmp_path: Path, stream: str, shuffle: bool
) -> None:
    """HDF5 would return what is in its memory."""
    path = save(tmp_path / "a.h5", "group/x", chunks=(4, 3), compression="gzip", shuffle=shuffle)
    make, said = STREAMS[stream]
    with h5py.File(path, "r+") as file:
        dataset = file["group/x"].id
        mask, stored = dataset.read_direct_chunk((4, 3))
        dataset.write_direct_chunk((4, 3), make(zlib.decompress(stored)), mask)
    sentence = r"a\.h5 is broken: chunk \(1, 1\) of group/x cannot be read: "
    with pytest.raises(RunError, match=sentence + said):
        read(path)
    with pytest.raises(RunError, match=sentence):
        read(path, Region((7, 5), (9, 7)))
    np.testing.assert_array_equal(read(path, Region((0, 0), (4, 7))), ARRAY[:4])


FILTERS = {
    "deflate": lambda properties: properties.set_deflate(4),
    "shuffle": lambda properties: properties.set_shuffle(),
    "fletcher32": lambda properties: properties.set_fletcher32(),
}


@pytest.mark.parametrize("dtype", ["i1", ">i2", "f4", "c16"])
@pytest.mark.parametrize(
    "filters",
    [
        ("deflate",),
        ("shuffle", "deflate"),
        ("deflate", "shuffle"),
        ("deflate", "fletcher32"),
        ("fletcher32", "deflate"),
        ("shuffle", "fletcher32", "deflate", "shuffle", "deflate", "fletcher32"),
    ],
    ids=" ".join,
)
def test_deflated_chunks_are_decoded_once(
    tmp_path: Path, filters: tuple[str, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By meshrun, and not by HDF5 too, which does not check what it has decoded."""
    array = (np.random.default_rng(0).random((100, 70)) * 100).astype(dtype)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    for name in filters:
        FILTERS[name](properties)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=array, chunks=(40, 30), dcpl=properties)
    monkeypatch.setattr(hdf5.Hdf5Source, "_fill", lambda *_: pytest.fail("decoded by HDF5"))
    np.testing.assert_array_equal(read(tmp_path / "a.h5"), array)
    np.testing.assert_array_equal(read(tmp_path / "a.h5", Region((30, 1), (90, 50))), array[30:90, 1:50])


@pytest.mark.parametrize("length", [0, 1, 7, 722, 1 << 12, (1 << 22) + 1])
@pytest.mark.parametrize("value", [None, 0, 255])
def test_checksums_are_those_of_hdf5(tmp_path: Path, length: int, value: int | None) -> None:
    content = np.random.default_rng(length).integers(0, 256, length, np.uint8)
    if value is not None:
        content[:] = value
    if not length:
        assert hdf5._checksums(b"") == (bytes(4), bytes(4))
        return
    path = save(tmp_path / "a.h5", values=content, chunks=(length,), fletcher32=True)
    with h5py.File(path) as file:
        _, stored = file["data"].id.read_direct_chunk((0,))
    assert stored == content.tobytes() + hdf5._checksums(content.tobytes())[0]


def test_a_checksum_of_an_old_release_is_right_and_another_one_is_not(tmp_path: Path) -> None:
    path = save(tmp_path / "a.h5", "x", chunks=(4, 3), compression="gzip", fletcher32=True)
    with h5py.File(path, "r+") as file:
        dataset = file["x"].id
        for corner, order in (((0, 0), (1, 0, 3, 2)), ((4, 3), (2, 3, 0, 1))):
            mask, stored = dataset.read_direct_chunk(corner)
            swapped = bytes(stored[-4:][i] for i in order)
            assert swapped != stored[-4:]
            dataset.write_direct_chunk(corner, stored[:-4] + swapped, mask)
    np.testing.assert_array_equal(read(path, Region((0, 0), (4, 7))), ARRAY[:4])
    with pytest.raises(RunError, match=r"chunk \(1, 1\) of x cannot be read: got another checksum"):
        read(path)


def test_deflated_elements_that_numpy_lacks_are_read_by_hdf5_once_they_are_whole(tmp_path: Path) -> None:
    path, values = tmp_path / "a.h5", np.array([1, 2, 2000, 5], "u4")
    with h5py.File(path, "w") as file:
        properties, space = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5s.create_simple((4,))
        properties.set_chunk((2,))
        properties.set_deflate(4)
        bits = h5py.h5d.create(file.id, b"bits", h5py.h5t.STD_B32LE, space, properties)
        bits.write(h5py.h5s.ALL, h5py.h5s.ALL, values, h5py.h5t.STD_B32LE)
    np.testing.assert_array_equal(read(path), values)
    with h5py.File(path, "r+") as file:
        file["bits"].id.write_direct_chunk((2,), zlib.compress(b"short"))
    with pytest.raises(RunError, match=r"chunk \(1,\) of bits cannot be read: got 5 bytes decoded"):
        read(path)


def test_chunks_without_filters_or_not_written_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (12, 3), "f4", chunks=(4, 3), compression="gzip", fillvalue=7)
        made.id.write_direct_chunk((0, 0), ARRAY[:4, :3].tobytes(), 1)  # the first filter is not applied
        made[4:8] = ARRAY[4:8, :3]
    np.testing.assert_array_equal(read(path), np.concatenate([ARRAY[:8, :3], np.full((4, 3), 7, "f4")]))


def test_a_chunk_beyond_the_files_end_is_refused_before_memory_is_reserved(tmp_path: Path) -> None:
    path = save(tmp_path / "a.h5", "x", chunks=(4, 3), compression="gzip")
    with h5py.File(path) as file:
        size = file["x"].id.get_chunk_info_by_coord((4, 3)).size
    content = bytearray(path.read_bytes())
    key = struct.pack("<IIQQ", size, 0, 4, 3)  # of the B-tree: bytes, mask and first cell of a chunk
    assert content.count(key) == 1
    content[content.index(key) : content.index(key) + 4] = struct.pack("<I", 1 << 30)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(
            RunError, match=r"chunk \(1, 1\) of x .*bytes before the file ends, expected 1,073"
        ):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_filter_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.h5", **STORED["shuffled"][0])
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: code != 32000)
    with pytest.raises(UserError, match=r"filter 32000 \(lzf\).*pip install hdf5plugin"):
        open_source(path)


# Writing


@pytest.mark.parametrize("name", [None, "x", "group/deep/x"])
def test_what_is_written_is_one_contiguous_dataset(tmp_path: Path, name: str | None) -> None:
    path = Path(f"{tmp_path}/a.hdf5" + (f":/{name}" if name else ""))
    sink = open_sink(path, ARRAY.shape, ARRAY.dtype, "nonce")
    sink.create()
    assert isinstance(sink, FlatSink)
    assert sink.offset % 4096 == 0
    sink.write(WHOLE, ARRAY)
    commit(sink)
    with h5py.File(tmp_path / "a.hdf5") as file:
        dataset = file[name or "data"]
        assert dataset.chunks is None
        assert dataset.compression is None
        np.testing.assert_array_equal(dataset[...], ARRAY)
    assert os.listdir(tmp_path) == ["a.hdf5"]


def test_other_arrays_of_an_old_file_are_not_lost(tmp_path: Path) -> None:
    path = save(tmp_path / "a.h5", "precious")
    save(path, "data")
    for output in (path, Path(f"{path}:/data")):
        check_output(output)
        with pytest.raises(UserError, match=r"holds other arrays, which would be lost.*got precious"):
            check_output(output, alone=True)
    with pytest.raises(UserError, match="got data, precious"):
        check_output(Path(f"{path}:/new"), alone=True)
    check_output(save(tmp_path / "b.h5", "data"), alone=True)


@pytest.mark.parametrize("kind", ["chunked", "compressed", "shuffled", "checksums"])
def test_a_chunk_that_cannot_hold_its_cells_is_refused_before_it_is_decoded(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, more = tmp_path / "a.h5", {**STORED[kind][0], "chunks": (1 << 14, 1 << 14)}
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (1 << 15, 1 << 14), "f4", **more)
        made.id.write_direct_chunk((1 << 14, 0), b"0123456789abcdef")
    monkeypatch.setattr(hdf5.Hdf5Source, "_fill", lambda *_: pytest.fail("decoded"))
    expected = r"a\.h5 is broken: chunk \(1, 0\) of x cannot be read: got 16 bytes, .*expected 1,073,741,824"
    source = open_source(path)
    with pytest.raises(RunError, match=expected):
        source.read(Region((1 << 14, 5), ((1 << 14) + 1, 7)), np.empty((1, 2), "f4"))


def test_the_most_that_deflate_expands_to_is_read(tmp_path: Path) -> None:
    zeros = np.zeros((4096, 1024), "f4")
    path = save(tmp_path / "a.h5", values=zeros, chunks=zeros.shape, compression="gzip", compression_opts=9)
    with h5py.File(path) as file:
        assert file["data"].id.get_chunk_info(0).size < zeros.nbytes / 1000
    assert not read(path).any()


def test_a_broken_old_file_is_refused_rather_than_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("something else")
    with pytest.raises(UserError, match="not a readable HDF5 file"):
        check_output(tmp_path / "a.h5")


def test_what_hdf5_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot hold"):
        open_sink(tmp_path / "a.h5", (3,), np.dtype("U3"), "nonce")
