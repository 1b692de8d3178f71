"""Plan a run of a job without running it: its inputs by file or by shape, the machine, and the forecast."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.arrays.load import check_decoded, file_chunks
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.result_type import with_known_results
from meshrun.runner.compiler.whole.between.recorded_loop import loops_within
from meshrun.runner.compiler.whole.program import WholeProgram
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError, describe
from meshrun.runner.forecast.jobs import plan_job
from meshrun.runner.forecast.machine import choose, load, nominal_cpu, rates_file
from meshrun.runner.forecast.maps import plan_map
from meshrun.runner.forecast.place import Place, place_of
from meshrun.runner.forecast.stage_memory import with_stage_memory
from meshrun.runner.forecast.steps import plan_map_steps, plan_steps
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.form import Form, form_of, forms_of_inputs
from meshrun.runner.options.plan_options import PlanOptions
from meshrun.runner.plan.chunking import PLAIN, FileTraits, check_limit, not_streamed
from meshrun.runner.plan.task import ArrayType, Task, plan_task
from meshrun.runner.report.record import Record
from meshrun.runner.report.units import counted
from meshrun.runner.spelling import command_option, option
from meshrun.runner.storage.formats.registry import Source, open_source
from meshrun.runner.storage.paths import named
from meshrun.runner.system.host_memory import host_memory

# Options that do not apply to every job.
FORM = ("input_shape", "input_dtype", "input_order")
OF_MAPS = ("boundary", "cval", "depth", "chunk_bytes")
RATES = ("exchange_rate", "network_rate")
Forms = Form | tuple[Form, ...] | None  # of all inputs, or of each
# Errors that a job's own function can raise.
JOB_ERRORS = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def plan_record(job: Job, inputs: Sequence[str], parameters: dict[str, Any], options: PlanOptions) -> Record:
    """Return the forecast of a run as plain values, with notes on what it assumes.

    inputs: files; none if options describe the arrays. Raises UserError where the options, the inputs or the
    job do not allow a forecast.
    """
    place, found, notes = _planned(job, inputs, parameters, options)
    assumed = options.cluster.gpu is None and not place.machine.measured
    found["machine"]["assumed"] = assumed
    if assumed:
        notes.append(
            f"no {option('gpu')} and no measured rates: assuming hosts with {place.machine.gpus} "
            f"{place.machine.name} GPUs; use {option('gpu', 'cpu')} for hosts without GPUs"
        )
    if not place.machine.measured:
        notes.append(
            f"rates are nominal: run meshrun plan {command_option('calibrate')} on the machine to "
            "measure them"
        )
    found["notes"] = notes
    return found


def _planned(
    job: Job, inputs: Sequence[str], parameters: dict[str, Any], options: PlanOptions
) -> tuple[Place, Record, list[str]]:
    """Return the place, the forecast, and notes on the inputs."""
    # A job that takes steps of its own runs up to its first one.
    if "simulate" in job.services:
        _refuse(job, options, *FORM, *OF_MAPS, *RATES)
        if len(inputs) != 1:
            raise UserError(f"job {job.name} takes one input", got=f"{len(inputs)}", expected="INPUT")
        place = _place(options)
        return place, plan_steps(job, inputs[0], parameters, options, place), []
    # Other jobs are planned by the shapes of their inputs.
    steps = options.steps.steps is not None
    if not steps:
        _refuse(job, options, "copies")
    form = form_of(options.input_shape, options.input_dtype, options.input_order)
    if job.forecast is not None:
        _refuse(job, options, "steps", "grid", *OF_MAPS)
    elif job.kind != "map":
        raise UserError(
            f"job {job.name} cannot be planned",
            expected="a job made by map_blocks, one that takes steps, or one with forecast=",
        )
    else:
        _refuse(job, options, *RATES)
    sources = open_inputs(job, inputs, form)
    arrays, files, notes = describe_inputs(job, sources, form)
    place = _place(options, sources)
    if job.forecast is not None:
        return place, plan_job(job, arrays, parameters, options, place), notes
    given = job.complete(parameters)
    kind = "cuda" if place.gpu else "cpu"
    job = with_stage_memory(with_inferred_halo(job, arrays, given, kind), kind)
    task = _settled(
        plan_task(
            job, given, arrays, place.ranks, grid=options.grid, boundary=options.boundary, cval=options.cval
        )
    )
    if steps:
        for name in ("chunk_bytes", "depth"):
            if (value := options.value(name)) is not None:
                raise UserError(
                    "steps in chunks have no plan", got=option(name, value), hint=f"leave {option(name)} out"
                )
        return place, plan_map_steps(job, parameters, task, options, place), notes + _loop_notes(task)
    if inputs and options.stream.named is not None and not files.parallel:
        raise not_streamed(options.stream.named, inputs[0])
    return place, plan_map(task, options, place, files), notes + _loop_notes(task)


def _loop_notes(task: Task) -> list[str]:
    """Say of each loop of the function how many iterations the forecast counts."""
    if not isinstance(task.job.program, WholeProgram):
        return []
    notes = dict[int, str]()  # by line: an iteration that is unrolled has its loops again
    for loop in loops_within(task.job.program):
        if loop.numbers.items is None:
            said = "the number of iterations is unknown: one is counted"
        else:
            end = "" if loop.again is None else ", though a value may end it"
            said = f"{counted(len(loop.numbers.items) + loop.numbers.unrolled, 'iteration')} are counted{end}"
        if loop.kind != "if":
            notes[loop.line] = f"loop in line {loop.line}: {said}"
    return [notes[line] for line in sorted(notes)]


def _refuse(job: Job, options: PlanOptions, *names: str) -> None:
    """UserError if one of these options is given, which do not apply to the job."""
    for name in names:
        if (value := options.value(name)) is not None:
            raise UserError(f"{option(name)} does not apply to job {job.name}", got=value)


def _place(options: PlanOptions, sources: Sequence[Source] = ()) -> Place:
    """Return where the run is to take place. sources: the opened inputs.

    Raises UserError for more memory than the machine has, which without measurements is known only of its
    GPU, and for pictures that do not fit it or host_memory when they are decoded.
    """
    cluster, stream = options.cluster, options.stream
    here = nominal_cpu(len(os.sched_getaffinity(0)), host_memory())
    machine = choose(cluster.gpu, load(rates_file()), here)
    gigabyte = 1 if machine.measured else 2**30 / 10**9  # a data sheet's GB may be either
    host, device = machine.memory if machine.measured else 0, int(gigabyte * machine.device_memory)
    check_limit("host_memory", stream.host_memory, host, machine.name)
    check_limit("device_memory", stream.device_memory, device, machine.name)
    check_decoded(sources, stream.host_memory, host)
    ranks, hosts = cluster.ranks, cluster.hosts
    if hosts is not None and hosts > ranks:
        raise UserError(
            f"{option('hosts')} is more than {option('ranks')}",
            got=f"{hosts} hosts",
            expected=f"at most {ranks}",
        )
    hosts = min(hosts or -(-ranks // (machine.gpus or ranks)), ranks)
    return place_of(machine, options, ranks, hosts, -(-ranks // hosts))


def open_inputs(job: Job, inputs: Sequence[str], form: Forms) -> list[Source]:
    """Open a job's inputs, of which only the headers are read; none if there are none.

    form: of files without a header.
    """
    if not inputs:
        return []
    if len(inputs) != len(job.arrays):
        raise UserError(
            f"job {job.name} takes {counted(len(job.arrays), 'input')}",
            got=f"{counted(len(inputs), 'file')}: {', '.join(inputs)}",
            expected=" ".join(name.upper() for name in job.arrays),
        )
    paths = [named("INPUT", input) for input in inputs]
    return [*map(open_source, paths, forms_of_inputs(form, len(paths)))]


def describe_inputs(
    job: Job, sources: Sequence[Source], form: Forms
) -> tuple[list[ArrayType], FileTraits, list[str]]:
    """Shape and dtype of each array, what chunks depend on of their files, and notes about them.

    form: of every array if there are no files.
    """
    if sources:
        serial = next((str(source.path) for source in sources if not source.parallel), None)
        files = FileTraits(serial is None, source_chunks=file_chunks(sources))
        notes = [f"{serial} is read by one rank for all, and decoded: neither is in these times"]
        return [(source.shape, source.dtype) for source in sources], files, notes if serial else []
    return [_described(form) for form in forms_of_inputs(form, len(job.arrays))], PLAIN, []


def _described(form: Form | None) -> ArrayType:
    """Return the shape and dtype of an array that options describe instead of a file."""
    if form is None or form.shape is None:
        raise UserError(
            "no array to plan for", got=f"neither INPUT nor {option('shape')}", expected="one of them"
        )
    if form.dtype is None:
        raise UserError(f"{option('shape')} needs an element type", hint=option("input_dtype", "float32"))
    try:
        return form.shape, np.dtype(form.dtype)
    except (TypeError, ValueError) as reason:
        raise UserError(
            f"unknown {option('input_dtype')}", got=form.dtype, expected="uint8, float32, ..."
        ) from reason


def _settled(task: Task) -> Task:
    try:
        return with_known_results(task, CpuBackend())
    except JOB_ERRORS as reason:  # in the job's own function
        raise UserError(
            f"job {task.job.name} fails when called on zeros to find its result type",
            why=describe(reason).partition(". Try: ")[0],
            hint="declare out= in its decorator",
        ) from reason
