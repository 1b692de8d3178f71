"""`meshrun plan`: what a run will take, told without a GPU or MPI; and the measuring of a machine's rates."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launch.cli import Jobs
from launch.options import SIZE, JobCommand, debug_option, depth_option, input_option, job_option
from launch.refuse import BROKEN

if TYPE_CHECKING:
    import numpy as np

    from runner.chunking import Files
    from runner.declaration import Job
    from runner.rates import Machine
    from runner.stream.options import StreamOptions
    from runner.work import Work


RANKS_MOST = 1 << 17  # the block of each is looked at, which takes seconds


class Plans(Jobs):
    """A command for every job, which plans a run of it."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return plan_command(cmd_name)


@click.group(
    cls=Plans,
    subcommand_metavar="JOB [INPUT] [OPTIONS]",
    options_metavar="[--calibrate]",
    invoke_without_command=True,
    no_args_is_help=False,
)
@click.option("--calibrate", is_flag=True, help="Measure this machine's rates, and keep them.")
@click.option(
    "--at",
    "folder",
    default=".",
    metavar="FOLDER",
    help="Where --calibrate writes and reads a file.  [default: here]",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def plan(ctx: click.Context, calibrate: bool, folder: str, debug: bool) -> int | None:
    """Tell what a run will take, without a GPU or MPI.

    \b
    meshrun plan laplacian in.npy --ranks 8
    meshrun plan laplacian --shape 131072x131072 --input-dtype float32 --ranks 8 --gpu h200
    meshrun plan --calibrate                 measure this machine, once

    JOB and its options are those of meshrun run.
    """
    if ctx.invoked_subcommand is not None:
        if calibrate:
            raise click.UsageError("--calibrate measures the machine, for no job")
        return None
    if not calibrate:
        raise click.UsageError("Missing JOB, or --calibrate.")
    from runner.storage.paths import named

    return measure(named("--at", folder))


def plan_command(name: str) -> click.Command:
    """The command `meshrun plan NAME`; raises UserError when there is no such job, or it cannot be loaded."""
    from runner.errors import UserError
    from runner.find import find

    job = find(name)
    own = [job_option(parameter) for parameter in job.parameters]
    ours = plan_options({parameter.name for parameter in job.parameters})
    twice = {option.name for option in own} & {option.name for option in ours}
    if twice:
        raise UserError(
            f"job {name} cannot be planned: meshrun plan has options of the same names as its own",
            got=", ".join(sorted(str(option) for option in twice)),
            hint="another name for the job's parameter",
        )

    def run(input: str | None, **values: Any) -> None:
        parameters = {parameter.name: values.pop(parameter.name) for parameter in job.parameters}
        forecast(job, input, parameters, **values)

    return JobCommand(
        name,
        callback=run,
        params=[click.Argument(["input"], required=False), *own, *ours],
        help=f"{job.summary}\n\nTells what meshrun run {name} will take.",
        short_help=job.summary,
        own=len(own),
    )


def plan_options(taken: Container[str]) -> list[click.Option]:
    """taken: the job's own names. Its own --dtype leaves --input-dtype, as with `meshrun run`."""
    from runner.halo import BOUNDARIES

    return [
        input_option("shape", taken, metavar="RxC", help="Of a raw INPUT, or in place of INPUT."),
        input_option("dtype", taken, metavar="NAME", help="With --shape: such as float32."),
        click.Option(
            ["--ranks"], type=click.IntRange(1, RANKS_MOST), required=True, metavar="N", help="How many."
        ),
        click.Option(
            ["--hosts"], type=click.IntRange(min=1), metavar="H",
            help="On so many hosts.  [default: as few as have GPUs enough]",
        ),
        click.Option(
            ["--gpu"], metavar="NAME",
            help="Such as h200, a100, l40s; cpu for none.  [default: what --calibrate measured, else h200]",
        ),
        click.Option(["--grid"], metavar="RxC", help="Cut the array like this, a number per axis."),
        click.Option(["--boundary"], type=click.Choice(BOUNDARIES), help="What lies beyond the array."),
        click.Option(["--cval"], type=float, help="The constant of --boundary constant."),
        depth_option("Chunks under way at once."),
        click.Option(
            ["--chunk-bytes"], type=SIZE, help="Of a chunk's input.  [default: as a run's]"
        ),
        click.Option(
            ["--host-memory"], type=SIZE,
            help="That a rank may use.  [default: a quarter of the host's over its ranks]",
        ),
        click.Option(
            ["--device-memory"], type=SIZE,
            help="Likewise of its GPU.  [default: 80 % of it]",
        ),
        click.Option(["--json"], metavar="FILE", help="Write the plan there."),
        debug_option(),
    ]  # fmt: skip


def forecast(
    job: Job,
    input: str | None,
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
    """Print the plan of one job, and write it to `json` where that is asked for."""
    from runner.chunking import not_streamed
    from runner.errors import UserError
    from runner.forecast import by_ranks
    from runner.forecast import forecast as predicted
    from runner.forecast_record import SCHEMA, record
    from runner.report.plan_table import render
    from runner.report.record import write_json
    from runner.storage import check_place
    from runner.storage.paths import named
    from runner.stream.options import StreamOptions
    from runner.work import decide

    if job.kind != "map":
        raise UserError(f"job {job.name} cannot be planned", expected="a job made by map_blocks")
    if json is not None:
        check_place(named("--json", json), "plan")
    array, files, notes = described(input, input_shape, input_dtype)
    machine = chosen(gpu)
    work = decide(job, job.complete(parameters), *array, ranks, grid=grid, boundary=boundary, cval=cval)
    work = settled(work)
    options = StreamOptions(chunk_bytes, host_memory, device_memory, depth)
    if hosts is not None and hosts > ranks:
        raise UserError("--hosts is more than --ranks", got=f"{hosts} hosts", expected=f"at most {ranks}")
    check_memory(machine, options)
    hosts = min(hosts or -(-ranks // (machine.gpus or ranks)), ranks)
    if input is not None and options.named is not None and not files.parallel:
        raise not_streamed(options.named, input)
    last = predicted(work, machine, hosts, options, files, grid=grid)
    every = by_ranks(last, work, machine, options, files, grid=grid)
    found = record(every, work, machine, options)
    assumed = gpu is None and not machine.measured
    found["machine"]["assumed"] = assumed
    if assumed:
        notes.append(
            f"no --gpu and no measured rates: hosts with {machine.gpus} {machine.name} GPUs are assumed; "
            "--gpu cpu is for hosts without"
        )
    if not machine.measured:
        notes.append("rates are nominal: meshrun plan --calibrate, on the machine itself, measures them")
    found["notes"] = notes
    if json is not None:
        write_json(Path(json), "plan", SCHEMA, found)
    click.echo(render(found), nl=False)


def check_memory(machine: Machine, options: StreamOptions) -> None:
    """UserError for memory that the machine does not have; of one that was not measured, a GPU's is known."""
    from runner.chunking import check_limit

    gigabyte = 1 if machine.measured else 2**30 / 10**9  # of a data sheet, which may mean either
    host, device = machine.memory if machine.measured else 0, int(gigabyte * machine.device_memory)
    check_limit("--host-memory", options.host_memory, host, machine.name)
    check_limit("--device-memory", options.device_memory, device, machine.name)


def described(
    input: str | None, shape: str | None, dtype: str | None
) -> tuple[tuple[tuple[int, ...], np.dtype[Any]], Files, list[str]]:
    """Shape and dtype of the array, what chunks depend on of its file, and notes about it."""
    import numpy as np

    from runner.chunking import PLAIN, Files
    from runner.errors import UserError
    from runner.options import form_of
    from runner.storage import open_source
    from runner.storage.paths import named

    form = form_of(shape, dtype, None)
    if input is not None:
        source = open_source(named("INPUT", input), form)
        single = f"{input} is read by one rank for all, and decoded: neither is in these times"
        files = Files(source.parallel, source_chunks=source.chunks)
        return (source.shape, source.dtype), files, [] if source.parallel else [single]
    if form is None or form.shape is None:
        raise UserError("one array is planned for", got="neither INPUT nor --shape", expected="one of them")
    if dtype is None:
        raise UserError("--shape does not say the elements' type", hint="--input-dtype float32")
    try:
        return (form.shape, np.dtype(dtype)), PLAIN, []
    except (TypeError, ValueError) as reason:
        raise UserError("unknown --input-dtype", got=dtype, expected="uint8, float32, ...") from reason


def chosen(gpu: str | None) -> Machine:
    from runner.backend.host import host_memory
    from runner.rates import choose, load, nominal_cpu, rates_file

    here = nominal_cpu(len(os.sched_getaffinity(0)), host_memory())
    return choose(gpu, load(rates_file()), here)


def settled(work: Work) -> Work:
    from runner.backend.cpu import CpuBackend
    from runner.errors import UserError, describe
    from runner.result_type import with_known_result

    try:
        return with_known_result(work, CpuBackend())
    except BROKEN as reason:  # in the job's own function
        raise UserError(
            f"job {work.job.name} fails when called on zeros to see its result",
            got=describe(reason).partition(". Try: ")[0],
            hint="declare out= in its decorator, or --debug for the traceback",
        ) from reason


def measure(folder: Path) -> int:
    """Measure this machine, print and keep what was found."""
    from runner.backend import Backend
    from runner.binding import visible_gpus
    from runner.calibrate import calibrate
    from runner.rates import rates_file, save
    from runner.report.plan_table import render_rates

    def opened(index: int) -> Backend:
        if not gpus:
            from runner.backend.cpu import CpuBackend

            return CpuBackend()
        from runner.backend.cuda import CudaBackend

        return CudaBackend(index)

    gpus = visible_gpus("auto")
    file = rates_file()
    machine = calibrate(folder, gpus, opened)
    save(machine, file)
    what = f"{gpus} x {machine.name}" if gpus else f"CPU, {machine.name}"
    click.echo(f"{machine.host}: {what}, {machine.cores} cores, files in {folder.resolve()}\n")
    click.echo(render_rates({name: rate.value for name, rate in machine.rates.items()}))
    click.echo(f"kept in {file}")
    return 0
