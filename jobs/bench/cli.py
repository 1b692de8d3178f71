"""`meshrun bench`: the commands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from meshrun.jobs.bench.collectives.options import (
    EXPERTS,
    LETTERS,
    LINK_RATE,
    OURS,
    SPLITS,
    STEADY,
    SWEEP,
    TRAFFIC,
    BenchCommand,
    BenchGroup,
    bench_options,
    option,
)
from meshrun.jobs.bench.command_base import (
    COUNT,
    DEBUG,
    LAST,
    PLOT,
    SIZE,
    OwnCommand,
    run_on_ranks,
    with_options,
)
from meshrun.jobs.bench.copy.cli import copy
from meshrun.jobs.bench.lessons.cli import memory
from meshrun.jobs.bench.nvbandwidth.cli import nvbandwidth
from meshrun.jobs.measure.exit_codes import Finite
from meshrun.runner.comm.collectives.api import OPERATIONS

KERNELS = ("product", "copy")  # meshrun.jobs.bench.collectives.commands.overlap.LOADS
# The kernels of all have to find room on a GPU at once, or ranks wait for each other for ever.
MOST_COMMUNICATORS = 4
MOST_REPEATS = 1000  # of a replay


@click.group(cls=BenchGroup, no_args_is_help=False)
def bench() -> None:
    """Measure collectives on these ranks: the NCCL tests.

    \b
    meshrun all_reduce_perf -b 8 -e 8G -f 2 -g 8      the GPUs of this machine
    meshrun -n 8 bench all_reduce -b 8 -e 8G -f 2     the same
    mpirun -np 64 meshrun bench alltoall -b 1M -e 1G  a cluster; likewise srun
    meshrun -n 4 bench all_reduce --device cpu        the host's memory, over MPI

    Options, defaults and output are those of nccl-tests 2.19.6.
    """


bench.add_command(memory)
bench.add_command(copy)
bench.add_command(nvbandwidth)


def _add(name: str, operations: tuple[str, ...], summary: str) -> None:
    varied = "alltoallv" in operations
    unequal = (*(TRAFFIC if varied else ()), *(EXPERTS if name in ("alltoall", "alltoallv") else ()))

    @bench.command(name, cls=BenchCommand, help=summary, short_help=summary)
    @with_options([*LETTERS.values(), *OURS, *SWEEP, *unequal, *LAST])
    def command(device: str, debug: bool, **words: Any) -> int:
        from meshrun.jobs.bench.collectives.commands import run, tuning_sweep

        # Unequal shares are what alltoallv measures.
        skewed = words.get("experts") is not None
        options = bench_options(("alltoallv",) if skewed else operations, words)
        body = tuning_sweep.run if options.sweep_tuning else run.run
        return run_on_ranks(body, options, device, debug)


for _name in OPERATIONS:
    _add(_name, (_name,), f"Measure {_name}.")
_add("all", OPERATIONS, "Measure every operation, one after another.")


@bench.command(cls=BenchCommand)
@with_options(
    [
        option("-b", "minbytes", "First size.", type=SIZE, default=8),
        option("-f", "stepfactor", "Step as a factor.", type=click.IntRange(min=1), default=2),
        option("-n", "iters", "Timed messages.", type=COUNT, default=100),
        *(LETTERS[letter] for letter in ("-e", "-i", "-w", "-c", "-d", "-T", "-J")),
        click.option(
            "--pairs",
            default="ends",
            show_default=True,
            help="Pairs such as 0-1,0-7; ends: first and last rank; all.",
        ),
        *LAST,
    ]
)
def pingpong(device: str, debug: bool, **words: Any) -> int:
    """Measure latency, one-way and two-way bandwidth between two ranks."""
    from meshrun.jobs.bench.collectives.commands.pingpong import run

    return run_on_ranks(run, bench_options(("pingpong",), words), device, debug)


@bench.command(cls=BenchCommand)
@click.argument("operation", type=click.Choice(OPERATIONS), metavar="OPERATION")
@with_options([*LETTERS.values(), STEADY, PLOT, LINK_RATE, *SPLITS, *LAST])
def scale(operation: str, device: str, debug: bool, **words: Any) -> int:
    """Measure OPERATION on 1, 2, 4, ... of the ranks: inside a host, then across hosts."""
    from meshrun.jobs.bench.collectives.commands.scaling import run

    options = bench_options((operation,), words)
    if options.split or options.split_mask:
        raise click.UsageError("scale splits the ranks itself: remove --split and unset NCCL_TESTS_SPLIT")
    return run_on_ranks(run, options, device, debug)


@bench.command(cls=BenchCommand)
@click.argument("operation", type=click.Choice(OPERATIONS), metavar="OPERATION")
@with_options(
    [
        *(LETTERS[f"-{letter}"] for letter in "beifncodrTJ"),
        STEADY,
        click.option(
            "--communicators",
            type=click.IntRange(1, MOST_COMMUNICATORS),
            default=2,
            show_default=True,
            help="Communicators of all ranks that call at once.",
        ),
        click.option(
            "--kernel",
            type=click.Choice(KERNELS),
            default=KERNELS[0],
            show_default=True,
            help="What runs beside the calls: a product of matrices or a copy in memory.",
        ),
        *LAST,
    ]
)
def overlap(operation: str, communicators: int, kernel: str, device: str, debug: bool, **words: Any) -> int:
    """Measure OPERATION on several communicators at once, and beside a kernel that computes."""
    from meshrun.jobs.bench.collectives.commands.overlap import run

    body = partial(run, communicators=communicators, kernel=kernel)
    return run_on_ranks(body, bench_options((operation,), words), device, debug)


@bench.command(cls=OwnCommand)
@click.argument("record", type=click.Path(path_type=Path), metavar="RECORD")
@with_options(
    [
        click.option("--gaps/--no-gaps", default=True, show_default=True,
                     help="Wait between operations as long as the run computed."),
        click.option("--repeats", type=click.IntRange(1, MOST_REPEATS), default=3, show_default=True,
                     help="Times to repeat the run; the median counts."),
        LETTERS["-J"],
        *LAST,
    ]
)  # fmt: skip
def replay(device: str, debug: bool, **words: Any) -> int:
    """Repeat what a run sent, and show which part of its time was the wire, there and here.

    \b
    meshrun --record-operations heat.json -n 4 run heat in.npy out.npy --steps 100
    meshrun -n 4 bench replay heat.json

    RECORD: a file of --record-operations, or the log of a program with
    NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL.
    """
    from meshrun.jobs.bench.replay.run import ReplayOptions, run

    return run_on_ranks(run, ReplayOptions(**words), device, debug)


@bench.command(cls=BenchCommand)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--tolerance",
    type=Finite(min=0),
    default=0.05,
    show_default=True,
    help="Share by which B may be slower than A.",
)
@click.option(
    "--metric",
    type=click.Choice(("time", "algbw", "busbw")),
    default="time",
    show_default=True,
    help="Figure to compare.",
)
@DEBUG
def compare(a: str, b: str, tolerance: float, metric: str, debug: bool) -> int:
    """Compare two records size by size; exit with 1 if B is slower than A beyond --tolerance.

    A, B: text or JSON of meshrun bench or of nccl-tests; records of bench all operation by operation.
    """
    from meshrun.jobs.bench.collectives.output.compare import compare_each, render
    from meshrun.jobs.bench.collectives.output.reader import read_each

    comparisons = compare_each(read_each(a), read_each(b), tolerance, metric)
    click.echo("\n".join(map(render, comparisons)), nl=False)
    return 0 if all(one.ok for one in comparisons) else 1


@bench.command(cls=BenchCommand)
@click.argument("records", nargs=-1, required=True, metavar="RECORD...")
@click.option("--to", "target", required=True, metavar="FILE", help="File of the plot: .html, .svg or .png.")
@click.option("--title", default="", help="Title of the plot.  [default: the records' names]")
@DEBUG
def plot(records: tuple[str, ...], target: str, title: str, debug: bool) -> None:
    """Plot records over each other: time and bandwidth against size.

    RECORD: text or JSON of meshrun bench or of nccl-tests.
    """
    from meshrun.jobs.bench.collectives.output.plots import plot as draw
    from meshrun.jobs.bench.collectives.output.plots import series
    from meshrun.jobs.bench.collectives.output.reader import read_each

    read = [one for record in records for one in read_each(record).values()]
    title = title or f"Time and bandwidth by size: {', '.join(Path(record).name for record in records)}"
    draw([line for one in read for line in series(one)], target, title)
