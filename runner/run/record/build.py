"""The record of a run is put together here, from what the run did and what all ranks measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from meshrun.runner.arrays.load import stored_type
from meshrun.runner.report.record import SCHEMA, Record, envelope, plain, type_record, write_json
from meshrun.runner.run.finish import Finished
from meshrun.runner.run.prepare import RunContext
from meshrun.runner.world.world import World


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
        "fused": None if computed.fusion is None else asdict(computed.fusion),
        "split_dependent": computed.split_dependent,
        "stages": computed.stages,
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
