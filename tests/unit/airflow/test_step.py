"""One time step: against a textbook's, as one kernel, and on several ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook_lattice
from step_runs import stepped

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import D2Q9, D3Q19, LATTICES, Lattice
from meshrun.jobs.airflow.moments import equilibrium
from meshrun.jobs.airflow.step import SCALE, Collision, Damping, step_job
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job

Array = np.ndarray[Any, Any]
EVERY_LATTICE = pytest.mark.parametrize("lattice", LATTICES.values(), ids=LATTICES)
RATES = {
    "omega": 1.7,
    "omega_minus": 1.1,
    "les": 0.15,
    "velocity_x": 0.05,
    "velocity_y": 0.01,
    "velocity_z": -0.02,
    "outflow": 0.45,
    "anchor": 0.02,
    "adapt": 0.1,
}


def kinds_of(lattice: Lattice) -> list[Cell]:
    return [kind for kind in Cell if kind not in (Cell.SLIP_Z, Cell.SLIP_Z_END) or lattice.axes == 3]


def rates(job: Job) -> dict[str, float]:
    return {one.name: RATES[one.name] for one in job.parameters}


def flow(lattice: Lattice, shape: tuple[int, ...], storage: Any = np.float32, seed: int = 0) -> list[Array]:
    """A state near an equilibrium of random density and velocity."""
    random = np.random.default_rng(seed)
    velocity = random.uniform(-0.05, 0.05, (lattice.axes, *shape))
    found = equilibrium(lattice, random.uniform(-0.02, 0.02, shape), list(velocity))
    noise = random.uniform(-1e-3, 1e-3, (lattice.size, *shape))
    scale = SCALE[np.dtype(storage)]
    return [((one + more) * scale).astype(storage) for one, more in zip(found, noise, strict=True)]


def scattered(lattice: Lattice, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Cells of every kind, anywhere."""
    chances = [1.0 if kind else 20.0 for kind in kinds_of(lattice)]
    random = np.random.default_rng(seed)
    return random.choice(kinds_of(lattice), shape, p=np.array(chances) / sum(chances)).astype(np.uint8)


def small(lattice: Lattice) -> tuple[int, ...]:
    return (13, 17) if lattice.axes == 2 else (7, 8, 9)


@EVERY_LATTICE
@pytest.mark.parametrize("collision", ["trt", "bgk", "les"])
@pytest.mark.parametrize("profile", [False, True], ids=["", "profile"])
def test_steps_agree_with_a_textbook(lattice: Lattice, collision: Collision, profile: bool) -> None:
    shape, steps = small(lattice), 6
    fields, cells = flow(lattice, shape), scattered(lattice, shape)
    wind = np.random.default_rng(5).uniform(0, 2, shape).astype(np.float32) if profile else None
    job = step_job(lattice, kinds_of(lattice), collision, profile=profile)
    found = job.iterate(*fields, cells, *([] if wind is None else [wind]), steps=steps, **rates(job))

    weights = [textbook_lattice.weight(e, lattice.size) for e in lattice.velocities]
    f = [one.astype(float) + weight for one, weight in zip(fields, weights, strict=True)]
    for _ in range(steps):
        f = textbook_lattice.step(
            list(lattice.velocities),
            f,
            cells,
            omega=RATES["omega"],
            omega_minus=RATES["omega" if collision == "bgk" else "omega_minus"],
            wall=tuple(RATES[f"velocity_{axis}"] for axis in "zyx"[-lattice.axes :]),
            wind=1.0 if wind is None else wind,
            outflow=RATES["outflow"],
            anchor=RATES["anchor"],
            adapt=RATES["adapt"],
            les=RATES["les"] if collision == "les" else 0.0,
        )
    for one, expected, weight in zip(found, f, weights, strict=True):
        np.testing.assert_allclose(one, expected - weight, rtol=0, atol=1e-7)
        assert abs(one).max() > 1e-3


@EVERY_LATTICE
def test_float16_storage_rounds_and_changes_nothing_else(lattice: Lattice) -> None:
    """One step: each stored value is that of float32 storage, rounded."""
    shape = small(lattice)
    half, cells = flow(lattice, shape, np.float16), scattered(lattice, shape)
    whole = [one.astype(np.float32) / 2**15 for one in half]
    jobs = {kind: step_job(lattice, kinds_of(lattice), "les", kind) for kind in (np.float16, np.float32)}
    found = jobs[np.float16].iterate(*half, cells, steps=1, **rates(jobs[np.float16]))
    expected = jobs[np.float32].iterate(*whole, cells, steps=1, **rates(jobs[np.float32]))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.float16
        np.testing.assert_array_equal(one, (other * 2**15).astype(np.float16))


@pytest.mark.parametrize(
    ("name", "collision", "storage"),
    [
        ("D2Q9", "trt", "float32"),
        ("D2Q9", "les", "float16"),
        ("D3Q19", "les", "float32"),
        ("D3Q27", "trt", "float16"),
    ],
)
@pytest.mark.parametrize("damping", ["results", "factors"])
def test_the_step_is_one_kernel_of_the_same_bits(
    name: str, collision: Collision, storage: str, damping: Damping
) -> None:
    lattice = LATTICES[name]
    shape = small(lattice)
    fields, cells = flow(lattice, shape, storage), scattered(lattice, shape)
    job = step_job(lattice, kinds_of(lattice), collision, storage, damping=damping)
    fused, plain = (
        replace(job, fuse=fuse).iterate(*fields, cells, steps=9, **rates(job)) for fuse in ("require", "off")
    )
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


@EVERY_LATTICE
@pytest.mark.parametrize("collision", ["trt", "bgk", "les"])
@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_damped_cells_have_the_same_bits_however_they_are_chosen(
    lattice: Lattice, collision: Collision, storage: str
) -> None:
    shape = small(lattice)
    fields, cells = flow(lattice, shape, storage), scattered(lattice, shape)
    assert (cells == Cell.DAMPED).any()
    results, factors = (
        replace(job, fuse="off").iterate(*fields, cells, steps=5, **rates(job))
        for job in (
            step_job(lattice, kinds_of(lattice), collision, storage, damping=damping)
            for damping in ("results", "factors")
        )
    )
    for one, other in zip(results, factors, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "grids", "fuse"),
    [("D2Q9", ["3x1", "1x3"], "off"), ("D2Q9", ["3x1"], "require"), ("D3Q19", ["1x2x2"], "off")],
)
def test_any_ranks_and_grid_give_the_same_bits(
    tmp_path: Path, name: str, grids: list[str], fuse: str
) -> None:
    lattice = LATTICES[name]
    fields, cells = flow(lattice, small(lattice)), scattered(lattice, small(lattice))
    job = step_job(lattice, kinds_of(lattice))
    expected = replace(job, fuse="off").iterate(*fields, cells, steps=7, **rates(job))
    for grid in grids:
        ranks = int(np.prod([int(n) for n in grid.split("x")]))
        found, _ = stepped(
            tmp_path, job, [*fields, cells], 7, ranks=ranks, grid=grid, fuse=fuse, parameters=rates(job)
        )
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [kind for kind in Cell if kind not in (Cell.SLIP_Z, Cell.SLIP_Z_END)])
def test_kinds_that_do_not_occur_change_nothing(kind: Cell) -> None:
    fields = flow(D2Q9, (9, 8))
    cells = np.where(np.random.default_rng(1).random((9, 8)) < 0.3, kind, 0).astype("uint8")
    some, every = (step_job(D2Q9, kinds) for kinds in ({kind}, kinds_of(D2Q9)))
    assert {one.name for one in some.parameters} <= {one.name for one in every.parameters}
    for one, other in zip(
        some.iterate(*fields, cells, steps=3, **rates(some)),
        every.iterate(*fields, cells, steps=3, **rates(every)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_parameters_are_those_that_have_an_effect() -> None:
    def names(*arguments: Any) -> str:
        return " ".join(one.name for one in step_job(*arguments).parameters)

    assert names(D2Q9, [], "bgk") == "omega"
    assert names(D2Q9, [Cell.SOLID]) == "omega omega_minus"
    assert names(D2Q9, [Cell.MOVING], "les") == "omega omega_minus les velocity_y velocity_x"
    assert names(D3Q19, [Cell.MOVING, Cell.OUTFLOW], "bgk") == (
        "omega velocity_z velocity_y velocity_x outflow anchor"
    )


def test_slip_normal_to_z_needs_three_axes() -> None:
    with pytest.raises(UserError, match="three axes"):
        step_job(D2Q9, [Cell.SLIP_Z])


@pytest.mark.parametrize(
    ("shape", "storage", "rates", "words"),
    [
        ((4, 4, 4), "float32", {}, "D2Q9 has 2 axes"),
        ((4, 4), "float16", {}, "got float16, expected float32"),
        ((4, 4), "float32", {"omega": 2.0}, "omega is a relaxation rate"),
        ((4, 4), "float32", {"omega_minus": 0.0}, "omega_minus is a relaxation rate"),
        ((4, 4), "float32", {"omega": float("nan")}, "omega is a relaxation rate"),
    ],
)
def test_what_it_is_not_made_for_is_refused(
    shape: tuple[int, ...], storage: str, rates: dict[str, float], words: str
) -> None:
    fields = [np.zeros(shape, storage)] * D2Q9.size
    with pytest.raises(UserError, match=words):
        step_job(D2Q9, []).iterate(
            *fields, np.zeros(shape, np.uint8), steps=1, **{"omega": 1.0, "omega_minus": 1.0, **rates}
        )


@pytest.mark.parametrize("name", ["D2Q9", "D3Q19"])
def test_what_a_moving_wall_sends_to_a_wall_at_rest_stays_bounded(name: str) -> None:
    """No fluid: each returns what the other sent, and the moving one adds to it."""
    lattice = LATTICES[name]
    shape = (6,) * lattice.axes
    cells = np.full(shape, Cell.SOLID, np.uint8)
    cells[..., 2] = Cell.MOVING
    job = step_job(lattice, [Cell.SOLID, Cell.MOVING], storage=np.float16)
    fields = [np.zeros(shape, np.float16)] * lattice.size
    after = job.iterate(*fields, cells, steps=80, omega=1.0, omega_minus=1.0, velocity_x=0.2)
    assert abs(np.array(after)).max() == 2**15
