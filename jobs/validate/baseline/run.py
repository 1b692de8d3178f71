"""One healthy run as a baseline keeps it, whatever the format of the file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import runner
from jobs.validate.plan import RUNGS, RungName
from jobs.validate.report.model import Member, Report

Hosts = tuple[tuple[str, int], ...]
Figure = tuple[
    RungName, str, str
]  # rung, what was measured, part: "" (the fleet's median) or "host c7, GPU 3"
Row = tuple[str, str, str, float]  # a figure and its rate

NAMES: dict[str, RungName] = {name: name for name in RUNGS}
FORMAT = "meshrun validate baseline"
VERSION = 1
KEPT = 50  # runs of each fleet and fingerprint
# Of `Report.environment`: what may change the figures of a fleet whose parts are the same.
FINGERPRINT = (
    "driver",
    "firmware",
    "cuda_driver",
    "cuda_runtime",
    "nccl",
    "transport",
    "mpi",
    "cupy",
    "numpy",
    "meshrun",
)
SIZES = "bytes"  # of `Report.environment`: by "rung what" (`costs.sizes`)


@dataclass(frozen=True)
class Run:
    """number: counts the runs of a fleet from 1; 0 when not saved. started: as in the report.

    hosts: names and numbers of GPUs, sorted. devices: GPU models, sorted. environment: its fingerprint, as
    text. figures: bytes per second, of a product operations per second; finite and positive.
    """

    started: str
    hosts: Hosts
    devices: tuple[str, ...]
    environment: Mapping[str, str]
    sizes: Mapping[str, int]
    figures: Mapping[Figure, float] = field(default_factory=dict)
    number: int = 0

    @property
    def fleet(self) -> tuple[Hosts, tuple[str, ...]]:
        return self.hosts, self.devices


def run_of(report: Report, figures: Mapping[Figure, float]) -> Run:
    """This run. A figure that is not a positive number was not measured and is left out."""
    known = {key: text(report.environment.get(key)) for key in FINGERPRINT}
    return Run(
        report.started,
        *fleet_of(report.members, report.simulated),
        {key: value for key, value in known.items() if value},
        {name: int(size) for name, size in (report.environment.get(SIZES) or {}).items()},
        {figure: float(rate) for figure, rate in figures.items() if math.isfinite(rate) and rate > 0},
    )


def fleet_of(members: Sequence[Member], simulated: str) -> tuple[Hosts, tuple[str, ...]]:
    """A fleet's identity. A simulated one is never taken for the fleet that it rehearses."""
    counts = Counter(member.host for member in members)
    devices = {"simulated"} if simulated else {member.device for member in members}
    return tuple(sorted(counts.items())), tuple(sorted(devices))


def text(value: object) -> str:
    """A plain value on one line; empty: not known. Of several, each once: hosts with two drivers."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        value = [f"{key} {one}" for key, one in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(sorted({str(one) for one in value}))
    return str(value)


def added(runs: Sequence[Run], new: Run) -> tuple[Run, list[Run]]:
    """The new run with its number, and the runs that make way for it."""
    mine = sorted((run for run in runs if run.fleet == new.fleet), key=lambda run: run.number)
    number = 1 + (mine[-1].number if mine else 0)
    group = [run for run in mine if run.environment == new.environment]
    return replace(new, number=number), group[: max(len(group) + 1 - KEPT, 0)]


def head(run: Run) -> dict[str, Any]:
    """All but the figures, as plain JSON values."""
    return {
        "number": run.number,
        "started": run.started,
        "hosts": dict(run.hosts),
        "devices": list(run.devices),
        "environment": dict(run.environment),
        "sizes": dict(run.sizes),
    }


def run_from(kept: Any, rows: Iterable[Row]) -> Run:
    """The run that these were made of; ValueError, TypeError, KeyError, AttributeError when of none."""
    figures: dict[Figure, float] = {}
    for rung, what, part, rate in rows:
        name = NAMES.get(rung)
        if name is None or not (isinstance(what, str) and isinstance(part, str)):
            raise ValueError(f"{rung!r}, {what!r}, {part!r} is no figure")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise ValueError(f"{rate!r} is no rate")
        figures[name, what, part] = float(rate)
    number, devices = kept["number"], kept["devices"]
    if not isinstance(number, int) or number < 1 or not isinstance(devices, list):
        raise ValueError("run without a number, or without devices")
    return Run(
        words(kept["started"]),
        tuple(sorted(counted(kept["hosts"]).items())),
        tuple(sorted(words(device) for device in devices)),
        {words(key): words(value) for key, value in kept["environment"].items()},
        counted(kept["sizes"]),
        figures,
        number,
    )


def words(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def counted(values: Any) -> dict[str, int]:
    """A mapping from names to whole numbers."""
    if not isinstance(values, dict) or not all(isinstance(value, int) for value in values.values()):
        raise ValueError(f"{values!r} has no whole numbers")
    return {words(key): value for key, value in values.items()}


# --- the sentences for files that are no good; what they read is never changed


def broken(path: Path, reason: object) -> runner.UserError:
    return runner.UserError(
        f"the baseline {path} is broken",
        got=reason,
        hint="a copy of it, or another file with --save-baseline",
    )


def foreign(path: Path) -> runner.UserError:
    return runner.UserError(
        f"{path} is the file of another program", expected=f"a {FORMAT}", hint="another name"
    )


def newer(path: Path, version: object) -> runner.UserError:
    return runner.UserError(
        f"the baseline {path} was written by a newer meshrun",
        got=f"version {version}",
        expected=f"version {VERSION}",
        hint="the newer meshrun, or another file",
    )


def unreadable(path: Path, reason: OSError) -> runner.UserError:
    hint = f"--save-baseline {path} first" if isinstance(reason, FileNotFoundError) else None
    return runner.UserError(f"cannot read the baseline {path}", got=reason.strerror or reason, hint=hint)


def unwritable(path: Path, reason: object) -> runner.UserError:
    detail = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
    return runner.UserError(
        f"cannot write the baseline {path}", got=detail, hint="a file in a folder of your own"
    )
