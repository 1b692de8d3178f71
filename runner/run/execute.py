"""A run from beginning to end: checks, blocks, results, verification, record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.arrays.inputs import note
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.files import remove_path
from meshrun.runner.forecast.record import type_record
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import names as installed
from meshrun.runner.maps.decoded_inputs import open_decoded
from meshrun.runner.maps.in_memory import OnProgress, OnSteps, no_progress
from meshrun.runner.maps.reduce import Tiles, reduce_array
from meshrun.runner.maps.streamed.chunk_agreement import limits
from meshrun.runner.options.choices import VERIFY
from meshrun.runner.options.form import forms_of_inputs
from meshrun.runner.options.run_options import Options
from meshrun.runner.options.spelling import option, run_command
from meshrun.runner.plan.task import check_unmasked, in_own_byte_order
from meshrun.runner.region import Region
from meshrun.runner.report.record import SCHEMA, STDOUT, Record, envelope, plain, write_json
from meshrun.runner.report.stream_progress import OnStreamProgress, no_stream_progress
from meshrun.runner.report.units import counted
from meshrun.runner.run.context import RunContext
from meshrun.runner.run.declare import renamed_options
from meshrun.runner.run.map_run import run_map
from meshrun.runner.run.record.record_builder import checksum_record, phase_table, places, versions
from meshrun.runner.run.services.created_output import CreateOutput
from meshrun.runner.run.services.simulation import Simulate
from meshrun.runner.storage.formats.containers import prefixes
from meshrun.runner.storage.formats.image_folder import Folder, check_output_folder, open_folder
from meshrun.runner.storage.formats.registry import (
    Source,
    array_at,
    check_output,
    check_place,
    open_sink,
)
from meshrun.runner.storage.overwrite import check_overwrites, same_file
from meshrun.runner.storage.paths import CONTAINERS, abandoned, job_paths, named, split, suffix
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.failure import FailureHandler, Guard
from meshrun.runner.world.world import World, open_world, with_checksums

__all__ = ["Options", "execute", "run"]

Files = str | Path | Sequence[str | Path] | None


def run(
    job: Job,
    inputs: Files,
    outputs: Files = (),
    parameters: dict[str, Any] | None = None,
    options: Options | None = None,
    *,
    world: World | None = None,
) -> Record:
    """Run a job on files over every rank; return the run's record on every rank. Collective.

    inputs, outputs: one path, or one for each of the job's inputs and outputs; None: no output.

    An error common to all ranks is raised on all of them. An error of a single rank is printed to stderr and
    ends all ranks; in a world of one rank it is raised.
    """
    options = options or Options()
    mine = world or open_world(options.device, oversubscribe=options.oversubscribe)
    handler = FailureHandler(debug=options.debug)
    try:
        with Guard(mine, handler):
            return execute(
                mine, job, inputs, outputs, parameters or {}, options, transaction=handler.transaction
            )
    finally:  # an error that gets here is raised on every rank
        if world is None:
            mine.close()


def execute(
    world: World,
    job: Job,
    inputs: Files,
    outputs: Files,
    parameters: dict[str, Any],
    options: Options,
    *,
    transaction: OutputTransaction,
    progress: OnProgress = no_progress,
    show: OnStreamProgress = no_stream_progress,
    proof: OnProgress = no_progress,
    stepped: OnSteps = no_progress,
) -> Record:
    """Run a job like `run`, in an open world; the caller handles failures and rolls `transaction` back.

    progress: called with this rank's finished rows and their total. show: called with the state of a streamed
    run. proof: called with this rank's verified cells and their total. stepped: called with the steps taken,
    their total and the cells computed in one.
    """
    begin, started = time.perf_counter(), datetime.now(timezone.utc)
    if options.verify not in VERIFY:
        raise UserError(
            f"unknown {option('verify')}", got=options.verify, expected=", ".join(VERIFY), everywhere=True
        )
    world = with_checksums(world, options.checksum)
    parameters = world.collective_call(lambda: job.complete(parameters))
    paths = world.collective_call(lambda: name_files(job, as_list(inputs), as_list(outputs)))
    sources_at, targets = paths
    folder = world.on_root(lambda: _check_files(job, parameters, paths, options, transaction))
    files = dict.fromkeys(split(target)[0] for target in targets)
    added_to = [file for file in files if job.kind == "map" and suffix(file) in CONTAINERS]
    opened = [] if folder or not job.opens_input else sources_at
    noted = note(world, opened, job, parameters, added_to)
    phases = world.phases = world.new_phases()
    sources: list[Source] = []
    if folder is None:
        with phases("read"):
            sources = world.on_root(lambda: _open(opened, options))
    world.on_root(lambda: _check_overwrites(job, parameters, paths, sources, options))
    run = RunContext(
        world,
        job,
        parameters,
        sources,
        targets,
        options,
        transaction,
        progress,
        phases,
        show,
        proof,
        noted,
        stepped,
        argument=str(sources_at[0]),
    )
    if folder is not None:
        from meshrun.runner.run.image_run import FolderRun

        details = FolderRun(run, folder).write()
    else:
        details = run_map(run) if job.kind == "map" else _result(run)
        types = [type_record((source.shape, source.dtype)) for source in sources]
        details = {**(types[0] if types else {}), "types": types or None, **details}
    transaction.release()
    details = {"steps": None, "fused": None, "split_dependent": False, "stages": None, **details}
    found = {
        "job": job.name,
        "parameters": plain(parameters),
        "input": str(sources_at[0]),
        "shape": details.pop("shape"),
        "dtype": details.pop("dtype"),
        "output": str(targets[0]) if targets else None,
        "inputs": _file_records(job.arrays, sources_at, details.pop("types", None)),
        "outputs": _file_records(job.output_names, targets, details.pop("results", None)),
        "ranks": world.size,
        "hosts": world.hosts,
        "devices": places(world),
        "started": started.isoformat(timespec="seconds"),
        **details,
        "checksum": checksum_record(world, options.checksum),
        "phases": phase_table(world, phases, {"kernel": _memory_limit(world)}),
        "warnings": list(world.warnings),
        "versions": versions(world),
        "seconds": time.perf_counter() - begin,
    }
    if options.json is not None and world.rank == 0:
        write_json(Path(options.json), "run", SCHEMA, found)
    return envelope("run", SCHEMA, found)


def _file_records(
    names: Sequence[str], paths: Sequence[Path], types: Sequence[Record] | None
) -> list[Record]:
    """Describe files by name, path, shape and dtype; the last two are None if they are not known."""
    known = types or [{"shape": None, "dtype": None}] * len(paths)
    return [
        {"name": name, "path": str(path), **one} for name, path, one in zip(names, paths, known, strict=False)
    ]


def as_list(paths: Files) -> list[str | Path]:
    """Return one path, several or None as a list."""
    if paths is None:
        return []
    return [paths] if isinstance(paths, (str, Path)) else list(paths)


def writes_files(job: Job) -> bool:
    return job.kind == "map" or bool({"output", "create", "simulate"} & job.services)


def name_files(
    job: Job, inputs: Sequence[str | Path], outputs: Sequence[str | Path]
) -> tuple[list[Path], list[Path]]:
    """Return the paths of inputs and outputs; raises UserError if their number is not the job's.

    The film of a simulation may be missing, or "-".
    """
    if "simulate" in job.services and [str(one) for one in outputs] == ["-"]:
        outputs = []  # no film
    if not (writes_files(job) or job.whole_rows) and outputs:
        raise UserError(f"job {job.name} writes no file", got=f"OUTPUT {outputs[0]}", hint="leave OUTPUT out")
    optional = job.whole_rows or "simulate" in job.services
    writes = len(outputs) == 1 if optional else writes_files(job)
    wanted = (job.arrays, job.output_names if writes else ())
    if (len(inputs), len(outputs)) != tuple(map(len, wanted)):
        if len(inputs) == len(wanted[0]) == len(wanted[1]) == 1 and not outputs:
            raise UserError(
                f"job {job.name} writes a file: OUTPUT is missing",
                expected="OUTPUT after INPUT",
                hint=run_command(f"{job.name} {inputs[0]} OUTPUT") if job.name in installed() else None,
            )
        raise wrong_number(job, [*inputs, *outputs])
    several = sum(map(len, wanted)) > 2
    names = file_names(job) if several else ["INPUT", "OUTPUT"]
    paths = [named(name, path) for name, path in zip(names, [*inputs, *outputs], strict=False)]
    return paths[: len(inputs)], paths[len(inputs) :]


def file_names(job: Job) -> list[str]:
    """Return a name for each file of a job, in order: its inputs, then its outputs."""
    return [name.upper() for name in (*job.arrays, *(job.output_names if writes_files(job) else ()))]


def wrong_number(job: Job, paths: Sequence[str | Path]) -> UserError:
    """Build the error for too few or too many files: it lists them by name."""
    given = zip(file_names(job), paths, strict=False)
    missing = file_names(job)[len(paths) :]
    rest = [str(path) for path in paths[len(file_names(job)) :]]
    listed = [f"{name} = {path}" for name, path in given]
    listed += [f"{name} is missing" for name in missing] + [f"{path} is one too many" for path in rest]
    ins, outs = len(job.arrays), len(file_names(job)) - len(job.arrays)
    hint = job.option_hint(job.arrays[-1]) if missing and job.kind == "map" and ins > 1 else None
    return UserError(
        f"job {job.name} takes {counted(ins, 'input')} and writes {counted(outs, 'output')}",
        got=f"{counted(len(paths), 'file')}: {'; '.join(listed)}",
        expected=" ".join(file_names(job)),
        hint=hint,
    )


def _open(paths: Sequence[Path], options: Options) -> list[Source]:
    """Open the inputs."""
    return open_decoded(paths, forms_of_inputs(options.form, len(paths)), options.stream.host_memory)


def _check_files(
    job: Job,
    parameters: dict[str, Any],
    paths: tuple[list[Path], list[Path]],
    options: Options,
    transaction: OutputTransaction,
) -> Folder | None:
    """Refuse files that could not be written, before any work. Returns the input if it is a folder.

    Locks the outputs until the run ends.
    """
    inputs, targets = paths
    folder = open_folder(inputs[0]) if len(inputs) == 1 and job.opens_input else None
    for target in targets:
        _check_target(job, target, folder)
    more: tuple[tuple[str, str | None], ...] = (
        (option("json"), options.json),
        (option("timeline"), options.stream.timeline),
        (option("frames"), options.steps.frames),
    )
    of_job = {name: file for name, (file, _) in _path_parameters(job, parameters).items()}
    read = ("INPUT", *of_job)
    given: list[tuple[str, Path | str]] = [
        *(("INPUT", path) for path in inputs),
        *of_job.items(),
        *(("OUTPUT", path) for path in targets),
        *((name, path) for name, path in more if path is not None),
    ]
    if options.json not in (None, STDOUT):
        check_place(Path(options.json), "record")
    for (one, first), (other, second) in combinations(given, 2):
        if one in of_job and other in ("OUTPUT", option("frames")) and job.kind != "job":
            _check_outside(one, Path(first), split(named(other, second))[0])
        # An input may be read twice, and an old file is replaced only when the new one is complete.
        if one in read and other in (*read, "OUTPUT"):
            continue
        if one == other == "OUTPUT":
            _check_two_outputs(Path(first), Path(second))
            continue
        if same_file(split(named(one, first))[0], split(named(other, second))[0]):
            raise UserError(f"{one} and {other} name the same file", got=second, expected="two files")
    if targets:
        transaction.lock(*(split(target)[0] for target in targets))
        if "simulate" not in job.services:  # whose films go on in a resumed run
            for left in (left for target in targets for left in abandoned(target)):
                with contextlib.suppress(OSError):
                    remove_path(left)
    return folder


def _check_overwrites(
    job: Job,
    parameters: dict[str, Any],
    paths: tuple[list[Path], list[Path]],
    sources: Sequence[Source],
    options: Options,
) -> None:
    """Refuse outputs that would replace an input. sources: the opened inputs; none of a folder."""
    inputs, targets = paths
    opened = [(source.path, source.name) for source in sources] or [split(path) for path in inputs]
    check_overwrites(
        [*zip(["INPUT"] * len(opened), opened, strict=True), *_path_parameters(job, parameters).items()],
        targets,
        whole=job.kind != "map",
        allowed=options.overwrite_input,
    )


def _path_parameters(job: Job, parameters: dict[str, Any]) -> dict[str, tuple[Path, str | None]]:
    """Return the files that a job's own parameters name, by their option."""
    renamed = renamed_options(job)
    return {
        f"parameter {one.name}" if one.name in renamed else option(one.name): split(
            Path(parameters[one.name])
        )
        for one in job.parameters
        if one.type is Path and parameters[one.name] is not None
    }


def _check_target(job: Job, target: Path, folder: Folder | None) -> None:
    """Refuse an output that could not be written. folder: the input, if it is one of images."""
    if "simulate" in job.services:  # a film, whose format is checked with the other options of frames
        if target.name in ("", ".."):
            raise UserError("OUTPUT has no name of its own", got=target, expected="a file or folder")
    elif folder is None:
        check_output(target, alone=job.kind != "map")
    else:
        check_output_folder(target, folder.images)


def _check_outside(parameter: str, folder: Path, target: Path) -> None:
    """Refuse a file that is written in a folder that a parameter names: what is in it must not change."""
    if folder.is_dir() and target.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"the folder of {parameter} must not change during the run",
            got=f"{target}, a file in {folder}",
            expected="files that are written elsewhere",
        )


def _check_two_outputs(first: Path, second: Path) -> None:
    """Refuse two outputs in one file, unless they are two arrays of a container, neither inside the other."""
    (file, name), (other_file, other) = array_at(first), array_at(second)
    if file.resolve() != other_file.resolve():
        return
    if name is None or other is None:
        raise UserError("two outputs are the same file", got=second, expected="two files")
    if name == other:
        raise UserError("two outputs are the same array", got=second, expected="two names")
    if name in prefixes(other) or other in prefixes(name):
        raise UserError("one output is inside another", got=f"{first} and {second}", expected="two arrays")
    if file != other_file:
        raise UserError("two outputs name one file by different paths", got=f"{first} and {second}")


def _result(run: RunContext) -> Record:
    """Run a job whose result is not an array partitioned like its input."""
    options = run.options
    if options.form is not None and not run.job.opens_input:
        raise UserError(
            f"{option('input_shape')}, {option('input_dtype')} and {option('input_order')} do not apply "
            f"to job {run.job.name}",
            expected="a job whose INPUT is an array",
            everywhere=True,
        )
    of_blocks: dict[str, object] = {"boundary": options.boundary, "cval": options.cval}
    if not run.job.takes_steps:
        of_blocks |= {"grid": options.grid, "overlap": options.overlap}
    given = [option(name) for name, value in of_blocks.items() if value is not None]
    stream = replace(options.stream, resume=False) if run.job.takes_steps else options.stream
    if "memory" in run.job.services:
        stream = replace(stream, host_memory=None, device_memory=None)
    if given or stream.named:
        which = f"{', '.join(given)} do" if len(given) > 1 else f"{given[0] if given else stream.named} does"
        raise UserError(
            f"{which} not apply to job {run.job.name}", expected="a job made by map_blocks", everywhere=True
        )
    checked = run.job.reference is not None or run.job.verify is not None
    if options.verify != "off" and run.job.kind == "job" and not checked:
        raise UserError(
            f"{option('verify')}: job {run.job.name} has no reference to compare with",
            hint=f"without {option('verify')}; a job of your own takes reference= or verify= in its "
            "decorator",
            everywhere=True,
        )
    partial = output = None
    if run.targets and "output" in run.job.services:
        partial, output = job_paths(run.targets[0], run.world.run_id)
        run.transaction.track_partial(partial)
    simulate = Simulate(run) if run.job.takes_steps else None
    create = CreateOutput(run) if "create" in run.job.services and run.targets else None
    value = call(run, output, simulate, create)
    run.inputs.check(run.world)
    proof, results = None, None
    if create is not None:
        if create.sink is None:
            raise RunError(f"job {run.job.name} returned without creating its output {run.targets[0]}")
        proof, kind = create.finish()
        results = [kind]
    elif options.verify != "off":
        from meshrun.runner.run.verify.results import verify_result

        run.proof(0, 1)
        with run.phases("verify"):
            proof = verify_result(run.world, run.job, run.parameters, run.source, value)
        run.proof(1, 1)
    if partial is not None:
        _commit(run, partial)
    elif run.targets and run.job.kind == "reduce":
        value = in_own_byte_order(value)
        _write_array(run, value)
        value = type_record((value.shape, value.dtype))
    cut = {"grid": None, "halo": None, "boundary": None, "overlap": False}
    cut |= {"plan": None, "stream": None, **(simulate.details or {} if simulate else {})}
    return {**cut, "verify": proof, "result": plain(value), "results": results}


def _write_array(run: RunContext, value: Any) -> None:
    """Write the array that a reduction returned; RunError on every rank for anything else."""

    def write() -> Path:
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
        return sink.partial

    with run.phases("write"):
        run.world.on_root(write)
    run.transaction.forget_partial()


def _commit(run: RunContext, partial: Path) -> None:
    """Rename a job's own output to its final name; RunError on every rank if there is none."""
    target = run.targets[0]

    def rename_it() -> None:
        if not partial.exists():
            raise RunError(
                f"job {run.job.name} returned without writing its output {target}",
                got=f"nothing at {partial.name}",
                expected="a file at the path in its parameter `output`",
            )
        run.transaction.commit(partial, split(target)[0])

    run.world.control.barrier()  # another rank may still be writing it
    run.world.on_root(rename_it)
    run.transaction.forget_partial()


def call(
    run: RunContext,
    output: Path | None = None,
    simulate: Simulate | None = None,
    create: CreateOutput | None = None,
) -> Any:
    """Call the job's function and return its result. output: the path to write to, if it writes."""
    world, job = run.world, run.job
    if job.kind == "reduce":
        return reduce_array(
            world, job, run.parameters, Tiles(world, run.source, run.phases, whole_rows=job.whole_rows)
        )
    services = {
        "world": world,
        "input": run.sources[0] if run.sources else None,
        "inputs": run.sources,
        "argument": run.argument,
        "output": output,
        "xp": world.xp,
        "simulate": simulate,
        "create": create,
        "memory": _memory(run) if "memory" in job.services else 0,
    }
    wanted = {name: service for name, service in services.items() if name in job.services}
    if simulate is not None or create is not None:  # they have phases of their own, in `world.phases`
        return job.function(**wanted, **run.parameters)
    with run.phases("job"):
        return job.function(**wanted, **run.parameters)


def _memory(run: RunContext) -> int:
    """Return the bytes that this rank may use for arrays: of its device, or its host's if it is a CPU.
    Collective."""
    found = run.world.collective_call(lambda: limits(run.world, run.options.stream))
    return found.device if run.world.backend.asynchronous else found.host


def _memory_limit(world: World) -> tuple[float, str]:
    device = world.backend.device
    if device.bandwidth:
        return device.bandwidth, device.bandwidth_source
    world.control.barrier()  # ranks share a host's memory: all measure at once, each its share
    return world.backend.copy_rate(), "a copy, measured on all ranks at once"
