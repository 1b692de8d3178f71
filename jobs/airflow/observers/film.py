"""What a film of the flow shows: speed, vorticity or pressure, with solid cells in a colour of their own.

Isolines of one of them may lie over the picture. Of three axes it is a plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Literal

import numpy as np

from meshrun.jobs.airflow.lattice import Lattice
from meshrun.jobs.airflow.moments import shown_value
from meshrun.runner.options.choices import COLORS as COLOR_MAPS
from meshrun.runner.plan.halo import Slices
from meshrun.runner.region import Array, HostArray, Shape
from meshrun.runner.report.colors import indices, palette
from meshrun.runner.steps.observers.additions import ValueAt

Drawn = Literal["speed", "vorticity", "pressure"]
SOLID = (70, 70, 70)
COLORS = {"speed": "viridis", "vorticity": "coolwarm", "pressure": "coolwarm"}
# Values of the last colour, in multiples of the inlet's greatest velocity u, of u / length and of u squared.
SPEED, VORTICITY, PRESSURE = 1.8, 6.0, 0.6
LINE = 254  # index of the colour of isolines: in place of the map's last one
BLACK, WHITE = bytes((16, 16, 16)), bytes((255, 255, 255))
LEFT, RIGHT, ABOVE, BELOW, HERE = (0, -1), (0, 1), (-1, 0), (1, 0), (0, 0)


@dataclass(frozen=True)
class FlowFrames:
    """Frames of a flow: `runner.steps.observers.additions.FrameContent`.

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
        """Return a value of some cells; as `shown_value`."""
        return shown_value(self.lattice, cells, name, xp)

    def pixels(self, at: ValueAt, xp: ModuleType) -> Array:
        """Return each quantity that is shown, NaN in solid cells: (quantities, *pixels)."""
        solid = at("solid", HERE) != 0
        return xp.stack(
            [xp.where(solid, np.float32(np.nan), self._quantity(one, at, xp)) for one in self._shown]
        )

    def palette(self, colors: str) -> bytes:
        """Return the colours: those of the quantity, unless another map is named, and one of solid cells.

        Isolines take the map's last colour: black on a map that is light in the middle, else white.
        """
        name = COLORS[self.name] if colors == COLOR_MAPS[0] else colors
        found = palette(name, SOLID)
        if not self.isolines:
            return found
        line = BLACK if name == "coolwarm" else WHITE
        return found[: 3 * LINE] + line + found[3 * (LINE + 1) :]

    def view(self, shape: Shape, most: int) -> Slices:
        """Return the cells that a picture shows: every so many along two axes, of one plane of three axes."""
        across, index = self.plane or (0, shape[0] // 2)
        fixed = across if len(shape) == 3 else None
        stride = max(-(-max(n for axis, n in enumerate(shape) if axis != fixed) // most), 1)
        return tuple(
            slice(index, index + 1, 1) if axis == fixed else slice(self.margin, n - self.margin, stride)
            for axis, n in enumerate(shape)
        )

    def picture(self, pixels: HostArray, low: float, high: float) -> HostArray:
        """Return the colours of the drawn quantity, with isolines over it.

        At the edges of the domain are cells that are no fluid: no lines are there.
        """
        if self.lattice.axes == 3:
            pixels = pixels.take(0, 1 + self._across)
        if self._turned:
            pixels = pixels.swapaxes(1, 2)
        picture = indices(pixels[0], low, high)
        if self.isolines:
            lined = pixels[-1].copy()
            lined[[0, -1]] = lined[:, [0, -1]] = np.nan
            draw_lines(picture, isolines(lined, *self._limits(self.lined), self.isolines))
        return picture

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


def isolines(values: HostArray, low: float, high: float, count: int) -> HostArray:
    """Return the pixels on `count` lines of equal value, evenly spaced between `low` and `high`: bool.

    values: (rows, columns). A pixel is on a line that passes between it and the pixel below or to the right.
    There are no lines at values that are not finite.
    """
    with np.errstate(invalid="ignore"):
        band = np.floor((values.astype(np.float64) - low) * ((count + 1) / (high - low)))
        band = np.clip(band, 0, count)
    found = np.zeros(values.shape, bool)
    finite = np.isfinite(band)
    found[:-1] |= (band[:-1] != band[1:]) & finite[:-1] & finite[1:]
    found[:, :-1] |= (band[:, :-1] != band[:, 1:]) & finite[:, :-1] & finite[:, 1:]
    return found


def draw_lines(picture: HostArray, lines: HostArray) -> None:
    """Draw lines into a picture of indices of colours, whose palette has one for them. lines: bool."""
    picture[picture == LINE] = LINE - 1
    picture[lines] = LINE
