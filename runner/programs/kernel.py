"""Compute a stage's cells in a block: by compiled kernels where there are some, else by NumPy's functions."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.whole.block_form import LEAST_COMPILED, compiled_piece
from meshrun.runner.compiler.whole.pieces import UniformBox, compute_piece, pieces_of
from meshrun.runner.programs.stages import StageCells
from meshrun.runner.region import Array, Shape

MOST_KEPT = 256  # boxes whose pieces are kept
SLAB = 1 << 20  # bytes of cells for which NumPy's functions are called at once, on a CPU


class CellKernel:
    """Computes the cells of a stage in any box. xp: numpy or cupy."""

    def __init__(self, cells: StageCells, xp: ModuleType) -> None:
        self.cells, self._xp, self._kind = cells, xp, "cpu" if xp is np else "cuda"
        self.pieces = functools.lru_cache(MOST_KEPT)(functools.partial(pieces_of, cells.program))
        self._compiled = functools.lru_cache(MOST_KEPT)(self._compile)

    def fill(
        self, blocks: Sequence[Array], outs: Sequence[Array], first: Shape, scalars: Mapping[int, Array]
    ) -> None:
        """Fill `outs`, one per result, with the cells from position `first` on.

        blocks: of each array that the stage reads, these cells and as many around them as its widths say.
        """
        program, widths = self.cells.program, self.cells.widths
        shape = outs[0].shape[: len(first)]
        if 0 in shape:
            return
        last = tuple(a + n for a, n in zip(first, shape, strict=True))
        for piece in self.pieces(first, last):
            call = self._compiled(piece.results) if piece.cells >= LEAST_COMPILED[self._kind] else None
            if call is not None:
                own = _part(piece, first)
                around = tuple(
                    slice(cut.start, cut.stop + low + high)
                    for cut, (low, high) in zip(own, widths, strict=True)
                )
                call([block[around] for block in blocks], [out[own] for out in outs])
                continue
            for part in self._slabs(piece):
                results = compute_piece(
                    self._xp, program, part, blocks, [widths] * len(blocks), first, scalars
                )
                for out, result in zip(outs, results, strict=True):
                    out[_part(part, first)] = result

    def _compile(self, results: tuple[tuple[Node, ...], ...]) -> Any:
        return compiled_piece(self.cells.program, results, self.cells.widths, self._kind)

    def _slabs(self, piece: UniformBox) -> Iterator[UniformBox]:
        """Yield a piece in parts of some rows, whose cells fit a cache; on a device, as it is."""
        rows = piece.last[0] - piece.first[0]
        step = max(SLAB * rows // max(8 * piece.cells, 1), 1) if self._kind == "cpu" else rows
        for begin in range(piece.first[0], piece.last[0], step):
            end = min(begin + step, piece.last[0])
            yield replace(piece, first=(begin, *piece.first[1:]), last=(end, *piece.last[1:]))


def _part(piece: UniformBox, first: Shape) -> tuple[slice, ...]:
    """Return the place of a piece in a block whose first cell is at a position."""
    return tuple(slice(a - at, b - at) for a, b, at in zip(piece.first, piece.last, first, strict=True))
