"""Arrays that a function of whole arrays uses and does not take: what NumPy made, in the function or outside.

An array's axes meet the axes of space when it is combined with a field. Until then they are lines, below 0.
An array that is combined is a table, with a value for each position along the axes that it has; in the
program it is a further input, which each rank cuts as it cuts the fields.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.whole.array import Along, Tracing, Whole
from meshrun.runner.region import HostArray, Shape


@dataclass(frozen=True, eq=False)
class Constant:
    """A further input of a program. values: broadcast to all of space, a view."""

    name: str
    values: HostArray

    @cached_property
    def digest(self) -> str:
        """A checksum of the values, each of which counts once."""
        own = self.values[tuple(slice(None) if stride else slice(1) for stride in self.values.strides)]
        return hashlib.sha256(np.ascontiguousarray(own).tobytes()).hexdigest()[:16]


def constants_of(
    function: Callable[..., Any],
    tables: Collection[tuple[HostArray, tuple[int, ...]]],
    space: Shape,
    taken: Collection[str],
) -> list[Constant]:
    """Return the further inputs of a program. tables: with the axis of space of each of their axes.

    taken: the names of its inputs.
    """
    found: list[Constant] = []
    names = set(taken)
    for number, (root, axes) in enumerate(tables, 1):
        name = _name_of(function, root) or f"constant{number}"
        while name in names:
            name += "_"
        names.add(name)
        order = np.argsort(axes)
        shape = [1] * len(space)
        for axis, length in zip(axes, root.shape, strict=True):
            shape[axis] = length
        values = root.transpose(order).reshape(shape)
        found.append(Constant(name, np.broadcast_to(values, space)))
    return found


def _name_of(function: Callable[..., Any], array: HostArray) -> str:
    """Return the name by which a function knows an array; "" if it has none."""
    if not isinstance(function, types.FunctionType):
        return ""
    around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name, cell in around.items():
        try:
            if cell.cell_contents is array:
                return name
        except ValueError:  # a variable without a value yet
            continue
    known = (name for name in function.__code__.co_names if function.__globals__.get(name) is array)
    return next(known, "")


def as_space(recorder: Tracing, result: Any) -> Any:
    """Return a result, its lines along axes of space, and one of NumPy's as a traced array."""
    lined = isinstance(result, Whole) and any(isinstance(a, Along) and a.axis < 0 for a in result._axes)
    if not lined and not (isinstance(result, np.ndarray) and result.ndim):
        return result
    frame = recorder.filled(result.shape, 0, result.dtype)
    if not isinstance(frame, Whole):
        return result
    frame[...] = result
    return frame
