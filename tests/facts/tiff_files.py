"""Random TIFF files by tifffile and by GDAL, and the arrays that they hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import tifffile

Array = np.ndarray[Any, Any]

# Of rows and columns, by the orientation: what a viewer shows of the stored array.
TURNS: dict[int, Callable[[Array, int], Array]] = {
    1: lambda a, at: a,
    2: lambda a, at: np.flip(a, at + 1),
    3: lambda a, at: np.flip(a, (at, at + 1)),
    4: np.flip,
    5: lambda a, at: np.swapaxes(a, at, at + 1),
    6: lambda a, at: np.rot90(a, -1, (at, at + 1)),
    7: lambda a, at: np.swapaxes(np.flip(a, (at, at + 1)), at, at + 1),
    8: lambda a, at: np.rot90(a, 1, (at, at + 1)),
}
BY_TIFFFILE = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")
PREDICTED = ("u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8")
BY_GDAL = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
GDAL_COMPLEX = ("complex64", "complex128")


def values(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return cells of which each bit varies."""
    dtype = np.dtype(dtype)
    if dtype.kind in "ui":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    whole = random.normal(size=shape)
    return (whole + 1j * random.normal(size=shape) if dtype.kind == "c" else whole).astype(dtype)


def by_tifffile(path: Path, random: np.random.Generator) -> Array:
    """Write pages of any kind that tifffile writes; return the array that they show."""
    rows, columns = (int(n) for n in random.integers(1, 60, 2))
    channels = int(random.choice([1, 1, 2, 3, 4, 5]))
    stack = tuple(int(n) for n in random.integers(2, 4, random.integers(0, 3)))
    planar, volume = channels > 1 and random.random() < 0.4, not stack and random.random() < 0.2
    depth = (int(random.integers(2, 9)),) if volume else ()
    dtype = np.dtype(str(random.choice(BY_TIFFFILE)))
    white = dtype.kind == "u" and channels <= 2 and random.random() < 0.2
    array = values(random, (*stack, *depth, rows, columns, *((channels,) if channels > 1 else ())), dtype)

    # How the samples are encoded.
    how: dict[str, Any] = {
        "photometric": "miniswhite" if white else "rgb" if channels in (3, 4) else "minisblack",
        "compression": random.choice([None, "zlib", "lzw", "zstd", "packbits", "lzma"]),
        "byteorder": random.choice(["<", ">"]),
        "bigtiff": bool(random.random() < 0.3),
    }
    if channels > 1:
        how["planarconfig"] = "separate" if planar else "contig"
    if volume:
        how |= {"volumetric": True, "tile": (4, 16, 32)}
    elif random.random() < 0.4:
        how["tile"] = (32, 16)
    elif random.random() < 0.5:
        how["rowsperstrip"] = int(random.integers(1, rows + 1))
    predicted = how["compression"] in ("zlib", "lzw", "zstd") and dtype.str[1:] in PREDICTED
    if predicted and random.random() < 0.5:
        how["predictor"] = True
    turn = int(random.integers(1, 9)) if random.random() < 0.3 else 1
    if turn > 1:
        how["extratags"] = [(274, "H", 1, turn, True)]
    plane = len(stack)  # the axis of a page, of which tifffile wants planes first
    tifffile.imwrite(path, np.moveaxis(array, -1, plane) if planar else array, **how)

    # What the samples show.
    shown = array.copy()
    if white:
        first = shown[..., :1] if channels > 1 else shown
        np.subtract(np.iinfo(dtype).max, first, out=first)
    return TURNS[turn](shown, len(stack) + len(depth))


def by_gdal(path: Path, random: np.random.Generator) -> Array:
    """Write bands of any kind that GDAL writes, or a sparse file; return its array."""
    rows, columns = (int(n) for n in random.integers(1, 60, 2))
    bands, dtype = int(random.integers(1, 6)), str(random.choice([*BY_GDAL, *GDAL_COMPLEX]))
    how: dict[str, Any] = {
        "compress": random.choice([None, "deflate", "lzw", "zstd", "packbits", "lzma"]),
        "interleave": random.choice(["pixel", "band"]),
        "ENDIANNESS": random.choice(["LITTLE", "BIG"]),
        "BIGTIFF": random.choice(["YES", "NO"]),
    }
    if random.random() < 0.5:
        how |= {"tiled": True, "blockxsize": 16, "blockysize": 32}
    predicted = how["compress"] in ("deflate", "lzw", "zstd") and dtype not in (
        "int64",
        "uint64",
        *GDAL_COMPLEX,
    )
    if predicted and random.random() < 0.5:
        how["predictor"] = 3 if dtype.startswith("float") else 2
    bits = int(random.integers(2, 16)) if dtype in ("uint8", "uint16") and random.random() < 0.4 else None
    if bits is not None and "predictor" not in how and np.dtype(dtype).itemsize == 1 + (bits > 8):
        how["nbits"] = bits
    sparse = random.random() < 0.3
    if sparse:
        how |= {"SPARSE_OK": "TRUE", "nodata": int(random.integers(1, 3))}
    array = values(random, (bands, rows, columns), dtype)
    if "nbits" in how:
        array &= (1 << bits) - 1
    profile = {"driver": "GTiff", "width": columns, "height": rows, "count": bands, "dtype": dtype, **how}
    with rasterio.open(path, "w", **profile) as file:
        if sparse:
            part = rasterio.windows.Window(0, 0, min(16, columns), min(16, rows))
            file.write(array[:, :16, :16], window=part)
        else:
            file.write(array)
    with rasterio.open(path) as file:
        held = file.read()
    return np.moveaxis(held, 0, -1) if bands > 1 else held[0]


def write_random(path: Path, seed: int) -> Array:
    """Write the file of a number; return the array that it shows."""
    random = np.random.default_rng(seed)
    writer = by_gdal if random.random() < 0.5 else by_tifffile
    return writer(path, random)


def few_bits(path: Path, array: Array, bits: int) -> None:
    """Write integers of so many bits, (rows, columns)."""
    rows, columns = array.shape
    profile = {"driver": "GTiff", "width": columns, "height": rows, "count": 1, "dtype": array.dtype.name}
    with rasterio.open(path, "w", nbits=bits, **profile) as file:
        file.write(array[None])


def random_box(shape: tuple[int, ...], seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return start and stop of a part with cells."""
    random = np.random.default_rng(seed)
    ends = [sorted(random.choice(n + 1, 2, replace=False).tolist()) for n in shape]
    start, stop = itertools.zip_longest(*ends)
    return tuple(start), tuple(stop)
