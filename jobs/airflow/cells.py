"""Kinds of cells: what a time step does with the populations that arrive in a cell."""

from __future__ import annotations

from enum import IntEnum


class Cell(IntEnum):
    """Kind of a cell, as the uint8 array `cells` of a step holds it.

    Walls are half way between a cell that is no fluid and its fluid neighbour.
    """

    FLUID = 0
    SOLID = 1  # a wall at rest: bounce-back on the node
    MOVING = 2  # a wall with a velocity: a lid, or an inlet as a column of such cells
    OUTFLOW = 3  # a column at the last x, through which the flow leaves
    SLIP = 4  # a wall without friction, before the fluid along y: specular reflection, but sound is absorbed
    SLIP_Z = 5  # the same along z
    SLIP_END = 7  # as SLIP, behind the fluid along y
    SLIP_Z_END = 8  # the same along z
    DAMPED = 6  # fluid of viscosity 1/6, as columns before the outflow: damps eddies that would burst there
