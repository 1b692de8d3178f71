"""The solvers of examples/solvers on ranks: NumPy's bits, and a fact that their code does not contain."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import find
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

SOLVERS = Path(__file__).parents[2] / "examples" / "solvers"
INPUTS = runpy.run_path(str(SOLVERS / "inputs.py"))["arrays"]()
NAMES = {
    "plate": ("plate",),
    "burgers": ("square", "square"),
    "life": ("soup",),
    "channel": ("populations", "body"),
    "schroedinger": ("packet", "earlier", "wall"),
}
Arrays = list[np.ndarray[Any, Any]]


def solver(name: str) -> Job:
    return find(str(SOLVERS / f"{name}.py"))


def called(job: Job, arrays: Arrays, steps: int, **parameters: Any) -> Arrays:
    """What NumPy computes, step after step."""
    state = [array.copy() for array in arrays]
    for _ in range(steps):
        results = job.function(*state, **parameters)
        # A function that returns nothing has changed its arrays.
        if results is not None:
            for number, result in enumerate(results if isinstance(results, tuple) else (results,)):
                state[number] = result
    return state[: len(job.output_names)]


def distributed(folder: Path, job: Job, arrays: Arrays, steps: int, ranks: int, **parameters: Any) -> Arrays:
    """What a verified run writes."""
    inputs = [folder / f"in{number}.npy" for number in range(len(arrays))]
    outputs = [folder / f"out{number}.npy" for number in range(len(job.output_names))]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    options = Options(device="cpu", verify="full", steps=StepOptions(steps))
    run_ranks(
        ranks,
        lambda control: run(
            job, inputs, outputs, parameters, options, world=open_world("cpu", control=control)
        ),
        timeout=60,
    )
    return [np.load(path) for path in outputs]


def test_every_solver_is_tested() -> None:
    assert {path.stem for path in SOLVERS.glob("*.py")} == {*NAMES, "inputs"}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_solver_has_numpys_bits(tmp_path: Path, name: str, ranks: int) -> None:
    job = solver(name)
    arrays = [INPUTS[one][20:90, 30:75].copy() for one in NAMES[name]]
    for ours, numpys in zip(
        distributed(tmp_path, job, arrays, 5, ranks), called(job, arrays, 5), strict=True
    ):
        assert ours.dtype == numpys.dtype
        assert ours.tobytes() == numpys.tobytes()


def test_a_plate_becomes_as_warm_as_a_straight_line_says() -> None:
    (warm,) = called(solver("plate"), [np.zeros((9, 5))], 1000)
    np.testing.assert_allclose(warm, np.linspace(1, 0, 9)[:, None] * np.ones(5), rtol=0, atol=1e-9)


def test_burgers_is_the_scheme_cell_by_cell() -> None:
    u, v = 1 + np.random.default_rng(0).random((2, 7, 6))
    after = called(solver("burgers"), [u, v], 1, dt=0.01, dx=0.1, nu=0.05)
    for field, result in ((u, after[0]), (v, after[1])):
        wanted = np.ones_like(field)
        for i in range(1, 6):
            for j in range(1, 5):
                down, right = field[i, j] - field[i - 1, j], field[i, j] - field[i, j - 1]
                curved = field[i + 1, j] - field[i, j] - down + field[i, j + 1] - field[i, j] - right
                wanted[i, j] = field[i, j] - 0.1 * (u[i, j] * right + v[i, j] * down) + 0.05 * curved
        np.testing.assert_allclose(result, wanted, rtol=1e-13)


def test_a_glider_moves_one_cell_diagonally_in_four_steps() -> None:
    board = np.zeros((12, 11), np.int32)
    board[[1, 2, 3, 3, 3], [2, 3, 1, 2, 3]] = 1
    (after,) = called(solver("life"), [board], 8)
    np.testing.assert_array_equal(after, np.roll(board, (2, 2), (0, 1)))


def test_a_shear_wave_in_the_channel_decays_with_the_viscosity_of_its_relaxation_time() -> None:
    """R. Benzi, S. Succi, M. Vergassola, Physics Reports 222, 1992: nu = (tau - 1/2) / 3."""
    module = runpy.run_path(str(SOLVERS / "channel.py"))
    rows, tau, steps = 32, 0.8, 200
    speed = 0.01 * np.cos(2 * np.pi * np.arange(rows) / rows)[:, None] * np.ones(4)
    start = np.stack(
        [w * (1 + 3 * cx * speed) for w, cx in zip(module["WEIGHTS"], module["CX"], strict=True)], axis=2
    )
    (after,) = called(solver("channel"), [start, np.zeros((rows, 4), bool)], steps, tau=tau)
    found = (after * np.array(module["CX"])).sum(axis=2)
    decay = np.exp(-(tau - 0.5) / 3 * (2 * np.pi / rows) ** 2 * steps)
    np.testing.assert_allclose(found, decay * speed, rtol=0, atol=0.01 * 0.01)
    assert after.sum() == pytest.approx(rows * 4, rel=1e-12)


def test_an_eigenstate_in_a_box_only_turns_its_phase() -> None:
    """By sin(angle) = dt * energy a step, of the leapfrog; the energy is that of the second difference."""
    rows, columns, dt, steps = 13, 10, 0.2, 40
    down, right = (np.pi * mode / (length - 1) for mode, length in ((2, rows), (1, columns)))
    state = np.multiply.outer(np.sin(down * np.arange(rows)), np.sin(right * np.arange(columns)))
    state[-1], state[:, -1] = 0, 0  # as the solver keeps them; sin(pi) is not quite 0
    angle = np.arcsin(dt * (2 - np.cos(down) - np.cos(right)))
    now, before = called(
        solver("schroedinger"), [state + 0j, state * np.exp(1j * angle), np.zeros(state.shape)], steps, dt=dt
    )
    np.testing.assert_allclose(now, state * np.exp(-1j * angle * steps), rtol=0, atol=1e-12)
    np.testing.assert_allclose(before, state * np.exp(-1j * angle * (steps - 1)), rtol=0, atol=1e-12)
