"""What a run needs before it reads: files, locks, task, kernel, memory. Its ranks agree on it once.

Rank 0 checks, locks and opens the files for all. Then each rank plans the task and compiles its kernel
alone, and one collective tells every rank what the others found: an error on any rank is raised on all.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.arrays.inputs import Inputs, input_key, note
from meshrun.runner.arrays.load import open_decoded, planned_type, spread_sources
from meshrun.runner.arrays.store import open_sinks
from meshrun.runner.compiler.decide import Fusion, fused_alone, not_one_kernel
from meshrun.runner.compiler.function_key import Captured, captured, key_of
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.lint.edge_stages import stage_lines
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.series import Series
from meshrun.runner.job.signature import STEP
from meshrun.runner.maps.called_stages import called_stage_lines
from meshrun.runner.maps.in_memory import OnProgress, OnSteps, halo_plans, no_progress
from meshrun.runner.maps.kept_values import KeptValues
from meshrun.runner.maps.same_values import (
    ValueSummary,
    differing_rank,
    refuse_other_values,
    summary_of,
    whole_program,
)
from meshrun.runner.maps.split_probe import refuse_split
from meshrun.runner.options.form import forms_of_inputs
from meshrun.runner.options.loop_rules import OnIteration, nothing_shown
from meshrun.runner.options.run_options import Options
from meshrun.runner.options.step_options import FieldChange, NamedRule, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import MemoryUse, block_memory, check_limit, has_own_grid, memory_limits
from meshrun.runner.plan.task import ArrayType, Task, plan_task
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.report.stream_progress import OnStreamProgress, no_stream_progress
from meshrun.runner.run.files import check_files, check_no_overwrite, name_files
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.image_folder import Folder
from meshrun.runner.storage.formats.registry import ComputedSource, Sink, Source, create
from meshrun.runner.storage.journal import Journal
from meshrun.runner.storage.paths import CONTAINERS, KEPT, journal_folder, partial_path, split, suffix
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.system.cached_files import cache_folder
from meshrun.runner.system.host_memory import host_memory
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.compiler.whole.functions.outside import Constant
    from meshrun.runner.steps.observers.additions import Additions, StoppingRule


NO_STEPS = StepOptions()
MOST_PLANNED = 64  # tasks
_PLANNED: dict[Hashable, PlannedTask] = {}
_LOCK = threading.Lock()


@dataclass(frozen=True)
class RunProgress:
    """What to call as a run goes on.

    rows: with this rank's finished rows and their total. stream: with the state of a streamed run. proof:
    with this rank's verified cells and their total. steps: with the steps taken, their total and the cells
    computed in one. iterations: of a loop that a condition ends, in a run without steps.
    """

    rows: OnProgress = no_progress
    stream: OnStreamProgress = no_stream_progress
    proof: OnProgress = no_progress
    steps: OnSteps = no_progress
    iterations: OnIteration = nothing_shown


@dataclass(frozen=True)
class OpenedFiles:
    """The files of a run, as rank 0 opened them for all ranks.

    paths: of the inputs, as they were given. targets: of the outputs. folder: the input, if it is a folder of
    images. sources: the opened inputs; none of a folder, or of a job that opens its input itself. inputs: the
    states of the input files before they were opened.
    """

    paths: list[Path]
    targets: list[Path]
    folder: Folder | None
    sources: list[Source]
    inputs: Inputs


@dataclass
class RunContext:
    """What the functions of one run share.

    paths: of the inputs, as they were given. targets: of the outputs, at last those that are no fields.
    sources: the opened inputs; none of a folder of images, or for a job that opens its input itself.
    """

    world: World
    job: Job
    parameters: dict[str, Any]
    options: Options
    transaction: OutputTransaction
    paths: Sequence[Path] = ()
    targets: Sequence[Path] = ()
    sources: Sequence[Source] = ()
    inputs: Inputs = field(default_factory=Inputs)
    progress: RunProgress = field(default_factory=RunProgress)

    @property
    def series(self) -> Sequence[Path]:
        """The paths of the outputs that are no fields."""
        return self.targets[len(self.targets) - len(self.job.series) :]

    @property
    def source(self) -> Source:
        """The first input; for a job that is not made by map_blocks, the only one."""
        return self.sources[0]


@dataclass
class PlannedTask:
    """What a rank finds out alone about a job and its arrays.

    declared: the job as it was given. task: of the job with its halo, without a kernel. alone: with a kernel
    in place of the function, where this rank has one. needed: bytes of this rank's block, whole in memory.
    fusion: why it has a kernel or none; None: it was not to have one. first_values: what the function may
    keep from one call to the next, before this run called it; None: it did not. tried: the grids for which
    `try_splits` has passed, each with whether the task had a kernel. summarized: of `summary`.
    """

    declared: Job
    task: Task
    alone: Task
    needed: int
    fusion: Fusion | None
    first_values: KeptValues | None
    tried: set[tuple[Shape, bool]] = field(default_factory=set)
    summarized: ValueSummary | None = None

    @cached_property
    def stages(self) -> list[int]:
        """The lines that compute or read a stage beyond the array's edges; see `stage_lines`."""
        traced = stage_lines(self.task)
        return called_stage_lines(self.task) if traced is None else traced

    @cached_property
    def whole_plans(self) -> list[HaloPlan]:
        """The layout of each input's block if one rank has all of it."""
        return halo_plans(self.alone, 0)

    def summary(self, world: World) -> ValueSummary:
        """Return what ranks compare, so that all of them compute the same function."""
        if self.summarized is None:
            # A function that became a kernel has been compared with it in NumPy.
            backend = world.backend if self.alone.kernel is None else CpuBackend()
            self.summarized = summary_of(self.alone, backend)
        return self.summarized

    def try_splits(self, world: World, task: Task) -> None:
        """Call the function on small arrays, whole and cut. On one rank.

        Raises UserError if its result depends on how its array is cut. task: this one, perhaps with another
        grid or without its kernel.
        """
        cut = task.partition.grid, task.kernel is not None
        if cut not in self.tried:
            refuse_split(world, task, self.first_values)
            self.tried.add(cut)


@dataclass(frozen=True)
class Prepared:
    """What the ranks agreed on before they read.

    planned: what this rank found out alone. task: cut into a block for each rank. fusion: why it has a kernel
    or none; None: it was not to have one. memory: what each rank may use, in rank order. too_large: whether
    a rank's block does not fit its memory, and no option of streamed runs is given.
    """

    planned: PlannedTask
    task: Task
    fusion: Fusion | None
    memory: tuple[MemoryUse, ...]
    too_large: bool


def open_files(run: RunContext, inputs: Sequence[str | Path], outputs: Sequence[str | Path]) -> OpenedFiles:
    """Check the files, lock the outputs until the run ends, and open the inputs. On rank 0.

    Raises UserError for parameters or files that the job cannot take.
    """
    job, options = run.job, run.options
    run.parameters = job.complete(run.parameters)
    paths, targets = name_files(job, inputs, outputs)
    folder = check_files(job, run.parameters, (paths, targets), options, run.transaction)
    files = dict.fromkeys(split(target)[0] for target in targets)
    added_to = [file for file in files if job.kind == "map" and suffix(file) in CONTAINERS]
    opened = [] if folder or not job.opens_input else paths
    names = captured(job) if job.kind == "map" else Captured()
    states = note(_read_files(job, opened, run.parameters), added_to, names)
    sources: list[Source] = []
    if folder is None:
        with run.world.phases("read"):
            forms = None if options.form is None else forms_of_inputs(options.form, len(opened))
            sources = open_decoded(opened, forms, options.stream.host_memory)
    check_no_overwrite(job, run.parameters, (paths, targets), sources, options)
    return OpenedFiles(paths, targets, folder, sources, states)


def _read_files(job: Job, opened: Sequence[Path], parameters: dict[str, Any]) -> dict[str, Path]:
    """Return the files that must not change during a run, by their keys in `Inputs`.

    opened: the inputs; none for a folder of images, each of which is checked when it is read. A parameter of
    type Path is one if a block's function reads it; a function of kind "job" may also write it.
    """
    files = {input_key(number): split(path)[0] for number, path in enumerate(opened)}
    for parameter in job.parameters if job.kind != "job" else ():
        value = parameters.get(parameter.name)
        if value is not None and (parameter.type is Path or isinstance(value, Path)):
            files[parameter.name] = split(Path(value))[0]
        if isinstance(value, Series) and value.path is not None:
            files[parameter.name] = value.path
    return files


def join(run: RunContext) -> None:
    """Do what rank 0 did in `open_files`, as far as each rank has to. On every rank."""
    if run.world.rank > 0:
        run.parameters = run.job.complete(run.parameters)
        run.inputs = run.inputs.seen_by(run.world)


def prepare(run: RunContext, additions: Additions | None = None) -> Prepared:
    """Plan the task and compile its kernel on each rank, and agree on both. Collective.

    Completes the job of `run`, and its sources. additions: of the job that takes the steps. An error on any
    rank is raised on all.
    """
    world, options = run.world, run.options
    own, everyone = world.call_and_tell(lambda: _plan_on_rank(run, additions))
    planned, run.job, run.sources = own.planned, own.planned.task.job, own.sources
    # A kernel that every rank has takes the function's place.
    task, fusion = planned.task, None
    fusions = [rank.fusion for rank in everyone if rank.fusion is not None]
    if fusions:
        steps = options.steps.steps or 1
        task, fusion = agreed_kernel(world, task, planned.alone, fusions, options.fuse, steps)
    # Refuse a function that each process has with values of its own. If each call changes them, the check of
    # the split names the line.
    summaries = [rank.summary for rank in everyone]
    if world.size > 1 and differing_rank(summaries) is not None:
        world.on_root(lambda: planned.try_splits(world, task))
        refuse_other_values(world, planned.declared, summaries, whole_program(planned.alone.job))
    memory = tuple(rank.memory for rank in everyone)
    return Prepared(planned, task, fusion, memory, any(rank.too_large for rank in everyone))


@dataclass(frozen=True)
class OwnPlan:
    """What a rank has planned alone. sources: of all inputs of the task, with constants of the function."""

    planned: PlannedTask
    sources: Sequence[Source]


@dataclass(frozen=True)
class RankPlan:
    """What a rank tells the others of its plan.

    fusion: why it has a kernel or none; None: it was not to have one. memory: what it may use. too_large:
    whether its block does not fit, and no option decides. summary: what ranks compare; None on one rank.
    """

    fusion: Fusion | None
    memory: MemoryUse
    too_large: bool
    summary: ValueSummary | None


def _plan_on_rank(run: RunContext, additions: Additions | None) -> tuple[OwnPlan, RankPlan]:
    """Plan the task of a run on this rank. additions: as of `prepare`."""
    world, options, steps = run.world, run.options, run.options.steps.steps
    # Check what the options ask of the job.
    if additions is None:
        join(run)
    if options.steps != NO_STEPS:
        options.steps.check(series=bool(run.job.series), whole=run.job.whole)
    if steps is not None:
        check_steps(run, additions)
    # Plan the task, and compile its kernel.
    types = [(source.shape, source.dtype) for source in run.sources]
    own_grid = steps is None and has_own_grid(options.grid, world.size)
    grid = None if own_grid else options.grid
    with world.phases("prepare") if (options.fuse or run.job.fuse) != "off" else nullcontext():
        planned = plan_alone(world, run.job, run.parameters, types, options, grid)
    made, constants = planned.alone, planned.task.job.constants
    sources = spread_sources(made, [*run.sources, *map(source_of, constants)])
    if made.job.tape is not None or STEP in made.job.services or made.has_timed_boundary:
        from meshrun.runner.compiler.traced import check_tables

        check_tables(made, steps or 1)
    # Compare the block with the memory, unless an option decides. Steps in memory may be resumed.
    stream = options.stream if steps is None else replace(options.stream, resume=False)
    memory, on_device = limits(world, stream), world.backend.asynchronous
    needed_by = memory.device if on_device else memory.host
    too_large = stream.named is None and planned.needed > needed_by
    summary = planned.summary(world) if world.size > 1 else None
    return OwnPlan(planned, sources), RankPlan(planned.fusion, memory, too_large, summary)


def plan_alone(
    world: World,
    job: Job,
    parameters: dict[str, Any],
    inputs: Sequence[ArrayType],
    options: Options,
    grid: str | None = None,
) -> PlannedTask:
    """Return a job's task for arrays, with a block for each rank and a kernel if this rank can have one.

    Tracing, trial calls and compilation take milliseconds to seconds. What an earlier run or call found is
    used if all that the job's functions read is as it was then (`function_key`). If that cannot be known,
    everything is found anew.

    Parameters
    ----------
    parameters: of the job, complete.
    inputs: shape and dtype of each array.
    options: of the run.
    grid: blocks along each axis, as of `plan_task`.

    Raises
    ------
    UserError
        The arrays, parameters or options do not fit the job.
    """
    device, mode, steps = world.backend.device, options.fuse, options.steps.steps or 1
    # Look for a task that was planned for the same.
    # Of the job, which stays as it is, what functions read may change.
    read = key_of([job.function, *filter(callable, (job.halo, job.out, job.check)), parameters])
    ranks = world.rank, world.size, device.kind, device.index
    chosen = grid, options.boundary, options.cval, mode, options.fuse_math, steps
    key = None if read is None else (read, id(job), tuple(inputs), ranks, chosen)
    with _LOCK:
        kept = None if key is None else _PLANNED.get(key)
    if kept is not None:
        kept.first_values = None  # the function has not been called for this run
        return kept
    if key is not None:  # the caller may change its lists and arrays
        parameters = copy.deepcopy(parameters)
    # Infer the halo, cut the arrays into blocks, and compile the kernel. This calls the function.
    values = KeptValues.of(job.function, parameters)
    found = with_inferred_halo(job, inputs, parameters, device.kind)
    if found.program is not None:
        from meshrun.runner.forecast.stage_memory import with_stage_memory

        found = with_stage_memory(found, device.kind)
    boundary, cval = options.boundary, options.cval
    task = alone = plan_task(found, parameters, inputs, world.size, grid=grid, boundary=boundary, cval=cval)
    fusion = None
    if (mode or job.fuse) != "off":
        alone, fusion = fused_alone(device, task, mode, options.fuse_math, steps)
    needed = block_memory(alone, alone.partition[world.rank], asynchronous=world.backend.asynchronous)
    planned = PlannedTask(job, task, alone, needed, fusion, values)
    # Keep it, unless another attempt may succeed.
    if key is not None and not (fusion is not None and fusion.refused):
        with _LOCK:
            _PLANNED[key] = planned
            while len(_PLANNED) > MOST_PLANNED:
                del _PLANNED[next(iter(_PLANNED))]
    return planned


def forget_tasks() -> None:
    """Forget all tasks, as a new process has none."""
    with _LOCK:
        _PLANNED.clear()


def source_of(constant: Constant) -> Source:
    """Return the array that a function uses and does not take, as an input."""
    values = constant.values

    def fill(region: Region, target: HostArray) -> None:
        target[...] = values[region.slices]

    return ComputedSource(
        values.shape,
        values.dtype,
        fill,
        {"constant": constant.name, "sha256": constant.digest},
        Path(f"{constant.name}, of the function"),
    )


def limits(world: World, options: StreamOptions) -> MemoryUse:
    """Return the bytes that this rank's chunks may take together.

    Raises UserError if an option allows more than the host or GPU has.
    """
    beside, host, gpu = world.beside, host_memory(), world.backend.asynchronous
    check_limit("host_memory", options.host_memory, host, "this host")
    if not gpu:
        return memory_limits(options, host=host, beside=len(beside), device=None, sharing=1)
    here, free = world.here.device, world.backend.free_memory()
    check_limit("device_memory", options.device_memory, here.memory, "this GPU")
    sharing = sum(rank.device.uuid == here.uuid for rank in beside)
    return memory_limits(options, host=host, beside=len(beside), device=free, sharing=sharing)


def fused(world: World, task: Task, mode: str | None, arithmetic: str, steps: int = 1) -> tuple[Task, Fusion]:
    """Return the task with a kernel in place of its function, where every rank has one. Collective.

    mode, arithmetic, steps: as of `fused_alone`. Raises UserError on every rank if the mode is "require" and
    there is no kernel.
    """
    alone, fusion = fused_alone(world.backend.device, task, mode, arithmetic, steps)
    return agreed_kernel(world, task, alone, world.control.allgather(fusion), mode, steps)


def agreed_kernel(
    world: World, task: Task, alone: Task, fusions: Sequence[Fusion], mode: str | None, steps: int = 1
) -> tuple[Task, Fusion]:
    """Return the task that all ranks compute, and whether it has a kernel.

    Collective only for a kernel of several steps on GPUs, whose tuning rank 0 chooses, and for one on the
    host that may be slower than the function, which rank 0 measures. task: without a
    kernel. alone: of this rank, by `fused_alone`; fusions: of all ranks. mode, steps: as of `fused_alone`.
    Raises UserError if the mode is "require" and there is no kernel.
    """
    without = next((fusion for fusion in fusions if fusion.compiler is None), None)
    if without is not None:
        if not without.quiet and (mode or task.job.fuse) == "require":
            raise not_one_kernel(task, without)
        return task, without
    if (mode or task.job.fuse) == "auto" and world.backend.device.kind != "cuda":
        from meshrun.runner.compiler.call_or_kernel import is_slower, may_be_slower

        made = alone.kernel
        if may_be_slower(task, made) and world.on_root(lambda: is_slower(task, made, cache_folder())):
            return task, Fusion(why="NumPy is faster, as was measured", quiet=True)
    kernel, shape = alone.kernel, task.partition[0].shape
    if steps > 1 and kernel is not None and fusions[world.rank].compiler == "CUDA":
        from meshrun.runner.compiler.device_kernel import DeviceKernel

        if isinstance(kernel, DeviceKernel):
            grid = task.partition.grid
            kernel.choice = world.on_root(
                lambda: kernel.choice or kernel.choose(world.backend.device, shape, steps, grid)
            )
    return alone, fusions[world.rank]


def planned(run: RunContext, blocks: int, grid: str | None) -> Task:
    """Return the task cut into so many blocks; raises UserError if inputs and options do not fit."""
    types = [planned_type(source) for source in run.sources]
    boundary, cval = run.options.boundary, run.options.cval
    return plan_task(run.job, run.parameters, types, blocks, grid=grid, boundary=boundary, cval=cval)


def check_steps(run: RunContext, additions: Additions | None) -> None:
    """Raise UserError for a timeline, and for `until` with a field or a rule that the job does not have."""
    timeline, until = run.options.stream.timeline, run.options.steps.until
    if timeline is not None:
        raise UserError(f"{option('timeline')} does not apply to time steps", got=timeline)
    if isinstance(until, FieldChange):
        until.check(changing_inputs(run.job))
    if isinstance(until, NamedRule) and named_rule(run, additions) is None:
        raise UserError(
            f"{option('until', until.name)} does not apply: job {run.job.name} has no such rule",
            expected="the largest change of a cell in a step",
            hint=option("until", "1e-6"),
        )


def named_rule(run: RunContext, additions: Additions | None) -> StoppingRule | None:
    """Return the solver's rule by which the steps stop; None unless `until` names it."""
    named = isinstance(run.options.steps.until, NamedRule)
    return additions.until if additions is not None and named else None


def changing_inputs(job: Job) -> list[str]:
    """Return the inputs that steps change, in the job's order."""
    return [name for name in job.arrays if name in job.feeds]


def make_outputs(run: RunContext, sinks: list[Sink], before: Sequence[Sink] = ()) -> list[Sink]:
    """Create output files under temporary names, to be removed if the run fails. On rank 0.

    before: sinks of the run's first outputs, which are there already.
    """
    for target, sink in zip(run.targets[len(before) :], sinks, strict=False):
        if run.options.verify != "off" and not sink.lossless:
            raise UserError(
                f"{option('verify')} reads the output back, and {target.suffix} does not store it exactly",
                hint="an output that ends in .png or .npy",
            )
    run.transaction.track_partial(*(sink.partial for sink in (*before, *sinks)))
    create(sinks)
    return sinks


def make_task_outputs(run: RunContext, task: Task) -> list[Sink]:
    """Create a task's outputs like `make_outputs`. task: its results known."""
    return make_outputs(run, open_sinks(task, run.targets, run.world.run_id))


def check_nothing_unfinished(run: RunContext) -> None:
    """Raise UserError if there is an unfinished streamed run of this output. On rank 0."""
    output = split(run.targets[0])[0]
    if not os.path.lexists(journal_folder(output)):
        return
    journal = Journal(output)
    if journal.kept() is not None:
        raise journal.unfinished(*(partial_path(target, KEPT) for target in run.targets))


def must_fuse(job: Job, options: Options) -> bool:
    """Return whether a function that does not become one kernel is an error."""
    return (options.fuse or job.fuse) == "require"
