"""Pictures: every mode that Pillow gives becomes an array that a job can take, or is refused by name."""

from __future__ import annotations

import os
import pickle
import struct
import threading
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.region import Region, Shape
from meshrun.runner.storage.formats.image import HOLDS
from meshrun.runner.storage.formats.registry import commit, decode, open_sink, open_source

ROWS, COLUMNS = 5, 7


def pixels(channels: int = 0, dtype: str = "u1") -> np.ndarray:
    shape = (ROWS, COLUMNS, channels) if channels else (ROWS, COLUMNS)
    high = np.iinfo(dtype).max if np.dtype(dtype).kind in "ui" else 1
    return (np.random.default_rng(0).random(shape) * high).astype(dtype)


def read(path: Path) -> np.ndarray:
    source = open_source(path)
    region = Region((0,) * len(source.shape), source.shape)
    target = np.zeros(region.shape, source.dtype)
    source.read(region, target)
    assert source.array.flags.c_contiguous
    return target


def write(path: Path, array: np.ndarray) -> None:
    sink = open_sink(path, array.shape, array.dtype, "nonce")
    sink.create()
    sink.write(Region((0,) * array.ndim, array.shape), array)
    commit(sink)


# Reading


@pytest.mark.parametrize(
    ("mode", "suffix", "shape", "dtype"),
    [
        ("1", ".png", (ROWS, COLUMNS), "u1"),
        ("L", ".png", (ROWS, COLUMNS), "u1"),
        ("LA", ".png", (ROWS, COLUMNS, 2), "u1"),
        ("P", ".png", (ROWS, COLUMNS, 3), "u1"),
        ("RGB", ".png", (ROWS, COLUMNS, 3), "u1"),
        ("RGBA", ".png", (ROWS, COLUMNS, 4), "u1"),
        ("I;16", ".png", (ROWS, COLUMNS), "u2"),
        ("1", ".bmp", (ROWS, COLUMNS), "u1"),
        ("L", ".bmp", (ROWS, COLUMNS), "u1"),
        ("P", ".bmp", (ROWS, COLUMNS, 3), "u1"),
        ("RGB", ".bmp", (ROWS, COLUMNS, 3), "u1"),
        ("L", ".jpg", (ROWS, COLUMNS), "u1"),
        ("RGB", ".jpeg", (ROWS, COLUMNS, 3), "u1"),
        ("CMYK", ".jpg", (ROWS, COLUMNS, 3), "u1"),
    ],
)
def test_modes(tmp_path: Path, mode: str, suffix: str, shape: Shape, dtype: str) -> None:
    picture = Image.new(mode, (COLUMNS, ROWS))
    if mode == "P":
        picture = Image.fromarray(pixels(3)).convert("P")
    if mode[0] == "I":
        picture = Image.fromarray(pixels(dtype={"I": "i4", "I;16": "<u2", "I;16B": ">u2"}[mode]))
    path = tmp_path / f"a{suffix}"
    picture.save(path)
    got = read(path)
    assert (got.shape, got.dtype) == (shape, np.dtype(dtype))
    assert got.dtype.isnative
    source = open_source(path)
    assert (source.shape, source.dtype) == (shape, np.dtype(dtype))
    assert source.dtype.isnative
    if mode[0] == "I":
        np.testing.assert_array_equal(got, pixels(dtype=dtype))


def test_black_and_white_is_0_and_255(tmp_path: Path) -> None:
    Image.fromarray(pixels() > 127).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read(tmp_path / "a.png"), np.where(pixels() > 127, 255, 0))


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    picture = Image.fromarray(np.array([[0, 1], [2, 0]], "u1"), "L")
    picture.putpalette([10, 11, 12, 20, 21, 22, 30, 31, 32])
    picture.save(tmp_path / "a.png")
    assert read(tmp_path / "a.png").tolist() == [[[10, 11, 12], [20, 21, 22]], [[30, 31, 32], [10, 11, 12]]]


def test_a_palette_with_transparency_has_alpha(tmp_path: Path) -> None:
    picture = Image.fromarray(np.array([[0, 1]], "u1"), "L")
    picture.putpalette([10, 11, 12, 20, 21, 22])
    picture.save(tmp_path / "a.png", transparency=1)
    assert read(tmp_path / "a.png").tolist() == [[[10, 11, 12, 255], [20, 21, 22, 0]]]
    assert open_source(tmp_path / "a.png").shape == (1, 2, 4)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_cameras_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    upright = pixels()
    as_stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),  # show it turned a quarter clockwise
        7: np.rot90(upright, 2).T,
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(as_stored)).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read(tmp_path / "a.png"), upright)
    for suffix in (".png", ".jpg"):
        path = tmp_path / f"b{suffix}"
        Image.fromarray(np.ascontiguousarray(as_stored)).save(path, exif=exif)
        assert open_source(path).shape == read(path).shape == (ROWS, COLUMNS)


def test_an_orientation_after_the_pixels_of_a_png_is_applied(tmp_path: Path) -> None:
    path, exif = tmp_path / "a.png", Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels()).save(path, exif=exif)
    content = path.read_bytes()
    first, last = content.index(b"eXIf") - 4, content.index(b"IDAT") - 4
    assert first < last
    path.write_bytes(content[:first] + content[last:-12] + content[first:last] + content[-12:])
    assert open_source(path).shape == (COLUMNS, ROWS)
    np.testing.assert_array_equal(read(path), np.rot90(pixels(), -1))


def test_a_picture_that_changes_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(pixels()).save(path)
    source = open_source(path)
    Image.fromarray(pixels(3)).save(path)
    with pytest.raises(UserError, match=r"a\.png is broken or has changed: got uint8 \(\d+, \d+, 3\)"):
        decode(source)


def test_a_picture_that_is_gone_after_its_header_was_read_is_named(tmp_path: Path) -> None:
    Image.fromarray(pixels()).save(tmp_path / "a.png")
    source = open_source(tmp_path / "a.png")
    source.path.unlink()
    with pytest.raises(UserError, match=r"cannot read .*a\.png: No such file"):
        decode(source)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp"])
def test_only_the_header_of_a_picture_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    noise = np.random.default_rng(0).integers(0, 255, (300, 200, 3), np.uint8)
    Image.fromarray(noise).save(path)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1000] = bytes(1000)  # broken beyond the header
    if suffix == ".jpg":
        del content[middle:]
    path.write_bytes(content)
    source = open_source(path)
    assert (source.shape, source.dtype, source.parallel) == ((300, 200, 3), np.dtype("u1"), False)
    if suffix in (".png", ".jpg"):
        with pytest.raises(UserError, match="is broken or truncated"):
            decode(source)
        with pytest.raises(UserError, match="is broken or truncated"):
            source.read(Region((0, 0, 0), (1, 1, 1)), np.empty((1, 1, 1), np.uint8))


def test_a_part_is_read(tmp_path: Path) -> None:
    Image.fromarray(pixels(3)).save(tmp_path / "a.png")
    region = Region((1, 2, 0), (4, 6, 3))
    target = np.empty(region.shape, "u1")
    open_source(tmp_path / "a.png").read(region, target)
    np.testing.assert_array_equal(target, pixels(3)[1:4, 2:6])


def test_a_source_travels_as_a_description(tmp_path: Path) -> None:
    Image.new("RGB", (300, 200)).save(tmp_path / "a.png")
    message = pickle.dumps(open_source(tmp_path / "a.png"))
    assert len(message) < 2000
    assert pickle.loads(message).array.shape == (200, 300, 3)


def test_a_large_picture_is_read_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Pillow refuses pictures of twice its limit, a guard for servers; its limit is 90 megapixels."""
    for limit in (ROWS * COLUMNS - 1, 2):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        Image.fromarray(pixels()).save(tmp_path / "a.png")
        np.testing.assert_array_equal(read(tmp_path / "a.png"), pixels())
        assert limit == Image.MAX_IMAGE_PIXELS, "the guard of the program around us stays"
    assert not list(recwarn)


def test_the_last_of_several_threads_restores_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one for the whole process: one picture must not restore it while another is opened."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)
    Image.fromarray(pixels()).save(tmp_path / "a.png")
    steps = {name: threading.Event() for name in ("first is in", "second is in", "first is out")}
    turns = iter([("first is in", "second is in"), ("second is in", "first is out")])
    opened = Image.open

    def in_turn(*args: Any, **named: Any) -> Any:
        done, awaited = next(turns, (None, None))
        if done is not None and awaited is not None:
            steps[done].set()
            assert steps[awaited].wait(60)
        return opened(*args, **named)

    monkeypatch.setattr(Image, "open", in_turn)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read, tmp_path / "a.png")
        assert steps["first is in"].wait(60)
        second = pool.submit(read, tmp_path / "a.png")
        first.exception()
        steps["first is out"].set()
        for one in (first, second):
            np.testing.assert_array_equal(one.result(), pixels())
    assert Image.MAX_IMAGE_PIXELS == 2


def png(rows: bytes, depth: int, color_type: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", COLUMNS, height, depth, color_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("color_type", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_16_bit_colour_is_refused_rather_than_halved(tmp_path: Path, color_type: int, channels: int) -> None:
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels(channels, "u2"))
    (tmp_path / "a.png").write_bytes(png(rows, 16, color_type, ROWS))
    with pytest.raises(UserError, match=r"16 bits.*Try: gdal_translate .*a\.png .*a\.tif"):
        open_source(tmp_path / "a.png")


def test_a_cameras_picture_with_its_own_preview_is_read(tmp_path: Path) -> None:
    preview = Image.new("RGB", (3, 2))
    Image.new("RGB", (COLUMNS, ROWS)).save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[preview])
    assert read(tmp_path / "a.jpg").shape == (ROWS, COLUMNS, 3)


def test_a_file_of_several_pictures_is_refused_rather_than_cut_to_the_first(tmp_path: Path) -> None:
    first, second = Image.new("L", (3, 2)), Image.new("L", (3, 2), 9)
    first.save(tmp_path / "a.png", save_all=True, append_images=[second])
    with pytest.raises(UserError, match=r"a\.png holds 2 pictures: expected one"):
        open_source(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.95])
def test_a_truncated_picture_is_refused(tmp_path: Path, suffix: str, kept: float) -> None:
    path = tmp_path / f"a{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (60, 70, 3), np.uint8)
    Image.fromarray(noise).save(path)
    os.truncate(path, int(path.stat().st_size * kept))
    with pytest.raises(UserError, match=str(path)):
        decode(open_source(path))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp"])
@pytest.mark.parametrize(
    "content", [b"", b"no picture at all" * 9, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
)
def test_what_is_no_picture_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a readable picture"):
        open_source(path)


def test_the_content_decides_not_the_suffix(tmp_path: Path) -> None:
    Image.fromarray(pixels(3)).save(tmp_path / "a.jpg", "PNG")
    np.testing.assert_array_equal(read(tmp_path / "a.jpg"), pixels(3))


def test_a_tiff_is_read_as_one_whatever_its_suffix(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", pixels(5, "u2"), photometric="minisblack", planarconfig="contig")
    (tmp_path / "a.tif").rename(tmp_path / "a.png")
    np.testing.assert_array_equal(open_source(tmp_path / "a.png").array[...], pixels(5, "u2"))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_a_png_that_promises_more_than_it_can_hold_is_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    Image.new(mode, (7, 5)).save(path)
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 40_000, 50_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    decoded = 40_000 * 50_000 * (3 if mode == "RGB" else 1)
    expected = rf"a\.png promises more than it can hold: got {len(content):,} bytes.*, expected {decoded:,}"
    with pytest.raises(UserError, match=expected):
        open_source(path)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_the_most_that_a_compression_expands_to_is_read(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    Image.new(mode, (4000, 4000)).save(path)
    assert not read(path).any()


def test_no_memory_is_reserved_for_a_length_beyond_the_files_end(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(pixels(3)).save(path)
    content = bytearray(path.read_bytes())
    content[33:37] = struct.pack(">I", 1 << 30)  # the length of the chunk of pixels
    path.write_bytes(content)
    tracemalloc.start()
    try:
        np.testing.assert_array_equal(read(path), pixels(3))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_what_pillow_reads_byte_by_byte_asks_for_the_files_size_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it skips what is between the segments of a JPEG, which took minutes."""
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels()).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes(50_000) + content[20:])
    asked: list[int] = []
    fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: asked.append(file) or fstat(file))
    assert open_source(path).shape == (ROWS, COLUMNS)
    assert len(asked) < 100


# Writing


CASES = [
    (suffix, dtype, channels)
    for suffix, kind in ((".png", "PNG"), (".bmp", "BMP"), (".jpg", "JPEG"))
    for dtype, counts in HOLDS[kind].items()
    for channels in counts
]


@pytest.mark.parametrize(("suffix", "dtype", "channels"), CASES)
def test_what_a_format_holds_comes_back(tmp_path: Path, suffix: str, dtype: str, channels: int) -> None:
    path = tmp_path / f"a{suffix}"
    array = np.full((ROWS, COLUMNS, channels) if channels else (ROWS, COLUMNS), 77, dtype)
    if suffix != ".jpg":
        array = pixels(channels, np.dtype(dtype).str)
    write(path, array)
    expected = array[..., 0] if channels == 1 else array  # files know no axis of one channel
    got = read(path)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, expected)
    assert os.listdir(tmp_path) == [path.name]


def test_jpeg_says_that_it_loses() -> None:
    for name, lossless in (("a.jpg", False), ("a.JPEG", False), ("a.png", True)):
        assert open_sink(Path(name), (4, 4), np.dtype("u1"), "nonce").lossless is lossless


def test_rows_with_gaps_are_written_right(tmp_path: Path) -> None:
    array = np.ascontiguousarray(pixels(3)[:, ::-1])[:, ::-1]
    write(tmp_path / "a.png", array)
    np.testing.assert_array_equal(read(tmp_path / "a.png"), array)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("a.png", (4, 4), "f4"),
        ("a.png", (4, 4), "f8"),
        ("a.png", (4, 4), "i4"),
        ("a.png", (4, 4), "?"),
        ("a.png", (4, 4), "c8"),
        ("a.png", (4, 4, 3), "u2"),
        ("a.png", (4, 4, 5), "u1"),
        ("a.png", (4, 4, 0), "u1"),
        ("a.png", (0, 4), "u1"),
        ("a.png", (4,), "u1"),
        ("a.png", (), "u1"),
        ("a.png", (2, 4, 4, 3), "u1"),
        ("a.jpg", (4, 4, 4), "u1"),
        ("a.jpg", (4, 4), "u2"),
        ("a.jpg", (65501, 1), "u1"),
        ("a.jpg", (1, 70000, 3), "u1"),
        ("a.bmp", (4, 4, 4), "u1"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(name: str, shape: Shape, dtype: str) -> None:
    with pytest.raises(UserError, match=r"cannot hold this result.*ends in \.npy"):
        open_sink(Path(name), shape, np.dtype(dtype), "nonce")


def test_the_longest_jpeg(tmp_path: Path) -> None:
    write(tmp_path / "a.jpg", np.zeros((65500, 1), "u1"))
    assert read(tmp_path / "a.jpg").shape == (65500, 1)


def test_failed_writes_are_named(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "missing" / "a.png", (4, 4), np.dtype("u1"), "nonce")
    with pytest.raises(RunError, match=r"cannot write .*a\.png.*No such file"):
        sink.create()
    with pytest.raises(RunError, match=r"cannot write .*a\.png"):
        sink.write(Region((0, 0), (4, 4)), np.zeros((4, 4), "u1"))
    taken = open_sink(tmp_path / "a.png", (4, 4), np.dtype("u1"), "nonce")
    taken.partial.touch()
    with pytest.raises(RunError, match="File exists"):
        taken.create()


def test_an_array_that_is_not_the_picture_is_refused(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "a.png", (4, 4), np.dtype("u1"), "nonce")
    sink.create()
    for array in (np.zeros((4, 5), "u1"), np.zeros((4, 4), "u2")):
        with pytest.raises(ValueError, match="uint8"):
            sink.write(Region((0, 0), (4, 4)), array)
