"""The parts of a simulated fleet with their bandwidths, and what each kind of fault slows down.

Figures are those of an HGX H200 with one 400 Gb/s NIC a GPU, as measured, not as printed on the box.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.comm.simulated_faults import Fault
from runner.comm.simulated_spec import FleetSpec

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
    "reduce": 600e9,  # what the GPU's cores sum up in a ring
    "to_device": 55e9,
    "to_host": 55e9,
    "nvlink_out": NVLINK,
    "nvlink_in": NVLINK,
    "nic_send": NIC,
    "nic_receive": NIC,
    "port_in": NIC,  # of the leaf switch, where the NIC sends to
    "port_out": NIC,
}
NICS = ("nic_send", "nic_receive")
UPLINKS = ("up", "down")
SLOWED = {  # by a fault; a link between hosts is no part but a way through many, see `Routes`
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


class Layout:
    """Which host, GPU number (= rail) and leaf switch each rank has. first: the lowest rank of each host."""

    def __init__(self, spec: FleetSpec) -> None:
        counts = np.array(spec.gpus, dtype=np.int64)
        self.first: Numbers = np.cumsum(counts) - counts
        self.host: Numbers = np.repeat(np.arange(spec.hosts), counts)
        self.gpu: Numbers = np.arange(len(self.host)) - self.first[self.host]
        self.leaf: Numbers = self.host // spec.leaf * spec.rails + self.gpu
        self.cables = max(1, round(spec.leaf / spec.oversubscription))  # uplinks of a leaf switch
        self.leaves, self.rails = spec.leaves, spec.rails

    def index(self, part: str, fault: Fault) -> Any:
        """Where in the array of a part a fault is."""
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


def nominal(layout: Layout, uplinks: float) -> Parts:
    """All parts of a fleet without faults. uplinks: bytes/s of those of one leaf switch, each direction.

    pair[rank, i]: from that rank to GPU i of its host.
    """
    ranks = len(layout.host)
    parts = {name: np.full(ranks, rate) for name, rate in NOMINAL.items()}
    parts["pair"] = np.full((ranks, layout.rails), NVLINK)
    return parts | {name: np.full(layout.leaves, uplinks) for name in UPLINKS}


def slowed(parts: Parts, fault: Fault, layout: Layout) -> Parts:
    """The same with a fault. Two on one part multiply; of parts in a row the slowest decides (`Routes`)."""
    parts = dict(parts)
    for name in SLOWED[fault.kind]:
        parts[name] = parts[name].copy()
        parts[name][layout.index(name, fault)] *= fault.factor
    return parts
