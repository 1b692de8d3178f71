"""Every built-in job on the photograph, through whole runs on simulated ranks, against other libraries.

scipy.ndimage, scikit-image, Pillow and NumPy say what is right; the files of all numbers of ranks
must be the same byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage import color, filters

from meshrun.jobs.filters.convolve import convolve
from meshrun.jobs.filters.elementwise import elementwise
from meshrun.jobs.filters.grayscale import grayscale
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.jobs.filters.statistics import statistics
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.job.declaration import Job
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

PHOTOGRAPH = Path(__file__).parents[3] / "examples" / "rocket.jpg"
RANKS = (1, 2, 3, 5)
DTYPES = ("uint8", "uint16", "int32", "float16", "float32", "float64")
Array = np.ndarray[Any, Any]

EDGES = np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]])[..., None]
BLUR, BLUR_TEXT = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]])[..., None], "1 2 1; 2 4 2; 1 2 1"
SOBEL_TEXT = "0.25 0.5 0.25; 0 0 0; -0.25 -0.5 -0.25"
REC709 = "0.2125 0.7154 0.0721"  # scikit-image's


@cache
def photograph(dtype: str = "uint8") -> Array:
    """The photograph with values that use the dtype: integers up to its ends or near, floats 0 to 1."""
    pixels = np.asarray(Image.open(PHOTOGRAPH))
    if dtype == "uint16":
        return pixels.astype(dtype) * 257
    if dtype == "int32":
        return (pixels.astype(dtype) - 100) * 8_000_000
    return pixels if dtype == "uint8" else (pixels / 255).astype(dtype)


def run_on(ranks: int, job: Job, source: Path, target: Path | None, parameters: dict[str, Any]) -> Any:
    """The result in the record of a whole run."""

    def rank(control: Any) -> dict[str, Any]:
        return run(job, source, target, parameters, Options(), world=open_world("cpu", control=control))

    return run_ranks(ranks, rank, timeout=60)[0]["result"]


@pytest.fixture
def filtered(tmp_path: Path) -> Callable[..., Array]:
    """filtered(job, source, suffix, **parameters): the output, the same bytes on every number of ranks."""

    def apply(job: Job, source: Array | Path, suffix: str = ".npy", **parameters: Any) -> Array:
        if not isinstance(source, Path):
            np.save(tmp_path / "in.npy", source)
            source = tmp_path / "in.npy"
        files = []
        for ranks in RANKS:
            target = tmp_path / f"out-{ranks}{suffix}"
            run_on(ranks, job, source, target, parameters)
            files.append(target.read_bytes())
        assert files == files[:1] * len(RANKS)
        return np.load(target) if suffix == ".npy" else np.asarray(Image.open(target))

    return apply


@dataclass(frozen=True)
class Close:
    """How far a float may be from the float64 result: the last rounding, and `terms` in the sum before it."""

    terms: int

    def check(self, found: Array, expected: Array, largest: float) -> None:
        eps = np.finfo(found.dtype).eps
        summed_in = np.finfo(np.float64 if found.dtype == np.float64 else np.float32).eps
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=eps, atol=self.terms * summed_in * largest
        )


def saturated(exact: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(exact, limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_laplacian(filtered: Callable[..., Array], dtype: str) -> None:
    array = photograph(dtype)
    found = filtered(laplacian, array)
    assert found.dtype == dtype
    if found.dtype.kind in "iu":
        exact = ndimage.correlate(array.astype(np.int64), EDGES, mode="reflect")
        np.testing.assert_array_equal(found, saturated(exact, found.dtype))
    else:
        Close(terms=40).check(found, ndimage.correlate(array.astype(np.float64), EDGES, mode="reflect"), 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blur(filtered: Callable[..., Array], dtype: str) -> None:
    array = photograph(dtype)
    found = filtered(convolve, array, kernel=BLUR_TEXT, normalize=True)
    assert found.dtype == dtype
    if found.dtype.kind in "iu":
        sums = ndimage.convolve(array.astype(np.int64), BLUR, mode="reflect")
        np.testing.assert_array_equal(found, np.rint(sums / 16))  # exact: below 2^53, and 16 is a power of 2
    else:
        Close(terms=16).check(found, ndimage.convolve(array.astype(float), BLUR / 16, mode="reflect"), 1.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sobel_of_scikit_image(filtered: Callable[..., Array], dtype: str) -> None:
    array = photograph(dtype)
    found = filtered(convolve, array, kernel=SOBEL_TEXT)
    channels = [filters.sobel_h(array[..., c].astype(np.float64)) for c in range(3)]
    # scikit-image has no edge rows: its result is 0 where the kernel does not fit.
    Close(terms=9).check(found[1:-1, 1:-1], np.stack(channels, axis=-1)[1:-1, 1:-1], 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grayscale(filtered: Callable[..., Array], dtype: str) -> None:
    array = photograph(dtype)
    found = filtered(grayscale, array)
    assert found.dtype == dtype
    if dtype == "uint8":
        np.testing.assert_array_equal(found, np.asarray(Image.fromarray(array).convert("L")))
    weights = np.array([19595, 38470, 7471])  # of 65536, Pillow's and JPEG's
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, (array.astype(np.int64) @ weights + 32768) >> 16)
    else:
        Close(terms=4).check(found, array.astype(np.float64) @ (weights / 65536), 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gray_of_scikit_image(filtered: Callable[..., Array], dtype: str) -> None:
    found = filtered(grayscale, photograph(dtype), weights=REC709)
    # Our weights are whole multiples of 1/65536.
    np.testing.assert_allclose(found, color.rgb2gray(photograph("float64")), rtol=0, atol=3 / 65536)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise(filtered: Callable[..., Array], dtype: str) -> None:
    array = photograph(dtype)
    found = filtered(elementwise, array, expression="sqrt(abs(x)) - x / 3")
    kinds = {"uint8": "float32", "uint16": "float32", "int32": "float64"}
    assert found.dtype == kinds.get(dtype, dtype)
    wide = array.astype(np.float64)
    expected = np.sqrt(np.abs(wide)) - wide / 3
    Close(terms=4).check(found, expected, float(np.abs(wide).max()))


JPEG_TO_PNG: list[tuple[Job, dict[str, Any], Callable[[Array], Array]]] = [
    (laplacian, {}, lambda a: np.clip(ndimage.correlate(a.astype(int), EDGES, mode="reflect"), 0, 255)),
    (
        convolve,
        {"kernel": BLUR_TEXT, "normalize": True},
        lambda a: np.rint(ndimage.convolve(a.astype(int), BLUR, mode="reflect") / 16),
    ),
    (grayscale, {}, lambda a: np.asarray(Image.fromarray(a).convert("L"))),
    (elementwise, {"expression": "255 - x", "dtype": "uint8"}, lambda a: 255 - a),
]


@pytest.mark.parametrize(
    ("job", "parameters", "expect"), JPEG_TO_PNG, ids=[job.name for job, *_ in JPEG_TO_PNG]
)
def test_from_picture_to_picture(
    filtered: Callable[..., Array], job: Job, parameters: dict[str, Any], expect: Callable[[Array], Array]
) -> None:
    found = filtered(job, PHOTOGRAPH, ".png", **parameters)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expect(photograph()))


@pytest.mark.parametrize("dtype", [*DTYPES, "picture"])
def test_statistics(tmp_path: Path, dtype: str) -> None:
    array = photograph("uint8" if dtype == "picture" else dtype)
    source = PHOTOGRAPH
    if dtype != "picture":
        source = tmp_path / "in.npy"
        # Three photographs: more tiles than one, so that the ranks share the work.
        array = np.concatenate([array, array[::-1], array])
        np.save(source, array)
    found = [run_on(ranks, statistics, source, None, {"bins": 50}) for ranks in RANKS]
    assert [repr(result) for result in found] == [repr(found[0])] * len(RANKS)
    result, wide = found[0], array.astype(np.float64)
    assert (result["count"], result["nan"], result["infinite"]) == (array.size, 0, 0)
    assert (result["min"], result["max"]) == (array.min(), array.max())
    np.testing.assert_allclose([result["mean"], result["std"]], [wide.mean(), wide.std()], rtol=1e-12)
    counts, edges = np.histogram(wide, bins=50)
    assert result["histogram"] == counts.tolist()
    assert (result["low"], result["high"]) == (edges[0], edges[-1])
    assert (result["below"], result["above"]) == (0, 0)
