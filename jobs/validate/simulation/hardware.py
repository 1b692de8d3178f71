"""Parts of a simulated fleet: bandwidths, effects of faults, and the parts on a flow's path.

Bandwidths are measured ones of an HGX H200 with one 400 Gb/s NIC per GPU.

Equal shares: a part of c bytes/s crossed by k flows gives each of them c / k, and a flow's rate is the
smallest of its shares. Max-min sharing would redistribute what a flow limited elsewhere does not use; it
takes a step for each bottleneck, and here, where no two parts are equal, nearly every part is one. The two
agree if the flows through a part are alike, as those of a synchronized round are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jobs.validate.simulation.spec import Fault, FleetSpec

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Rates = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Parts = dict[str, Rates]  # bytes/s of each part; product: flop/s

NVLINK = 390e9  # each direction of a GPU, and of a pair
NIC = 48e9  # each direction
UPLINK = 50e9  # of a leaf switch, each direction of one cable
NOMINAL = {  # of each GPU
    "memory": 3.9e12,  # read and written
    "product": 50e12,  # float32
    "reduce": 600e9,  # summation in a ring by the GPU's cores
    "to_device": 55e9,
    "to_host": 55e9,
    "nvlink_out": NVLINK,
    "nvlink_in": NVLINK,
    "nic_send": NIC,
    "nic_receive": NIC,
    "port_in": NIC,  # of the leaf switch, from the NIC
    "port_out": NIC,
}
NICS = ("nic_send", "nic_receive")
UPLINKS = ("up", "down")
SLOWED = {  # parts that a fault slows; for a link between hosts see `Routes`
    "gpu": ("memory", "product", "reduce"),
    "pcie": ("to_device", "to_host"),
    "nvlink": ("nvlink_out", "nvlink_in"),
    "nvpair": ("pair",),
    "nic": NICS,
    "flap": NICS,
    "send": NICS[:1],
    "receive": NICS[1:],
    "host": ("to_device", "to_host", *NICS),
    "link": (),
    "rail": ("port_in", "port_out", *UPLINKS),
    "leaf": UPLINKS,
}


class FleetLayout:
    """Host, GPU number (= rail) and leaf switch of each rank. first: the lowest rank of each host."""

    def __init__(self, spec: FleetSpec) -> None:
        counts = np.array(spec.gpus, dtype=np.int64)
        self.first: Numbers = np.cumsum(counts) - counts
        self.host: Numbers = np.repeat(np.arange(spec.hosts), counts)
        self.gpu: Numbers = np.arange(len(self.host)) - self.first[self.host]
        self.leaf: Numbers = self.host // spec.leaf * spec.rails + self.gpu
        self.cables = max(1, round(spec.leaf / spec.oversubscription))  # uplinks of a leaf switch
        self.leaf_switches, self.rails = spec.leaf_switches, spec.rails

    def index(self, part: str, fault: Fault) -> Any:
        """Return the index of a fault in the array of a part."""
        if fault.kind == "leaf":
            return fault.where[0]
        if fault.kind == "rail":
            rail = fault.gpus[0]
            return slice(rail, None, self.rails) if part in UPLINKS else self.gpu == rail
        host = fault.hosts[0]
        if fault.kind == "host":
            return self.host == host
        ranks = [int(self.first[host]) + gpu for gpu in fault.gpus]
        return (ranks, fault.gpus[::-1]) if part == "pair" else ranks


def nominal(layout: FleetLayout, uplinks: float) -> Parts:
    """Return all parts of a fleet without faults. uplinks: bytes/s of one leaf switch, each direction.

    pair[rank, i]: from that rank to GPU i of its host.
    """
    ranks = len(layout.host)
    parts = {name: np.full(ranks, rate) for name, rate in NOMINAL.items()}
    parts["pair"] = np.full((ranks, layout.rails), NVLINK)
    return parts | {name: np.full(layout.leaf_switches, uplinks) for name in UPLINKS}


def slowed(parts: Parts, fault: Fault, layout: FleetLayout) -> Parts:
    """Return the parts with a fault. Several faults on one part multiply."""
    parts = dict(parts)
    for name in SLOWED[fault.kind]:
        parts[name] = parts[name].copy()
        parts[name][layout.index(name, fault)] *= fault.factor
    return parts


class Routes:
    """Simultaneous flows from ranks `sender` to ranks `receiver`. links: faults of paths between hosts."""

    def __init__(
        self, layout: FleetLayout, sender: Numbers, receiver: Numbers, links: Iterable[Fault]
    ) -> None:
        self.sender, self.receiver = sender, receiver
        self.from_host, self.to_host = layout.host[sender], layout.host[receiver]
        self.outside: Mask = self.from_host != self.to_host
        self.pair = sender * layout.rails + layout.gpu[receiver]
        self.from_leaf, self.to_leaf = layout.leaf[sender], layout.leaf[receiver]
        self.spine: Mask = self.outside & (self.from_leaf != self.to_leaf)
        self.links = list(links)

    def rates(self, parts: Parts) -> Rates:
        """Return the bytes/s of each flow."""
        rates = np.empty(len(self.sender))
        rates[~self.outside] = self._inside(parts, ~self.outside)
        rates[self.outside] = self._outside(parts, self.outside)
        for name, leaf in (("up", self.from_leaf), ("down", self.to_leaf)):
            shares = _share(parts[name], leaf[self.spine])
            rates[self.spine] = np.minimum(rates[self.spine], shares)
        for fault in self.links:
            flows = np.flatnonzero(self._between(*fault.hosts))
            _, path, count = np.unique(
                self.sender[flows] * len(parts["memory"]) + self.receiver[flows],
                return_inverse=True,
                return_counts=True,
            )
            rates[flows] = np.minimum(rates[flows], fault.factor * NIC / count[path])
        return rates

    def _inside(self, parts: Parts, flows: Mask) -> Rates:
        half = parts["memory"] / 2  # a GPU may read what it sends and write what it receives at once
        leaving = np.minimum(parts["nvlink_out"], half)
        entering = np.minimum(parts["nvlink_in"], half)
        shares = _share(leaving, self.sender[flows]), _share(entering, self.receiver[flows])
        return np.minimum(np.minimum(*shares), _share(parts["pair"].ravel(), self.pair[flows]))

    def _outside(self, parts: Parts, flows: Mask) -> Rates:
        half = parts["memory"] / 2
        leaving = np.minimum.reduce([parts["nic_send"], parts["port_in"], parts["to_host"], half])
        entering = np.minimum.reduce([parts["nic_receive"], parts["port_out"], parts["to_device"], half])
        return np.minimum(_share(leaving, self.sender[flows]), _share(entering, self.receiver[flows]))

    def _between(self, one: int, other: int) -> Mask:
        there = (self.from_host == one) & (self.to_host == other)
        back = (self.from_host == other) & (self.to_host == one)
        return np.asarray(there | back)


def _share(capacity: Rates, part: Numbers) -> Rates:
    """Return each flow's share of the part that it crosses."""
    return capacity[part] / np.bincount(part, minlength=len(capacity))[part]
