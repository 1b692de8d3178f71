"""What is to be known of the kernel that a task's function becomes; for `meshrun kernel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshrun.runner.compiler.block_function import BlockFunction
from meshrun.runner.compiler.compiled import DeviceKernel
from meshrun.runner.compiler.cpp import source as host_source
from meshrun.runner.compiler.cuda import shared_planes, single_pass
from meshrun.runner.compiler.cuda.steps.layout import NotFusable, StepKernel, layout_of
from meshrun.runner.compiler.decide import not_one_kernel
from meshrun.runner.compiler.operations import compiler_options, inexact_operations
from meshrun.runner.compiler.passes.branches import BranchCost, branch_costs, common_operations
from meshrun.runner.compiler.passes.ends import ends_of, interior
from meshrun.runner.compiler.passes.real_parts import in_real_parts
from meshrun.runner.compiler.trace.graph import Extents, Program, merge_components, with_units
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.traced import output_types, traced
from meshrun.runner.compiler.whole.graph import Cut
from meshrun.runner.compiler.whole.point_pass import without_points
from meshrun.runner.compiler.whole.spaces.parts import (
    LoopStep,
    ProductStep,
    SharedPlace,
    SpectralProgram,
    TransformStep,
)
from meshrun.runner.errors import UserError
from meshrun.runner.plan.task import Task, check_feeds
from meshrun.runner.programs.cells import kernels_of
from meshrun.runner.programs.chains import MOST_OPERATIONS, chains_of
from meshrun.runner.programs.reducing import ReducingKernel, prepared_for_kernels, reducing_kernels
from meshrun.runner.programs.spectral.layouts import plan_layouts
from meshrun.runner.programs.stages import (
    KernelStage,
    LoopStage,
    ProgramArray,
    Stage,
    StagedProgram,
    ValueStage,
    plan_program,
    with_results_as_arrays,
)
from meshrun.runner.report.units import bytes_text, counted
from meshrun.runner.spelling import option
from meshrun.runner.system.compiler import NotCompiled

# Operations that a GPU computes while its memory moves a byte: 7 of float32 on an H200 (33.5 T operations
# without contraction and 4.8 TB a second), half as many of float64.
OPERATIONS_PER_BYTE = {4: 7.0, 8: 3.5}


@dataclass(frozen=True)
class KernelReport:
    """source: CUDA or C++. facts: names and values to print."""

    source: str
    facts: list[tuple[str, str]]


def kernel_report(task: Task, arithmetic: str, steps: int | None, *, cpu: bool) -> KernelReport:
    """Return the kernel of a task; raises UserError if its function cannot be one.

    arithmetic: one of FUSE_MATH. steps: of a kernel that takes time steps; None: one pass. cpu: for a CPU.
    """
    if isinstance(task.job.program, SpectralProgram):
        return _spectral_report(task.job.program, cpu=cpu)
    if task.job.program is not None:
        staged = with_results_as_arrays(plan_program(task.job.program), task.feed_numbers)
        if cpu:
            return _stages_report(staged, {}, cpu=True)
        staged = prepared_for_kernels(staged, task.feed_numbers)
        return _stages_report(staged, reducing_kernels(staged, task.feed_numbers), cpu=False)
    try:
        program = traced(task)
        real = in_real_parts(program)
    except NotTraceable as reason:
        raise not_one_kernel(task, reason) from reason
    facts = _facts(real, inexact_operations(program.nodes), cpu=cpu)
    points = task.job.function.points if isinstance(task.job.function, BlockFunction) else None
    if points is not None:
        facts.append(("points", f"{counted(points.count, 'cell')} near them are computed after the others"))
        if steps is not None and steps > 1 and not cpu:
            raise UserError(
                f"job {task.job.name}: {steps} steps cannot be one kernel on a GPU",
                why="it writes to points in each step",
                hint=f"leave {option('steps')} out",
            )
    if cpu:
        return KernelReport(host_source.source([real]), facts)
    options = compiler_options(arithmetic)
    if steps is None:
        merged = with_units(merge_components(real)[0])
        together = shared_planes.choose(interior(merged))
        kernel = single_pass.emit(merged, march=None if isinstance(together, str) else together)
        tile = " x ".join(map(str, kernel.tile))
        loads = "" if kernel.planes else f", {kernel.description.load_instructions:.3g} loads for each"
        facts += [
            ("a thread", f"{tile} cells{loads}"),
            ("a block", f"{kernel.threads[0]} x {kernel.threads[1]} threads"),
        ]
        if kernel.planes:
            facts.append(("shared memory", f"{bytes_text(kernel.shared)} of a block: planes of its cells"))
        return KernelReport(
            kernel.source, facts + _registers(kernel.source, kernel.name, options, kernel.shared)
        )
    check_feeds(replace(task, results=output_types(task, program)))
    widths = task.widths[: program.axes]
    fused = DeviceKernel(program, widths, arithmetic, task.feed_numbers, task.boundary_read, task.cval)
    try:
        stepping = fused.step_text(steps)
    except NotFusable as reason:
        raise UserError(
            f"job {task.job.name}: {steps} steps cannot be one kernel",
            why=reason,
            hint=f"fewer {option('steps')}",
        ) from reason
    facts += [
        (
            "a warp",
            f"streams tiles of {stepping.valid + 2 * stepping.margin} columns, {stepping.valid} valid",
        ),
        ("memory", f"each cell read and written once in {counted(steps, 'step')}"),
        *_edges(stepping),
    ]
    return KernelReport(stepping.source, facts + _registers(stepping.source, stepping.name, options))


def _spectral_report(program: SpectralProgram, *, cpu: bool) -> KernelReport:
    """Return the kernels of all parts, what each computes, and how transforms and arrays are split."""
    layouts, sources, facts = plan_layouts(program), list[str](), list[tuple[str, str]]()
    moves = layouts.moves(program)
    for number, step in enumerate(program.steps):
        if isinstance(step, TransformStep):
            one = layouts.transforms[number]
            kind = {"complex": "complex", "forward": "real", "inverse": "to real numbers"}[
                step.transform.kind
            ]
            way = "inverse transform" if one.inverse else "transform"
            axes = ", ".join(map(str, one.axes))
            source, target = (program.shared[place].name for place in (step.source, step.target))
            facts.append(
                (
                    f"step {number + 1}",
                    f"{way} ({kind}, line {step.transform.line}) along axes {axes}: {source}, split along "
                    f"axis {one.split}, to {target}, split along axis {one.result_split}; "
                    f"{counted(one.exchanges, 'exchange')}",
                )
            )
            continue
        if isinstance(step, ProductStep):
            left, right = (program.shared[one].name for one in step.sources)
            target = program.shared[step.target].name
            what = f"product (line {step.product.line}) of {left} and {right} to {target}, split along axis 0"
            facts.append((f"step {number + 1}", what))
            continue
        if isinstance(step, LoopStep):
            last = number + 1 + step.steps
            body = f"step {number + 2}" if step.steps == 1 else f"steps {number + 2} to {last}"
            what = "condition" if step.kind == "if" else "loop"
            facts.append((f"step {number + 1}", f"{what} (line {step.line}) of {body}"))
            continue
        names = [_shared_name(program, place) for place in step.reads]
        staged = plan_program(step.program)
        report = _stages_report(staged if cpu else prepared_for_kernels(staged), {}, cpu=cpu)
        shape = " x ".join(map(str, step.program.space))
        written = ", ".join(_shared_name(program, place, result=True) for place in step.writes)
        split = layouts.parts[number]
        facts.append(
            (
                f"step {number + 1}",
                f"{shape} cells, split along axis {split}: {written} from {', '.join(names) or 'no array'}",
            )
        )
        facts += [(f"  {name}", text) for name, text in report.facts]
        sources.append(report.source)
    for number, place in moves:
        name = _shared_name(program, place)
        facts.append((f"step {number + 1}", f"redistributes {name} first, which is split along another axis"))
    return KernelReport("\n".join(sources), facts)


def _shared_name(program: SpectralProgram, place: SharedPlace, *, result: bool = False) -> str:
    if not place.of_function:
        return program.shared[place.number].name
    return (program.outputs if result else program.inputs)[place.number].name


def _stages_report(
    staged: StagedProgram, reducing: Mapping[int, ReducingKernel], *, cpu: bool
) -> KernelReport:
    """Return the kernels of a program in stages, and what each stage reads, computes and writes."""
    sources: list[str] = []
    facts: list[tuple[str, str]] = []
    by = {
        one: f", by the kernel of stage {kernel + 1}"
        for kernel in reducing
        for one in reducing[kernel].within
    }
    for kernel, one in reducing.items():
        by |= dict.fromkeys(one.ahead, f", by the kernel of stage {kernel + 1} of the step before")
    for number, stage in enumerate(staged.stages):
        facts.append((f"stage {number + 1}", _stage(staged, stage) + by.get(number, "")))
        if isinstance(stage, LoopStage):
            inside = _body_report(stage, cpu=cpu)
            sources.append(inside.source)
            facts += [(f"  {name}", value) for name, value in inside.facts]
        if not isinstance(stage, KernelStage):
            continue
        for cells in kernels_of(reducing[number].cells if number in reducing else stage.cells):
            program = in_real_parts(without_points(cells.program.program))
            if cpu:
                sources.append(host_source.source([program]))
            else:
                sources.append(single_pass.emit(with_units(merge_components(program)[0])).source)
    # Which stages share a launch, and why no others do.
    wraps = [number for number, one in enumerate(staged.arrays) if one.wraps]
    for chain in [] if cpu else chains_of(staged, "cuda", wraps, reducing):
        if len(chain) > 1:
            why = f"one launch of one block: none has more than {MOST_OPERATIONS:,} operations"
            facts.append((f"stages {chain[0] + 1}-{chain[-1] + 1}", why))
    if (reason := staged.reasons.misaligned) is not None:
        line = f"line {reason.line}: " if reason.line else ""
        facts.append(("coarse grids", f"at all positions of the finest one: {line}{reason.reason}"))
    facts += [_cut(staged, cut) for cut in staged.reasons.cuts if cut.repeated or cut.written]
    return KernelReport("\n".join(sources), facts)


def _cut(staged: StagedProgram, cut: Cut) -> tuple[str, str]:
    """Return which array is written, or is not, and why."""
    written = cut.number >= 0
    name = staged.arrays[cut.number].name if written else f"line {cut.line}"
    again = f"{counted(cut.repeated, 'operation')} of a cell again, for {cut.distances} distances"
    what = "written, instead of" if written else "not written, but"
    cost = f"its bytes take as long as {cut.worth}"
    if cut.splits:
        cost = "what reads it would be computed in many parts"
    elif cut.worth < 0:
        cost = "what it is computed of has more bytes"
    return name, f"{what} {again}; {cost}"


def _body_report(stage: LoopStage, *, cpu: bool) -> KernelReport:
    """Return the kernels of a loop's body."""
    if cpu:
        return _stages_report(stage.body, {}, cpu=True)
    return _stages_report(stage.body, reducing_kernels(stage.body, stage.loop.feeds), cpu=False)


def _stage(staged: StagedProgram, stage: Stage) -> str:
    """Return what a stage does."""
    if isinstance(stage, LoopStage):
        loop = stage.loop
        if loop.kind == "if":
            return f"if a value says so (line {loop.line}), once:"
        if loop.kind == "while":
            return f"repeats while a value says so (line {loop.line}), an unknown number of times:"
        count = counted(len(loop.numbers.items or ()), "time")
        most = "" if loop.again is None else " at most, until a value ends it"
        return f"repeats {count}{most} (line {loop.line}):"
    if isinstance(stage, ValueStage):
        return f"computes {counted(len(stage.nodes), 'value')}"
    reads = []
    for number, extents in zip(stage.cells.reads, stage.cells.footprints, strict=True):
        reach = _reach(extents)
        reads.append(f"{_named(staged.arrays[number])} {reach}")
    source = ", ".join(reads) or "no array"
    if isinstance(stage, KernelStage):
        written = [
            staged.outputs[one.number].name if one.of_output else _named(staged.arrays[one.number])
            for one in stage.writes
        ]
        operations = counted(stage.cells.program.operations, "operation")
        return f"computes {', '.join(written)} from {source}: {operations} of a cell"
    reduction = stage.reduction
    axes = "all axes" if stage.value is not None else f"axes {', '.join(map(str, reduction.axes))}"
    return f"reduces ({reduction.ufunc}, line {reduction.line}) over {axes}: {source}"


def _named(array: ProgramArray) -> str:
    """Return the name of an array, with its lengths if it has fewer cells than the function's."""
    return array.name if array.lattice is None else f"{array.name} ({' x '.join(map(str, array.shape))})"


def _edges(kernel: StepKernel) -> list[tuple[str, str]]:
    """Return how far cells near the array's ends read, if that is further than those between."""
    layout, facts = layout_of(kernel.program, kernel.feeds), []
    inside = layout.interior
    for axis, (repeated, filled) in enumerate(zip(layout.repeats, layout.filled, strict=True)):
        if repeated:
            facts.append((f"axis {axis}", f"the last {counted(repeated, 'cell')} repeat the first ones"))
        if any(filled):
            facts.append((f"axis {axis}", f"edges of {filled[0]} + {filled[1]} cells copy those beside them"))
    for axis, ends in enumerate(layout.ends):
        reads = [inside.footprint(number)[axis] for number in kernel.feeds]
        between = max(max(one) for one in reads)
        if ends.reach <= between:
            continue
        wider = kernel.radius[axis - kernel.program.axes] > between
        cost = "all cells are computed with that reach" if wider else f"others with a reach of {between}"
        facts.append((f"axis {axis}", f"edges read {ends.reach} cells away; {cost}"))
    return facts


def _facts(program: Program, inexact: Sequence[str], *, cpu: bool) -> list[tuple[str, str]]:
    """Return what a program reads and computes. program: of real numbers. inexact: as of `Fusion`."""
    inner, ends = interior(program), ends_of(program)
    moved = sum(one.dtype.itemsize * one.components for one in (*program.inputs, *program.outputs))
    widest = max(node.dtype.itemsize for node in inner.nodes)
    least = moved * OPERATIONS_PER_BYTE[8 if widest == 8 else 4]
    limit = "memory" if common_operations(inner) < least else "arithmetic"
    facts = [(one.name, f"read {_extents(inner, number)}") for number, one in enumerate(program.inputs)]
    facts += [
        ("a cell", f"{counted(moved, 'byte')} of memory, {counted(inner.operations, 'operation')}"),
        ("limit", f"{limit}: a GPU computes about {least:.0f} operations while it moves these bytes"),
    ]
    if inner is not program:
        cells = " x ".join(f"{before} + {after}" for before, after in ends)
        operations = counted(program.operations, "operation")
        facts.append(("at the ends", f"{operations} for the first + last cells of each axis: {cells}"))
        facts += [
            ("", f"{one.name} read {_extents(program, number)}")
            for number, one in enumerate(program.inputs)
            if program.footprint(number) != inner.footprint(number)
        ]
    if branches := branch_costs(inner):
        together = "a row's segment" if cpu else "a thread"
        common = counted(common_operations(inner), "operation")
        facts.append(("branches", f"{common} for cells of {together} that take none"))
        facts += [(f"line {one.line}" if one.line else "", _branch(one)) for one in branches]
    if inexact:
        facts.append(("last bits", f"of {', '.join(inexact)} depend on the device"))
    return facts


def _branch(branch: BranchCost) -> str:
    more = counted(branch.operations, "operation")
    return f"{more} more where its condition is {str(branch.side).lower()}"


def _extents(program: Program, number: int) -> str:
    return _reach(program.footprint(number))


def _reach(reach: Extents) -> str:
    if all(width == (0, 0) for width in reach):
        return "at the own cell only"
    return "from " + " x ".join(f"-{low}..+{high}" for low, high in reach)


def _registers(source: str, name: str, options: tuple[str, ...], shared: int = 0) -> list[tuple[str, str]]:
    """Return the registers of a thread, on a machine with a GPU. shared: bytes of a block's memory."""
    try:
        from meshrun.runner.device import cuda
        from meshrun.runner.device.nvrtc import registers_of
    except ImportError:
        return [("registers", "not known without CuPy and a GPU")]
    if not cuda.count():
        return [("registers", "not known without a GPU")]
    try:
        compiled: Any = cuda.kernel_of_text(source, name, options, shared)
    except NotCompiled as failure:
        return [("registers", f"not known: {failure.reason}")]
    return [("registers", f"{registers_of(compiled)} of a thread")]
