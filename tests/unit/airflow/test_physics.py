"""Flows against exact solutions, conservation laws and the literature, at small sizes.

benchmarks/airflow_physics.py has the flows, and runs them at full size.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.airflow import moments
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import D2Q9, LATTICES
from meshrun.jobs.airflow.step import SOUND, Collision, step_job
from meshrun.jobs.airflow.units import Flow

FLOWS: Any = SimpleNamespace(**runpy.run_path(f"{Path(__file__).parents[3]}/benchmarks/airflow_physics.py"))


def test_a_cavity_flows_as_in_the_literature() -> None:
    found = FLOWS.cavity(100, 32, turnovers=20)
    assert found["least"] == pytest.approx(-0.2140, rel=0.015)
    assert found["height"] == pytest.approx(0.4581, abs=0.01)
    assert found["change"] < 2e-3


@pytest.mark.parametrize(("name", "size"), [("D2Q9", 48), ("D3Q19", 24), ("D3Q27", 24)])
def test_vortices_decay_at_the_given_viscosity(name: str, size: int) -> None:
    """Of second order: within 0.1 % at 48 cells."""
    found = FLOWS.taylor_green(size, LATTICES[name], viscosity=0.05)
    assert abs(found["error"]) < 1e-3 * (48 / size) ** 2


def test_vortices_that_are_carried_along_decay_alike() -> None:
    """But for the square of the speed of sound's part."""
    still, carried = (FLOWS.taylor_green(48, viscosity=0.05, drift=drift)["error"] for drift in (0, 0.05))
    assert abs(carried - still) < 2 * 0.05**2


def test_walls_are_of_second_order() -> None:
    errors = [abs(FLOWS.decaying_channel(height)["error"]) for height in (8, 16, 32)]
    assert errors[0] < 0.01
    assert errors[0] / errors[1] == pytest.approx(4, abs=0.5)
    assert errors[1] / errors[2] == pytest.approx(4, abs=0.5)


def test_a_moving_wall_drags_the_fluid_along() -> None:
    assert FLOWS.couette(12)["error"] < 1e-5


def test_a_channel_keeps_the_parabola_of_its_inlet() -> None:
    found = FLOWS.poiseuille(12)
    assert found["error"] < 0.01
    assert abs(found["pressure_error"]) < 0.01


def test_a_parabolic_inlet_blows_along_the_channel_only() -> None:
    """A diagonal population of an inlet half way between two rows has the wind between them."""
    found = FLOWS.poiseuille(12)
    assert found["sideways"] < 0.015  # 0.06 with the wind of either row


@pytest.mark.parametrize(("outflow", "most"), [(SOUND + 0.1, 0.004), (0.2, 0.15)])
def test_sound_leaves_at_the_outflow(outflow: float, most: float) -> None:
    assert FLOWS.reflection(10, outflow)["reflected"] < most


@pytest.mark.parametrize("axis", [-2, -3])
def test_sides_without_friction_absorb_sound(axis: int) -> None:
    assert FLOWS.side_reflection(1.0, axis=axis)["reflected"] > 0.9
    assert FLOWS.side_reflection(1 / 800, axis=axis)["reflected"] < 0.12
    assert FLOWS.side_reflection(0.0, axis=axis)["reflected"] < 0.01


def test_the_anchor_brings_the_density_back() -> None:
    """A channel that starts at too high a pressure."""
    cells = np.zeros((3, 40), np.uint8)
    cells[:, 0], cells[:, -1] = Cell.MOVING, Cell.OUTFLOW
    rates = FLOWS.magic_rates(0.1) | {"velocity_x": 0.05, "outflow": SOUND + 0.05}
    velocity = [np.zeros(cells.shape), np.full(cells.shape, 0.05)]
    start = moments.equilibrium(D2Q9, np.full(cells.shape, 0.02), velocity)
    kept, fell = (
        moments.excess(FLOWS.run(cells, start, 2000, rates | {"anchor": anchor}))[:, 1:-1].mean()
        for anchor in (0.0, 0.05)
    )
    assert abs(kept) > 0.01
    assert abs(fell) < 1e-3


@pytest.mark.parametrize("name", LATTICES)
def test_a_closed_box_keeps_its_mass(name: str) -> None:
    lattice = LATTICES[name]
    shape = (24, 24) if lattice.axes == 2 else (10, 10, 10)
    cells = np.full(shape, Cell.SOLID, np.uint8)
    cells[(slice(1, -1),) * lattice.axes] = Cell.FLUID
    random = np.random.default_rng(0)
    velocity = np.where(cells == Cell.FLUID, random.uniform(-0.1, 0.1, (lattice.axes, *shape)), 0)
    start = moments.equilibrium(lattice, random.uniform(-0.02, 0.02, shape), list(velocity))
    end = FLOWS.run(cells, start, 600, FLOWS.magic_rates(0.02), lattice=lattice)
    before, after = (np.sum(state, dtype=float) / cells.size for state in (start, end))
    assert abs(after - before) < 1e-6
    assert moments.speed(lattice, end)[cells == Cell.FLUID].max() < 0.1


def test_slip_walls_do_not_slow_a_uniform_flow() -> None:
    cells = np.zeros((12, 30), np.uint8)
    cells[0], cells[-1] = Cell.SLIP, Cell.SLIP_END
    cells[:, 0], cells[:, -1] = Cell.MOVING, Cell.OUTFLOW
    start = moments.equilibrium(
        D2Q9, np.zeros(cells.shape), [np.zeros(cells.shape), np.full(cells.shape, 0.1)]
    )
    rates = FLOWS.magic_rates(0.05) | {"velocity_x": 0.1, "outflow": SOUND + 0.1, "anchor": 0.01}
    velocity = moments.momentum(D2Q9, FLOWS.run(cells, start, 500, rates))
    fluid = cells == Cell.FLUID
    np.testing.assert_allclose(velocity[1][fluid], 0.1, rtol=0, atol=2e-6)
    np.testing.assert_allclose(velocity[0][fluid], 0, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", LATTICES)
def test_a_flow_and_its_mirror_image_stay_mirror_images(name: str) -> None:
    """Along every axis; x too, as nothing flows in or out."""
    lattice = LATTICES[name]
    shape = (14, 18) if lattice.axes == 2 else (8, 9, 10)
    random = np.random.default_rng(3)
    cells = random.choice([Cell.FLUID, Cell.SOLID], shape, p=[0.9, 0.1]).astype(np.uint8)
    start = moments.equilibrium(
        lattice, np.zeros(shape), list(random.uniform(-0.05, 0.05, (lattice.axes, *shape)))
    )
    job, rates = step_job(lattice, [Cell.SOLID]), FLOWS.magic_rates(0.05)
    expected = job.iterate(*start, cells, steps=20, **rates)
    for axis in range(lattice.axes):
        image = [np.flip(start[number], axis) for number in lattice.mirror[axis]]
        found = job.iterate(*image, np.flip(cells, axis), steps=20, **rates)
        for one, number in zip(found, lattice.mirror[axis], strict=True):
            np.testing.assert_allclose(one, np.flip(expected[number], axis), rtol=0, atol=2e-8)


def test_a_model_of_eddies_is_stable_where_a_single_rate_bursts() -> None:
    """A cavity at a Reynolds number of 3000 for each cell."""
    size, speed = 24, 0.1
    cells = np.full((size + 2, size + 2), Cell.SOLID, np.uint8)
    cells[1:-1, 1:-1], cells[-1, 1:-1] = Cell.FLUID, Cell.MOVING
    rates = {"omega": 1 / (3 * speed / 3000 + 0.5), "omega_minus": 1.8, "velocity_x": speed}
    start = FLOWS.at_rest(cells.shape)
    with np.errstate(all="ignore"):
        burst, steady = (FLOWS.run(cells, start, 3000, rates, collision=name) for name in ("bgk", "les"))
    assert not np.isfinite(burst).all()
    assert moments.speed(D2Q9, steady)[1:-1, 1:-1].max() < 1.2 * speed


@pytest.mark.parametrize(
    ("collision", "cell_reynolds"),
    [("trt", 5), ("trt", 12), ("trt", 20), ("trt", 30), ("bgk", 15), ("les", 1e5)],
)
def test_the_flow_past_a_cylinder_stays_bounded_at_the_limits(
    collision: Collision, cell_reynolds: float
) -> None:
    """From an impulsive start, with the rates of `Flow` and damped columns before the outflow."""
    diameter, speed = 10, 0.1
    flow = Flow(cell_reynolds * diameter, diameter, speed)
    flow.check(collision)
    rows, columns = np.mgrid[: 6 * diameter, : 12 * diameter]
    cells = np.zeros(rows.shape, np.uint8)
    cells[:, -1 - 3 * diameter // 2 :] = Cell.DAMPED
    cells[0], cells[-1] = Cell.SLIP, Cell.SLIP_END
    cells[(rows - 3 * diameter - 0.3) ** 2 + (columns - 3 * diameter) ** 2 < diameter**2 / 4] = Cell.SOLID
    cells[:, 0], cells[:, -1] = Cell.MOVING, Cell.OUTFLOW
    start = moments.equilibrium(
        D2Q9, np.zeros(cells.shape), [np.zeros(cells.shape), np.full(cells.shape, speed)]
    )
    rates = {"omega": flow.omega, "omega_minus": flow.omega_minus, "outflow": flow.outflow}
    rates |= {"velocity_x": speed, "anchor": 0.01}
    for state in FLOWS.run(cells, start, 3000, rates, collision=collision, every=1000):
        assert moments.speed(D2Q9, state)[cells == Cell.FLUID].max() < 4 * speed


def test_float16_storage_gives_the_same_flow() -> None:
    """Four vortices after a few turns, within a part in a thousand of their speed."""
    size, speed = 32, 0.05
    angle = 2 * np.pi / size * np.arange(size)
    u = -speed * np.multiply.outer(np.sin(angle), np.cos(angle))
    v = speed * np.multiply.outer(np.cos(angle), np.sin(angle))
    cells = np.zeros((size, size), np.uint8)
    states = (moments.equilibrium(D2Q9, 0 * u, [v, u], storage) for storage in (np.float32, np.float16))
    found = [
        moments.momentum(D2Q9, FLOWS.run(cells, start, 500, FLOWS.magic_rates(0.01))) for start in states
    ]
    assert abs(np.array(found[0])).max() > 0.6 * speed
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=2e-3 * speed)
