"""A job of whole arrays as a job of blocks, for arrays of known shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from meshrun.runner.compiler.operations import inexact_operations
from meshrun.runner.compiler.trace.graph import Extents, Node, Operand, Program
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.pieces import UniformBox, compute_piece, pieces_of
from meshrun.runner.compiler.whole.trace import WholeInput, WholeOutput, WholeProgram, trace_whole
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
    try:
        services = job.services
        program = trace_whole(job.function, arrays, parameters, job.output_names, services=services)
    except NotTraceable as reason:
        line = f", line {reason.line}" if reason.line else ""
        file = job.function.__code__.co_filename if hasattr(job.function, "__code__") else ""
        raise UserError(
            f"job {job.name} cannot be computed in blocks",
            why=f"it {reason.reason}{f' ({file}{line})' if line else ''}",
            hint=reason.hint,
        ) from reason
    _check_sizes(job, program)
    footprints = [program.program.footprint(number) for number in range(len(program.inputs))]
    halo = tuple(
        (max(width[axis][0] for width in footprints), max(width[axis][1] for width in footprints))
        for axis in range(len(program.space))
    )
    return replace(
        job,
        function=_block_function(job.function, program, halo),
        services=frozenset({"here", "xp", "out"}),
        strided_out=True,
        halo=halo,
        boundary="wrap" if any(program.wraps) else "constant",
        out=_types_of(program),
        tape=program.tape,
        arrays=tuple(one.name for one in program.inputs),
        constants=program.constants,
    )


def _check_sizes(job: Job, program: WholeProgram) -> None:
    """Refuse arrays of several sizes along the axes of space."""
    dimensions = len(program.space)
    arrays: list[WholeInput | WholeOutput] = [*program.inputs, *program.outputs]
    for one in arrays:
        if one.shape[:dimensions] != program.space:
            raise UserError(
                f"job {job.name}: {one.name} has another size than the other arrays",
                got="x".join(map(str, one.shape)),
                expected="x".join(map(str, program.space)),
            )


def _types_of(program: WholeProgram) -> Callable[..., Any]:
    """Return the function `out` of the job: shape and dtype of each result for a block of the first input."""
    dimensions = len(program.space)

    def out(shape: Shape, dtype: Any, **parameters: Any) -> Any:
        types = [(shape[:dimensions] + one.shape[dimensions:], one.dtype) for one in program.outputs]
        return types[0] if len(types) == 1 else types

    return out


def _block_function(
    function: Callable[..., Any], program: WholeProgram, halo: Sequence[tuple[int, int]]
) -> Callable[..., Any]:
    """Return the function that fills the results for a block."""
    widths = tuple(halo)
    dimensions = len(program.space)

    @functools.lru_cache(MOST_KEPT)
    def pieces(first: Shape, last: Shape) -> list[UniformBox]:
        return pieces_of(program, first, last)

    @functools.lru_cache(MOST_KEPT)
    def kernel(results: tuple[tuple[Node, ...], ...], kind: str) -> Any:
        return compiled_piece(program, results, widths, kind)

    @functools.lru_cache(MOST_KEPT)
    def slots(step: int) -> Any:
        return program.tape.row(step)

    @functools.wraps(function)
    def fill(*blocks: Array, here: BlockContext, xp: ModuleType, out: Any, **parameters: Any) -> None:
        wholes = out if isinstance(out, tuple) else (out,)
        row = slots(here.step) if program.tape.slots else None
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
                call([block[around] for block in blocks], outs, piece.first)
                continue
            results = compute_piece(xp, program, piece, blocks, [widths] * len(blocks), first, row)
            for cells, result in zip(outs, results, strict=True):
                cells[...] = result

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
    if any(node.op in ("place", "inside", "scalar") for node in plain.nodes):
        return None
    # On a CPU the bits are NumPy's.
    if kind == "cpu" and inexact_operations(plain.nodes):
        return None
    from meshrun.runner.compiler.compiled import compile_for

    try:
        return compile_for(SimpleNamespace(kind=kind), plain, widths)[0]
    except (NotTraceable, NotCompiled):
        return None
