"""`meshrun plan`: predict the time and memory of a run, without a GPU or MPI; calibrate a machine's rates."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launch.cli.errors import JOB_ERRORS
from launch.cli.job_command import Jobs, depth_option, grid_options, input_option, inputs_command
from launch.cli.params import SIZE, debug_option

if TYPE_CHECKING:
    from runner.job.declaration import Job
    from runner.plan.chunking import Files
    from runner.plan.machine import Machine
    from runner.plan.stream_options import StreamOptions
    from runner.plan.task import ArrayType, Task


RANKS_MOST = 1 << 17  # planning visits every rank's block, which takes seconds


class Plans(Jobs):
    """A planning command for every job."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return plan_command(cmd_name)


@click.group(
    cls=Plans,
    subcommand_metavar="JOB [INPUT] [OPTIONS]",
    options_metavar="[--calibrate]",
    invoke_without_command=True,
    no_args_is_help=False,
)
@click.option("--calibrate", is_flag=True, help="Measure this machine's rates and save them.")
@click.option(
    "--at",
    "folder",
    default=".",
    metavar="FOLDER",
    help="Folder in which --calibrate writes and reads a file.  [default: the working directory]",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def plan(ctx: click.Context, calibrate: bool, folder: str, debug: bool) -> int | None:
    """Predict the time and memory of a run, without a GPU or MPI.

    \b
    meshrun plan laplacian in.npy --ranks 8
    meshrun plan laplacian --shape 131072x131072 --input-dtype float32 --ranks 8 --gpu h200
    meshrun plan --calibrate                 measure this machine, once

    JOB and its options are those of meshrun run.
    """
    if ctx.invoked_subcommand is not None:
        if calibrate:
            raise click.UsageError("--calibrate measures the machine and takes no job")
        return None
    if not calibrate:
        raise click.UsageError("Missing JOB, or --calibrate.")
    from runner.storage.paths import named

    return calibrate_machine(named("--at", folder))


def plan_command(name: str) -> click.Command:
    """The command `meshrun plan NAME`. Raises UserError if there is no such job or it cannot be loaded."""
    return inputs_command(
        name,
        f"job {name} cannot be planned: meshrun plan has options with the same names",
        f"Predicts what meshrun run {name} will take.",
        plan_options,
        forecast,
    )


def plan_options(taken: Container[str]) -> list[click.Option]:
    """The options of `meshrun plan JOB` besides the job's own. taken: the job's own names."""
    return [
        input_option("shape", taken, metavar="RxC", help="Shape of a raw INPUT, or instead of INPUT."),
        input_option("dtype", taken, metavar="NAME", help="Dtype for --shape, such as float32."),
        click.Option(
            ["--ranks"], type=click.IntRange(1, RANKS_MOST), required=True, metavar="N",
            help="Number of ranks.",
        ),
        click.Option(
            ["--hosts"], type=click.IntRange(min=1), metavar="H",
            help="Number of hosts.  [default: as few as have enough GPUs]",
        ),
        click.Option(
            ["--gpu"], metavar="NAME",
            help="h200, a100, l40s, ...; cpu for none.  [default: as calibrated, else h200]",
        ),
        *grid_options(),
        depth_option("Chunks in flight."),
        click.Option(
            ["--chunk-bytes"], type=SIZE, help="Size of a chunk's input.  [default: as in a run]"
        ),
        click.Option(
            ["--host-memory"], type=SIZE,
            help="Host memory for each rank.  [default: a quarter of the host's, shared by its ranks]",
        ),
        click.Option(
            ["--device-memory"], type=SIZE,
            help="GPU memory for each rank.  [default: 80 % of its GPU's]",
        ),
        click.Option(["--json"], metavar="FILE", help="Write the plan to FILE."),
        debug_option(),
    ]  # fmt: skip


def forecast(
    job: Job,
    inputs: Sequence[str],
    parameters: dict[str, Any],
    *,
    input_shape: str | None,
    input_dtype: str | None,
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
    json: str | None,
    debug: bool,
) -> None:
    """Print the plan of one job, and write it to the file `json` if given."""
    from runner.errors import UserError
    from runner.pipeline.fusing import with_inferred_halo
    from runner.plan.chunking import not_streamed
    from runner.plan.forecast import by_ranks
    from runner.plan.forecast import forecast as predicted
    from runner.plan.stream_options import StreamOptions
    from runner.plan.task import plan_task
    from runner.report.plan_table import render
    from runner.report.record import write_json
    from runner.run.forecast_record import SCHEMA, record
    from runner.storage.formats.registry import check_place
    from runner.storage.paths import named

    if job.kind != "map":
        raise UserError(f"job {job.name} cannot be planned", expected="a job made by map_blocks")
    if json is not None:
        check_place(named("--json", json), "plan")
    arrays, files, notes = describe_inputs(job, inputs, input_shape, input_dtype)
    machine = choose_machine(gpu)
    given = job.complete(parameters)
    job = with_inferred_halo(job, arrays, given)
    task = plan_task(job, given, arrays, ranks, grid=grid, boundary=boundary, cval=cval)
    task = settle_work(task)
    options = StreamOptions(chunk_bytes, host_memory, device_memory, depth)
    if hosts is not None and hosts > ranks:
        raise UserError("--hosts is more than --ranks", got=f"{hosts} hosts", expected=f"at most {ranks}")
    check_memory(machine, options)
    hosts = min(hosts or -(-ranks // (machine.gpus or ranks)), ranks)
    if inputs and options.named is not None and not files.parallel:
        raise not_streamed(options.named, inputs[0])
    last = predicted(task, machine, hosts, options, files, grid=grid)
    every = by_ranks(last, task, machine, options, files, grid=grid)
    found = record(every, task, machine, options)
    assumed = gpu is None and not machine.measured
    found["machine"]["assumed"] = assumed
    if assumed:
        notes.append(
            f"no --gpu and no measured rates: assuming hosts with {machine.gpus} {machine.name} GPUs; "
            "use --gpu cpu for hosts without GPUs"
        )
    if not machine.measured:
        notes.append("rates are nominal: run meshrun plan --calibrate on the machine to measure them")
    found["notes"] = notes
    if json is not None:
        write_json(Path(json), "plan", SCHEMA, found)
    click.echo(render(found), nl=False)


def check_memory(machine: Machine, options: StreamOptions) -> None:
    """UserError for more memory than the machine has; without measurements, only the GPU's is known."""
    from runner.plan.chunking import check_limit

    gigabyte = 1 if machine.measured else 2**30 / 10**9  # a data sheet's GB may be either
    host, device = machine.memory if machine.measured else 0, int(gigabyte * machine.device_memory)
    check_limit("--host-memory", options.host_memory, host, machine.name)
    check_limit("--device-memory", options.device_memory, device, machine.name)


def describe_inputs(
    job: Job, inputs: Sequence[str], shape: str | None, dtype: str | None
) -> tuple[list[ArrayType], Files, list[str]]:
    """Shape and dtype of each array, what chunks depend on of their files, and notes about them.

    shape, dtype: of files without a header, or of every array where there are no files.
    """
    import numpy as np

    from runner.errors import UserError
    from runner.pipeline.streamed.chunk_agreement import file_chunks
    from runner.plan.chunking import PLAIN, Files
    from runner.run.options import form_of
    from runner.storage.formats.registry import open_source
    from runner.storage.paths import named

    form = form_of(shape, dtype, None)
    if inputs:
        if len(inputs) != len(job.arrays):
            raise UserError(
                f"job {job.name} takes {len(job.arrays)} input{'s' if len(job.arrays) > 1 else ''}",
                got=f"{len(inputs)} file{'s' if len(inputs) > 1 else ''}: {', '.join(inputs)}",
                expected=" ".join(name.upper() for name in job.arrays),
            )
        sources = [open_source(named("INPUT", input), form) for input in inputs]
        serial = next((str(source.path) for source in sources if not source.parallel), None)
        files = Files(serial is None, source_chunks=file_chunks(sources))
        notes = [f"{serial} is read by one rank for all, and decoded: neither is in these times"]
        return [(source.shape, source.dtype) for source in sources], files, notes if serial else []
    if form is None or form.shape is None:
        raise UserError("no array to plan for", got="neither INPUT nor --shape", expected="one of them")
    if dtype is None:
        raise UserError("--shape needs an element type", hint="--input-dtype float32")
    try:
        return [(form.shape, np.dtype(dtype))] * len(job.arrays), PLAIN, []
    except (TypeError, ValueError) as reason:
        raise UserError("unknown --input-dtype", got=dtype, expected="uint8, float32, ...") from reason


def choose_machine(gpu: str | None) -> Machine:
    from runner.plan.machine import choose, load, nominal_cpu, rates_file
    from runner.system.host_memory import host_memory

    here = nominal_cpu(len(os.sched_getaffinity(0)), host_memory())
    return choose(gpu, load(rates_file()), here)


def settle_work(task: Task) -> Task:
    from runner.device.cpu import CpuBackend
    from runner.errors import UserError, describe
    from runner.pipeline.result_type import with_known_results

    try:
        return with_known_results(task, CpuBackend())
    except JOB_ERRORS as reason:  # in the job's own function
        raise UserError(
            f"job {task.job.name} fails when called on zeros to find its result type",
            got=describe(reason).partition(". Try: ")[0],
            hint="declare out= in its decorator; --debug shows the traceback",
        ) from reason


def calibrate_machine(folder: Path) -> int:
    """Measure this machine's rates, print and save them."""
    from runner.device.api import Backend
    from runner.plan.machine import rates_file, save
    from runner.report.plan_table import render_rates
    from runner.run.installation.calibrate import calibrate
    from runner.world.binding import visible_gpus

    def opened(index: int) -> Backend:
        if not gpus:
            from runner.device.cpu import CpuBackend

            return CpuBackend()
        from runner.device.cuda import CudaBackend

        return CudaBackend(index)

    gpus = visible_gpus("auto")
    file = rates_file()
    machine = calibrate(folder, gpus, opened)
    save(machine, file)
    what = f"{gpus} x {machine.name}" if gpus else f"CPU, {machine.name}"
    click.echo(f"{machine.host}: {what}, {machine.cores} cores, files in {folder.resolve()}\n")
    click.echo(render_rates({name: rate.value for name, rate in machine.rates.items()}))
    click.echo(f"saved to {file}")
    return 0
