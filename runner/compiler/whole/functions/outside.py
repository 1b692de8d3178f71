"""NumPy's arrays among traced ones, from outside of a function or made in it. They are not to be written.

An array's axes meet the axes of space when it is combined with a field. Until then they are lines, below 0.
An array that is combined is a table, with a value for each position along the axes that it has; in the
program it is a further input, a `Constant`, which each rank cuts as it cuts the fields. One of few entries
can also be looked up by cells of integers: table[labels].
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import MOST_COMPONENTS, TracedArray
from meshrun.runner.compiler.trace.functions.composites import MOST_ENTRIES, take
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import OUTSIDE, StepTape, taken_row
from meshrun.runner.region import HostArray, Shape
from meshrun.runner.report.units import bytes_text


class LookupTable(np.ndarray[Any, Any]):
    """An array whose index may be the number of the step, or an array of cells if it has few entries."""

    _tape: StepTape | None = None

    def __array_finalize__(self, source: Any) -> None:
        self._tape = getattr(source, "_tape", None)

    def __getitem__(self, index: Any) -> Any:
        row = None if self._tape is None else taken_row(self._tape, OUTSIDE, self, index)
        if row is not None:
            return row
        first, *others = index if isinstance(index, tuple) else (index,)
        if isinstance(first, TracedArray) and _has_few_entries(self):
            part = (slice(None), *others)
            entries = np.asarray(self)[part]
            return take(entries, first, 0)
        return super().__getitem__(index)


def as_table(array: np.ndarray[Any, Any], tape: StepTape) -> np.ndarray[Any, Any]:
    """Return an array, as a table if it has few entries."""
    if not _has_few_entries(array):
        return array
    table = array.view(LookupTable)
    table._tape = tape
    return table


def _has_few_entries(array: np.ndarray[Any, Any]) -> bool:
    return bool(array.ndim) and len(array) <= MOST_ENTRIES and array.size <= len(array) * MOST_COMPONENTS


def protected(array: np.ndarray[Any, Any], tape: StepTape) -> np.ndarray[Any, Any]:
    """Return a view that cannot be written, of an array from outside of the function."""
    view = array.view(LookupTable)
    view._tape, view.flags.writeable = tape, False
    return view


LARGEST_WHOLE = 64 << 20  # bytes of an array from outside of a function that every rank may hold whole


@dataclass(frozen=True)
class Line:
    """How a line meets an axis.

    axis: of space; below 0: another line. Element number `first` + `step` * j is at place
    `there` + `step_there` * j. length: the number of elements.
    """

    axis: int
    first: int
    step: int
    there: int
    step_there: int
    length: int

    @property
    def further(self) -> int:
        """The number of the element at place 0, where both have the same step."""
        return self.first - self.there


def root_of(part: HostArray) -> tuple[HostArray, list[int]]:
    """Return the array of which a part is a slice, and where the part begins; the part itself for others.

    Slices of one array, such as those of neighbours, are then one table.
    """
    root, alone = part, (part, [0] * part.ndim)
    while isinstance(root.base, np.ndarray):
        root = root.base
    if root.ndim != part.ndim or root.dtype != part.dtype:
        return alone
    if root.strides != part.strides or min(root.strides, default=1) <= 0:
        return alone
    left = part.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    starts = [0] * part.ndim
    for axis in sorted(range(part.ndim), key=lambda number: -root.strides[number]):
        starts[axis], left = divmod(left, root.strides[axis])
    inside = (start + n <= most for start, n, most in zip(starts, part.shape, root.shape, strict=True))
    return (root, starts) if left == 0 and all(inside) else alone


def spread(root: HostArray, axis: int, start: int, line: Line, length: int) -> HostArray:
    """Return a table whose elements along an axis are at the places of space that they have.

    start: element of the table with which the line begins. length: of space.
    """
    shape: Shape = (*root.shape[:axis], length, *root.shape[axis + 1 :])
    found, elements = np.zeros(shape, root.dtype), np.arange(line.length)
    taken = np.take(root, start + line.first + line.step * elements, axis)
    np.moveaxis(found, axis, 0)[line.there + line.step_there * elements] = np.moveaxis(taken, axis, 0)
    return found


@dataclass
class Tables:
    """The arrays that a function combines with fields. made: those made of others, by what they are."""

    roots: list[HostArray] = field(default_factory=list)
    made: dict[Any, HostArray] = field(default_factory=dict)

    def number_of(self, root: HostArray) -> int:
        """Return the number of an array, which becomes a table if it is none yet."""
        number = next((n for n, one in enumerate(self.roots) if one is root), len(self.roots))
        if number == len(self.roots):
            self.roots.append(root)
        return number


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


def check_sizes(
    function: Callable[..., Any],
    tables: Collection[tuple[HostArray, tuple[int, ...]]],
    space: Shape,
    line: int,
) -> None:
    """Raise NotTraceable for an array that is too large to be held whole, and that cannot be cut.

    tables: as of `constants_of`. line: of the user's file, where one is used.
    """
    for root, axes in tables:
        if root.nbytes > LARGEST_WHOLE and len(axes) < len(space):
            shape = "x".join(map(str, root.shape))
            reason = NotTraceable(
                f"uses {_name_of(function, root) or 'an array'} of shape {shape} from outside, "
                f"{bytes_text(root.nbytes)} that every rank would hold whole, and which cannot be cut: "
                f"the fields have {len(space)} axes",
                "an input of the function instead",
            )
            reason.line = line
            raise reason


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
