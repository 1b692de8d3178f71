"""Cells that are not finite: where the first one is."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from meshrun.runner.region import Array, Shape

if TYPE_CHECKING:
    from meshrun.runner.world.world import Rank, World

NotFinite = tuple[str, list[int], str]  # a field's name, a cell's index in the whole field, and its value


def not_finite(xp: ModuleType, name: str, cells: Array, start: Shape) -> NotFinite | None:
    """Return the first cell that is not finite; None if there is none.

    name: of the field. cells: some of it; start: of these, in the whole field.
    """
    if not has_infinities(cells):
        return None
    finite = xp.isfinite(cells)
    if bool(finite.all()):
        return None
    first = tuple(int(i) for i in np.unravel_index(int((~finite).argmax()), cells.shape))
    return name, [i + a for i, a in zip(first, start, strict=True)], str(cells[first])


def first_nan(xp: ModuleType, cells: Array) -> list[int] | None:
    """Return the index of the first cell that is a NaN; None if there is none."""
    if not has_infinities(cells):
        return None
    nan = xp.isnan(cells)
    return [int(at) for at in np.unravel_index(int(nan.argmax()), cells.shape)] if bool(nan.any()) else None


def first_of_ranks(world: World, own: NotFinite | None) -> tuple[Rank, NotFinite] | None:
    """Return the first rank that has found a cell, and what it has found; None if no rank has. Collective."""
    found = zip(world.ranks, world.control.allgather(own), strict=True)
    return next(((rank, one) for rank, one in found if one is not None), None)


def has_infinities(cells: Array) -> bool:
    """Return whether there are cells whose dtype has values that are not finite."""
    return cells.size > 0 and cells.dtype.kind in "fc"
