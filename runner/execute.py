"""A run from beginning to end: checks, blocks, results, proof, record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from runner.backend.cpu import CpuBackend
from runner.declare import Job
from runner.ending import Ending, Guard
from runner.errors import UserError
from runner.load import load_block
from runner.pipeline import Pipeline, Progress, quiet
from runner.reduce import Tiles, reduce_array
from runner.report import record as records
from runner.report.record import Record
from runner.storage import (
    MemorySource,
    Sink,
    Source,
    check_output,
    check_place,
    commit,
    open_sink,
    open_source,
)
from runner.store import Store
from runner.timing import Phases
from runner.work import Work, decide
from runner.world import DeviceChoice, World, lone_world, open_world

VERIFY = ("off", "sample", "full")


@dataclass(frozen=True)
class Options:
    """What the command's options of these names say.

    overlap: None for what suits the device. boundary, cval: None for what the job declares.
    """

    device: DeviceChoice = "auto"
    json: str | None = None
    verify: str = "off"
    grid: str | None = None
    boundary: str | None = None
    cval: float | None = None
    overlap: bool | None = None
    oversubscribe: bool = False
    debug: bool = False


def run(
    job: Job,
    input: str | Path,
    output: str | Path | None = None,
    parameters: dict[str, Any] | None = None,
    options: Options | None = None,
    *,
    world: World | None = None,
) -> Record:
    """Run a job on a file over every rank; collective. The run's record, on every rank.

    An error that all ranks meet is raised on all of them. An error of one rank alone is told on
    stderr and ends them all; in a world of one it is raised.
    """
    options = options or Options()
    mine = world or open_world(options.device, oversubscribe=options.oversubscribe)
    ending = Ending(debug=options.debug)
    try:
        with Guard(mine, ending):
            return execute(mine, job, input, output, parameters or {}, options, ending=ending)
    finally:  # an error that gets here is every rank's
        if world is None:
            mine.close()


@dataclass
class Run:
    """A run under way."""

    world: World
    job: Job
    parameters: dict[str, Any]
    source: Source
    target: Path | None
    options: Options
    ending: Ending
    progress: Progress
    phases: Phases


def execute(
    world: World,
    job: Job,
    input: str | Path,
    output: str | Path | None,
    parameters: dict[str, Any],
    options: Options,
    *,
    ending: Ending,
    progress: Progress = quiet,
) -> Record:
    """`run` in an open world, by a caller who sees to the end of failures."""
    begin, started = time.perf_counter(), datetime.now(timezone.utc)
    if options.verify not in VERIFY:
        raise UserError("unknown --verify", got=options.verify, expected=", ".join(VERIFY), everywhere=True)
    parameters = world.together(lambda: job.complete(parameters))
    target = world.together(lambda: _target(job, output))
    world.once(lambda: _check_files(target, options.json))
    phases = world.phases = Phases(world.backend)
    with phases("read"):
        source: Source = world.once(lambda: open_source(Path(input)))
    run = Run(world, job, parameters, source, target, options, ending, progress, phases)
    details = _map(run) if job.kind == "map" else _result(run)
    found: Record = {
        "schema": records.SCHEMA,
        "job": job.name,
        "parameters": records.plain(parameters),
        "input": str(input),
        "shape": list(source.shape),
        "dtype": str(source.dtype),
        "output": None if target is None else str(target),
        "ranks": world.size,
        "hosts": world.hosts,
        "devices": records.places(world),
        "started": started.isoformat(timespec="seconds"),
        **details,
        "phases": records.phase_table(world, phases, {"kernel": _memory_limit(world)}),
        "warnings": list(world.warnings),
        "versions": records.versions(world),
        "seconds": time.perf_counter() - begin,
    }
    if options.json is not None and world.rank == 0:
        records.write(found, Path(options.json))
    return found


def _target(job: Job, output: str | Path | None) -> Path | None:
    writes = job.kind == "map" or "output" in job.services
    if output is not None and not writes:
        raise UserError(f"job {job.name} writes no file", got=f"OUTPUT {output}", hint="leave OUTPUT out")
    if output is None and writes:
        raise UserError(f"job {job.name} writes a file, and none is named", expected="OUTPUT after INPUT")
    return None if output is None else Path(output)


def _check_files(target: Path | None, record: str | None) -> None:
    """Refuse, before any work, files that could not be written after it."""
    if target is not None:
        check_output(target)
    if record is not None:
        check_place(Path(record), "record")
        if target is not None and Path(record).resolve() == target.resolve():
            raise UserError("OUTPUT and --json name the same file", got=record, expected="two files")


def _map(run: Run) -> Record:
    world, source, options = run.world, run.source, run.options

    def cut() -> Work:
        return decide(
            run.job,
            run.parameters,
            source.shape,
            source.dtype,
            world.size,
            grid=options.grid,
            boundary=options.boundary,
            cval=options.cval,
        )

    work = world.together(cut)
    # A result that is known before the work is given its room on the disk before the work.
    known = _create(run, work) if work.result else None
    overlap = world.backend.asynchronous if options.overlap is None else options.overlap
    pipeline = Pipeline(world, work, run.phases, overlap, run.progress)
    block = load_block(world, source, work.partition, pipeline.plan, run.phases)
    work = pipeline.prepare(block)
    sink = known or _create(run, work)
    store = Store(world, work, sink, run.phases)
    for region, result in pipeline.results(block):
        store.put(region, result)
    store.finish()
    proof = None
    if options.verify != "off":
        from runner.check import verify

        with run.phases("verify"):
            proof = verify(world, work, source, sink, options.verify)
    world.once(lambda: commit(sink))
    run.ending.unfinished(None)
    assert work.result is not None
    return {
        "grid": list(work.partition.grid),
        "halo": [list(width) for width in work.widths],
        "boundary": work.boundary,
        "overlap": pipeline.overlap,
        "verify": proof,
        "result": {"shape": list(work.result[0]), "dtype": str(work.result[1])},
    }


def _create(run: Run, work: Work) -> Sink:
    """The output file, not yet under its final name; collective."""

    def create() -> Sink:
        assert work.result is not None
        assert run.target is not None
        sink = open_sink(run.target, *work.result, run.world.nonce)
        if run.options.verify != "off" and not sink.lossless:
            raise UserError(
                f"--verify reads the output back, and {run.target.suffix} does not keep it exactly",
                hint="an output that ends in .png or .npy",
            )
        run.ending.unfinished(sink.partial)
        sink.create()
        return sink

    sink = run.world.once(create)
    run.ending.unfinished(sink.partial)
    return sink


def _result(run: Run) -> Record:
    """A job whose result is not an array cut as its input is."""
    options = run.options
    if options.grid or options.boundary or options.cval is not None or options.overlap is not None:
        raise UserError(
            f"--grid, --boundary, --cval and --overlap say nothing to job {run.job.name}",
            expected="a job made by map_blocks",
            everywhere=True,
        )
    value = _call(run)
    proof = None
    if options.verify != "off":
        from runner.check import verify_result

        with run.phases("verify"):
            proof = verify_result(run.world, run.job, run.parameters, run.source.path, value)
    result = value if isinstance(value, dict) else {"result": value}
    cut = {"grid": None, "halo": None, "boundary": None, "overlap": False}
    return {**cut, "verify": proof, "result": records.plain(result)}


def _call(run: Run) -> Any:
    world, job = run.world, run.job
    if job.kind == "reduce":
        return reduce_array(world, job, run.parameters, Tiles(world, run.source, run.phases))
    services = {"world": world, "input": run.source, "output": run.target, "xp": world.xp}
    wanted = {name: service for name, service in services.items() if name in job.services}
    with run.phases("job"):
        return job.function(**wanted, **run.parameters)


def _memory_limit(world: World) -> tuple[float, str]:
    device = world.backend.device
    if device.bandwidth:
        return device.bandwidth, device.bandwidth_source
    world.control.barrier()  # ranks share a host's memory: each measures its share
    return world.backend.copy_rate(), "a copy, measured on all ranks at once"


def apply(job: Job, array: Any, parameters: dict[str, Any]) -> Any:
    """A job on an array in memory, on this process alone: the result, of the same array module."""
    if hasattr(array, "__cuda_array_interface__"):
        from runner.backend.cuda import borrowed

        with borrowed(array) as backend:
            return _apply(lone_world(backend), job, array, parameters)
    return _apply(lone_world(CpuBackend()), job, np.asarray(array), parameters)


def _apply(world: World, job: Job, array: Any, parameters: dict[str, Any]) -> Any:
    parameters = job.complete(parameters)
    phases = Phases(world.backend)
    if job.kind != "map":
        source = MemorySource(array)
        return _call(Run(world, job, parameters, source, None, Options(), Ending(), quiet, phases))
    work = decide(job, parameters, tuple(array.shape), np.dtype(array.dtype), 1)
    pipeline = Pipeline(world, work, phases)
    block = world.backend.empty(pipeline.plan.shape, work.dtype)
    block[pipeline.plan.core] = array
    work = pipeline.prepare(block)
    assert work.result is not None
    whole = world.backend.empty(*work.result)
    for region, result in pipeline.results(block):
        whole[region.slices] = result
    return whole
