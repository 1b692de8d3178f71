"""Functions of whole arrays of several sizes as jobs: the bits of the plain function, whatever the ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from tests.unit.run.test_distribute import on_ranks, stepped

N, M = 33, 24


@distribute(outputs=("u", "v", "p"))
def acoustic(u, v, p, *, dt: float = 0.1):
    """Velocities on faces, pressure in cells."""
    u[1:-1] -= dt * (p[1:] - p[:-1])
    v[:, 1:-1] -= dt * (p[:, 1:] - p[:, :-1])
    u[0] = u[-1] = 0
    v[:, 0] = v[:, -1] = 0
    p -= dt * (u[1:] - u[:-1] + v[:, 1:] - v[:, :-1])
    return u, v, p


@distribute(outputs=("ex", "ey", "hz"))
def maxwell(ex, ey, hz, *, dt: float = 0.3):
    """Yee's cells around which the magnetic field is periodic."""
    hz += dt * ((ex[:, 1:] - ex[:, :-1]) - (ey[1:] - ey[:-1]))
    ex[:, 1:-1] += dt * (hz[:, 1:] - hz[:, :-1])
    ex[:, 0] += dt * (hz[:, 0] - hz[:, -1])
    ex[:, -1] = ex[:, 0]
    ey[1:-1] -= dt * (hz[1:] - hz[:-1])
    ey[0] -= dt * (hz[0] - hz[-1])
    ey[-1] = ey[0]


@distribute(outputs=("u", "c", "r"))
def two_grids(u, c):
    """A residual goes to a coarse grid, and a correction comes from it."""
    r = np.zeros_like(u)
    r[1:-1, 1:-1] = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    c[1:-1, 1:-1] = 0.5 * c[1:-1, 1:-1] + 0.125 * (c[2:, 1:-1] + c[:-2, 1:-1] + r[::2, ::2][1:-1, 1:-1])
    u[::2, ::2] += 0.5 * c
    u[1:-1:2] = 0.5 * (u[:-2:2] + u[2::2])
    return u, c, r[1::2]


SHAPES: dict[str, list[tuple[int, int]]] = {
    "acoustic": [(N + 1, M), (N, M + 1), (N, M)],
    "maxwell": [(N, M + 1), (N + 1, M), (N, M)],
    "two_grids": [(33, 25), (17, 13)],
}
STEPS = 7
OPTIONS = {
    "one pass": Options(verify="full"),
    "steps": Options(verify="full", steps=StepOptions(steps=STEPS)),
    "two steps between exchanges": Options(steps=StepOptions(steps=STEPS, steps_per_exchange=2)),
    "a kernel": Options(fuse="require", steps=StepOptions(steps=STEPS)),
    "in chunks": Options(steps=StepOptions(steps=STEPS), stream=StreamOptions(chunk_bytes=4096)),
    "one copy": Options(steps=StepOptions(steps=STEPS, copies="one")),
    "a grid": Options(steps=StepOptions(steps=STEPS), grid="0x0"),
    "rows whole": Options(steps=StepOptions(steps=STEPS), grid="1x0"),
}


def files(folder: Path, job: Any) -> tuple[list[Any], list[Path], list[Path]]:
    """Return the inputs of a job, their files, and those of its outputs."""
    arrays = [
        np.random.default_rng(n).random(shape, dtype=np.float32) for n, shape in enumerate(SHAPES[job.name])
    ]
    inputs = [folder / f"{name}.npy" for name in job.arrays]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    return arrays, inputs, [folder / f"{name}_after.npy" for name in job.output_names]


def after(job: Any, arrays: list[Any], steps: int) -> list[Any]:
    """The plain function on whole arrays, step after step; a result that feeds no input is the last one's."""
    fed = sum(feed is not None for feed in job.feeds)
    before = stepped(lambda *given: (*(job.function(*given) or given),)[:fed], arrays, steps - 1)
    copies = [one.copy() for one in before]
    return list(job.function(*copies) or copies)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("job", [acoustic, maxwell, two_grids], ids=lambda job: job.name)
def test_the_bits_are_those_of_the_whole_arrays(tmp_path: Path, job: Any, ranks: int, kind: str) -> None:
    arrays, inputs, outputs = files(tmp_path, job)
    options = OPTIONS[kind]
    record = on_ranks(ranks, job, inputs, outputs, options)
    wanted = after(job, arrays, options.steps.steps or 1)
    for path, array in zip(outputs, wanted, strict=True):
        found = np.load(path)
        assert found.shape == array.shape
        assert found.tobytes() == array.tobytes()
    assert [one["shape"] for one in record["inputs"]] == [list(one.shape) for one in arrays]
    assert [one["shape"] for one in record["outputs"]] == [list(one.shape) for one in wanted]


@pytest.mark.parametrize("job", [acoustic, two_grids], ids=lambda job: job.name)
def test_a_resumed_run_goes_on_with_the_own_cells(
    tmp_path: Path, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, inputs, outputs = files(tmp_path, job)
    steps = StepOptions(steps=STEPS, checkpoint=SaveInterval(steps=2))
    from meshrun.runner.steps.loop import CheckFinite

    monkeypatch.setattr(
        CheckFinite, "_check", lambda self, stepper: (_ for _ in ()).throw(RunError("stopped"))
        if stepper.done == 5
        else None,
    )  # fmt: skip
    with pytest.raises(RunError, match="stopped"):
        on_ranks(3, job, inputs, outputs, Options(steps=replace(steps, check_finite=1)))
    monkeypatch.undo()
    kept = np.load(tmp_path / f"{outputs[0].name}.checkpoint" / "step-4" / f"{job.arrays[1]}.npy")
    assert kept.tobytes() == after(job, arrays, 4)[1].tobytes()
    again = replace(Options(steps=steps), stream=StreamOptions(resume=True))
    record = on_ranks(2, job, inputs, outputs, again)
    assert record["steps"]["first"] == 4
    for path, array in zip(outputs, after(job, arrays, STEPS), strict=True):
        assert np.load(path).tobytes() == array.tobytes()


@pytest.mark.parametrize(("job", "shown"), [(acoustic, "p"), (two_grids, "c")], ids=["p", "c"])
def test_frames_show_the_own_cells(tmp_path: Path, job: Any, shown: str) -> None:
    arrays, inputs, outputs = files(tmp_path, job)
    number = job.arrays.index(shown)
    film = tmp_path / "film.npy"
    steps = StepOptions(steps=4, frames=str(film), every=2, frame_field=shown)
    on_ranks(3, job, inputs, outputs, Options(steps=steps))
    found = np.load(film)
    assert found.shape == (3, *arrays[number].shape)
    for frame, done in zip(found[1:], (2, 4), strict=True):
        assert frame.tobytes() == after(job, arrays, done)[number].tobytes()
    steps = replace(steps, frames=str(tmp_path / "pictures"))
    (tmp_path / "again").mkdir()
    on_ranks(2, job, inputs, [tmp_path / "again" / one.name for one in outputs], Options(steps=steps))
    assert len(list((tmp_path / "pictures").iterdir())) == 3


def test_calls_and_iterators_have_the_own_cells() -> None:
    arrays = [np.random.default_rng(n).random(shape) for n, shape in enumerate(SHAPES["acoustic"])]
    found = list(acoustic.iterate(*arrays, steps=4, every=2))
    for results, done in zip(found, (2, 4), strict=True):
        for result, array in zip(results, after(acoustic, arrays, done), strict=True):
            assert result.tobytes() == array.tobytes()


def test_the_largest_change_and_infinities_are_of_own_cells(tmp_path: Path) -> None:
    _, inputs, outputs = files(tmp_path, acoustic)
    steps = StepOptions(steps=4, until=1e-30, every=1, check_finite=1)
    assert on_ranks(2, acoustic, inputs, outputs, Options(steps=steps))["steps"]["steps"] == 4


def test_a_result_of_another_size_than_the_input_it_feeds_is_refused(tmp_path: Path) -> None:
    @distribute(outputs=("p", "u"))
    def swapped(u, p):
        return u, p

    np.save(tmp_path / "u.npy", np.ones((21, 8)))
    np.save(tmp_path / "p.npy", np.ones((20, 8)))
    paths = [tmp_path / "u.npy", tmp_path / "p.npy"], [tmp_path / "a.npy", tmp_path / "b.npy"]
    options = Options(device="cpu", steps=StepOptions(steps=2))
    with pytest.raises(UserError, match=r"p cannot become its input p.*got float64 of shape 21x8"):
        run(swapped, *paths, {}, options)


def test_sizes_that_share_no_grid_are_named(tmp_path: Path) -> None:
    @distribute(outputs=("u", "p"))
    def apart(u, p):
        return u * 2, p + 1

    np.save(tmp_path / "u.npy", np.ones((31, 24)))
    np.save(tmp_path / "p.npy", np.ones((20, 24)))
    paths = [tmp_path / "u.npy", tmp_path / "p.npy"], [tmp_path / "a.npy", tmp_path / "b.npy"]
    with pytest.raises(UserError, match=r"share no grid along axis 0.*u 31x24, p 20x24.*29 to 31.*15 or 16"):
        run(apart, *paths, {}, Options(device="cpu"))
    np.save(tmp_path / "u.npy", np.ones((20, 40)))
    with pytest.raises(UserError, match="share no grid along axis 1"):
        run(apart, *paths, {}, Options(device="cpu"))


@distribute(outputs=("u", "c", "e"))
def in_stages(u, c):
    """Sweeps of a coarse grid, which is an input, and a value of it; a coarser result."""
    r = u - np.roll(u, 1, axis=0)
    c += r[::2, ::2]
    e = c.copy()
    for _ in range(3):
        e[1:-1, 1:-1] = e[1:-1, 1:-1] / 2 + np.sqrt(np.abs(e[2:, 1:-1] * e[:-2, 1:-1] + e[1:-1, 2:] + 1))
    u[::2, ::2] -= e
    return u, c, e[::2, ::2] + e.max()


@pytest.mark.parametrize("ranks", [1, 3])
def test_levels_of_a_function_in_stages(tmp_path: Path, ranks: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.random((33, 25), dtype=np.float32), rng.random((17, 13), dtype=np.float32)]
    inputs, outputs = ([tmp_path / f"{one}{kind}.npy" for one in "uce"] for kind in ("", "_after"))
    for path, array in zip(inputs, arrays, strict=False):
        np.save(path, array)
    options = Options(verify="full", steps=StepOptions(steps=3))
    on_ranks(ranks, in_stages, inputs[:2], outputs, options)
    u, c = (array.copy() for array in arrays)
    for _ in range(3):
        u, c, e = in_stages.function(u, c)
    for path, want in zip(outputs, (u, c, e), strict=True):
        np.testing.assert_array_equal(np.load(path), want)
