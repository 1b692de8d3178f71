"""What the calls of a probe cost, in seconds, and so a plan."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jobs.measure.outliers import sample_noise
from jobs.validate.budget import FLOORS
from jobs.validate.ladder import CURVE
from jobs.validate.measurements.leaf_switches import LEAST, ROUNDS
from jobs.validate.measurements.repeats import effort
from jobs.validate.measurements.schedule import across, between, inside
from jobs.validate.plan import Plan, RungName
from jobs.validate.probe.api import ALONE, Probe, Seconds, counted
from jobs.validate.topology import Fleet, Ints, fleet_of

FEW, MANY = 1, 4  # samples of a trial

Key = tuple[RungName, str]  # rung, what, as in `Rung.rates`
SIZES: dict[Key, str] = {  # which of the plan's
    ("gpu", "memory"): "memory_bytes",
    ("gpu", "product"): "product_bytes",
    ("host", "to_device"): "copy_bytes",
    ("host", "to_host"): "copy_bytes",
    ("pairs", "copies"): "pair_bytes",
    ("pairs", "flows"): "pair_bytes",
    ("node", "ring"): "ring_bytes",
    ("host pairs", "flows"): "nic_bytes",
    ("rails", "ring"): "ring_bytes",
    ("all", "ring"): "ring_bytes",
    ("all", "flows"): "nic_bytes",
}


@dataclass(frozen=True)
class Cost:
    """Seconds of one call of the probe: `call` + `fill` x work + samples x (`sample` + `move` x work).

    call: communicators, warm-up. fill: data made and checked. work: the bytes, of a product their power 1.5.
    noise: standard deviation of the log of one sample, by which the ladder repeats calls.
    """

    call: float
    fill: float
    sample: float
    move: float
    noise: float = 0.0

    def seconds(self, work: float, samples: int) -> float:
        return self.call + self.fill * work + samples * (self.sample + self.move * work)


Rates = Mapping[Key, Cost]


def work(key: Key, nbytes: int) -> float:
    return float(nbytes**1.5 if key[1] == "product" else nbytes)


def size(plan: Plan, key: Key) -> int:
    return int(getattr(plan, SIZES[key]))


def sizes(plan: Plan) -> dict[str, int]:
    """Bytes by "rung what", of a product operations: a rate is compared with earlier ones of the same."""
    found = {" ".join(key): size(plan, key) for key in SIZES}
    return found | {"gpu product": counted("product", plan.product_bytes)}


@dataclass(frozen=True)
class Calls:
    """Calls of a probe that are alike. judged: of a first look, which noise makes longer."""

    key: Key
    count: int
    nbytes: int
    samples: int
    judged: bool = True


def calls(plan: Plan, fleet: Fleet) -> Iterator[Calls]:
    """What a climb asks of its probe when it suspects nobody. Rungs without partners ask nothing."""
    largest = max(len(fleet.on(host)) for host in range(fleet.hosts))
    meetings = sum(1 for _ in between(fleet, plan))
    count = {"pairs": sum(1 for _ in inside(fleet)), "host pairs": meetings}
    count |= {"node": int(largest > 1), "rails": int(fleet.hosts > 1), "all": int(fleet.ranks > 1)}
    of_nic = max(plan.samples, math.ceil(plan.enough / max(meetings, 1)))  # as in `Between.first`
    for key in SIZES:
        rung, _ = key
        if rung not in plan.rungs or not count.get(rung, 1):
            continue
        if key == ("all", "flows"):  # as in `leaves.leaves`
            if fleet.hosts >= LEAST:
                yield Calls(key, ROUNDS, plan.nic_bytes, plan.samples)
            continue
        if rung != "all":
            samples = of_nic if rung == "host pairs" else plan.samples
            yield Calls(key, count.get(rung, 1), size(plan, key), samples)
        if rung in ("node", "all"):  # as in `Ladder.curve`
            for halved in CURVE:
                if nbytes := plan.ring_bytes >> halved:
                    yield Calls(key, 1, nbytes, plan.samples, judged=False)


def by_rung(plan: Plan, fleet: Fleet, rates: Rates) -> dict[RungName, float]:
    """Seconds that each rung of the plan is expected to take. What `rates` lacks is not measured."""
    found: dict[RungName, float] = dict.fromkeys(plan.rungs, 0.0)
    for one in calls(plan, fleet):
        if cost := rates.get(one.key):
            times = effort(cost.noise, one.samples, plan) if one.judged else 1
            found[one.key[0]] += one.count * times * cost.seconds(work(one.key, one.nbytes), one.samples)
    return found


def estimate(plan: Plan, fleet: Fleet, rates: Rates) -> float:
    """Seconds that a climb is expected to take when it suspects nobody. rates: of `trial`."""
    return sum(by_rung(plan, fleet, rates).values())


def trial(probe: Probe, plan: Plan, clock: Callable[[], float] = time.monotonic) -> dict[Key, Cost]:
    """What calls cost here: each kind at two sizes with two numbers of samples, after one to warm up.

    Its rounds are the ladder's first ones: all ranks at once. clock: as of `Deadline`.
    """
    fleet = fleet_of(probe)
    found: dict[Key, Cost] = {}
    for key in dict.fromkeys(one.key for one in calls(plan, fleet)):
        if key[0] not in probe.absent and not (key[1] == "copies" and probe.no_copies()):
            large = min(4 * FLOORS[SIZES[key]], size(plan, key))
            found[key] = fitting(key, asking(probe, fleet, plan, key), max(large // 4, 1), large, clock)
    return found


Ask = Callable[[int, int], Seconds]  # bytes, samples


def asking(probe: Probe, fleet: Fleet, plan: Plan, key: Key) -> Ask:
    rung, what = key
    for single in ALONE:
        if single == what:
            return functools.partial(probe.alone, single)
    if what in ("copies", "flows"):
        move = probe.copies if what == "copies" else probe.flows
        return functools.partial(move, [(a, b) for a, b in first_round(rung, fleet, plan).tolist()])
    members = {
        "node": [fleet.on(host) for host in range(fleet.hosts)],
        "rails": [fleet.rail(gpu) for gpu in range(fleet.rails)],
    }.get(rung, [np.arange(fleet.ranks)])
    return functools.partial(probe.rings, [group.tolist() for group in members if len(group) > 1])


def first_round(rung: RungName, fleet: Fleet, plan: Plan) -> Ints:
    """Of the flows that a rung begins with."""
    if rung == "all":
        return across(fleet, 1, np.random.default_rng(plan.seed))[0]
    return next(inside(fleet) if rung == "pairs" else between(fleet, plan))


def fitting(key: Key, ask: Ask, small: int, large: int, clock: Callable[[], float]) -> Cost:
    """The cost of four calls, solved for its four terms; never less than the dearest of them took."""
    ask(small, FEW)

    def took(nbytes: int, samples: int) -> tuple[float, Seconds]:
        begin = clock()
        measured = ask(nbytes, samples)
        return clock() - begin, measured

    low, high = work(key, small), work(key, large)
    once = [(took(nbytes, FEW)[0], took(nbytes, MANY)) for nbytes in (small, large)]
    each = [(many - few) / (MANY - FEW) for few, (many, _) in once]
    rest = [few - FEW * one for (few, _), one in zip(once, each, strict=True)]
    move, fill = (max((b - a) / max(high - low, 1), 0.0) for a, b in (each, rest))
    call, sample = max(rest[0] - fill * low, 0.0), max(each[0] - move * low, 0.0)
    longest, measured = once[1][1]
    short = max(longest / max(Cost(call, fill, sample, move).seconds(high, MANY), 1e-9), 1.0)
    return Cost(short * call, short * fill, short * sample, short * move, sample_noise(measured))
