"""Trace a user's function: call it with stand-ins for its blocks, which record the operations on them.

The function is plain Python over plain arrays. A stand-in implements NumPy's array protocols (NEP 13,
NEP 18), so that the function runs unchanged. Operations that depend on the values of cells, or on their
number, cannot be recorded: `NotTraceable` says why, on which line, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import MOST_COMPONENTS, check_computable
from meshrun.runner.compiler.trace.block import BlockCall, BlockPlace, Namespace, Traced, near_of
from meshrun.runner.compiler.trace.graph import Operand, Program, in_order
from meshrun.runner.compiler.trace.rebound import FunctionCopies
from meshrun.runner.compiler.trace.refusal import NotTraceable, refused_with_line
from meshrun.runner.compiler.trace.timed import given_of
from meshrun.runner.job.signature import STEP
from meshrun.runner.region import Shape

Repeated = tuple[
    int, tuple[int, ...]
]  # axes of an input that broadcasts; grid axes along which it has one cell


def _lengths(widths: Sequence[tuple[int, int]]) -> tuple[Shape, Shape]:
    """Return the own cells along each grid axis for two traces.

    The lengths of a trace are so far apart that each identifies its axis, halo included. They are odd in one
    trace and even in the other. They are small, because a function may create arrays of this size, but over
    few axes those of the second trace are as large as those of real blocks.
    """
    near = near_of(widths)
    apart, axes = 2 * near + 1, range(len(widths))
    least = MOST_COMPONENTS + near + 1
    large = {1: 2000, 2: 2000, 3: 150}.get(len(axes), 0)
    second = max(large, MOST_COMPONENTS) // 2 * 2 + near
    return tuple(least + axis * apart for axis in axes), tuple(
        second + 2 + axis * (apart + 2) for axis in axes
    )


def trace(
    function: Callable[..., Any],
    inputs: Sequence[Operand],
    widths: Sequence[tuple[int, int]],
    parameters: dict[str, Any],
    services: frozenset[str] = frozenset(),
    names: Sequence[str] = ("output",),
    declared: Sequence[Operand] | None = None,
    shape: Shape = (),
) -> Program:
    """Return the program that `function` computes for each own cell. Raises NotTraceable.

    inputs: the function's arrays. widths: halo before and after the own cells, per grid axis. services: those
    that the function takes, of `out`, `xp` and `here`. names: of its results. declared: dtype and trailing
    axes of each result, for a function that fills `out`. shape: of the whole array, for `here`.
    """
    programs = [
        _trace_once(function, inputs, widths, parameters, services, (names, declared), lengths, shape)
        for lengths in _lengths(widths)
    ]
    if len({program.text() + program.tape.text() for program in programs}) > 1:
        reason = NotTraceable(
            "computes with the number of cells of its block, or differs from one call to the next",
            "a parameter",
        )
        reason.line = first_difference(*programs)
        raise reason
    return programs[0]


def first_difference(one: Program, other: Program) -> int:
    """Return the line of the first node that differs between two programs; 0 if unknown."""
    for a, b, text, changed in zip(one.nodes, other.nodes, one.lines(), other.lines(), strict=False):
        if text != changed:
            users = (node for node in one.nodes if a in node.operands)
            return a.line or b.line or next(users, a).line
    return 0


def _trace_once(
    function: Callable[..., Any],
    inputs: Sequence[Operand],
    widths: Sequence[tuple[int, int]],
    parameters: dict[str, Any],
    services: frozenset[str],
    results: tuple[Sequence[str], Sequence[Operand] | None],
    lengths: Shape,
    shape: Shape,
) -> Program:
    """Return the program of one call. results: names, and `declared`. lengths: of the blocks' own cells."""
    names, declared = results
    recorder = BlockCall(function, lengths, widths)
    axes = len(lengths)
    padded = tuple(n + low + high for n, (low, high) in zip(lengths, widths, strict=True))
    blocks = [_block(recorder, number, one, padded) for number, one in enumerate(inputs)]
    outs = [_unwritten(recorder, one, lengths) for one in declared or ()]
    tape = recorder.tape
    xp = Namespace(recorder)
    here = BlockPlace(recorder, shape, xp)
    given = {"out": outs[0] if len(outs) == 1 else tuple(outs), "xp": xp, STEP: tape.step, "here": here}
    known = given_of(tape, parameters) | {name: given[name] for name in services}
    with refused_with_line(function, tape):
        copies = FunctionCopies(tape)
        called = copies.of(function) if services & {STEP, "here"} else function
        returned = called(*blocks, **known)
        copies.check_unchanged()
        found = _results(recorder, returned, outs, names)
    shift = tuple(-low for low, _ in widths)
    outputs = []
    nodes = []
    for name, result in zip(names, found, strict=True):
        outputs.append(Operand(name, result.dtype, result.shape[axes:]))
        nodes.append(tuple(recorder.graph.shifted(result.read().ravel(), shift)))
    results_of, stages = tuple(nodes), tuple(recorder.stages)
    graph = recorder.graph
    whole = shape[:axes]
    every = in_order(node for result in results_of for node in result)
    tape.keep(max((node.value + 1 for node in every if node.op == "scalar"), default=0))
    return Program(axes, tuple(inputs), tuple(outputs), results_of, graph, stages, whole, tape)


def _block(recorder: BlockCall, number: int, one: Operand, padded: Shape) -> Traced:
    if one.repeated is not None:
        return _narrow_block(recorder, number, one, padded)
    axes = len(padded)
    if one.components > MOST_COMPONENTS:
        raise NotTraceable(f"has {one.components} elements per cell of its input {one.name}")
    check_computable(one.dtype)
    nodes = np.empty((1,) * axes + one.trailing, object)
    for place in range(one.components):
        nodes.ravel()[place] = recorder.graph.load(number, one.dtype, (0,) * axes, place)
    grid = (*range(axes), *(None,) * len(one.trailing))
    return Traced(recorder, nodes, padded + one.trailing, grid, one.dtype)


def _narrow_block(recorder: BlockCall, number: int, one: Operand, padded: Shape) -> Traced:
    """Return a block of an input that broadcasts: of one cell along some axes, without the first ones."""
    assert one.repeated is not None
    ndim, alone = one.repeated
    check_computable(one.dtype)
    if one.trailing:
        raise NotTraceable(f"has an input {one.name} that broadcasts along axes of components")
    # Own cells are read along these axes: results are shifted back by the halo before them.
    offset = tuple(low if axis in alone else 0 for axis, (low, _) in enumerate(recorder.widths))
    nodes = np.full((1,) * ndim, recorder.graph.load(number, one.dtype, offset), object)
    axes = range(len(padded) - ndim, len(padded))
    shape = tuple(1 if axis in alone else padded[axis] for axis in axes)
    grid = tuple(None if axis in alone else axis for axis in axes)
    return Traced(recorder, nodes, shape, grid, one.dtype)


def _unwritten(recorder: BlockCall, one: Operand, lengths: Shape) -> Traced:
    """Return an array for a result. Its cells are NaN or 0 until they are written."""
    empty = np.full((), np.nan if one.dtype.kind in "fc" else 0)
    found: Traced = recorder.filled(lengths + one.trailing, empty.astype(one.dtype), one.dtype)
    return found


def _results(
    recorder: BlockCall, returned: Any, outs: Sequence[Traced], names: Sequence[str]
) -> list[Traced]:
    if returned is None and outs:
        returned = tuple(outs)
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if len(found) != len(names):
        raise NotTraceable(f"returns {len(found)} results, not {len(names)}")
    for one in found:
        if isinstance(one, Traced) and one._recorder is not recorder:
            raise NotTraceable("keeps an array from one call to the next")
        if not isinstance(one, Traced):
            raise NotTraceable(f"returns a {type(one).__name__} that does not come from its block")
        lengths, axes = recorder.lengths, len(recorder.lengths)
        if one._grid != (*range(axes), *(None,) * (one.ndim - axes)):
            raise NotTraceable("returns an array with other axes than its block")
        if one.shape[:axes] != lengths:
            shorter = tuple(a - b for a, b in zip(lengths, one.shape, strict=False))
            raise NotTraceable("returns a block of another size than its own cells", shorter=shorter)
    return found
