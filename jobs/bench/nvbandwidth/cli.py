"""`meshrun bench nvbandwidth`, also `meshrun nvbandwidth`: the command."""

from __future__ import annotations

from typing import Any, ClassVar

import click

from meshrun.jobs.bench.command_base import (
    COUNT,
    DEBUG,
    BadUsage,
    TranslatedCommand,
    run_on_ranks,
    with_options,
)
from meshrun.jobs.bench.copy.cases import CASES, UnknownCase, chosen
from meshrun.jobs.bench.copy.cli import MAX_COPIES
from meshrun.jobs.measure.exit_codes import Parsed
from meshrun.runner.errors import UserError

# Options with several values, and those without one, by all of their names.
SEVERAL = {"-t": "-t", "--testcase": "-t", "-p": "-p", "--testcasePrefixes": "-p"}
FLAGS = {
    "-l": "lists the cases", "--list": "lists the cases",
    "-v": "prints more", "--verbose": "prints more",
    "-s": "skips the check of the data", "--skipVerification": "skips the check of the data",
    "-d": "leaves memory where the process runs", "--disableAffinity": "leaves memory where the process runs",
    "-m": "reports the mean", "--useMean": "reports the mean",
    "-j": "prints JSON", "--json": "prints JSON",
    "--perfFormatter": "changes the line of the sum",
}  # fmt: skip


def mebibytes(text: str) -> int:
    """Parse nvbandwidth's size of a buffer, a number of MiB; returns bytes."""
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise UserError("a buffer's size is a number of MiB", got=repr(text), expected="for example -b 512")
    return int(text) << 20


class NvbandwidthCommand(TranslatedCommand):
    """A command whose -t and -p take several values each, as nvbandwidth's do."""

    instead: ClassVar[dict[str, str]] = {
        "-n": "-i N is the number of samples",
        "-c": "-s skips the check of the data",
        "-J": "-j prints JSON on the standard output",
        "--samples": "-i N is the number of samples",
        "--copies": "--loopCount N is the number of copies in a sample",
        "--mean": "-m reports the mean",
        "--buffer_size": "-b MIB is the size of a buffer",
        "--plot": "meshrun bench copy --plot FILE draws it",
        "--huge_pages": "meshrun bench copy has it",
        "--sample_pairs": "meshrun bench copy has it",
        "--pair": "meshrun bench copy --pair A,B measures one pair of GPUs",
        "--device": "nvbandwidth measures GPUs; meshrun bench copy --device cpu measures host memory",
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, option = list[str](), ""  # the option before a word
        for word in args:
            if word.startswith("-"):
                option = SEVERAL.get(word.partition("=")[0], word)
                words.append(word)
            elif option in FLAGS:
                more = ". -b MIB is the size of a buffer" if option in ("-s", "--skipVerification") else ""
                what = f"{option} {FLAGS[option]} and takes no value"
                raise BadUsage(f"{what}, but {word!r} follows it{more}", ctx)
            elif option in ("-t", "-p") and words[-1] not in SEVERAL:
                words += [option, word]
            else:
                words.append(word)
        return super().parse_args(ctx, words)


@click.command(
    cls=NvbandwidthCommand, short_help="Copies inside a host, with nvbandwidth's options and output."
)
@with_options(
    [
        click.option("-b", "--bufferSize", "size", type=Parsed("MiB", mebibytes), default="512",
                     show_default=True, metavar="MIB", help="Size of a buffer."),
        click.option("-l", "--list", "lists", is_flag=True, help="List the test cases."),
        click.option("-t", "--testcase", "names", multiple=True, metavar="NAME...",
                     help="Test cases by name or index.  [default: all]"),
        click.option("-p", "--testcasePrefixes", "prefixes", multiple=True, metavar="PREFIX...",
                     help="All test cases whose names begin with one of these."),
        click.option("-v", "--verbose", is_flag=True, help="Print minimum, maximum and average too."),
        click.option("-s", "--skipVerification", "skips_check", is_flag=True, help="Do not check data."),
        click.option("-d", "--disableAffinity", "anywhere", is_flag=True,
                     help="Allocate host memory where the process runs, not near each GPU."),
        click.option("-i", "--testSamples", "samples", type=COUNT, default=3, show_default=True, metavar="N",
                     help="Samples of each cell."),
        click.option("-m", "--useMean", "mean", is_flag=True, help="Report the mean, not the median."),
        click.option("-j", "--json", "json", is_flag=True, help="Print JSON instead of text."),
        click.option("--loopCount", "copies", type=click.IntRange(1, MAX_COPIES), default=16,
                     show_default=True, metavar="N", help="Copies in a sample."),
        click.option("--perfFormatter", "perf", is_flag=True, help="Write &&&& PERF in place of SUM."),
        DEBUG,
    ]
)  # fmt: skip
def nvbandwidth(debug: bool, lists: bool, skips_check: bool, anywhere: bool, **words: Any) -> int:
    """Measure copies inside a host, with the options and the output of nvbandwidth 0.10.

    \b
    meshrun nvbandwidth -t device_to_device_memcpy_read_ce 4
    meshrun nvbandwidth -b 64 -i 5 -j

    `meshrun bench copy` measures the same with more output: slow cells, and the share of the hardware's rate.
    """
    from meshrun.jobs.bench.nvbandwidth.output import listing
    from meshrun.jobs.bench.nvbandwidth.run import NvbandwidthOptions, run

    if lists:
        click.echo(listing(), nl=False)
        return 0
    if words["names"] and words["prefixes"]:
        raise click.UsageError("You cannot specify both testcase and testcasePrefix options at the same time")
    try:
        cases = chosen((), words["prefixes"]) if words["prefixes"] else ()
    except UnknownCase as reason:
        raise click.UsageError(str(reason)) from reason
    names = words.pop("names") or tuple(case.name for case in cases or CASES)
    del words["prefixes"]
    options = NvbandwidthOptions(
        names=names,
        check=not skips_check,
        near=not anywhere,
        output_file="-" if words["json"] else None,
        **words,
    )
    return run_on_ranks(run, options, "cuda", debug)
