"""`here` in a reduction: the place of each tile in the whole array, on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError
from meshrun.runner.maps.reduce import Tiles
from meshrun.runner.report.record import plain
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

Array = np.ndarray[Any, Any]
SHAPES = [(5,), (1, 1), (1031, 2053), (3, 1 << 20), (3, 700_001, 1), (2, 3, 600_007), (70, 129, 131)]


@meshrun.reduce_blocks(
    combine=lambda a, b: a if a[0] >= b[0] else b,
    finish=lambda p: {"max": p[0], "index": p[1]},
)
def argmax(block: Any, *, here: Any) -> tuple[float, int]:
    """Largest value and the flat index of its first cell."""
    first = np.ravel_multi_index(here.offset, here.shape)
    flat = block.reshape(-1)
    at = int(flat.argmax())
    return float(flat[at]), int(first) + at


@meshrun.reduce_blocks(combine=lambda a, b: a + b)
def places(block: Any, *, here: Any) -> list[Any]:
    """What `here` says of each tile, and whether the tile has the cells that it names."""
    assert block.shape == here.block
    whole = np.arange(np.prod(here.shape), dtype=np.int64).reshape(here.shape)
    part = tuple(slice(a, a + n) for a, n in zip(here.offset, here.block, strict=True))
    return [[here.offset, here.block, here.shape, bool((whole[part] == block).all())]]


@meshrun.reduce_blocks(combine=np.maximum)
def drawn(block: Any, *, here: Any, seed: int = 3) -> Any:
    """The largest difference between the input and the random numbers of its cells."""
    return np.abs(block - here.uniform(seed)).max()


def on_ranks(ranks: int, job: Any, path: Path, **parameters: Any) -> Any:
    """The result of a verified run on simulated ranks."""
    records: list[Any] = []

    def rank(control: Any) -> None:
        options = Options(device="cpu", verify="full")
        record = run(job, path, None, parameters, options, world=open_world("cpu", control=control))
        records.append(record["result"])

    run_ranks(ranks, rank)
    assert records == [records[0]] * ranks
    return records[0]


def saved(folder: Path, array: Array) -> Path:
    np.save(folder / "in.npy", array)
    return folder / "in.npy"


@pytest.mark.parametrize("shape", SHAPES)
def test_argmax_is_numpys_on_any_number_of_ranks(tmp_path: Path, shape: tuple[int, ...]) -> None:
    # Few values, so that the largest one is in many tiles: the first has to be found.
    array = np.random.default_rng(1).integers(0, 40, shape).astype(np.float32)
    wanted = {"max": float(array.max()), "index": int(array.argmax())}
    assert argmax(array) == wanted
    path = saved(tmp_path, array)
    for ranks in (1, 2, 5):
        assert on_ranks(ranks, argmax, path) == wanted


def test_the_largest_value_in_the_last_tile(tmp_path: Path) -> None:
    array = np.zeros((1031, 2053), np.int64)
    array[-1, -3] = 7
    assert on_ranks(3, argmax, saved(tmp_path, array)) == {"max": 7, "index": array.size - 3}


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_are_where_they_say_and_cover_the_array(shape: tuple[int, ...]) -> None:
    found = places(np.arange(np.prod(shape), dtype=np.int64).reshape(shape))
    assert all(right for *_, right in found)
    assert sum(np.prod(block) for _, block, _, _ in found) == np.prod(shape)
    assert {whole for _, _, whole, _ in found} == {shape}


def test_tiles_are_boxes_that_do_not_depend_on_the_ranks(tmp_path: Path) -> None:
    array = np.arange(1031 * 2053, dtype=np.int64).reshape(1031, 2053)
    path = saved(tmp_path, array)
    results: list[Any] = []

    def rank(control: Any) -> None:
        world = open_world("cpu", control=control)
        results.append(run(places, path, None, {}, Options(device="cpu"), world=world)["result"])

    for ranks in (1, 2, 4):
        run_ranks(ranks, rank)
    assert results == [plain(places(array))] * 7


@pytest.mark.parametrize("shape", SHAPES)
def test_random_numbers_are_those_of_the_tiles_cells(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.random.Generator(np.random.Philox(key=3)).random(shape)
    assert drawn(array) == 0
    assert drawn(array, seed=4) > 0
    if array.size < 1 << 22:
        assert on_ranks(3, drawn, saved(tmp_path, array)) == 0


def test_a_scalar_is_a_tile_without_axes() -> None:
    @meshrun.reduce_blocks(combine=lambda a, b: a)
    def place(block: Any, *, here: Any) -> Any:
        return here.offset, here.block, here.shape, float(here.uniform(1))

    first = np.random.Generator(np.random.Philox(key=1)).random()
    assert place(np.float64(3)) == ((), (), (), first)


def test_a_result_that_depends_on_the_tiles_is_not_verified(tmp_path: Path) -> None:
    @meshrun.reduce_blocks(combine=lambda a, b: a if a[0] >= b[0] else b)
    def within_its_tile(block: Any, *, here: Any) -> tuple[float, int]:
        return float(block.max()), int(block.argmax())

    array = np.zeros((1031, 2053))
    array[700, 5] = 1
    with pytest.raises(RunError, match=r"the result\['result'\]\[1\] is wrong|the result\[1\] is wrong"):
        run(within_its_tile, saved(tmp_path, array), None, {}, Options(device="cpu", verify="full"))


def test_here_names_rank_and_device(tmp_path: Path) -> None:
    @meshrun.reduce_blocks(combine=lambda a, b: a + b)
    def who(block: Any, *, xp: Any, here: Any) -> Any:
        assert here.xp is xp is np
        assert here.stream is None
        assert here.host
        return [[here.rank, here.size]]

    array = np.zeros((3, 1 << 20), np.uint8)
    path = saved(tmp_path, array)

    def rank(control: Any) -> None:
        world = open_world("cpu", control=control)
        record = run(who, path, None, {}, Options(device="cpu"), world=world)
        assert record["result"] == [[0, 3], [1, 3], [2, 3]]

    run_ranks(3, rank)


def test_a_job_may_ask_its_tiles_for_their_places(tmp_path: Path) -> None:
    @meshrun.job
    def last(world: Any, input: Any) -> dict[str, Any]:
        tiles = meshrun.Tiles(world, input)
        assert isinstance(tiles, Tiles)
        offset = tiles.reduce(lambda block, *, here: here.offset, max)
        return {"offset": offset, "without": tiles.reduce(lambda block: block.size, lambda a, b: a + b)}

    assert last(np.zeros((3, 1 << 20), np.uint8)) == {"offset": (2, 0), "without": 3 << 20}


def test_an_array_without_cells_calls_nothing() -> None:
    with pytest.raises(meshrun.UserError, match="no values to reduce"):
        argmax(np.zeros((0, 3)))
