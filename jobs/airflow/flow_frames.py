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
from runner.report.colors import isolines

Drawn = Literal["speed", "vorticity", "pressure"]
SOLID = (70, 70, 70)
COLORS = {"speed": "viridis", "vorticity": "coolwarm", "pressure": "coolwarm"}
# Values of the last colour, in multiples of the inlet's greatest velocity u, of u / length and of u squared.
SPEED, VORTICITY, PRESSURE = 1.8, 6.0, 0.6
HERE, BESIDE = ((0, 0),), ((0, -1), (0, 1), (-1, 0), (1, 0), (0, 0))


@dataclass(frozen=True)
class FlowFrames:
    """Frames of a flow: `runner.pipeline.steps.frames.FrameContent`. In three dimensions, of a plane.

    storage: dtype of the stored populations. speed: greatest velocity of the inlet. length: of the body.
    isolines: number of lines of equal value of the quantity `lined`, between the first and the last colour's
    value. plane: axis and index of the plane of three axes that is shown. A plane across x has rows along y.
    """

    lattice: Lattice
    storage: np.dtype[Any]
    name: Drawn
    speed: float
    length: float
    isolines: int = 0
    lined: Drawn = "speed"
    plane: tuple[int, int] | None = None

    @property
    def colors(self) -> str:
        return COLORS[self.name]

    @property
    def other(self) -> tuple[int, int, int]:
        return SOLID

    @property
    def limits(self) -> tuple[float, float]:
        return self._limits(self.name)

    @cached_property
    def shifts(self) -> Sequence[tuple[int, int]]:
        return BESIDE if "vorticity" in self._shown else HERE

    @property
    def _shown(self) -> set[Drawn]:
        return {self.name, self.lined} if self.isolines else {self.name}

    def _limits(self, name: Drawn) -> tuple[float, float]:
        if name == "speed":
            return 0.0, SPEED * self.speed
        if name == "vorticity":
            return -VORTICITY * self.speed / self.length, VORTICITY * self.speed / self.length
        return -PRESSURE * self.speed**2, PRESSURE * self.speed**2

    def values(self, cells: Sequence[Array], xp: ModuleType) -> Array:
        """Return the pressure and the velocity of some cells, if needed, and whether they are solid: float32.

        cells: of each population, then their kinds. Solid cells have no velocity.
        """
        populations, kinds = cells[: self.lattice.size], cells[self.lattice.size]
        solid = kinds == int(Cell.SOLID)
        found = [pressure(populations)] if "pressure" in self._shown else []
        if self._shown != {"pressure"}:
            found += momentum(self.lattice, populations)
        return xp.stack([*(xp.where(solid, 0, one) for one in found), solid]).astype(np.float32)

    def picture(self, values: Sequence[HostArray], stride: int) -> HostArray:
        """Return the drawn quantity of each pixel, NaN in solid cells."""
        return self._quantity(self.name, values)

    def lines(self, values: Sequence[HostArray]) -> HostArray:
        """Return the pixels on isolines. At the edges of the domain are cells that are no fluid: no lines."""
        found = self._quantity(self.lined, values)
        found[[0, -1]] = found[:, [0, -1]] = np.nan
        return isolines(found, *self._limits(self.lined), self.isolines)

    def _quantity(self, name: Drawn, values: Sequence[HostArray]) -> HostArray:
        """Return a quantity of each pixel, NaN in solid cells.

        Vorticity is that in the plane of the picture, counter-clockwise, by differences of two cells.
        """
        here = values[-1]
        across = 0 if self.plane is None else self.plane[0]
        turned = self.plane is not None and across == 2  # a picture's rows are along y
        found: HostArray
        if name == "pressure":
            found = here[0].copy()
        elif name == "speed":
            found = np.sqrt(np.sum(np.square(here[-1 - self.lattice.axes : -1]), axis=0))
        else:  # rows count downwards
            left, right, above, below = values[:4]
            axes = [axis for axis in range(3) if axis != across]
            row, column = (axis - 4 for axis in axes)
            found = (left[row] - right[row]) / 2 + (below[column] - above[column]) / 2
            found = -found if turned else found
        found[here[-1] != 0] = np.nan
        return found.T if turned else found
