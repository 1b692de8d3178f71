"""What a file of the flow's fields holds: velocity, pressure and solid cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import Lattice
from meshrun.jobs.airflow.moments import momentum, pressure
from meshrun.jobs.airflow.observers.field_file import GridField
from meshrun.runner.region import Array

# The greatest relative change of the velocity in a steady flow. By rounding alone it is 1.5e-7 and 3e-4.
STEADY = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 1e-3}


@dataclass(frozen=True)
class FlowFields:
    """Fields of a flow: `runner.steps.observers.snapshots.FieldValues`.

    velocity: in cells a step, 0 in solid cells. pressure: less that of the air at rest, in units of the
    density * (cell / step)^2, 0 in solid cells. solid: 1 in solid cells, otherwise 0.
    """

    lattice: Lattice

    @property
    def fields(self) -> Sequence[GridField]:
        single = np.dtype(np.float32)
        return (
            GridField("velocity", single, "cells/step", self.lattice.axes),
            GridField("pressure", single, "density * (cells/step)^2"),
            GridField("solid", np.dtype(np.uint8), "1 in solid cells", steady=True),
        )

    def compute(self, name: str, cells: Sequence[Array], xp: ModuleType) -> Array:
        """Return a field of some cells. cells: of each population, then their kinds."""
        populations, kinds = cells[: self.lattice.size], cells[self.lattice.size]
        solid = kinds == int(Cell.SOLID)
        if name == "solid":
            return solid.astype(np.uint8)
        if name == "pressure":
            return xp.where(solid, 0, pressure(populations)).astype(np.float32)
        velocity = momentum(self.lattice, populations)
        return xp.stack([xp.where(solid, 0, one) for one in velocity], axis=-1).astype(np.float32)


@dataclass(frozen=True)
class FlowVelocity:
    """The velocity in cells a step, 0 in cells that are no fluid: a `SteadyField` of runner/steps/observers.

    every: steps in which the flow passes the body. storage: dtype of the stored populations.
    """

    lattice: Lattice
    every: int
    storage: np.dtype[Any]

    @property
    def name(self) -> str:
        return "velocity"

    @property
    def components(self) -> int:
        return self.lattice.axes

    @property
    def tolerance(self) -> float:
        return STEADY[self.storage]

    def components_of(self, cells: Sequence[Array], xp: ModuleType) -> Sequence[Array]:
        """Return the velocity along each axis. cells: of each population, then their kinds.

        What other cells hold is no velocity, and may change in every step of a steady flow.
        """
        populations, kinds = cells[: self.lattice.size], cells[self.lattice.size]
        fluid = (kinds == int(Cell.FLUID)) | (kinds == int(Cell.DAMPED))
        return [xp.where(fluid, one, np.float32(0)) for one in momentum(self.lattice, populations)]
