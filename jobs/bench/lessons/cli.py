"""`meshrun bench memory`: one command per lesson."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from meshrun.jobs.bench.command_base import (
    COUNT,
    LAST,
    PLOT,
    SIZE,
    OwnCommand,
    OwnGroup,
    run_on_ranks,
    with_options,
)

Option = Callable[[Any], Any]
DTYPES = ("float16", "float32", "float64")


def first(default: str) -> Option:
    return click.option(
        "-b",
        "minbytes",
        type=SIZE,
        default=default,
        show_default=True,
        metavar="BYTES",
        help="First size.",
    )


def last(default: str, text: str = "Last size.") -> Option:
    return click.option(
        "-e", "maxbytes", type=SIZE, default=default, show_default=True, metavar="BYTES", help=text
    )


COMMON = (
    click.option("-n", "samples", type=COUNT, default=5, show_default=True,
                 help="Measurements of each figure; the median is reported."),
    click.option("-c", "check", type=click.IntRange(0, 1), default=1, show_default=True, help="Check data."),
    click.option("-J", "output_file", metavar="FILE.json",
                 help="Write all measurements to this file; - is standard output."),
    PLOT,
    *LAST,
)  # fmt: skip

# name -> help and own options; a lesson is imported when it runs.
LESSONS: dict[str, tuple[str, tuple[Option, ...]]] = {
    "transfer": (
        "Copies between host and GPU, by kind of host memory and by size.",
        (first("1K"), last("1G")),
    ),
    "coalescing": (
        "A kernel's bandwidth by stride and by misalignment.",
        (last("1G", "Size of the buffer."),),
    ),
    "transpose": (
        "Transposes of a matrix, from naive to cuBLAS.",
        (
            click.option("--shape", "shapes", multiple=True, metavar="ROWSxCOLUMNS",
                         help="A matrix; may be repeated.  [default: square, oblong and odd ones]"),
            click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES), default=DTYPES,
                         show_default=True, help="May be repeated."),
        ),
    ),
    "matmul": (
        "Matrix products, from naive to cuBLAS.",
        (
            click.option("--side", type=COUNT, default=None, metavar="N",
                         help="Rows of the square matrices.  [default: 8192; 1024 on a CPU]"),
        ),
    ),
    "streams": (
        "A map in chunks on one to four streams.",
        (
            last("1G", "Bytes in all chunks."),
            click.option("--chunks", type=COUNT, default=16, show_default=True,
                         help="Number of chunks."),
        ),
    ),
    "p2p": (
        "Methods between GPUs: direct, through the host, NCCL, kernel loads.",
        (first("4K"), last("256M")),
    ),
    "pool": (
        "Allocation from the driver and from pools: time, peak, fragmentation.",
        (
            last("1G", "Most memory allocated at a time."),
            click.option("--watch", is_flag=True, help="Show memory in use over the run."),
        ),
    ),
}  # fmt: skip


@click.group(cls=OwnGroup, no_args_is_help=False)
def memory() -> None:
    """Run a memory performance lesson: measure, print tables and explain the figures.

    \b
    meshrun bench memory transfer                 kinds of host memory
    meshrun bench memory transpose --plot t.html  also draw a chart
    meshrun -n 2 bench memory p2p                 between ranks
    """


def _add(name: str) -> None:
    summary, own = LESSONS[name]

    @memory.command(name, cls=OwnCommand, help=summary, short_help=summary)
    @with_options([*own, *COMMON])
    def command(device: str, debug: bool, **words: Any) -> int:
        from meshrun.jobs.bench.lessons.run import LessonOptions, run

        sizes = words.pop("minbytes", 1), words.pop("maxbytes", 1)
        if not 1 <= sizes[0] <= sizes[1]:
            raise click.UsageError(f"-b {sizes[0]} -e {sizes[1]}: no size to measure")
        common = {key: words.pop(key) for key in ("samples", "output_file", "plot")}
        check = bool(words.pop("check"))
        options = LessonOptions(name=name, check=check, sizes=sizes, own=words, **common)
        return run_on_ranks(run, options, device, debug)


for _name in LESSONS:
    _add(_name)
