"""V-cycles over coarse grids on GPUs: the bits of NumPy, in CUDA graphs on one GPU and on two.

`python -m pytest --with-mpi tests/gpu/test_levels_gpu.py`, alone and after `mpirun -n 2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World, open_world
from tests.unit.programs.test_levels import cell_cycle, cycle, two_grids

pytestmark = pytest.mark.mpi
STEPS = 43  # some of them in CUDA graphs


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    opened = open_world("cuda", oversubscribe=True)
    yield opened
    opened.arrays.close()


def vertices(u, f):
    return cycle(u, f, h=0.01)


def cells(u, f):
    return cell_cycle(u, f)


def pair(u, f):
    return two_grids(u, f)


@pytest.mark.parametrize(
    ("function", "shape"), [(pair, (41, 53)), (vertices, (65, 129)), (cells, (96, 64)), (cells, (64, 64))]
)
def test_the_bits_are_numpys(world: World, tmp_path: Path, function: Any, shape: tuple[int, int]) -> None:
    folder = Path(world.on_root(lambda: str(tmp_path)))
    rng = np.random.default_rng(0)
    u, f = (rng.random(shape, dtype=np.float32) for _ in range(2))
    given, made = [folder / "u.npy", folder / "f.npy"], [folder / "after.npy"]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(given, (u, f), strict=True)] and None)
    options = Options(device="cuda", fuse="require", steps=StepOptions(STEPS))
    record = run(distribute(outputs=("u",))(function), given, made, {}, options, world=world)
    assert record["steps"]["graph"], record["steps"]["graph_reason"]
    if world.rank == 0:
        for _ in range(STEPS):
            u = function(u, f)
        assert np.load(made[0]).tobytes() == u.tobytes()
