"""`meshrun bench`: nccl-tests' options under their letters and long names, and what they do not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

import runner
from jobs.bench.asked import Asked
from jobs.bench.settings import Settings, parse_size

Command = TypeVar("Command", bound=Callable[..., Any])

BAD_USAGE = 6  # nccl-tests' exit status (testInvalidUsage)
ONE_PROCESS_PER_GPU = (
    "one process drives one GPU here: start more ranks instead, meshrun -n 8 bench ..., "
    "mpirun -np 8 meshrun bench ... or srun --ntasks-per-node=8 meshrun bench ..."
)
NO_DEVICE_API = (
    "-D measures kernels compiled against NCCL's device headers; without a compiler there are none"
)


class BadUsage(click.UsageError):
    exit_code = BAD_USAGE


class BenchCommand(click.Command):
    """Mistakes in its words end with nccl-tests' exit status."""

    def make_context(self, *arguments: Any, **keywords: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **keywords)
        except click.UsageError as mistake:
            raise BadUsage(mistake.format_message(), mistake.ctx) from mistake

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as mistake:
            raise BadUsage(mistake.format_message(), mistake.ctx) from mistake


class Size(click.ParamType[int]):
    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except runner.UserError as reason:
            self.fail(str(reason), param, ctx)


class Choices(click.ParamType[tuple[str, ...]]):
    """One of some words, or `all`: a tuple of them."""

    name = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        if value == "all":
            return self.words
        if value not in self.words:
            self.fail(f"{value!r} is none of {', '.join(self.words)}, all", param, ctx)
        return (value,)


def option(letter: str, name: str, help: str, **keywords: Any) -> Callable[[Command], Command]:
    """nccl-tests' -x and --long_name, with a hyphen too."""
    spellings = [letter, f"--{name}", name] + ([f"--{name.replace('_', '-')}"] if "_" in name else [])
    default = next((field.default for field in fields(Settings) if field.name == name), None)
    keywords = {"default": default, "show_default": default is not None, "help": help, **keywords}
    return click.option(*spellings, **keywords)


def only_one(ctx: click.Context, param: click.Parameter, value: int) -> int:
    """For -t and -g, which scripts pass as 1."""
    if value != 1:
        raise click.BadParameter(ONE_PROCESS_PER_GPU, ctx, param)
    return value


def no_device_api(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    if value:
        raise click.BadParameter(NO_DEVICE_API, ctx, param)


REDUCTIONS, DATATYPES = Choices(runner.REDUCTIONS), Choices([*runner.DATATYPES])
NATURAL = click.IntRange(min=0)
ZERO_OR_ONE = click.IntRange(0, 1)

OPTIONS = (
    option("-b", "minbytes", "First size.", type=Size()),
    option("-e", "maxbytes", "Last size.", type=Size()),
    option("-i", "stepbytes", "From size to size, where -f is 1.", type=Size()),
    option("-f", "stepfactor", "From size to size, times this.", type=click.IntRange(min=1)),
    option("-n", "iters", "Timed iterations.", type=click.IntRange(min=1)),
    option("-w", "warmup_iters", "Iterations before, for each size.", type=NATURAL),
    option("-m", "agg_iters", "Operations in one NCCL group.", type=click.IntRange(min=1)),
    option("-N", "run_cycles", "Times through all sizes; 0 for ever.", type=NATURAL),
    option("-a", "average", "Time: 0 of rank 0, 1 mean, 2 min, 3 max of ranks.", type=click.IntRange(0, 3)),
    option("-p", "parallel_init", "Without effect: a process has one GPU.", type=ZERO_OR_ONE, default=0),
    option("-c", "check", "Checks of each result; 0 for none.", type=NATURAL),
    option("-o", "op", ", ".join([*runner.REDUCTIONS, "all"]) + ".", type=REDUCTIONS, default="sum"),
    option("-d", "datatype", ", ".join([*runner.DATATYPES, "all"]) + ".", type=DATATYPES, default="float"),
    option("-r", "root", "Root rank; -1 for all in turn.", type=click.IntRange(min=-1)),
    option(
        "-z", "blocking", "Wait for each call: 1 with a barrier, 2 without, 3 barrier not timed.",
        type=click.IntRange(0, 3),
    ),
    option("-y", "stream_null", "On CUDA's default stream.", type=ZERO_OR_ONE, default=0),
    option("-T", "timeout", "End the run when stuck so many seconds.", type=NATURAL),
    option("-G", "cudagraph", "Launch all as one CUDA graph, so often.", type=NATURAL),
    option("-C", "report_cputime", "Show the time to queue instead.", type=ZERO_OR_ONE, default=0),
    option("-S", "report_timestamps", "Show when a row was done.", type=ZERO_OR_ONE, default=0),
    option("-J", "output_file", "Write nccl-tests' JSON there.", type=str, metavar="FILE.json"),
    option("-R", "local_register", "Register buffers: 1 local, 2 symmetric.", type=click.IntRange(0, 2)),
    option("-x", "cta_policy", "NCCL's: 0 default, 1 efficiency, 2 zero.", type=click.IntRange(0, 2)),
    option("-M", "memory", "Report GPU memory.", type=ZERO_OR_ONE, default=0),
    option("-u", "unalign", "Shift the buffers by so many elements.", type=NATURAL),
    option("-I", "per_iter_timing", "Time single iterations.", type=ZERO_OR_ONE, default=0),
    option("-K", "per_iter_skip", "Leave so many first ones out of -I's summary.", type=NATURAL),
    option("-t", "nthreads", "1.", type=int, default=1, callback=only_one, hidden=True),
    option("-g", "ngpus", "1.", type=int, default=1, callback=only_one, hidden=True),
    option("-D", "device_implementation", "No.", type=int, callback=no_device_api, hidden=True),
    option("-V", "device_cta_count", "No.", type=int, hidden=True),
    click.option("--names", is_flag=True, help="Name ranks and groups below each row."),
    click.option("--wide", is_flag=True, help="More columns: wire rate, slowest, latest."),
    click.option("--json-lines", metavar="FILE", help="Write each row there as it is measured."),
    click.option("--plot", metavar="FILE", help="Draw it: .html, .svg or .png."),
    click.option("--split", envvar="NCCL_TESTS_SPLIT", metavar="MOD8", help="Split: rank AND, OR, MOD, DIV."),
    click.option("--split-mask", envvar="NCCL_TESTS_SPLIT_MASK", metavar="HEX", help="Split by rank AND it."),
    click.option(
        "--min-busbw", envvar="NCCL_TESTS_MIN_BW", type=float, metavar="GB/s",
        help="Fail, status 7, where the average is below 0.9 of it.",
    ),
    click.option("--device", type=click.Choice(("auto", "cpu", "cuda")), default="auto", show_default=True,
                 help="Which memory is measured."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
)  # fmt: skip

TRAFFIC_OPTIONS = (
    click.option("--spread", envvar="NCCL_TESTS_ALLTOALLV_SPREAD", type=float, default=1.0, show_default=True,
                 help="0 alike to all ... 1 by distance."),
    click.option("--matrix", envvar="NCCL_TESTS_ALLTOALLV_MATRIX_FILE", type=click.Path(path_type=Path),
                 metavar="FILE", help="Bytes from each rank to each."),
    click.option("--matrix-scale", envvar="NCCL_TESTS_ALLTOALLV_MATRIX_SCALE", type=float, default=1.0,
                 help="Times this.", show_default=True),
)  # fmt: skip


def with_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for one in reversed(options):
            command = one(command)
        return command

    return add


def understood(operations: tuple[str, ...], words: dict[str, Any]) -> Asked:
    """The options' values as what is to be measured; UsageError where they contradict each other."""
    names = {field.name for field in fields(Settings)}
    values = {name: words[name] for name in names if name in words}
    flags = {field.name for field in fields(Settings) if field.type == "bool"}
    values |= {name: bool(values[name]) for name in flags}
    settings = Settings(**values, reductions=words["op"], datatypes=words["datatype"])
    if settings.minbytes > settings.maxbytes:
        raise click.UsageError(f"-b is over -e: {settings.minbytes} > {settings.maxbytes} bytes")
    if settings.minbytes == 0:
        raise click.UsageError("-b 0: the smallest size is 1 byte")
    if settings.stepfactor == 1 and settings.stepbytes == 0:
        raise click.UsageError("-i 0 without -f: the size would never grow")
    if settings.cudagraph and settings.per_iter_timing:
        raise click.UsageError("-I times single iterations, which a graph (-G) has none of")
    if settings.cudagraph and settings.blocking:
        raise click.UsageError("-z waits for single calls, which a graph (-G) has none of")
    if settings.per_iter_skip and not settings.per_iter_timing:
        raise click.UsageError("-K leaves iterations out of the summary of -I: give -I 1 too")
    if settings.per_iter_skip >= settings.iters:
        raise click.UsageError(f"-K {settings.per_iter_skip} leaves none of -n {settings.iters} iterations")
    return Asked(
        operations=operations,
        settings=settings,
        names=words["names"],
        wide=words["wide"],
        output_file=words["output_file"],
        json_lines=words["json_lines"],
        plot=words["plot"],
        split=words["split"],
        split_mask=words["split_mask"],
        min_busbw=words["min_busbw"],
        spread=words.get("spread", 1.0),
        matrix=words.get("matrix"),
        matrix_scale=words.get("matrix_scale", 1.0),
    )


def as_ranks(body: Callable[..., dict[str, Any]], asked: Any, device: Any, debug: bool) -> int:
    """Run `body(world, ending, asked, door)` in every rank; the exit status."""
    door = click.get_current_context().obj
    return runner.as_rank(
        lambda world, ending: body(world, ending, asked, door),
        device=device,
        expected_ranks=door.ranks,
        run_dir=door.run_dir,
        debug=debug,
        usage_status=BAD_USAGE,
    )


@click.group()
def bench() -> None:
    """Measure collectives: the NCCL tests, on these ranks.

    \b
    meshrun -n 8 bench all_reduce -b 8 -e 8G -f 2     the GPUs of this machine
    mpirun -np 64 meshrun bench alltoall -b 1M -e 1G  a cluster; likewise srun
    meshrun -n 4 bench all_reduce --device cpu        the host's memory, over MPI

    Options, defaults and output are those of nccl-tests 2.19.6.
    """


def _add(name: str, operations: tuple[str, ...], summary: str) -> None:
    varied = "alltoallv" in operations

    @bench.command(name, cls=BenchCommand, help=summary, short_help=summary)
    @with_options([*OPTIONS, *(TRAFFIC_OPTIONS if varied else ())])
    def command(device: str, debug: bool, **words: Any) -> int:
        from jobs.bench.run import run

        return as_ranks(run, understood(operations, words), device, debug)


for _name in runner.OPERATIONS:
    _add(_name, (_name,), f"Measure {_name}.")
_add("all", runner.OPERATIONS, "Measure every operation, one after another.")
