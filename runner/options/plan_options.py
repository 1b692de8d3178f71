"""Options of `meshrun plan` and `job.plan`; those of `meshrun kernel`, where they are not as in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshrun.runner.options.run_options import RANKS_MOST, InputOptions, Options
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.options.table import OptionRow, row, rows
from meshrun.runner.options.values import CountValue, FlagValue, NumberValue, TextValue

KERNEL_STEPS_MOST = 16


@dataclass(frozen=True)
class Cluster:
    """Where a run is to take place; None: not given. exchange_rate, network_rate: GB/s."""

    ranks: int = row(CountValue(RANKS_MOST), "Number of ranks.", metavar="N", required=True)
    hosts: int | None = row(
        CountValue(None), "Number of hosts.", metavar="H", default_text="as few as have enough GPUs"
    )
    gpu: str | None = row(
        TextValue(),
        "h200, a100, l40s, ...; cpu for none.",
        metavar="NAME",
        default_text="as calibrated, else h200",
    )
    exchange_rate: float | None = row(
        NumberValue(positive=True),
        "Rate at which a rank sends to the others of its host, all to all.",
        metavar="GB/S",
        default_text="nominal",
    )
    network_rate: float | None = row(
        NumberValue(positive=True),
        "Rate at which a rank sends to other hosts.",
        metavar="GB/S",
        default_text="nominal",
    )


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan; None: not given.

    stream: size and number of chunks, and limits of memory. steps: time steps, and copies of the fields.
    input_shape, input_dtype, input_order: of inputs without a header, as texts. grid, boundary, cval: as in a
    run.
    """

    cluster: Cluster
    stream: StreamOptions
    steps: StepOptions
    input_shape: str | None = None
    input_dtype: str | None = None
    input_order: str | None = None
    grid: str | None = None
    boundary: str | None = None
    cval: float | None = None

    def value(self, name: str) -> Any:
        """Return the value of an option by its name; None if it is not given."""
        group = next(one for one in (self.cluster, self.stream, self.steps, self) if hasattr(one, name))
        value = getattr(group, name)
        return None if name == "copies" and value == "auto" else value


def plan_options(values: Mapping[str, Any]) -> PlanOptions:
    """Build PlanOptions from the values of options that have been read, by name; None: not given."""
    given = {name: value for name, value in values.items() if value is not None}
    kinds: dict[str, Any] = {"cluster": Cluster, "stream": StreamOptions, "steps": StepOptions}
    groups = {
        group: kind(**{name: given.pop(name) for name in rows(kind) if name in given})
        for group, kind in kinds.items()
    }
    return PlanOptions(**groups, **given)


def shown_inputs(several: bool) -> list[OptionRow]:
    """Return the options that describe a raw input, or an array instead of it. several: there are more."""
    shape, dtype, order = rows(InputOptions).values()
    text = f"Shape of a raw INPUT, or instead of INPUT{'; RxC,RxC for two' if several else ''}."
    return [replace(shape, help=text), replace(dtype, help="Dtype for {shape}, such as float32."), order]


def plan_rows(*, steps: bool = True) -> list[OptionRow]:
    """Return the options of a plan besides those of inputs, in the order of help texts."""
    machine, own, stream, of_steps = map(rows, (Cluster, Options, StreamOptions, StepOptions))
    memory = "a quarter of the host's, shared by its ranks"
    return [
        *(machine[name] for name in ("ranks", "hosts", "gpu")),
        *(own[name] for name in ("grid", "boundary", "cval")),
        stream["depth"],
        replace(stream["chunk_bytes"], help="Size of a chunk's input.", default_text="as in a run"),
        replace(stream["host_memory"], help="Host memory for each rank.", default_text=memory),
        replace(stream["device_memory"], help="GPU memory for each rank.", default_text="80 % of its GPU's"),
        *([replace(of_steps["steps"], help="Take N time steps."), of_steps["copies"]] if steps else ()),
        *(machine[name] for name in ("exchange_rate", "network_rate")),
        replace(own["json"], help="Write the plan to FILE; - is standard output."),
    ]


def plan_keywords() -> list[OptionRow]:
    """Return the options of `job.plan`."""
    only_of_commands = ("exchange_rate", "network_rate", "json")
    return [row for row in (*rows(InputOptions).values(), *plan_rows()) if row.name not in only_of_commands]


def kernel_rows() -> list[OptionRow]:
    """Return the options of `meshrun kernel` besides those of inputs, in the order of help texts."""
    own = rows(Options)
    return [
        *(own[name] for name in ("boundary", "cval", "fuse_math")),
        OptionRow(CountValue(KERNEL_STEPS_MOST), "Of K time steps.", metavar="K", name="steps"),
        OptionRow(FlagValue(), "The C++ for a CPU instead of CUDA.", default=False, name="cpu"),
    ]
