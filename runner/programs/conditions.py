"""What the conditions of loops compare, iteration by iteration.

It is shown while a loop runs. A NaN in it is a warning or an error, with the cell that it may come from. A
loop that does not end is an error with the numbers of its last iterations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.finite import first_of_ranks, not_finite
from meshrun.runner.compiler.trace.graph import in_order
from meshrun.runner.compiler.whole.graph import Reduction
from meshrun.runner.compiler.whole.program import WholeProgram
from meshrun.runner.errors import RunError
from meshrun.runner.programs.stages import LoopComparison, ReductionStage, StagedProgram, ValueStage
from meshrun.runner.report.units import counted
from meshrun.runner.spelling import option
from meshrun.runner.world.world import World

KEPT = 3  # last iterations of which an error tells the numbers


@dataclass(frozen=True)
class Iteration:
    """An iteration of which the condition is known.

    line: of the loop, in the user's file. count: of iterations so far. step: of the run, so far. saved: the
    step of the run's last checkpoint; None: it has none.
    """

    line: int
    count: int
    step: int
    saved: int | None


def compares_nan(compared: Sequence[LoopComparison], values: Any) -> bool:
    """Return whether a condition compares a NaN. values: by number."""
    sides = (side for one in compared for side in one.sides if isinstance(side, int))
    return any(math.isnan(values[side].item()) for side in sides)


def compared_text(compared: Sequence[LoopComparison], values: Any) -> str:
    """Return what a condition compares, in numbers. values: by number."""
    return " and ".join(
        f" {one.sign} ".join(
            f"{values[side].item():.6g}" if isinstance(side, int) else side for side in one.sides
        )
        for one in compared
    )


def report_nan(
    world: World, at: Iteration, text: str, arrays: Iterable[tuple[str, DistributedArray]], *, fails: bool
) -> None:
    """Warn of a NaN in a condition, or raise RunError. Collective.

    text: what the condition compares. arrays: with their names, the first one that may have caused it first.
    """
    when = f"after iteration {at.count:,}" if at.count else "before the first iteration"
    what = (
        f"the condition of the loop in line {at.line} compares a NaN in step {at.step + 1:,}, {when} ({text})"
    )
    why = _first_not_finite(world, arrays)
    if at.saved is not None:
        why += f"; the last checkpoint is that of step {at.saved:,}"
    if not fails:
        world.warn(f"{what}: {why}")
        return
    raise RunError(
        what,
        why=why,
        hint=f"check the inputs; without {option('check_finite')}, the run goes on as in NumPy",
        everywhere=True,
    )


def _first_not_finite(world: World, arrays: Iterable[tuple[str, DistributedArray]]) -> str:
    """Return where the first cell of the first array is that is not finite. Collective."""
    for name, array in arrays:
        own = not_finite(world.xp, name, array.interior, array.region.start)
        found = first_of_ranks(world, own)
        if found is not None:
            rank, (_, cell, value) = found
            return f"{name} is not finite, first in cell {cell}, on [{rank}]: {value}"
    return "all arrays of the loop are finite"


def not_ended(line: int, most: int, said: Sequence[str] = ()) -> RunError:
    """Return the error of a loop that its condition does not end.

    line: in the user's file. said: what the condition compared in the last iterations.
    """
    last = "the last one" if len(said) == 1 else f"the last {len(said)}"
    return RunError(
        f"the loop in line {line} did not end within {counted(most, 'iteration')}",
        why=f"in {last} its condition compared {', '.join(said)}" if said else None,
        hint=f"a looser tolerance, or {option('max_iterations', 'N')} for more",
        everywhere=True,
    )


def operand_outputs(program: WholeProgram, condition: int) -> list[int]:
    """Return the arrays that a loop's body leaves, those first of which its condition is computed.

    program: the body. condition: the output that is the condition. Numbers are those of the outputs.
    """
    fields = [n for n, one in enumerate(program.outputs) if one.shape]
    # The reductions that the condition depends on, and what they combine.
    open_nodes, cells, seen = list(program.outputs[condition].nodes), [], set[int]()
    while open_nodes:
        for node in in_order([open_nodes.pop()]):
            if node.op != "scalar" or node.value in seen:
                continue
            seen.add(node.value)
            definition: Any = program.values.get(node.value)
            if isinstance(definition, Reduction):
                cells += in_order(definition.nodes)
            elif hasattr(definition, "operands"):
                open_nodes.append(definition)
    place = {node: n for n, node in enumerate(cells)}
    read = {node.input for node in cells if node.op == "load"}

    def order(output: int) -> tuple[int, int]:
        """Sort what is reduced before what is reduced at other cells, and the latest operations first."""
        one = program.outputs[output]
        within = [place[node] for node in one.nodes if node in place and node.op != "load"]
        names = {program.inputs[n].name for n in read if n < len(program.inputs)}
        return (0, -max(within)) if within else (1 if one.name in names else 2, 0)

    return sorted(fields, key=order)


def operand_arrays(program: StagedProgram, compared: Sequence[LoopComparison]) -> list[int]:
    """Return the arrays of a program whose reductions what is compared depends on, by number."""
    wanted = {side for one in compared for side in one.sides if isinstance(side, int)}
    found: dict[int, None] = {}
    for stage in reversed(program.stages):
        if isinstance(stage, ValueStage):
            for number, node in reversed(stage.nodes):
                if number in wanted:
                    wanted.update(one.value for one in in_order([node]) if one.op == "scalar")
        elif isinstance(stage, ReductionStage) and stage.value in wanted:
            found |= dict.fromkeys(stage.cells.reads)
            wanted.update(stage.cells.values)
    return [*found]
