"""What a film of the flow shows: speed, vorticity or pressure, with solid cells in a colour of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Literal

import numpy as np

from jobs.airflow.cells import Cell
from jobs.airflow.lattice import Lattice
from jobs.airflow.moments import momentum, pressure
from runner.region import Array, HostArray

Drawn = Literal["speed", "vorticity", "pressure"]
SOLID = (70, 70, 70)
COLORS = {"speed": "viridis", "vorticity": "coolwarm", "pressure": "coolwarm"}
# Values of the last colour, in multiples of the inlet's greatest velocity u, of u / length and of u squared.
SPEED, VORTICITY, PRESSURE = 1.8, 6.0, 0.6
HERE, BESIDE = ((0, 0),), ((0, -1), (0, 1), (-1, 0), (1, 0), (0, 0))


@dataclass(frozen=True)
class FlowFrames:
    """Frames of a flow: `runner.pipeline.steps.frames.FrameContent`. In three dimensions, its middle plane.

    storage: dtype of the stored populations. speed: greatest velocity of the inlet. length: of the body.
    """

    lattice: Lattice
    storage: np.dtype[Any]
    name: Drawn
    speed: float
    length: float

    @property
    def colors(self) -> str:
        return COLORS[self.name]

    @property
    def other(self) -> tuple[int, int, int]:
        return SOLID

    @property
    def limits(self) -> tuple[float, float]:
        if self.name == "speed":
            return 0.0, SPEED * self.speed
        if self.name == "vorticity":
            return -VORTICITY * self.speed / self.length, VORTICITY * self.speed / self.length
        return -PRESSURE * self.speed**2, PRESSURE * self.speed**2

    @cached_property
    def shifts(self) -> Sequence[tuple[int, int]]:
        return BESIDE if self.name == "vorticity" else HERE

    def values(self, cells: Sequence[Array], xp: ModuleType) -> Array:
        """Return the pressure or the velocity of some cells, and whether they are solid: float32.

        cells: of each population, then their kinds. Solid cells have no velocity.
        """
        populations, kinds = cells[: self.lattice.size], cells[self.lattice.size]
        solid = kinds == int(Cell.SOLID)
        is_pressure = self.name == "pressure"
        shown = [pressure(populations)] if is_pressure else momentum(self.lattice, populations)
        return xp.stack([*(xp.where(solid, 0, one) for one in shown), solid]).astype(np.float32)

    def picture(self, values: Sequence[HostArray], stride: int) -> HostArray:
        """Return the drawn quantity of each pixel, NaN in solid cells.

        Vorticity is that in the plane of the picture, counter-clockwise, by differences of two cells.
        """
        here = values[-1]
        found: HostArray
        if self.name == "pressure":
            found = here[0]
        elif self.name == "speed":
            found = np.sqrt(np.sum(np.square(here[:-1]), axis=0))
        else:  # rows count downwards
            left, right, above, below = values[:4]
            found = (left[-3] - right[-3]) / 2 + (below[-2] - above[-2]) / 2
        found[here[-1] != 0] = np.nan
        return found
