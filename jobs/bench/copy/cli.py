"""`meshrun bench copy`: its words."""

from __future__ import annotations

from typing import Any

import click

from jobs.bench.command_base import LAST, PLOT, OwnCommand, Size, run_on_ranks, with_options
from jobs.bench.copy.cases import Unknown, chosen, listing

UNIT = 16
MOST_COPIES = 200  # more are more than a stream takes while the gate before them is closed


@click.command(cls=OwnCommand, short_help="Copies inside a host: nvbandwidth's test cases.")
@with_options(
    [
        click.option("-t", "--testcase", "names", multiple=True, metavar="NAME",
                     help="A case by name or index, may be repeated.  [default: all]"),
        click.option("-p", "--prefix", "prefixes", multiple=True, metavar="PREFIX",
                     help="All cases whose names begin so, may be repeated."),
        click.option("--list", "lists", is_flag=True, help="Show the cases."),
        click.option("-s", "--buffer-size", "size", type=Size(), default="512M", show_default=True,
                     metavar="BYTES", help="Of a buffer."),
        click.option("--copies", type=click.IntRange(1, MOST_COPIES), default=16, show_default=True,
                     help="In a sample."),
        click.option("-n", "--samples", type=click.IntRange(min=1), default=3, show_default=True,
                     help="Of each cell; the median counts."),
        click.option("--mean", is_flag=True, help="Report the mean of the samples instead."),
        click.option("-c", "check", type=click.IntRange(0, 1), default=1, show_default=True,
                     help="Check data."),
        click.option("-J", "output_file", metavar="FILE.json", help="Write what was measured there."),
        PLOT,
        *LAST,
    ]
)  # fmt: skip
def copy(device: Any, debug: bool, lists: bool, **words: Any) -> int:
    """Every copy path of a host: host to GPU, GPU to GPU, inside a GPU; nvbandwidth's test cases.

    \b
    meshrun bench copy                            one process, all GPUs that it sees
    meshrun -n 4 bench copy -t 4 -t 5             one process per GPU
    meshrun bench copy -p device_to_device --plot pairs.html

    Names, order, sizes, timing and layout are nvbandwidth's (0.8); what is odd is marked and named.
    """
    if lists:
        click.echo(listing(), nl=False)
        return 0
    from jobs.bench.copy.run import Asked, run

    if words["names"] and words["prefixes"]:
        raise click.UsageError("-t names cases, -p begins names: only one of them")
    if words["size"] < UNIT or words["size"] % UNIT:
        raise click.UsageError(
            f"-s {words['size']}: a buffer has a multiple of {UNIT} bytes, at least {UNIT}"
        )
    try:
        chosen(words["names"], words["prefixes"])
    except Unknown as reason:
        raise click.UsageError(str(reason)) from reason
    words["check"] = bool(words["check"])
    return run_on_ranks(run, Asked(**words), device, debug)
