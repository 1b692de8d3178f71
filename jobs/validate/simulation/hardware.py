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

from meshrun.jobs.validate.simulation.spec import Fault, FleetSpec

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
    "switch_to_device": 55e9,  # of a PCIe switch, by the first rank behind it
    "switch_to_host": 55e9,
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
    "host": ("to_device", "to_host", "switch_to_device", "switch_to_host", *NICS),
    "link": (),
    "oneway": (),
    "stall": NICS,
    "all-nics": NICS,
    "rail": ("port_in", "port_out", *UPLINKS),
    "leaf": UPLINKS,
}


TCP = 1.2e9  # of a NIC, through the processor
# Rates of other GPUs and of their hosts' links, where they differ from NOMINAL.
OTHER_MODELS: dict[str, dict[str, float]] = {
    "H200": {},
    "H100": {"memory": 2.6e12},
    "A100": {
        "memory": 1.6e12, "product": 18e12, "reduce": 300e9, "to_device": 25e9, "to_host": 25e9,
        "switch_to_device": 25e9, "switch_to_host": 25e9,
        "nvlink_out": 240e9, "nvlink_in": 240e9, "nic_send": 24e9, "nic_receive": 24e9,
    },
}  # fmt: skip
# Between the GPUs of a host without NVSwitch, bytes/s of a pair in each direction, by path type.
PATHS = {"NV1": 22e9, "NV2": 44e9, "NV4": 90e9, "PHB": 20e9, "SYS": 12e9}
SOCKETS = 36e9  # between a host's two sockets, each direction, shared by all


# As the driver names them, on boards for NVSwitch and on others.
DRIVER_NAMES = {
    "H200": ("NVIDIA H200", "NVIDIA H200 NVL"),
    "H100": ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"),
    "A100": ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
}


PORTS = {"H200": "400 Gb/s", "H100": "400 Gb/s", "A100": "200 Gb/s"}  # of the NICs of their hosts


def driver_name(model: str, nvlink: str) -> str:
    return DRIVER_NAMES[model][nvlink != "switch"]


def path_type(nvlink: str, gpus: int, a: int, b: int) -> str:
    """Return the type of the path between GPUs a and b of a host, as `nvidia-smi topo -m` has it.

    mesh: NV2 to the next GPU (in a ring of its four) and to the twin in the other four, NV1 across the four.
    """
    if a == b:
        return "X"
    if nvlink == "switch":
        return "NV18"
    if nvlink == "bridge" and a // 2 == b // 2:
        return "NV4"
    if nvlink == "mesh" and a // 4 == b // 4:
        return "NV1" if (a - b) % 4 == 2 else "NV2"
    if nvlink == "mesh" and a % 4 == b % 4:
        return "NV2"
    return "PHB" if 2 * a // gpus == 2 * b // gpus else "SYS"


class FleetLayout:
    """Host, GPU number (= rail) and leaf switch of each rank. first: the lowest rank of each host.

    nic, switch: the lowest rank that has the same NIC, and the same PCIe switch. domain: its NVLink network.
    paths: for each number of GPUs of a host, the types of paths between them.
    """

    def __init__(self, spec: FleetSpec) -> None:
        counts = np.array(spec.gpus, dtype=np.int64)
        self.first: Numbers = np.cumsum(counts) - counts
        self.host: Numbers = np.repeat(np.arange(spec.hosts), counts)
        self.gpu: Numbers = np.arange(len(self.host)) - self.first[self.host]
        on_host, count = np.arange(len(self.host)) - self.gpu, counts[self.host]
        nics = np.minimum(spec.nics or count, count)
        first_of_nic = -(-(self.gpu * nics // count) * count // nics)
        self.nic: Numbers = on_host + first_of_nic
        self.switch: Numbers = on_host + self.gpu // spec.pcie * spec.pcie
        self.domain: Numbers = self.host // spec.domain
        self.leaf: Numbers = self.host // spec.leaf * spec.rails + self.gpu[self.nic]
        self.cables = max(1, round(spec.leaf / spec.oversubscription))  # uplinks of a leaf switch
        self.leaf_switches, self.rails = spec.leaf_switches, spec.rails
        self.rank_at: Numbers = np.full((spec.hosts, spec.rails), -1, np.int64)
        self.rank_at[self.host, self.gpu] = np.arange(len(self.host))
        self.pxn = spec.pxn
        self.switched = spec.nvlink == "switch"
        self.paths = {
            gpus: tuple(tuple(path_type(spec.nvlink, gpus, a, b) for b in range(gpus)) for a in range(gpus))
            for gpus in set(spec.gpus)
        }

    def index(self, part: str, fault: Fault) -> Any:
        """Return the index of a fault in the array of a part."""
        if fault.kind == "leaf":
            return fault.where[0]
        if fault.kind == "all-nics":
            return slice(None)
        if fault.kind == "rail":
            rail = fault.gpus[0]
            return slice(rail, None, self.rails) if part in UPLINKS else np.unique(self.nic[self.gpu == rail])
        host = fault.hosts[0]
        if fault.kind == "host":
            return self.host == host
        ranks = [int(self.first[host]) + gpu for gpu in fault.gpus]
        if part == "pair":
            return ranks, fault.gpus[::-1]
        return self.nic[ranks] if part in NICS else ranks


def nominal(layout: FleetLayout, spec: FleetSpec) -> Parts:
    """Return all parts of a fleet without faults.

    pair[rank, i]: from that rank to GPU i of its host. up, down: of a leaf switch, all uplinks together.
    """
    ranks = len(layout.host)
    model = np.arange(spec.hosts)[layout.host] % len(spec.models)
    parts = {
        name: np.array([OTHER_MODELS[kind].get(name, rate) for kind in spec.models])[model]
        for name, rate in NOMINAL.items()
    }
    for name in ("nic_send", "nic_receive", "port_in", "port_out"):
        if spec.fallback == "tcp":
            parts[name] = np.full(ranks, TCP)
        # A GPU with several NICs sends through all of them alike.
        parts[name] = parts[name] * np.maximum(spec.nics // np.array(spec.gpus)[layout.host], 1)
    pair = np.repeat(parts["nvlink_out"][:, np.newaxis], layout.rails, axis=1)
    if not layout.switched:
        for rank, (host, gpu) in enumerate(zip(layout.host.tolist(), layout.gpu.tolist(), strict=True)):
            types = layout.paths[spec.gpus[host]][gpu]
            pair[rank, : len(types)] = [PATHS.get(one, NVLINK) for one in types]
    parts["pair"] = pair
    parts["sockets"] = np.full(2 * spec.hosts, SOCKETS)  # of each host there, then back
    uplinks = spec.leaf * UPLINK / spec.oversubscription
    return parts | {name: np.full(layout.leaf_switches, uplinks) for name in UPLINKS}


def slowed(parts: Parts, fault: Fault, layout: FleetLayout, factor: float | None = None) -> Parts:
    """Return the parts with a fault. Several faults on one part multiply. factor: instead of the fault's."""
    parts = dict(parts)
    for name in SLOWED[fault.kind]:
        parts[name] = parts[name].copy()
        parts[name][layout.index(name, fault)] *= fault.factor if factor is None else factor
    if fault.kind == "nvlink" and not layout.switched:
        parts["pair"] = _without_nvlinks(parts["pair"], fault, layout)
    return parts


def _without_nvlinks(pair: Rates, fault: Fault, layout: FleetLayout) -> Rates:
    """Return `pair` with a GPU's NVLinks slower, where they lead to single other GPUs."""
    pair, (host, gpu) = pair.copy(), fault.where
    types = layout.paths[int((layout.host == host).sum())][gpu]
    for other in (other for other, kind in enumerate(types) if kind.startswith("NV")):
        for a, b in ((gpu, other), (other, gpu)):
            pair[layout.first[host] + a, b] *= fault.factor
    return pair


class Routes:
    """Simultaneous flows from ranks `sender` to ranks `receiver`. links: faults of paths between hosts.

    source: the rank whose NIC a flow leaves through: with PXN, the one on the destination's rail. cable: the
    number of the path through the spine that the hash of a flow's ranks selects, for good.
    """

    def __init__(
        self,
        layout: FleetLayout,
        sender: Numbers,
        receiver: Numbers,
        links: Iterable[Fault],
        ecmp: int = 0,
        seed: int = 0,
    ) -> None:
        self.layout, self.ecmp = layout, ecmp
        self.sender, self.receiver = sender, receiver
        self.from_host, self.to_host = layout.host[sender], layout.host[receiver]
        self.outside: Mask = layout.domain[sender] != layout.domain[receiver]
        self.local: Mask = self.from_host == self.to_host
        self.pair = sender * layout.rails + layout.gpu[receiver]
        self.source = sender
        if layout.pxn:
            there = layout.rank_at[self.from_host, layout.gpu[receiver]]
            self.source = np.where(self.outside & (there >= 0), there, sender)
        self.from_nic, self.to_nic = layout.nic[self.source], layout.nic[receiver]
        self.from_leaf, self.to_leaf = layout.leaf[self.source], layout.leaf[receiver]
        self.spine: Mask = self.outside & (self.from_leaf != self.to_leaf)
        self.cable = _hashed(self.source, receiver, seed) % max(ecmp, 1)
        self.links = list(links)

    def rates(self, parts: Parts) -> Rates:
        """Return the bytes/s of each flow."""
        rates = np.empty(len(self.sender))
        rates[~self.outside] = self._inside(parts, ~self.outside)
        rates[self.outside] = self._outside(parts, self.outside)
        for name, leaf in (("up", self.from_leaf), ("down", self.to_leaf)):
            cables = np.repeat(parts[name] / max(self.ecmp, 1), max(self.ecmp, 1))
            shares = _share(cables, (leaf * max(self.ecmp, 1) + self.cable)[self.spine])
            rates[self.spine] = np.minimum(rates[self.spine], shares)
        for fault in self.links:
            flows = np.flatnonzero(self._between(fault))
            _, path, count = np.unique(
                self.sender[flows] * len(parts["memory"]) + self.receiver[flows],
                return_inverse=True,
                return_counts=True,
            )
            nic = parts["port_in"][self.from_nic[flows]]
            rates[flows] = np.minimum(rates[flows], fault.factor * nic / count[path])
        return rates

    def _inside(self, parts: Parts, flows: Mask) -> Rates:
        half = parts["memory"] / 2  # a GPU may read what it sends and write what it receives at once
        leaving = np.minimum(parts["nvlink_out"], half)
        entering = np.minimum(parts["nvlink_in"], half)
        shares = _share(leaving, self.sender[flows]), _share(entering, self.receiver[flows])
        rates = np.minimum(*shares)
        local = self.local[flows]
        pair = _share(parts["pair"].ravel(), self.pair[flows & self.local])
        rates[local] = np.minimum(rates[local], pair)
        return rates if self.layout.switched else np.minimum(rates, self._over_pcie(parts, flows))

    def _over_pcie(self, parts: Parts, flows: Mask) -> Rates:
        """Return what PCIe and the link between the sockets leave to flows without an NVLink."""
        layout, rates = self.layout, np.full(np.count_nonzero(flows), np.inf)
        sender, receiver = self.sender[flows], self.receiver[flows]
        host = layout.host[sender]
        gpus = np.bincount(layout.host)[host]
        kinds = [
            layout.paths[count][a][b] if same else "X"
            for count, a, b, same in zip(
                gpus.tolist(),
                layout.gpu[sender].tolist(),
                layout.gpu[receiver].tolist(),
                self.local[flows].tolist(),
                strict=True,
            )
        ]
        pcie = np.array([kind in ("PHB", "SYS") for kind in kinds], dtype=np.bool_)
        across = np.array([kind == "SYS" for kind in kinds], dtype=np.bool_)
        shares = [
            _share(parts[name], ranks[pcie]) for name, ranks in (("to_host", sender), ("to_device", receiver))
        ]
        rates[pcie] = np.minimum(*shares)
        back = (layout.gpu[sender] > layout.gpu[receiver])[across]
        sockets = _share(parts["sockets"], 2 * host[across] + back)
        rates[across] = np.minimum(rates[across], sockets)
        return rates

    def _outside(self, parts: Parts, flows: Mask) -> Rates:
        half = parts["memory"] / 2
        leaving, entering = np.minimum(parts["to_host"], half), np.minimum(parts["to_device"], half)
        send = np.minimum(parts["nic_send"], parts["port_in"])
        receive = np.minimum(parts["nic_receive"], parts["port_out"])
        shares = [
            _share(leaving, self.source[flows]),
            _share(entering, self.receiver[flows]),
            _share(send, self.from_nic[flows]),
            _share(receive, self.to_nic[flows]),
        ]
        return np.asarray(np.minimum.reduce(shares))

    def _between(self, fault: Fault) -> Mask:
        one, other = fault.hosts
        there = (self.from_host == one) & (self.to_host == other)
        back = (self.from_host == other) & (self.to_host == one)
        return np.asarray(self.outside & (there | back if fault.kind == "link" else there))


def _hashed(a: Numbers, b: Numbers, seed: int) -> Numbers:
    """Return a fixed pseudo-random number of each pair (splitmix64's finalizer)."""
    with np.errstate(over="ignore"):
        x = a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + b.astype(np.uint64)
        x += np.uint64(seed % 2**32) * np.uint64(0xD1B54A32D192ED03)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray((x >> np.uint64(33)).astype(np.int64))


def _share(capacity: Rates, part: Numbers) -> Rates:
    """Return each flow's share of the part that it crosses."""
    return capacity[part] / np.bincount(part, minlength=len(capacity))[part]
