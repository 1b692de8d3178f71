"""Heat in a body of several materials: diffusion with a diffusivity and a source in each cell."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option


def _check(shape: tuple[int, ...], dtype: np.dtype[Any], /, *, dt: float = 0.1, largest: float = 1.0) -> None:
    axes = len(shape)
    if axes not in (1, 2, 3):
        raise UserError("heat spreads along 1, 2 or 3 axes", got=f"shape {shape}")
    if dtype.kind != "f":
        raise UserError(
            "heat takes floating point", got=f"dtype {dtype}", expected="floating point, such as float32"
        )
    for name, value in (("dt", dt), ("largest", largest)):
        if not (np.isfinite(value) and value > 0):
            raise UserError(f"{option(name)} is a positive number", got=f"{value:g}")
    most = 1 / (2 * axes * largest)
    if dt > most:
        rounded = float(f"{most:.3g}")
        raise UserError(
            "the time step is too long: differences between cells would grow",
            got=option("dt", dt),
            expected=f"{most:.6g} or less, with a diffusivity of up to {largest:g} along {axes} axes",
            hint=option("dt", rounded if rounded <= most else float(f"{0.99 * most:.3g}")),
        )


@meshrun.map_blocks(halo=1, boundary="reflect", feeds=("field",), check=_check)
def heat(
    field: Any, diffusivity: Any, source: Any, *, xp: ModuleType, dt: float = 0.1, largest: float = 1.0
) -> Any:
    """Take one step of the heat equation, with a diffusivity and a source in each cell.

    What flows between two cells is their difference times the harmonic mean of their diffusivities: a steady
    flow through layers of several materials is then exact (S. V. Patankar, Numerical Heat Transfer and
    Fluid Flow, 1980, section 4.2). Explicit, of first order in time and second in space. Nothing passes the
    edges; with the boundary wrap, opposite ones are joined, and with mirror or constant, heat passes them
    (the constant is also the diffusivity there). Lengths are in cells. A cell whose diffusivity is negative,
    or above `largest`, becomes NaN, which check_finite finds. The result has the field's dtype.

    dt: time of a step; stable up to 1 / (2 * axes * largest).
    largest: diffusivity of any cell, at most, in cells^2 per unit of time.
    """
    own = (slice(1, -1),) * field.ndim
    change = source[own]
    for axis in range(field.ndim):
        here = tuple(slice(None) if other == axis else slice(1, -1) for other in range(field.ndim))
        values, spreads = (xp.moveaxis(array[here], axis, 0) for array in (field, diffusivity))
        both = spreads[1:] + spreads[:-1]
        mean = 2 * spreads[1:] * spreads[:-1] / xp.where(both > 0, both, 1)
        flow = mean * (values[1:] - values[:-1])
        change = change + xp.moveaxis(flow[1:] - flow[:-1], 0, axis)
    known = (diffusivity[own] >= 0) & (diffusivity[own] <= largest)
    return xp.where(known, field[own] + dt * change, xp.nan).astype(field.dtype, copy=False)
