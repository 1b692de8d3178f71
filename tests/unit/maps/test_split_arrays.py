"""Blocks of split arrays, from files of every kind and to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition
from meshrun.runner.run.execute import run
from meshrun.runner.storage.formats.registry import open_source
from meshrun.runner.world.world import World, open_world


@meshrun.job
def transposed_split(world: World, input: Any, create: Any, *, first: int = 0, second: int = 1) -> None:
    block = meshrun.read_block(world, input, first)
    sink = create(input.shape, input.dtype, serial=True)
    meshrun.write_block(world, world.redistribute(block, first, second), sink, second)


@meshrun.job
def pencils(world: World, input: Any, create: Any) -> None:
    """Blocks along two axes."""
    partition = Partition(input.shape, (2, 1, 2))
    block = meshrun.read_block(world, input, partition)
    meshrun.write_block(world, block + world.rank, create(input.shape, input.dtype), partition)


def on_ranks(ranks: int, job: Any, *paths: Path, **parameters: Any) -> None:
    run_ranks(ranks, lambda comm: run(job, *paths, parameters, world=open_world("cpu", control=comm)))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("suffix", [".npy", ".h5", ".h5:/a/b", ".zarr", ".zarr:/a/b", ".png"])
def test_a_block_arrives_in_any_format(tmp_path: Path, suffix: str, ranks: int) -> None:
    """Of pictures, one rank reads and writes all."""
    pytest.importorskip({".h5": "h5py", ".zarr": "zarr"}.get(suffix.partition(":")[0], "numpy"))
    array = np.random.default_rng(2).integers(0, 255, (4, 7), np.uint8)
    np.save(tmp_path / "in.npy", array)
    middle, out = tmp_path / f"middle{suffix}", tmp_path / "out.npy"
    on_ranks(ranks, transposed_split, tmp_path / "in.npy", middle)
    on_ranks(ranks, transposed_split, middle, out, first=1, second=0)
    np.testing.assert_array_equal(open_source(middle).array[...], array)
    np.testing.assert_array_equal(np.load(out), array)
    assert {path.name for path in tmp_path.iterdir()} == {
        "in.npy",
        "out.npy",
        f"middle{suffix.partition(':')[0]}",
    }


def test_blocks_along_two_axes(tmp_path: Path) -> None:
    array = np.arange(60).reshape(5, 4, 3)
    np.save(tmp_path / "in.npy", array)
    on_ranks(4, pencils, tmp_path / "in.npy", tmp_path / "out.npy")
    rank = 2 * (np.arange(5) > 2)[:, None, None] + (np.arange(3) > 1)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), array + rank)


def test_an_axis_that_the_array_does_not_have(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((3, 4)))
    with pytest.raises(UserError, match="cannot be split along this axis: got 2, expected an axis of"):
        on_ranks(2, transposed_split, tmp_path / "in.npy", tmp_path / "out.npy", first=2)
    assert not (tmp_path / "out.npy").exists()


def test_a_block_that_does_not_fit_its_part(tmp_path: Path) -> None:
    @meshrun.job
    def wrong(world: World, input: Any, create: Any) -> None:
        block = meshrun.read_block(world, input)
        meshrun.write_block(world, block[:1], create(input.shape, input.dtype))

    np.save(tmp_path / "in.npy", np.zeros((4, 4)))
    with pytest.raises(UserError, match=r"does not fit its part \[0:2, 0:4\] of .*shape \(1, 4\)"):
        on_ranks(2, wrong, tmp_path / "in.npy", tmp_path / "out.npy")
