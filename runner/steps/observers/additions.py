"""What a solver adds to the time steps that it takes: pictures, observers, and what it does between steps.

A solver is a job of kind "job" that gets the service `simulate`. The runner knows nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from meshrun.runner.plan.halo import Slices
from meshrun.runner.region import Array, HostArray, Region, Shape
from meshrun.runner.steps.loop import StepObserver
from meshrun.runner.steps.observers.checkpoints import KeepsState
from meshrun.runner.steps.stepper import BeforeStep, Stepper
from meshrun.runner.storage.formats.registry import Source


class ValueAt(Protocol):
    """Returns the value `name` of the cells next to those of some pixels, of the pixels' shape.

    shift: offset (rows, columns) of these cells.
    """

    def __call__(self, name: str, shift: tuple[int, int]) -> Array: ...


class FrameContent(Protocol):
    """What pictures show instead of the cells of an input. All inputs have the same shape.

    name: of what is shown. limits: values of the first and the last colour. parts: names of the values of
    single cells from which pixels are computed. margin: 1 if a pixel is also computed from the cells next to
    its own, otherwise 0.
    """

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> tuple[float, float]: ...

    @property
    def parts(self) -> Sequence[str]: ...

    @property
    def margin(self) -> int: ...

    def palette(self, colors: str) -> bytes:
        """Return 256 colours of 3 bytes each. colors: name of the colour map, as for `frame_colors`."""

    def view(self, shape: Shape, most: int) -> Slices:
        """Return the cells that a picture shows, `margin` from the edges: at most `most` rows and columns.

        shape: of the inputs. Slices have a start and a stop within it; two axes at most are longer than 1.
        """

    def value(self, name: str, cells: Sequence[Array], xp: ModuleType) -> Array:
        """Return a value of some cells, float32, of the cells' shape, on the device. cells: of each input."""

    def pixels(self, at: ValueAt, xp: ModuleType) -> Array:
        """Return what `picture` needs of some pixels, float32 of shape (n, *the cells').

        Each depends only on cells within `margin`. Most are computed on the device, those at the borders of
        blocks on the host.
        """

    def picture(self, pixels: HostArray, low: float, high: float) -> HostArray:
        """Return a picture: the index of each pixel's colour, uint8 of shape (rows, columns).

        pixels: of all cells of the view, (n, *the view's). low, high: values of the first and last colour.
        """


class StoppingRule(StepObserver, Protocol):
    """Stops the steps by a criterion of the solver's own, which `until` names.

    What is compared is kept on the device between two comparisons, and in checkpoints.

    compared: name of what is compared. every: steps between two comparisons. change: relative, at the last
    one; None before it. tolerance: the greatest change at which the steps stop. reached: whether they do.
    """

    @property
    def compared(self) -> str: ...

    @property
    def every(self) -> int: ...

    @property
    def change(self) -> float | None: ...

    @property
    def tolerance(self) -> float: ...

    @property
    def reached(self) -> bool: ...

    def bytes_kept(self, region: Region) -> int:
        """Return the bytes of a rank's device that it keeps. region: the rank's cells."""

    def to_save(self, done: int) -> Mapping[str, Array]:
        """Return the fields of this rank's cells that a checkpoint of step `done` needs, by name."""

    def restore(self, saved: Mapping[str, Source]) -> None:
        """Take over the fields of a checkpoint, before `begin`; there may be none."""


@dataclass(frozen=True)
class Additions:
    """What a solver adds to the time steps of a map job, whose outputs are not written then.

    content: what frames show. observers: of the fields, besides those of the options; the first to observe.
    before_step: given the stepper, returns what to call before each step with the padded block of each input,
    on every rank; None: nothing. With it, steps are taken one by one. files: that the observers write, under
    `partial_path` until they are complete. kept: observers whose states are part of checkpoints. until: what
    stops the steps if `until` names a rule; None: no rule. smaller: what to type for smaller fields, in the
    hint of those that do not fit the memory.
    """

    content: FrameContent
    observers: Sequence[StepObserver] = ()
    before_step: Callable[[Stepper], BeforeStep] | None = None
    files: Sequence[Path] = ()
    kept: Sequence[KeepsState] = ()
    until: StoppingRule | None = None
    smaller: str = "smaller fields"
