"""TIFF through tifffile: stacks, tiles and large files as arrays; pictures as they are shown."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import tifffile
from PIL import Image
from tiff_files import TURNS, few_bits

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.region import Region
from meshrun.runner.storage.formats.flat import FlatSource
from meshrun.runner.storage.formats.registry import (
    commit,
    decode,
    open_sink,
    open_source,
)

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


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


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F")


@pytest.mark.parametrize(
    ("mode", "compression"),
    [
        *product(MODES, (None, "tiff_adobe_deflate", "tiff_lzw")),
        *product(("1",), ("group3", "group4")),
        *product(("L", "RGB"), ("jpeg",)),
    ],
)
def test_what_pillow_writes_is_read_as_pillow_reads_it(
    tmp_path: Path, mode: str, compression: str | None
) -> None:
    path = tmp_path / "a.tif"
    if mode[0] == "I":
        picture = Image.fromarray(values((33, 47), {"I": "i4", "I;16": "u2"}[mode]))
    elif mode == "F":
        picture = Image.fromarray(values((33, 47), "f4"))
    else:
        picture = Image.fromarray(values((33, 47, 3), "u1")).convert(mode)
    picture.save(path, compression=compression)
    if compression in ("group3", "group4") and 4 not in tifffile.TIFF.DECOMPRESSORS:  # of an old release
        with pytest.raises(UserError, match="tifffile cannot decode"):
            open_source(path)
        return
    with Image.open(path) as opened:
        shown = opened.convert({"1": "L", "P": "RGB", "CMYK": "RGB"}.get(mode, opened.mode))
        theirs = np.asarray(shown)
    ours = read(path)
    assert ours.dtype == theirs.dtype
    assert open_source(path).parallel
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"])
@pytest.mark.parametrize("channels", [0, 3])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_the_cameras_orientation_is_applied(
    tmp_path: Path, orientation: int, dtype: str, channels: int, compression: str | None
) -> None:
    array = values((5, 7, channels) if channels else (5, 7), dtype)
    tag = [(274, "H", 1, orientation, True)]
    how = {"photometric": "rgb", "planarconfig": "contig"} if channels else GRAY
    tifffile.imwrite(tmp_path / "a.tif", array, extratags=tag, compression=compression, **how)
    expected = TURNS[orientation](array, 0)
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), expected)
    region = Region((1, 0, 1)[: expected.ndim], (4, 3, 3)[: expected.ndim])
    np.testing.assert_array_equal(read(tmp_path / "a.tif", region), expected[region.slices])


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "?"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_white_is_zero_is_inverted(tmp_path: Path, dtype: str, compression: str | None) -> None:
    """It was for uint8 alone, which Pillow read."""
    array = values((5, 7), dtype) if dtype != "?" else values((5, 7), "u1") > 100
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="miniswhite", compression=compression)
    expected = ~array if dtype != "?" else np.where(array, 0, 255).astype("u1")
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), expected)


def test_white_is_zero_of_few_bits_keeps_the_extra_channel(tmp_path: Path) -> None:
    array = values((5, 7, 2), "u1") % 16
    path = tmp_path / "a.tif"
    profile = {"driver": "GTiff", "width": 7, "height": 5, "count": 2, "dtype": "uint8", "nbits": 4}
    with rasterio.open(path, "w", photometric="MINISWHITE", **profile) as file:
        file.write(np.moveaxis(array, -1, 0))
    np.testing.assert_array_equal(read(path), np.stack([15 - array[..., 0], array[..., 1]], -1))
    part = Region((1, 2, 1), (4, 6, 2))
    np.testing.assert_array_equal(read(path, part), array[part.slices])


@pytest.mark.parametrize("dtype", ["i1", "i2", "f4"])
def test_white_is_zero_without_a_white_is_refused(tmp_path: Path, dtype: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", values((5, 7), dtype), photometric="miniswhite")
    with pytest.raises(UserError, match=r"programs do not agree on: got MINISWHITE: 1 of (int|float)"):
        open_source(tmp_path / "a.tif")


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7)])
def test_a_palette_becomes_colours(tmp_path: Path, shape: tuple[int, ...]) -> None:
    colors, array = np.random.default_rng(1).integers(0, 1 << 16, (3, 256), np.uint16), values(shape, "u1")
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="palette", colormap=colors)
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), (colors >> 8).astype("u1").T[array])


@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_inks_of_other_than_8_bits_are_refused(tmp_path: Path, dtype: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", values((5, 7, 4), dtype), photometric="separated")
    with pytest.raises(UserError, match=r"got SEPARATED: 4 of (uint16|float32) per pixel"):
        open_source(tmp_path / "a.tif")


@pytest.mark.parametrize("kind", ["unspecified", "assocalpha", "unassalpha"])
@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_extra_samples_are_kept_as_they_are(tmp_path: Path, kind: str, planar: str) -> None:
    """Pillow dropped them, or divided the colours by them."""
    array = values((5, 7, 4), "u1")
    stored = array if planar == "contig" else np.moveaxis(array, -1, 0)
    how = {"photometric": "rgb", "planarconfig": planar, "extrasamples": [kind]}
    tifffile.imwrite(tmp_path / "a.tif", stored, **how)
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), array)


def test_associated_alpha_is_kept_in_floats(tmp_path: Path) -> None:
    array = values((5, 7, 4), "f4")
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", extrasamples=["assocalpha"])
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), array)


@pytest.mark.parametrize(
    ("dtype", "nodata", "fill"),
    [
        ("int16", "-7", -7),
        ("int16", "300", 300),
        ("int8", "7", 7),
        ("uint8", "-9999", 0),
        ("uint8", "300", 255),
        ("uint16", "0.5", 1),
        ("int32", "-1.5", -2),
        ("int32", "nan", 0),
        ("uint8", "inf", 255),
        ("uint8", "abc", 0),
        ("uint8", "1,5", 2),
        ("float32", "1e30", 1e30),
        ("float32", "nan", np.nan),
        ("complex64", "-1.5", -1.5),
        ("int64", "9007199254740993", 9007199254740993),
        ("int64", "1.5", 1),
        ("uint64", "18446744073709551615", 18446744073709551615),
        ("uint64", "-1", 18446744073709551615),
        ("int16", None, 0),
    ],
)
def test_parts_that_were_left_out_have_the_value_that_gdal_gives_them(
    tmp_path: Path, dtype: str, nodata: str | None, fill: Any
) -> None:
    def tiles() -> Any:
        yield np.full((16, 16), 5, dtype)
        yield None

    path, tag = tmp_path / "a.tif", [(42113, "s", 0, nodata, True)] if nodata else []
    how = {"shape": (16, 32), "dtype": dtype, "tile": (16, 16), "compression": "zlib", "extratags": tag}
    tifffile.imwrite(path, tiles(), **how, **GRAY)
    with rasterio.open(path) as file:
        theirs = file.read()[0]
    np.testing.assert_array_equal(read(path), theirs)
    assert read(path)[0, 31] == np.dtype(dtype).type(fill) or np.isnan(fill)


@pytest.mark.parametrize("compress", [None, "deflate"])
@pytest.mark.parametrize("tiled", [True, False])
def test_a_file_of_nothing_but_nodata(tmp_path: Path, compress: str | None, tiled: bool) -> None:
    """Its single strip begins at byte 0: what is there is the file's header."""
    path, how = tmp_path / "a.tif", {"tiled": True, "blockxsize": 16} if tiled else {}
    profile = {"driver": "GTiff", "width": 32, "height": 16, "count": 1, "dtype": "int16", "nodata": -3}
    with rasterio.open(path, "w", SPARSE_OK="TRUE", blockysize=16, compress=compress, **profile, **how):
        pass
    np.testing.assert_array_equal(read(path), np.full((16, 32), -3, "i2"))


# Which pages


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (2, 5, 7)])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("metadata", [None, {}])
def test_pages_that_were_appended_are_a_stack(
    tmp_path: Path, shape: tuple[int, ...], compression: str | None, metadata: dict[str, Any] | None
) -> None:
    array = values((4, *shape), "u2")
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for one in array:
            how = COLOUR if shape[-1] == 3 else GRAY
            file.write(one, compression=compression, metadata=metadata, **how)
    flat = metadata is None and shape == (2, 5, 7)
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), array.reshape(8, 5, 7) if flat else array)


@pytest.mark.parametrize("kind", [1, 4, 5], ids=["smaller", "mask", "mask of a smaller one"])
@pytest.mark.parametrize("same_shape", [True, False])
@pytest.mark.parametrize("metadata", [None, {}])
@pytest.mark.parametrize("first", [True, False])
def test_masks_and_thumbnails_are_left_out(
    tmp_path: Path, kind: int, same_shape: bool, metadata: dict[str, Any] | None, first: bool
) -> None:
    path, array = tmp_path / "a.tif", values((40, 32), "u1")
    other = (array[::-1] if same_shape else array[::2, ::2], 1)
    with tifffile.TiffWriter(path) as file:
        for one, subfile in [other, (array, 0)] if first else [(array, 0), other]:
            file.write(one, subfiletype=subfile, metadata=metadata, **GRAY)
    with tifffile.TiffFile(path, mode="r+") as file:  # tifffile writes no masks
        file.pages[0 if first else 1].tags[254].overwrite(kind)
    np.testing.assert_array_equal(read(path), array)


def test_the_levels_and_the_mask_of_a_geotiff_are_left_out(tmp_path: Path) -> None:
    path, array = tmp_path / "a.tif", values((3, 64, 64), "u1")
    profile = {"driver": "GTiff", "width": 64, "height": 64, "count": 3, "dtype": "uint8", "tiled": True}
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        with rasterio.open(path, "w", blockxsize=16, blockysize=16, **profile) as file:
            file.write(array)
            file.write_mask(array[0] > 50)
        with rasterio.open(path, "r+") as file:
            file.build_overviews([2, 4])
    np.testing.assert_array_equal(read(path), np.moveaxis(array, 0, -1))


@pytest.mark.parametrize("lost", [True, False])
def test_an_array_in_several_files_is_refused(tmp_path: Path, lost: bool) -> None:
    """Its first plane was returned for each."""
    xml = tifffile.OmeXml()
    xml.addimage("uint8", (3, 5, 7), (3, 1, 1, 5, 7, 1), axes="ZYX")
    planes = "".join(
        f'<TiffData IFD="0" FirstZ="{z}" PlaneCount="1"><UUID FileName="{z}.ome.tif">urn:uuid:'
        f"0000000{z}-0000-0000-0000-000000000000</UUID></TiffData>"
        for z in range(3)
    )
    text = re.sub(r"<TiffData .*?(/>|</TiffData>)", planes, xml.tostring(), count=1)
    for z in range(3):
        own = re.sub(r'UUID="urn:uuid:[^"]*"', f'UUID="urn:uuid:0000000{z}-{"0000-" * 3}{"0" * 12}"', text)
        how = {"description": own, "metadata": None, **GRAY}
        tifffile.imwrite(tmp_path / f"{z}.ome.tif", values((5, 7), "u1") + np.uint8(z), **how)
    if lost:
        (tmp_path / "2.ome.tif").unlink()
    got = "1 of 3 planes in other files, 1 of 3 planes missing" if lost else "2 of 3 planes in other files"
    with pytest.raises(UserError, match=rf"0\.ome\.tif holds only a part of its array: got {got}"):
        open_source(tmp_path / "0.ome.tif")


def test_several_arrays_of_an_ome_file_are_refused(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.ome.tif", ome=True) as file:
        for _ in range(2):
            file.write(values((3, 5, 7), "u1"), **GRAY)
    with pytest.raises(UserError, match="holds 2 pictures that are not one array"):
        open_source(tmp_path / "a.ome.tif")


def test_pages_that_the_description_leaves_out_are_refused(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for _ in range(2):
            file.write(values((3, 5, 7), "u1"), truncate=True, **GRAY)
    with pytest.raises(UserError, match="pages that its description leaves out: got 2 pages, 1 of them"):
        open_source(tmp_path / "a.tif")


def test_pages_of_different_shapes_are_refused(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(values((5, 7), "u1"), **GRAY)
        file.write(values((6, 8), "u1"), **GRAY)
    with pytest.raises(
        UserError, match=r"2 pictures that are not one array: got \(5, 7\) uint8 NONE, \(6, 8\)"
    ):
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


NEEDS_IMAGECODECS: dict[str, dict[str, Any]] = {
    "LZW": {"compression": "lzw"},
    "ZSTD": {"compression": "zstd"},
    "JPEG": {"compression": "jpeg"},
    "PNG": {"compression": "png"},
    "predictor FLOATINGPOINT": {"compression": "zlib", "predictor": 3},
    "10 bits per sample": {},
}
NEEDS_NONE: dict[str, tuple[str, dict[str, Any]]] = {
    f"{dtype} {byteorder} {compression} {predictor}": (
        dtype,
        {"compression": compression, "byteorder": byteorder, **({"predictor": True} if predictor else {})},
    )
    for dtype, byteorder, compression, predictor in product(
        ("u1", "i2", "u4", "f4", "?"), "<>", (None, "zlib", "packbits", "lzma"), (False, True)
    )
    if not predictor or (compression == "zlib" and dtype not in ("f4", "?"))
}
READ_WITHOUT = """
import json, sys
from pathlib import Path

import numpy as np

sys.modules["imagecodecs"] = None
from meshrun.runner.errors import UserError
from meshrun.runner.storage.formats.registry import open_source

said = {}
for path in Path(sys.argv[1]).glob("*.tif"):
    try:
        np.save(path.with_suffix(".npy"), open_source(path).array[...])
    except UserError as error:
        said[path.stem] = str(error)
print(json.dumps(said))
"""


def read_without_imagecodecs(folder: Path) -> dict[str, str]:
    """Read all files of a folder in a process without imagecodecs; return what is said of refused ones."""
    command = [sys.executable, "-c", READ_WITHOUT, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    said: dict[str, str] = json.loads(ended.stdout)
    return said


def test_what_needs_imagecodecs_is_refused_without_it(tmp_path: Path) -> None:
    """Zstandard crashed, in the middle of a run."""
    expected = {}
    for (number, kind), stack in product(enumerate(NEEDS_IMAGECODECS), ((), (2,))):
        array = values((*stack, 16, 16), "f4" if "FLOAT" in kind else "u2" if "10" in kind else "u1")
        path = tmp_path / f"{number} {len(stack)}.tif"
        if "10" in kind and stack:
            continue
        if "10" in kind:
            few_bits(path, array, 10)
        else:
            tifffile.imwrite(path, array, **NEEDS_IMAGECODECS[kind], **GRAY)
        if kind != "JPEG":
            np.testing.assert_array_equal(read(path), array)
        expected[path.stem] = kind
    said = read_without_imagecodecs(tmp_path)
    assert said.keys() == expected.keys()
    for name, kind in expected.items():
        sentence = (
            rf"cannot be decoded without the package imagecodecs: got .*{kind}.*pip install imagecodecs"
        )
        assert re.search(sentence, said[name])


def test_what_needs_no_imagecodecs(tmp_path: Path) -> None:
    arrays = {}
    for number, (dtype, how) in enumerate(NEEDS_NONE.values()):
        array = values((20, 24), "u1") > 100 if dtype == "?" else values((20, 24, 3), dtype)
        colour = GRAY if dtype == "?" else {"photometric": "rgb", "tile": (16, 16)}
        tifffile.imwrite(tmp_path / f"{number}.tif", array, **how, **colour)
        arrays[number] = array * np.uint8(255) if dtype == "?" else array
    assert read_without_imagecodecs(tmp_path) == {}
    for number, array in arrays.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{number}.npy"), array)


def test_a_jpeg_that_tifffile_cannot_decode_is_refused_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    profile = {"driver": "GTiff", "width": 32, "height": 16, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", compress="jpeg", photometric="RGB", interleave="band", **profile) as file:
        file.write(values((3, 16, 32), "u1"))
    with pytest.raises(UserError, match=r"tifffile cannot decode .*a\.tif.*JPEG.*Try: gdal_translate"):
        open_source(path)


def test_lerc_of_floats_is_refused(tmp_path: Path) -> None:
    """tifffile returns zeros where GDAL returns NaN."""
    path, array = tmp_path / "a.tif", values((1, 16, 32), "f4")
    array[0, 3, 4] = np.nan
    profile = {"driver": "GTiff", "width": 32, "height": 16, "count": 1, "dtype": "float32"}
    with rasterio.open(path, "w", compress="lerc", **profile) as file:
        file.write(array)
    with pytest.raises(UserError, match="programs read differently: got LERC of floats"):
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
    monkeypatch.setattr("meshrun.runner.files.fallocate", lambda *_: None)  # the file stays sparse
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
    elif strip == 6:
        expected = r"a\.tif is broken or truncated: got 1 strips or tiles, expected 2,796,203"
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
    with pytest.raises(UserError, match=r"a\.tif (is broken or truncated|holds 2 pictures)"):
        open_source(path)
