"""A map job that takes steps: from files to files, with the fields in memory between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshrun.runner.arrays.load import load_blocks
from meshrun.runner.arrays.store import store_of
from meshrun.runner.compiler.decide import stage_lines
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.maps.split_probe.probe import check_split
from meshrun.runner.maps.streamed.chunk_agreement import known_results, limits, serial_file
from meshrun.runner.options.spelling import option
from meshrun.runner.options.step_options import EVERY, FieldChange, Steady, StepOptions
from meshrun.runner.plan.chunking import not_streamed
from meshrun.runner.plan.steps import fields_memory, step_memory
from meshrun.runner.plan.task import Task, check_feeds
from meshrun.runner.report.record import Record
from meshrun.runner.run.context import RunContext, must_fuse
from meshrun.runner.run.map_run import (
    check_nothing_unfinished,
    commit,
    create_outputs,
    describe_task,
    fuse,
    planned,
)
from meshrun.runner.steps.fused_steps import most_fused_steps
from meshrun.runner.steps.loop import CheckFinite, StepObserver, Until, take_steps
from meshrun.runner.steps.observers.checkpoints import Checkpoints, KeepsState, find_state
from meshrun.runner.steps.observers.frames import FrameContent, Frames, open_frames
from meshrun.runner.steps.observers.steady import SteadyField, UntilSteady, bytes_kept
from meshrun.runner.steps.stepper import BeforeStep, Stepper
from meshrun.runner.steps.streamed_steps import StreamedSteps
from meshrun.runner.storage.checkpoint_folder import SavedState
from meshrun.runner.storage.formats.frame_files import ARRAYS
from meshrun.runner.storage.formats.registry import Sink, Source
from meshrun.runner.storage.paths import partial_path
from meshrun.runner.world.world import World

UntilAny = Until | UntilSteady


@dataclass(frozen=True)
class Additions:
    """What a solver adds to the time steps of a map job, whose outputs are not written then.

    content: what frames show. observers: of the fields, besides those of the options; the first to observe.
    before_step: given the stepper, returns what to call before each step with the padded block of each input,
    on every rank; None: nothing. With it, steps are taken one by one. files: that the observers write, under
    `partial_path` until they are complete. kept: observers whose states are part of checkpoints. steady: the
    field by which until="steady" judges; None: that option does not apply.
    """

    content: FrameContent
    observers: Sequence[StepObserver] = ()
    before_step: Callable[[Stepper], BeforeStep] | None = None
    files: Sequence[Path] = ()
    kept: Sequence[KeepsState] = ()
    steady: SteadyField | None = None


def in_passes(run: RunContext, task: Task) -> bool:
    """Return whether fields pass through the ranks in chunks instead of staying in memory. Collective.

    True if an option of streamed runs is given, or if a rank's fields do not fit its memory.
    """
    options = replace(run.options.stream, resume=False)
    serial = serial_file(run.world, task, run.sources, run.targets)
    if options.named is None and (serial is not None or _all_fit(run, task)):
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
        if options.named is None:
            reason = "a block that does not fit the memory of its rank"
            raise UserError(what, got=reason, hint="more ranks", everywhere=True)
        raise UserError(what, got=options.named, hint=f"leave {options.named} out", everywhere=True)
    if options.named is not None and serial is not None:
        raise not_streamed(options.named, serial)
    return True


def _all_fit(run: RunContext, task: Task) -> bool:
    """Return whether two copies of the fields fit the memory of every rank. Collective."""
    world, gpu, observed = run.world, run.world.backend.asynchronous, run.options.steps.until is not None
    needed = fields_memory(task, task.partition[world.rank], asynchronous=gpu, observed=observed)
    return all(world.control.allgather(needed <= _memory(run)))


def _check_additions(run: RunContext, additions: Additions) -> None:
    """Raise UserError if the steps would have to pass through chunks, or several would be taken at once.
    Collective."""
    several = run.options.steps.steps_per_exchange or 1
    if additions.before_step is not None and several > 1:
        raise UserError(
            f"{option('steps_per_exchange')} does not apply: cells are set before each step",
            got=several,
            everywhere=True,
        )
    options = replace(run.options.stream, resume=False)
    if options.named is not None:
        raise UserError(f"{options.named} does not apply: the fields stay in memory", everywhere=True)


def _in_memory_once(run: RunContext, task: Task, additions: Additions | None) -> bool | None:
    """Return whether the fields are in memory once; None if they pass through it in chunks. Collective."""
    options, region = run.options, task.partition[0]
    if additions is not None:
        _check_additions(run, additions)
        steady = additions.steady if isinstance(options.steps.until, Steady) else None
        kept = bytes_kept(steady, region) if steady is not None else 0
        return _takes_one_copy(run, task, kept, f"a smaller {option('size')}")
    if options.steps.copies == "one" and replace(options.stream, resume=False).named is None:
        return _takes_one_copy(run, task, 0, f"{option('copies', 'auto')}, for steps in chunks")
    return None if in_passes(run, task) else False


def _takes_one_copy(run: RunContext, task: Task, kept: int, size: str) -> bool:
    """Return whether the fields are to be in memory once: as asked, or if two copies do not fit. Collective.

    kept: bytes that a rank needs besides. Raises UserError if neither fits. size: what makes a field smaller.
    """
    asked = run.options.steps.copies
    least = _least_memory(run)
    one, two = (kept + step_memory(task, task.partition[0], one_copy=once) for once in (True, False))
    if asked != "one" and two <= least:
        return False
    needed = two if asked == "two" else min(one, two)
    if needed > least:
        copies = f", or {option('copies', 'one')}" if asked == "two" and one <= least else ""
        raise _too_large(run.world, needed, least, size + copies)
    return asked == "one" or one <= least


def check_memory(run: RunContext, total: int) -> None:
    """Raise UserError if fields of `total` bytes, once, do not fit the memory of the ranks. Collective.

    For jobs that would look at much of their domain before they take its steps.
    """
    least, needed = _least_memory(run), -(-total // run.world.size)
    if needed > least:
        raise _too_large(run.world, needed, least, f"a smaller {option('size')}")


def _memory(run: RunContext) -> int:
    """Return the bytes that this rank may use for fields."""
    limit = limits(run.world, replace(run.options.stream, resume=False))
    return limit.device if run.world.backend.asynchronous else limit.host


def _least_memory(run: RunContext) -> int:
    """Return the bytes that the rank with the least memory may use for fields. Collective."""
    least: int = min(run.world.control.allgather(_memory(run)))
    return least


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


def run_in_passes(run: RunContext, task: Task, steps: int) -> Record:
    """Take the steps in passes over chunks; return this part of the run's record. Collective."""
    world, options = run.world, run.options
    checkpoints = _checkpoints(run, task)
    state = find_state(checkpoints, resume=options.stream.resume)
    frames = _frames(run, task, checkpoints, state)
    until = _until_change(run)
    whole = world.collective_call(lambda: planned(run, 1, None))
    whole = replace(whole, results=task.results, kernel=task.kernel)
    sinks = create_outputs(run, task)
    partials = [sink.partial for sink in sinks] + _unfinished(checkpoints, frames)
    run.transaction.track_partial(*partials)
    streamed = StreamedSteps(
        world,
        whole,
        _sources(task, run.sources, state.fields if state else {}),
        sinks,
        replace(options.stream, resume=False),
        run.phases,
        lambda folder: run.transaction.track_partial(*partials, folder),
        run.show,
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
    details = streamed.take(steps, options.steps.steps_per_exchange or 1)
    seconds = time.perf_counter() - begin
    run.inputs.check(world)
    done = details.pop("steps")
    proof = _verified(run, task, sinks, done, checkpoints)
    commit(run, sinks)
    world.on_root(run.transaction.remove_partials)
    run.transaction.forget_partial()
    checkpoints.remove()
    steps_per_pass, single = details.pop("steps_per_pass"), details.pop("single_reason")
    _warn_of_single_steps(world, single)
    record = {
        "steps": done,
        "first": streamed.first,
        "steps_per_exchange": steps_per_pass,
        "steps_per_kernel": 1 if single else min(most_fused_steps(whole), steps_per_pass),
        "copies": 2,
        "exchanges": 0,
        "exchange_bytes": 0,
        "halo": None,
        "halo_reason": None,
        "graph": False,
        "graph_reason": None,
        "seconds": seconds,
        "exchange_fraction": 0.0,
        "passes": details.pop("passes"),
        **_observed(until, checkpoints, frames),
        **_rates(world, task, done - streamed.first, seconds),
    }
    about = {**describe_task(task, run), "overlap": False, "verify": proof, "plan": None, "steps": record}
    return {**about, **details}


def run_steps(run: RunContext, additions: Additions | None = None) -> Record:
    """Take the steps and write the outputs; return this part of the run's record. Collective."""
    world, options, steps = run.world, run.options, run.options.steps
    assert steps.steps is not None
    world.collective_call(lambda: _check_options(run, additions))
    task = world.collective_call(lambda: planned(run, world.size, options.grid))
    check_nothing_unfinished(run)
    task = known_results(world, fuse(run, task, steps.steps), run.sources)
    world.collective_call(lambda: check_feeds(task))
    once = _in_memory_once(run, task, additions)
    check_split(world, task)
    run.stages = world.on_root(lambda: stage_lines(replace(task, kernel=None))) or None
    if once is None:
        return run_in_passes(run, task, steps.steps)
    checkpoints = _checkpoints(run, task, additions.kept if additions else ())
    state = find_state(checkpoints, resume=options.stream.resume)
    frames = _frames(run, task, checkpoints, state, additions)
    sinks = [] if additions else create_outputs(run, task)
    more = _own(run, additions.files) if additions else []
    run.transaction.track_partial(*(sink.partial for sink in sinks), *_unfinished(checkpoints, frames), *more)
    cells = sum(region.size for region in task.partition)
    stepper = Stepper(
        world,
        task,
        run.phases,
        steps.steps_per_exchange or 0,
        options.overlap,
        steps.halo,
        progress=lambda done: run.stepped(done, steps.steps or 0, cells),
        keep_finals=steps.until is not None,
        done=state.step if state else 0,
        must_fuse=must_fuse(run.job, run.options),
        one_by_one=additions is not None and additions.before_step is not None,
        one_copy=once,
    )
    if stepper.lowered:
        asked, taken = steps.steps_per_exchange, stepper.steps_per_exchange
        run.world.warn(f"{option('steps_per_exchange', asked)} is lowered to {taken}: {stepper.lowered}")
    sources = _sources(task, run.sources, state.fields if state else {})
    stepper.start(load_blocks(world, sources, task, stepper.plans, run.phases, stepper))
    run.inputs.check(world)
    until = _until(run, additions.steady if additions else None, state)
    observers = _observers(steps, additions, frames, until, checkpoints)
    if additions is not None and additions.before_step is not None:
        stepper.before_step = additions.before_step(stepper)
    begin, beside = time.perf_counter(), _seconds_beside(run)
    filled = run.phases.seconds("exchange")  # before the first step: ranks wait for those that read longer
    try:
        done = take_steps(stepper, steps.steps, observers)
    except BaseException:
        _abandon(stepper, frames, additions)
        raise
    _warn_of_single_steps(world, stepper.single_reason)
    world.control.barrier()
    seconds = time.perf_counter() - begin - (_seconds_beside(run) - beside)
    stepper.finish()
    for number, sink in enumerate(sinks):
        store = store_of(world, task, sink, run.phases, number)
        store.put(store.region, stepper.result(number))
        store.finish()
    proof = _verified(run, task, sinks, done, checkpoints)
    commit(run, sinks)
    run.transaction.forget_partial()
    checkpoints.remove()
    record = {
        "steps": done,
        "first": state.step if state else 0,
        "steps_per_exchange": stepper.steps_per_exchange,
        "steps_per_kernel": min(stepper.fused_steps, stepper.steps_per_exchange),
        "copies": 1 if stepper.one_copy else 2,
        "exchanges": stepper.exchanges,
        "exchange_bytes": max(world.control.allgather(stepper.exchange_bytes)),
        "halo": stepper.halo_taken or None,
        "halo_reason": stepper.halo_reason or None,
        "graph": stepper.graph,
        "graph_reason": stepper.graph_reason or None,
        "seconds": seconds,
        "exchange_fraction": _exchange_fraction(run, filled, seconds, by_kernel=stepper.exchanges_by_kernel),
        "passes": None,
        **_observed(until, checkpoints, frames),
        **_rates(world, task, stepper.taken, seconds),
    }
    about = describe_task(task, run)
    return {
        **about,
        "overlap": stepper.overlap,
        "verify": proof,
        "plan": None,
        "stream": None,
        "steps": record,
    }


def _abandon(stepper: Stepper, frames: Frames | None, additions: Additions | None) -> None:
    """End what a loop that fails has under way."""
    stepper.drop_graphs()
    for one in (frames, *(additions.kept if additions else ())):
        if one is not None:
            one.abandon()


def _seconds_beside(run: RunContext) -> float:
    """Return the seconds so far that are not the loop's: kernels are compiled when it is known of how many
    steps and with the first frame, and the last frames are completed after the last step."""
    return run.phases.seconds("prepare") + run.phases.seconds("frames")


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
    state: SavedState | None,
    additions: Additions | None = None,
) -> Frames | None:
    """Return what writes frames, which a checkpoint waits for; None if there are none. Collective.

    Of a run that fails, frames in a folder and checkpoints stay.
    """
    first, colors = (state.step, state.colors) if state else (0, None)
    content = additions.content if additions else None
    resume = run.options.stream.resume
    frames = open_frames(run.world, task, run.options.steps, first, colors, content, resume=resume)
    if frames is not None:
        checkpoints.before = frames.flush
    if frames is not None or checkpoints.interval is not None:
        run.transaction.keep_files()
    return frames


def _unfinished(checkpoints: Checkpoints, frames: Frames | None) -> list[Path]:
    """Return what to remove, besides outputs, if the run fails."""
    found = [] if frames is None or frames.partial is None else [frames.partial]
    return found + ([] if checkpoints.interval is None else [checkpoints.folder.partial])


def _own(run: RunContext, files: Sequence[Path]) -> list[Path]:
    """Lock files that observers write, and return them as they are called until they are complete."""
    run.world.on_root(lambda: run.transaction.lock(*files))
    return [partial_path(file, run.world.run_id) for file in files]


def _observed(until: UntilAny | None, checkpoints: Checkpoints, frames: Frames | None) -> Record:
    """Return the part of the record that is about what looked at the fields."""
    return {
        "until": until and until.record,
        "checkpoints": checkpoints.written,
        "frames": frames.written if frames else 0,
        "merged_frames": frames.merged if frames else 0,
        "first_frame": frames.first if frames and frames.written else None,
    }


def _sources(task: Task, sources: Sequence[Source], saved: dict[str, Source]) -> list[Source]:
    """Return the source to load each input from: a checkpoint's file, or else its own."""
    return [saved.get(field.name, source) for field, source in zip(task.fields, sources, strict=True)]


def _check_options(run: RunContext, additions: Additions | None) -> None:
    """Raise UserError for a timeline, and for until="steady" if nothing tells when the state is steady."""
    timeline = run.options.stream.timeline
    if timeline is not None:
        raise UserError(f"{option('timeline')} does not apply to time steps", got=timeline)
    if isinstance(run.options.steps.until, FieldChange):
        run.options.steps.until.check(_changing(run.job))
    if isinstance(run.options.steps.until, Steady) and (additions is None or additions.steady is None):
        raise UserError(
            f"{option('until', 'steady')} applies to a flow, as of job airflow",
            got=f"job {run.job.name}",
            expected="the largest change of a cell in a step",
            hint=option("until", "1e-6"),
        )


def _until(run: RunContext, steady: SteadyField | None, state: SavedState | None) -> UntilAny | None:
    """Return what stops the run before its last step; None if nothing does."""
    until = run.options.steps.until
    if not isinstance(until, Steady):
        return _until_change(run)
    assert steady is not None  # see _check_options
    return UntilSteady(steady, until.tolerance or steady.tolerance, state.fields if state else {})


def _until_change(run: RunContext) -> Until | None:
    steps = run.options.steps
    if steps.until is None or isinstance(steps.until, Steady):
        return None
    every = steps.every or EVERY
    if isinstance(steps.until, FieldChange):
        return Until(steps.until.tolerance, every, steps.until.fields)
    return Until(steps.until, every, _changing(run.job))


def _changing(job: Job) -> list[str]:
    """Return the inputs that steps change, in the job's order."""
    return [name for name in job.arrays if name in job.feeds]


def _observers(
    steps: StepOptions,
    additions: Additions | None,
    frames: Frames | None,
    until: UntilAny | None,
    checkpoints: Checkpoints,
) -> list[StepObserver]:
    """Return the observers.

    The check for finite values is before checkpoints: none may have other values. Checkpoints are the last:
    the step at which `until` stops the run gets none, or a run resumed from it would go on.
    """
    found: list[StepObserver] = [*additions.observers] if additions else []
    if steps.check_finite is not None:
        found.append(CheckFinite(steps.check_finite))
    if frames is not None:
        found.append(frames)
    if until is not None:
        found.append(until)
    if isinstance(until, UntilSteady):
        checkpoints.more = until.to_save
    if steps.checkpoint is not None:
        found.append(checkpoints)
    return found


def _exchange_fraction(run: RunContext, before: float, seconds: float, *, by_kernel: bool) -> float | None:
    """Return the largest fraction, of all ranks, of a rank's loop in which it exchanged halos. Collective.

    before: seconds of this rank's exchanges before the loop. seconds: of its loop. At most 1: on a GPU, the
    seconds are an estimate from some of the exchanges. None if the steps' kernel exchanged, in its own time.
    """
    if by_kernel:
        return None
    own = max(run.phases.seconds("exchange") - before, 0.0)
    parts: list[float] = run.world.control.allgather(min(own / seconds, 1.0) if seconds > 0 else 0.0)
    return max(parts)


def _rates(world: World, task: Task, taken: int, seconds: float) -> dict[str, Any]:
    """Return the loop's rates. bytes_per_second: of one rank; inputs read, results written per step."""
    cells = sum(region.size for region in task.partition)
    largest = max((task.input_bytes(one) + task.result_bytes(one) for one in task.partition), default=0)
    world.control.barrier()  # ranks may share a memory: all measure at once, each its share
    copy = min(world.control.allgather(world.backend.copy_rate()))
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
        with run.phases("verify"):
            return verify_steps(
                run.world, task, run.sources, sinks, done, run.options.verify, progress=run.proof
            )
    except RunError:
        checkpoints.distrust()
        raise
