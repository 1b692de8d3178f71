"""Random TIFF files, each rank with its part."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiff_files import write_random

import meshrun
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi


@meshrun.map_blocks
def same(block: Any) -> Any:
    return block


@pytest.mark.parametrize("seed", range(12))
def test_random_files(world: World, folder: Path, seed: int) -> None:
    def write() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return write_random(folder / "a.tif", seed)

    expected = world.on_root(write)
    run(same, folder / "a.tif", folder / "out.npy", {}, Options(), world=world)
    found = np.load(folder / "out.npy")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
