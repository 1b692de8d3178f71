"""Grey levels against Pillow and scikit-image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from skimage import color

from meshrun.jobs.filters.dtypes import SUPPORTED
from meshrun.jobs.filters.grayscale import grayscale, parse
from meshrun.runner.errors import UserError

Apply = Callable[..., np.ndarray[Any, Any]]


def test_uint8_is_pillows_to_the_bit(apply_job: Apply, noise: Apply) -> None:
    array = noise((201, 303, 3), "uint8")
    np.testing.assert_array_equal(
        apply_job(grayscale, array), np.asarray(Image.fromarray(array).convert("L"))
    )


def test_every_red_green_and_blue_alone_is_pillows(apply_job: Apply) -> None:
    array = np.zeros((3, 256, 3), np.uint8)
    for channel in range(3):
        array[channel, :, channel] = np.arange(256)
    np.testing.assert_array_equal(
        apply_job(grayscale, array), np.asarray(Image.fromarray(array).convert("L"))
    )


@pytest.mark.parametrize("dtype", [name for name in SUPPORTED if "int" in name])
def test_integers_are_exact_and_round_halves_up(apply_job: Apply, noise: Apply, dtype: str) -> None:
    array = noise((40, 50, 3), dtype)
    limits = np.iinfo(dtype)
    array[0, :4] = limits.max  # the largest sum
    array[1, :4] = limits.min
    wide = array.astype(object)
    expected = (wide @ np.array([19595, 38470, 7471], object) + 32768) // 65536
    np.testing.assert_array_equal(apply_job(grayscale, array), expected.astype(dtype))


def test_a_tie_is_rounded_up(apply_job: Apply) -> None:
    # Weights 1/2, 1/2, 0: every odd sum is a tie, to an even and to an odd number below.
    array = np.array([[[0, 1, 9], [1, 2, 9], [2, 3, 9], [7, 8, 9]]], np.uint8)
    np.testing.assert_array_equal(apply_job(grayscale, array, weights="1 1 0"), [[1, 2, 3, 8]])
    np.testing.assert_array_equal(
        apply_job(grayscale, -array.astype(np.int32), weights="1 1 0"), [[0, -1, -2, -7]]
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_scikit_images(apply_job: Apply, dtype: str) -> None:
    array = np.random.default_rng(0).random((30, 40, 3)).astype(dtype)
    found = apply_job(grayscale, array, weights="0.2125 0.7154 0.0721")
    expected = color.rgb2gray(array.astype(np.float64))
    # Weights are multiples of 1/65536.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2**-16 + np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_alpha_is_dropped(apply_job: Apply, noise: Apply, dtype: str) -> None:
    array = noise((10, 11, 4), dtype)
    opaque = np.ascontiguousarray(array[..., :3])
    np.testing.assert_array_equal(apply_job(grayscale, array), apply_job(grayscale, opaque))


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_white_stays_white(apply_job: Apply, dtype: str) -> None:
    white = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1
    array = np.full((3, 4, 3), white, dtype)
    for weights in ("0.299 0.587 0.114", "1 1 1", "0.2126, 0.7152, 0.0722"):
        np.testing.assert_array_equal(
            apply_job(grayscale, array, weights=weights), np.full((3, 4), white, dtype)
        )


def test_default_weights_are_rec_601() -> None:
    (option,) = grayscale.parameters
    assert parse(option.default) == (19595, 38470, 7471)
    assert "divided by their sum" in option.help


@pytest.mark.parametrize("weights", ["", "1 2", "1 2 3 4", "a b c", "1 -1 1", "0 0 0", "nan 1 1", "inf 1 1"])
def test_bad_weights_are_refused(weights: str) -> None:
    with pytest.raises(UserError, match="three numbers") as caught:
        grayscale.check((2, 2, 3), np.dtype(np.uint8), weights=weights)
    assert "--weights" in str(caught.value)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 4, 2), (4, 4, 5), (1, 4, 4, 3)])
def test_what_is_no_colour_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="colour image"):
        grayscale.check(shape, np.dtype(np.uint8))
