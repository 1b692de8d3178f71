"""What kernels of several steps read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from meshrun.runner.region import Array

if TYPE_CHECKING:
    from meshrun.runner.compiler.cpp import host
    from meshrun.runner.compiler.cuda.steps.layout import Axis, Sending

Feeds = Sequence[int | None]
Rows = tuple[int, int]


class StepState(Protocol):
    """The two blocks of each field of which steps read one and write the other, the spare one.

    feeds: for each output, the number of the input that it feeds. fed: the inputs that are fed. first:
    position of the first own cell in the whole array, per axis. scalars: for a kernel that takes some, a row
    of slots for each step of one kernel (`TaskKernel`). bound: what `DeviceKernel.advance` has bound to these
    blocks. recorded: the rows of series that the steps compute (`steps.recorded`); None: none.
    """

    feeds: list[int | None]
    fed: list[int]
    first: Sequence[int]
    scalars: Array | None
    bound: dict[Any, Callable[[], None]]
    recorded: Any

    def swap(self) -> None:
        """Swap the two blocks of each fed input."""

    def both(self) -> tuple[list[Array], list[Array]]:
        """Return the block of each input that the next step reads, and the one that it writes."""

    def rows(self, more: int) -> Rows:
        """Return the rows that `more` steps to follow need, counted from the first own row; none: (0, 0)."""

    # For kernels that read own cells and what is valid beside them

    def inputs(self, rows: Rows) -> list[Array]:
        """Return these rows of each input's block; views."""

    def outputs(self, rows: Rows) -> list[Array]:
        """Return these rows of the spare block that each output writes; views."""

    def axes(self, rows: Rows, valid: int) -> list[Axis]:
        """Return what lies beside these rows along each axis. valid: steps for which the halo suffices."""

    def sending(self) -> Sending | None:
        """Return how the kernel itself exchanges the halos of what it writes; None if it does not."""

    # For kernels that read whole blocks, with the cells beyond the array

    def fill_beyond(self) -> None:
        """Give the cells beyond the array the value of a constant boundary, in both blocks of each input."""

    def first_cells(self) -> list[list[int]]:
        """Return the index of each block's first own cell, per axis."""

    def box(self, more: int) -> host.Box:
        """Return the cells that a step computes after which `more` follow, counted from the first own one."""

    def edge_cells(self, place: int) -> list[host.Copy]:
        """Return which own cell of input `place` each cell beyond the array equals."""
