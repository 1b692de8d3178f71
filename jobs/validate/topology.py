"""Hosts and rails of a probe's ranks, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.validate.probe.api import Probe
from jobs.validate.verdict import Unit

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Topology:
    """names: host names. host, gpu: (ranks,) int64, position of each rank; GPU i of each host is on rail i.

    at: (hosts, rails) int64, the rank of each GPU, -1 for none. unit: what ranks compute on.
    """

    names: tuple[str, ...]
    host: Ints
    gpu: Ints
    at: Ints
    unit: Unit = "GPU"

    @property
    def ranks(self) -> int:
        return len(self.host)

    @property
    def hosts(self) -> int:
        return len(self.names)

    @property
    def rails(self) -> int:
        return int(self.at.shape[1])

    def on(self, host: int) -> Ints:
        """Return the ranks of a host, ordered by GPU."""
        row = self.at[host]
        return np.asarray(row[row >= 0])

    def rail(self, gpu: int) -> Ints:
        """Return the ranks of a rail, ordered by host."""
        column = self.at[:, gpu]
        return np.asarray(column[column >= 0])


def topology_of(probe: Probe) -> Topology:
    host = np.array([place.host for place in probe.places], np.int64)
    gpu = np.array([place.gpu for place in probe.places], np.int64)
    at = np.full((len(probe.hosts), int(gpu.max()) + 1), -1, np.int64)
    at[host, gpu] = np.arange(len(host))
    return Topology(tuple(probe.hosts), host, gpu, at, probe.unit)
