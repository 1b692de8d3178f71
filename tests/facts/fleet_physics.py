"""A second model of a fleet, which shares no code with `--simulate`: its own sharing, noise and timing.

It measures like the ranks of a real fleet (`Probe`). Where `--simulate` gives every flow through a part an
equal share, flows here share by max-min: what a flow cannot use, others get. What comes and goes does so by
the clock, in seconds, not by the number of samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from meshrun.jobs.validate.probe.api import RankPlace, Seconds

NVLINK_RATE, MEMORY_RATE, COPY_RATE, PRODUCT_RATE = 380e9, 3.9e12, 55e9, 50e12
BRIDGE_RATE, SOCKETS_RATE = 85e9, 38e9  # of a bridge of two GPUs; through PCIe, between any two others
TCP_RATE = 1.2e9  # of a GPU, over its host's Ethernet
OLDER = {"memory": 0.45, "product": 0.6, "copy": 0.5, "nvlink": 0.7}  # shares of a second GPU model's rates
# By the rate of a NIC, bytes/s: the name of its ports, and of the GPUs of hosts with such NICs.
PORT_NAMES = {48e9: "400 Gb/s", 24e9: "200 Gb/s"}
MODEL_NAMES = {48e9: "NVIDIA H200", 24e9: "NVIDIA A100-SXM4-80GB"}
OLDER_NAME = "NVIDIA H100 PCIe"
SETTLING_STEPS = 12  # of the search for the shares of flows


@dataclass(frozen=True)
class Episode:
    """A NIC, all NICs of a host, or a GPU's clock, at `factor` of its rate from `begin` to `end`."""

    part: Literal["nic", "host", "gpu"]
    number: int
    begin: float
    end: float
    factor: float


@dataclass
class Fleet:
    """gpus, rates, nics: by host, numbers of GPUs, rates of a NIC in bytes/s, numbers of NICs (0: one per
    GPU).

    slow: by part and number, the share of its rate that is left: "send" and "receive" (of a NIC, by its
    first rank), "link" and "one way" (of two hosts), "up" and "down" (of a leaf switch), "gpu", "pcie",
    "nvlink" (of a rank), "bridge" (of two GPUs, by the first). duplex: by NIC, what it moves in both
    directions together, in shares of its rate. group: number of a host's leaf switch on each rail, (hosts,
    rails); flows between hosts of different numbers pass uplinks. cables: uplinks of a leaf switch, each of
    the rate `uplink`. static: hashed for good, not anew each round. older: hosts with an older GPU model.
    bridged: NVLink bridges join GPUs in pairs, other pairs use PCIe. borrowed: ranks without a NIC, and the
    rank whose NIC each uses. by_tcp: hosts without NICs for RDMA.
    """

    gpus: Sequence[int]
    rates: Sequence[float]
    nics: Sequence[int]
    seed: int
    slow: dict[tuple[str, Any], float] = field(default_factory=dict)
    duplex: dict[int, float] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    group: Any = None
    cables: int = 64
    uplink: float = 50e9
    static: bool = False
    older: frozenset[int] = frozenset()
    bridged: bool = False
    borrowed: dict[int, int] = field(default_factory=dict)
    by_tcp: frozenset[int] = frozenset()
    noise: float = 0.02
    spread: float = 0.01


class PhysicalFleet:
    """What the ranks of a fleet measure."""

    unit: Literal["GPU"] = "GPU"
    unavailable: Mapping[Any, str] = {}

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.now = fleet, 0.0
        self.rng = np.random.default_rng([fleet.seed, 77])
        self.hosts = tuple(f"h{host}" for host in range(len(fleet.gpus)))
        self.of_host = np.repeat(np.arange(len(fleet.gpus)), fleet.gpus)
        self.rail = np.concatenate([np.arange(count) for count in fleet.gpus])
        first = np.cumsum([0, *fleet.gpus])[:-1]
        ranks = len(self.of_host)
        self.nic = np.arange(ranks)
        for host, nics in enumerate(fleet.nics):
            count = fleet.gpus[host]
            if nics and nics < count:
                each = count // nics
                self.nic[first[host] : first[host] + count] = first[host] + np.arange(count) // each * each
        for rank, other in fleet.borrowed.items():
            self.nic[rank] = other
        self.rate = np.asarray(fleet.rates)[self.of_host].astype(float)
        self.tcp = np.isin(self.of_host, [*fleet.by_tcp])
        self.rail_of_nic = self.rail[self.nic]
        rails = max(fleet.gpus)
        group = np.zeros((len(fleet.gpus), rails), np.int64) if fleet.group is None else fleet.group
        self.leaf = group[self.of_host, self.rail_of_nic] * rails + self.rail_of_nic
        self.leaves = int(group.max() + 1) * rails
        varied = lambda size: 1 + fleet.spread * np.clip(self.rng.standard_normal(size), -2.5, 2.5)  # noqa: E731
        usual = np.where(self.tcp, TCP_RATE, self.rate)
        self.send, self.receive = (usual * varied(ranks) for _ in range(2))
        self.single = {
            "memory": MEMORY_RATE * varied(ranks),
            "product": PRODUCT_RATE * varied(ranks),
            "to_device": COPY_RATE * varied(ranks),
            "to_host": COPY_RATE * varied(ranks),
        }
        self.nvlink = (BRIDGE_RATE if fleet.bridged else NVLINK_RATE) * varied(ranks)
        self.sockets = SOCKETS_RATE * varied(ranks)  # of pairs without NVLink
        self.is_older = np.isin(self.of_host, [*fleet.older])
        for what, rates in (*self.single.items(), ("nvlink", self.nvlink)):
            rates[self.is_older] *= OLDER.get(what, OLDER["copy"])
        self.up, self.down = (np.full(self.leaves, fleet.uplink) for _ in range(2))
        for (part, number), left in fleet.slow.items():
            for table in {
                "send": (self.send,), "receive": (self.receive,), "up": (self.up,), "down": (self.down,),
                "gpu": (self.single["memory"], self.single["product"]), "nvlink": (self.nvlink,),
                "pcie": (self.single["to_device"], self.single["to_host"]),
            }.get(part, ()):  # fmt: skip
                table[number] *= left
            if part == "pcie":  # all that the GPU exchanges without NVLink passes it
                at_most = left * COPY_RATE
                for table in (self.send, self.receive, self.sockets):
                    table[number] = min(table[number], at_most)
            if part == "bridge":
                self.nvlink[[number, number + 1]] *= left
        self.hashes = self.rng.integers(1 << 40, size=(2, ranks))

    # --- what a probe has

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    @property
    def places(self) -> Sequence[RankPlace]:
        def path(a: int, b: int) -> str:
            joined = not self.fleet.bridged or a // 2 == b // 2
            return "X" if a == b else "SYS" if not joined else "NV4" if self.fleet.bridged else "NV18"

        paths = {
            n: tuple(tuple(path(a, b) for b in range(n)) for a in range(n)) for n in set(self.fleet.gpus)
        }
        return tuple(
            RankPlace(
                rank, int(host), int(gpu), int(gpu),
                OLDER_NAME if self.is_older[rank] and self.rate[rank] == max(MODEL_NAMES)
                else MODEL_NAMES[float(self.rate[rank])],
                "" if self.tcp[rank] else f"mlx5_{self.rail[self.nic[rank]]}",
                "" if self.tcp[rank] else PORT_NAMES[float(self.rate[rank])],
                paths[self.fleet.gpus[host]][gpu],
            )
            for rank, (host, gpu) in enumerate(zip(self.of_host.tolist(), self.rail.tolist(), strict=True))
        )  # fmt: skip

    def counters(self) -> Mapping[Any, Any]:
        return {}

    def wrong_data(self) -> Sequence[Any]:
        return ()

    def loads(self) -> Sequence[Any]:
        return ()

    def nccl_diagnostics(self) -> None:
        return None

    def copies_unavailable(self) -> str:
        return ""

    def single_rank(
        self, what: str, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        work = {"memory": 2.0 * nbytes, "product": 2.0 * (nbytes / 4) ** 1.5}.get(what, float(nbytes))
        rate = self.single[what].copy()
        for one in self.fleet.episodes if what in ("memory", "product") else ():
            if one.part == "gpu" and one.begin <= self.now < one.end:
                rate[one.number] *= one.factor
        seconds = (6e-6 + work / rate)[:, None] * self.jitter(len(self.of_host), samples)
        self.now += 0.02 + 4 * float(seconds.max(axis=0).sum())
        active = np.ones(len(seconds), bool)
        if ranks is not None:
            active[:] = False
            active[list(ranks)] = True
        return np.where(active[:, None], seconds, np.nan)

    def copies(self, flows: Any, nbytes: int, samples: int) -> Seconds:
        return self.flows(flows, nbytes, samples)

    def flows(self, flows: Any, nbytes: int, samples: int) -> Seconds:
        ends = np.asarray(flows, np.int64).reshape(-1, 2)
        a, b = ends.T
        taken = self.over_time(a, b, nbytes, samples)
        # A rank sends and receives in one operation, which ends when both have ended.
        own = np.zeros((len(self.of_host), samples))
        np.maximum.at(own, a, taken)
        np.maximum.at(own, b, taken)
        return np.maximum(own[a], own[b])

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        if not groups:
            return np.empty((0, samples))
        sizes = np.array([len(group) for group in groups])
        a = np.concatenate([np.asarray(group) for group in groups])
        b = np.concatenate([np.roll(np.asarray(group), -1) for group in groups])
        hops = self.over_time(a, b, nbytes, samples)
        slowest = np.maximum.reduceat(hops, np.cumsum(sizes) - sizes, axis=0)
        return slowest * (2 * (sizes - 1) / sizes)[:, None]

    # --- physics

    def over_time(self, a: Any, b: Any, nbytes: int, samples: int) -> Seconds:
        """Return (flows, samples) seconds of each flow by itself, and let that time pass."""
        repeats = min(max((1 << 30) // max(nbytes, 1), 1), 16)
        known: dict[tuple[int, ...], Any] = {}
        found = np.empty((len(a), samples))
        hashes = self.hashes if self.fleet.static else self.rng.integers(1 << 40, size=self.hashes.shape)
        self.now += 0.02
        jitter = self.jitter(len(a), samples, self.of_host[a], self.of_host[b])
        for sample in range(samples):
            now = self.now
            state = tuple(n for n, one in enumerate(self.fleet.episodes) if one.begin <= now < one.end)
            if state not in known:
                known[state] = 15e-6 + nbytes / self.shares(a, b, state, hashes)
            found[:, sample] = known[state] * jitter[:, sample]
            self.now += repeats * float(found[:, sample].max(initial=0)) + 1e-4
        return found

    def jitter(self, rows: int, samples: int, *hosts: Any) -> Any:
        factor = np.exp(self.fleet.noise * self.rng.standard_normal((rows, samples)))
        late = self.rng.random((rows, samples)) < 0.003
        factor[late] *= 1 + self.rng.exponential(0.5, np.count_nonzero(late))
        for ends in hosts:
            shared = np.exp(self.fleet.noise / 3 * self.rng.standard_normal((len(self.hosts), samples)))
            factor *= shared[ends]
        return factor

    def shares(self, a: Any, b: Any, state: tuple[int, ...], hashes: Any) -> Any:
        """Return (flows,): the max-min fair rate of each flow, bytes/s."""
        send, receive = self.send.copy(), self.receive.copy()
        for number in state:
            one = self.fleet.episodes[number]
            if one.part == "gpu":
                continue
            some = self.nic == one.number if one.part == "nic" else self.of_host == one.number
            send[some] *= one.factor
            receive[some] *= one.factor
        ranks = len(self.of_host)
        outside = self.of_host[a] != self.of_host[b]
        from_nic, to_nic = self.nic[a], self.nic[b]
        crossing = outside & (self.leaf[a] != self.leaf[b])
        # Of each pair by itself: the product of two numbers, by a prime.
        cable = (hashes[0][a] % 65536) * (hashes[1][b] % 65536) % 65537 % self.fleet.cables
        cables = self.leaves * self.fleet.cables
        none = -1
        # Each row: the parts that a flow passes, by number; and the capacity of each part.
        parts, rates, begin = [], [], 0

        def passed(numbers: Any, where: Any, capacity: Any) -> None:
            nonlocal begin
            parts.append(np.where(where, numbers + begin, none))
            rates.append(capacity)
            begin += len(capacity)

        by_nvlink = ~outside & (not self.fleet.bridged or self.rail[a] // 2 == self.rail[b] // 2)
        for side in (a, b):
            passed(side, by_nvlink, self.nvlink)
            passed(side, ~outside & ~by_nvlink, self.sockets)
        passed(from_nic, outside, send)
        passed(to_nic, outside, receive)
        if self.fleet.duplex:
            both = np.full(ranks, np.inf)
            for nic, share in self.fleet.duplex.items():
                both[nic] = share * self.rate[nic]
            parts += [np.where(outside, from_nic + begin, none), np.where(outside, to_nic + begin, none)]
            rates.append(both)
            begin += ranks
        passed(self.leaf[a] * self.fleet.cables + cable, crossing, np.repeat(self.up, self.fleet.cables))
        passed(self.leaf[b] * self.fleet.cables + cable, crossing, np.repeat(self.down, self.fleet.cables))
        assert rates[-1].shape == (cables,)
        for (part, number), left in self.fleet.slow.items():
            if part in ("link", "one way"):
                one, other = number
                there = (self.of_host[a] == one) & (self.of_host[b] == other)
                back = (self.of_host[a] == other) & (self.of_host[b] == one)
                through = there | back if part == "link" else there
                # Each rail has its own path between the two hosts.
                slowest = self.rate[np.isin(self.of_host, number)].min()
                passed(a, through, np.full(ranks, left * slowest))
        return fair_shares(np.stack(parts), np.concatenate(rates))


def fair_shares(parts: Any, capacity: Any) -> Any:
    """Return max-min fair rates. parts: (most parts of a flow, flows), numbers of parts, -1 for none."""
    used, rate = parts >= 0, np.full(parts.shape[1], np.inf)
    index = np.where(used, parts, 0)
    size = len(capacity)
    limited = np.full(parts.shape[1], -1)  # the part that limits each flow
    for _ in range(SETTLING_STEPS):
        count = np.bincount(index[used], minlength=size).astype(float)
        if np.isinf(rate).any():
            share = capacity / np.maximum(count, 1)
        else:
            here = used & (parts == limited)
            bound = np.bincount(index[here], minlength=size)
            spent = np.zeros(size)
            elsewhere = used & (parts != limited)
            np.add.at(spent, index[elsewhere], np.broadcast_to(rate, parts.shape)[elsewhere])
            share = np.where(bound > 0, (capacity - spent) / np.maximum(bound, 1), capacity - spent)
            share = np.maximum(share, capacity / np.maximum(count, 1))
        of_flow = np.where(used, share[index], np.inf)
        new = of_flow.min(axis=0)
        limited = np.take_along_axis(parts, of_flow.argmin(axis=0)[None], axis=0)[0]
        if np.allclose(new, rate, rtol=1e-3):
            break
        rate = new
    return rate
