"""A map job that takes steps: from files to files, with the fields in memory between."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.runner.arrays.load import load_arrays, spread_sources
from meshrun.runner.arrays.store import store_of
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.maps.streamed.chunk_agreement import serial_file, with_trial_results
from meshrun.runner.options.loop_rules import LoopRules
from meshrun.runner.options.step_options import EVERY, FieldChange, NamedRule, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import MemoryUse, not_streamed
from meshrun.runner.plan.steps import fields_memory, moved_bytes, step_memory
from meshrun.runner.plan.task import ArrayType, Task, check_feeds
from meshrun.runner.region import Shape
from meshrun.runner.report.record import Record, type_record
from meshrun.runner.run.finish import Computation, Finished, commit, commit_series, computation_of
from meshrun.runner.run.map_run import no_series_in_chunks, refuse_options
from meshrun.runner.run.prepare import (
    Prepared,
    RunContext,
    changing_inputs,
    check_nothing_unfinished,
    limits,
    make_task_outputs,
    must_fuse,
    named_rule,
    planned,
    prepare,
)
from meshrun.runner.spelling import option
from meshrun.runner.steps.loop import CheckFinite, StepObserver, Until, take_steps
from meshrun.runner.steps.observers.additions import Additions, StoppingRule
from meshrun.runner.steps.observers.checkpoints import Checkpoints, KeepsState, find_state, restore
from meshrun.runner.steps.observers.frames import Frames, check_frames_fit
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.steps.steps_per_kernel import choose_steps
from meshrun.runner.steps.streamed_steps import StreamedSteps
from meshrun.runner.storage.checkpoint_folder import SavedState
from meshrun.runner.storage.formats.frame_files import ARRAYS
from meshrun.runner.storage.formats.registry import Sink, Source
from meshrun.runner.storage.paths import partial_path
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel
    from meshrun.runner.steps.observers.series import SeriesRows


@dataclass(frozen=True)
class StepStart:
    """What rank 0 found out before any rank reads.

    results: shapes and dtypes of the task's results. copies: of the fields in memory; 0: they pass through it
    in chunks. stages: see `stage_lines`. state: what the run continues from; None: it starts at the
    beginning. frames: the number of the input that they show; None without frames. sinks: the outputs.
    """

    results: tuple[ArrayType, ...]
    copies: int
    stages: list[int] | None
    state: SavedState | None
    frames: int | None
    sinks: list[Sink]


@dataclass(frozen=True)
class KernelChoice:
    """How a kernel of several steps was chosen, for the record.

    source: predicted, measured, or kept by an earlier run. compared: choices that were measured, of so many
    rivals. speedup: of the fastest over the predicted one. ignored: a file that keeps no choice for this
    kernel.
    """

    source: str
    compared: int | None = None
    rivals: int | None = None
    speedup: float | None = None
    ignored: str | None = None


def _start(run: RunContext, prepared: Prepared, additions: Additions | None) -> StepStart:
    """Find the types of the results, decide where the fields are, and create the outputs. On rank 0."""
    check_nothing_unfinished(run)
    task = with_trial_results(run.world, prepared.task, run.sources)
    check_feeds(task)
    copies = _copies(run, task, prepared.memory, additions)
    prepared.planned.try_splits(run.world, task)
    stages = prepared.planned.stages or None
    # Find what the run continues from.
    checkpoints = _checkpoints(run, task, additions.kept if additions else ())
    state = find_state(checkpoints, resume=run.options.stream.resume)
    # Check the frames, and create the outputs.
    first, content = state.step if state else 0, additions.content if additions else None
    resume = run.options.stream.resume
    steps = run.options.steps
    with_frames = steps.frames is not None
    frames = check_frames_fit(run.world, task, steps, first, content, resume=resume) if with_frames else None
    if additions is not None:
        run.transaction.lock(*additions.files)
    sinks = [] if additions else make_task_outputs(run, task)
    return StepStart(task.known, copies, stages, state, frames, sinks)


def _copies(run: RunContext, task: Task, memory: Sequence[MemoryUse], additions: Additions | None) -> int:
    """Return in how many copies the fields are in memory; 0 if they pass through it in chunks. On rank 0.

    memory: of `Prepared`. Raises UserError for options that do not apply to what is left.
    """
    options, region = run.options, task.partition[0]
    stream = replace(options.stream, resume=False)
    if task.job.program is not None:
        refuse_options(run, task, memory)
        return 2
    if run.series:
        return _for_series(run, task, memory, stream)
    if additions is not None:
        several = options.steps.steps_per_exchange or 1
        if additions.before_step is not None and several > 1:
            raise UserError(
                f"{option('steps_per_exchange')} does not apply: cells are set before each step", got=several
            )
        if stream.named is not None:
            raise UserError(f"{stream.named} does not apply: the fields stay in memory")
        rule = named_rule(run, additions)
        kept = 0 if rule is None else rule.bytes_kept(region)
        return _one_or_two(run, task, memory, kept, additions.smaller)
    if options.steps.copies == "one" and stream.named is None:
        return _one_or_two(run, task, memory, 0, f"{option('copies', 'auto')}, for steps in chunks")
    return 0 if _in_chunks(run, task, memory, stream) else 2


def _for_series(run: RunContext, task: Task, memory: Sequence[MemoryUse], stream: StreamOptions) -> int:
    """Return the copies of the fields in memory, for a job with series. On rank 0."""
    if stream.named is not None:
        raise no_series_in_chunks(run, stream.named)
    return _one_or_two(run, task, memory, 0, "smaller arrays: series are not computed in chunks")


def _in_chunks(run: RunContext, task: Task, memory: Sequence[MemoryUse], stream: StreamOptions) -> bool:
    """Return whether fields pass through the ranks in chunks: an option of streamed runs is given, or two
    copies do not fit the memory of a rank. On rank 0."""
    serial = serial_file(task, run.sources, run.targets)
    if stream.named is None and (serial is not None or _all_fit(run, task, memory)):
        return False
    steps = run.options.steps
    refused = {
        option("frames", steps.frames): steps.frames is not None
        and Path(steps.frames).suffix.lower() in ARRAYS,
        option("grid"): run.options.grid is not None,
        option("overlap"): run.options.overlap is not None,
        option("halo"): steps.halo != "auto",
        option("copies"): steps.copies != "auto",
    }
    named = next((name for name, given in refused.items() if given), None)
    if named is not None:
        what = f"{named} does not apply to steps in chunks"
        if stream.named is None:
            reason = "a block that does not fit the memory of its rank"
            raise UserError(what, got=reason, hint="more ranks")
        raise UserError(what, got=stream.named, hint=f"leave {stream.named} out")
    if stream.named is not None and serial is not None:
        raise not_streamed(stream.named, serial)
    return True


def _all_fit(run: RunContext, task: Task, memory: Sequence[MemoryUse]) -> bool:
    """Return whether two copies of the fields fit the memory of every rank."""
    gpu, observed = run.world.backend.asynchronous, run.options.steps.until is not None
    needed: dict[Shape, int] = {}  # by shape of the block: there are few
    for region, limit in zip(task.partition, memory, strict=True):
        if region.shape not in needed:
            needed[region.shape] = fields_memory(task, region, asynchronous=gpu, observed=observed)
        if needed[region.shape] > (limit.device if gpu else limit.host):
            return False
    return True


def _one_or_two(run: RunContext, task: Task, memory: Sequence[MemoryUse], kept: int, size: str) -> int:
    """Return the copies of the fields in memory: as asked, or one if two do not fit. On rank 0.

    kept: bytes that a rank needs besides. Raises UserError if neither fits. size: what makes a field smaller.
    """
    asked, gpu = run.options.steps.copies, run.world.backend.asynchronous
    least = min(limit.device if gpu else limit.host for limit in memory)
    one, two = (kept + step_memory(task, task.partition[0], one_copy=once) for once in (True, False))
    if asked != "one" and two <= least:
        return 2
    needed = two if asked == "two" else min(one, two)
    if needed > least:
        copies = f", or {option('copies', 'one')}" if asked == "two" and one <= least else ""
        raise _too_large(run.world, needed, least, size + copies)
    return 1 if asked == "one" or one <= least else 2


def check_memory(run: RunContext, total: int, smaller: str) -> None:
    """Raise UserError if fields of `total` bytes, once, do not fit the memory of the ranks. Collective.

    For jobs that would look at much of their domain before they take its steps. smaller: what makes it
    smaller.
    """
    limit = limits(run.world, replace(run.options.stream, resume=False))
    mine = limit.device if run.world.backend.asynchronous else limit.host
    least, needed = min(run.world.control.allgather(mine)), -(-total // run.world.size)
    if needed > least:
        raise _too_large(run.world, needed, least, smaller)


def _too_large(world: World, needed: int, least: int, otherwise: str) -> UserError:
    """Return the error of fields that need more bytes of a rank than the least that one has."""
    gpu, local = world.backend.asynchronous, -(-world.size // len(world.hosts))
    enough = -(-needed * world.size // (least * (1 if gpu else local)))
    return UserError(
        "the fields do not fit the memory of the ranks",
        got=f"{needed:,} bytes of fields on rank 0",
        expected=f"at most {least:,}",
        hint=f"about {enough} {'GPUs' if gpu else 'hosts'}, or {otherwise}",
        everywhere=True,
    )


def run_in_passes(
    run: RunContext, prepared: Prepared, task: Task, start: StepStart, computed: Computation
) -> Finished:
    """Take the steps in passes over chunks. Collective."""
    world, options, state, sinks = run.world, run.options, start.state, start.sinks
    checkpoints = _checkpoints(run, task)
    frames = _frames(run, task, checkpoints, start)
    until = _until_change(run)
    whole = replace(planned(run, 1, None), job=task.job, results=task.results, kernel=task.kernel)
    partials = [sink.partial for sink in sinks] + _unfinished(checkpoints, frames)
    run.transaction.track_partial(*partials)
    streamed = StreamedSteps(
        world,
        whole,
        _sources(task, run.sources, state.fields if state else {}),
        sinks,
        replace(options.stream, resume=False),
        prepared.memory,
        lambda folder: run.transaction.track_partial(*partials, folder),
        run.progress.stream,
        run.world.warn,
        state.step if state else 0,
        checkpoints,
        frames,
        until,
        options.steps.every or EVERY,
        options.steps.check_finite,
        must_fuse(run.job, run.options),
    )
    begin = time.perf_counter()
    assert options.steps.steps is not None
    taken = streamed.take(options.steps.steps, options.steps.steps_per_exchange or 1)
    seconds = time.perf_counter() - begin
    run.inputs.check(world)
    proof = _verified(run, task, sinks, taken.steps, checkpoints)
    commit(run, sinks)
    world.on_root(run.transaction.remove_partials)
    run.transaction.forget_partial()
    checkpoints.remove()
    _warn_of_single_steps(world, taken.single_reason)
    own, copy, _, _ = _slowest(world)
    several = choose_steps(whole, in_chunks=True).per_kernel
    fused_steps = 1 if taken.single_reason else min(several, taken.steps_per_pass)
    record = {
        "steps": taken.steps,
        "first": streamed.first,
        "steps_per_exchange": taken.steps_per_pass,
        "steps_per_kernel": fused_steps,
        "kernel_choice": None,
        "copies": 2,
        "exchanges": 0,
        "exchange_bytes": 0,
        "halo": None,
        "halo_reason": None,
        "graph": False,
        "graph_reason": None,
        "seconds": seconds,
        "exchange_fraction": 0.0,
        "passes": taken.passes,
        **_observed(until, checkpoints, frames),
        **_rates(task, taken.steps - streamed.first, seconds, copy),
    }
    known = task.stored
    return Finished(
        computed, type_record(known[0]), known, verify=proof, stream=taken.stream, steps=record, copy_rate=own
    )


def run_steps(run: RunContext, additions: Additions | None = None) -> Finished:
    """Take the steps and write the outputs. Collective."""
    world, options, steps = run.world, run.options, run.options.steps
    assert steps.steps is not None
    prepared = prepare(run, additions)
    start = world.on_root(lambda: _start(run, prepared, additions))
    task = replace(prepared.task, results=start.results)
    computed = computation_of(task, prepared.fusion, stages=start.stages)
    if start.copies == 0:
        return run_in_passes(run, prepared, task, start, computed)
    state, sinks = start.state, start.sinks
    series = _series(run, task)
    kept = (*(additions.kept if additions else ()), *series)
    checkpoints = _checkpoints(run, task, kept)
    frames = _frames(run, task, checkpoints, start, additions)
    more = [
        *(partial_path(file, world.run_id) for file in (additions.files if additions else ())),
        *(file for rows in series for file in rows.unfinished),
    ]
    run.transaction.track_partial(*(sink.partial for sink in sinks), *_unfinished(checkpoints, frames), *more)
    cells = sum(region.size for region in task.partition)
    of_task = stepper_of(task)
    stepper = of_task(
        world,
        task,
        run.world.phases,
        steps.steps_per_exchange or 0,
        options.overlap,
        steps.halo,
        progress=lambda done: run.progress.steps(done, steps.steps or 0, cells),
        keep_finals=steps.until is not None,
        done=state.step if state else 0,
        must_fuse=must_fuse(run.job, run.options),
        one_by_one=_one_by_one(additions, series, one_copy=start.copies == 1),
        one_copy=start.copies == 1,
        rules=LoopRules(options.max_iterations, steps.check_finite is not None),
        saved=state.step if state else None,
    )
    _warn_of_lowered(world, stepper, steps)
    sources = _sources(task, run.sources, state.fields if state else {})
    stepper.start(load_arrays(world, sources, stepper.plans, world.phases, stepper))
    world.control.barrier()  # another rank may still be reading
    run.inputs.check(world)
    until = _until(run, additions, state)
    observers = _observers(steps, additions, frames, until, checkpoints, series)
    if additions is not None and additions.before_step is not None:
        stepper.before_step = additions.before_step(stepper)
    begin, beside = time.perf_counter(), _seconds_beside(run)
    filled = run.world.phases.seconds(
        "exchange"
    )  # before the first step: ranks wait for those that read longer
    try:
        done = take_steps(stepper, steps.steps, observers)
    except BaseException:
        _abandon(stepper, frames, kept)
        raise
    _warn_of_single_steps(world, stepper.single_reason)
    world.control.barrier()
    seconds = time.perf_counter() - begin - (_seconds_beside(run) - beside)
    stepper.finish()
    _store(run, stepper, sinks)
    proof = _verified(run, task, sinks, done, checkpoints)
    commit(run, sinks)
    if series:
        commit_series(run, series)
    run.transaction.forget_partial()
    checkpoints.remove()
    exchanging = _exchange_fraction(run, filled, seconds, by_kernel=stepper.exchanges_by_kernel)
    own, copy, exchanged, fraction = _slowest(world, stepper.exchange_bytes, exchanging)
    record = {
        "steps": done,
        "first": state.step if state else 0,
        "steps_per_exchange": stepper.steps_per_exchange,
        "steps_per_kernel": min(stepper.fused_steps, stepper.steps_per_exchange),
        "kernel_choice": asdict(choice) if (choice := _kernel_choice(stepper)) else None,
        "copies": start.copies,
        "exchanges": stepper.exchanges,
        "exchange_bytes": exchanged,
        "halo": stepper.halo_taken or None,
        "halo_reason": stepper.halo_reason or None,
        "graph": stepper.graph,
        "graph_reason": stepper.graph_reason or None,
        "seconds": seconds,
        "exchange_fraction": fraction,
        "passes": None,
        **_observed(until, checkpoints, frames),
        **_rates(task, stepper.taken, seconds, copy, stepper.handed_on),
    }
    known, computed = task.stored, replace(computed, overlap=stepper.overlap, loops=stepper.loop_counts)
    rows = [of_file for one in series for of_file in one.types]
    return Finished(computed, type_record(known[0]), known, rows, verify=proof, steps=record, copy_rate=own)


def _store(run: RunContext, stepper: Stepper, sinks: Sequence[Sink]) -> None:
    """Write the results. Collective."""
    for number, sink in enumerate(sinks):
        store = store_of(run.world, stepper.task, sink, run.world.phases, number)
        store.put(store.region, stepper.result(number))
        store.finish()


def stepper_of(task: Task) -> type[Stepper]:
    """Return what takes the steps of a task."""
    if task.job.program is None:
        return Stepper
    from meshrun.runner.steps.program_steps import ProgramStepper

    return ProgramStepper


def _series(run: RunContext, task: Task) -> list[SeriesRows]:
    """Return what writes the results that are no fields: one, or none."""
    if not run.series:
        return []
    from meshrun.runner.steps.observers.series import SeriesRows

    run.world.on_root(lambda: run.transaction.lock(*run.series))
    steps = run.options.steps
    return [SeriesRows(run.world, task, run.series, steps.every or 1, steps.steps or 1)]


def _kernel_choice(stepper: Stepper) -> KernelChoice | None:
    """Return how a GPU's kernel of several steps was chosen."""
    chosen: ChosenKernel | None = getattr(stepper.task.kernel, "choice", None)
    if chosen is None or stepper.fused_steps == 1:
        return None
    rivals = len(chosen.rivals) if chosen.source == "measured" else None
    ignored = str(chosen.file) if chosen.unreadable else None
    return KernelChoice(chosen.source, chosen.compared, rivals, chosen.speedup, ignored)


def _abandon(stepper: Stepper, frames: Frames | None, kept: Sequence[KeepsState]) -> None:
    """End what a loop that fails has under way."""
    stepper.drop_graphs()
    for one in (frames, *kept):
        if one is not None:
            one.abandon()


def _seconds_beside(run: RunContext) -> float:
    """Return the seconds so far that are not the loop's: kernels are compiled when it is known of how many
    steps and with the first frame, and the last frames are completed after the last step."""
    return run.world.phases.seconds("prepare") + run.world.phases.seconds("frames")


def _one_by_one(additions: Additions | None, series: Sequence[SeriesRows], *, one_copy: bool) -> bool:
    """Return whether no kernel takes several steps: something is done before each, or reads halos then."""
    before = additions is not None and additions.before_step is not None
    return before or any(one.one_by_one(one_copy=one_copy) for one in series)


def _unfinished_rows(series: Sequence[SeriesRows]) -> list[Path]:
    return [file for one in series for file in one.unfinished]


def _warn_of_lowered(world: World, stepper: Stepper, steps: StepOptions) -> None:
    """Warn if fewer steps than asked for lie between two exchanges."""
    if stepper.lowered:
        asked, taken = steps.steps_per_exchange, stepper.steps_per_exchange
        world.warn(f"{option('steps_per_exchange', asked)} is lowered to {taken}: {stepper.lowered}")


def _warn_of_single_steps(world: World, reason: str) -> None:
    if reason:
        world.warn(f"steps are taken one by one: the kernel that takes several does not compile ({reason})")


def _checkpoints(run: RunContext, task: Task, observers: Sequence[KeepsState] = ()) -> Checkpoints:
    steps = run.options.steps
    assert steps.steps is not None
    return Checkpoints(
        run.world,
        task,
        run.sources,
        run.targets[0],
        steps.checkpoint,
        steps.steps,
        run.inputs,
        run.transaction,
        observers=observers,
    )


def _frames(
    run: RunContext,
    task: Task,
    checkpoints: Checkpoints,
    start: StepStart,
    additions: Additions | None = None,
) -> Frames | None:
    """Restore the observers, and return what writes frames, which a checkpoint waits for; None if there are
    none. Collective.

    Of a run that fails, frames in a folder and checkpoints stay.
    """
    state, frames = start.state, None
    if state is not None:
        restore(checkpoints, state)
    if start.frames is not None:
        first, colors = (state.step, state.colors) if state else (0, None)
        content = additions.content if additions else None
        frames = Frames(run.world, task, run.options.steps, start.frames, first, colors, content)
        checkpoints.before = frames.flush
    if frames is not None or checkpoints.interval is not None:
        run.transaction.keep_files()
    return frames


def _unfinished(checkpoints: Checkpoints, frames: Frames | None) -> list[Path]:
    """Return what to remove, besides outputs, if the run fails."""
    found = [] if frames is None or frames.partial is None else [frames.partial]
    return found + ([] if checkpoints.interval is None else [checkpoints.folder.partial])


def _observed(until: Until | StoppingRule | None, checkpoints: Checkpoints, frames: Frames | None) -> Record:
    """Return the part of the record that is about what looked at the fields."""
    stopped: Record | None = None
    if until is not None:
        stopped = {"tolerance": until.tolerance, "change": until.change, "reached": until.reached}
        if isinstance(until, Until):
            stopped["fields"] = list(until.fields)
        else:
            stopped |= {"field": until.compared, "over": until.every}
    return {
        "until": stopped,
        "checkpoints": checkpoints.written,
        "frames": frames.written if frames else 0,
        "merged_frames": frames.merged if frames else 0,
        "first_frame": frames.first if frames and frames.written else None,
    }


def _sources(task: Task, sources: Sequence[Source], saved: dict[str, Source]) -> list[Source]:
    """Return the source to load each input from: a checkpoint's file, or else its own."""
    found = [saved.get(field.name, source) for field, source in zip(task.fields, sources, strict=True)]
    return found if task.job.sizes is None else spread_sources(task, found)


def _until(
    run: RunContext, additions: Additions | None, state: SavedState | None
) -> Until | StoppingRule | None:
    """Return what stops the run before its last step; None if nothing does."""
    rule = named_rule(run, additions)
    if rule is not None and state is not None:
        rule.restore(state.fields)
    return rule or _until_change(run)


def _until_change(run: RunContext) -> Until | None:
    steps = run.options.steps
    if steps.until is None or isinstance(steps.until, NamedRule):
        return None
    every = steps.every or EVERY
    if isinstance(steps.until, FieldChange):
        return Until(steps.until.tolerance, every, steps.until.fields)
    return Until(steps.until, every, changing_inputs(run.job))


def _observers(
    steps: StepOptions,
    additions: Additions | None,
    frames: Frames | None,
    until: Until | StoppingRule | None,
    checkpoints: Checkpoints,
    series: Sequence[SeriesRows],
) -> list[StepObserver]:
    """Return the observers.

    Series are after what stops the run: they compute the row of a step before it. The check for finite values
    is before checkpoints: none may have other values. Checkpoints are the last: the step at which `until`
    stops the run gets none, or a run resumed from it would go on.
    """
    found: list[StepObserver] = [*additions.observers] if additions else []
    if steps.check_finite is not None:
        found.append(CheckFinite(steps.check_finite))
    if frames is not None:
        found.append(frames)
    if until is not None:
        found.append(until)
    if until is not None and not isinstance(until, Until):
        checkpoints.more = until.to_save
    found += series
    if steps.checkpoint is not None:
        found.append(checkpoints)
    return found


def _exchange_fraction(run: RunContext, before: float, seconds: float, *, by_kernel: bool) -> float | None:
    """Return the fraction of this rank's loop in which it exchanged halos.

    before: seconds of this rank's exchanges before the loop. seconds: of its loop. At most 1: on a GPU, the
    seconds are an estimate from some of the exchanges. None if the steps' kernel exchanged, in its own time.
    """
    if by_kernel:
        return None
    own = max(run.world.phases.seconds("exchange") - before, 0.0)
    return min(own / seconds, 1.0) if seconds > 0 else 0.0


def _slowest(
    world: World, exchanged: int = 0, fraction: float | None = None
) -> tuple[float, float, int, float | None]:
    """Return the rate at which this rank copies memory while all do, and the least of all ranks; of all ranks
    the most bytes exchanged and the largest fraction of the loop that this took; None if a rank has none.
    Collective."""
    world.control.barrier()  # ranks may share a memory: all measure at once, each its share
    own = world.backend.copy_rate()
    rates, counts, fractions = zip(*world.control.allgather((own, exchanged, fraction)), strict=True)
    return own, min(rates), max(counts), None if None in fractions else max(fractions)


def _rates(
    task: Task, taken: int, seconds: float, copy: float, handed_on: Collection[int] = ()
) -> dict[str, Any]:
    """Return the loop's rates. bytes_per_second: of one rank; inputs read, results written per step. copy:
    bytes per second at which the slowest rank copies memory. handed_on: as of `moved_bytes`."""
    cells = sum(region.size for region in task.partition)
    largest = max((moved_bytes(task, one, handed_on) for one in task.partition), default=0)
    rate = largest * taken / seconds if seconds else None
    return {
        "cells_per_second": cells * taken / seconds if seconds else None,
        "bytes_per_second": rate,
        "copy_bytes_per_second": copy,
        "fraction_of_copy": rate / copy if rate else None,
    }


def _verified(
    run: RunContext, task: Task, sinks: Sequence[Sink], done: int, checkpoints: Checkpoints
) -> Record | None:
    if run.options.verify == "off":
        return None
    from meshrun.runner.run.verify.steps import verify_steps

    try:
        with run.world.phases("verify"):
            return verify_steps(
                run.world, task, run.sources, sinks, done, run.options.verify, progress=run.progress.proof
            )
    except RunError:
        checkpoints.distrust()
        raise
