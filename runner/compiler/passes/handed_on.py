"""Find the inputs whose next values are what another input has now, as in a leapfrog scheme.

In `after, now = 2 * now - before + ..., now`, the field that was `now` is `before` in the next step. If
`before` is read at the own cell alone, one pass may write `after` over it, and copies nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from meshrun.runner.compiler.trace.graph import Node, Program, in_order


def handed_on(program: Program, feeds: Sequence[int | None]) -> dict[int, int]:
    """Return the inputs whose next values another input has now: {before: now}.

    feeds: for each output, the number of the input that it becomes in the next step, or None. Another output
    becomes `now`; it alone reads `before`, at the own cell.
    """
    found: dict[int, int] = {}
    for number, before in enumerate(feeds):
        now = _copied(program, number)
        if before is None or now in (None, before) or now not in feeds or now in found.values():
            continue
        # Both lie in memory alike.
        old, new = program.inputs[before], program.inputs[now]
        same = (old.dtype, old.trailing) == (new.dtype, new.trailing)
        writer = feeds.index(now)
        if same and writer != number and _is_read_by(program, before, writer):
            found[before] = now
    return {before: now for before, now in found.items() if now not in found}


def without_outputs(
    program: Program, feeds: Sequence[int | None], left_out: Container[int]
) -> tuple[Program, list[int | None]]:
    """Return the program without the outputs that become some inputs, and what the others become."""
    kept = [number for number, feed in enumerate(feeds) if feed is None or feed not in left_out]
    outputs = tuple(program.outputs[number] for number in kept)
    results = tuple(program.results[number] for number in kept)
    return replace(program, outputs=outputs, results=results), [feeds[number] for number in kept]


def _copied(program: Program, number: int) -> int | None:
    """Return the input whose own cells output `number` is a copy of; None if it is not one."""
    result = program.results[number]
    first = result[0]
    if first.op != "load" or first.dtype != program.outputs[number].dtype:
        return None
    same = all(
        (node.op, node.input, node.component) == ("load", first.input, component) and not any(node.offset)
        for component, node in enumerate(result)
    )
    return first.input if same and len(result) == program.inputs[first.input].components else None


def _is_read_by(program: Program, place: int, writer: int) -> bool:
    """Return whether output `writer` alone reads input `place`, and only at the own cell."""

    def reads(nodes: Sequence[Node]) -> list[Node]:
        return [node for node in in_order(nodes) if node.op == "load" and node.input == place]

    others = [node for number, result in enumerate(program.results) if number != writer for node in result]
    return not reads(others) and not any(any(node.offset) for node in reads(program.results[writer]))
