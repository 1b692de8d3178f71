"""Estimate how long a plan takes, from calibrated costs of the probe's calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from meshrun.jobs.measure.outliers import sample_noise
from meshrun.jobs.validate.ladder.budget import FLOORS
from meshrun.jobs.validate.ladder.ladder import CURVE_SHIFTS, curve_samples
from meshrun.jobs.validate.measurements.inter_node import TRIAL_ROUNDS, first_samples, most_subrounds
from meshrun.jobs.validate.measurements.leaf_switches import LEAST_HOSTS, ROUNDS
from meshrun.jobs.validate.measurements.repeats import repeats_needed
from meshrun.jobs.validate.measurements.schedule import (
    all_at_once_rounds,
    inter_node_rounds,
    intra_node_rounds,
    split_round,
)
from meshrun.jobs.validate.measurements.single_gpu import tensor_samples
from meshrun.jobs.validate.plan import Plan, RungName
from meshrun.jobs.validate.probe.api import SINGLE_RANK_OPS, TENSOR_SAMPLE, Probe, Seconds, operation_work
from meshrun.jobs.validate.topology import Ints, Topology, topology_of

FEW, MANY = 1, 4  # samples of a calibration

MeasurementKey = tuple[RungName, str]  # rung, what, as in `RungResult.rates`
SIZES: dict[MeasurementKey, str] = {  # the plan's field for its size
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
class CallCost:
    """Seconds of one call of the probe: `call` + `fill` x work + samples x (`sample` + `move` x work).

    call: communicators, warm-up. fill: generating and checking data. work: as the function `work` returns it.
    noise: standard deviation of the log of one sample, which determines how often the ladder repeats calls.
    """

    call: float
    fill: float
    sample: float
    move: float
    noise: float = 0.0

    def seconds(self, work: float, samples: int) -> float:
        return self.call + self.fill * work + samples * (self.sample + self.move * work)


CallCosts = Mapping[MeasurementKey, CallCost]


def work(key: MeasurementKey, nbytes: int) -> float:
    """Return what the time of an operation is proportional to: bytes, or bytes ** 1.5 for a product."""
    return float(nbytes**1.5 if key[1] == "product" else nbytes)


def size(plan: Plan, key: MeasurementKey) -> int:
    return int(getattr(plan, SIZES[key]))


def sizes(plan: Plan) -> dict[str, int]:
    """Return sizes by "rung what": bytes, or operations for a product. Only equal sizes are comparable."""
    found = {" ".join(key): size(plan, key) for key in SIZES}
    found["gpu product"] = operation_work("product", plan.product_bytes)
    if plan.tensor_seconds:
        found["gpu tensor"] = operation_work("tensor", plan.tensor_bytes)
    return found


@dataclass(frozen=True)
class ProbeCalls:
    """Identical calls of a probe. judged: part of a first measurement, which is repeated if it is noisy, more
    often than the `repeats` that the count has."""

    key: MeasurementKey
    count: int
    nbytes: int
    samples: int
    judged: bool = True
    repeats: int = 1


def probe_calls(plan: Plan, topology: Topology) -> Iterator[ProbeCalls]:
    """Yield the calls of a climb without suspects."""
    largest = max(len(topology.on(host)) for host in range(topology.hosts))
    meetings = sum(1 for _ in inter_node_rounds(topology, plan))
    count = {"pairs": sum(1 for _ in intra_node_rounds(topology)), "host pairs": meetings}
    count["host"] = topology.rails  # as in `SingleGpu.sample`
    count |= {"node": int(largest > 1), "rails": int(topology.hosts > 1), "all": int(topology.ranks > 1)}
    nic_samples, calls = first_samples(meetings, plan)  # as in `InterNode.measure`
    trial = most_subrounds(topology, plan) > 1
    trials = (
        [
            part
            for each in islice(inter_node_rounds(topology, plan), TRIAL_ROUNDS)
            for count in (1, 2)
            for part in split_round(each, topology, count)
        ]
        if trial
        else []
    )
    for key in SIZES:
        rung, _ = key
        if rung not in plan.rungs or not count.get(rung, 1):
            continue
        if key == ("all", "flows"):  # as in `measure_leaf_switches`
            if topology.hosts >= LEAST_HOSTS:
                yield ProbeCalls(key, ROUNDS, plan.nic_bytes, plan.samples)
            continue
        if rung != "all":
            samples = nic_samples if rung == "host pairs" else plan.samples
            if rung == "host pairs":  # as in `InterNode.bytes_in_time`
                yield ProbeCalls(key, 1, plan.nic_bytes, 1, judged=False)
            if rung == "host pairs" and trials:  # as in `InterNode.subrounds_needed`
                yield ProbeCalls(key, len(trials), plan.nic_bytes, plan.samples, judged=False)
            repeats = calls if rung == "host pairs" else 1
            yield ProbeCalls(key, repeats * count.get(rung, 1), size(plan, key), samples, repeats=repeats)
        if rung in ("node", "all"):  # as in `Ladder.measure_curve`
            for shift in CURVE_SHIFTS:
                if nbytes := plan.ring_bytes >> shift:
                    samples = curve_samples(plan, topology.ranks)
                    yield ProbeCalls(key, 1, nbytes, samples, judged=False)


def estimate_rungs(plan: Plan, topology: Topology, costs: CallCosts) -> dict[RungName, float]:
    """Estimate the seconds of each rung of the plan, without suspects.

    costs: from `calibrate`; a measurement without a cost counts as not measured.
    """
    found: dict[RungName, float] = dict.fromkeys(plan.rungs, 0.0)
    if "gpu" in found and plan.tensor_seconds:
        found["gpu"] += tensor_samples(plan) * TENSOR_SAMPLE
    for one in probe_calls(plan, topology):
        if cost := costs.get(one.key):
            needed = repeats_needed(cost.noise, one.samples, plan) if one.judged else 1
            times = max(needed / one.repeats, 1)
            each = cost.seconds(work(one.key, one.nbytes), one.samples)
            taken = one.count * times * each
            if taken and one.judged and one.key[0] == "host pairs":  # as in `InterNode.paced`
                taken = max(taken, plan.first_span * (one.count - 1) / one.count + each)
            found[one.key[0]] += taken
    return found


def estimate(plan: Plan, topology: Topology, costs: CallCosts) -> float:
    """Estimate the seconds of a climb without suspects. costs: from `calibrate`."""
    return sum(estimate_rungs(plan, topology, costs).values())


def calibrate(
    probe: Probe, plan: Plan, clock: Callable[[], float] | None = None
) -> dict[MeasurementKey, CallCost]:
    """Measure the cost of each kind of call: two sizes, two numbers of samples each, after a warm-up.

    clock: instead of the probe's.

    Uses the first round of each rung, in which all ranks take part.
    """
    topology = topology_of(probe)
    found: dict[MeasurementKey, CallCost] = {}
    for key in dict.fromkeys(one.key for one in probe_calls(plan, topology)):
        if key[0] not in probe.unavailable and not (key[1] == "copies" and probe.copies_unavailable()):
            large = min(4 * FLOORS[SIZES[key]], size(plan, key))
            call = bind_probe_call(probe, topology, plan, key)
            found[key] = fit_cost(key, call, max(large // 4, 1), large, clock or probe.clock)
    return found


ProbeCall = Callable[[int, int], Seconds]  # bytes, samples


def bind_probe_call(probe: Probe, topology: Topology, plan: Plan, key: MeasurementKey) -> ProbeCall:
    rung, what = key
    for single in SINGLE_RANK_OPS:
        if single == what:
            return functools.partial(probe.single_rank, single)
    if what in ("copies", "flows"):
        move = probe.copies if what == "copies" else probe.flows
        return functools.partial(move, first_round(rung, topology, plan))
    members = {
        "node": [topology.on(host) for host in range(topology.hosts)],
        "rails": [topology.rail(gpu) for gpu in range(topology.rails)],
    }.get(rung, [np.arange(topology.ranks)])
    return functools.partial(probe.rings, [group.tolist() for group in members if len(group) > 1])


def first_round(rung: RungName, topology: Topology, plan: Plan) -> Ints:
    """Return the flows of a rung's first round."""
    if rung == "all":
        return all_at_once_rounds(topology, 1, np.random.default_rng(plan.seed))[0]
    return next(intra_node_rounds(topology) if rung == "pairs" else inter_node_rounds(topology, plan))


def fit_cost(
    key: MeasurementKey, call_probe: ProbeCall, small: int, large: int, clock: Callable[[], float]
) -> CallCost:
    """Fit the four terms of a cost to four timed calls; scale it to be no less than the longest of them."""
    call_probe(small, FEW)

    def took(nbytes: int, samples: int) -> tuple[float, Seconds]:
        begin = clock()
        measured = call_probe(nbytes, samples)
        return clock() - begin, measured

    low, high = work(key, small), work(key, large)
    once = [(took(nbytes, FEW)[0], took(nbytes, MANY)) for nbytes in (small, large)]
    each = [(many - few) / (MANY - FEW) for few, (many, _) in once]
    rest = [few - FEW * one for (few, _), one in zip(once, each, strict=True)]
    move, fill = (max((b - a) / max(high - low, 1), 0.0) for a, b in (each, rest))
    call, sample = max(rest[0] - fill * low, 0.0), max(each[0] - move * low, 0.0)
    longest, measured = once[1][1]
    short = max(longest / max(CallCost(call, fill, sample, move).seconds(high, MANY), 1e-9), 1.0)
    return CallCost(short * call, short * fill, short * sample, short * move, sample_noise(measured))
