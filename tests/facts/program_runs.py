"""Run functions of whole arrays in stages on ranks that are threads, and put their results together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from meshrun.runner.device.api import poison
from meshrun.runner.programs.execute import ProgramRun
from meshrun.runner.programs.stages import StagedProgram, plan_program
from meshrun.runner.report.phases import Phases
from meshrun.runner.world.world import open_world

Arrays = Sequence[np.ndarray[Any, Any]]


def planned(
    function: Callable[..., Any],
    arrays: Arrays,
    names: Sequence[str],
    kind: str = "cpu",
    **parameters: Any,
) -> StagedProgram:
    inputs = [WholeInput(f"in{number}", one.shape, one.dtype) for number, one in enumerate(arrays)]
    return plan_program(trace_whole(function, inputs, parameters, names, kind=kind))


def run_program(
    program: StagedProgram,
    arrays: Arrays,
    grid: tuple[int, ...],
    *,
    compiled: bool = False,
    before: Arrays | None = None,
) -> list[Any]:
    """Return the outputs of one run; a value must be the same on every rank.

    before: inputs of a run by the same ranks before this one.
    """

    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        run = ProgramRun(world, program, grid, Phases(world.backend.synchronize), compiled)
        assert run.prepare() == []
        outs = []
        for one in program.outputs:
            shape = run.region.shape + one.shape[len(program.space) :] if one.shape else ()
            outs.append(np.empty(shape, one.dtype))
        for wholes in [arrays] if before is None else [before, arrays]:
            for number, (whole, plan) in enumerate(zip(wholes, run.plans, strict=False)):
                if plan is not None:
                    array = run.arrays[number]
                    if array is None:
                        array = empty_array(world, plan, whole.dtype)
                    poison(array.block)
                    array.interior[...] = whole[array.region.slices]
                    array.written()
                    run.arrays[number] = array
            for value, one in program.inputs.items():
                given = wholes[one.number]
                run.values.views[value][...] = getattr(given, one.part) if one.part else given
            for out in outs:
                poison(out)
            run.take(outs)
        return run.region, outs

    parts = run_ranks(int(np.prod(grid)), rank)
    found = []
    for number, one in enumerate(program.outputs):
        whole = np.empty(one.shape, one.dtype)
        if not one.shape:
            assert len({outs[number].tobytes() for _, outs in parts}) == 1
        for region, outs in parts:
            whole[region.slices if one.shape else ...] = outs[number]
        found.append(whole)
    return found


def plain(function: Callable[..., Any], arrays: Arrays, **parameters: Any) -> list[Any]:
    """Return the results of the function itself, with NumPy on the whole arrays."""
    copies = [one.copy() for one in arrays]
    with np.errstate(all="ignore"):
        returned = function(*copies, **parameters)
    if returned is None:
        returned = [
            one for one, before in zip(copies, arrays, strict=True) if one.tobytes() != before.tobytes()
        ]
    return [np.asarray(one) for one in (returned if isinstance(returned, (tuple, list)) else [returned])]
