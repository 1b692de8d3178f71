"""Fit a plan to a time budget."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from meshrun.jobs.validate.plan import RUNGS, Plan, RungName
from meshrun.jobs.validate.probe.api import TENSOR_SAMPLE
from meshrun.runner.errors import UserError

MiB = 1 << 20
# Smallest sizes; below these, latency dominates. (A ring of 8 GPUs moves 16 MiB at half of its rate.)
FLOORS = {
    "memory_bytes": 64 * MiB,
    "product_bytes": 64 * MiB,
    "copy_bytes": 16 * MiB,
    "pair_bytes": 16 * MiB,
    "nic_bytes": 4 * MiB,
    "ring_bytes": 64 * MiB,
}
REPEATS = ((4, 200), (3, 100), (3, 50), (3, 25), (3, 3))  # samples, and samples of each NIC
RETEST_SHARE = 0.15  # of a budget, reserved for retests of suspects
DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|m|h|d|)\s*")
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Parse a duration such as 90, 90s, 1.5m, 2h or 1d into seconds. Raises UserError if invalid or 0."""
    match = DURATION.fullmatch(text)
    value = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < value < math.inf:
        raise UserError("invalid duration", got=repr(text), expected="seconds, or 90s, 30m, 2h, 1d")
    return value


class Deadline:
    """A time limit. clock: returns seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock, self.begin = seconds, clock, clock()

    def elapsed(self) -> float:
        return self.clock() - self.begin

    def left(self) -> float:
        """Return the seconds left; negative after the deadline."""
        return self.seconds - self.elapsed()


class TimeLimit:
    """The time of a climb.

    expected: seconds of each rung without suspects, if estimated. Then a rung without an expectation has no
    time, and each leaves to later ones what these are expected to take.
    even_shares: each operation leaves to all later ones as much time as it has.
    """

    def __init__(
        self,
        deadline: Deadline,
        expected: Mapping[RungName, float] | None = None,
        even_shares: bool = False,
    ) -> None:
        self.deadline, self.expected, self.even_shares = deadline, expected, even_shares

    def missing(self, name: RungName) -> str:
        """Return why there is no time for a rung, or ""."""
        least = 0.0 if self.expected is None else self.expected.get(name, math.inf)
        return "" if least < self.deadline.left() else f"no time is left of {self.deadline.seconds:.3g} s"

    def left(self, name: RungName) -> float:
        """Return the seconds left for a rung."""
        later = RUNGS[RUNGS.index(name) + 1 :]
        return self.deadline.left() - sum((self.expected or {}).get(rung, 0.0) for rung in later)

    def share(self, name: RungName, later: int) -> Callable[[], float]:
        """Return a function that returns the seconds left for an operation of a rung that begins now.

        later: number of the operations after it, also those of later rungs.
        """
        if not self.even_shares:
            return functools.partial(self.left, name)
        end = self.deadline.elapsed() + self.deadline.left() / (later + 1)
        return lambda: end - self.deadline.elapsed()


def quick() -> Plan:
    """Return a plan with fewer samples and smaller sizes; sizes on NVLink stay at 256 MiB."""
    return Plan(
        small=True,
        samples=3,
        retest_samples=15,
        samples_per_nic=60,
        first_span=0.0,
        memory_bytes=256 * MiB,
        product_bytes=64 * MiB,
        copy_bytes=64 * MiB,
        nic_bytes=16 * MiB,
    )


# Seconds of a sustained load on tensor cores in each climb: usually, with --quick, and of a soak.
LOAD_SECONDS, QUICK_LOAD_SECONDS, SOAK_LOAD_SECONDS = 3.0, 1.5, 60.0
LOAD_SHARE = 0.1  # of a budget, or of a soak, that the load may take


def load_seconds(quick: bool, budget: float | None, soak: float | None) -> float:
    """Return the seconds of the load on tensor cores in a climb; 0.0 if there is no time for two samples."""
    usual = QUICK_LOAD_SECONDS if quick else LOAD_SECONDS
    wanted = usual if soak is None else max(usual, min(SOAK_LOAD_SECONDS, LOAD_SHARE * soak))
    most = math.inf if budget is None else LOAD_SHARE * budget
    return min(wanted, most) if most >= 2 * TENSOR_SAMPLE else 0.0


def fit(plan: Plan, budget: float, cost: Callable[[Plan], float]) -> tuple[Plan, str]:
    """Reduce a plan until it fits `budget` seconds. Returns it, and a line on what was reduced ("": nothing).

    cost: returns the seconds that a plan takes. Reduces repeats first, then sizes, then drops rungs from the
    end; `RETEST_SHARE` stays reserved. Raises UserError if not even one rung fits.
    """
    room = (1 - RETEST_SHARE) * budget
    reduced = plan
    for reduced in reduced_plans(plan):
        if cost(reduced) <= room:
            return reduced, describe_cuts(plan, reduced, cost(reduced), budget)
    for name in reversed(RUNGS):
        shorter = replace(reduced, rungs=tuple(rung for rung in reduced.rungs if rung != name))
        if not shorter.rungs:
            break
        if cost(shorter) < cost(reduced):
            reduced = shorter
        if cost(reduced) <= room:
            return reduced, describe_cuts(plan, reduced, cost(reduced), budget)
    least = math.ceil(cost(reduced) / (1 - RETEST_SHARE))
    raise UserError(
        "the budget is too short for any rung", got=f"{budget:.3g} s", hint=f"--budget {least}s, or --rungs"
    )


def reduced_plans(plan: Plan) -> Iterator[Plan]:
    """Yield the plan, then plans without waits, then with fewer repeats, then with smaller sizes."""
    yield plan
    reduced = replace(plan, first_span=0.0)
    yield reduced
    for samples, per_nic in REPEATS:
        reduced = replace(
            reduced,
            samples=min(reduced.samples, samples),
            samples_per_nic=min(reduced.samples_per_nic, per_nic),
        )
        yield reduced
    smaller, before = halve_sizes(reduced), reduced
    while smaller != before:
        yield smaller
        smaller, before = halve_sizes(smaller), smaller


def halve_sizes(plan: Plan) -> Plan:
    """Return the plan with half of each size, but none below its floor."""
    changes: dict[str, Any] = {}
    for name, floor in FLOORS.items():
        now = int(getattr(plan, name))
        part = 4 if name == "product_bytes" else 2  # half of each side of a matrix
        changes[name] = min(now, max(floor, now // part))
    return replace(plan, **changes)


def describe_cuts(wanted: Plan, reduced: Plan, expected: float, budget: float) -> str:
    given = [
        f"{name} {getattr(reduced, field)} instead of {getattr(wanted, field)}"
        for field, name in (("samples", "samples"), ("samples_per_nic", "samples of each NIC"))
        if getattr(reduced, field) != getattr(wanted, field)
    ]
    if reduced.first_span < wanted.first_span:
        given.append(
            f"NICs watched for {wanted.first_span:g} s, so those that are slow at times may be missed"
        )
    given += [
        f"{name.removesuffix('_bytes')} {getattr(reduced, name) / MiB:.4g} MiB instead of "
        f"{getattr(wanted, name) / MiB:.4g} MiB"
        for name in FLOORS
        if getattr(reduced, name) != getattr(wanted, name)
    ]
    gone = [rung for rung in wanted.rungs if rung not in reduced.rungs]
    given += [f"not measured, no time in the budget: {', '.join(gone)}"] if gone else []
    if not given:
        return ""
    return f"{expected:.3g} s expected of a budget of {budget:.4g} s; given up: {'; '.join(given)}"
