"""The options of `meshrun bench`: those of nccl-tests by letter and long name, and our own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.command_base import COUNT, MOST, NATURAL, PLOT, SIZE, BadUsage, Command
from meshrun.jobs.measure.exit_codes import Finite, Parsed, StrictCommand
from meshrun.jobs.measure.sizes import size_text
from meshrun.runner.comm.collectives import api

MAX_CHANNELS = 64  # MAXCHANNELS, src/include/device.h
RANKS = re.compile(r"(-[gt]|--(?:ngpus|nthreads)=?)(\d*)")  # nccl-tests' options that start ranks
NO_DEVICE_API = (
    "-D and -V measure kernels compiled against NCCL's device headers, which meshrun does not have"
)


class BenchCommand(StrictCommand):
    """A command of nccl-tests: their options first, then ours."""

    bad_usage = BadUsage

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        for title, lettered in (("Options of nccl-tests", True), ("Further options", False)):
            chosen = [one for one in options if (one.name in NCCL_TESTS) is lettered]
            rows = [row for one in chosen if (row := one.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class BenchGroup(BenchCommand, click.Group):
    """A group of such commands; a missing or unknown command is a usage error with the same status."""

    def ranks_asked(self, words: Sequence[str]) -> tuple[int, tuple[str, ...]]:
        """Return how many ranks -g and -t ask for, and the words without these options.

        words: after `bench`. The number is 1 for a command without these options, and for a value that is no
        number, which is reported when the words are parsed.
        """
        command = self.commands.get(words[0].replace("-", "_")) if words else None
        if command is None or all(one.name != "ngpus" for one in command.params):
            return 1, tuple(words)
        counts, rest, left = {"g": 1, "t": 1}, list[str](), list(words)
        while left:
            word = left.pop(0)
            match = RANKS.fullmatch(word)
            if match is None:
                rest.append(word)
                continue
            value = match[2] or (left.pop(0) if left else "")
            counts["g" if "g" in match[1] else "t"] = int(value) if value.isdecimal() else 1
        return counts["g"] * counts["t"], tuple(rest)


def listed(words: Iterable[str]) -> str:
    return f"{', '.join(words)}, all."


def one_or_all(words: Iterable[str]) -> Parsed:
    """One of `words`, or `all`, as a tuple."""

    def parse(word: str) -> tuple[str, ...]:
        if word != "all" and word not in words:
            raise ValueError(f"{word!r} is none of {listed(words)}")
        return tuple(words) if word == "all" else (word,)

    return Parsed("word", parse)


def option(letter: str, name: str, help: str, **keywords: Any) -> Callable[[Command], Command]:
    """Declare an option of nccl-tests: -x and --long_name."""
    default = next((field.default for field in fields(SweepSettings) if field.name == name), None)
    keywords = {"default": default, "help": help, "metavar": "N", **keywords}
    if keywords["type"] is SIZE:
        keywords |= {"metavar": "BYTES", "default": size_text(keywords["default"])}
    keywords["show_default"] = keywords["default"] is not None
    return click.option(letter, f"--{name}", name, **keywords)


def no_device_api(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    """Accept only 0 for -D, because scripts pass it, and for -V, which has no meaning without -D."""
    if value:
        raise click.BadParameter(NO_DEVICE_API, ctx, param)


ZERO_OR_ONE = click.IntRange(0, 1)

LETTERS = {
    "-b": option("-b", "minbytes", "First size.", type=SIZE),
    "-e": option("-e", "maxbytes", "Last size.", type=SIZE),
    "-i": option("-i", "stepbytes", "Step in bytes, if -f is 1.", type=SIZE),
    "-f": option("-f", "stepfactor", "Step as a factor.", type=click.IntRange(min=1)),
    "-n": option("-n", "iters", "Timed iterations.", type=COUNT),
    "-w": option("-w", "warmup_iters", "Warm-up iterations of each size.", type=NATURAL),
    "-m": option("-m", "agg_iters", "Operations in one NCCL group.", type=COUNT),
    "-N": option("-N", "run_cycles", "Cycles through all sizes; 0: endless.", type=NATURAL),
    "-a": option("-a", "average", "Over ranks: 0 rank 0, 1 mean, 2 min, 3 max.", type=click.IntRange(0, 3)),
    "-p": option("-p", "parallel_init", "No effect: each process has one GPU.", type=ZERO_OR_ONE, default=0),
    "-c": option("-c", "check", "Number of checks of each result.", type=NATURAL),
    "-o": option("-o", "op", listed(api.REDUCTIONS), type=one_or_all(api.REDUCTIONS), default="sum",
                 metavar="WORD"),
    "-d": option("-d", "datatype", listed(api.DATATYPES), type=one_or_all(api.DATATYPES), default="float",
                 metavar="WORD"),
    "-r": option("-r", "root", "Root rank; -1: all in turn.", type=click.IntRange(-1, MOST)),
    "-z": option(
        "-z", "blocking", "Wait for each call: 1 with a barrier, 2 without, 3 with an untimed barrier.",
        type=click.IntRange(0, 3),
    ),
    "-y": option("-y", "stream_null", "Use CUDA's default stream.", type=ZERO_OR_ONE, default=0),
    "-T": option("-T", "timeout", "Abort after N seconds without progress.", type=NATURAL),
    "-G": option("-G", "cudagraph", "Launch all calls as a CUDA graph, N times.", type=NATURAL),
    "-C": option("-C", "report_cputime", "Report the time to queue the calls.", type=ZERO_OR_ONE, default=0),
    "-S": option("-S", "report_timestamps", "Show when each row was done.", type=ZERO_OR_ONE, default=0),
    "-J": option(
        "-J", "output_file", "Write nccl-tests' JSON; - is standard output.", type=str, metavar="FILE.json"
    ),
    "-R": option("-R", "local_register", "Registration: 1 local, 2 symmetric.", type=click.IntRange(0, 2)),
    "-x": option("-x", "cta_policy", "Policy: 0 default, 1 efficiency, 2 zero.", type=click.IntRange(0, 2)),
    "-M": option("-M", "memory", "Report GPU memory.", type=ZERO_OR_ONE, default=0),
    "-u": option("-u", "unalign", "Shift the buffers by N elements.", type=NATURAL),
    "-I": option("-I", "per_iter_timing", "Time single iterations.", type=ZERO_OR_ONE, default=0),
    "-K": option("-K", "per_iter_skip", "Leave the first N out of the summary of -I.", type=NATURAL),
    "-g": option("-g", "ngpus", "Start this many ranks on this machine, as -n before the command does.",
                 type=COUNT, default=1),
    "-t": option("-t", "nthreads", "Start this many times the ranks of -g.", type=COUNT, default=1),
    "-D": option("-D", "device_implementation", "No.", type=int, callback=no_device_api, hidden=True),
    "-V": option("-V", "device_cta_count", "No.", type=int, callback=no_device_api, hidden=True),
}  # fmt: skip

NCCL_TESTS = {"op", "datatype", "output_file", "parallel_init", "ngpus", "nthreads"} | {
    field.name for field in fields(SweepSettings)
}
LINK_RATE = click.option(
    "--link-rate", type=Finite(min=0, min_open=True), metavar="GB/s",
    help="Nominal rate of the limiting link, if the machine does not report it.",
)  # fmt: skip
SPLITS = (
    click.option("--split", envvar="NCCL_TESTS_SPLIT", metavar="MOD8",
                 help="Split the ranks by AND, OR, MOD or DIV."),
    click.option("--split-mask", envvar="NCCL_TESTS_SPLIT_MASK", metavar="HEX",
                 help="Split the ranks by AND with a mask."),
)  # fmt: skip
STEADY = click.option(
    "--steady/--no-steady", default=True, show_default=True,
    help="Repeat the untimed call before the timed ones for 2 ms, of sizes up to 1M.",
)  # fmt: skip
OURS = (
    click.option("--names", is_flag=True, help="Name ranks and groups below each row."),
    click.option("--wide", is_flag=True, help="More columns: wire rate, slowest, latest."),
    STEADY,
    click.option("--show-tuning", is_flag=True, help="More columns: algorithm, protocol, channels."),
    click.option("--wires", is_flag=True, help="More columns: bytes counted on NVLinks and NICs."),
    click.option("--json-lines", metavar="FILE", help="Append each row as soon as it is measured."),
    click.option("--csv", metavar="FILE", help="The rows as CSV, each as soon as it is measured."),
    PLOT,
    LINK_RATE,
    *SPLITS,
    click.option(
        "--min-busbw", envvar="NCCL_TESTS_MIN_BW", type=float, metavar="GB/s",
        help="Exit with 7 if the average is below 0.9 times this.",
    ),
)  # fmt: skip


def parse_channels(text: str) -> tuple[int, ...]:
    """Parse numbers of channels such as "4,16"; NCCL has 1 to 64."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 4,16") from None
    if not all(1 <= count <= MAX_CHANNELS for count in found):
        raise ValueError(f"{text}: NCCL has 1 to {MAX_CHANNELS} channels")
    return found


SWEEP = (
    click.option("--sweep-tuning", is_flag=True, help="Measure every algorithm and protocol of NCCL."),
    click.option("--transport", type=click.Choice(("nccl", "mpi", "both")),
                 help="NCCL, CUDA-aware MPI or both.  [default: nccl on GPUs, mpi on CPUs]"),
    click.option("--channels", type=Parsed("numbers", parse_channels), default=None, metavar="N,...",
                 help="With --sweep-tuning: numbers of channels."),
)  # fmt: skip
TRAFFIC = (
    click.option(
        "--spread",
        envvar="NCCL_TESTS_ALLTOALLV_SPREAD",
        type=Finite(0, 1),
        default=1.0,
        show_default=True,
        help="0: the same to all; 1: by distance.",
    ),
    click.option(
        "--matrix",
        envvar="NCCL_TESTS_ALLTOALLV_MATRIX_FILE",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File with bytes from each rank to each other.",
    ),
    click.option(
        "--matrix-scale",
        envvar="NCCL_TESTS_ALLTOALLV_MATRIX_SCALE",
        type=Finite(min=0, min_open=True),
        default=1.0,
        show_default=True,
        help="Factor of the matrix.",
    ),
)
EXPERTS = (
    click.option("--experts", type=click.IntRange(1, 1 << 16), metavar="N",
                 help="Mixture of experts: as many bytes to each rank as its share of N experts draws."),
    click.option("--skew", type=Finite(0, 10), default=1.0, show_default=True,
                 help="With --experts: expert k draws 1 / k to this power; 0: all the same."),
)  # fmt: skip


def bench_options(operations: tuple[str, ...], words: dict[str, Any]) -> BenchOptions:
    """Build the options of a command. Raises UsageError if they contradict each other."""
    names = {field.name for field in fields(SweepSettings)}
    values = {name: words[name] for name in names if name in words}
    flags = {field.name for field in fields(SweepSettings) if field.type == "bool"}
    values |= {name: bool(values[name]) for name in flags if name in values}
    if "op" in words:
        values["reductions"] = words["op"]
    settings = SweepSettings(**values, datatypes=words["datatype"])
    if settings.minbytes > settings.maxbytes:
        raise click.UsageError(f"-b is greater than -e: {settings.minbytes} > {settings.maxbytes} bytes")
    if settings.minbytes == 0:
        raise click.UsageError("-b 0: the smallest size is 1 byte")
    if settings.stepfactor == 1 and settings.stepbytes == 0:
        raise click.UsageError("-i 0 without -f: the size would never grow")
    if settings.cudagraph and settings.per_iter_timing:
        raise click.UsageError("-I times single iterations, and a graph (-G) has none")
    if settings.cudagraph and settings.blocking:
        raise click.UsageError("-z waits for single calls, and a graph (-G) has none")
    if settings.per_iter_skip and not settings.per_iter_timing:
        raise click.UsageError("-K leaves iterations out of the summary of -I: add -I 1")
    if settings.per_iter_skip >= settings.iters:
        raise click.UsageError(f"-K {settings.per_iter_skip} leaves none of -n {settings.iters} iterations")
    least = words.get("min_busbw")
    if least is not None and not 0 <= least < math.inf:
        raise click.UsageError(f"--min-busbw {least:g} (NCCL_TESTS_MIN_BW): a bandwidth is 0 GB/s or more")
    if words.get("experts") is not None and words.get("matrix") is not None:
        raise click.UsageError("--experts and --matrix both say who receives what: remove one of them")
    if words.get("sweep_tuning") and words.get("transport") not in (None, "nccl"):
        raise click.UsageError("--sweep-tuning varies NCCL's algorithms: remove --transport")
    if words.get("channels") and not words["sweep_tuning"]:
        raise click.UsageError("--channels numbers what --sweep-tuning measures: add --sweep-tuning")
    words["channels"] = words.get("channels") or ()
    extras = {field.name for field in fields(BenchOptions)} - {"operations", "settings"}
    return BenchOptions(operations, settings, **{name: words[name] for name in extras if name in words})
