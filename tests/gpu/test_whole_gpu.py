"""Functions of whole arrays on GPUs: the bits of NumPy, on one rank and on ranks that share a GPU.

`python -m pytest --with-mpi tests/gpu/test_whole_gpu.py`, alone and after `mpirun -n 2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whole_functions as whole
from fused import same

import meshrun
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World, open_world

pytestmark = pytest.mark.mpi
RANDOM = 12  # programs


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    opened = open_world("cuda", oversubscribe=True)
    yield opened
    opened.arrays.close()


def cube(u):
    """Heat in a cube with faces written by index, and a source in its middle."""
    new = u.copy()
    sides = u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1]
    sides = sides + u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2]
    new[1:-1, 1:-1, 1:-1] += 0.1 * (sides - 6 * u[1:-1, 1:-1, 1:-1])
    new[0], new[-1] = 1, new[-2]
    new[:, 0] = new[:, 1]
    new[..., -1] = 2
    new[30, 20, 10] += 3
    return new


def check(
    world: World,
    folder: Path,
    function: Callable[..., Any],
    arrays: Sequence[Any],
    outputs: Sequence[str],
    steps: int | None,
    *,
    verify: Any = "off",
) -> None:
    """Compare a run with the plain function, step after step."""
    job = meshrun.distribute(outputs=tuple(outputs))(function)
    inputs = [folder / f"in{number}.npy" for number in range(len(arrays))]
    results = [folder / f"out{number}.npy" for number in range(len(outputs))]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(inputs, arrays, strict=True)] and None)
    options = Options(fuse="require", verify=verify, steps=StepOptions(steps))
    record = run(job, inputs, results, {}, options, world=world)
    assert record["fused"]["compiler"] == "CUDA"
    state = [one.copy() for one in arrays]
    with np.errstate(all="ignore"):
        for _ in range(steps or 1):
            returned = function(*state)
            found = state if returned is None else returned if isinstance(returned, tuple) else (returned,)
            state = [one.copy() for one in found[: len(arrays)]]
    for path, wanted in zip(results, found, strict=True):
        same(np.load(path), np.ascontiguousarray(wanted))


@pytest.mark.parametrize("steps", [None, 1, 7, 40])
@pytest.mark.parametrize("dtype", ["f4", "f8", "u1"])
@pytest.mark.parametrize(
    "function",
    [whole.heat, whole.periodic_by_hand, whole.red_then_black, whole.runge_kutta, whole.life, whole.views],
)  # fmt: skip
def test_planes(
    world: World, folder: Path, function: Callable[..., Any], dtype: str, steps: int | None
) -> None:
    field = whole.field(515, 1030, dtype=dtype)
    try:
        kept = function(field.copy())
    except TypeError:
        pytest.skip("NumPy refuses it")
    if kept is not None and kept.dtype != field.dtype and steps:
        pytest.skip("its result has another dtype")
    check(world, folder, function, [field], ["output"], steps)


@pytest.mark.parametrize("steps", [None, 9])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("shape", [(70, 66, 130), (40, 31, 17)])
def test_cubes(world: World, folder: Path, shape: tuple[int, ...], dtype: str, steps: int | None) -> None:
    check(world, folder, cube, [whole.field(*shape, dtype=dtype)], ["output"], steps, verify="full")


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("turn", range(RANDOM))
def test_random_programs(world: World, folder: Path, steps: int | None, turn: int) -> None:
    text = world.on_root(lambda: whole.programs().example())
    names = ["u", "v", "w"] if steps is None else ["u", "v"]
    if steps is not None:
        text = text.replace("return u, v, w", "return u.astype(np.float64), v.astype(np.float32)")
    fields = [whole.field(11, 9), whole.field(11, 9, dtype="f4", seed=1)]
    try:
        check(world, folder, whole.compiled(text), fields, names, steps)
    except AssertionError as wrong:
        raise AssertionError(f"{text}\n{wrong}") from None
