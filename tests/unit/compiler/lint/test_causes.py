"""What a refusal names: the function, the index or the place by which a result depends on the cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from scipy.ndimage import median_filter

import meshrun
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.job.declaration import Job
from meshrun.runner.maps.split_probe import refusal
from meshrun.runner.plan.task import plan_task

FIELD = (((40, 30), np.dtype(np.float32)),)


def plus_one(block: Any) -> Any:
    return block + 1


def sorts(block: Any) -> Any:
    return np.sort(block, axis=1)


def centred(block: Any) -> Any:
    return block - block.mean()


def by_column(block: Any) -> Any:
    return block / np.std(block, axis=0)


def by_row(block: Any) -> Any:
    return np.sort(block)


def ranked(block: Any) -> Any:
    return np.add.accumulate(block)


def reversed_rows(block: Any) -> Any:
    return block[::-1]


def mirrored(block: Any) -> Any:
    return np.flip(block, axis=1)


def rolled(block: Any) -> Any:
    return block + np.roll(block, 1, axis=0)


def rolled_in_a_halo(block: Any) -> Any:
    return np.roll(block, 1, axis=0)[1:-1]


def above_the_first(block: Any) -> Any:
    return block - block[0]


def first_row(block: Any) -> Any:
    return block - block[0, :]


def first_rows(block: Any) -> Any:
    return block - block[:1]


def corner(block: Any) -> Any:
    return block / block[-1, 0]


def spectrum(block: Any) -> Any:
    return abs(np.fft.fft(block, axis=0))


def row_by_row(block: Any) -> Any:
    result = block.copy()
    for row in range(len(block)):
        result[row] = block[row][::-1]
    return result


def named_otherwise(block: Any) -> Any:
    rows = block.shape[0]
    return block[: len(block)] + block[:rows] * (block, 1)[1] + block[(0 * rows) :]


def every_second(block: Any) -> Any:
    return block[:, ::2]


def padded(block: Any) -> Any:
    return np.pad(block, 1)[2:, 1:-1]


def padded_across(block: Any) -> Any:
    return np.pad(block, ((0, 0), (1, 0)))[:, 1:]


def padded_in_a_halo(block: Any) -> Any:
    return np.pad(block, 1)[2:-2, 1:-1]


def gram(block: Any) -> Any:
    return block + (block.T @ block).trace()


def dotted(block: Any) -> Any:
    return block + np.dot(block[:, 0], block[:, 0])


def multiplied(block: Any) -> Any:
    return block @ np.ones((3, 3), np.float32)


def summed(block: Any) -> Any:
    return block + np.einsum("ij,ij->j", block, block)


def contracted(block: Any) -> Any:
    return block - np.tensordot(block, block, ([0, 1], [0, 1]))


def diagonal(block: Any) -> Any:
    return block - block.trace()


def triangle(block: Any) -> Any:
    return np.triu(block)


def by_place(block: Any) -> Any:
    return block + np.arange(block.shape[0], dtype=np.float32)[:, None]


def by_place_across(block: Any) -> Any:
    return block + np.arange(block.shape[1], dtype=np.float32)


def by_indices(block: Any) -> Any:
    return block + np.indices(block.shape)[0]


def ramp(block: Any) -> Any:
    return np.linspace(0, 1, len(block))[:, np.newaxis] * block


def noisy(block: Any) -> Any:
    return block + np.random.default_rng(0).random(block.shape)


def by_chance(block: Any) -> Any:
    return block * np.arange(33, dtype=np.float32)[:, None]  # as long as the stand-in for a block


def shorter_by_chance(block: Any) -> Any:
    return block.shape[0] * block * np.arange(30, dtype=np.float32)


def ones_of_its_shape(block: Any) -> Any:
    return block + np.ones(block.shape)


def middle_row(block: Any) -> Any:
    return block - block[block.shape[0] // 2]


def middle_rows(block: Any) -> Any:
    return block - block[block.shape[0] // 2 : block.shape[0] // 2 + 1]


def channels(block: Any) -> Any:
    return block - block.max(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("function", "grid", "name"),
    [
        (centred, "2x1", "mean"),
        (centred, "1x2", "mean"),
        (centred, "1x1", None),
        (by_column, "2x1", "std"),
        (by_column, "1x2", None),
        (by_row, "2x1", None),
        (by_row, "1x2", "sort"),
        (ranked, "2x1", "add.accumulate"),
        (mirrored, "1x2", "flip"),
        (mirrored, "2x1", None),
        (rolled, "2x1", "roll"),
        (spectrum, "2x1", "fft"),
        (spectrum, "1x2", None),
        (reversed_rows, "2x1", "the slice [::-1]"),
        (reversed_rows, "1x2", None),
        (above_the_first, "2x1", "the index [0]"),
        (first_row, "2x1", "the index [0]"),
        (first_rows, "2x1", "the index [0:1]"),
        (first_rows, "1x2", None),
        (corner, "2x1", "the index [-1]"),
        (every_second, "2x1", None),
        (named_otherwise, "2x1", None),
        (row_by_row, "2x1", None),
        (padded, "2x1", "pad"),
        (padded_across, "2x1", None),
        (padded_across, "1x2", None),  # the cells that are added are taken away
        (meshrun.map_blocks(halo=(1, 0))(padded_in_a_halo), "2x1", None),
        (gram, "2x1", "matmul"),
        (multiplied, "2x1", None),
        (summed, "2x1", "einsum"),
        (summed, "1x2", None),
        (contracted, "1x2", "tensordot"),
        (diagonal, "2x1", "trace"),
        (triangle, "2x1", "triu"),
        (by_place, "2x1", "an array of the block's length"),
        (by_place, "1x2", None),
        (by_place_across, "2x1", None),
        (by_place_across, "1x2", "an array of the block's length"),
        (by_indices, "2x1", "an array of the block's length"),
        (by_indices, "1x2", None),
        (ramp, "2x1", "an array of the block's length"),
        (noisy, "1x2", "an array of the block's length"),
        (ones_of_its_shape, "2x1", None),
        (by_chance, "2x1", None),
        (shorter_by_chance, "2x1", "the length"),
        (middle_row, "2x1", "the index [16]"),
        (middle_row, "1x2", None),
        (middle_rows, "2x1", "the index [16:17]"),
        (meshrun.map_blocks(halo=(1, 0))(rolled_in_a_halo), "2x1", None),
        (plus_one, "2x1", None),
        (sorts, "2x1", None),  # along the last axis
    ],
)
def test_a_value_of_a_whole_axis_is_refused_if_a_run_may_cut_it(
    function: Any, grid: str, name: str | None
) -> None:
    rows, columns = map(int, grid.split("x"))
    job = function if isinstance(function, Job) else meshrun.map_blocks(halo=0)(function)
    error = refusal(plan_task(job, {}, FIELD, rows * columns, grid=grid), CpuBackend())
    # Every run cuts axis 0, if only into pieces.
    rows_first = (
        centred, by_column, reversed_rows, spectrum, first_rows, summed, by_place, by_indices, middle_row
    )  # fmt: skip
    assert (error is not None) == (name is not None or function in rows_first)
    if error is not None and name is not None:
        place = f"{Path(__file__).name}, line {function.__code__.co_firstlineno + 1}: "
        assert place in str(error)


def smooth(block: Any) -> Any:
    return ndimage.gaussian_filter(block, 2)


def smooth_in_a_halo(block: Any) -> Any:
    return ndimage.gaussian_filter(block, 2)[8:-8, 8:-8]


def eroded(block: Any) -> Any:
    return median_filter(smooth(block), 3)


def numpys(block: Any) -> Any:
    return np.convolve(block[0], block[1])


@pytest.mark.parametrize(
    ("function", "grid", "halo", "name"),
    [
        (smooth, "2x1", 0, "gaussian_filter"),
        (smooth, "1x1", 0, "gaussian_filter"),
        (smooth, "2x2", (0, 0), "gaussian_filter"),
        (smooth_in_a_halo, "2x1", 8, None),
        (smooth_in_a_halo, "1x2", 8, None),
        (eroded, "2x1", 0, "median_filter"),
        (numpys, "2x1", 0, None),
    ],
)
def test_a_filter_of_scipys_without_a_halo_is_refused(
    function: Any, grid: str, halo: Any, name: str | None
) -> None:
    rows, columns = map(int, grid.split("x"))
    job = meshrun.map_blocks(halo=halo, fuse="off")(function)
    error = refusal(plan_task(job, {}, FIELD, rows * columns, grid=grid), CpuBackend())
    assert (error is not None) == (name is not None)
    if name is not None:
        assert f"{name}(" in str(error)
        assert "reads neighbours that are not in the block" in str(error)


def test_axes_that_no_run_cuts_are_not_judged() -> None:
    task = plan_task(meshrun.map_blocks(halo=0)(channels), {}, (((40, 30, 3), np.dtype(np.float32)),), 4)
    assert refusal(task, CpuBackend()) is None
