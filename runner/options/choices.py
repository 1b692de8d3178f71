"""The words of options that choose among a few: a type for checkers, and for some the words as a tuple."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

DeviceChoice = Literal["auto", "cpu", "cuda"]
Verify = Literal["off", "sample", "full"]
Checksum = Literal["off", "sample", "full"]
Boundary = Literal["reflect", "mirror", "nearest", "constant", "wrap"]
BoundarySide = str | float  # a Boundary, a constant, or the name of a parameter that is one
BoundaryAxis = BoundarySide | tuple[BoundarySide, BoundarySide]  # both ends, or before and after the array
BoundaryAxes = tuple[BoundaryAxis, ...]
# Of all inputs, axes and sides, of each axis, or of each input.
BoundaryRules = Boundary | float | BoundaryAxes | Mapping[str, BoundarySide | BoundaryAxes]
Fuse = Literal["auto", "require", "off"]  # whether a function becomes one kernel
FuseMath = Literal["strict", "fast"]
Order = Literal["C", "F"]
HaloChoice = Literal["auto", "nccl", "direct"]
Copies = Literal["auto", "one", "two"]
Colors = Literal["viridis", "inferno", "coolwarm", "gray"]

DEVICES: tuple[str, ...] = get_args(DeviceChoice)
BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)
VERIFY: tuple[str, ...] = get_args(Verify)
FUSE: tuple[str, ...] = get_args(Fuse)
COLORS: tuple[str, ...] = get_args(Colors)
