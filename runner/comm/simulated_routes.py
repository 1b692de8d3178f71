"""Which parts of a simulated fleet each of many flows crosses, and the rate that is left for it.

Equal shares: a part of c bytes/s that k flows cross gives each of them c / k, and the smallest of a flow's
shares is its rate. Max-min sharing would hand on what a flow held back elsewhere leaves over; that takes a
step for each bottleneck, and here, where no two parts are equal, nearly every part is one. The two agree
wherever the flows through a part are alike, as those of a round in step are.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from runner.comm.simulated_faults import Fault
from runner.comm.simulated_parts import NIC, Layout, Mask, Numbers, Parts, Rates


class Routes:
    """Flows from ranks `sender` to ranks `receiver`, all at once. links: faults of paths between hosts."""

    def __init__(self, layout: Layout, sender: Numbers, receiver: Numbers, links: Iterable[Fault]) -> None:
        self.sender, self.receiver = sender, receiver
        self.from_host, self.to_host = layout.host[sender], layout.host[receiver]
        self.outside: Mask = self.from_host != self.to_host
        self.pair = sender * layout.rails + layout.gpu[receiver]
        self.from_leaf, self.to_leaf = layout.leaf[sender], layout.leaf[receiver]
        self.spine: Mask = self.outside & (self.from_leaf != self.to_leaf)
        self.links = list(links)

    def rates(self, parts: Parts) -> Rates:
        """bytes/s of each flow."""
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
    """What each flow gets of the part that it crosses."""
    return capacity[part] / np.bincount(part, minlength=len(capacity))[part]
