"""One healthy run as stored in a baseline, independent of the file format."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshrun.jobs.validate.plan import RUNGS, RungName
from meshrun.jobs.validate.report.model import Member, Report
from meshrun.runner.errors import UserError, shortened

Hosts = tuple[tuple[str, int], ...]
Figure = tuple[RungName, str, str]  # rung, measurement, part: "" (the fleet's median) or "host c7, GPU 3"
FigureRow = tuple[str, str, str, float]  # a figure and its rate

NAMES: dict[str, RungName] = {name: name for name in RUNGS}
FORMAT = "meshrun validate baseline"
VERSION = 1
KEPT = 50  # runs of each fleet and fingerprint
MOST_RUNS = 10**12  # of a fleet, in all; SQLite holds integers of 64 bits
# Keys of `Report.environment` that may affect rates on the same hardware.
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
SIZES = "bytes"  # key of `Report.environment`: sizes by "rung what" (`costs.sizes`)


@dataclass(frozen=True)
class BaselineRun:
    """number: of the run in its fleet, from 1; 0: not saved. started: as in the report.

    hosts: (name, number of GPUs), sorted. devices: GPU models, sorted. environment: the values of
    `FINGERPRINT` as text. figures: positive finite rates in B/s, for a product in FLOP/s.
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


def run_of_report(report: Report, figures: Mapping[Figure, float]) -> BaselineRun:
    """Convert a report. Omits figures that are not positive and finite: they were not measured."""
    known = {key: fingerprint_text(report.environment.get(key)) for key in FINGERPRINT}
    return BaselineRun(
        report.started,
        *fleet_of(report.members, report.simulated),
        {key: value for key, value in known.items() if value},
        {name: int(size) for name, size in (report.environment.get(SIZES) or {}).items()},
        {figure: float(rate) for figure, rate in figures.items() if math.isfinite(rate) and rate > 0},
    )


def fleet_of(members: Sequence[Member], simulated: str) -> tuple[Hosts, tuple[str, ...]]:
    """Return the identity of a fleet: hosts and devices; a simulated one differs from the real one."""
    counts = Counter(member.host for member in members)
    devices = {"simulated"} if simulated else {member.device for member in members}
    return tuple(sorted(counts.items())), tuple(sorted(devices))


def fingerprint_text(value: object) -> str:
    """Format a value on one line; "" if unknown. Several values (two drivers) are sorted and unique."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        value = [f"{key} {one}" for key, one in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(sorted({str(one) for one in value}))
    return str(value)


def numbered(runs: Sequence[BaselineRun], new: BaselineRun) -> tuple[BaselineRun, list[BaselineRun]]:
    """Return the new run with its number, and the old runs that it displaces."""
    mine = sorted((run for run in runs if run.fleet == new.fleet), key=lambda run: run.number)
    number = 1 + (mine[-1].number if mine else 0)
    group = [run for run in mine if run.environment == new.environment]
    return replace(new, number=number), group[: max(len(group) + 1 - KEPT, 0)]


def header(run: BaselineRun) -> dict[str, Any]:
    """Return everything but the figures, as JSON values."""
    return {
        "number": run.number,
        "started": run.started,
        "hosts": dict(run.hosts),
        "devices": list(run.devices),
        "environment": dict(run.environment),
        "sizes": dict(run.sizes),
    }


def parse_run(kept: Any, rows: Iterable[FigureRow]) -> BaselineRun:
    """Rebuild a run from `header` and rows. Raises ValueError, TypeError, KeyError or AttributeError."""
    figures: dict[Figure, float] = {}
    for rung, what, part, rate in rows:
        name = NAMES.get(rung)
        if name is None or not (isinstance(what, str) and isinstance(part, str)):
            raise ValueError(f"{rung!r}, {what!r}, {part!r} is not a figure")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= sys.float_info.max:
            raise ValueError(shortened(f"{rate!r} is not a rate"))
        figures[name, what, part] = float(rate)
    number, devices = kept["number"], kept["devices"]
    if not isinstance(number, int) or not 1 <= number <= MOST_RUNS or not isinstance(devices, list):
        raise ValueError("a run without a number or devices")
    return BaselineRun(
        text_of(kept["started"]),
        tuple(sorted(whole_numbers(kept["hosts"]).items())),
        tuple(sorted(text_of(device) for device in devices)),
        {text_of(key): text_of(value) for key, value in kept["environment"].items()},
        whole_numbers(kept["sizes"]),
        figures,
        number,
    )


def text_of(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def whole_numbers(values: Any) -> dict[str, int]:
    """Check a mapping from names to integers."""
    if not isinstance(values, dict) or not all(isinstance(value, int) for value in values.values()):
        raise ValueError(f"{values!r} are not whole numbers")
    return {text_of(key): value for key, value in values.items()}


# Errors for unusable files, which are never changed.


def broken(path: Path, reason: object) -> UserError:
    return UserError(
        f"the baseline {path} is broken",
        why=reason,
        hint="a copy of it, or another file with --save-baseline",
    )


def not_a_baseline(path: Path) -> UserError:
    return UserError(f"{path} is a file of another program", expected=f"a {FORMAT}", hint="another name")


def newer(path: Path, version: object) -> UserError:
    return UserError(
        f"the baseline {path} was written by a newer meshrun",
        got=f"version {version}",
        expected=f"version {VERSION}",
        hint="the newer meshrun, or another file",
    )


def unreadable(path: Path, reason: OSError) -> UserError:
    hint = f"--save-baseline {path} first" if isinstance(reason, FileNotFoundError) else None
    return UserError(f"cannot read the baseline {path}", why=reason.strerror or reason, hint=hint)


def unwritable(path: Path, reason: object) -> UserError:
    detail = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
    return UserError(f"cannot write the baseline {path}", got=detail, hint="a file in a folder of your own")
