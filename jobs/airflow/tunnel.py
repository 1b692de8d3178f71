"""The wind tunnel: what kind each cell of the domain is, and the flow before the first step.

The inlet is the first column of cells, the outflow the last. Cells are computed for any part of the domain,
so that each rank makes its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import Lattice
from meshrun.jobs.airflow.moments import population_in_equilibrium
from meshrun.jobs.airflow.shapes.bodies import Body, box_around
from meshrun.jobs.airflow.step import SCALE, SLIPPING, SOUND
from meshrun.runner.region import HostArray, Region, Shape, overlap
from meshrun.runner.storage.formats.registry import ComputedSource

Sides = Literal["walls", "slip", "periodic"]
Inlet = Literal["uniform", "parabolic"]
# The greatest velocity of a parabolic inlet over its mean, by number of axes: between plates, in a duct.
GREATEST = {2: 1.5, 3: 2.25}
DAMPED = 16  # part of the width in which eddies are damped: 1/16 at most
SOUNDS = 8  # of them between the sides, from the lowest on, are looked for in the lift
ADAPT = 2.0  # steps for each cell across the flow in which the sides follow a change of pressure
# Of the eddy around the body before the first step, which starts the shedding of vortices: its greatest
# velocity over that of the inlet, and its radius over the body's length.
EDDY_SPEED, EDDY_RADIUS = 0.1, 2.0


@dataclass(frozen=True)
class Tunnel:
    """A body in a channel.

    sides: what bounds the flow above and below, in three dimensions also in front and behind: walls, walls
    without friction, or nothing, where what leaves at one side enters at the other. inlet: the profile of
    its velocity. speed: mean velocity of the inlet, in cells a step. storage: dtype of populations.
    """

    body: Body
    lattice: Lattice
    sides: Sides
    inlet: Inlet
    speed: float
    storage: np.dtype[Any]

    @property
    def shape(self) -> Shape:
        return self.body.shape

    @property
    def greatest(self) -> float:
        """The greatest velocity of the inlet."""
        return self.speed * (GREATEST[self.lattice.axes] if self.inlet == "parabolic" else 1)

    @property
    def damped(self) -> int:
        """Number of columns before the outflow in which eddies are damped."""
        return max(min(self.shape[-1] // DAMPED, round(self.body.length)), 1)

    @property
    def undamped(self) -> int:
        """The column up to which all neighbours of a cell are neither damped nor outflow."""
        return self.shape[-1] - 2 - self.damped

    @property
    def adapt(self) -> float:
        """Rate at which the sides follow the pressure: slowly by the period of the lowest sound across the
        flow, so that they absorb it."""
        return min(1 / (ADAPT * max(self.shape[:-1])), 1.0)

    @property
    def sounds(self) -> list[float]:
        """Frequencies of sound that stands between the sides, times the body's length over the speed.

        n waves fit twice the height between walls, or half of them between periodic sides. The flow carries
        sound along. Sides without friction absorb it: none.
        """
        if self.sides == "slip":
            return []
        height, waves = (self.shape[-2], 2) if self.sides == "periodic" else (self.shape[-2] - 2, 1)
        lowest = math.sqrt(SOUND**2 - self.speed**2) / (2 * height) * self.body.length / self.speed
        return [number * lowest for number in range(waves, SOUNDS + 1, waves)]

    @cached_property
    def kinds(self) -> frozenset[Cell]:
        """Kinds of cells that occur."""
        found = {Cell.FLUID, Cell.MOVING, Cell.DAMPED, Cell.OUTFLOW}
        if type(self.body) is not Body or self.sides == "walls":
            found.add(Cell.SOLID)
        if self.sides == "slip":
            found |= {
                kind for kinds, axis in SLIPPING.items() if axis >= -self.lattice.axes for kind in kinds
            }
        return frozenset(found)

    @cached_property
    def _solid(self) -> dict[Region, HostArray]:
        """Solid cells of the parts that were asked for: all populations ask for the same."""
        return {}

    def cells(self, region: Region, out: HostArray | None = None) -> HostArray:
        """Return the kind of each cell of `region`, as uint8. out: filled and returned, here and below."""
        found = np.empty(region.shape, np.uint8) if out is None else out
        found[...] = int(Cell.FLUID)
        last = self.shape[-1] - 1
        self._set(found, region, -1, (0,), Cell.MOVING)
        self._set(found, region, -1, range(last - self.damped, last), Cell.DAMPED)
        self._set(found, region, -1, (last,), Cell.OUTFLOW)
        if self.sides != "periodic":
            for kinds, axis in reversed(SLIPPING.items()):
                if axis >= -self.lattice.axes:
                    for place, kind in zip((0, self.shape[axis] - 1), kinds, strict=True):
                        self._set(
                            found, region, axis, (place,), Cell.SOLID if self.sides == "walls" else kind
                        )
        self._set_solid(found, region, int(Cell.SOLID))
        return found

    def _set_solid(self, found: HostArray, region: Region, value: int) -> None:
        """Set the values of the body's cells. found: of `region`."""
        part = overlap(region, self.body.box)
        inside = part.slices_in(region)
        if part not in self._solid:
            self._solid[part] = self.body.solid(part)
        found[inside][self._solid[part]] = value

    def _set(self, found: HostArray, region: Region, axis: int, places: Iterable[int], kind: int) -> None:
        for place in places:
            if region.start[axis] <= place < region.stop[axis]:
                index: list[Any] = [slice(None)] * found.ndim
                index[axis] = place - region.start[axis]
                found[tuple(index)] = int(kind)

    def wind(self, region: Region, out: HostArray | None = None) -> HostArray:
        """Return the velocity of the inlet at each cell of `region`, over its greatest: float32."""
        found = np.empty(region.shape, np.float32) if out is None else out
        found[...] = self._profile(region)
        return found

    def _profile(self, region: Region) -> HostArray:
        """Return the same as an array that can be broadcast to the region."""
        found = np.ones((1,) * len(region.shape))
        if self.inlet == "parabolic":
            for axis in range(self.lattice.axes - 1):
                edge = 0 if self.sides == "periodic" else 1  # a wall is half way between it and the fluid
                height = self.shape[axis] - 2 * edge
                place = np.arange(region.start[axis], region.stop[axis]) - edge + 0.5
                part = np.clip(4 * place * (height - place) / height**2, 0, None)
                found = found * part.reshape([-1 if at == axis else 1 for at in range(found.ndim)])
        return found

    def population(self, number: int, region: Region, out: HostArray | None = None) -> HostArray:
        """Return a population of `region` before the first step: in equilibrium with the wind and an eddy.

        The wind g is that of the place across the flow: its equilibrium is g a + g^2 b, with numbers a and b.
        """
        lattice = self.lattice
        g = self._profile(region) * self.greatest
        weight = lattice.weights[number] * SCALE[self.storage]
        e = lattice.velocities[number]
        a, b = 3 * weight * e[-1], weight * (4.5 * e[-1] ** 2 - 1.5)
        found = np.empty(region.shape, self.storage) if out is None else out
        found[...] = g * a + g**2 * b
        if (part := overlap(region, self._eddy_box)).size:
            inside = part.slices_in(region)
            wind = np.broadcast_to(g, region.shape)[inside]
            across, along = self._eddy(part)
            velocity = [np.zeros((1,) * wind.ndim)] * (lattice.axes - 2) + [across, wind + along]
            found[inside] = population_in_equilibrium(lattice, number, 0.0, velocity, self.storage)
        self._set_solid(found, region, 0)
        if number == 0 and self.sides == "slip":  # the mean that SLIP cells hold, of an undisturbed flow
            for axis in range(-lattice.axes, -1):
                self._set(found, region, axis, (0, self.shape[axis] - 1), 0)
        return found

    @cached_property
    def _eddy_middle(self) -> HostArray:
        """Row and column of the middle of the body."""
        found: HostArray = np.add(self.body.box.start, self.body.box.stop)[-2:] / 2 - 0.5
        return found

    @cached_property
    def _eddy_radius(self) -> float:
        """Radius of the eddy. It ends before the sides: a velocity across them would be sound. 0: no body."""
        if type(self.body) is Body:
            return 0.0
        room = np.minimum(self._eddy_middle - 1, np.array(self.shape[-2:]) - 2 - self._eddy_middle)
        return float(np.clip(room.min(), 0, EDDY_RADIUS * self.body.length))

    @cached_property
    def _eddy_box(self) -> Region:
        """Cells that the eddy reaches."""
        radius = self._eddy_radius
        return box_around(self._eddy_middle - radius, self._eddy_middle + radius, self.shape)

    def _eddy(self, region: Region) -> tuple[HostArray, HostArray]:
        """Return the velocity of the eddy along y and x: (rows, columns).

        It has no divergence, as it is that of a stream function: (1 - (r / radius)^2)^3, times a number.
        """
        rows, columns = (
            (np.arange(first, stop) - middle) / self._eddy_radius
            for first, stop, middle in zip(
                region.start[-2:], region.stop[-2:], self._eddy_middle, strict=True
            )
        )
        y, x = np.meshgrid(rows, columns, indexing="ij")
        # x (1 - x^2)^2 is greatest, 16 / 25 / sqrt(5), at x = 1 / sqrt(5).
        turn = EDDY_SPEED * self.greatest * math.sqrt(5) * 25 / 16 * np.maximum(1 - x**2 - y**2, 0) ** 2
        return turn * x, -turn * y

    def sources(self, description: dict[str, Any]) -> list[ComputedSource]:
        """Return the inputs of the step. description: plain values that tell this tunnel from others."""

        def one(name: str, dtype: np.dtype[Any], fill: Callable[..., HostArray]) -> ComputedSource:
            return ComputedSource(self.shape, dtype, fill, {**description, "array": name})

        found = [
            one(f"f{number}", self.storage, partial(self.population, number))
            for number in range(self.lattice.size)
        ]
        found.append(one("cells", np.dtype(np.uint8), self.cells))
        if self.inlet == "parabolic":
            found.append(one("wind", np.dtype(np.float32), self.wind))
        return found


@dataclass(frozen=True)
class Cavity(Tunnel):
    """A closed box of air at rest, whose top moves along x with the speed and drives it. No body."""

    @property
    def sounds(self) -> list[float]:
        return []

    @cached_property
    def kinds(self) -> frozenset[Cell]:
        return frozenset({Cell.FLUID, Cell.SOLID, Cell.MOVING})

    def cells(self, region: Region, out: HostArray | None = None) -> HostArray:
        found = np.empty(region.shape, np.uint8) if out is None else out
        found[...] = int(Cell.FLUID)
        self._set(found, region, -2, (0,), Cell.MOVING)
        for axis, length in enumerate(self.shape):
            ends = (length - 1,) if axis == self.lattice.axes - 2 else (0, length - 1)
            self._set(found, region, axis, ends, Cell.SOLID)
        return found

    def population(self, number: int, region: Region, out: HostArray | None = None) -> HostArray:
        found = np.empty(region.shape, self.storage) if out is None else out
        found[...] = 0
        return found
