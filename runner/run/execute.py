"""A run from beginning to end: checks, blocks, results, proof, record."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from itertools import combinations
from pathlib import Path
from typing import Any

from runner.errors import RunError, UserError
from runner.job.declaration import Job
from runner.pipeline.dispatch import OnStreamProgress, no_stream_progress
from runner.pipeline.in_memory import OnProgress, no_progress
from runner.pipeline.inputs import note
from runner.pipeline.reduce import Tiles, reduce_array
from runner.report.phases import Phases
from runner.report.record import SCHEMA, Record, envelope, plain, write_json
from runner.run.map_run import run_map
from runner.run.options import VERIFY, Options, RunContext
from runner.run.record_builder import phase_table, places, versions
from runner.storage.formats import Source, check_output, check_place, open_source
from runner.storage.image_folder import Folder, check_output_folder, open_folder
from runner.storage.paths import job_paths, named, split
from runner.storage.transaction import OutputTransaction
from runner.world.failure import FailureHandler, Guard
from runner.world.world import World, open_world

__all__ = ["Options", "execute", "run"]


def run(
    job: Job,
    input: str | Path,
    output: str | Path | None = None,
    parameters: dict[str, Any] | None = None,
    options: Options | None = None,
    *,
    world: World | None = None,
) -> Record:
    """Run a job on a file over every rank; return the run's record on every rank. Collective.

    An error common to all ranks is raised on all of them. An error of a single rank is printed to stderr and
    ends all ranks; in a world of one rank it is raised.
    """
    options = options or Options()
    mine = world or open_world(options.device, oversubscribe=options.oversubscribe)
    handler = FailureHandler(debug=options.debug)
    try:
        with Guard(mine, handler):
            return execute(
                mine, job, input, output, parameters or {}, options, transaction=handler.transaction
            )
    finally:  # an error that gets here is every rank's
        if world is None:
            mine.close()


def execute(
    world: World,
    job: Job,
    input: str | Path,
    output: str | Path | None,
    parameters: dict[str, Any],
    options: Options,
    *,
    transaction: OutputTransaction,
    progress: OnProgress = no_progress,
    show: OnStreamProgress = no_stream_progress,
    proof: OnProgress = no_progress,
) -> Record:
    """`run` in an open world; the caller handles failures and rolls `transaction` back.

    progress: called with this rank's finished rows and their total. show: called with the state of a streamed
    run. proof: called with this rank's verified cells and their total.
    """
    begin, started = time.perf_counter(), datetime.now(timezone.utc)
    if options.verify not in VERIFY:
        raise UserError("unknown --verify", got=options.verify, expected=", ".join(VERIFY), everywhere=True)
    parameters = world.collective_call(lambda: job.complete(parameters))
    target = world.collective_call(lambda: _target(job, output))
    source_path = world.collective_call(lambda: named("INPUT", input))
    folder = world.on_root(lambda: _check_files(source_path, target, options, transaction))
    inputs = note(world, None if folder else source_path, job, parameters)
    phases = world.phases = Phases(world.backend.synchronize)
    if folder is not None:
        from runner.run.image_run import FolderRun

        folder_run = FolderRun(
            world, job, parameters, folder, target, options, transaction, phases, show, proof, inputs
        )
        details = folder_run.run()
    else:
        with phases("read"):
            source: Source = world.on_root(lambda: open_source(source_path, options.form))
        run = RunContext(
            world,
            job,
            parameters,
            source,
            target,
            options,
            transaction,
            progress,
            phases,
            show,
            proof,
            inputs,
        )
        details = run_map(run) if job.kind == "map" else _result(run)
        details = {"shape": list(source.shape), "dtype": str(source.dtype), **details}
    transaction.release()
    found = {
        "job": job.name,
        "parameters": plain(parameters),
        "input": str(input),
        "shape": details.pop("shape"),
        "dtype": details.pop("dtype"),
        "output": None if target is None else str(target),
        "ranks": world.size,
        "hosts": world.hosts,
        "devices": places(world),
        "started": started.isoformat(timespec="seconds"),
        **details,
        "phases": phase_table(world, phases, {"kernel": _memory_limit(world)}),
        "warnings": list(world.warnings),
        "versions": versions(world),
        "seconds": time.perf_counter() - begin,
    }
    if options.json is not None and world.rank == 0:
        write_json(Path(options.json), "run", SCHEMA, found)
    return envelope("run", SCHEMA, found)


def _target(job: Job, output: str | Path | None) -> Path | None:
    writes = job.kind == "map" or "output" in job.services
    if output is not None and not writes:
        raise UserError(f"job {job.name} writes no file", got=f"OUTPUT {output}", hint="leave OUTPUT out")
    if output is None and writes:
        raise UserError(f"job {job.name} writes a file: OUTPUT is missing", expected="OUTPUT after INPUT")
    return None if output is None else named("OUTPUT", output)


def _check_files(
    input: Path, target: Path | None, options: Options, transaction: OutputTransaction
) -> Folder | None:
    """Refuse, before any work, files that could not be written after it. The input, if it is a folder.

    Locks the output until the run ends.
    """
    folder = open_folder(input)
    if target is not None and folder is None:
        check_output(target)
    elif target is not None and folder is not None:
        check_output_folder(target, folder.images)
    files = {"INPUT": input, "OUTPUT": target, "--json": options.json, "--timeline": options.stream.timeline}
    given = [(name, named(name, path)) for name, path in files.items() if path is not None]
    if options.json is not None:
        check_place(Path(options.json), "record")
    for (one, first), (other, second) in combinations(given, 2):
        in_place = (one, other) == ("INPUT", "OUTPUT")  # the old file is replaced when the new one is whole
        if not in_place and first.resolve() == second.resolve():
            raise UserError(f"{one} and {other} name the same file", got=files[other], expected="two files")
    if target is not None:
        transaction.lock(split(target)[0])
    return folder


def _result(run: RunContext) -> Record:
    """Run a job whose result is not an array partitioned like its input."""
    options = run.options
    of_a_cut = any(one is not None for one in (options.grid, options.boundary, options.cval, options.overlap))
    if of_a_cut or options.stream.named:
        which = "--grid, --boundary, --cval and --overlap do" if of_a_cut else f"{options.stream.named} does"
        raise UserError(
            f"{which} not apply to job {run.job.name}", expected="a job made by map_blocks", everywhere=True
        )
    if options.verify != "off" and run.job.kind == "job" and run.job.reference is None:
        raise UserError(
            f"--verify: job {run.job.name} has no reference to compare with",
            hint="reference= in its decorator",
            everywhere=True,
        )
    partial, output = (None, None) if run.target is None else job_paths(run.target, run.world.run_id)
    if partial is not None:
        run.transaction.track_partial(partial)
    value = call(run, output)
    run.inputs.check(run.world)
    proof = None
    if options.verify != "off":
        from runner.run.verify import verify_result

        run.proof(0, 1)
        with run.phases("verify"):
            proof = verify_result(run.world, run.job, run.parameters, run.source, value)
        run.proof(1, 1)
    if partial is not None:
        _commit(run, partial)
    result = value if isinstance(value, dict) else {"result": value}
    cut = {"grid": None, "halo": None, "boundary": None, "overlap": False}
    cut |= {"plan": None, "stream": None}
    return {**cut, "verify": proof, "result": plain(result)}


def _commit(run: RunContext, partial: Path) -> None:
    """Give a job's own output its name; RunError on every rank where there is none."""
    target = run.target
    assert target is not None

    def rename_it() -> None:
        if not partial.exists():
            raise RunError(
                f"job {run.job.name} returned without writing its output {target}",
                got=f"nothing at {partial.name}",
                expected="a file at the path that its parameter `output` has",
            )
        run.transaction.commit(partial, split(target)[0])

    run.world.control.barrier()  # another rank may still be writing it
    run.world.on_root(rename_it)
    run.transaction.forget_partial()


def call(run: RunContext, output: Path | None = None) -> Any:
    """Call the job's function and return its result. output: the path to write to, if it writes."""
    world, job = run.world, run.job
    if job.kind == "reduce":
        return reduce_array(world, job, run.parameters, Tiles(world, run.source, run.phases))
    services = {"world": world, "input": run.source, "output": output, "xp": world.xp}
    wanted = {name: service for name, service in services.items() if name in job.services}
    with run.phases("job"):
        return job.function(**wanted, **run.parameters)


def _memory_limit(world: World) -> tuple[float, str]:
    device = world.backend.device
    if device.bandwidth:
        return device.bandwidth, device.bandwidth_source
    world.control.barrier()  # ranks share a host's memory: each measures its share
    return world.backend.copy_rate(), "a copy, measured on all ranks at once"
