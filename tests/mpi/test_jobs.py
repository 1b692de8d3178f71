"""Whole runs of every built-in job on MPI's ranks: mpiexec -n 3 python -m pytest --with-mpi tests/mpi.

What a run writes must be what the job gives for the array in memory, on one process, to the bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import meshrun
from meshrun.jobs.filters.convolve import convolve
from meshrun.jobs.filters.elementwise import elementwise
from meshrun.jobs.filters.grayscale import grayscale
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.jobs.filters.statistics import statistics
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.report.record import plain
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
PHOTOGRAPH = Path(__file__).parents[2] / "examples" / "rocket.jpg"
GRIDS = [None, "0x0"]
Array = np.ndarray[Any, Any]

JOBS: list[tuple[Job, dict[str, Any]]] = [
    (laplacian, {}),
    (laplacian, {"dtype": "int16"}),
    (convolve, {"kernel": "1 2 1; 2 4 2; 1 2 1", "normalize": True}),
    (convolve, {"kernel": "0.5 -1 2 3; 1 0 0.25 1", "dtype": "float32"}),
    (grayscale, {}),
    (elementwise, {"expression": "where(x > 100, sqrt(x), -x)"}),
]
TO_PICTURE = [JOBS[0], JOBS[2], JOBS[4], (elementwise, {"expression": "255 - x", "dtype": "uint8"})]


@pytest.fixture(scope="module")
def photograph() -> Array:
    return np.asarray(Image.open(PHOTOGRAPH))


def put(world: World, path: Path, array: Array) -> Path:
    world.on_root(lambda: np.save(path, array))
    return path


def check(
    world: World, job: Job, source: Path, target: Path, parameters: dict[str, Any], **options: Any
) -> Array:
    """Run with every cell verified; what is on disk then."""
    record = run(job, source, target, parameters, Options(verify="full", **options), world=world)
    assert record["ranks"] == world.size
    assert record["verify"]["cells"] > 0
    assert np.prod(record["grid"]) == world.size
    written = np.load(target) if target.suffix == ".npy" else np.asarray(Image.open(target))
    assert (list(written.shape), str(written.dtype)) == tuple(record["result"].values())
    return written


@pytest.mark.mpi_library
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("job", "parameters"), JOBS, ids=[job.name for job, _ in JOBS])
def test_arrays(
    world: World, folder: Path, photograph: Array, job: Job, parameters: dict[str, Any], grid: str | None
) -> None:
    source = put(world, folder / "in.npy", photograph)
    written = check(world, job, source, folder / "out.npy", parameters, grid=grid)
    np.testing.assert_array_equal(written, job(photograph, **parameters))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("job", "parameters"), TO_PICTURE, ids=[job.name for job, _ in TO_PICTURE])
def test_pictures(
    world: World, folder: Path, photograph: Array, job: Job, parameters: dict[str, Any], grid: str | None
) -> None:
    written = check(world, job, PHOTOGRAPH, folder / "out.png", parameters, grid=grid)
    np.testing.assert_array_equal(written, job(photograph, **parameters))


@pytest.mark.parametrize("boundary", ["mirror", "wrap", "constant"])
@pytest.mark.parametrize("overlap", [False, True])
def test_boundaries(world: World, folder: Path, photograph: Array, boundary: str, overlap: bool) -> None:
    """Against the picture padded by NumPy and filtered in one piece."""
    pads = {"mirror": "reflect", "wrap": "wrap", "constant": "constant"}
    wide = np.pad(photograph, ((1, 1), (1, 1), (0, 0)), pads[boundary])
    source = put(world, folder / "in.npy", photograph)
    options = {"boundary": boundary, "cval": 0.0 if boundary == "constant" else None, "overlap": overlap}
    written = check(world, laplacian, source, folder / "out.npy", {}, **options)
    np.testing.assert_array_equal(written, laplacian(wide)[1:-1, 1:-1])


def test_a_file_into_itself(world: World, folder: Path, photograph: Array) -> None:
    path = put(world, folder / "in.npy", photograph)
    found = check(world, laplacian, path, path, {}, overwrite_input=True)
    np.testing.assert_array_equal(found, laplacian(photograph))


def test_fewer_rows_than_ranks(world: World, folder: Path, photograph: Array) -> None:
    few = np.ascontiguousarray(photograph[:2])
    source = put(world, folder / "in.npy", few)
    np.testing.assert_array_equal(check(world, laplacian, source, folder / "out.npy", {}), laplacian(few))


@pytest.mark.parametrize("copies", [1, 6])
def test_statistics(world: World, folder: Path, photograph: Array, copies: int) -> None:
    # A tile has 2^20 elements: six photographs are five of them.
    array = np.concatenate([photograph / 255] * copies)
    source = put(world, folder / "in.npy", array)
    record = run(statistics, source, None, {"bins": 100}, Options(verify="full"), world=world)
    assert repr(record["result"]) == repr(plain(statistics(array, bins=100)))
    assert sum(record["result"]["histogram"]) == array.size


@pytest.mark.mpi_library
def test_a_reduction_has_the_bits_of_one_process(world: World, folder: Path) -> None:
    """Sums of float32 of very different sizes: another order of additions is another sum."""

    @meshrun.reduce_blocks(
        combine=lambda a, b: (a[0] + b[0], max(a[1], b[1])), finish=lambda p: {"sum": p[0], "max": p[1]}
    )
    def totals(block: Array) -> tuple[np.float32, float]:
        return block.sum(dtype=np.float32), float(block.max())

    array = (np.random.default_rng(3).standard_normal((5_003, 1_001)) ** 9).astype(np.float32)
    source = put(world, folder / "in.npy", array)
    record = run(totals, source, None, {}, Options(), world=world)
    alone = plain(totals(array))
    assert repr(record["result"]) == repr(alone)
    assert world.control.allgather(repr(record["result"])) == [repr(alone)] * world.size
    assert alone["max"] == array.max()


@pytest.mark.mpi_library
def test_a_reduction_knows_its_tiles_places(world: World, folder: Path) -> None:
    @meshrun.reduce_blocks(combine=lambda a, b: a if a[0] >= b[0] else b)
    def argmax(block: Array, *, here: meshrun.BlockContext) -> tuple[int, int]:
        first = int(np.ravel_multi_index(here.offset, here.shape))
        return int(block.max()), first + int(block.argmax())

    array = np.random.default_rng(3).integers(0, 999, (5_003, 1_001), np.int32)  # each value in every tile
    source = put(world, folder / "in.npy", array)
    record = run(argmax, source, None, {}, Options(verify="full"), world=world)
    assert record["result"] == [998, array.argmax()]


@pytest.mark.mpi_library
def test_a_wrong_result_is_an_error_everywhere_and_leaves_the_old_file(world: World, folder: Path) -> None:
    @meshrun.map_blocks(reference=lambda block: block + (block == 7))
    def wrong_at_seven(block: Array) -> Array:
        return block.copy()

    source = put(world, folder / "in.npy", np.arange(100.0))
    target = put(world, folder / "out.npy", np.arange(3))
    with pytest.raises(RunError, match=r"cell \[7\], computed by \[rank .*got 7\.0, expected 8\.0") as caught:
        check(world, wrong_at_seven, source, target, {})
    assert caught.value.everywhere
    world.control.barrier()
    assert sorted(path.name for path in folder.iterdir()) == ["in.npy", "out.npy"]
    np.testing.assert_array_equal(np.load(target), np.arange(3))


def test_a_mistake_is_an_error_everywhere(world: World, folder: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.npy does not exist") as caught:
        check(world, laplacian, folder / "gone.npy", folder / "out.npy", {})
    assert caught.value.everywhere
    with pytest.raises(UserError, match="does not use every rank exactly once"):
        check(world, laplacian, PHOTOGRAPH, folder / "out.npy", {}, grid=str(world.size + 1))


def test_each_rank_passes_the_same_array_and_gets_the_result(world: World) -> None:
    array = np.random.default_rng(0).random((9, 7))
    result = np.zeros_like(array)
    record = laplacian.run(array, result, device="cpu")
    assert record["ranks"] == world.size
    np.testing.assert_array_equal(result, laplacian(array))
    if world.size > 1:
        with pytest.raises(UserError, match="the ranks pass different arrays"):
            laplacian.run(array + world.rank, result, device="cpu")
