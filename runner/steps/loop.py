"""The loop over time steps, and observers of the fields: convergence, values that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from meshrun.runner.arrays.finite import NotFinite, first_of_ranks, has_infinities, not_finite
from meshrun.runner.comm.api import Control
from meshrun.runner.errors import RunError
from meshrun.runner.region import Array
from meshrun.runner.spelling import option
from meshrun.runner.steps.kernel_trial import measuring
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.world import World

NEVER = 1 << 62


class StepObserver(Protocol):
    """Observes the fields after some steps. Every method is collective."""

    def begin(self, stepper: Stepper) -> None:
        """Prepare; called before the first step."""

    def next_step(self, done: int) -> int:
        """Return the step, after `done`, after which to call `observe`."""

    def observe(self, stepper: Stepper) -> bool:
        """Observe the fields after a step that `next_step` returned; return whether to stop."""

    def end(self, stepper: Stepper) -> None:
        """Complete; called after the last step."""


def take_steps(stepper: Stepper, steps: int, observers: Sequence[StepObserver]) -> int:
    """Take steps until `steps` are done or an observer stops the loop; return how many are done.

    The observers after one that stops the loop do not observe its step.
    """
    if stepper.world.recorder is not None:
        stepper.world.recorder.plan_steps(steps - stepper.done)
    for observer in observers:
        observer.begin(stepper)
    stopped = False
    with measuring(stepper) if stepper.rivals else nullcontext() as trial:
        while stepper.done < steps and not stopped:
            wanted = [observer.next_step(stepper.done) for observer in observers]
            target = min([steps, *wanted])
            if trial is not None:
                trial.take(target - stepper.done, steps - stepper.done)
            stepper.advance(target - stepper.done, last=target == steps, ahead=steps - stepper.done)
            for observer, step in zip(observers, wanted, strict=True):
                if step == target and not stopped:
                    stopped = observer.observe(stepper)
        stepper.settle()
    for observer in observers:
        observer.end(stepper)
    return stepper.done


def next_multiple(done: int, every: int) -> int:
    """Return the smallest multiple of `every` that is larger than `done`."""
    return (done // every + 1) * every


@dataclass
class Until:
    """Stop when no cell of the fed inputs `fields` changes by more than `tolerance` in one step.

    every: steps between two checks. change: the largest change at the last check; None before it.
    """

    tolerance: float
    every: int
    fields: Sequence[str]
    change: float | None = field(default=None, init=False)
    reached: bool = field(default=False, init=False)
    _before: list[Array] = field(default_factory=list, init=False)

    def begin(self, stepper: Stepper) -> None:
        self._before = self._copies(stepper) if self._is_next(stepper) else []

    def next_step(self, done: int) -> int:
        # The fields before the checked step are copied: a function may change its blocks.
        check = next_multiple(done, self.every)
        return check - 1 if done < check - 1 else check

    def observe(self, stepper: Stepper) -> bool:
        if stepper.done % self.every == 0 and self._before:
            pairs = zip(self._own(stepper), self._before, strict=True)
            self.check(stepper.world.control, [largest_change(new, old) for new, old in pairs])
        self._before = self._copies(stepper) if self._is_next(stepper) else []
        return self.reached

    def check(self, control: Control, changes: Sequence[float]) -> None:
        """Note the largest change of all ranks, and whether it is within the tolerance. Collective."""
        every = [change for one in control.allgather(list(changes)) for change in one]
        self.change = math.nan if any(map(math.isnan, every)) else max(every, default=0.0)
        self.reached = self.change <= self.tolerance

    def _is_next(self, stepper: Stepper) -> bool:
        """Return whether the next step is to be checked."""
        return (stepper.done + 1) % self.every == 0

    def _own(self, stepper: Stepper) -> list[Array]:
        names = [field.name for field in stepper.task.fields]
        return [stepper.own(place) for place in stepper.fed if names[place] in self.fields]

    def _copies(self, stepper: Stepper) -> list[Array]:
        return [cells.copy() for cells in self._own(stepper)]

    def end(self, stepper: Stepper) -> None:
        self._before = []


def largest_change(new: Array, old: Array) -> float:
    """Return the largest magnitude of a difference of two arrays of one shape and dtype; nan if one is.

    An infinity that stays has not changed.
    """
    if new.size == 0:
        return 0.0
    if new.ndim == 0:  # a value
        new, old = new.reshape(1), old.reshape(1)
    if new.dtype.kind == "b":
        return float((new != old).any())
    if new.dtype.kind in "iu":  # unsigned, the difference of any two integers is exact
        kind = np.dtype(f"u{new.dtype.itemsize}")
        falls, change = new < old, new.astype(kind) - old.astype(kind)
        change[falls] = 0 - change[falls]
        return float(change.max())
    with np.errstate(invalid="ignore", over="ignore"):
        change = abs(new - old)
    change[new == old] = 0
    return float(change.max())


@dataclass
class CheckFinite:
    """Raise RunError on every rank for a value that is not finite. every: steps between two checks."""

    every: int

    def begin(self, stepper: Stepper) -> None:
        self._check(stepper)

    def next_step(self, done: int) -> int:
        return next_multiple(done, self.every)

    def observe(self, stepper: Stepper) -> bool:
        self._check(stepper)
        return False

    def end(self, stepper: Stepper) -> None:
        self._check(stepper)

    def _check(self, stepper: Stepper) -> None:
        # One wait for the device, not one per field.
        xp, wrong = stepper.world.xp, list[int]()
        numbers = [place for place in stepper.fed if has_infinities(stepper.own(place))]
        if numbers:
            finite = xp.stack([xp.isfinite(stepper.own(place)).all() for place in numbers]).tolist()
            wrong = [place for place, good in zip(numbers, finite, strict=True) if not good]
        found: NotFinite | None = None
        for place in wrong[:1]:
            name, start = stepper.task.fields[place].name, stepper.plans[place].region.start
            found = not_finite(xp, name, stepper.own(place), start)
        check_finite(stepper.world, found, after(stepper.done))


def after(done: int) -> str:
    """Return when fields were looked at, after so many steps."""
    return f"after step {done:,}" if done else "before the first step"


def check_finite(world: World, found: NotFinite | None, when: str) -> None:
    """Raise RunError on every rank if one has found a cell that is not finite. Collective.

    when: this was, for the message.
    """
    first = first_of_ranks(world, found)
    if first is not None:
        rank, (name, cell, value) = first
        raise RunError(
            f"{name} is not finite {when}: cell {cell}, on [{rank}]",
            got=value,
            expected=f"finite values ({option('check_finite')})",
            everywhere=True,
        )
