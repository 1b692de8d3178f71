"""TIFF through tifffile: stacks, tiles and large files as arrays; simple pictures as Pillow has them."""

from __future__ import annotations

import importlib
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from runner.errors import RunError, UserError
from runner.region import Region
from runner.storage.formats import image
from runner.storage.formats.flat import FlatSource
from runner.storage.formats.registry import (
    Form,
    commit,
    decode,
    open_sink,
    open_source,
)

tifffile = pytest.importorskip("tifffile")
tiff = importlib.import_module("runner.storage.formats.tiff")


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.random.default_rng(0).random(shape) * 200).astype(dtype)


def read(path: Path, region: Region | None = None) -> np.ndarray:
    source = open_source(path)
    region = region or Region((0,) * len(source.shape), source.shape)
    target = np.full(region.shape, 77, source.dtype)
    source.read(region, target)
    np.testing.assert_array_equal(target, source.array[region.slices])
    return target


GRAY, COLOUR = {"photometric": "minisblack"}, {"photometric": "rgb"}
FILES: dict[str, tuple[tuple[int, ...], dict[str, Any], bool]] = {  # shape, how, whether it is flat
    "a page": ((50, 70), GRAY, True),
    "strips": ((50, 70), {**GRAY, "rowsperstrip": 7}, True),
    "compressed strips": ((50, 70), {**GRAY, "rowsperstrip": 7, "compression": "zlib"}, False),
    "tiles": ((50, 70), {**GRAY, "tile": (16, 32)}, False),
    "compressed tiles": ((50, 70), {**GRAY, "tile": (16, 32), "compression": "zlib"}, False),
    "predicted": ((50, 70), {**GRAY, "tile": (16, 16), "compression": "zlib", "predictor": True}, False),
    "a stack": ((5, 50, 70), GRAY, True),
    "a stack of tiles": ((5, 50, 70), {**GRAY, "tile": (16, 32), "compression": "zlib"}, False),
    "a stack of strips": ((5, 50, 70), {**GRAY, "rowsperstrip": 9, "compression": "zlib"}, False),
    "channels": ((50, 70, 3), COLOUR, True),
    "compressed channels": ((50, 70, 3), {**COLOUR, "tile": (16, 16), "compression": "zlib"}, False),
    "a stack of channels": ((4, 50, 70, 3), {**COLOUR, "tile": (16, 16), "compression": "zlib"}, False),
    "four axes": ((2, 3, 50, 70), {**GRAY, "tile": (32, 32), "compression": "zlib"}, False),
    "foreign": ((5, 50, 70), {**GRAY, "byteorder": ">"}, True),
    "foreign tiles": ((50, 70), {**GRAY, "byteorder": ">", "tile": (16, 16), "compression": "zlib"}, False),
    "ImageJ": ((5, 50, 70), {"imagej": True}, True),
}


@pytest.mark.parametrize(
    ("kind", "bigtiff"),
    [*((kind, False) for kind in FILES), *((kind, True) for kind in FILES if kind != "ImageJ")],
)
def test_what_tifffile_writes_is_read(tmp_path: Path, kind: str, bigtiff: bool) -> None:
    shape, how, flat = FILES[kind]
    array, path = values(shape, "u2"), tmp_path / "a.tif"
    tifffile.imwrite(path, array, bigtiff=bigtiff, **how)
    source = open_source(path)
    assert (source.shape, source.dtype) == (array.shape, array.dtype)
    assert source.parallel
    assert isinstance(source, FlatSource) == flat
    np.testing.assert_array_equal(read(path), array)
    start, stop = tuple(n // 3 for n in shape), tuple(n - n // 4 for n in shape)
    np.testing.assert_array_equal(read(path, Region(start, stop)), array[Region(start, stop).slices])


def test_tiles_are_the_chunks_and_only_those_touched_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, how, _ = FILES["a stack of tiles"]
    tifffile.imwrite(tmp_path / "a.tif", values(shape, "u2"), **how)
    source = open_source(tmp_path / "a.tif")
    assert source.chunks == (1, 16, 32)
    whole_read, count = os.pread, []
    monkeypatch.setattr(os, "pread", lambda *a: count.append(1) or whole_read(*a))
    source.read(Region((1, 17, 0), (3, 30, 33)), np.empty((2, 13, 33), "u2"))
    assert len(count) == 2 * 1 * 2


def test_threads_read_tiles(tmp_path: Path) -> None:
    array = values((64, 70), "f4")
    tifffile.imwrite(tmp_path / "a.tif", array, tile=(16, 16), compression="zlib")
    source = open_source(tmp_path / "a.tif")

    def part(row: int) -> np.ndarray:
        target = np.empty((1, 70), "f4")
        source.read(Region((row, 0), (row + 1, 70)), target)
        return target

    with ThreadPoolExecutor(8) as pool:
        np.testing.assert_array_equal(np.concatenate(list(pool.map(part, range(64)))), array)


def test_a_tile_that_was_left_out_is_zeros(tmp_path: Path) -> None:
    def tiles() -> Any:
        yield np.full((16, 16), 3, "u2")
        yield None

    tifffile.imwrite(
        tmp_path / "a.tif", tiles(), shape=(16, 32), dtype="u2", tile=(16, 16), compression="zlib", **GRAY
    )
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), [[3] * 16 + [0] * 16] * 16)


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "RGBX", "CMYK", "I;16", "I;16B", "I", "F")


@pytest.mark.parametrize(
    ("mode", "compression"),
    [
        *product(MODES, (None, "tiff_adobe_deflate", "tiff_lzw")),
        *product(("L", "RGB"), ("jpeg",)),
    ],
)
def test_simple_pictures_are_as_pillow_has_them(tmp_path: Path, mode: str, compression: str | None) -> None:
    path = tmp_path / "a.tif"
    if mode[0] == "I":
        picture = Image.fromarray(values((33, 47), {"I": "i4", "I;16": "<u2", "I;16B": ">u2"}[mode]))
    elif mode == "F":
        picture = Image.fromarray(values((33, 47), "f4"))
    else:
        picture = Image.fromarray(values((33, 47, 3), "u1")).convert("P" if mode == "P" else "RGB")
        picture = picture if mode in ("P", "RGB") else picture.convert(mode)
    picture.save(path, compression=compression)
    theirs = image.open_source(path, None, Form()).array
    ours = read(path)
    source = open_source(path)
    assert (source.shape, source.dtype) == (ours.shape, ours.dtype)
    assert source.parallel or source.decoded_bytes >= ours.nbytes
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_cameras_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(values((5, 7), "u1")).save(tmp_path / "a.tif", exif=exif)
    np.testing.assert_array_equal(
        read(tmp_path / "a.tif"), image.open_source(tmp_path / "a.tif", None, Form()).array
    )


def test_white_is_zero_is_as_pillow_has_it(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", values((5, 7), "u1"), photometric="miniswhite")
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), 255 - values((5, 7), "u1"))


def test_pages_of_different_shapes_are_refused(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(values((5, 7), "u1"), **GRAY)
        file.write(values((6, 8), "u1"), **GRAY)
    with pytest.raises(UserError, match=r"2 pictures of different kinds: got \(5, 7\), \(6, 8\)"):
        open_source(tmp_path / "a.tif")


def test_pillows_stack_of_pages(tmp_path: Path) -> None:
    pages = values((4, 5, 7), "u1")
    first, *others = (Image.fromarray(page) for page in pages)
    first.save(tmp_path / "a.tif", save_all=True, append_images=others)
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), pages)


# Broken files


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("kept", [0.0, 0.03, 0.3, 0.8, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str, kept: float) -> None:
    shape, how, _ = FILES[kind]
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, values(shape, "u2"), metadata=None if not how.get("imagej") else {}, **how)
    os.truncate(path, int(path.stat().st_size * kept))
    with pytest.raises(UserError, match=str(path)):
        decode(open_source(path))


@pytest.mark.parametrize(
    "content", [b"", b"no picture at all" * 9, b"II*\0" + bytes(40), b"II+\0" + bytes(40)]
)
def test_what_is_no_picture_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.tif"):
        open_source(tmp_path / "a.tif")


def test_the_content_decides_not_the_suffix(tmp_path: Path) -> None:
    Image.fromarray(values((5, 7, 3), "u1")).save(tmp_path / "a.tif", "PNG")
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), values((5, 7, 3), "u1"))


def test_a_broken_tile_is_named(tmp_path: Path) -> None:
    path, array = tmp_path / "a.tif", values((2, 50, 70), "u2")
    tifffile.imwrite(path, array, tile=(16, 32), compression="zlib", **GRAY)
    with tifffile.TiffFile(path) as file:
        offset, size = file.pages[1].dataoffsets[4], file.pages[1].databytecounts[4]
    with path.open("r+b") as raw:
        raw.seek(offset + size // 2)
        raw.write(b"\xff" * (size // 2))
    with pytest.raises(RunError, match=r"a\.tif is broken: part 4 of page 1 cannot be decoded"):
        read(path)
    np.testing.assert_array_equal(read(path, Region((0, 0, 0), (1, 50, 70))), array[:1])


def test_a_compression_that_needs_a_package(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    pages = [Image.fromarray(values((33, 47), "u2")) for _ in range(2)]
    pages[0].save(path, save_all=True, append_images=pages[1:], compression="tiff_lzw")
    with pytest.raises(UserError, match="pip install imagecodecs"):
        open_source(path)


# Writing


@pytest.mark.parametrize(
    ("shape", "dtype", "photometric", "pages"),
    [
        ((5, 7), "f4", "MINISBLACK", 1),
        ((5, 7, 3), "u1", "RGB", 1),
        ((5, 7, 4), "u1", "RGB", 1),
        ((5, 7, 3), "u2", "RGB", 1),
        ((5, 7, 3), "f4", "MINISBLACK", 5),
        ((5, 7, 9), "u1", "MINISBLACK", 5),
        ((2, 5, 7, 9), "i2", "MINISBLACK", 10),
    ],
)
def test_what_is_written(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, photometric: str, pages: int
) -> None:
    path, array = tmp_path / "a.tif", values(shape, dtype)
    sink = open_sink(path, shape, array.dtype, "nonce")
    sink.create()
    sink.write(Region((0,) * len(shape), shape), array)
    sink.sync()
    commit(sink)
    np.testing.assert_array_equal(tifffile.imread(path), array)
    np.testing.assert_array_equal(read(path), array)
    with tifffile.TiffFile(path) as file:
        assert (len(file.pages), file.pages[0].photometric.name, file.is_bigtiff) == (
            pages,
            photometric,
            False,
        )
    if dtype == "u1":
        with Image.open(path) as picture:
            np.testing.assert_array_equal(np.asarray(picture), array if photometric == "RGB" else array[0])


def test_a_file_beyond_4_gb_is_a_bigtiff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.storage.preallocate.fallocate", lambda *_: None)  # the file stays sparse
    shape = (3, 40_000, 40_000)
    sink = open_sink(tmp_path / "a.tif", shape, np.dtype("u1"), "nonce")
    sink.create()
    last = Region((2, 39_999, 39_990), shape)
    sink.write(last, np.full(last.shape, 9, "u1"))
    commit(sink)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert file.is_bigtiff
        assert len(file.pages) == 3
    assert read(tmp_path / "a.tif", Region((2, 39_999, 39_980), shape)).tolist() == [[[0] * 10 + [9] * 10]]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((5, 7), "?"), ((5, 7), "c16"), ((5,), "u1"), ((), "u1"), ((0, 7), "u1"), ((5, 7), "U2")],
)
def test_what_tiff_cannot_hold_is_refused(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(UserError, match=r"TIFF cannot hold this result.*ends in \.npy"):
        open_sink(Path("a.tif"), shape, np.dtype(dtype), "nonce")


# Headers that promise more than their file can hold


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("strip", [6, 1 << 24], ids=["a strip of 6 rows", "one strip"])
def test_a_header_of_more_rows_than_the_file_can_hold_is_refused(
    tmp_path: Path, compression: str | None, strip: int
) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, values((6, 8), "u2"), compression=compression, metadata=None, **GRAY)
    promise(path, ImageLength=1 << 24, RowsPerStrip=strip)
    promised = (1 << 24) * 8 * 2
    if compression is None:
        size, offset = os.path.getsize(path), promised + offset_of(path)
        expected = rf"a\.tif is broken or truncated: got {size:,} bytes, expected at least {offset:,}"
    else:
        held = stored(path)
        expected = (
            rf"a\.tif promises more than it can hold: got {held:,} bytes.*, expected {promised:,} bytes"
        )
    with pytest.raises(UserError, match=expected):
        open_source(path)


def test_parts_that_were_left_out_are_not_promised(tmp_path: Path) -> None:
    def tiles() -> Any:
        yield np.full((16, 16), 3, "u2")
        for _ in range(9999):
            yield None

    path = tmp_path / "a.tif"
    tifffile.imwrite(path, tiles(), shape=(1600, 1600), dtype="u2", tile=(16, 16), compression="zlib", **GRAY)
    source = open_source(path)
    target = np.full((16, 32), 77, "u2")
    source.read(Region((0, 0), (16, 32)), target)
    np.testing.assert_array_equal(target, [[3] * 16 + [0] * 16] * 16)


def test_the_most_that_deflate_expands_to_is_read(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4000, 4000), "u1"), compression="zlib", **GRAY)
    assert not read(tmp_path / "a.tif").any()


def promise(path: Path, **tags: int) -> None:
    """Overwrite tags of the first page."""
    with tifffile.TiffFile(path, mode="r+") as file:
        for name, value in tags.items():
            file.pages[0].tags[name].overwrite(value, dtype="I")


def offset_of(path: Path) -> int:
    with tifffile.TiffFile(path) as file:
        return int(file.pages[0].dataoffsets[0])


def stored(path: Path) -> int:
    """Bytes of the first page's strips."""
    with tifffile.TiffFile(path) as file:
        return sum(file.pages[0].databytecounts)


def test_an_infinite_number_of_strips_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, values((6, 8), "u2"), metadata=None, **GRAY)
    content = bytearray(path.read_bytes())
    entry = content.index(struct.pack("<H", 278))  # RowsPerStrip
    struct.pack_into("<HII", content, entry + 2, 12, 1, len(content))  # a double
    path.write_bytes(content + struct.pack("<d", 5e-324))
    with pytest.raises(UserError, match=r"a\.tif is broken or truncated"):
        decode(open_source(path))


# Chains of pages


def test_a_circle_of_pages_ends(tmp_path: Path) -> None:
    """A page without tags leads back to the first one: tifffile iterated over its pages for ever."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, values((6, 8), "u2"), metadata=None, **GRAY)
    content = bytearray(path.read_bytes())
    (first,) = struct.unpack_from("<I", content, 4)
    (tags,) = struct.unpack_from("<H", content, first)
    struct.pack_into("<I", content, first + 2 + 12 * tags, len(content))
    path.write_bytes(content + struct.pack("<HI", 0, first))
    with pytest.raises(UserError, match=r"a\.tif is broken or truncated"):
        open_source(path)
