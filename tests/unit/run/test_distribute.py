"""Functions of whole arrays as jobs: the bits of the plain function on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world


@distribute
def heat(u, *, rate: float = 0.1):
    """Heat in a plate with a hot edge, a cold one and two without flux."""
    new = u.copy()
    new[1:-1, 1:-1] += rate * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[0] = 1
    new[-1] = 0
    new[:, 0] = new[:, 1]
    new[:, -1] = new[:, -2]
    return new


@distribute(outputs=("u", "before"))
def wave(u, before):
    around = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u
    return 2 * u - before + 0.1 * around, u


@distribute
def counted(u):
    """Changes its input, and returns nothing."""
    rows, columns = np.indices(u.shape)
    u[1::2] += rows[1::2]
    u[u > 3] = columns[0, 0] if False else 3
    u[3, 4] -= 1


def on_ranks(
    ranks: int, job: Any, inputs: Sequence[Path], outputs: Sequence[Path], options: Options, **parameters: Any
) -> dict[str, Any]:
    def rank(control: Any) -> Any:
        return run(job, inputs, outputs, parameters, options, world=open_world("cpu", control=control))

    record: dict[str, Any] = run_ranks(ranks, rank)[0]
    return record


def stepped(function: Callable[..., Any], arrays: Sequence[Any], steps: int, **parameters: Any) -> list[Any]:
    """The plain function on whole arrays, step after step."""
    for _ in range(steps):
        copies = [array.copy() for array in arrays]
        returned = function(*copies, **parameters)
        arrays = copies if returned is None else returned if isinstance(returned, tuple) else [returned]
    return list(arrays)


OPTIONS = {
    "one pass": (1, Options(verify="full")),
    "seven steps": (7, Options(verify="full", steps=StepOptions(steps=7))),
    "in chunks": (7, Options(steps=StepOptions(steps=7), stream=StreamOptions(chunk_bytes=4096))),
    "a grid": (1, Options(grid="1x3")),
    "kernel, one pass": (1, Options(verify="full", fuse="require")),
    "kernel, seven steps": (7, Options(verify="full", fuse="require", steps=StepOptions(steps=7))),
    "kernel, single steps": (7, Options(fuse="require", steps=StepOptions(steps=7, steps_per_exchange=1))),
    "kernel, in chunks": (
        7,
        Options(fuse="require", steps=StepOptions(steps=7), stream=StreamOptions(chunk_bytes=4096)),
    ),
    "kernel, a grid": (6, Options(fuse="require", grid="1x3", steps=StepOptions(steps=6))),
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("job", [heat, wave, counted], ids=lambda job: job.name)
def test_the_bits_are_those_of_the_whole_arrays(tmp_path: Path, job: Any, ranks: int, kind: str) -> None:
    if "grid" in kind and ranks != 3:
        pytest.skip("the grid is of three ranks")
    arrays = [np.random.default_rng(n).random((33, 25), dtype=np.float32) for n in range(len(job.arrays))]
    inputs = [tmp_path / f"{name}.npy" for name in job.arrays]
    outputs = [tmp_path / f"{name}_after.npy" for name in job.output_names]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    steps, options = OPTIONS[kind]
    record = on_ranks(ranks, job, inputs, outputs, options)
    assert (record["fused"]["compiler"] is not None) == kind.startswith("kernel"), record["fused"]
    for path, wanted in zip(outputs, stepped(job.function, arrays, steps), strict=False):
        assert np.load(path).tobytes() == wanted.tobytes()


def test_an_output_is_fed_to_the_input_of_its_name() -> None:
    @distribute(outputs=("v", "u", "w"))
    def swapped(u, v):
        return v, u, u + v

    assert swapped.feeds == ("v", "u", None)
    assert heat.feeds == ("u",)


def test_calls_mean_what_numpy_means() -> None:
    u = np.random.default_rng(0).random((20, 17))
    wanted = u.copy()
    assert counted.function(wanted) is None
    assert counted(u) is None
    assert u.tobytes() == wanted.tobytes()
    assert heat(u, rate=0.2).tobytes() == heat.function(u, rate=0.2).tobytes()
    assert heat.iterate(u, steps=5).tobytes() == stepped(heat.function, [u], 5)[0].tobytes()


def test_results_of_the_inputs_names_are_filled() -> None:
    arrays = [np.random.default_rng(n).random((20, 17)) for n in range(2)]
    results = [np.empty_like(one) for one in arrays]
    wave.run(arrays, results, steps=3, device="cpu")
    for found, wanted in zip(results, stepped(wave.function, arrays, 3), strict=True):
        assert found.tobytes() == wanted.tobytes()


def test_what_cannot_be_computed_in_blocks_is_refused_with_its_line(tmp_path: Path) -> None:
    @distribute
    def sorted_rows(u):
        return np.sort(u, axis=0)

    np.save(tmp_path / "in.npy", np.ones((8, 8)))
    with pytest.raises(UserError, match=r"numpy\.sort.*test_distribute\.py, line \d+") as refused:
        run(sorted_rows, tmp_path / "in.npy", tmp_path / "out.npy", {}, Options(device="cpu"))
    assert refused.value.why is not None
