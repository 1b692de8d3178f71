"""Several ranks, a GPU each: `mpirun -n N python -m pytest --with-mpi tests/gpu/test_ranks_gpu.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import meshrun
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
KERNEL = np.arange(1.0, 16.0).reshape(5, 3)


@meshrun.map_blocks(halo=((2, 2), (1, 1)))
def correlate(block: Any, *, out: Any) -> None:
    out[...] = 0
    for i, j in np.ndindex(*KERNEL.shape):
        out[...] += KERNEL[i, j] * block[i : i + out.shape[0], j : j + out.shape[1]]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("grid", [None, "0x0"])
def test_blocks_on_gpus_give_what_scipy_gives(
    world: World, folder: Path, boundary: str, overlap: bool, grid: str | None
) -> None:
    for shape in ((67, 41), (2, 1030), (1024, 512)):
        array = np.random.default_rng(6).integers(-99, 99, shape).astype(np.float64)
        world.on_root(lambda values=array: np.save(folder / "in.npy", values))
        cval = 5.0 if boundary == "constant" else None
        options = Options(boundary=boundary, overlap=overlap, grid=grid, cval=cval, verify="full")
        run(correlate, folder / "in.npy", folder / "out.npy", {}, options, world=world)
        wanted = ndimage.correlate(array, KERNEL, mode=boundary, cval=5.0)
        np.testing.assert_array_equal(np.load(folder / "out.npy"), wanted)


@meshrun.map_blocks(halo=((2, 1), (1, 1)))
def doubled_sums(block: Any) -> Any:
    """Of three neighbours, after the block was changed in place."""
    block *= 2
    return block[:-3, 1:-1] + 3 * block[2:-1, :-2] + 5 * block[3:, 2:]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_function_may_change_its_block_while_the_halo_travels(
    world: World, folder: Path, overlap: bool
) -> None:
    array = np.random.default_rng(7).integers(-99, 99, (4096, 4099))
    padded = np.pad(array, ((2, 1), (1, 1)), mode="symmetric")
    wanted = 2 * (padded[:-3, 1:-1] + 3 * padded[2:-1, :-2] + 5 * padded[3:, 2:])
    world.on_root(lambda: np.save(folder / "in.npy", array))
    options = Options(overlap=overlap, verify="sample")
    run(doubled_sums, folder / "in.npy", folder / "out.npy", {}, options, world=world)
    np.testing.assert_array_equal(np.load(folder / "out.npy"), wanted)


def test_every_rank_has_a_gpu_of_its_own(world: World) -> None:
    assert len({rank.device.uuid for rank in world.ranks}) == world.size


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16", "float32", "float64"])
def test_all_reduce_on_gpus(world: World, dtype: str) -> None:
    array = world.xp.full(1001, world.rank + 1, dtype)
    world.all_reduce(array)
    assert (array == world.size * (world.size + 1) // 2).all()
    world.all_reduce(array[:0])
    array[...] = world.rank
    assert (world.all_reduce(array, "max") == world.size - 1).all()


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(257, 129, 1023), (2, 7, 1), (3000, 500, 1100)])
def test_products_of_blocks(
    world: World, shape: tuple[int, int, int], precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slabs of columns that are gathered: several, and an odd number in the last."""
    for name in ("WIDE", "FIRST_SLAB"):
        monkeypatch.setattr(f"meshrun.jobs.linalg.matmul.plan.{name}", 64)
    dtype = "float64" if precision == "float64" else "float32"
    a, b = (np.random.default_rng(n).standard_normal(shape[n : n + 2]).astype(dtype) for n in range(2))
    expected = (a.astype(np.float64) @ b.astype(np.float64))[world.part(shape[0])]
    reach = (abs(a).astype(np.float64) @ abs(b).astype(np.float64))[world.part(shape[0])]
    allowed = {"float64": 1e-13, "float32": 1e-5, "bfloat16": 2e-2}.get(precision, 2e-3)
    blocks = [world.xp.asarray(array[world.part(len(array))]) for array in (a, b)]
    for _ in range(5):
        found = meshrun.matmul(*blocks, world=world, precision=precision)
        assert (abs(found.get() - expected) <= allowed * reach).all()
