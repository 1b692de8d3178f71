"""The solvers of examples/solvers on ranks: NumPy's bits, and a fact that their code does not contain."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import find
from meshrun.runner.job.whole_call import call_whole
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
    "tsunami": ("height", "still", "still", "depth", "clock"),
    "multigrid": ("potential", "charges"),
    "cavity": ("cavity_u", "cavity_v", "cavity_p"),
    "obstacle": ("stream_u", "stream_v", "rest", "fluid"),
    "dam_break": ("dam", "calm", "calm", "clock"),
    "maxwell": ("field", "magnetic_x", "magnetic_y", "glass"),
    "acoustic": ("silence", "silence", "speed", "sponge"),
}
# Those with Fourier transforms or sums agree with NumPy within rounding.
ROUNDED = {"turbulence": ("vortices",), "split_step": ("displaced", "trap"), "implicit_heat": ("coals",)}
TABLES = {"maxwell": {"pulse": INPUTS["pulse"]}, "acoustic": {"wavelet": INPUTS["ricker"]}}
SOLVES = {"conjugate_gradients"}  # that take no steps
OTHERS = {"inputs", "pictures"}  # programs that are no solvers
JOBS = {"particle_in_cell", "nbody"}  # that move particles
Arrays = list[np.ndarray[Any, Any]]


def solver(name: str) -> Job:
    return find(str(SOLVERS / f"{name}.py"))


def called(job: Job, arrays: Arrays, steps: int, **parameters: Any) -> Arrays:
    """What NumPy computes, step after step."""
    state = {name: array.copy() for name, array in zip(job.arrays, arrays, strict=True)}
    rows = []
    for step in range(steps):
        results = call_whole(job, list(state.values()), job.complete(parameters), step)
        # A function that returns nothing has changed its arrays.
        if results is not None:
            fields = results if isinstance(results, tuple) else (results,)
            state |= zip(job.feeds, fields, strict=False)
            rows.append(fields[len(job.feeds) :])
    series = [np.stack(one) for one in zip(*rows, strict=True)]
    return [*(state[name] for name in job.feeds), *series]


def distributed(folder: Path, job: Job, arrays: Arrays, steps: int, ranks: int, **parameters: Any) -> Arrays:
    """What a verified run writes."""
    inputs = [folder / f"in{number}.npy" for number in range(len(arrays))]
    outputs = [folder / f"out{number}.npy" for number in range(len(job.result_names))]
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
    assert {path.stem for path in SOLVERS.glob("*.py")} == {*NAMES, *JOBS, *ROUNDED, *SOLVES, *OTHERS}


def ran(folder: Path, name: str, arrays: Arrays, ranks: int, **parameters: Any) -> Arrays:
    """What a job writes."""
    job = solver(name)
    inputs = [folder / f"in{number}.npy" for number in range(len(arrays))]
    outputs = [folder / f"out{number}.npy" for number in range(len(job.output_names))]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    options = Options(device="cpu")
    run_ranks(
        ranks,
        lambda control: run(
            job, inputs, outputs, parameters, options, world=open_world("cpu", control=control)
        ),
    )
    return [np.load(path) for path in outputs]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_solver_has_numpys_bits(tmp_path: Path, name: str, ranks: int) -> None:
    job = solver(name)
    # Parts of the arrays, with the source and the receivers of the sound; magnetic fields are shorter.
    arrays = [INPUTS[one] for one in NAMES[name]]
    part = (lambda one: one[: one.shape[0] - 70]) if name in TABLES else (lambda one: one[20:90, 30:75])
    if name == "cavity":  # of 16 cells along each axis
        arrays = [one[: one.shape[0] - 48, : one.shape[1] - 48] for one in arrays]
        part = np.copy
    if name == "obstacle":  # of a part of the channel with the obstacle
        arrays = [one[: one.shape[0] - 16, : one.shape[1] - 190] for one in arrays]
        part = np.copy
    if name == "multigrid":
        arrays = [one[32:65, 40:57] for one in arrays]
        part = np.copy
    arrays = [part(one).copy() if one.ndim else one for one in arrays]
    tables = TABLES.get(name, {})
    ours_of = distributed(tmp_path, job, arrays, 5, ranks, **tables)
    for ours, numpys in zip(ours_of, called(job, arrays, 5, **tables), strict=True):
        assert ours.dtype == numpys.dtype
        assert ours.tobytes() == numpys.tobytes()


@pytest.mark.parametrize("name", ROUNDED)
def test_a_solver_that_rounds_has_the_same_bits_on_any_number_of_ranks(tmp_path: Path, name: str) -> None:
    job, arrays = solver(name), [INPUTS[one][20:90, 30:75].copy() for one in ROUNDED[name]]
    (wanted,) = called(job, arrays, 5)
    found = []
    for ranks in (1, 3):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        found += distributed(folder, job, arrays, 5, ranks)
    assert found[0].tobytes() == found[1].tobytes()
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-13)


def test_vortices_of_taylor_and_green_decay_with_the_viscosity() -> None:
    line = 2 * np.pi * np.arange(24) / 24
    start = 2 * np.cos(3 * line) * np.cos(2 * line[:, None])
    (after,) = called(solver("turbulence"), [start], 50, dt=0.02, nu=0.05)
    np.testing.assert_allclose(after, np.exp(-0.05 * 13 * 1.0) * start, rtol=0, atol=1e-8)


def test_a_free_packet_spreads_as_it_should() -> None:
    """psi = exp(-r^2 / (2 s)) / s with s = 1 + i t, of two axes."""
    line = (np.arange(64) - 32) * 20 / 64
    square = line**2 + line[:, None] ** 2
    (after,) = called(solver("split_step"), [np.exp(-square / 2) + 0j, np.zeros((64, 64))], 20, dt=0.05)
    np.testing.assert_allclose(after, np.exp(-square / 2 / (1 + 1j)) / (1 + 1j), rtol=0, atol=1e-10)


def test_a_displaced_ground_state_swings_to_the_other_side_of_its_trap() -> None:
    """In half a period of pi, with the phase -i of each of the two axes."""
    line = (np.arange(64) - 32) * 20 / 64
    x, y = line, line[:, None]
    potential = (x**2 + y**2) / 2
    start, other = (np.exp(-((x - centre) ** 2 + y**2) / 2) + 0j for centre in (2, -2))
    (after,) = called(solver("split_step"), [start, potential], 400, dt=np.pi / 400)
    np.testing.assert_allclose(after, -other, rtol=0, atol=1e-4)


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


# The velocity along the vertical line through the centre at Reynolds number 100, by height: U. Ghia,
# K. N. Ghia and C. T. Shin, Journal of Computational Physics 48 (1982).
GHIA = {
    0.9531: 0.68717,
    0.8516: 0.23151,
    0.7344: 0.00332,
    0.6172: -0.13641,
    0.5: -0.20581,
    0.4531: -0.21090,
    0.2813: -0.15662,
    0.1719: -0.10150,
    0.0703: -0.04775,
}


def test_the_flow_in_a_cavity_is_the_published_one() -> None:
    n = 24
    rest = [np.zeros((n + 2, n + 1)), np.zeros((n + 1, n + 2)), np.zeros((n + 2, n + 2))]
    u, v, _ = called(solver("cavity"), rest, 1000, dt=0.012)
    heights = (np.arange(n + 2) - 0.5) / n
    found = np.interp(list(GHIA), heights, u[:, n // 2])
    np.testing.assert_allclose(found, list(GHIA.values()), rtol=0, atol=0.01)
    source = u[1:-1, 1:] - u[1:-1, :-1] + v[1:, 1:-1] - v[:-1, 1:-1]
    assert np.abs(source).max() < 1e-4


def channel_flow(n: int, m: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Where fluid is in an empty channel, and the profile of its flow by second differences, of mean 1."""
    fluid = np.ones((n + 2, m + 2))
    fluid[[0, -1]], fluid[:, 0] = 0, 0
    y = (np.arange(n + 2) - 0.5) / n
    profile = (y * (1 - y) + 1 / (4 * n**2)) * fluid[:, -1]
    return fluid, profile / profile.mean() * n / (n + 2)


def test_the_flow_in_a_channel_without_an_obstacle_is_poiseuilles() -> None:
    n, m, nu = 12, 20, 0.05
    fluid, profile = channel_flow(n, m)
    u = np.zeros((n + 2, m + 1))
    u[1:-1] = 1
    u[:, 0] = profile
    rest = np.zeros((n + 1, m + 2)), np.zeros((n + 2, m + 2))
    u, v, p = called(solver("obstacle"), [u, *rest, fluid], 700, dt=0.012, nu=nu)
    np.testing.assert_allclose(u, profile[:, None] * np.ones(m + 1), rtol=0, atol=1e-6)
    np.testing.assert_allclose(v, 0, rtol=0, atol=1e-7)
    # The pressure falls evenly, as the profile's second difference says.
    slope = nu * n * (profile[2] - 2 * profile[3] + profile[4])
    np.testing.assert_allclose(np.diff(p[1:-1, 1:-1], axis=1), np.full((n, m - 1), slope), rtol=1e-4)


def test_the_wake_of_a_square_is_as_long_as_published() -> None:
    """M. Breuer and others, International Journal of Heat and Fluid Flow 21 (2000), 186 to 196: over -0.065 +
    0.0554 Re sides of a square that takes 1/8 of the channel the flow returns.
    """
    side, reynolds = 4, 40
    n, m, first = 8 * side, 14 * side, 4 * side + 1
    fluid, profile = channel_flow(n, m)
    fluid[(n - side) // 2 + 1 : (n + side) // 2 + 1, first : first + side] = 0
    u = profile[:, None] / profile.max() * fluid[:, 1:] * fluid[:, :-1]
    u[:, 0] = profile / profile.max()
    rest = np.zeros((n + 1, m + 2)), np.zeros((n + 2, m + 2))
    u, v, _ = called(solver("obstacle"), [u, *rest, fluid], 480, dt=0.4 / n, nu=1 / 8 / reynolds)
    wake = u[n // 2 : n // 2 + 2, first + side - 1 :].mean(axis=0)
    turn = int(np.argmax(wake[1:] > 0)) + 1
    length = turn - wake[turn] / (wake[turn] - wake[turn - 1])
    assert length / side == pytest.approx(-0.065 + 0.0554 * reynolds, rel=0.05)
    # What enters a cell leaves it, and nothing passes walls.
    source = u[1:-1, 1:] - u[1:-1, :-1] + v[1:, 1:-1] - v[:-1, 1:-1]
    assert np.abs(source).max() < 1e-3
    assert not u[:, 1:][fluid[:, 1:-1] * fluid[:, 2:] == 0].any()


def mode_of_heat(n: int) -> np.ndarray[Any, Any]:
    """The product of sin(pi x) and sin(2 pi y) at the n inner vertices of each axis of a square of side 1."""
    x = np.pi * np.arange(1, n + 1) / (n + 1)
    return np.sin(x)[:, None] * np.sin(2 * x)


def test_one_long_step_of_heat_is_the_one_of_crank_and_nicolson() -> None:
    n, rate = 15, 50.0
    mode, angle = mode_of_heat(n), np.pi / (n + 1)
    second = 4 - 2 * np.cos(angle) - 2 * np.cos(2 * angle)
    (after,) = called(solver("implicit_heat"), [mode], 1, rate=rate, tol=1e-12)
    factor = (1 - rate / 2 * second) / (1 + rate / 2 * second)
    np.testing.assert_allclose(after, factor * mode, rtol=0, atol=1e-12)


def test_implicit_heat_is_of_second_order_in_time_and_space() -> None:
    """A mode of sines decays as exp(-5 pi^2 t); the spacing and the step are halved together."""
    errors, time = [], 0.04
    for n, steps in ((7, 2), (15, 4), (31, 8)):
        rate = time / steps * (n + 1) ** 2
        (after,) = called(solver("implicit_heat"), [mode_of_heat(n)], steps, rate=rate, tol=1e-11)
        errors.append(np.abs(after - np.exp(-5 * np.pi**2 * time) * mode_of_heat(n)).max())
    assert errors[0] > 3.5 * errors[1] > 3.5 * 3.5 * errors[2]


def stoker(x: np.ndarray[Any, Any], time: float, left: float, right: float) -> np.ndarray[Any, Any]:
    """The depth after a dam at x = 0 broke: J. J. Stoker, Water Waves, 1957; on dry ground A. Ritter."""
    fast = np.sqrt(9.81 * left)
    fan: np.ndarray[Any, Any] = (2 * fast - np.clip(x / time, -fast, 2 * fast)) ** 2 / 9 / 9.81
    if right == 0:
        return fan

    def jump(depth: float) -> float:
        """Of the velocities behind the fan and behind the shock."""
        shock = (depth - right) * np.sqrt(9.81 / 2 * (1 / depth + 1 / right))
        return float(2 * (fast - np.sqrt(9.81 * depth)) - shock)

    middle = optimize.brentq(jump, right, left)
    front = 2 * (fast - np.sqrt(9.81 * middle)) * middle / (middle - right)
    return np.where(x < front * time, np.maximum(fan, middle), right)


@pytest.mark.parametrize("right", [1.0, 0.0])
@pytest.mark.parametrize("across", [False, True])
def test_a_dam_breaks_as_stoker_and_ritter_say(right: float, across: bool) -> None:
    """Towards walls that the waves do not reach yet, along either axis."""
    errors = []
    for cells in (100, 400):
        dx = 100 / cells
        x = (np.arange(cells) + 0.5) * dx - 50
        dam = np.where(x < 0, 4.0, right) * np.ones((2, 1))
        dam = dam.T.copy() if across else dam
        calm, clock = np.zeros_like(dam), np.zeros(())
        steps = 65 * cells // 100
        h, hu, hv, time = called(solver("dam_break"), [dam, calm, calm, clock], steps, dx=dx)
        assert 3 < time < 4.5
        assert h.sum() == pytest.approx(dam.sum(), rel=1e-13)
        assert h.min() >= 0
        assert not (hu if across else hv).any()
        depth = h[:, 0] if across else h[0]
        errors.append(np.abs(depth - stoker(x, float(time), 4.0, right)).mean())
    # Of first order but for the shock and the front.
    assert errors[1] < 0.04
    assert errors[0] > 2 * errors[1]


def test_water_in_a_basin_keeps_its_mass_when_waves_meet_the_walls() -> None:
    dam = np.where(np.random.default_rng(0).random((9, 8)) > 0.5, 4.0, 1.0)
    calm = np.zeros_like(dam)
    h, *_ = called(solver("dam_break"), [dam, calm, calm, np.zeros(())], 400)
    assert h.sum() == pytest.approx(dam.sum(), rel=1e-13)
    np.testing.assert_allclose(h, dam.mean(), rtol=0.05)


@pytest.mark.parametrize("ranks", [1, 3])
def test_conjugate_gradients_solve_the_linear_system(tmp_path: Path, ranks: int) -> None:
    shape = (13, 10)
    b = np.random.default_rng(0).standard_normal(shape)
    lines = [2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1) for n in shape]
    matrix = np.kron(lines[0], np.eye(shape[1])) + np.kron(np.eye(shape[0]), lines[1])
    wanted = np.linalg.solve(matrix, b.ravel()).reshape(shape)
    (found,) = ran(tmp_path, "conjugate_gradients", [b], ranks, tol=1e-10)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)
    (one,) = called(solver("conjugate_gradients"), [b], 1, tol=1e-10)
    np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-9)


def test_v_cycles_reach_the_solution_of_the_linear_system() -> None:
    n, h = 17, 1 / 16
    f = np.random.default_rng(0).standard_normal((n, n))
    edges = np.zeros((n, n))
    edges[0], edges[:, -1] = np.linspace(0, 1, n), 1
    # The five-point matrix of the inner vertices; the edges' values go to the right side.
    ones = np.ones(n - 3)
    line = (2 * np.eye(n - 2) - np.diag(ones, 1) - np.diag(ones, -1)) / h**2
    matrix = np.kron(line, np.eye(n - 2)) + np.kron(np.eye(n - 2), line)
    right = f[1:-1, 1:-1].copy()
    right[0] += edges[0, 1:-1] / h**2
    right[:, -1] += edges[1:-1, -1] / h**2
    wanted = np.linalg.solve(matrix, right.ravel()).reshape(n - 2, n - 2)
    u, left = called(solver("multigrid"), [edges, f], 25)
    np.testing.assert_allclose(u[1:-1, 1:-1], wanted, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(u[[0, -1]], edges[[0, -1]])
    assert left[-1] < 1e-9 < left[0]


def test_one_full_multigrid_is_of_second_order() -> None:
    errors = []
    for n in (17, 33, 65):
        x = np.linspace(0, 1, n)
        exact = np.sin(np.pi * x)[:, None] * np.sin(2 * np.pi * x)
        u, _ = called(solver("multigrid"), [np.zeros((n, n)), 5 * np.pi**2 * exact], 1, full=True)
        errors.append(np.abs(u - exact).max())
    assert errors[0] > 3.5 * errors[1] > 3.5 * 3.5 * errors[2]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_multigrid_has_numpys_bits(tmp_path: Path, ranks: int) -> None:
    arrays = [INPUTS[one][:17, 30:47].copy() for one in NAMES["multigrid"]]
    ours_of = distributed(tmp_path, solver("multigrid"), arrays, 1, ranks, full=True)
    for ours, numpys in zip(ours_of, called(solver("multigrid"), arrays, 1, full=True), strict=True):
        assert ours.tobytes() == numpys.tobytes()


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


def test_a_standing_wave_in_a_basin_has_the_period_of_the_staggered_scheme() -> None:
    """By sin(angle / 2) = courant * sin(wavenumber / 2) a step, as fast as the step that is chosen allows."""
    rows, columns, steps, courant, small = 5, 24, 60, 0.4, 1e-9
    wavenumber = np.pi * 2 / columns
    wave = small * np.cos(wavenumber * (np.arange(columns) + 0.5)) * np.ones((rows, 1))
    still, depth = np.zeros(wave.shape), np.full(wave.shape, 12.0)
    height, _, across, time = called(
        solver("tsunami"), [wave, still, still, depth, np.zeros(())], steps, dx=5.0, courant=courant
    )
    angle = 2 * np.arcsin(courant * np.sin(wavenumber / 2))
    expected = np.cos((steps + 0.5) * angle) / np.cos(angle / 2) * wave
    np.testing.assert_allclose(height, expected, rtol=0, atol=1e-6 * small)
    assert not across.any()
    assert time == pytest.approx(steps * courant * 5.0 / np.sqrt(9.81 * 12.0))


def test_a_mode_of_a_conducting_box_has_the_period_of_yees_scheme() -> None:
    """By sin(angle / 2)^2 = courant^2 * (sin(down / 2)^2 + sin(right / 2)^2) a step: K. S. Yee, 1966."""
    rows, columns, steps, courant = 13, 10, 60, 0.6
    down, right = (np.pi * mode / (length - 1) for mode, length in ((2, rows), (1, columns)))
    mode = np.multiply.outer(np.sin(down * np.arange(rows)), np.sin(right * np.arange(columns)))
    mode[-1], mode[:, -1] = 0, 0  # as the walls keep it; sin(pi) is not quite 0
    state = [mode, np.zeros((rows - 1, columns)), np.zeros((rows, columns - 1)), np.ones(mode.shape)]
    ez, *_ = called(solver("maxwell"), state, steps, pulse=np.zeros(steps), courant=courant)
    angle = 2 * np.arcsin(courant * np.hypot(np.sin(down / 2), np.sin(right / 2)))
    # The magnetic field, of half a step earlier, is 0 at the start.
    expected = np.cos((steps + 0.5) * angle) / np.cos(angle / 2) * mode
    np.testing.assert_allclose(ez, expected, rtol=0, atol=1e-12)


def test_a_source_and_a_receiver_of_sound_may_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lord Rayleigh, The Theory of Sound, 1877, section 294, in a ground of several speeds."""
    speed = 0.5 + 0.5 * np.random.default_rng(5).random((30, 26))
    silence, wavelet = np.zeros(speed.shape), INPUTS["ricker"][:120]
    job, traces = solver("acoustic"), []
    places = (np.array([6]), np.array([5])), (np.array([22]), np.array([17]))
    for source, receiver in (places, places[::-1]):
        monkeypatch.setitem(job.function.__globals__, "SOURCE", source)
        monkeypatch.setitem(job.function.__globals__, "RECEIVERS", receiver)
        *_, trace = called(
            job, [silence, silence, speed, np.ones(speed.shape)], len(wavelet), wavelet=wavelet
        )
        traces.append(trace)
    assert abs(traces[0]).max() > 1e-3
    np.testing.assert_allclose(traces[0], traces[1], rtol=0, atol=1e-12)


def test_sound_moves_at_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    silence, fast = np.zeros((181, 150)), np.ones((181, 150))
    job, wavelet = solver("acoustic"), INPUTS["ricker"][:240]
    monkeypatch.setitem(job.function.__globals__, "SOURCE", (np.array([90]), np.array([30])))
    monkeypatch.setitem(job.function.__globals__, "RECEIVERS", (np.array([90, 90]), np.array([60, 100])))
    *_, traces = called(job, [silence, silence, fast, fast], len(wavelet), wavelet=wavelet, courant=0.5)
    heard = (np.abs(traces) > np.abs(traces).max(axis=0) / 2).argmax(axis=0)
    assert heard[1] - heard[0] == pytest.approx(40 / 0.5, abs=2)


def test_cold_electrons_oscillate_with_the_plasma_frequency(tmp_path: Path) -> None:
    """They all move alike: the energy of the field is that of a cosine, squared."""
    cells, number, dt = 64, 1920, 0.05
    x = (np.arange(number) + 0.5) * cells / number
    x += 0.05 * np.sin(2 * np.pi * x / cells)
    *_, energy = ran(tmp_path, "particle_in_cell", [x, np.zeros(number), np.ones(cells)], 2, steps=200, dt=dt)
    time = dt * np.arange(len(energy))
    np.testing.assert_allclose(energy / energy[0], np.cos(time) ** 2, rtol=0, atol=0.08)
    # The field vanishes every half period.
    quiet = time[1:-1][(energy[1:-1] < energy[:-2]) & (energy[1:-1] < energy[2:])]
    assert np.diff(quiet) == pytest.approx(np.pi, rel=0.02)


def test_two_streams_grow_as_their_dispersion_relation_says(tmp_path: Path) -> None:
    """1 = 1/2 / (w - s)^2 + 1/2 / (w + s)^2, s = wave number * speed: the root with the largest growth. The
    energies have the same bits on any ranks, and so have the electrons.
    """
    cells, number, dt = 64, 4000, 0.1
    product = np.sqrt(3 / 8)  # of wave number and speed
    x = (np.arange(number) + 0.5) * cells / number
    v = np.where(np.arange(number) % 2, 1, -1) * product * cells / (2 * np.pi)
    x = (x + 1e-3 * np.sin(2 * np.pi * x / cells)) % cells
    found = [
        ran(tmp_path, "particle_in_cell", [x, v, np.ones(cells)], ranks, steps=170, dt=dt) for ranks in (1, 3)
    ]
    assert found[0][2].tobytes() == found[1][2].tobytes()
    for one, three in zip(found[0][:2], found[1][:2], strict=True):
        np.testing.assert_array_equal(np.sort(one), np.sort(three))
    # Multiplied by both denominators: (w^2 - s^2)^2 = w^2 + s^2.
    roots = np.roots([1, 0, -2 * product**2 - 1, 0, product**4 - product**2])
    growth = roots.imag.max()
    assert growth == pytest.approx(1 / np.sqrt(8))
    energy = found[0][2][110:]
    slope = np.polyfit(dt * np.arange(len(energy)), np.log(energy) / 2, 1)[0]
    assert slope == pytest.approx(growth, rel=0.04)


def test_two_bodies_are_where_they_were_after_a_period(tmp_path: Path) -> None:
    """Kepler's third law, on as many ranks as bodies and on more; the third body has no mass."""
    x, v = np.array([[0.5, 0], [-0.5, 0], [30.0, 0]]), np.array([[0, 0.5], [0, -0.5], [0, 0]])
    mass, period = np.array([0.5, 0.5, 0]), 2 * np.pi
    for ranks in (1, 2, 5):
        later, speed = ran(tmp_path, "nbody", [x, v, mass], ranks, steps=300, dt=period / 300, softening=1e-6)
        np.testing.assert_allclose(later[:2], x[:2], rtol=0, atol=1e-3)
        np.testing.assert_allclose(speed[:2], v[:2], rtol=0, atol=1e-3)


def test_bodies_move_as_by_direct_sums(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, v, mass = random.standard_normal((7, 3)), random.standard_normal((7, 3)), random.random(7)
    later, speed = ran(tmp_path, "nbody", [x, v, mass], 3, steps=5)

    def pull() -> np.ndarray[Any, Any]:
        total = np.zeros_like(x)
        for i in range(7):
            for j in range(7):
                away = x[j] - x[i]
                total[i] += mass[j] * away / (away @ away + 0.05**2) ** 1.5
        return total

    for _ in range(5):
        v = v + 0.01 * pull()
        x = x + 0.02 * v
        v = v + 0.01 * pull()
    np.testing.assert_allclose(later, x, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(speed, v, rtol=1e-12, atol=1e-13)
