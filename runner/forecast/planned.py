"""Plan a run of a job without running it: its inputs by file or by shape, the machine, and the forecast."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshrun.runner.compiler.decide import with_inferred_halo
from meshrun.runner.compiler.result_type import with_known_results
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError, describe
from meshrun.runner.forecast.forecast import by_ranks, forecast
from meshrun.runner.forecast.machine import Machine, choose, load, nominal_cpu, rates_file
from meshrun.runner.forecast.planned_job import plan_job
from meshrun.runner.forecast.planned_steps import plan_map_steps, plan_steps
from meshrun.runner.forecast.record import SCHEMA, record
from meshrun.runner.job.declaration import Job
from meshrun.runner.maps.decoded_inputs import check_decoded
from meshrun.runner.maps.streamed.chunk_agreement import file_chunks
from meshrun.runner.options.choices import Copies
from meshrun.runner.options.form import Form, form_of, forms_of_inputs
from meshrun.runner.options.spelling import command_option, option
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import PLAIN, Files, check_limit, not_streamed
from meshrun.runner.plan.task import ArrayType, Task, plan_task
from meshrun.runner.report.record import Record
from meshrun.runner.report.units import counted
from meshrun.runner.storage.formats.registry import Source, open_source
from meshrun.runner.storage.paths import named
from meshrun.runner.system.host_memory import host_memory

__all__ = ["SCHEMA", "describe_inputs", "open_inputs", "plan_record"]

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


def plan_record(
    job: Job,
    inputs: Sequence[str],
    parameters: dict[str, Any],
    *,
    input_shape: str | None,
    input_dtype: str | None,
    input_order: str | None,
    ranks: int,
    hosts: int | None,
    gpu: str | None,
    grid: str | None,
    boundary: str | None,
    cval: float | None,
    depth: int | None,
    chunk_bytes: int | None,
    host_memory: int | None,
    device_memory: int | None,
    exchange_rate: float | None = None,
    network_rate: float | None = None,
    copies: Copies = "auto",
    steps: int | None = None,
) -> Record:
    """Return the forecast of a run as plain values, with notes on what it assumes.

    The arguments are the values of the options of `meshrun plan`. Raises UserError where they, the inputs or
    the job do not allow one.
    """
    if "simulate" in job.services:
        return _steps_record(
            job,
            inputs,
            parameters,
            _machine(gpu),
            (ranks, hosts),
            grid,
            StreamOptions(chunk_bytes, host_memory, device_memory, depth),
            {
                "input_shape": input_shape,
                "input_dtype": input_dtype,
                "input_order": input_order,
                "boundary": boundary,
                "cval": cval,
                "depth": depth,
                "chunk_bytes": chunk_bytes,
                "exchange_rate": exchange_rate,
                "network_rate": network_rate,
            },
            gpu is None,
            copies,
            steps,
        )
    if steps is None:
        _refuse(job, {"copies": None if copies == "auto" else copies})
    form = form_of(input_shape, input_dtype, input_order)
    if job.forecast is not None:
        of_maps = {
            "grid": grid,
            "boundary": boundary,
            "cval": cval,
            "depth": depth,
            "chunk_bytes": chunk_bytes,
        }
        _refuse(job, of_maps)
        sources = open_inputs(job, inputs, form)
        arrays, _, notes = describe_inputs(job, sources, form)
        machine, options = _machine(gpu), StreamOptions(None, host_memory, device_memory, None)
        _check_memory(machine, options, sources)
        hosts = _hosts(hosts, ranks, machine)
        found = plan_job(job, arrays, parameters, machine, ranks, hosts, options, exchange_rate, network_rate)
        found["notes"] = notes + _assumed(found, machine, gpu is None)
        return found
    if job.kind != "map":
        raise UserError(
            f"job {job.name} cannot be planned",
            expected="a job made by map_blocks, one that takes steps, or one with forecast=",
        )
    _refuse(job, {"exchange_rate": exchange_rate, "network_rate": network_rate})
    sources = open_inputs(job, inputs, form)
    arrays, files, notes = describe_inputs(job, sources, form)
    machine = _machine(gpu)
    given = job.complete(parameters)
    job = with_inferred_halo(job, arrays, given)

    def cut(count: int, text: str | None) -> Task:
        return plan_task(job, given, arrays, count, grid=text, boundary=boundary, cval=cval)

    task = _settled(cut(ranks, grid))
    options = StreamOptions(chunk_bytes, host_memory, device_memory, depth)
    _check_memory(machine, options, sources)
    hosts = _hosts(hosts, ranks, machine)
    if steps is not None:
        _refuse_chunks(chunk_bytes, depth)

        def settled(count: int, text: str | None) -> Task:
            return replace(cut(count, text), results=task.results)

        found = plan_map_steps(job, parameters, settled, steps, machine, ranks, hosts, grid, options, copies)
        found["notes"] = notes + _assumed(found, machine, gpu is None)
        return found
    if inputs and options.named is not None and not files.parallel:
        raise not_streamed(options.named, inputs[0])
    last = forecast(task, machine, hosts, options, files, grid=grid)
    every = by_ranks(last, task, machine, options, files, grid=grid)
    found = record(every, task, machine, options)
    found["notes"] = notes + _assumed(found, machine, gpu is None)
    return found


def _hosts(given: int | None, ranks: int, machine: Machine) -> int:
    if given is not None and given > ranks:
        raise UserError(
            f"{option('hosts')} is more than {option('ranks')}",
            got=f"{given} hosts",
            expected=f"at most {ranks}",
        )
    return min(given or -(-ranks // (machine.gpus or ranks)), ranks)


def _assumed(found: Record, machine: Machine, unnamed: bool) -> list[str]:
    """Return notes on the machine that is assumed; set `machine.assumed` of the record."""
    notes = []
    assumed = unnamed and not machine.measured
    found["machine"]["assumed"] = assumed
    if assumed:
        notes.append(
            f"no {option('gpu')} and no measured rates: assuming hosts with {machine.gpus} {machine.name} "
            f"GPUs; use {option('gpu', 'cpu')} for hosts without GPUs"
        )
    if not machine.measured:
        notes.append(
            f"rates are nominal: run meshrun plan {command_option('calibrate')} on the machine to "
            "measure them"
        )
    return notes


def _steps_record(
    job: Job,
    inputs: Sequence[str],
    parameters: dict[str, Any],
    machine: Machine,
    size: tuple[int, int | None],
    grid: str | None,
    options: StreamOptions,
    of_arrays: dict[str, Any],
    unnamed: bool,
    copies: Copies,
    steps: int | None,
) -> Record:
    """Return `plan_record` of a job that takes steps. size: ranks and hosts. of_arrays: options that do not
    apply. unnamed: no GPU is named."""
    _refuse(job, of_arrays)
    if len(inputs) != 1:
        raise UserError(f"job {job.name} takes one input", got=f"{len(inputs)}", expected="INPUT")
    ranks, hosts = size[0], _hosts(size[1], size[0], machine)
    _check_memory(machine, options)
    found = plan_steps(job, inputs[0], parameters, steps, machine, ranks, hosts, grid, options, copies)
    found["notes"] = _assumed(found, machine, unnamed)
    return found


def _refuse_chunks(chunk_bytes: int | None, depth: int | None) -> None:
    """UserError for options with which steps pass through the memory in chunks."""
    for name, value in (("chunk_bytes", chunk_bytes), ("depth", depth)):
        if value is not None:
            raise UserError(
                "steps in chunks have no plan", got=option(name, value), hint=f"leave {option(name)} out"
            )


def _refuse(job: Job, options: dict[str, Any]) -> None:
    """UserError if one of the options is given, which do not apply to the job."""
    given = next((name for name, value in options.items() if value is not None), None)
    if given is not None:
        raise UserError(f"{option(given)} does not apply to job {job.name}", got=options[given])


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
) -> tuple[list[ArrayType], Files, list[str]]:
    """Shape and dtype of each array, what chunks depend on of their files, and notes about them.

    form: of every array if there are no files.
    """
    if sources:
        serial = next((str(source.path) for source in sources if not source.parallel), None)
        files = Files(serial is None, source_chunks=file_chunks(sources))
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


def _machine(gpu: str | None) -> Machine:
    here = nominal_cpu(len(os.sched_getaffinity(0)), host_memory())
    return choose(gpu, load(rates_file()), here)


def _settled(task: Task) -> Task:
    try:
        return with_known_results(task, CpuBackend())
    except JOB_ERRORS as reason:  # in the job's own function
        raise UserError(
            f"job {task.job.name} fails when called on zeros to find its result type",
            why=describe(reason).partition(". Try: ")[0],
            hint="declare out= in its decorator",
        ) from reason


def _check_memory(machine: Machine, options: StreamOptions, sources: Sequence[Source] = ()) -> None:
    """UserError for more memory than the machine has, which without measurements is known only of its GPU,
    and for pictures that do not fit it or host_memory when they are decoded."""
    gigabyte = 1 if machine.measured else 2**30 / 10**9  # a data sheet's GB may be either
    host, device = machine.memory if machine.measured else 0, int(gigabyte * machine.device_memory)
    check_limit("host_memory", options.host_memory, host, machine.name)
    check_limit("device_memory", options.device_memory, device, machine.name)
    check_decoded(sources, options.host_memory, host)
