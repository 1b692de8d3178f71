"""A job of kind "job" or "reduce": whose result is not an array that is partitioned like its input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.maps.reduce import Tiles, reduce_array
from meshrun.runner.maps.same_values import ValueSummary, refuse_other_values, summary_of_reduction
from meshrun.runner.plan.task import check_unmasked, in_own_byte_order
from meshrun.runner.region import Region
from meshrun.runner.report.record import type_record
from meshrun.runner.run.finish import Computation, Finished
from meshrun.runner.run.prepare import RunContext, join, limits
from meshrun.runner.run.services.created_output import CreateOutput
from meshrun.runner.run.services.simulation import Simulate
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import open_sink
from meshrun.runner.storage.paths import job_paths, split
from meshrun.runner.world.world import World


def run_job(run: RunContext) -> Finished:
    """Call the job's function, and write, verify and name its output. Collective."""
    world, job, options = run.world, run.job, run.options

    def prepare() -> tuple[int, ValueSummary | None]:
        join(run)
        check_options(run)
        summary = None
        if world.size > 1 and job.kind == "reduce":
            known = run.source.shape, run.source.dtype
            summary = summary_of_reduction(job, run.parameters, *known, world.backend)
        return usable_memory(run), summary

    everyone = world.gather_calls(prepare)
    memory = everyone[world.rank][0]
    if job.kind == "reduce":
        refuse_other_values(world, job, [summary for _, summary in everyone])
    partial = output = None
    if run.targets and "output" in job.services:
        partial, output = job_paths(run.targets[0], world.run_id)
        run.transaction.track_partial(partial)
    simulate = Simulate(run) if job.takes_steps else None
    create = CreateOutput(run) if "create" in job.services and run.targets else None
    world.checkpoints.resume, world.checkpoints.transaction = options.stream.resume, run.transaction
    world.checkpoints.progress = run.progress.iterations
    try:
        value = call(run, output=output, simulate=simulate, create=create, memory=memory)
    except BaseException:
        end_loops(world, failed=True)
        raise
    if world.checkpoints.resume and not world.checkpoints.loops and simulate is None:
        world.warn(f"{option('resume', True)}: job {job.name} has nothing to continue: no meshrun.checkpoint")
    # A rank may still be reading its inputs or writing its part of the output.
    world.control.barrier()
    run.inputs.check(world)
    proof = results = None
    if create is not None:
        proof, results = create.finish()
    elif options.verify != "off":
        from meshrun.runner.run.verify.results import verify_result

        run.progress.proof(0, 1)
        with world.phases("verify"):
            proof = verify_result(world, job, run.parameters, run.source, value)
        run.progress.proof(1, 1)
    end_loops(world, failed=False)
    if partial is not None:
        world.on_root(lambda: _commit(run, partial))
        run.transaction.forget_partial()
    elif run.targets and job.kind == "reduce":
        value = in_own_byte_order(value)
        with world.phases("write"):
            world.on_root(lambda: _write_array(run, value))
        run.transaction.forget_partial()
        value = type_record((value.shape, value.dtype))
    done = (
        simulate.done if simulate is not None and simulate.done is not None else Finished(Computation(), None)
    )
    return replace(done, result=value, results=results, verify=proof)


def end_loops(world: World, *, failed: bool) -> None:
    """End the checkpoints of a job's own loops, if it has any. Collective unless it has failed."""
    if world.checkpoints.loops:
        from meshrun.runner.run.main_program.checkpoint import end_checkpoints

        end_checkpoints(world, failed=failed)


def check_options(run: RunContext) -> None:
    """Raise UserError for options that do not apply to the job."""
    job, options = run.job, run.options
    if options.form is not None and not job.opens_input:
        raise UserError(
            f"{option('input_shape')}, {option('input_dtype')} and {option('input_order')} do not apply "
            f"to job {job.name}",
            expected="a job whose INPUT is an array",
            everywhere=True,
        )
    of_blocks: dict[str, object] = {"boundary": options.boundary, "cval": options.cval}
    if not job.takes_steps:
        of_blocks |= {"grid": options.grid, "overlap": options.overlap}
    given = [option(name) for name, value in of_blocks.items() if value is not None]
    stream = options.stream
    if stream.resume and (job.takes_steps or job.kind == "job"):
        stream = replace(stream, resume=False)
    if "memory" in job.services:
        stream = replace(stream, host_memory=None, device_memory=None)
    if given or stream.named:
        which = f"{', '.join(given)} do" if len(given) > 1 else f"{given[0] if given else stream.named} does"
        raise UserError(
            f"{which} not apply to job {job.name}", expected="a job made by map_blocks", everywhere=True
        )
    checked = job.reference is not None or job.verify is not None
    if options.verify != "off" and job.kind == "job" and not checked:
        raise UserError(
            f"{option('verify')}: job {job.name} has no reference to compare with",
            hint=f"without {option('verify')}; a job of your own takes reference= or verify= in its "
            "decorator",
            everywhere=True,
        )


def usable_memory(run: RunContext) -> int:
    """Return the bytes that this rank may use for arrays: of its device, or its host's if it is a CPU; 0 for
    a job that does not ask."""
    if "memory" not in run.job.services:
        return 0
    limit = limits(run.world, run.options.stream)
    return limit.device if run.world.backend.asynchronous else limit.host


def _write_array(run: RunContext, value: Any) -> None:
    """Write the array that a reduction returned; RunError for anything else. On rank 0."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        raise RunError(
            f"job {run.job.name} returned no array to write to {run.targets[0]}",
            got=type(value).__name__,
            hint="leave OUTPUT out",
        )
    check_unmasked(f"job {run.job.name} returned a masked array", value)
    sink = open_sink(run.targets[0], value.shape, value.dtype, run.world.run_id)
    run.transaction.track_partial(sink.partial)
    sink.create()
    sink.write(Region((0,) * value.ndim, value.shape), np.ascontiguousarray(value))
    sink.sync()
    run.transaction.commit(sink.partial, sink.path)


def _commit(run: RunContext, partial: Path) -> None:
    """Rename a job's own output to its final name; RunError if there is none. On rank 0."""
    target = run.targets[0]
    if not partial.exists():
        raise RunError(
            f"job {run.job.name} returned without writing its output {target}",
            got=f"nothing at {partial.name}",
            expected="a file at the path in its parameter `output`",
        )
    run.transaction.commit(partial, split(target)[0])


def call(
    run: RunContext,
    *,
    output: Path | None = None,
    simulate: Simulate | None = None,
    create: CreateOutput | None = None,
    memory: int = 0,
) -> Any:
    """Call the job's function and return its result.

    output: the path to write to, if it writes. memory: see `usable_memory`.
    """
    world, job = run.world, run.job
    if job.kind == "reduce":
        return reduce_array(
            world, job, run.parameters, Tiles(world, run.source, world.phases, whole_rows=job.whole_rows)
        )
    services = {
        "world": world,
        "input": run.sources[0] if run.sources else None,
        "inputs": run.sources,
        "argument": str(run.paths[0]) if run.paths else "",
        "output": output,
        "xp": world.xp,
        "simulate": simulate,
        "create": create,
        "memory": memory,
    }
    wanted = {name: service for name, service in services.items() if name in job.services}
    if simulate is not None or create is not None:  # they have phases of their own
        return job.function(**wanted, **run.parameters)
    with world.phases("job"):
        return job.function(**wanted, **run.parameters)
