"""Fourier transforms and transposes on MPI's ranks, at any number of them."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import transform_cases as cases
from exchange_cases import part, same, whole

import meshrun
from meshrun.jobs.transforms.fft_job import fft
from meshrun.jobs.transforms.transpose_job import transpose_job
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]


@pytest.mark.parametrize("shape", [(30,), (7, 11), (1, 5), (4, 6, 5), (67, 64, 3)])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_every_axis_of_any_shape(world: World, name: str, shape: tuple[int, ...]) -> None:
    dtype = "float32" if name == "rfft" else "complex128"
    cases.transforms(world, name, shape, tuple(range(len(shape))), dtype=dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_transposes_by_every_permutation(world: World, dtype: str) -> None:
    array = whole((13, 5, 6), dtype)
    for order in permutations(range(3)):
        for split, to_split in ((0, 0), (1, 2)):
            block = meshrun.transpose(
                part(array, world, split), world, axes=order, split=split, to_split=to_split
            )
            same(block, part(array.transpose(order), world, to_split))


def test_redistributions_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of several parts are under way while others are transformed."""
    monkeypatch.setattr("meshrun.runner.plan.redistribution.LEAST", 1)
    for name in ("fft", "irfft"):
        cases.transforms(world, name, (12, 13, 10), (0, 1, 2))
    array = whole((29, 6, 17), "float32")
    for order in permutations(range(3)):
        same(
            meshrun.transpose(part(array, world, 0), world, axes=order),
            part(array.transpose(order), world, 0),
        )


def test_jobs_from_file_to_file(world: World, folder: Path) -> None:
    array = np.random.default_rng(3).standard_normal((12, 10, 14)).astype(np.float32)
    world.on_root(lambda: np.save(folder / "in.npy", array))
    options = Options(device="cpu", verify="full")
    run(transpose_job, folder / "in.npy", folder / "turned.npy", {"axes": "2,0,1"}, options, world=world)
    np.testing.assert_array_equal(np.load(folder / "turned.npy"), array.transpose(2, 0, 1))
    run(fft, folder / "in.npy", folder / "out.npy", {}, options, world=world)
    np.testing.assert_allclose(np.load(folder / "out.npy"), np.fft.fftn(array), rtol=0, atol=2e-3)
    run(
        fft, folder / "in.npy", folder / "half.npy", {"real": True, "keep_order": False}, options, world=world
    )
    assert np.load(folder / "half.npy").size == 12 * 10 * 8


@pytest.mark.parametrize("shape", [(9, 7), (6, 8, 5), (2, 12)])
def test_plans_go_there_and_back(world: World, shape: tuple[int, ...]) -> None:
    with meshrun.FourierPlan(world, shape, "complex128", norm="ortho") as plan:
        assert plan.exchange == ("messages" if world.size > 1 else "none")
        cases.plan_goes_there_and_back(world, plan, shape=shape, dtype="complex128", norm="ortho")
