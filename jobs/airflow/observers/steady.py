"""End a run whose flow is steady: its velocity has nearly stopped changing.

The change is relative, in the L2 norm over all cells and components, since `every` steps before:

    |u(n) - u(n - every)| / |u(n)|

Sums are of whole multiples of 2^-60, to which each square is rounded once: they are the same in any order, on
any number of ranks, on CPU and GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import Lattice
from meshrun.jobs.airflow.moments import momentum
from meshrun.runner.arrays.load import read_block
from meshrun.runner.comm.api import Control
from meshrun.runner.region import Array, HostArray, Region
from meshrun.runner.steps.loop import next_multiple
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.formats.registry import Source

PART = 16 << 20  # bytes of a component that are compared at once
LIMB = 2.0**30  # a square is two whole numbers: of units of 2^-30, and of 2^-60
LARGEST = 16.0  # of a square: any value of a flow is much smaller
NAME = "velocity"  # in records and checkpoints
# The greatest relative change of a steady flow, by the dtype of its populations. By rounding alone it is
# 1.5e-7 and 3e-4.
TOLERANCES = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 1e-3}


@dataclass
class UntilSteady:
    """Stops a run whose velocity has changed by no more than `tolerance`: an `additions.StoppingRule`.

    The velocity is that of fluid cells, and 0 in others: what these hold is no velocity, and may change in
    every step of a steady flow. Inputs of the step are the populations, then the cells' kinds.

    every: steps between two comparisons. change: at the last one; None before it, NaN if a value is not
    finite or too large. reached: whether it is within the tolerance.
    """

    lattice: Lattice
    every: int
    tolerance: float
    change: float | None = field(default=None, init=False)
    reached: bool = field(default=False, init=False)
    _saved: Mapping[str, Source] = field(default_factory=dict, init=False)  # of a checkpoint
    _before: list[Array] = field(default_factory=list, init=False)  # [] before the first multiple of `every`

    @property
    def compared(self) -> str:
        return NAME

    def begin(self, stepper: Stepper) -> None:
        if stepper.done % self.every == 0:
            self._compare(stepper)
            return
        names = self._names(stepper.done)
        if all(name in self._saved for name in names):
            partition = stepper.task.partition
            self._before = [read_block(stepper.world, self._saved[name], partition) for name in names]

    def next_step(self, done: int) -> int:
        return next_multiple(done, self.every)

    def observe(self, stepper: Stepper) -> bool:
        stepper.settle()
        with stepper.phases("steady"):
            sums = self._compare(stepper)
        if sums is not None:
            self.change = relative_change(stepper.world.control, sums)
            self.reached = self.change <= self.tolerance
        return self.reached

    def end(self, stepper: Stepper) -> None:
        self._before = []

    def bytes_kept(self, region: Region) -> int:
        return 4 * self.lattice.axes * region.size

    def restore(self, saved: Mapping[str, Source]) -> None:
        self._saved = saved

    def to_save(self, done: int) -> dict[str, Array]:
        """Return the fields of this rank's cells that a checkpoint of step `done` needs, by name.

        Nothing after a multiple of `every`: what the next comparison needs follows from the state then.
        """
        if done % self.every == 0 or not self._before:
            return {}
        return dict(zip(self._names(done), self._before, strict=True))

    def _names(self, done: int) -> list[str]:
        """Return the names of the field's components after the last step, up to `done`, that is compared."""
        step = done - done % self.every
        return [f"{NAME}.{step}.{number}" for number in range(self.lattice.axes)]

    def _velocity(self, cells: Sequence[Array], xp: ModuleType) -> list[Array]:
        """Return the velocity along each axis, 0 in cells that are no fluid. cells: of each input."""
        populations, kinds = cells[: self.lattice.size], cells[self.lattice.size]
        fluid = (kinds == int(Cell.FLUID)) | (kinds == int(Cell.DAMPED))
        return [xp.where(fluid, one, np.float32(0)) for one in momentum(self.lattice, populations)]

    def _compare(self, stepper: Stepper) -> HostArray | None:
        """Keep the field as it is now; return this rank's sums for `relative_change`. None: nothing was kept
        before."""
        world, xp = stepper.world, stepper.world.xp
        own = [stepper.own(place) for place in range(len(stepper.task.fields))]
        known = bool(self._before)
        rows, *others = shape = stepper.region.shape
        if not known:
            single = np.dtype(np.float32)
            self._before = [world.backend.empty(shape, single) for _ in range(self.lattice.axes)]
        step = max(PART // max(4 * math.prod(others), 1), 1)
        sums = [xp.zeros((2, 3), np.int64)]
        for first in range(0, rows if math.prod(others) else 0, step):
            part = slice(first, first + step)
            values = self._velocity([cells[part] for cells in own], xp)
            for value, before in zip(values, self._before, strict=True):
                if known:
                    new = value.astype(np.float64)
                    sums.append(xp.stack([squares(new - before[part], xp), squares(new, xp)]))
                before[part] = value
        if not known:
            return None
        total = xp.stack(sums)
        found: HostArray = np.empty(total.shape, np.int64)
        world.backend.download(total, found)
        world.backend.synchronize()
        return found


def squares(values: Array, xp: ModuleType) -> Array:
    """Return the sum of squares of float64 values as three int64: in units of 2^-30, the rest in units of
    2^-60, and how many squares are LARGEST or more or not finite, which are left out. At most 2^28 values."""
    square = values * values
    bad = ~(square < LARGEST)
    scaled = xp.where(bad, 0, square) * LIMB
    high = xp.floor(scaled)
    low = xp.rint((scaled - high) * LIMB)
    return xp.stack([one.astype(np.int64).sum() for one in (high, low, bad)])


def relative_change(control: Control, sums: HostArray) -> float:
    """Return the norm of the change by that of the field, of all ranks; NaN if squares are left out.
    Collective.

    sums: of this rank, any number of `squares` of the change and of the field: (n, 2, 3) int64.
    """
    own = [[sum(column) for column in one.T.tolist()] for one in (sums[:, 0], sums[:, 1])]
    totals = [
        [sum(column) for column in zip(*one, strict=True)]
        for one in zip(*control.allgather(own), strict=True)
    ]
    if any(left_out for _, _, left_out in totals):
        return math.nan
    change, whole = (high * int(LIMB) + low for high, low, _ in totals)
    return math.sqrt(change / whole) if whole else (math.inf if change else 0.0)
