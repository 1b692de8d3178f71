"""A function of whole arrays as one of blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meshrun.runner.compiler.trace.graph import Extents, Program
from meshrun.runner.compiler.whole.pieces import UniformBox, compute_piece, pieces_of
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.region import Array, Shape

if TYPE_CHECKING:
    from meshrun.runner.compiler.whole.point_pass import PointWrites
    from meshrun.runner.compiler.whole.program import WholeProgram

MOST_KEPT = 256  # blocks whose pieces are kept: chunks of a streamed run have places of their own


class BlockFunction:
    """Fills the results of a function of whole arrays for a block, with the functions of NumPy or CuPy.

    Kernels compute what `program` says instead, where a run has one.

    Parameters
    ----------
    function: the user's.
    program: what it computes for each cell, but for those that depend on points.
    widths: of the blocks' halo, per grid axis.
    points: the other cells, which are computed after them; None: there are none.
    whole: all that the function computes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        program: Program,
        widths: Extents,
        points: PointWrites | None,
        whole: WholeProgram,
    ) -> None:
        functools.update_wrapper(self, function)
        self.program, self.points, self._widths, self.whole = program, points, widths, whole
        self._pieces: dict[tuple[Shape, Shape], list[UniformBox]] = {}

    def __call__(
        self, *blocks: Array, here: BlockContext, xp: ModuleType, out: Any, **parameters: Any
    ) -> None:
        wholes = out if isinstance(out, tuple) else (out,)
        first = here.offset[: self.program.axes]
        tape = self.program.tape
        row = xp.asarray(tape.row(here.step)) if tape.slots else None
        last = tuple(a + n for a, n in zip(first, here.block, strict=False))
        for piece in self._pieces_of(first, last):
            results = compute_piece(xp, self.program, piece, blocks, self._widths, first, row)
            cells = tuple(
                slice(a - at, b - at) for a, b, at in zip(piece.first, piece.last, first, strict=True)
            )
            for whole, result in zip(wholes, results, strict=True):
                whole[cells] = result
        if self.points is not None:
            self.points.fill(blocks, wholes, first, row)

    def _pieces_of(self, first: Shape, last: Shape) -> list[UniformBox]:
        """Return the pieces of a block; those of the latest blocks are kept."""
        found = self._pieces.pop((first, last), None) or pieces_of(self.program, first, last)
        self._pieces[first, last] = found
        while len(self._pieces) > MOST_KEPT:
            self._pieces.pop(next(iter(self._pieces)), None)
        return found
