"""Options of `meshrun plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions

RANKS_MOST = 1 << 17  # of a plan, which visits every rank's block


@dataclass(frozen=True)
class Cluster:
    """Where a run is to take place; None: not given.

    ranks, hosts: how many. gpu: name of the GPUs' model, or "cpu". exchange_rate, network_rate: GB/s that a
    rank sends to the others of its host, all to all, and to other hosts.
    """

    ranks: int
    hosts: int | None = None
    gpu: str | None = None
    exchange_rate: float | None = None
    network_rate: float | None = None


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
    """Group the values of the options of a plan. values: by the options' names."""
    rest = dict(values)
    groups: dict[str, Any] = {}
    for group, kind in (("cluster", Cluster), ("stream", StreamOptions), ("steps", StepOptions)):
        names = [field.name for field in fields(kind) if field.name in rest]
        groups[group] = kind(**{name: rest.pop(name) for name in names})
    return PlanOptions(**groups, **rest)
