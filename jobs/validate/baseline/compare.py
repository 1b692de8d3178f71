"""Compare a run with earlier healthy runs of the same fleet, and save it."""

from __future__ import annotations

import math
import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from meshrun.jobs.measure.outliers import (
    FEW_RUNS,
    common_deviation,
    drift_score,
    is_drift,
    run_deviation,
    score_needed,
)
from meshrun.jobs.validate.baseline import json as baseline_json
from meshrun.jobs.validate.baseline import sqlite as baseline_sqlite
from meshrun.jobs.validate.baseline.baseline_run import (
    FINGERPRINT,
    KEPT,
    BaselineRun,
    Figure,
    fleet_of,
    run_of_report,
    unwritable,
)
from meshrun.jobs.validate.plan import RUNGS
from meshrun.jobs.validate.report.model import Drift, Member, Report
from meshrun.runner.errors import UserError
from meshrun.runner.report.units import counted

SHOWN = 8  # names in a sentence


class Format(Protocol):
    """A file format for runs. Both methods raise UserError."""

    def read(self, path: Path) -> list[BaselineRun]:
        """Return all runs, oldest first."""

    def add(self, path: Path, new: BaselineRun) -> BaselineRun:
        """Save a run. Returns it with its number."""


FORMATS: dict[str, Format] = {".json": baseline_json, ".sqlite": baseline_sqlite, ".db": baseline_sqlite}


def check(path: Path, members: Sequence[Member], simulated: str = "") -> None:
    """Raise the UserError that `compare` would raise, before the run."""
    reference(path, read(path), BaselineRun("", *fleet_of(members, simulated), {}, {}))


def check_saving(path: Path) -> None:
    """Raise the UserError that `save` would raise, as far as it is known before the run."""
    format_of(path)
    if path.exists():
        read(path)
    for place in (path, path.resolve().parent):
        if (place != path or path.exists()) and not os.access(place, os.W_OK, effective_ids=True):
            raise unwritable(
                path, f"no permission to write {place}" if place.exists() else f"no folder {place}"
            )


def compare(
    path: Path, report: Report, figures: Mapping[Figure, float]
) -> tuple[tuple[Drift, ...], tuple[str, ...]]:
    """Compare with the earlier runs in `path`: drifts, slowest first; and sentences on other differences.

    figures: rates in the `unit_of` their measurement. The last 50 runs count, in any environment. The score
    of a drift is NaN with fewer than 3 runs. A subset of an earlier fleet's hosts is compared part by part.
    Raises UserError if the file is missing, broken, or of another fleet.
    """
    mine = run_of_report(report, figures)
    runs, same = reference(path, read(path), mine)
    runs = runs[-KEPT:]
    changed = differences(runs, mine)
    if not same:
        changed.append(
            f"the baseline is of {len(runs[-1].hosts)} hosts, {len(mine.hosts)} of them here: "
            "their parts are compared, rails and medians of the fleet are not"
        )
    earlier: dict[Figure, list[float]] = {}
    notes: dict[str, list[str]] = {}
    for figure in mine.figures:
        name, part = " ".join(figure[:2]), figure[2]
        if not same and not part.startswith("host "):
            continue  # a median over other hosts
        having = [run for run in runs if figure in run.figures]
        alike = [run.figures[figure] for run in having if run.sizes.get(name) == mine.sizes.get(name)]
        if alike:
            earlier[figure] = alike
        else:
            why = "earlier runs were of other sizes" if having else "no earlier run has them"
            notes.setdefault(f"not compared ({why})", []).append(name)
        if 0 < len(alike) < FEW_RUNS:
            few = f"only {len(alike)} earlier run{'s'[: len(alike) > 1]}"
            notes.setdefault(f"{few}, differences of 10 % are reported without a score", []).append(name)
    for figure in missing(runs, mine, same):
        notes.setdefault("in earlier runs, not measured in this one", []).append(f"{figure[0]} {figure[1]}")
    changed += [f"{listed(dict.fromkeys(names))}: {text}" for text, names in notes.items()]
    return drifted(mine.figures, earlier), tuple(changed)


def save(path: Path, report: Report, figures: Mapping[Figure, float]) -> str:
    """Save this run if it is healthy. Returns a line that states the result.

    Several runs may save at the same time. Raises UserError if the file cannot be read or written.
    """
    mine = run_of_report(report, figures)
    why = ""
    if report.ended:
        why = report.ended
    elif report.wrong:
        why = "data was wrong"
    elif report.verdict.status != "ok":
        why = f"its verdict is {report.verdict.line}"
    elif not mine.figures:
        why = "nothing was measured"
    if why:
        return f"not saved in {path}, a baseline is of healthy runs: {why}"
    return f"saved as run {format_of(path).add(path, mine).number} of this fleet in {path}"


def read(path: Path) -> list[BaselineRun]:
    return format_of(path).read(path)


def format_of(path: Path) -> Format:
    form = FORMATS.get(path.suffix)
    if form is None:
        raise UserError("a baseline is JSON or SQLite", got=path, expected=" or ".join(FORMATS))
    return form


def reference(path: Path, runs: Sequence[BaselineRun], mine: BaselineRun) -> tuple[list[BaselineRun], bool]:
    """Return the runs to compare with, oldest first, and whether they are of the same fleet.

    Otherwise they are of the smallest fleet that contains these hosts. Raises UserError if there is none.
    """
    if not runs:
        raise UserError(f"the baseline {path} has no run yet", hint=f"--save-baseline {path} first")
    hosts, devices = {*mine.hosts}, {*mine.devices}
    holding = [run for run in runs if hosts <= {*run.hosts} and devices <= {*run.devices}]
    if not holding:
        raise another_fleet(path, runs, mine)
    fleet = min(reversed(holding), key=lambda run: (run.fleet != mine.fleet, len(run.hosts))).fleet
    found = sorted((run for run in holding if run.fleet == fleet), key=lambda run: run.number)
    return found, fleet == mine.fleet


def another_fleet(path: Path, runs: Sequence[BaselineRun], mine: BaselineRun) -> UserError:
    """Return an error with the differences from the stored fleet that shares most hosts with this one."""
    here = dict(mine.hosts)
    nearest = max(
        reversed(runs), key=lambda run: (len(here.keys() & dict(run.hosts)), run.devices == mine.devices)
    )
    there = dict(nearest.hosts)
    common = sorted(here.keys() & there.keys())
    counts = [
        f"{name} has {counted(here[name], 'GPU')}, not {there[name]}"
        for name in common
        if here[name] != there[name]
    ]
    differing = [] if common else ["no host in common"]
    new, gone = sorted(here.keys() - there.keys()), sorted(there.keys() - here.keys())
    differing += [f"new: {listed(new)}"] if new else []
    differing += [f"missing: {listed(gone)}"] if gone else []
    differing += [listed(counts)] if counts else []
    if not {*mine.devices} <= {*nearest.devices}:
        differing.append(f"{', '.join(mine.devices)}, not {', '.join(nearest.devices)}")
    return UserError(
        f"the baseline {path} is of another fleet",
        got="; ".join(differing),
        hint=f"--save-baseline {path}, which keeps the runs of several fleets apart",
    )


def differences(runs: Sequence[BaselineRun], mine: BaselineRun) -> list[str]:
    """Describe changes of the environment, with the last run that had the old value."""
    found = []
    for key in FINGERPRINT:
        now = mine.environment.get(key, "not known")
        for run in reversed(runs):
            if (then := run.environment.get(key, "not known")) != now:
                found.append(f"{key} {then} -> {now} since run {run.number}")
                break
    return found


def missing(runs: Sequence[BaselineRun], mine: BaselineRun, same: bool) -> list[Figure]:
    """Return the figures of the last run that this one lacks, of participating hosts."""
    here = {f"host {name}" for name, _ in mine.hosts}
    return [
        figure
        for figure in sorted(runs[-1].figures, key=lambda one: (RUNGS.index(one[0]), *one[1:]))
        if figure not in mine.figures and (same or figure[2].partition(",")[0] in here)
    ]


def listed(names: Sequence[str] | Mapping[str, None]) -> str:
    shown = ", ".join(list(names)[:SHOWN])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > SHOWN else shown


def drifted(figures: Mapping[Figure, float], earlier: Mapping[Figure, Sequence[float]]) -> tuple[Drift, ...]:
    """Return the figures that differ from their earlier rates, slowest first.

    score: (rate - median) / deviation. The deviation is the robust one of the earlier rates. As few runs give
    a poor estimate, it is shrunk towards the common one of the same measurement's parts (Smyth 2004), and is
    at least that, and at least 1 %. More figures need a larger score: 4 for up to 15 figures, 5.5 for 25,000.
    """
    usual = {figure: statistics.median(rates) for figure, rates in earlier.items()}
    own = {figure: run_deviation(rates) for figure, rates in earlier.items() if len(rates) >= FEW_RUNS}
    alike: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for (rung, what, part), known in own.items():
        alike[rung, what, part == ""].append(known)
    common = {key: common_deviation(values) for key, values in alike.items()}
    needed = score_needed(len(own))
    found = []
    for figure, rates in earlier.items():
        rung, what, part = figure
        rate, before, score = figures[figure], usual[figure], math.nan
        if figure in own:
            score = drift_score(rate, before, own[figure], common[rung, what, part == ""], len(rates))
        if is_drift(rate, before, score, needed):
            found.append(Drift(rung, what, part, rate, before, score, len(rates)))
    return tuple(sorted(found, key=lambda one: one.rate / one.usual))
