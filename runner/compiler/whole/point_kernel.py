"""A kernel of cells that depend on no points, after which the others are computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from meshrun.runner.compiler.compiled import HostKernel, compile_points
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.operations import inexact_operations
from meshrun.runner.compiler.step_state import StepState
from meshrun.runner.compiler.whole.point_code import (
    DevicePoints,
    HostPoints,
    PointArrays,
    PointPlace,
    PointSet,
    Table,
    is_computable,
)
from meshrun.runner.compiler.whole.point_pass import Blocks, PointCells, PointWrites, Rows
from meshrun.runner.region import Array, address_of


@dataclass
class PointKernel:
    """A `TaskKernel`. dense: of all cells. points: those that are written over its results.

    code: of the points; None for a forecast, and for complex numbers, which NumPy or CuPy compute.
    """

    dense: DeviceKernel | HostKernel
    points: PointWrites
    code: HostPoints | DevicePoints | None = None
    takes_rows: ClassVar[bool] = False
    sends: ClassVar[bool] = False
    first_steps: ClassVar[int] = 0
    rivals: ClassVar[tuple[Any, ...]] = ()
    finds_ends: ClassVar[Sequence[int]] = ()
    stores_beyond: ClassVar[bool] = False
    _tables: dict[Any, list[Table]] = field(default_factory=dict)

    @functools.cached_property
    def handed_on(self) -> Mapping[int, int]:
        """The inputs whose next values another input has now; see `TaskKernel`.

        None if a point reads what was there before the other cells were written.
        """
        read = {node.input for one in self.sets for node in one.order if node.op == "load"}
        dense = self.dense.handed_on
        return {} if self.code is None or read & dense.keys() else dense

    def without_handed_on(self) -> PointKernel:
        """Return the kernel of the results that no input has now; see `TaskKernel`."""
        assert not isinstance(self.dense, HostKernel)
        kept = [number for number, feed in enumerate(self.dense.feeds) if feed not in self.handed_on]
        cells = tuple(self.points.cells[number] for number in kept)
        outputs = tuple(self.points.outputs[number] for number in kept)
        points = replace(self.points, cells=cells, outputs=outputs)
        less = PointKernel(self.dense.without_handed_on(), points)
        less.compile()
        return less

    @functools.cached_property
    def sets(self) -> list[PointSet]:
        numbered = enumerate(self.points.cells)
        return [PointSet(cells, number) for number, cells in numbered if len(cells.positions)]

    def compile(self) -> None:
        """Compile the code of the points for the device of the other cells. Raises NotCompiled."""
        if is_computable(self.sets):
            self.code = compile_points(
                self.sets, self.arithmetic if isinstance(self.dense, DeviceKernel) else ""
            )

    @property
    def most_steps(self) -> int:
        """Several on the host, which computes the points of a step before the next one reads its rows."""
        return self.dense.most_steps if isinstance(self.dense, HostKernel) and is_computable(self.sets) else 1

    @property
    def capturable(self) -> bool:
        return self.dense.capturable and self.code is not None

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
        return bool(getattr(self.dense, "inexact", False) or inexact_operations(self.points.nodes))

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
        sides: tuple[bool, bool] = (False, False),
    ) -> Callable[[], None]:
        """Return the launches of one pass; see `TaskKernel`."""
        assert not any(sides)
        dense = self.dense.bind(blocks, outs, first, scalars)
        if self.code is None:
            points = functools.partial(self.points.fill, [*blocks], [*outs], tuple(first), scalars)
            return functools.partial(_call_both, dense, points)
        axes = len(self.points.widths)
        start = tuple(first[:axes])
        last = tuple(a + n for a, n in zip(start, outs[0].shape, strict=False))
        tables = self._tables_at(PointPlace(start, last, start, (False,) * axes, blocks, outs))
        own = tuple(slice(low, None) for low, _ in self.points.widths)
        cores = [(*own[: block.ndim], ...) for block in blocks]
        inputs = [block[core] for block, core in zip(blocks, cores, strict=True)]
        bound = self.code.bind(tables, PointArrays(inputs, outs, scalars))
        return functools.partial(_call_both, dense, bound)

    def prepare_steps(self, steps: int, arrays: Sequence[Array], *, sends: bool = False) -> None:
        """Do nothing: the host's library holds all."""

    def advance(
        self, blocks: StepState, steps: int, more: int = 0, rows: tuple[int, int] | None = None
    ) -> None:
        """Take steps on the host; see `HostKernel`."""
        assert isinstance(self.dense, HostKernel)
        assert isinstance(self.code, HostPoints)
        if blocks.rows(more) == (0, 0):
            return
        axes, arrays = len(self.points.widths), blocks.both()[0]
        origin = tuple(blocks.first[:axes])
        low, high = (
            tuple(int(at) for at in np.add(origin, corner[:axes])) for corner in blocks.box(more + steps - 1)
        )
        outs = [arrays[feed] for feed in blocks.feeds if feed is not None]
        tables = self._tables_at(PointPlace(low, high, origin, (False,) * axes, arrays, outs))
        self.dense.advance(blocks, steps, more, rows, self.code.calls(tables))

    def _tables_at(self, place: PointPlace) -> list[Table]:
        """Return the tables of the sets, which are kept."""
        strides = tuple(one.strides for one in (*place.inputs, *place.outs))
        key = place.first, place.last, place.origin, strides
        if key not in self._tables:
            self._tables[key] = [one.table(place) for one in self.sets]
        return self._tables[key]


@dataclass(eq=False)
class PointValues:
    """Values at points, computed on a GPU by compiled code: CuPy's kernels take subnormal numbers for 0.

    arithmetic: "strict" or "fast".
    """

    cells: PointCells
    arithmetic: str = "strict"
    # Tables and results, by where the blocks are.
    _bound: dict[Any, tuple[Table, Array]] = field(default_factory=dict)

    @functools.cached_property
    def _set(self) -> PointSet:
        return PointSet(self.cells, None, series=True)

    @functools.cached_property
    def _code(self) -> HostPoints | DevicePoints | None:
        """None for complex numbers, which CuPy computes."""
        return compile_points([self._set], self.arithmetic) if is_computable([self._set]) else None

    def compute(self, blocks: Blocks, row: Rows = None) -> Array:
        """Return (components, own points) of the values within the blocks' own cells. row: slots of numbers.

        Raises NotCompiled.
        """
        if self._code is None:
            return blocks.xp.stack(self.cells.compute(blocks, row)[0])

        # The first own cell of each block.
        starts = tuple(slice(low, None) for low, _ in blocks.widths)
        cores = [(*starts[: block.ndim], ...) for block in blocks.arrays]
        own = [block[core] for block, core in zip(blocks.arrays, cores, strict=True)]
        key = blocks.first, blocks.last, *((address_of(one), one.strides) for one in own)
        if key not in self._bound:
            place = PointPlace(blocks.first, blocks.last, blocks.first, blocks.whole, own, ())
            table = self._set.table(place)
            shape = 1, len(self.cells.nodes), len(table.rows)
            self._bound[key] = table, blocks.xp.empty(shape, self.cells.nodes[0].dtype)
        table, rows = self._bound[key]
        self._code.bind([table], PointArrays(own, (), row, [rows]))()
        return rows[0].copy()


def _call_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
