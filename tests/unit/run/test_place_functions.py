"""Functions of place: coordinates and random numbers of cells, in all ways to run a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.declare import distribute, map_blocks
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

SHAPE, STEPS = (33, 25), 5


@map_blocks(halo=1, boundary="nearest")
def noisy(u, here, *, step, seed: int = 7):
    y, x = here.coordinates()
    around = u[2:, 1:-1] + u[:-2, 1:-1] - 2 * u[1:-1, 1:-1]
    return u[1:-1, 1:-1] + 0.1 * around + here.uniform(seed, step) + here.uniform(step) + 0.01 * y * x


@map_blocks(boundary="wrap", halo=(0, 1))
def pixels(u, here):
    """Cells with components."""
    rows, columns, channels = here.coordinates()
    return u[:, 2:] + rows - columns * channels + here.uniform(3)


@distribute
def shaken(u, here, step):
    y, x = here.coordinates()
    u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u + here.uniform(3, step) * x - here.uniform(step, 4) * y


@distribute
def normally(u, *, here):
    return u + here.normal(5)


def everything(shape: Any, step: int = 0) -> meshrun.BlockContext:
    return meshrun.BlockContext(0, 1, "", (0,) * len(shape), shape, shape, None, np, step)


def stepped(job: Any, u: Any, steps: int) -> Any:
    """The function itself, called with whole arrays."""
    for step in range(steps):
        given: dict[str, Any] = {"step": step} if "step" in job.services else {}
        padded = np.pad(u, 1, mode="edge") if job is noisy else u.copy()
        if job is pixels:
            padded = np.pad(u, ((0, 0), (1, 1), (0, 0)), mode="wrap")
        u = job.function(padded, here=everything(u.shape, step), **given)
    return u


def field(job: Any) -> Any:
    return np.random.default_rng(0).random((*SHAPE, 3) if job is pixels else SHAPE)


OPTIONS: dict[str, Options] = {
    "steps": Options(verify="full", steps=StepOptions(steps=STEPS)),
    "kernels": Options(fuse="require", verify="full", steps=StepOptions(steps=STEPS)),
    "a grid": Options(fuse="require", grid="1x2", steps=StepOptions(steps=STEPS)),
    "chunks": Options(
        fuse="require", steps=StepOptions(steps=STEPS), stream=StreamOptions(chunk_bytes=1 << 13)
    ),
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("job", [noisy, pixels, shaken], ids=lambda job: job.name)
def test_every_cell_knows_its_place(tmp_path: Path, job: Any, ranks: int, kind: str) -> None:
    if kind == "a grid" and ranks != 2:
        pytest.skip("the grid is of two ranks")
    np.save(tmp_path / "u.npy", field(job))

    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        return run(job, tmp_path / "u.npy", tmp_path / "out.npy", {}, OPTIONS[kind], world=world)

    run_ranks(ranks, rank)
    assert np.load(tmp_path / "out.npy").tobytes() == stepped(job, field(job), STEPS).tobytes()


@pytest.mark.parametrize("job", [noisy, pixels, shaken, normally], ids=lambda job: job.name)
def test_calls_mean_the_same(job: Any) -> None:
    assert job(field(job)).tobytes() == stepped(job, field(job), 1).tobytes()
    assert job.iterate(field(job), steps=2).tobytes() == stepped(job, field(job), 2).tobytes()


def test_steps_have_numbers_of_their_own() -> None:
    here = everything((7, 9))
    generator = np.random.Philox(key=5, counter=[0, 3, 0, 0])
    np.testing.assert_array_equal(here.uniform(5, 3), np.random.Generator(generator).random((7, 9)))
    assert not np.isin(here.uniform(5, 3), here.uniform(5)).any()
    assert not np.isin(here.normal(5, 3), here.normal(5)).any()


def test_coordinates_are_of_the_whole_array() -> None:
    here = meshrun.BlockContext(0, 1, "", (2, 3), (4, 5), (9, 9), None, np)
    rows, columns = here.coordinates()
    assert rows.shape, columns.shape == ((4, 1), (1, 5))
    np.testing.assert_array_equal(rows + 10 * columns, (np.arange(9)[:, None] + 10 * np.arange(9))[2:6, 3:8])


def test_what_depends_on_the_block_is_refused(tmp_path: Path) -> None:
    @distribute
    def blocks(u, here):
        return u + here.offset[0]

    np.save(tmp_path / "u.npy", field(blocks))
    with pytest.raises(UserError, match=r"depends on how the array is cut .*test_place_functions\.py, line"):
        run(blocks, tmp_path / "u.npy", tmp_path / "out.npy", {}, Options(device="cpu"))
