"""The end of a run: outputs get their names, and what was computed and measured becomes its record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.runner.arrays.load import stored_type
from meshrun.runner.compiler.function_key import held_whole
from meshrun.runner.errors import RunError
from meshrun.runner.plan.chunking import FileTraits
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.report.record import SCHEMA, Record, envelope, plain, type_record, write_json
from meshrun.runner.run.prepare import RunContext
from meshrun.runner.storage.formats.registry import Sink
from meshrun.runner.world.stuck import monitor
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.compiler.decide import Fusion
    from meshrun.runner.programs.looping import LoopCount
    from meshrun.runner.steps.observers.series import SeriesRows


@dataclass(frozen=True)
class Computation:
    """How an array was cut and computed; the defaults are those of a job that is not made by map_blocks.

    grid: blocks along each axis. halo: cells before and after a block, along each axis. stages: lines of the
    function, see `stage_lines`. held_whole: bytes of large arrays from outside of the function, by name.
    loops: iterations of the function's loops.
    """

    grid: list[int] | None = None
    halo: list[list[int]] | None = None
    boundary: str | None = None
    overlap: bool | None = False
    fusion: Fusion | None = None
    split_dependent: bool = False
    stages: list[int] | None = None
    held_whole: dict[str, int] = field(default_factory=dict)
    loops: Sequence[LoopCount] = ()


@dataclass(frozen=True)
class Finished:
    """What a run did, for its record.

    result: the type of the first output, or what a job returned. results: types of the outputs; None if they
    are not known. series: types of those that are no fields, on rank 0. domain: type of the array that was
    computed, if it is not the first input's. verify, plan, stream, steps: these parts of the record, as plain
    values; plan: on rank 0. copy_rate: bytes per second at which this rank copied memory while all did; None:
    not measured yet.
    """

    computed: Computation
    result: Any
    results: Sequence[ArrayType] | None = None
    series: Sequence[ArrayType] = ()
    domain: Record | None = None
    verify: Record | None = None
    plan: list[Record] | None = None
    stream: Record | None = None
    steps: Record | None = None
    copy_rate: float | None = None


def computation_of(
    task: Task, fusion: Fusion | None, *, overlap: bool = False, stages: list[int] | None = None
) -> Computation:
    """Return how a task was computed."""
    halo = [list(width) for width in task.widths]
    grid, dependent = list(task.partition.grid), task.job.split_dependent
    return Computation(
        grid,
        halo,
        task.declared_boundary or task.boundary,
        overlap,
        fusion,
        dependent,
        stages,
        held_whole(task.job.function, task.job.constants),
    )


def commit(run: RunContext, sinks: Sequence[Sink]) -> None:
    """Rename every finished output file to its final name. Collective.

    RunError if an old file has changed since the run began: the new one lacks the change, and both are kept.
    """

    def rename() -> tuple[Path, Path] | None:
        changed = run.inputs.changed_container()
        if changed is not None:
            run.transaction.forget_partial()
            partial = next(sink.partial for sink in sinks if sink.path == changed)
            kept = partial.with_suffix(".kept")  # the next run removes what is called partial
            partial.rename(kept)
            return changed, kept
        for partial, path in dict.fromkeys((sink.partial, sink.path) for sink in sinks):
            run.transaction.commit(partial, path)
        return None

    conflict = run.world.on_root(rename)
    if conflict is not None:
        changed, kept = conflict
        run.transaction.forget_partial()
        run.transaction.set_recovery_hint(None)
        raise RunError(
            f"{changed} changed while this run wrote a new version of it without that change, {kept}",
            expected="only one program writes it at a time",
            hint="rm -r one of the two, and rename the other",
            everywhere=True,
        )


def commit_series(run: RunContext, series: Sequence[SeriesRows]) -> None:
    """Rename the finished files of results that are no fields. Collective."""

    def rename() -> None:
        for file in [file for one in series for file in one.files]:
            run.transaction.commit(file.partial, file.path)

    run.world.on_root(rename)


def compared_with_plan(
    run: RunContext, task: Task, wall: float, files: FileTraits, *, streamed: bool
) -> list[Record] | None:
    """Return the run's forecast beside what rank 0 measured; None on other ranks, or without a forecast.

    wall: seconds from the first byte read to the last one written.
    """
    world, options = run.world, run.options
    if world.rank > 0 or 0 in task.shape:
        return None
    from meshrun.runner.forecast.model import MeasuredRun, beside_run

    stages = {name: (phase.moved, phase.seconds) for name, phase in world.phases.phases.items()}
    measured = MeasuredRun(world.backend.device, len(world.hosts), stages, wall, streamed)
    keep_whole, rates = options.overlap is not None, options.rates
    return beside_run(
        task, measured, options.stream, files, rates=rates, grid=options.grid, keep_whole=keep_whole
    )


def build_record(run: RunContext, done: Finished, begin: float, started: datetime) -> Record:
    """Return the record of a run, and write it to the file of `json`. Collective.

    begin, started: when the run began, on the `perf_counter` clock and as a date.
    """
    world, job, options, computed = run.world, run.job, run.options, done.computed
    types = [type_record(stored_type(source)) for source in run.sources]
    outputs = [type_record(known) for known in (*(done.results or ()), *done.series)]
    domain = done.domain or (types[0] if types else {"shape": None, "dtype": None})
    checksum = checksum_record(world, options.checksum)
    phases, plan = phase_table(world, done)
    waits = world.operations.waits
    record = {
        "job": job.name,
        "parameters": plain(job.described(run.parameters)),
        "input": str(run.paths[0]),
        **domain,
        "output": str(run.targets[0]) if run.targets else None,
        "inputs": _file_records(job.arrays, run.paths, types),
        "outputs": _file_records((*job.output_names, *job.series), run.targets, outputs),
        "ranks": world.size,
        "hosts": world.hosts,
        "devices": world.places(),
        "started": started.isoformat(timespec="seconds"),
        "steps": done.steps,
        "loops": [asdict(one) for one in computed.loops],
        "waits": [asdict(one) for one in waits.longest] if waits.lines else [],
        "fused": None if computed.fusion is None else asdict(computed.fusion),
        "split_dependent": computed.split_dependent,
        "stages": computed.stages,
        "held_whole": computed.held_whole,
        "grid": computed.grid,
        "halo": computed.halo,
        "boundary": computed.boundary,
        "result": plain(done.result),
        "overlap": computed.overlap,
        "verify": done.verify,
        "plan": plan,
        "stream": done.stream,
        "checksum": checksum,
        "phases": phases,
        "warnings": list(world.warnings),
        "versions": world.versions(),
        "seconds": time.perf_counter() - begin,
    }
    if monitor.WATCHING:
        record["slow"] = monitor.slow_parts()
    if options.json is not None and world.rank == 0:
        write_json(Path(options.json), "run", SCHEMA, record)
    return envelope("run", SCHEMA, record)


def _file_records(names: Sequence[str], paths: Sequence[Path], types: Sequence[Record]) -> list[Record]:
    """Describe files by name, path, shape and dtype; the last two are None if they are not known."""
    known = types or [{"shape": None, "dtype": None}] * len(paths)
    return [
        {"name": name, "path": str(path), **one} for name, path, one in zip(names, paths, known, strict=False)
    ]


def checksum_record(world: World, choice: str) -> Record | None:
    """Return what all ranks have checked of what crossed them; None without `checksum`. Collective."""
    if world.checksums is None:
        return None
    counts = world.control.allgather((world.checksums.messages, world.checksums.nbytes))
    messages, nbytes = map(sum, zip(*counts, strict=True))
    return {"mode": choice, "messages": messages, "bytes": nbytes}


def phase_table(world: World, done: Finished) -> tuple[Record, list[Record] | None]:
    """Return each phase over all ranks, and rank 0's forecast, on every rank. Collective.

    In the table, the rate is bytes read plus written per rank, divided by the slowest rank's seconds. The
    kernel's is compared with the rate at which this rank's memory can be copied.
    """
    device = world.backend.device
    if device.bandwidth:
        limit = device.bandwidth, device.bandwidth_source
    else:
        rate = done.copy_rate
        if rate is None:
            world.control.barrier()  # ranks share a host's memory: all measure at once, each its share
            rate = world.backend.copy_rate()
        limit = rate, "a copy, measured on all ranks at once"
    mine = {name: (phase.seconds, phase.moved) for name, phase in world.phases.phases.items()}
    everyone = world.control.allgather((mine, limit, done.plan))
    table = {}
    for name in dict.fromkeys(name for phases, _, _ in everyone for name in phases):
        entries = [
            (*phases[name], limit if name == "kernel" else None, rank)
            for rank, (phases, limit, _) in enumerate(everyone)
            if name in phases
        ]
        slowest = max(entries, key=lambda entry: entry[0])
        fastest = min(entries, key=lambda entry: entry[0])
        seconds, moved, most, _ = slowest
        rate = moved / seconds if moved and seconds else None
        table[name] = {
            "seconds": seconds,
            "seconds_fastest": fastest[0],
            "slowest_rank": slowest[3],
            "fastest_rank": fastest[3],
            "bytes": sum(entry[1] for entry in entries),
            "bytes_per_second": rate,
            "limit_bytes_per_second": most[0] if most else None,
            "limit_source": most[1] if most else None,
            "fraction_of_limit": rate / most[0] if rate and most else None,
        }
    return table, everyone[0][2]
