"""Compute a stage's cells in a block: by a compiled kernel where there is one, else by NumPy's functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshrun.runner.compiler.compiled import HostKernel, compile_for
from meshrun.runner.compiler.cpp.host import HostProgram
from meshrun.runner.compiler.cuda.values import ValueKernel
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.graph import Node, compute_aloud, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.pieces import UniformBox, compute_piece, pieces_of
from meshrun.runner.compiler.whole.point_kernel import PointKernel
from meshrun.runner.compiler.whole.point_pass import point_writes, without_points
from meshrun.runner.device.api import Backend
from meshrun.runner.plan.task import TaskKernel
from meshrun.runner.programs.cells import StageCells
from meshrun.runner.region import Array, HostArray, Shape, address_of
from meshrun.runner.system.compiler import NotCompiled

MOST_KEPT = 256  # boxes whose pieces are kept
SLAB = 1 << 20  # bytes of cells for which NumPy's functions are called at once, on a CPU


def bind_values(
    kernel: ValueKernel, arrays: Sequence[Array], members: HostArray | None = None
) -> Callable[[], None]:
    """Return the launch of a kernel of values on a GPU.

    arrays: the slots, the keys, the sums, the totals. members: of the ranks, for a kernel that combines what
    they have.
    """
    arguments = *(np.uint64(address_of(one)) for one in arrays), *(() if members is None else (members,))
    return functools.partial(compile_values(kernel), (1,), (kernel.threads, 1), arguments)


def bind_expressions(nodes: Sequence[tuple[int, Node]], views: Mapping[int, HostArray]) -> Callable[[], None]:
    """Return what computes expressions of values on a CPU. nodes: by the number of the value that each is.

    views: of shape (), of each value by number. An expression may read the values of those before it.
    """
    calls: list[Callable[[], object]] = []
    with np.errstate(all="ignore"):
        for number, wanted in nodes:
            results: dict[Node, HostArray] = {}
            for node in in_order([wanted]):
                if node.op == "scalar":
                    results[node] = views[node.value]
                    continue
                if node.op == "constant":
                    results[node] = np.asarray(node.value)
                    continue
                # NumPy's function writes its result where the next one reads it.
                operands = [results[one] for one in node.operands]
                ones = [np.ones_like(one) for one in operands]  # for which every operation has a result
                result = np.empty_like(compute_aloud(node.op, node.dtype, ones))
                if node is wanted and result.dtype == views[number].dtype:
                    result = views[number]
                function = getattr(np, node.op, None)
                if isinstance(function, np.ufunc):
                    calls.append(functools.partial(function, *operands, out=result))
                else:
                    calls.append(functools.partial(_compute_into, result, node, operands))
                results[node] = result
            if results[wanted] is not views[number]:
                calls.append(functools.partial(copy_cells, views[number], results[wanted]))
    return functools.partial(_call_quietly, calls)


def _compute_into(result: HostArray, node: Node, operands: Sequence[HostArray]) -> None:
    result[...] = compute_aloud(node.op, node.dtype, operands)


def _call_quietly(calls: Sequence[Callable[[], object]]) -> None:
    """Make calls without NumPy's warnings."""
    with np.errstate(all="ignore"):
        for call in calls:
            call()


def copy_cells(target: Array, source: Array) -> None:
    """Copy cells. Views of them may be of different dtypes."""
    target[...] = source


def compile_values(kernel: ValueKernel) -> Callable[..., None]:
    """Return what launches a kernel of values. Raises NotCompiled."""
    from meshrun.runner.device.cuda import kernel_of_text

    return kernel_of_text(kernel.source, kernel.name)


class CellKernel:
    """Computes the cells of a stage in any box.

    compiled: whether to compile them. reason: why they are not; line: of the user's file, 0 if unknown.
    """

    def __init__(self, cells: StageCells, backend: Backend, shape: Shape, *, compiled: bool) -> None:
        self.cells, self._backend = cells, backend
        self.reason, self.line = "" if compiled else "too little work for a compiler", 0
        self.kernel: TaskKernel | None = None
        whole = cells.program.program
        # Cells that depend on a write to points are computed after all others.
        self._points, self._program = point_writes(whole, cells.widths), without_points(whole)
        self.pieces = functools.lru_cache(MOST_KEPT)(functools.partial(pieces_of, self._program))
        if compiled and 0 not in shape:
            try:
                self.kernel, _ = compile_for(backend.device, self._program, cells.widths, shape=shape)
            except (NotTraceable, NotCompiled) as failure:
                self.reason, self.line = failure.reason, failure.line
        # On a GPU, compiled code computes the cells near points: CuPy takes subnormal numbers for 0.
        if isinstance(self.kernel, DeviceKernel) and self._points is not None:
            with_points = PointKernel(self.kernel, self._points)
            try:
                with_points.compile()
                self.kernel, self._points = with_points, None
            except NotCompiled as failure:
                self.kernel, self.reason, self.line = None, failure.reason, failure.line

    def bind(
        self, blocks: Sequence[Array], outs: Sequence[Array], first: Shape, scalars: Array
    ) -> Callable[[], None]:
        """Return what fills `outs`, one per result, with the cells from position `first` on.

        blocks: of each array that the stage reads, these cells and as many around them as its widths say.
        scalars: the slots of the program's values. Of a result whose cells are combined, `outs` has a view of
        its key (`pass_launch.key_of`).
        """
        if 0 in outs[0].shape:
            return do_nothing
        fill: Callable[[], None] = functools.partial(self._fill, blocks, outs, first, scalars)
        if self.kernel is not None:
            fill = self.kernel.bind(blocks, outs, first, scalars)
        if self._points is None:
            return fill
        return functools.partial(
            _call_both, fill, functools.partial(self._points.fill, blocks, outs, first, scalars)
        )

    @property
    def loops(self) -> HostProgram | None:
        """The compiled loops of a CPU that compute all cells; None if others are needed."""
        if not isinstance(self.kernel, HostKernel) or self._points is not None:
            return None
        return self.kernel.loops

    def _fill(self, blocks: Sequence[Array], outs: Sequence[Array], first: Shape, scalars: Array) -> None:
        program, xp = self._program, self._backend.xp
        last = tuple(a + n for a, n in zip(first, outs[0].shape, strict=False))
        for piece in self.pieces(first, last):
            for part in self._slabs(piece):
                results = compute_piece(xp, program, part, blocks, self.cells.widths, first, scalars)
                cells = tuple(
                    slice(a - at, b - at) for a, b, at in zip(part.first, part.last, first, strict=True)
                )
                for out, result in zip(outs, results, strict=True):
                    out[cells] = result

    def _slabs(self, piece: UniformBox) -> Iterator[UniformBox]:
        """Yield a piece in parts of some rows, whose cells fit a cache; on a device, as it is."""
        rows = piece.last[0] - piece.first[0]
        step = max(SLAB * rows // max(8 * piece.cells, 1), 1) if self._backend.xp is np else rows
        if step >= rows:
            yield piece
            return
        for begin in range(piece.first[0], piece.last[0], step):
            end = min(begin + step, piece.last[0])
            yield replace(piece, first=(begin, *piece.first[1:]), last=(end, *piece.last[1:]))


def _call_both(one: Callable[[], None], other: Callable[[], None]) -> None:
    one()
    other()


def do_nothing() -> None:
    """Compute no cells."""
