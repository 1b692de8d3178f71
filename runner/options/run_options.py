"""Options of `meshrun run` and `job.run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.options.choices import Checksum, DeviceChoice, Fuse, FuseMath, Order, Verify
from meshrun.runner.options.form import Form, form_of
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.options.table import OptionRow, row, rows
from meshrun.runner.options.values import (
    BoundaryValue,
    ChoiceValue,
    CountValue,
    DtypeValue,
    FlagValue,
    LengthsValue,
    NumberValue,
    TextValue,
)

RANKS_MOST = 1 << 17  # of a plan, which visits every rank's block
MOST_ITERATIONS = 1_000_000  # of a loop that its condition ends, unless a run allows more
ITERATIONS_MOST = 10**12


@dataclass(frozen=True)
class InputOptions:
    """How options describe inputs without a header."""

    input_shape: str | None = row(
        LengthsValue(several=True),
        "Shape of an input without a header, such as .raw; RxC,RxC for two.",
        metavar="RxC",
        short="shape",
    )
    input_dtype: str | None = row(
        DtypeValue(), "Dtype of such an input: float32.", metavar="NAME", short="dtype"
    )
    input_order: str | None = row(
        ChoiceValue(Order), "Order of such an input; F: the first index varies fastest.", short="order"
    )


@dataclass(frozen=True)
class Options:
    """Options of a run.

    form: declared form of inputs without a header, one for all or one for each. rates: file of this machine's
    rates. boundary, cval, fuse: None: as the job declares. overlap: None: as the device needs.
    """

    device: DeviceChoice = row(ChoiceValue(DeviceChoice), "Device that computes blocks.", "auto", "auto")
    json: str | None = row(
        TextValue(paths=True), "Write the run's record to FILE; - is standard output.", metavar="FILE"
    )
    verify: Verify = row(
        ChoiceValue(Verify, flags=True),
        "Check some (sample) or all (full) blocks of the result against the job's reference.",
        default="off",
        metavar="[sample|full]",
    )
    checksum: Checksum = row(
        ChoiceValue(Checksum),
        "Check arrays that cross ranks by checksums: 1 message in 64 (sample), or all (full).",
        default="off",
        default_text="off",
    )
    grid: str | None = row(
        LengthsValue(), "Split the array into this grid, a number per axis.", metavar="RxC"
    )
    boundary: str | None = row(
        BoundaryValue(),
        "Values beyond the array's edges, of all or by input, axis and side: p=wrap,0.0:nearest.",
        metavar="[reflect|mirror|nearest|constant|wrap]",
    )
    cval: float | None = row(NumberValue(), "The constant of {boundary:constant}.")
    overlap: bool | None = row(FlagValue(), "Compute while data is in transfer.")
    oversubscribe: bool = row(FlagValue(), "Let ranks share a GPU.", default=False)
    overwrite_input: bool = row(FlagValue(), "Let an output replace an input.", default=False)
    fuse: Fuse | None = row(
        ChoiceValue(Fuse),
        "Compute the function as one kernel: where it can be traced, or fail.",
        default_text="auto",
    )
    fuse_math: FuseMath = row(
        ChoiceValue(FuseMath),
        "fast: that kernel may contract a*b+c, which changes the last bits.",
        default="strict",
        default_text="strict",
    )
    max_iterations: int = row(
        CountValue(ITERATIONS_MOST),
        "Fail after N iterations of a loop in the function that its condition does not end.",
        default=MOST_ITERATIONS,
        default_text="a million",
        metavar="N",
    )
    verbose: bool = row(
        FlagValue(), "Show the times of all phases also of a run of less than a second.", False, letter="v"
    )
    debug: bool = row(FlagValue(), "Show the traceback of an error.", default=False)
    form: Form | tuple[Form, ...] | None = None
    stream: StreamOptions = field(default_factory=StreamOptions)
    steps: StepOptions = field(default_factory=StepOptions)
    rates: Path | None = None


# Options of a run that a short help shows: what most runs need.
COMMON = (
    "device", "verify", "json", "input_shape", "input_dtype", "steps", "until", "every", "frames",
    "checkpoint", "chunk_bytes", "resume",
)  # fmt: skip


def run_groups(*, steps: bool = True) -> dict[str, list[OptionRow]]:
    """Return the options of a run by the section of the help. steps: of a job that takes steps."""
    own, of_stream = rows(Options), rows(StreamOptions)
    files = [own["json"], own["overwrite_input"], *rows(InputOptions).values()]
    debug = [own["verbose"], of_stream["timeline"], own["debug"]]
    apart = [*files, *debug, *([] if steps else [own["fuse"], own["fuse_math"]])]
    return {
        "Run": [entry for entry in own.values() if entry not in apart],
        "Files": files,
        **({"Steps": [*rows(StepOptions).values()]} if steps else {}),
        "Streaming": [entry for entry in of_stream.values() if entry not in apart],
        "Debug": debug,
    }


def run_rows(*, steps: bool = True) -> list[OptionRow]:
    """Return the options of a run in the order of help texts. steps: of a job that takes steps."""
    return [entry for group in run_groups(steps=steps).values() for entry in group]


RANKS = OptionRow(
    CountValue(RANKS_MOST),
    "Number of ranks to start on this machine, unless an MPI launcher has started this program; the job may "
    "be defined in a notebook.",
    default_text="this program's ranks",
    metavar="N",
    name="ranks",
)


def run_options(values: Mapping[str, Any], rates: Path | None = None) -> Options:
    """Build Options from the values of options that have been read, by name; None: not given."""
    given = {name: value for name, value in values.items() if value is not None}

    def part(options: Any) -> dict[str, Any]:
        return {name: given[name] for name in rows(options) if name in given}

    form = form_of(*(values.get(name) for name in rows(InputOptions)))
    return Options(
        **part(Options),
        form=form,
        stream=StreamOptions(**part(StreamOptions)),
        steps=StepOptions(**part(StepOptions)),
        rates=rates,
    )
