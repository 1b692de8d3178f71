"""`meshrun bench copy`: the command."""

from __future__ import annotations

from typing import Any, ClassVar

import click

from meshrun.jobs.bench.command_base import (
    COUNT,
    LAST,
    PLOT,
    SIZE,
    TranslatedCommand,
    run_on_ranks,
    with_options,
)
from meshrun.jobs.bench.copy.cases import UnknownCase, chosen, listing
from meshrun.jobs.measure.exit_codes import Parsed

UNIT = 16  # bytes
MAX_COPIES = 200  # operations that can be queued behind a closed gate (meshrun.jobs.measure.gate)


def parse_pair(text: str) -> tuple[int, int]:
    """Parse two numbers of GPUs such as "0,1"."""
    words = text.split(",")
    if len(words) != 2 or not all(word.isdecimal() and len(word) < 6 for word in words):
        raise ValueError(f"{text!r} is no pair of GPUs such as 0,1")
    first, second = map(int, words)
    if first == second:
        raise ValueError(f"{text!r} is the same GPU twice")
    return first, second


class CopyCommand(TranslatedCommand):
    """A command that people may type with nvbandwidth's options."""

    instead: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "-b", "--bufferSize", "-i", "--testSamples", "-m", "--useMean", "-d", "--disableAffinity",
            "-j", "--json", "--skipVerification", "-l", "-v", "--verbose", "--testcasePrefixes",
            "--loopCount", "--perfFormatter",
        ),
        "it is nvbandwidth's, whose options are those of meshrun nvbandwidth",
    )  # fmt: skip


@click.command(cls=CopyCommand, short_help="Copies inside a host: nvbandwidth's test cases.")
@with_options(
    [
        click.option("-t", "--testcase", "names", multiple=True, metavar="NAME",
                     help="A case by name or index; may be repeated.  [default: all]"),
        click.option("-p", "--prefix", "prefixes", multiple=True, metavar="PREFIX",
                     help="All cases whose names begin with it; may be repeated."),
        click.option("--list", "lists", is_flag=True, help="List the cases."),
        click.option("-s", "--buffer-size", "size", type=SIZE, default="512M", show_default=True,
                     metavar="BYTES", help="Size of a buffer."),
        click.option("--copies", type=click.IntRange(1, MAX_COPIES), default=16, show_default=True,
                     help="Copies in a sample."),
        click.option("-n", "--samples", type=COUNT, default=3, show_default=True,
                     help="Samples of each cell; the median is reported."),
        click.option("--mean", is_flag=True, help="Report the mean of the samples instead of the median."),
        click.option("--huge-pages", is_flag=True, help="Keep host memory in huge pages."),
        click.option("--sample-pairs", "pairs", type=COUNT, metavar="N",
                     help="Measure only N pairs of GPUs, drawn with a fixed seed."),
        click.option("--pair", type=Parsed("pair", parse_pair), metavar="A,B",
                     help="Of pairs of GPUs, measure only these two, by their numbers in the matrix."),
        click.option("-c", "check", type=click.IntRange(0, 1), default=1, show_default=True,
                     help="Check the copied data."),
        click.option("-J", "output_file", metavar="FILE.json",
                     help="Write a JSON record; - is standard output."),
        PLOT,
        *LAST,
    ]
)  # fmt: skip
def copy(device: Any, debug: bool, lists: bool, **words: Any) -> int:
    """Measure every copy path of a host: host to GPU, GPU to GPU, inside a GPU; nvbandwidth's test cases.

    \b
    meshrun bench copy                            one process, all visible GPUs
    meshrun -n 4 bench copy -t 4 -t 5             one process per GPU
    meshrun bench copy -p device_to_device --plot pairs.html

    Names, order, sizes, timing and layout are nvbandwidth's (0.10); outliers are marked and described.
    """
    if lists:
        click.echo(listing(), nl=False)
        return 0
    from meshrun.jobs.bench.copy.run import CopyOptions, run

    if words["names"] and words["prefixes"]:
        raise click.UsageError("-t and -p cannot be combined")
    if words["size"] < UNIT or words["size"] % UNIT:
        raise click.UsageError(
            f"-s {words['size']}: the size of a buffer is a multiple of {UNIT} bytes, at least {UNIT}"
        )
    try:
        chosen(words["names"], words["prefixes"])
    except UnknownCase as reason:
        raise click.UsageError(str(reason)) from reason
    if words["pair"] is not None and words["pairs"] is not None:
        raise click.UsageError("--pair and --sample-pairs cannot be combined")
    words["check"] = bool(words["check"])
    return run_on_ranks(run, CopyOptions(**words), device, debug)
