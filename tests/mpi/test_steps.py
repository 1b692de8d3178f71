"""Runs that take steps on MPI's ranks: mpiexec -n 3 python -m pytest --with-mpi tests/mpi/test_steps.py.

What they write must be what a plain NumPy loop on rank 0 gives, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import RunError
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap"}
CVAL = 3
Array = np.ndarray[Any, Any]
Widths = tuple[tuple[int, int], ...]


@dataclass
class Case:
    """A job of several fields, its random inputs, and what any number of steps makes of them."""

    job: Job
    arrays: list[Array]
    widths: Widths
    boundary: str

    def frames(self, steps: int) -> list[list[Array]]:
        """All fields before the first step and after each, by a plain loop."""
        found = [list(self.arrays)]
        for _ in range(steps):
            fields = list(found[-1])
            results = self.job.function(*(self._padded(field) for field in fields), xp=np)
            for name, result in zip(self.job.feeds, results, strict=True):
                fields[self.job.arrays.index(name)] = result
            found.append(fields)
        return found

    def _padded(self, field: Array) -> Array:
        more = [*self.widths, *[(0, 0)] * (field.ndim - len(self.widths))]
        if self.boundary == "constant":
            return np.pad(field, more, "constant", constant_values=CVAL)
        mode: Any = PAD[self.boundary]
        return np.pad(field, more, mode)

    def run(self, world: World, folder: Path, steps: int, *, resume: bool = False, **more: Any) -> Any:
        """The outputs and the record; on rank 0, the others have no outputs."""
        sources = [folder / f"in{number}.npy" for number in range(len(self.arrays))]
        targets = [folder / f"out{number}.npy" for number in range(len(self.job.output_names))]

        def save() -> None:
            for source, array in zip(sources, self.arrays, strict=True):
                np.save(source, array)

        if not resume:  # else the inputs are to be the same files
            world.on_root(save)
        of_runs = {name: more.pop(name) for name in ("fuse", "grid", "overlap", "verify") if name in more}
        options = Options(
            device="cpu", boundary=self.boundary, cval=CVAL if self.boundary == "constant" else None,
            steps=StepOptions(steps, **more), stream=StreamOptions(resume=resume), **of_runs,
        )  # fmt: skip
        record = run(self.job, sources, targets, {}, options, world=world)
        assert record["ranks"] == world.size
        return [np.load(target) for target in targets] if world.rank == 0 else [], record


def random_values(generator: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if np.dtype(dtype).kind == "c":
        return (generator.random(shape) + 1j * generator.random(shape)).astype(dtype)
    return generator.random(shape).astype(dtype)


def case(
    seed: int, shape: tuple[int, ...], widths: Widths, boundary: str, dtypes: tuple[str, str], tail: int = 0
) -> Case:
    """Two fields, which feed each other's sums; `tail` components more in the second one. No two neighbours
    have the same weight, and the order of additions is the same in every cell."""
    random = np.random.default_rng(seed)
    whole = np.dtype(dtypes[0]).kind in "iu"
    places = list(np.ndindex(*(low + high + 1 for low, high in widths)))
    weights = [
        np.dtype(dtypes[0]).type((2 * n + 1) if whole else (2 * n + 1) / 64) for n in range(len(places))
    ]

    def function(now: Array, before: Array, *, xp: Any) -> tuple[Array, Array]:
        inner = tuple(n - low - high for n, (low, high) in zip(now.shape, widths, strict=True))
        core = tuple(slice(low, low + n) for n, (low, _) in zip(inner, widths, strict=True))
        total = xp.zeros(inner, dtypes[0])
        for weight, place in zip(weights, places, strict=True):
            total += weight * now[tuple(slice(a, a + n) for a, n in zip(place, inner, strict=True))]
        old = before[core]
        first, sums = (old[..., 0], total[..., None]) if tail else (old, total)
        return total + first.astype(dtypes[0]), (old if whole else old / 2) + sums.astype(dtypes[1])

    job = meshrun.map_blocks(halo=widths, boundary=boundary, outputs=2)(function)
    shapes = (shape, (*shape, tail) if tail else shape)
    arrays = [random_values(random, one, dtype) for one, dtype in zip(shapes, dtypes, strict=True)]
    return Case(job, arrays, widths, boundary)


CASES: list[Callable[[str], Case]] = [
    lambda boundary: case(0, (37, 23), ((2, 1), (1, 2)), boundary, ("uint32", "uint32")),
    lambda boundary: case(1, (41, 29), ((1, 1), (1, 1)), boundary, ("float64", "float32"), tail=2),
    lambda boundary: case(2, (67,), ((1, 3),), boundary, ("int16", "uint8")),
    lambda boundary: case(3, (23, 18, 5), ((1, 1), (0, 1), (1, 0)), boundary, ("complex64", "complex128")),
]


def same(world: World, found: Sequence[Array], expected: Callable[[], Sequence[Array]]) -> None:
    """Compare on rank 0; every rank fails with it."""

    def compare() -> None:
        for number, (one, other) in enumerate(zip(found, expected(), strict=True)):
            if one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes():
                wrong = int((one != other).sum()) if one.shape == other.shape else one.shape
                raise AssertionError(f"array {number}: {wrong} cells of {other.shape} differ")

    world.on_root(compare)


SPLITS: list[tuple[str | None, bool]] = [(None, False), (None, True), ("0x0", False)]  # grid, overlap
PRODUCT = list(product(range(len(CASES)), BOUNDARIES, (1, 2, 3), SPLITS))
# Every combination of any three parameters.
SOME = [
    one for one in PRODUCT if (one[0] + BOUNDARIES.index(one[1]) + one[2] + SPLITS.index(one[3])) % 3 == 0
]


@pytest.mark.mpi_library
@pytest.mark.parametrize(
    ("number", "boundary", "every", "split"),
    [one if one in SOME else pytest.param(*one, marks=pytest.mark.nightly) for one in PRODUCT],
)
def test_steps_are_a_plain_loop(
    world: World, folder: Path, number: int, boundary: str, every: int, split: tuple[str | None, bool]
) -> None:
    """On ranks in a row, without overlap and with it, and in a grid."""
    chosen, (grid, overlap) = CASES[number](boundary), split
    if grid and chosen.arrays[0].ndim == 1:
        grid = "0"
    expected = chosen.frames(5)[-1] if world.rank == 0 else []
    found, record = chosen.run(world, folder, 5, grid=grid, overlap=overlap, steps_per_exchange=every)
    same(world, found, lambda: expected)
    assert record["steps"]["steps"] == 5


def pulled(low: Array, high: Array, still: Array, *, xp: Any) -> tuple[Array, Array, Array]:
    """Three fields that are read on one side, on a diagonal, and in the cell itself."""
    above, left = low[:-2, 1:-1], low[1:-1, :-2]
    diagonal, here = high[2:, 2:], still[1:-1, 1:-1]
    return 3 * above + 5 * left + here, 7 * diagonal + here, 9 * above + diagonal


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("every", "grid"), [(1, None), (2, "0x0"), (3, None)])
def test_only_what_steps_read_is_exchanged(
    world: World, folder: Path, boundary: str, every: int, grid: str | None
) -> None:
    job = meshrun.map_blocks(halo=1, boundary=boundary, outputs=3)(pulled)
    random = np.random.default_rng(7)
    arrays = [random_values(random, (23, 17), "uint32") for _ in range(3)]
    chosen = Case(job, arrays, ((1, 1), (1, 1)), boundary)
    expected = chosen.frames(7)[-1] if world.rank == 0 else []
    for fuse in ("require", "off"):
        found, record = chosen.run(world, folder, 7, grid=grid, steps_per_exchange=every, fuse=fuse)
        same(world, found, lambda: expected)
        if every == 1 and grid is None and world.size == 3:
            rows = {"require": 1 + 1, "off": 3 * 2}[fuse]
            assert record["steps"]["exchange_bytes"] == rows * 17 * 4  # of the middle rank


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_fewer_rows_than_ranks_and_blocks_narrower_than_their_halo(
    world: World, folder: Path, boundary: str
) -> None:
    for rows in (3, world.size + 1):
        chosen = case(5, (rows, 9), ((2, 1), (1, 1)), boundary, ("uint32", "uint32"))
        expected = chosen.frames(4)[-1] if world.rank == 0 else []
        found, _ = chosen.run(world, folder, 4, verify="full")
        same(world, found, lambda expected=expected: expected)


@pytest.mark.parametrize("grid", [None, "0x0"])
@pytest.mark.parametrize("every", [1, 2])
def test_frames_are_written_by_all_ranks(world: World, folder: Path, grid: str | None, every: int) -> None:
    chosen = CASES[1]("wrap")
    frames = folder / "film.npy"
    found, record = chosen.run(
        world, folder, 7, grid=grid, steps_per_exchange=2, frames=str(frames), every=every,
        frame_field="before",
    )  # fmt: skip
    states = chosen.frames(7) if world.rank == 0 else [[]]
    same(world, found, lambda: states[-1])
    film = [np.load(frames)] if world.rank == 0 else []
    same(world, film, lambda: [np.stack([state[1] for state in states[::every]])])
    assert record["steps"]["frames"] == 7 // every + 1
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


CALLS, LEFT = [0], [0]  # no variables around a function that changes them: those make it another job


@pytest.mark.parametrize("boundary", ["mirror", "constant"])
def test_a_run_that_fails_on_every_rank_is_resumed(world: World, folder: Path, boundary: str) -> None:
    """First in rows, then in a grid, and with another K."""
    chosen = CASES[1](boundary)
    whole, CALLS[0], LEFT[0] = chosen.job, 0, 10**9

    def fragile(now: Array, before: Array, *, xp: Any) -> Any:
        CALLS[0] += 1
        LEFT[0] -= 1
        if LEFT[0] < 0:
            raise RunError("as if the power went", everywhere=True)
        return whole.function(now, before, xp=xp)

    chosen.job = meshrun.map_blocks(halo=chosen.widths, boundary=boundary, outputs=2)(fragile)
    chosen.run(world, folder, 1)
    before = CALLS[0] - 1  # calls that find out about the function
    LEFT[0] = before + 8
    with pytest.raises(RunError, match="as if the power went"):
        chosen.run(world, folder, 12, checkpoint=SaveInterval(steps=3))
    kept = folder / "out0.npy.checkpoint"
    assert sorted(path.name for path in kept.iterdir()) == ["step-3", "step-6"]
    LEFT[0] = 10**9
    CALLS[0] = 0
    found, record = chosen.run(
        world, folder, 12, resume=True, checkpoint=SaveInterval(steps=3), grid="0x0", steps_per_exchange=2
    )
    expected = chosen.frames(12)[-1] if world.rank == 0 else []
    same(world, found, lambda: expected)
    assert record["steps"]["first"] == 6
    assert record["steps"]["checkpoints"] == 1
    assert not kept.exists()
