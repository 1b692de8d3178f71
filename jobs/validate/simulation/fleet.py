"""A model of a fleet: latency, bandwidth, contention, topology, noise and injected faults.

It measures like the ranks of a real fleet (`probe.api.Probe`):

    host        NVLink between GPUs; one NIC per GPU; a GPU's PCIe carries its copies and its NIC's traffic
    network     GPU i of each host of a group on one leaf switch; each leaf switch on all spine switches.
                Same rail and group: no spine. Otherwise: up, spine, down.
    flow        latency + bytes / its share of the tightest part on its path (`hardware.Routes`)
    coupling    a rank sends and receives in one operation, repeated: see `coupling`
    ring        of n: 2 (n - 1) steps with the mean latency of its hops + bytes x 2 (n - 1) / n / slowest hop
    time        each sample is a moment later than the previous one, also across calls
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.probe.api import (
    CounterKey,
    Flows,
    LoadReadings,
    RankPlace,
    Seconds,
    SingleRankOp,
    WrongData,
)
from meshrun.jobs.validate.probe.sampling import repeats_for
from meshrun.jobs.validate.simulation.coupling import coupled
from meshrun.jobs.validate.simulation.hardware import (
    NICS,
    PORTS,
    UPLINKS,
    FleetLayout,
    Mask,
    Numbers,
    Parts,
    Rates,
    Routes,
    driver_name,
    nominal,
    slowed,
)
from meshrun.jobs.validate.simulation.noise import Flaps, Neighbours, Noise
from meshrun.jobs.validate.simulation.spec import FleetSpec

LAUNCH, COPY = 5e-6, 8e-6  # latency of a kernel launch, and of a copy between host and GPU, seconds
START = {"inside": 10e-6, "outside": 15e-6}  # latency of a flow
STEP = {"inside": 4e-6, "outside": 8e-6}  # latency of a hop in a ring
SPINE = 1e-6  # additional latency through the spine
ITEM = 4  # bytes of a float32
ROUND, BARRIER = 20e-3, 100e-6  # seconds of a call beside its samples, and of a sample beside its operations
TCP_START = 60e-6  # latency of a flow between hosts by TCP
TIMED = ("flap", "stall")  # kinds of faults that come and go


class SimulatedFleet:
    """seed: overrides the spec's. The same seed and the same calls give the same numbers.

    now: seconds that the model's fleet has spent.
    """

    def __init__(self, spec: FleetSpec, seed: int | None = None) -> None:
        self.spec = spec
        self.hosts: Sequence[str] = tuple(f"h{number}" for number in range(spec.hosts))
        self.now = 0.0
        self._layout = FleetLayout(spec)
        self._seed = spec.seed if seed is None else seed
        rng = np.random.default_rng(self._seed)
        self._noise = Noise(spec.noise, rng, len(self._layout.host), spec.hosts, spec.spread, spec.drift)
        self._parts = {name: self._noise.spread(rates) for name, rates in nominal(self._layout, spec).items()}
        for fault in spec.faults:
            if fault.kind not in TIMED:
                self._parts = slowed(self._parts, fault, self._layout)
        self._flaps = Flaps([fault for fault in spec.faults if fault.kind in TIMED], rng)
        self._links = [fault for fault in spec.faults if fault.kind in ("link", "oneway")]
        self._neighbours = Neighbours(spec.neighbours, spec.hosts + spec.leaf_switches, rng)

    def clock(self) -> float:
        """Return the time in the model."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass in the model."""
        self.now += seconds

    @cached_property
    def places(self) -> Sequence[RankPlace]:
        layout, spec = self._layout, self.spec
        numbers = zip(layout.host.tolist(), layout.gpu.tolist(), layout.gpu[layout.nic].tolist(), strict=True)
        return tuple(
            RankPlace(
                rank,
                host,
                gpu,
                gpu,
                driver_name(spec.models[host % len(spec.models)], spec.nvlink),
                f"nic{nic}",
                "TCP" if spec.fallback == "tcp" else PORTS[spec.models[host % len(spec.models)]],
                layout.paths[spec.gpus[host]][gpu],
                f"domain {host // spec.domain}" if spec.domain > 1 else "",
                self._layout.pxn,
            )
            for rank, (host, gpu, nic) in enumerate(numbers)
        )

    @property
    def unit(self) -> Literal["GPU"]:
        return "GPU"

    @property
    def unavailable(self) -> Mapping[RungName, str]:
        """Empty: all rungs can be measured."""
        return {}

    def wrong_data(self) -> Sequence[WrongData]:
        """Return nothing: a model has no data."""
        return ()

    def nccl_diagnostics(self) -> None:
        """A model has no NCCL."""

    def loads(self) -> Sequence[LoadReadings]:
        """Return nothing: a model has no tensor cores."""
        return ()

    def counters(self) -> Mapping[CounterKey, float | str]:
        """Return nothing: a model has no counters."""
        return {}

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        """Return (ranks, samples) seconds; product: two square float32 matrices of `nbytes` each.

        ranks: those that do it; the others' rows are NaN.
        """
        work = {"memory": 2.0 * nbytes, "product": 2.0 * (nbytes / ITEM) ** 1.5}.get(what, nbytes)
        latency = LAUNCH if what in ("memory", "product") else COPY
        switch, active = self._layout.switch, np.full(len(self._layout.host), ranks is None)
        active[list(ranks or ())] = True
        sharing = np.maximum(np.bincount(switch[active], minlength=len(switch)), 1)[switch]

        def alone(parts: Parts) -> Seconds:
            rates = parts[what]
            if what in ("to_device", "to_host"):  # GPUs behind one PCIe switch share its link
                rates = np.minimum(rates, parts[f"switch_{what}"][switch] / sharing)
            return np.asarray(latency + work / rates)

        seconds = self._in_time(len(self._layout.host), samples, alone, repeats_for(nbytes))
        hiccups = self._hiccups(samples)
        seconds = self._disturbed(seconds, hiccups[self._layout.host])
        self._spent(seconds[active], repeats_for(nbytes))
        return np.where(active[:, None], seconds, np.nan)

    def flows(self, flows: Flows, nbytes: int, samples: int) -> Seconds:
        """Return (flows, samples) seconds of all flows (sender, receiver) at once."""
        start = START | {"outside": TCP_START} if self.spec.fallback == "tcp" else START
        seconds = self._transfers(flows, nbytes, samples, start)
        if self.spec.coupling:
            seconds = coupled(np.array(flows, dtype=np.int64).reshape(-1, 2), seconds, repeats_for(nbytes))
        return self._spent(seconds, repeats_for(nbytes))

    def copies_unavailable(self) -> str:
        return ""

    def copies(self, flows: Flows, nbytes: int, samples: int) -> Seconds:
        """Return (flows, samples) seconds, as `flows`, with the latency of a copy engine."""
        seconds = self._transfers(flows, nbytes, samples, dict.fromkeys(START, COPY))
        return self._spent(seconds, repeats_for(nbytes))

    def _transfers(self, flows: Flows, nbytes: int, samples: int, start: dict[str, float]) -> Seconds:
        sender, receiver = np.array(flows, dtype=np.int64).reshape(-1, 2).T
        routes = self._routes(sender, receiver)
        latency, kept = _latencies(routes, start), self._kept(routes)

        def transfer(parts: Parts) -> Seconds:
            return np.asarray(latency + nbytes / (routes.rates(parts) * kept))

        seconds = self._in_time(len(flows), samples, transfer, repeats_for(nbytes))
        hiccups = self._hiccups(samples)
        late = np.maximum(hiccups[routes.from_host], hiccups[routes.to_host])
        return self._disturbed(seconds, late) * self._busy(routes.outside, samples)

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        """Return (groups, samples) seconds of ring all_reduces, all groups at once."""
        if not groups:
            return np.empty((0, samples))
        sizes = np.array([len(group) for group in groups])
        first = np.cumsum(sizes) - sizes
        members: Numbers = np.concatenate([np.asarray(group, dtype=np.int64) for group in groups])
        following = np.arange(1, len(members) + 1)
        following[first + sizes - 1] = first
        routes = self._routes(members, members[following])
        steps = 2 * (sizes - 1)
        latency = LAUNCH + steps * np.add.reduceat(_latencies(routes, STEP), first) / sizes
        kept = self._kept(routes)

        def all_reduce(parts: Parts) -> Seconds:
            hops = np.minimum(routes.rates(parts) * kept, parts["reduce"][routes.receiver])
            return np.asarray(latency + steps / sizes * nbytes / np.minimum.reduceat(hops, first))

        seconds = self._in_time(len(groups), samples, all_reduce, repeats_for(nbytes))
        hiccups = self._hiccups(samples)
        late = np.maximum.reduceat(hiccups[routes.from_host], first)
        outside = np.logical_or.reduceat(routes.outside, first)
        disturbed = self._disturbed(seconds, late) * self._busy(outside, samples)
        return self._spent(disturbed, repeats_for(nbytes))

    def _spent(self, seconds: Seconds, repeats: int) -> Seconds:
        """Advance the clock by a measurement."""
        slowest = seconds.max(axis=0) if len(seconds) else np.zeros(seconds.shape[1])
        self.now += ROUND + float(repeats * slowest.sum()) + BARRIER * seconds.shape[1]
        return seconds

    def _hiccups(self, samples: int) -> Rates:
        """Return (hosts, samples) factors that a host's measurements share."""
        hosts = len(self.hosts)
        return np.asarray(
            self._noise.hiccups(hosts, samples) * self._noise.of_hosts(hosts, samples, self.spec.hostnoise)
        )

    def _loaded(self) -> Parts:
        """Return the parts with other users' load of this moment."""
        left = self._neighbours.left(self.now)
        hosts, leaves = left[: len(self.hosts)], left[len(self.hosts) :]
        parts = dict(self._parts)
        for name in NICS:
            parts[name] = parts[name] * hosts[self._layout.host]
        for name in UPLINKS:
            parts[name] = parts[name] * leaves
        return parts

    def _routes(self, sender: Numbers, receiver: Numbers) -> Routes:
        return Routes(self._layout, sender, receiver, self._links, self.spec.ecmp, self._seed)

    def _kept(self, routes: Routes) -> Rates:
        """Return the share of its rate that collisions in the spine leave to each flow of this round."""
        kept = np.ones(len(routes.sender))
        if self.spec.ecmp:  # hashed for good: see `Routes`
            return kept
        leaves = routes.from_leaf[routes.spine], routes.to_leaf[routes.spine]
        kept[routes.spine] = self._noise.collisions(*leaves, self._layout.cables)
        return kept

    def _in_time(self, rows: int, samples: int, seconds: Callable[[Parts], Seconds], calls: int) -> Seconds:
        """Return (rows, samples): `seconds(parts)`, (rows,), with the state of the parts at each sample."""
        drift = self._noise.drift(self._layout.host)
        parts = self._loaded() if self.spec.neighbours else self._parts
        parts = parts | {name: parts[name] * drift for name in ("memory", "product", "reduce")}
        known: dict[bytes, Seconds] = {}  # by the state of the faults that come and go
        result = np.empty((rows, samples))
        for sample, factors in enumerate(self._flaps.next(samples, calls).T):
            key = factors.tobytes()
            if key not in known:
                slow = parts
                for fault, factor in zip(self._flaps.faults, factors.tolist(), strict=True):
                    slow = slowed(slow, fault, self._layout, factor) if factor < 1 else slow
                known[key] = seconds(slow)
            result[:, sample] = known[key]
        return result

    def _disturbed(self, seconds: Seconds, late: Seconds) -> Seconds:
        """Apply stragglers and jitter. seconds, late (delay factors of the hosts): (rows, samples)."""
        late = late * self._noise.stragglers(*seconds.shape)
        return np.asarray(seconds * late * self._noise.jitter(*seconds.shape))

    def _busy(self, outside: Mask, samples: int) -> Rates:
        return np.where(outside[:, np.newaxis], self._noise.busy(samples), 1.0)


def _latencies(routes: Routes, kind: dict[str, float]) -> Seconds:
    return np.asarray(np.where(routes.outside, kind["outside"], kind["inside"]) + SPINE * routes.spine)
