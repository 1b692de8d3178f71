"""What a file of the flow's fields holds: velocity, pressure and solid cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from jobs.airflow.cells import Cell
from jobs.airflow.lattice import Lattice
from jobs.airflow.moments import momentum, pressure
from runner.region import Array
from runner.storage.field_file import GridField


@dataclass(frozen=True)
class FlowFields:
    """Fields of a flow: `runner.pipeline.steps.snapshots.FieldValues`.

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
