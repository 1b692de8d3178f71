"""The picture that stored samples show: planes as channels, upright, larger values brighter, colours as RGB.

Everything is done to parts of any size: no picture is converted as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.options.form import Form
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.storage.formats.image import Appearance
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.storage.formats.sliced_array import Unmapped

# Photometric interpretations, by their number in the file.
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, MASK, SEPARATED, YCBCR = 0, 1, 2, 3, 4, 5, 6
LAB, COLOR_FILTER, LINEAR_RAW = (8, 9, 10), 32803, 34892
AS_THEY_ARE = (BLACK_IS_ZERO, RGB, MASK, *LAB, COLOR_FILTER, LINEAR_RAW)
JPEG = 7  # compression, whose decoder returns RGB
ORIENTATION, INK_SET = 274, 332  # tags
CMYK = 1  # a set of inks
ASSOCIATED_ALPHA, UNASSOCIATED_ALPHA = 1, 2  # kinds of an extra sample
# By the number in the file: whether rows are stored as columns; then, which of (rows, columns) run backwards.
ORIENTATIONS = {
    1: (False, ()),
    2: (False, (1,)),
    3: (False, (0, 1)),
    4: (False, (0,)),
    5: (True, ()),
    6: (True, (1,)),
    7: (True, (0, 1)),
    8: (True, (0,)),
}


class Conversion(Protocol):
    """Converts samples to another dtype, or to more or fewer channels, in the last axis."""

    def type_of(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape and dtype of converted samples of `shape` and `dtype`."""

    def needs(self, region: Region) -> Region:
        """Return the samples from which `region` of the converted ones follows."""

    def convert(self, samples: HostArray, region: Region) -> HostArray:
        """Return `region`, from the samples that it needs."""


@dataclass(frozen=True)
class Inverted:
    """Samples of which 0 is white. white: what becomes of 0. channels: how many are inverted, from the
    first; None: there is no axis of channels."""

    white: int
    channels: int | None

    def type_of(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        return shape, dtype

    def needs(self, region: Region) -> Region:
        return region

    def convert(self, samples: HostArray, region: Region) -> HostArray:
        end = None if self.channels is None else max(self.channels - region.start[-1], 0)
        part = samples[..., :end]
        np.subtract(samples.dtype.type(self.white), part, out=part)
        return samples


@dataclass(frozen=True)
class Bits:
    """Single bits, which become 0 and 255, as in a PNG. inverted: how to invert them; None: they are not."""

    inverted: Inverted | None

    def type_of(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        return shape, np.dtype(np.uint8)

    def needs(self, region: Region) -> Region:
        return region

    def convert(self, samples: HostArray, region: Region) -> HostArray:
        values = np.where(samples, np.uint8(255), np.uint8(0))
        return self.inverted.convert(values, region) if self.inverted else values


@dataclass(frozen=True)
class Palette:
    """Indices of colours. colors: (number, 3) uint8."""

    colors: HostArray

    def type_of(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        return (*shape, 3), np.dtype(np.uint8)

    def needs(self, region: Region) -> Region:
        return Region(region.start[:-1], region.stop[:-1])

    def convert(self, samples: HostArray, region: Region) -> HostArray:
        numbers = samples.view(np.uint8) if samples.dtype == np.bool_ else samples
        values: HostArray = self.colors[:, region.slices[-1]][numbers]
        return values


@dataclass(frozen=True)
class Inks:
    """Cyan, magenta, yellow and black, uint8, which become RGB by the formula of Pillow."""

    def type_of(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        return (*shape[:-1], 3), dtype

    def needs(self, region: Region) -> Region:
        return Region((*region.start[:-1], 0), (*region.stop[:-1], 4))

    def convert(self, samples: HostArray, region: Region) -> HostArray:
        light = 255 - samples[..., 3:].astype(np.int32)
        product = samples[..., region.slices[-1]] * light + 128
        values: HostArray = np.clip(light - ((product >> 8) + product >> 8), 0, 255).astype(np.uint8)
        return values


@dataclass
class ShownSource:
    """The picture that `stored` shows.

    Parameters
    ----------
    stored
        The file's samples.
    axes
        Which axis of `stored` each axis of the picture is.
    backwards
        Axes of the picture that run backwards in the file.
    conversion
        Of samples in the picture's axes; None: they are kept.
    """

    stored: Source
    axes: tuple[int, ...]
    backwards: tuple[int, ...]
    conversion: Conversion | None
    path: Path = field(init=False)
    parallel: bool = True
    decoded_bytes: ClassVar[int] = 0
    name: ClassVar[None] = None
    form: ClassVar[Form] = Form()

    def __post_init__(self) -> None:
        self.path = self.stored.path

    @property
    def array(self) -> Unmapped:
        return Unmapped(self)

    @property
    def _type(self) -> tuple[Shape, np.dtype[Any]]:
        shape = tuple(self.stored.shape[axis] for axis in self.axes)
        return (
            self.conversion.type_of(shape, self.stored.dtype)
            if self.conversion
            else (shape, self.stored.dtype)
        )

    @property
    def shape(self) -> Shape:
        return self._type[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._type[1]

    @property
    def chunks(self) -> Shape | None:
        if self.stored.chunks is None:
            return None
        chunks = tuple(self.stored.chunks[axis] for axis in self.axes)
        return self.conversion.type_of(chunks, self.stored.dtype)[0] if self.conversion else chunks

    def read(self, region: Region, target: HostArray) -> None:
        region.check(target, self.dtype)
        if region.size == 0:
            return
        if self.conversion is None:
            self._read_turned(region, target)
            return
        needed = self.conversion.needs(region)
        samples = np.empty(needed.shape, self.stored.dtype)
        self._read_turned(needed, samples)
        target[...] = self.conversion.convert(samples, region)

    def _read_turned(self, region: Region, target: HostArray) -> None:
        """Read samples, in the picture's axes."""
        lengths = [self.stored.shape[axis] for axis in self.axes]
        start, stop = [*region.start], [*region.stop]
        for axis in self.backwards:
            start[axis], stop[axis] = lengths[axis] - stop[axis], lengths[axis] - start[axis]
        order = np.argsort(self.axes)  # the picture's axis for each axis of `stored`
        needed = Region(tuple(start[axis] for axis in order), tuple(stop[axis] for axis in order))
        self.stored.read(needed, np.flip(target, self.backwards).transpose(order))


def shown(source: Source, page: Any, stack: int) -> Source:
    """Return the picture that the samples of `source` show; UserError if programs disagree on it.

    page: tifffile's description. stack: the number of leading axes that count pages.
    """
    conversion = _conversion(source.path, page)
    orientation = page.tags.valueof(ORIENTATION, default=1)
    transposed, backwards = ORIENTATIONS.get(orientation, ORIENTATIONS[1])
    planes = page.shaped[0] > 1
    if conversion is None and not transposed and not backwards and not planes:
        return source

    # The axes of a page are known by their names; an array in which they stand otherwise is not turned.
    names = page.axes
    if source.shape[stack:] != page.shape:
        raise UserError(
            f"{source.path} describes an array in which rows and columns cannot be told from other axes",
            got=f"shape {source.shape} of pages of shape {page.shape}",
        )
    rows, columns, samples = (names.find(name) for name in "YXS")
    inner = [axis for axis in range(len(names)) if axis != samples]
    turned = {rows: columns, columns: rows} if transposed else {}
    inner = [turned.get(axis, axis) for axis in inner] + ([samples] if samples >= 0 else [])
    at = {0: inner.index(columns if transposed else rows), 1: inner.index(rows if transposed else columns)}
    return ShownSource(
        source,
        (*range(stack), *(stack + axis for axis in inner)),
        tuple(stack + at[axis] for axis in backwards),
        conversion,
    )


def appearance_of(page: Any) -> Appearance:
    """Return what the channels mean of a picture made by `shown`. page: tifffile's description."""
    photometric, extra = int(page.photometric), [int(kind) for kind in page.extrasamples]
    if photometric in (PALETTE, SEPARATED):
        return Appearance(
            3 if photometric == PALETTE or page.tags.valueof(INK_SET, default=CMYK) == CMYK else 0, 255
        )
    dtype = np.dtype(page.dtype)
    white = {"b": 255, "u": (1 << page.bitspersample) - 1}.get(dtype.kind, 1)
    colors = page.samplesperpixel - len(extra)
    known = photometric in (WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, YCBCR) and colors in (1, 3)
    return Appearance(
        colors if known else 0,
        white,
        opacity=extra[:1] in ([ASSOCIATED_ALPHA], [UNASSOCIATED_ALPHA]),
        premultiplied=extra[:1] == [ASSOCIATED_ALPHA],
    )


def _conversion(path: Path, page: Any) -> Conversion | None:
    """Return how a page's samples become the picture's; UserError if programs disagree on it."""
    photometric, bits = int(page.photometric), page.bitspersample
    dtype, samples, extra = np.dtype(page.dtype), page.samplesperpixel, len(page.extrasamples)
    brightness = samples - extra if samples > 1 else None  # channels that are not extra ones
    if photometric == WHITE_IS_ZERO and dtype.kind in "ub":
        return Bits(Inverted(255, brightness)) if dtype.kind == "b" else Inverted((1 << bits) - 1, brightness)
    jpeg = page.compression == JPEG
    if photometric in AS_THEY_ARE and not (jpeg and photometric in LAB):
        return Bits(None) if dtype.kind == "b" else None
    if photometric == YCBCR and jpeg and page.planarconfig == 1:
        return None
    if photometric == PALETTE and dtype.kind in "ub" and samples == 1 and page.colormap is not None:
        colors = np.asarray(page.colormap)
        if colors.shape == (3, 1 << bits):
            return Palette(_colors(colors))
    if photometric == SEPARATED and not _is_cmyk(page):
        return None
    if photometric == SEPARATED and (dtype.str[1:], samples, extra) == ("u1", 4, 0):
        return Inks()
    name = getattr(page.photometric, "name", None) or str(photometric)
    raise UserError(
        f"{path} has samples whose values programs do not agree on",
        got=f"{name}: {samples} of {dtype.name} per pixel",
        expected="gray or RGB, WhiteIsZero of unsigned integers, a palette, or CMYK of 8 bits",
        hint="tifffile.imread, which returns the samples as they are stored, and numpy.save",
    )


def _is_cmyk(page: Any) -> bool:
    """Return whether inks are cyan, magenta, yellow and black; others have no colours that a file tells."""
    return bool(page.tags.valueof(INK_SET, default=CMYK) == CMYK)


def _colors(table: HostArray) -> HostArray:
    """Return colours (number, 3) of 8 bits; a file has them in 16, of which some programs write 8."""
    eight = table if table.max(initial=0) < 256 else table >> 8
    return np.ascontiguousarray(eight.T.astype(np.uint8))
