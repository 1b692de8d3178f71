"""Density, momentum, speed and pressure of a stored state, and the state of a given density and velocity.

Populations are those of `step.step_job`: arrays of NumPy or CuPy, one for each velocity of the lattice,
float32, or float16 times 2^15. Results are float32, in lattice units. A collision changes neither density
nor momentum, so that these are the flow's. In cells that are no fluid they mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import Lattice
from meshrun.jobs.airflow.step import SCALE


def excess(populations: Sequence[Any]) -> Any:
    """Return the density less 1, with all its digits."""
    return _sum([(1, one) for one in populations])


def density(populations: Sequence[Any]) -> Any:
    """Return the density."""
    return excess(populations) + 1


def pressure(populations: Sequence[Any]) -> Any:
    """Return the pressure less that of density 1: a third of the excess of density."""
    return excess(populations) * (1 / 3)


def momentum(lattice: Lattice, populations: Sequence[Any]) -> list[Any]:
    """Return the momentum along each axis, which is the velocity of incompressible flow."""
    return [momentum_along(lattice, populations, axis) for axis in range(lattice.axes)]


def momentum_along(lattice: Lattice, populations: Sequence[Any], axis: int) -> Any:
    """Return the momentum along one axis."""
    return _sum([(e[axis], one) for e, one in zip(lattice.velocities, populations, strict=True) if e[axis]])


def speed(lattice: Lattice, populations: Sequence[Any]) -> Any:
    """Return the length of the velocity."""
    return sum(one * one for one in momentum(lattice, populations)) ** 0.5


def shown_value(lattice: Lattice, cells: Sequence[Any], name: str, xp: ModuleType) -> Any:
    """Return "pressure" or "velocity0", "velocity1", ..., 0 in solid cells; or "solid": 1 in these, else 0.

    cells: of each population, then their kinds. xp: numpy or cupy.
    """
    populations, kinds = cells[: lattice.size], cells[lattice.size]
    solid = kinds == int(Cell.SOLID)
    if name == "solid":
        return solid.astype(np.float32)
    if name == "pressure":
        return xp.where(solid, np.float32(0), pressure(populations))
    axis = int(name.removeprefix("velocity"))
    return xp.where(solid, np.float32(0), momentum_along(lattice, populations, axis))


def equilibrium(
    lattice: Lattice, excess: Any, velocity: Sequence[Any], storage: Any = np.float32
) -> list[np.ndarray[Any, Any]]:
    """Return populations in equilibrium, in C order: NumPy arrays of dtype `storage`.

    excess: the density less 1; velocity: along each axis; arrays of one shape.
    """
    return [
        population_in_equilibrium(lattice, number, excess, velocity, storage)
        for number in range(lattice.size)
    ]


def population_in_equilibrium(
    lattice: Lattice, number: int, excess: Any, velocity: Sequence[Any], storage: Any
) -> np.ndarray[Any, Any]:
    """Return one of the populations in `equilibrium`."""
    kind = np.dtype(storage)
    base = excess - 1.5 * sum(np.square(u, dtype=np.float64) for u in velocity)
    e = lattice.velocities[number]
    along = sum(part * np.asarray(u, np.float64) for part, u in zip(e, velocity, strict=True))
    value = lattice.weights[number] * (base + 3 * along + 4.5 * np.square(along))
    return np.ascontiguousarray(value * SCALE[kind]).astype(kind)


def _sum(terms: Sequence[tuple[int, Any]]) -> Any:
    """Return a sum of signed stored populations."""
    total: Any = None
    for sign, stored in terms:
        value = stored.astype(np.float32, copy=False)
        total = sign * value if total is None else total + value if sign > 0 else total - value
    scale = SCALE[np.dtype(terms[0][1].dtype)]
    return total if scale == 1 else total * (1 / scale)
