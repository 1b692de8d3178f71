"""What a film of the flow shows: speed, vorticity or pressure, with solid cells in a colour of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Literal

import numpy as np

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import Lattice
from meshrun.jobs.airflow.moments import momentum_along, pressure
from meshrun.runner.region import Array, HostArray
from meshrun.runner.report.colors import isolines
from meshrun.runner.steps.observers.frames import ValueAt

Drawn = Literal["speed", "vorticity", "pressure"]
SOLID = (70, 70, 70)
COLORS = {"speed": "viridis", "vorticity": "coolwarm", "pressure": "coolwarm"}
# Values of the last colour, in multiples of the inlet's greatest velocity u, of u / length and of u squared.
SPEED, VORTICITY, PRESSURE = 1.8, 6.0, 0.6
LEFT, RIGHT, ABOVE, BELOW, HERE = (0, -1), (0, 1), (-1, 0), (1, 0), (0, 0)


@dataclass(frozen=True)
class FlowFrames:
    """Frames of a flow: `runner.steps.observers.frames.FrameContent`. In three dimensions, of a plane.

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

    @property
    def margin(self) -> int:
        return 1 if "vorticity" in self._shown else 0

    @cached_property
    def parts(self) -> Sequence[str]:
        pressure = ["pressure"] if "pressure" in self._shown else []
        return [*pressure, *(self._velocities if set(self._shown) != {"pressure"} else []), "solid"]

    @property
    def _shown(self) -> list[Drawn]:
        """Quantities of a pixel: the drawn one first, the one that has lines last."""
        return [self.name, self.lined] if self.isolines and self.lined != self.name else [self.name]

    @property
    def _velocities(self) -> list[str]:
        return [f"velocity{axis}" for axis in range(self.lattice.axes)]

    def _limits(self, name: Drawn) -> tuple[float, float]:
        if name == "speed":
            return 0.0, SPEED * self.speed
        if name == "vorticity":
            return -VORTICITY * self.speed / self.length, VORTICITY * self.speed / self.length
        return -PRESSURE * self.speed**2, PRESSURE * self.speed**2

    def value(self, name: str, cells: Sequence[Array], xp: ModuleType) -> Array:
        """Return a value of some cells: pressure or velocity, 0 in solid cells, or whether they are solid.

        cells: of each population, then their kinds.
        """
        populations, kinds = cells[: self.lattice.size], cells[self.lattice.size]
        solid = kinds == int(Cell.SOLID)
        if name == "solid":
            return solid.astype(np.float32)
        if name == "pressure":
            return xp.where(solid, np.float32(0), pressure(populations))
        axis = self._velocities.index(name)
        return xp.where(solid, np.float32(0), momentum_along(self.lattice, populations, axis))

    def pixels(self, at: ValueAt, xp: ModuleType) -> Array:
        """Return each quantity that is shown, NaN in solid cells: (quantities, *pixels)."""
        solid = at("solid", HERE) != 0
        return xp.stack(
            [xp.where(solid, np.float32(np.nan), self._quantity(one, at, xp)) for one in self._shown]
        )

    def picture(self, pixels: HostArray) -> HostArray:
        """Return the drawn quantity of each pixel, NaN in solid cells."""
        return self._as_seen(pixels[0])

    def lines(self, pixels: HostArray) -> HostArray:
        """Return the pixels on isolines. At the edges of the domain are cells that are no fluid: no lines."""
        found = self._as_seen(pixels[-1]).copy()
        found[[0, -1]] = found[:, [0, -1]] = np.nan
        return isolines(found, *self._limits(self.lined), self.isolines)

    def _as_seen(self, pixels: HostArray) -> HostArray:
        found: HostArray = pixels.T if self._turned else pixels
        return found

    @property
    def _across(self) -> int:
        """Axis across the plane that is shown, of (z, y, x)."""
        return 0 if self.plane is None else self.plane[0]

    @property
    def _turned(self) -> bool:
        """Whether the picture's rows are along the last axis shown: y, of a plane across x."""
        return self.plane is not None and self._across == 2

    def _quantity(self, name: Drawn, at: ValueAt, xp: ModuleType) -> Array:
        """Return a quantity of each pixel.

        Vorticity is that in the plane of the picture, counter-clockwise, by differences of two cells.
        """
        if name == "pressure":
            return at("pressure", HERE)
        if name == "speed":
            return xp.sqrt(sum(xp.square(at(one, HERE)) for one in self._velocities))
        shown = [axis for axis in range(3) if axis != self._across]
        row, column = (self._velocities[axis - 3] for axis in shown)
        # Rows count downwards.
        found = (at(row, LEFT) - at(row, RIGHT)) / 2 + (at(column, BELOW) - at(column, ABOVE)) / 2
        return -found if self._turned else found
