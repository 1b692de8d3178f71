"""A kernel of cells that depend on no points, after which the others are computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshrun.runner.compiler.whole.point_pass import PointWrites
from meshrun.runner.plan.task import TaskKernel
from meshrun.runner.region import Array


@dataclass
class PointKernel:
    """A `TaskKernel`, of one step. dense: of all cells. points: those that are written over its results."""

    dense: TaskKernel
    points: PointWrites
    most_steps: ClassVar[int] = 1
    takes_rows: ClassVar[bool] = False
    sends: ClassVar[bool] = False
    finds_ends: ClassVar[Sequence[int]] = ()
    capturable: ClassVar[bool] = False
    stores_beyond: ClassVar[bool] = False

    @property
    def aligned(self) -> bool:
        return self.dense.aligned

    @property
    def arithmetic(self) -> str:
        """Of the kernel: "strict" or "fast"."""
        return str(getattr(self.dense, "arithmetic", "strict"))

    @property
    def inexact(self) -> bool:
        """Whether last bits may differ from those of the function as it is."""
        return bool(getattr(self.dense, "inexact", False))

    def __call__(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None = None,
    ) -> None:
        self.bind(blocks, outs, first, scalars)()

    def bind(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None = None,
        sides: Sequence[tuple[bool, bool]] = (),
    ) -> Callable[[], None]:
        """Return the launches of one pass; see `TaskKernel`."""
        assert not sides
        dense = self.dense.bind(blocks, outs, first, scalars)
        return functools.partial(self._run, dense, [*blocks], [*outs], tuple(first), scalars)

    def _run(self, dense: Callable[[], None], *arguments: Any) -> None:
        dense()
        self.points.fill(*arguments)

    def prepare_steps(self, steps: int, arrays: Sequence[Array], *, sends: bool = False) -> None:
        """Do nothing: steps are taken one by one."""

    def advance(self, blocks: Any, steps: int, more: int = 0, rows: tuple[int, int] | None = None) -> None:
        raise NotImplementedError("a kernel with points takes one step")
