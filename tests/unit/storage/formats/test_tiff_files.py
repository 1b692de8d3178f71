"""Random TIFF files of tifffile and GDAL, whole, in parts and streamed, against what both libraries read."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import run_on
from tiff_files import random_box, write_random

import meshrun
from meshrun.runner.region import Region
from meshrun.runner.storage.formats.registry import open_source

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@meshrun.map_blocks
def same(block: Any) -> Any:
    return block


def as_pages(array: Any, bands: bool) -> Any:
    """Return an array with its channels first, as the libraries return planes."""
    return np.moveaxis(array, -1, 0) if bands else array


@given(st.integers(0, 2**32))
def test_random_files_are_read_as_their_libraries_read_them(seed: int) -> None:
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(name, "a.tif")
        expected = write_random(path, seed)
        source = pickle.loads(pickle.dumps(open_source(path)))
        assert (source.shape, source.dtype) == (expected.shape, expected.dtype)
        whole = np.empty(source.shape, source.dtype)
        source.read(Region((0,) * whole.ndim, source.shape), whole)
        np.testing.assert_array_equal(whole, expected)
        region = Region(*random_box(source.shape, seed))
        part = np.empty(region.shape, source.dtype, order="F")
        source.read(region, part)
        np.testing.assert_array_equal(part, expected[region.slices])


@pytest.mark.parametrize("ranks", [1, 3])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=settings.default.max_examples // 8)
def test_random_files_are_streamed(ranks: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path, target = Path(name, "a.tif"), Path(name, "out.npy")
        expected = write_random(path, seed)
        rows = -(-len(expected) // 5)
        run_on(ranks, same, path, target, chunk_bytes=rows * expected[0].nbytes)
        found = np.load(target)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("seed", range(40))
def test_the_expected_arrays_are_what_tifffile_and_gdal_read(tmp_path: Path, seed: int) -> None:
    """Where both speak and nothing has to be converted, so that the other tests prove something."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = write_random(tmp_path / "a.tif", seed)
        with tifffile.TiffFile(tmp_path / "a.tif") as file:
            page = file.pages.first
            stored = file.asarray()
            kept = page.photometric != 0 and page.tags.valueof(274, default=1) == 1
            planes, fills = page.shaped[0] > 1, 0 in page.dataoffsets
        if not kept or expected.ndim > 3 or (expected.ndim == 3 and page.samplesperpixel == 1):
            return
        if not fills:
            np.testing.assert_array_equal(stored, as_pages(expected, planes))
        if expected.dtype.name not in ("float16",):
            with rasterio.open(tmp_path / "a.tif") as file:
                held = file.read()
            np.testing.assert_array_equal(held, as_pages(np.atleast_3d(expected), True))
