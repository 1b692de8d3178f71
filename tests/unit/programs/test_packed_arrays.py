"""Coarse inputs and results have no cells in memory but their own: the bits of NumPy, the bytes of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from split_arrays import joined, on_ranks, same, split
from step_runs import stepped

import meshrun
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.forecast.stage_memory import with_stage_memory
from meshrun.runner.options.step_options import SaveInterval
from meshrun.runner.plan.task import plan_task
from tests.facts.program_runs import plain
from tests.unit.programs.test_levels import field, prolonged, residual, restricted, smoothed


@meshrun.distribute(outputs=("u", "k"))
def coefficients(u, f, k):
    """A cycle of two grids with coefficients of the coarse one, which change."""
    u = smoothed(u, f, 0.1, 2)
    c = restricted(residual(u, f, 0.1)) * k
    u = u + prolonged(smoothed(np.zeros_like(c), c, 0.2, 4), u.shape)
    return smoothed(u, f, 0.1, 2), k * np.float32(0.75)


@meshrun.distribute(outputs=("u", "first", "second"), feeds=("u", None, None))
def levels(u, f, k):
    """A result for each of three grids, the coarser ones from the residual."""
    first = restricted(residual(u, f, 0.1)) * k
    second = restricted(first)
    e = smoothed(np.zeros_like(second), second, 0.4, 3)
    u = u + prolonged(prolonged(e, first.shape) + smoothed(np.zeros_like(first), first, 0.2, 2), u.shape)
    return smoothed(u, f, 0.1, 2), first, second


@meshrun.distribute(outputs=("u",))
def cell_means(u, f, k):
    """Means of four cells, times a coarse input with components, back on the fine grid."""
    n, m = u.shape
    c = (f - np.roll(u, 1, 0)).reshape(n // 2, 2, m // 2, 2).mean(axis=(1, 3))
    p = np.pad(c * k[..., 0] - k[..., 1], 1)
    c = p[:-2, 1:-1] + p[2:, 1:-1] - p[1:-1, :-2]
    return u + np.repeat(np.repeat(c, 2, axis=0), 2, axis=1)


@meshrun.distribute(outputs=("u",), series=("most",))
def reduced(u, f, k):
    """The largest coefficient scales the correction; sums of a coarse grid are a series."""
    c = restricted(residual(u, f, 0.1)) * (k / np.abs(k).max())
    return smoothed(u + prolonged(c, u.shape), f, 0.1, 1), np.abs(c).max()


CASES: list[tuple[Any, Any, Any]] = [
    (coefficients, (33, 33), (17, 17)),
    (coefficients, (65, 41), (33, 21)),
    (levels, (65, 49), (33, 25)),
    (cell_means, (32, 24), (16, 12, 2)),
    (reduced, (33, 25), (17, 13)),
]


def arrays_of(fine: Any, coarse: Any) -> list[Any]:
    return [field(*fine), field(*fine, seed=1), field(*coarse, seed=2)]


def packed(job: Any, arrays: Any, kind: str = "cpu") -> Any:
    types = [(one.shape, one.dtype) for one in arrays]
    return with_stage_memory(with_inferred_halo(job, types, {}, kind), kind)


def after(job: Any, arrays: Any, steps: int) -> list[Any]:
    """What a plain loop returns."""
    fields = [one.copy() for one in arrays]
    for _ in range(steps):
        results = plain(job.function, fields)
        for name, result in zip(job.feeds, results, strict=False):
            if name is not None:
                fields[job.arrays.index(name)] = result
    return results


@pytest.mark.parametrize(("job", "fine", "coarse"), CASES)
def test_runs_have_the_bits_of_numpy(tmp_path: Path, job: Any, fine: Any, coarse: Any) -> None:
    arrays = arrays_of(fine, coarse)
    assert packed(job, arrays).program.inputs[2].packed
    wanted = after(job, arrays, 3)
    for ranks in 1, 2, 3:
        outputs = [tmp_path / f"{name}.npy" for name in job.result_names]
        found, record = stepped(tmp_path, job, arrays, 3, ranks=ranks, verify="full", outputs=outputs)
        assert record["verify"]["cells"] == sum(one.size for one in wanted[: len(job.output_names)])
        for one, want in zip(found, wanted, strict=True):
            same(one[-1] if want.ndim == 0 else one, want)


@pytest.mark.parametrize(("job", "fine", "coarse"), CASES[:4])
def test_calls_have_the_bits_of_numpy(job: Any, fine: Any, coarse: Any) -> None:
    """On distributed arrays, whose results are distributed, and in steps."""
    arrays = arrays_of(fine, coarse)
    wanted = after(job, arrays, 1)

    def rank(world: Any) -> Any:
        given = [split(world, one) for one in arrays]
        found = job(*given)
        stages = job.iterate(*(split(world, one) for one in arrays), steps=1)
        return [list(one) if isinstance(one, tuple) else [one] for one in (found, stages)]

    for ranks in 2, 3:
        results = on_ranks(ranks, rank)
        for way in range(2):
            for number, want in enumerate(wanted):
                same(joined([one[way][number] for one in results]), want)


def test_checkpoints_and_frames_have_own_cells(tmp_path: Path) -> None:
    arrays = arrays_of((33, 33), (17, 17))
    options: dict[str, Any] = {"checkpoint": SaveInterval(2, None), "frames": tmp_path / "k.gif", "every": 2}
    found, _ = stepped(tmp_path, coefficients, arrays, 5, ranks=2, **options)
    for one, want in zip(found, after(coefficients, arrays, 5), strict=True):
        same(one, want)


def test_a_run_resumes_with_a_packed_field(tmp_path: Path) -> None:
    arrays = arrays_of((33, 33), (17, 17))
    stepped(tmp_path, coefficients, arrays, 2, ranks=2)
    states = [np.load(tmp_path / f"out{n}.npy") for n in range(2)]
    found, _ = stepped(tmp_path, coefficients, [states[0], arrays[1], states[1]], 2, ranks=3)
    for one, want in zip(found, after(coefficients, arrays, 4), strict=True):
        same(one, want)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_coarse_array_takes_a_quarter(ranks: int, kind: str) -> None:
    n = 2049
    arrays = [np.broadcast_to(np.float32(0), shape) for shape in ((n, n), (n, n), (n // 2 + 1, n // 2 + 1))]
    job = packed(levels, arrays, kind)
    types = [(one.shape, one.dtype) for one in arrays]
    task = plan_task(job, {}, types, ranks)
    region, fine = task.partition[0], 4 * n * n / ranks
    own = [4 * task.field_region(number, region).size for number in range(3)]
    results = [4 * task.output_region(region, number).size for number in range(3)]
    np.testing.assert_allclose(own, [fine, fine, fine / 4], rtol=0.01)
    np.testing.assert_allclose(results, [fine, fine / 4, fine / 16], rtol=0.02)
    # Without it, a coarse input and two results have the cells of the finest grid.
    program = job.program
    whole = replace(
        program,
        inputs=tuple(replace(one, packed=False) for one in program.inputs),
        outputs=tuple(replace(one, packed=False) for one in program.outputs),
    )
    before = replace(job.memory, program=whole).nbytes(region.shape)
    saved = (3 - 1 / 4 - 1 / 4 - 1 / 16) * fine
    assert job.memory.nbytes(region.shape) < before - 0.9 * saved


def test_what_cannot_be_packed_stays(tmp_path: Path) -> None:
    """A loop reads all positions; a sum along an axis is of the finest grid; faces lie beside cells."""

    @meshrun.distribute(outputs=("u",))
    def looped(u, f, k):
        for _ in range(40):
            u[2:-2:2, 2:-2:2] += 0.1 * k[1:-1, 1:-1] * np.abs(u).max()
        return u + f

    @meshrun.distribute(outputs=("u",))
    def summed(u, f, k):
        return u + f * np.repeat(np.repeat(k, 2, 0), 2, 1)[:33, :33] * k.sum(axis=0)[0]

    arrays = arrays_of((33, 33), (17, 17))
    for job in looped, summed:
        assert not packed(job, arrays).program.has_packed
        found, _ = stepped(tmp_path, job, arrays, 2, ranks=2)
        np.testing.assert_allclose(found[0], after(job, arrays, 2)[0], rtol=1e-5)
