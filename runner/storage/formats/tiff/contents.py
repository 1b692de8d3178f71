"""What a TIFF holds: which pages make up its array, its shape and dtype, or why it is refused."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from meshrun.runner.errors import UserError, first_line
from meshrun.runner.options.form import Form
from meshrun.runner.region import Shape
from meshrun.runner.storage.formats import image
from meshrun.runner.storage.formats.declared_form import NUMBERS
from meshrun.runner.storage.formats.flat import FlatSource
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.storage.formats.tiff.pages import (
    UNREAD,
    PagesSource,
    Segments,
    segment_count,
    segment_shape,
    stored_bytes,
)
from meshrun.runner.storage.formats.tiff.shown import appearance_of, shown

# Kinds of series that consist of plain pages: several series with equal pages were appended to one another.
APPENDED = ("shaped", "uniform", "generic")
LISTED = 8  # shapes in a message

# Numbers in the file of compressions.
NONE, LZW, DEFLATE, PACKBITS, OLD_DEFLATE, LZMA, ZSTD = 1, 5, 8, 32773, 32946, 34925, 50000
OLD_JPEG, LERC = 6, 34887
NEW_SUBFILE_TYPE, GDAL_NODATA = 254, 42113  # tags
REDUCED, IS_MASK = 1, 4  # bits of the first of them
LEADING_DIGITS = re.compile(r"[+-]?[0-9]+")
# What tifffile decodes without imagecodecs.
OWN_COMPRESSIONS = (NONE, DEFLATE, PACKBITS, OLD_DEFLATE, LZMA)
OWN_PREDICTORS = (1, 2)
WHOLE_BITS = (8, 16, 32, 64, 128)
# Decoded bytes per stored byte, at most, by compression; others have no useful bound.
EXPANSION = {
    NONE: 1,
    LZW: 2731,  # up to 4096 bytes in 12 bits
    DEFLATE: 1032,  # 258 bytes in 2 bits
    OLD_DEFLATE: 1032,
    PACKBITS: 64,  # a run of 128 bytes is stored in 2
    ZSTD: 1 << 15,  # a block of 128 KiB in 4 bytes
}

# tifffile logs what it thinks of a file; what matters is refused here.
logging.getLogger("tifffile").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class _Contents:
    """The equal pages of a file's array.

    key: tifffile's page that describes all. shape: of the array, as tifffile has it. stack: the number of its
    leading axes that count pages. offset: of the first sample, if all lie in the file as in memory; or None.
    """

    key: Any
    pages: list[Any]
    shape: Shape
    stack: int
    offset: int | None


def open_source(path: Path, name: str | None, form: Form) -> Source:
    """Open a TIFF; UserError if it is broken, or if its array would have to be guessed."""
    try:
        with tifffile.TiffFile(path) as file:
            return _described(path, file)
    except OSError as reason:
        if reason.errno is not None:
            raise
        raise _broken(path, reason) from reason
    except UNREAD as reason:
        raise _broken(path, reason) from reason


def appearance(path: Path) -> image.Appearance:
    """Return what the channels of a TIFF mean that `open_source` opens."""
    with tifffile.TiffFile(path) as file:
        return appearance_of(_contents(path, file).key)


def _broken(path: Path, reason: Exception) -> UserError:
    return UserError(f"{path} is broken or truncated", why=first_line(reason))


def _described(path: Path, file: Any) -> Source:
    found = _contents(path, file)
    key, dtype = found.key, np.dtype(found.key.dtype)
    if found.offset is not None:
        size, needed = path.stat().st_size, found.offset + math.prod(found.shape) * dtype.itemsize
        if size < needed:
            raise _truncated(path, size, needed)
        stored = dtype.newbyteorder(file.byteorder)
        return shown(FlatSource(path, found.shape, stored, found.offset), key, found.stack)
    _check_decodes(path, found)
    _check_promise(path, found)
    source = PagesSource(
        path,
        found.shape,
        dtype.newbyteorder("="),
        key.shaped,
        segment_shape(key),
        found.stack,
        _fill_value(key),
        _locate,
    )
    return shown(source, key, found.stack)


def _locate(file: Any) -> tuple[Callable[..., Any], list[Segments]]:
    """Return the decoder of a file that has been described, and where its pages are."""
    found = _contents(Path(file.filehandle.path), file)
    pages = [Segments(page.dataoffsets, page.databytecounts, page.jpegtables) for page in found.pages]
    return found.key.decode, pages


# Which pages


def _contents(path: Path, file: Any) -> _Contents:
    # Follow the chain of pages first, which ends where it becomes a circle: a loop over the pages would not.
    if not len(file.pages):
        raise UserError(f"{path} is broken or truncated", got="no page")
    chosen = _main_series(path, file.series)
    key, pages = chosen[0].keyframe, [page for series in chosen for page in series.pages]
    _check_present(path, file, pages)
    _check_described(path, file, chosen[0].kind)
    _check_size(path, file, pages)
    _check_samples(path, key)

    shape, offset = tuple(chosen[0].shape), chosen[0].dataoffset or None  # 0: left out of a sparse file
    if len(chosen) > 1:
        shape, offset = (len(chosen), *shape), None
    main = [page for page in pages if not _is_secondary(file, page)]
    if 0 < len(main) < len(pages) == math.prod(shape) // math.prod(key.shaped):
        pages, offset = main, None
        shape = (*((len(main),) if len(main) > 1 else ()), *key.shape)

    count = len(pages)
    if offset is not None:  # one page may describe all
        count = math.prod(shape) // max(math.prod(key.shaped), 1)
    stack = _stack_axes(shape, key, count)
    if stack is None:
        raise UserError(
            f"the pages in {path} do not make up its array",
            got=f"{len(pages)} pages of shape {key.shape}",
            expected=f"an array of shape {shape}, by its description",
        )
    if offset is None:
        _check_segments(path, key, pages)
    return _Contents(key, pages, shape, stack, offset)


def _main_series(path: Path, series: Sequence[Any]) -> list[Any]:
    """Return the series whose pages make up the array: not masks, nor smaller copies of a picture."""
    main = [one for one in series if not (one.keyframe.is_mask or one.keyframe.is_reduced)] or [*series]
    equal = len({(one.shape, one.keyframe.hash) for one in main}) == 1
    if len(main) != 1 and not (equal and all(one.kind in APPENDED for one in main)):
        kinds = [f"{one.shape} {one.dtype} {_name(one.keyframe.compression)}" for one in main[:LISTED]]
        more = f", ... ({len(main)} in all)" if len(main) > LISTED else ""
        raise UserError(
            f"{path} holds {len(main)} pictures that are not one array",
            got=", ".join(kinds) + more,
            expected="one picture, or pages that are all alike",
        )
    return main


def _is_secondary(file: Any, page: Any) -> bool:
    """Return whether a page is a mask, or a smaller copy of another: its first tag says so.

    tifffile does not read this tag of most pages.
    """
    sizes, handle, order = file.tiff, file.filehandle, file.byteorder
    handle.seek(page.offset + sizes.tagnosize)
    entry = handle.read(sizes.tagsize)
    if len(entry) < sizes.tagsize or struct.unpack_from(f"{order}H", entry)[0] != NEW_SUBFILE_TYPE:
        return False
    (kind,) = struct.unpack_from(f"{order}I", entry, sizes.tagsize - sizes.offsetsize)
    return bool(kind & (REDUCED | IS_MASK))


def _check_present(path: Path, file: Any, pages: Sequence[Any]) -> None:
    """Refuse an array some of whose pages are in other files, or nowhere."""
    lost = sum(page is None for page in pages)
    elsewhere = sum(page is not None and page.parent is not file for page in pages)
    if lost or elsewhere:
        got = f"{elsewhere} of {len(pages)} planes in other files" if elsewhere else ""
        got += (", " if got and lost else "") + (f"{lost} of {len(pages)} planes missing" if lost else "")
        raise UserError(
            f"{path} holds only a part of its array",
            got=got,
            expected="all planes in one file",
            hint="tifffile.imwrite, to write what tifffile.imread returns for it to one file",
        )


def _check_described(path: Path, file: Any, kind: str) -> None:
    """Refuse a file with pages that tifffile's descriptions do not mention; it would leave them out."""
    if kind != "shaped" or sum(len(one.pages) for one in file.series) == len(file.pages):
        return
    series = [level for one in file.series for level in one.levels]
    described = {page.offset for one in series for page in one.pages if page is not None}
    held = sum(page.offset in described for page in file.pages)
    if held < len(file.pages):
        raise UserError(
            f"{path} holds pages that its description leaves out",
            got=f"{len(file.pages)} pages, {held} of them described",
        )


def _check_size(path: Path, file: Any, pages: Sequence[Any]) -> None:
    """Refuse a file that ends before its pages do; tifffile would read only the pages that are there."""
    size = path.stat().st_size
    for page in pages:
        ends = (a + n for a, n in zip(page.dataoffsets, page.databytecounts, strict=False))
        needed = max(ends, default=0)
        if size < needed:
            raise _truncated(path, size, needed)
    sizes, handle = file.tiff, file.filehandle
    last = file.pages[len(file.pages) - 1].offset
    handle.seek(last)
    (tags,) = struct.unpack(sizes.tagnoformat, handle.read(sizes.tagnosize))
    handle.seek(last + sizes.tagnosize + tags * sizes.tagsize)
    (following,) = struct.unpack(sizes.offsetformat, handle.read(sizes.offsetsize))
    if following != 0:
        raise _truncated(path, size, following)


def _truncated(path: Path, size: int, needed: int) -> UserError:
    return UserError(f"{path} is broken or truncated", got=f"{size:,} bytes", expected=f"at least {needed:,}")


def _stack_axes(shape: Shape, page: Any, pages: int) -> int | None:
    """Return how many leading axes of `shape` count pages, whose own axes follow; None if it is otherwise."""
    fitting = [stack for stack in range(len(shape) + 1) if math.prod(shape[:stack]) == pages]
    exact = (stack for stack in fitting if shape[stack:] == page.shape)
    alike = (stack for stack in fitting if _long(shape[stack:]) == _long(page.shaped))
    return next(exact, next(alike, None))


def _long(shape: Shape) -> list[int]:
    return [length for length in shape if length > 1]


def _fill_value(page: Any) -> Any:
    """Return the value of strips and tiles that were left out, as GDAL has it: its tag's value, or 0."""
    dtype, text = np.dtype(page.dtype), str(page.tags.valueof(GDAL_NODATA, default="0")).strip("\0 ")
    if dtype.kind in "iu" and dtype.itemsize == 8:  # integers that floats do not hold: digits alone are read
        digits = LEADING_DIGITS.match(text)
        value = int(digits[0]) if digits else 0
        return dtype.type(value % (1 << 64) if dtype.kind == "u" and value < 0 else _nearest(value, dtype))
    try:
        number = float(text.replace(",", "."))  # of a program that writes numbers of another language
    except ValueError:
        number = 0.0
    if dtype.kind in "fc":
        with np.errstate(over="ignore"):
            return dtype.type(number)
    if not math.isfinite(number):
        number = 0.0 if math.isnan(number) else math.copysign(2.0**64, number)
    return dtype.type(_nearest(math.floor(abs(number) + 0.5) * (-1 if number < 0 else 1), dtype))


def _nearest(value: int, dtype: np.dtype[Any]) -> int:
    """Return the integer of `dtype` that is nearest to `value`."""
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return min(max(value, low), high)


# Whether it can be decoded


def _check_samples(path: Path, page: Any) -> None:
    """Refuse samples that NumPy has no dtype for, or of which tifffile and GDAL return different values."""
    kinds = page.sampleformat if isinstance(page.sampleformat, tuple) else (page.sampleformat,)
    bits = page.bitspersample
    if page.dtype is None or isinstance(bits, tuple) or np.dtype(page.dtype).kind not in NUMBERS:
        raise UserError(
            f"{path} has samples of a kind that no array has",
            got=f"{bits} bits, SampleFormat {', '.join(str(int(kind)) for kind in kinds)}",
            expected="integers, floats or complex numbers, all of one kind",
        )
    if page.compression == NONE and page.predictor != 1:
        raise UserError(
            f"{path} has a predictor but no compression, which programs read differently",
            got=f"Predictor {int(page.predictor)}",
            expected="1",
        )
    lerc_of_floats = page.compression == LERC and np.dtype(page.dtype).kind in "fc"  # without its NaNs
    if page.compression == OLD_JPEG or lerc_of_floats:
        raise UserError(
            f"{path} has a compression that programs read differently",
            got="LERC of floats" if lerc_of_floats else "JPEG in its old form",
            hint=_recompress(path),
        )


def _check_segments(path: Path, key: Any, pages: Sequence[Any]) -> None:
    """Refuse pages that lack strips or tiles, which tifffile would leave as they were."""
    needed = segment_count(key)
    for page in pages:
        held = min(len(page.dataoffsets), len(page.databytecounts))
        if held < needed:
            raise UserError(
                f"{path} is broken or truncated", got=f"{held:,} strips or tiles", expected=f"{needed:,}"
            )


def _check_decodes(path: Path, found: _Contents) -> None:
    """Refuse what tifffile cannot decode, before the work begins."""
    key = found.key
    if not _has_imagecodecs() and _needs_imagecodecs(key):
        raise UserError(
            f"{path} cannot be decoded without the package imagecodecs",
            got=_encoding(key),
            hint="pip install imagecodecs",
        )
    try:
        key.decode(None, 0)
        if key.compression not in EXPANSION and key.compression != LZMA:
            _check_picture_codec(path, found)
    except (*UNREAD, OSError) as reason:
        raise UserError(
            f"tifffile cannot decode {path}",
            why=f"{first_line(reason)} ({_encoding(key)})",
            hint=_recompress(path),
        ) from reason


def _check_picture_codec(path: Path, found: _Contents) -> None:
    """Decode one strip or tile of those whose decoder finds shape and dtype itself, and compare these."""
    key = found.key
    for page in found.pages:
        for segment, (offset, size) in enumerate(zip(page.dataoffsets, page.databytecounts, strict=False)):
            if not offset or not size:
                continue
            with open(path, "rb", buffering=0) as file:
                data = stored_bytes(file.fileno(), offset, size)
            cells = key.decode(data, segment, jpegtables=page.jpegtables)[0]
            if key.dtype not in (cells.dtype, np.bool_):  # single bits may be bytes
                raise ValueError(f"samples of {cells.dtype}, expected {key.dtype}")
            return


def _recompress(path: Path) -> str:
    return f"gdal_translate -co COMPRESS=DEFLATE {path} {path.with_suffix('.new.tif')}"


def _needs_imagecodecs(page: Any) -> bool:
    """Return whether tifffile decodes the page only with imagecodecs."""
    bits, dtype = page.bitspersample, np.dtype(page.dtype)
    own_bits = bits in WHOLE_BITS or bits == 1
    foreign = dtype.kind in "fc" and dtype.itemsize > 1  # of which tifffile's own predictor knows some
    return not (
        page.compression in OWN_COMPRESSIONS
        and own_bits
        and page.predictor in OWN_PREDICTORS
        and not (page.predictor != 1 and foreign)
    )


def _has_imagecodecs() -> bool:
    try:
        return importlib.util.find_spec("imagecodecs") is not None
    except ValueError:  # it was imported in another way, or kept from being imported
        return False


def _encoding(page: Any) -> str:
    words = [f"compression {_name(page.compression)}"]
    if page.predictor != 1:
        words.append(f"predictor {_name(page.predictor)}")
    if page.bitspersample not in WHOLE_BITS:
        words.append(f"{page.bitspersample} bits per sample")
    return ", ".join(words)


def _name(value: Any) -> str:
    return getattr(value, "name", None) or str(value)


def _check_promise(path: Path, found: _Contents) -> None:
    """Refuse pages whose strips or tiles cannot hold so many samples.

    Those that were left out of a sparse file take no bytes. Tiles are whole, also beyond the page's edges.
    """
    key = found.key
    factor = EXPANSION.get(int(key.compression))
    if factor is None:
        return
    bits = key.bitspersample * math.prod(key.shaped)
    segment = key.bitspersample * math.prod(segment_shape(key)) * key.shaped[4]
    whole = segment * segment_count(key) if key.is_tiled else bits
    for page in found.pages:
        held, left_out = sum(page.databytecounts), page.databytecounts.count(0)
        promised = (whole - left_out * segment) // 8
        if promised > held * factor:
            raise image.promises_more(path, held, held * factor, whole // 8, key.shape)
