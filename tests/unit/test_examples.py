"""The examples on simulated ranks, from small arrays: each against a fact that its code does not contain."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import find
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = (
    *("heat", "wave", "gray_scott", "life", "diffusion3d", "blend", "upsample", "downsample"),
    *("argmax", "column_mean", "power_spectrum"),
)
RANKS = pytest.mark.parametrize("ranks", [1, 3])
Arrays = list[np.ndarray[Any, Any]]


def example(name: str) -> Job:
    return find(str(EXAMPLES / f"{name}.py"))


def results(
    folder: Path,
    name: str,
    arrays: Arrays,
    steps: int | None,
    *,
    ranks: int,
    boundary: str | None = None,
    every: int | None = None,
    **parameters: Any,
) -> Arrays:
    """What an example writes, every cell verified. every: steps between two exchanges; None: the default."""
    job = example(name)
    inputs = [folder / f"in{number}.npy" for number in range(len(arrays))]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    outputs = [folder / f"out{number}.npy" for number in range(len(job.output_names))]
    options = Options(
        device="cpu", verify="full", boundary=boundary, steps=StepOptions(steps, steps_per_exchange=every)
    )

    def rank(control: Control) -> Any:
        return run(job, inputs, outputs, parameters, options, world=open_world("cpu", control=control))

    record = run_ranks(ranks, rank, timeout=60)[0]
    assert record["verify"]["mode"] == "full"
    assert record["ranks"] == ranks
    return [np.load(path) for path in outputs]


def standing(length: int, mode: int, boundary: str) -> Any:
    """A cosine that fits the boundary: an eigenvector of the second difference; eigenvalue: `curvature`."""
    cells = np.arange(length)
    if boundary == "wrap":
        return np.cos(2 * np.pi * mode * cells / length)
    return np.cos(np.pi * mode * (cells + 0.5) / length)


def curvature(length: int, mode: int, boundary: str) -> float:
    """cos(x - k) + cos(x + k) - 2 cos(x) is -4 sin(k / 2)^2 cos(x)."""
    k = np.pi * mode / length * (2 if boundary == "wrap" else 1)
    return float(-4 * np.sin(k / 2) ** 2)


@RANKS
@pytest.mark.parametrize("boundary", ["reflect", "wrap"])
def test_a_wave_of_heat_decays_at_the_discrete_rate(tmp_path: Path, ranks: int, boundary: str) -> None:
    shape, modes = (24, 20), (2, 3)
    start = np.multiply.outer(*(standing(n, m, boundary) for n, m in zip(shape, modes, strict=True)))
    eigenvalue = sum(curvature(n, m, boundary) for n, m in zip(shape, modes, strict=True))
    (after,) = results(tmp_path, "heat", [start], 40, ranks=ranks, boundary=boundary, every=ranks, rate=0.15)
    np.testing.assert_allclose(after, (1 + 0.15 * eigenvalue) ** 40 * start, rtol=0, atol=1e-13)
    assert 1e-4 < abs(after).max() < 0.9  # it has decayed, and not to nothing


@RANKS
@pytest.mark.parametrize("boundary", ["reflect", "wrap"])
def test_no_heat_is_lost(tmp_path: Path, ranks: int, boundary: str) -> None:
    start = np.zeros((17, 13))
    start[0, 0], start[16, 5] = 100, 50  # at the edges, where it would leave
    (after,) = results(tmp_path, "heat", [start], 60, ranks=ranks, boundary=boundary)
    assert after.sum() == pytest.approx(150, rel=1e-13)
    assert after.max() < 10
    assert after.min() > 0


@RANKS
@pytest.mark.parametrize("period", [12, 31])
def test_a_standing_wave_returns_after_its_discrete_period(tmp_path: Path, ranks: int, period: int) -> None:
    shape, modes = (18, 16), (3, 2)
    shape_of_wave = np.multiply.outer(*(standing(n, m, "wrap") for n, m in zip(shape, modes, strict=True)))
    stiffness = -sum(curvature(n, m, "wrap") for n, m in zip(shape, modes, strict=True))
    # Of cos(w t): 2 - 2 cos(w) = speed^2 * stiffness.
    angle = 2 * np.pi / period
    speed = float(2 * np.sin(angle / 2) / np.sqrt(stiffness))
    assert speed < 0.7

    def at(step: float) -> Any:
        return np.cos(angle * (step + 0.3)) * shape_of_wave  # 0.3: it neither starts at rest nor at 0

    after, old = results(tmp_path, "wave", [at(0), at(-1)], period, ranks=ranks, every=2, speed=speed)
    np.testing.assert_allclose(after, at(0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(old, at(-1), rtol=0, atol=1e-12)
    after, _ = results(tmp_path, "wave", [at(0), at(-1)], 5, ranks=ranks, speed=speed)
    np.testing.assert_allclose(after, at(5), rtol=0, atol=1e-12)
    assert abs(after - at(0)).max() > 0.1


@RANKS
def test_two_substances_form_a_pattern_within_their_bounds(tmp_path: Path, ranks: int) -> None:
    """Pearson's parameters and, in a part of the dish, his 0.5 and 0.25 with one percent of noise."""
    shape = (48, 40)
    u, v = np.ones(shape), np.zeros(shape)
    middle = np.s_[18:30, 14:26]
    u[middle], v[middle] = 0.5, 0.25
    v[middle] *= 1 + 0.01 * np.random.default_rng(0).standard_normal((12, 12))
    after_u, after_v = results(tmp_path, "gray_scott", [u, v], 1500, ranks=ranks, every=3)
    for field in (after_u, after_v):
        assert field.min() >= 0
        assert field.max() <= 1
    assert after_v.var() > 2 * v.var()
    # It has spread over the dish, in stripes: most rows have parts with and without the second substance.
    assert np.mean((after_v.max(axis=1) > 0.2) & (after_v.min(axis=1) < 0.1)) > 0.8


@RANKS
def test_without_the_second_substance_the_first_returns_to_one(tmp_path: Path, ranks: int) -> None:
    shape, modes, feed = (15, 12), (1, 2), 0.03
    missing = 0.4 * np.multiply.outer(*(standing(n, m, "wrap") for n, m in zip(shape, modes, strict=True)))
    eigenvalue = sum(curvature(n, m, "wrap") for n, m in zip(shape, modes, strict=True))
    u, v = results(
        tmp_path, "gray_scott", [1 - missing, np.zeros(shape)], 20, ranks=ranks, every=2, feed=feed
    )
    np.testing.assert_allclose(1 - u, (1 - feed + 0.2 * eigenvalue) ** 20 * missing, rtol=0, atol=1e-13)
    assert not v.any()


@RANKS
def test_what_one_substance_loses_in_a_reaction_the_other_gains(tmp_path: Path, ranks: int) -> None:
    u, v = np.random.default_rng(4).random((2, 13, 11))
    after = results(tmp_path, "gray_scott", [u, v], 1, ranks=ranks, feed=0.0, kill=0.0)
    assert sum(one.sum() for one in after) == pytest.approx(u.sum() + v.sum(), rel=1e-14)
    assert after[1].sum() - v.sum() == pytest.approx((u * v**2).sum())
    fed = results(tmp_path, "gray_scott", [u, v], 1, ranks=ranks, feed=0.02, kill=0.05)
    assert fed[0].sum() - after[0].sum() == pytest.approx(0.02 * (1 - u).sum())
    assert fed[1].sum() - after[1].sum() == pytest.approx(-0.07 * v.sum())


GLIDER = [(0, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


def board(shape: tuple[int, int], cells: list[tuple[int, int]], shift: int = 0) -> Any:
    found = np.zeros(shape, np.uint8)
    for row, column in cells:
        found[(row + shift) % shape[0], (column + shift) % shape[1]] = 1
    return found


@RANKS
def test_a_glider_moves_one_cell_diagonally_in_four_steps(tmp_path: Path, ranks: int) -> None:
    for steps, every in ((4, 1), (8, 2), (52, 3)):  # 52: once around the board, across every edge
        (after,) = results(tmp_path, "life", [board((13, 13), GLIDER, 9)], steps, ranks=ranks, every=every)
        np.testing.assert_array_equal(after, board((13, 13), GLIDER, 9 + steps // 4))


@RANKS
def test_a_blinker_has_period_two_and_a_block_stays(tmp_path: Path, ranks: int) -> None:
    block = [(6, 6), (6, 7), (7, 6), (7, 7)]
    lying, upright = [(0, 9), (0, 0), (0, 1)], [(9, 0), (0, 0), (1, 0)]  # across the corner of the board
    for steps, blinker in ((1, upright), (2, lying), (7, upright)):
        (after,) = results(tmp_path, "life", [board((10, 10), lying + block)], steps, ranks=ranks)
        np.testing.assert_array_equal(after, board((10, 10), blinker + block))
        assert after.dtype == np.uint8


@RANKS
def test_heat_in_a_cube_of_one_material_decays_mode_by_mode(tmp_path: Path, ranks: int) -> None:
    shape, modes = (12, 9, 10), (1, 2, 3)
    parts = [standing(n, m, "reflect") for n, m in zip(shape, modes, strict=True)]
    start = np.einsum("i,j,k->ijk", *parts)
    eigenvalue = sum(curvature(n, m, "reflect") for n, m in zip(shape, modes, strict=True))
    (after,) = results(tmp_path, "diffusion3d", [start, np.full(shape, 0.1)], 12, ranks=ranks, every=2)
    np.testing.assert_allclose(after, (1 + 0.1 * eigenvalue) ** 12 * start, rtol=0, atol=1e-13)


@RANKS
def test_heat_stays_behind_a_wall_that_conducts_nothing_and_none_is_lost(tmp_path: Path, ranks: int) -> None:
    random = np.random.default_rng(2)
    start, conductivity = random.random((11, 8, 7)), random.uniform(0, 0.16, (11, 8, 7))
    conductivity[:, 3:5] = 0  # two cells: half of one cell's conductivity counts on its other side
    (after,) = results(tmp_path, "diffusion3d", [start, conductivity], 50, ranks=ranks, every=2)
    for side in (np.s_[:, :4], np.s_[:, 4:]):
        assert after[side].sum() == pytest.approx(start[side].sum(), rel=1e-13)
        assert after[side].std() < start[side].std() / 2


@RANKS
@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5, 1.0])
def test_a_blend_is_numpys(tmp_path: Path, ranks: int, weight: float) -> None:
    first, second = np.random.default_rng(7).integers(0, 256, (2, 19, 14, 3), np.uint8)
    (mixed,) = results(tmp_path, "blend", [first, second], None, ranks=ranks, weight=weight)
    assert mixed.dtype == np.uint8
    # In quarters, with whole numbers: halves are rounded to the nearest even one.
    quarters = int(4 * weight)
    total = (4 - quarters) * first.astype(int) + quarters * second.astype(int)
    low, rest = total // 4, total % 4
    np.testing.assert_array_equal(mixed, low + ((rest > 2) | ((rest == 2) & (low % 2 == 1))))


@RANKS
def test_a_plane_stays_a_plane_at_another_size(tmp_path: Path, ranks: int) -> None:
    """A cell's value is linear in the place of its middle, up to the edges, where there are no neighbours."""

    def plane(rows: int, columns: int, cell: float) -> Any:
        down, right = np.ogrid[cell / 2 : rows * cell : cell, cell / 2 : columns * cell : cell]
        return 8 * down + 16 * right + 32

    inside = np.s_[1:-1, 1:-1]
    (large,) = results(tmp_path, "upsample", [plane(10, 9, 1)], None, ranks=ranks)
    np.testing.assert_array_equal(large[inside], plane(20, 18, 0.5)[inside])
    (small,) = results(tmp_path, "downsample", [plane(20, 18, 1)], None, ranks=ranks)
    np.testing.assert_array_equal(small[inside], plane(10, 9, 2)[inside])


@RANKS
def test_no_light_is_lost_in_a_picture_of_another_size(tmp_path: Path, ranks: int) -> None:
    picture = np.zeros((14, 12, 3), np.uint8)
    picture[5, 4], picture[8:11, 2:9] = 192, 64
    (large,) = results(tmp_path, "upsample", [picture], None, ranks=ranks)
    assert large.shape == (28, 24, 3)
    assert large.sum() == 4 * picture.sum()
    (small,) = results(tmp_path, "downsample", [large], None, ranks=ranks)
    assert small.shape == picture.shape
    assert small.dtype == np.uint8
    assert small.sum() == pytest.approx(picture.sum(), rel=0.01)  # halves are rounded


@RANKS
def test_flat_pictures_stay_flat_whatever_their_value(tmp_path: Path, ranks: int) -> None:
    for name in ("upsample", "downsample"):
        for value in (0, 100, 255):
            (after,) = results(tmp_path, name, [np.full((6, 4, 3), value, np.uint8)], None, ranks=ranks)
            assert (after == value).all()


# ---- their inputs and commands


def commands(text: str) -> list[str]:
    """The commands in an example's docstring or a page: lines after a $, or indented."""
    joined = re.sub(r" *\\\n[ >]*", " ", text)
    return re.findall(r"^(?:\$|   ) ((?:python3|meshrun) .*)$", joined, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_an_examples_commands_are_those_of_the_page(name: str) -> None:
    described = runpy.run_path(str(EXAMPLES / f"{name}.py"))["__doc__"]
    shown = commands((ROOT / "docs" / "steps.md").read_text())
    assert commands(described)
    assert set(commands(described)) <= set(shown)


def test_every_example_is_tested() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == {*NAMES, "make_inputs"}


def test_the_start_arrays_fit_their_examples(tmp_path: Path) -> None:
    made = runpy.run_path(str(EXAMPLES / "make_inputs.py"))["arrays"]()
    used = set()
    for name in NAMES:
        if example(name).kind != "map":
            continue
        text = " ".join(commands(runpy.run_path(str(EXAMPLES / f"{name}.py"))["__doc__"]))
        inputs = re.findall(r"inputs/(\w+)\.npy", text)
        used |= set(inputs)
        if not inputs:
            continue
        arrays = [made[one] for one in inputs]
        after = results(tmp_path, name, arrays, 2, ranks=1)
        assert [one.dtype for one in after] == [one.dtype for one in arrays[: len(after)]]
        assert all(np.isfinite(one).all() for one in after)
        assert not np.array_equal(after[0], arrays[0])
    assert used == set(made)


def reduced(ranks: int, name: str, *files: Path) -> dict[str, Any]:
    """The record of a verified run of a reduction."""

    def rank(control: Control) -> Any:
        options, world = Options(device="cpu", verify="full"), open_world("cpu", control=control)
        return run(example(name), *files, options=options, world=world)

    return run_ranks(ranks, rank, timeout=60)[0]


@RANKS
def test_argmax_is_numpys_and_the_first_of_equal_ones(tmp_path: Path, ranks: int) -> None:
    array = np.random.default_rng(0).integers(0, 50, (700, 2500)).astype(np.float32)  # 50 many times
    np.save(tmp_path / "in.npy", array)
    place = [int(i) for i in np.unravel_index(array.argmax(), array.shape)]
    assert reduced(ranks, "argmax", tmp_path / "in.npy")["result"] == {"value": 49.0, "index": place}


@RANKS
def test_the_means_of_columns_are_numpys(tmp_path: Path, ranks: int) -> None:
    array = np.random.default_rng(1).integers(0, 9, (3000, 1200)).astype(np.int32)
    np.save(tmp_path / "in.npy", array)
    record = reduced(ranks, "column_mean", tmp_path / "in.npy", tmp_path / "out.npy")
    assert record["result"] == {"shape": [1200], "dtype": "float64"}
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), array.mean(axis=0))


@pytest.mark.parametrize("ranks", [1, 3, 5])
@pytest.mark.parametrize("shape", [(24, 30), (4, 7), (3, 1)])
def test_the_power_of_a_wave_is_at_its_frequency(tmp_path: Path, ranks: int, shape: tuple[int, int]) -> None:
    """Also with fewer rows or columns than ranks."""
    rows, columns = shape
    phase = 2 * np.pi * (np.arange(rows)[:, None] * 1 / rows - np.arange(columns)[None, :] * 2 / columns)
    np.save(tmp_path / "in.npy", np.exp(1j * phase))

    def rank(control: Control) -> Any:
        options, world = Options(device="cpu"), open_world("cpu", control=control)
        files = tmp_path / "in.npy", tmp_path / "out.npy"
        return run(example("power_spectrum"), *files, options=options, world=world)

    record = run_ranks(ranks, rank, timeout=60)[0]
    expected = np.zeros(shape)
    expected[1, -2 % columns] = (rows * columns) ** 2
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-8)
    assert record["result"]["total"] == pytest.approx((rows * columns) ** 2)
