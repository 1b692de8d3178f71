"""Plans that fit into a time, and how much of it is left."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from jobs.validate.plan import RUNGS, Plan
from runner.errors import UserError

MiB = 1 << 20
# Below these, latency decides. (A ring of 8 GPUs moves 16 MiB at half of its rate.)
FLOORS = {
    "memory_bytes": 64 * MiB,
    "product_bytes": 64 * MiB,
    "copy_bytes": 16 * MiB,
    "pair_bytes": 16 * MiB,
    "nic_bytes": 4 * MiB,
    "ring_bytes": 64 * MiB,
}
REPEATS = ((4, 200), (3, 100), (3, 50), (3, 25), (3, 3))  # samples, and samples of each NIC
RETEST_SHARE = 0.15  # of a budget, kept for measuring suspects again
DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|m|h|d|)\s*")
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Seconds of a duration such as 90, 90s, 1.5m, 2h, 1d. Raises UserError where it is none, or 0."""
    match = DURATION.fullmatch(text)
    value = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < value < math.inf:
        raise UserError("a duration", got=repr(text), expected="seconds, or 90s, 30m, 2h, 1d")
    return value


class Deadline:
    """A time that ends. clock: of seconds; where ranks decide by it, rank 0's, broadcast: then collective."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock, self.begin = seconds, clock, clock()

    def elapsed(self) -> float:
        return self.clock() - self.begin

    def left(self) -> float:
        """Negative when it is over."""
        return self.seconds - self.elapsed()


def quick() -> Plan:
    """A plan with fewer samples and smaller sizes, except of what NVLink carries: 256 MiB in both."""
    return Plan(
        samples=3,
        retest_samples=15,
        samples_per_nic=60,
        memory_bytes=256 * MiB,
        product_bytes=64 * MiB,
        copy_bytes=64 * MiB,
        nic_bytes=16 * MiB,
    )


def fit(plan: Plan, budget: float, cost: Callable[[Plan], float]) -> tuple[Plan, str]:
    """The plan that fits into `budget` seconds, and what was given up for it: a line, or "".

    cost: seconds of a plan. First repeats give way, then sizes, then rungs from the end; a share of the time
    is kept for measuring suspects again. Raises UserError where not even one rung fits.
    """
    room = (1 - RETEST_SHARE) * budget
    lean = plan
    for lean in leaner(plan):
        if cost(lean) <= room:
            return lean, describe_cuts(plan, lean, cost(lean), budget)
    for name in reversed(RUNGS):
        shorter = replace(lean, rungs=tuple(rung for rung in lean.rungs if rung != name))
        if not shorter.rungs:
            break
        if cost(shorter) < cost(lean):
            lean = shorter
        if cost(lean) <= room:
            return lean, describe_cuts(plan, lean, cost(lean), budget)
    least = math.ceil(cost(lean) / (1 - RETEST_SHARE))
    raise UserError(
        "the budget is too short for any rung", got=f"{budget:.3g} s", hint=f"--budget {least}s, or --rungs"
    )


def leaner(plan: Plan) -> Iterator[Plan]:
    """The plan, then with ever fewer repeats, then with ever smaller sizes as well."""
    yield plan
    lean = plan
    for samples, per_nic in REPEATS:
        lean = replace(
            lean, samples=min(lean.samples, samples), samples_per_nic=min(lean.samples_per_nic, per_nic)
        )
        yield lean
    smaller, before = halved(lean), lean
    while smaller != before:
        yield smaller
        smaller, before = halved(smaller), smaller


def halved(plan: Plan) -> Plan:
    """Half of each size, but none below its floor."""
    changes: dict[str, Any] = {}
    for name, floor in FLOORS.items():
        now = int(getattr(plan, name))
        part = 4 if name == "product_bytes" else 2  # of a matrix, half of each side
        changes[name] = min(now, max(floor, now // part))
    return replace(plan, **changes)


def describe_cuts(wanted: Plan, lean: Plan, expected: float, budget: float) -> str:
    given = [
        f"{name} {getattr(lean, field)} instead of {getattr(wanted, field)}"
        for field, name in (("samples", "samples"), ("samples_per_nic", "samples of each NIC"))
        if getattr(lean, field) != getattr(wanted, field)
    ]
    given += [
        f"{name.removesuffix('_bytes')} {getattr(lean, name) / MiB:.4g} MiB instead of "
        f"{getattr(wanted, name) / MiB:.4g} MiB"
        for name in FLOORS
        if getattr(lean, name) != getattr(wanted, name)
    ]
    gone = [rung for rung in wanted.rungs if rung not in lean.rungs]
    given += [f"not measured, no time in the budget: {', '.join(gone)}"] if gone else []
    if not given:
        return ""
    return f"{expected:.3g} s expected of a budget of {budget:.4g} s; given up: {'; '.join(given)}"
