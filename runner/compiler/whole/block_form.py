"""A job of whole arrays as a job of blocks, for arrays of known shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import INEXACT
from meshrun.runner.compiler.trace.graph import Extents, Node, Operand, Program
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.pieces import UniformBox, compute_piece, pieces_of
from meshrun.runner.compiler.whole.point_pass import (
    Blocks,
    PointCells,
    SeriesPass,
    changed_cells,
    dense,
    fill_points,
)
from meshrun.runner.compiler.whole.sizes import MOST_FEWER, unlike_axis
from meshrun.runner.compiler.whole.trace import WholeInput, WholeProgram, trace_whole
from meshrun.runner.errors import UserError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.task import TaskKernel
from meshrun.runner.region import Array, Shape
from meshrun.runner.system.compiler import NotCompiled

MOST_KEPT = 256  # blocks whose pieces are kept: chunks of a streamed run have places of their own
# Cells of a piece that is worth a kernel. A C++ compiler takes a second.
LEAST_COMPILED = {"cpu": 1 << 14, "cuda": 1}
ArrayType = tuple[Shape, np.dtype[Any]]


def block_form(job: Job, inputs: Sequence[ArrayType], parameters: dict[str, Any]) -> Job:
    """Return the job whose blocks, put together, are what the function returns for whole arrays.

    Parameters
    ----------
    job: its function takes whole arrays.
    inputs: shape and dtype of each.
    parameters: of the run.

    Raises UserError, with the line, for what cannot be computed in blocks.
    """
    arrays = [
        WholeInput(name, tuple(shape), dtype) for name, (shape, dtype) in zip(job.arrays, inputs, strict=True)
    ]
    _check_sizes(job, arrays)
    try:
        program = trace_whole(job.function, arrays, parameters, job.output_names, series=job.series)
        sparse = changed_cells(program)
    except NotTraceable as reason:
        line = f", line {reason.line}" if reason.line else ""
        file = job.function.__code__.co_filename if hasattr(job.function, "__code__") else ""
        raise UserError(
            f"job {job.name} cannot be computed in blocks",
            why=f"it {reason.reason}{f' ({file}{line})' if line else ''}",
            hint=reason.hint,
        ) from reason
    footprints = [program.footprint(number) for number in range(len(arrays))]
    halo = tuple(
        (max(width[axis][0] for width in footprints), max(width[axis][1] for width in footprints))
        for axis in range(len(program.space))
    )
    return replace(
        job,
        function=_block_function(job.function, dense(program), sparse, halo),
        services=frozenset({"here", "xp", "out"}),
        strided_out=True,
        halo=halo,
        boundary="wrap" if any(program.wraps) else "constant",
        out=_types_of(program),
        sizes=program.sizes,
        series_pass=SeriesPass.of(program) if program.series else None,
    )


def _check_sizes(job: Job, arrays: Sequence[WholeInput]) -> None:
    """Refuse arrays whose lengths along an axis are those of no common grid."""
    axis = unlike_axis([one.shape for one in arrays])
    if axis is None:
        return
    fields = [one for one in arrays if one.shape]
    length = max(one.shape[axis] for one in fields)
    coarse = -(-length // 2)
    raise UserError(
        f"job {job.name}: its arrays share no grid along axis {axis}",
        got=", ".join(f"{one.name} {'x'.join(map(str, one.shape))}" for one in fields),
        expected=f"beside {length} cells, {length - MOST_FEWER} to {length}, "
        f"or {coarse - 1} or {coarse} of a grid that is twice as coarse",
    )


def _types_of(program: WholeProgram) -> Callable[..., Any]:
    """Return the function `out` of the job: shape and dtype of each result for a block of the first input."""
    dimensions = len(program.space)

    def out(shape: Shape, dtype: Any, **parameters: Any) -> Any:
        types = [(shape[:dimensions] + one.shape[dimensions:], one.dtype) for one in program.outputs]
        return types[0] if len(types) == 1 else types

    return out


def _block_function(
    function: Callable[..., Any],
    program: WholeProgram,
    sparse: Sequence[PointCells],
    halo: Sequence[tuple[int, int]],
) -> Callable[..., Any]:
    """Return the function that fills the results for a block.

    program: of cells that depend on no points. sparse: of each output, those that do.
    """
    widths = tuple(halo)
    has_points = any(len(one.positions) for one in sparse)
    dimensions = len(program.space)

    @functools.lru_cache(MOST_KEPT)
    def pieces(first: Shape, last: Shape) -> list[UniformBox]:
        return pieces_of(program, first, last)

    @functools.lru_cache(MOST_KEPT)
    def kernel(results: tuple[tuple[Node, ...], ...], kind: str) -> Any:
        return compiled_piece(program, results, widths, kind)

    @functools.wraps(function)
    def fill(*blocks: Array, here: BlockContext, xp: ModuleType, out: Any, **parameters: Any) -> None:
        wholes = out if isinstance(out, tuple) else (out,)
        kind, first = "cpu" if xp is np else "cuda", here.offset[:dimensions]
        last = tuple(a + n for a, n in zip(first, here.block, strict=False))
        for piece in pieces(first, last):
            part = tuple(
                slice(a - at, b - at) for a, b, at in zip(piece.first, piece.last, first, strict=True)
            )
            outs = [whole[part] for whole in wholes]
            call = kernel(piece.results, kind) if piece.cells >= LEAST_COMPILED[kind] else None
            if call is not None:
                around = tuple(
                    slice(cut.start, cut.stop + low + high)
                    for cut, (low, high) in zip(part, widths, strict=True)
                )
                call([block[around] for block in blocks], outs)
                continue
            results = compute_piece(xp, program, piece, blocks, [widths] * len(blocks), first)
            for cells, result in zip(outs, results, strict=True):
                cells[...] = result
        if has_points:
            fill_points(
                program, sparse, Blocks(xp, blocks, widths, first, last, (False,) * dimensions), wholes
            )

    return fill


def compiled_piece(
    program: WholeProgram, results: tuple[tuple[Node, ...], ...], widths: Extents, kind: str
) -> TaskKernel | None:
    """Return a kernel for the cells of a piece; None where NumPy's functions have to compute them.

    kind: of device, "cpu" or "cuda".
    """
    dimensions = len(program.space)
    inputs = tuple(Operand(one.name, one.dtype, one.shape[dimensions:]) for one in program.inputs)
    outputs = tuple(Operand(one.name, one.dtype, one.shape[dimensions:]) for one in program.outputs)
    plain = Program(dimensions, inputs, outputs, results, program.graph)
    if any(node.op in ("place", "inside") for node in plain.nodes):
        return None
    # On a CPU the bits are NumPy's.
    if kind == "cpu" and any(node.op in INEXACT for node in plain.nodes):
        return None
    from meshrun.runner.compiler.compiled import compile_for

    try:
        return compile_for(SimpleNamespace(kind=kind), plain, widths)[0]
    except (NotTraceable, NotCompiled):
        return None
