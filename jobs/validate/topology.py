"""Hosts and rails of a probe's ranks, as arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from meshrun.jobs.validate.probe.api import Probe
from meshrun.jobs.validate.verdict import Unit

Ints = np.ndarray[Any, np.dtype[np.int64]]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Topology:
    """names: host names. host, gpu: (ranks,) int64, position of each rank; GPU i of each host is on rail i.

    at: (hosts, rails) int64, the rank of each GPU, -1 for none. unit: what ranks compute on.

    Also (ranks,) int64: number: of each GPU as nvidia-smi counts, for reports (its position if unknown).
    kind: ranks with the same GPU and NIC model have the same; others are not siblings. nic_kind: those with
    the same NIC model. nic: equal for ranks that share one; nic_names: by its number, "" if unknown.
    path: (ranks, rails) int64, class of the path from each rank to GPU i of its host; over_pcie: (ranks,
    rails) bool, whether it has no NVLink. domain: (ranks,) int64, the same for ranks of one NVLink network.
    pxn: flows across rails may leave through another GPU's NIC.
    """

    names: tuple[str, ...]
    host: Ints
    gpu: Ints
    at: Ints
    number: Ints
    kind: Ints
    nic_kind: Ints
    nic: Ints
    nic_names: tuple[str, ...]
    path: Ints
    over_pcie: np.ndarray[Any, np.dtype[np.bool_]]
    domain: Ints
    pxn: bool = False
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

    @property
    def owner(self) -> Ints:
        """Return (ranks,): the lowest rank that has the same NIC as each one."""
        return np.asarray(np.unique(self.nic, return_index=True)[1][self.nic])

    def sharing(self, rank: int) -> Ints:
        """Return the ranks that have the NIC of this one."""
        return np.flatnonzero(self.nic == self.nic[rank])

    def rail(self, gpu: int) -> Ints:
        """Return the ranks of a rail, ordered by host."""
        column = self.at[:, gpu]
        return np.asarray(column[column >= 0])

    def path_kind(self, a: Ints, b: Ints) -> Ints:
        """Return the class of each pair of ranks (a[i], b[i]) of a host: path type, and kinds of both ends.

        Pairs of different classes are not siblings.
        """
        return np.asarray(self.path[a, self.gpu[b]] * (self.kind.max() + 1) ** 2 + unordered(self.kind, a, b))

    def over_nvlink(self, a: Ints, b: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return whether each flow from rank a[i] to b[i] stays in one NVLink network, and needs no NIC."""
        return np.asarray(self.domain[a] == self.domain[b])


def topology_of(probe: Probe) -> Topology:
    places = probe.places
    host = np.array([place.host for place in places], np.int64)
    gpu = np.array([place.gpu for place in places], np.int64)
    at = np.full((len(probe.hosts), int(gpu.max()) + 1), -1, np.int64)
    at[host, gpu] = np.arange(len(host))
    number = np.array([place.gpu if place.number is None else place.number for place in places], np.int64)
    kind, _ = classes([(place.model, place.nic_model) for place in places])
    nic_kind, _ = classes([place.nic_model for place in places])
    nic, owners = classes([(place.host, place.nic or place.rank) for place in places])
    named = tuple(name if isinstance(name, str) else "" for _, name in owners)
    words = {"": 0}
    domain, _ = classes([place.domain or place.host for place in places])
    # Of the ranks with the same paths on the same rails, once.
    rails = [tuple(np.flatnonzero(of_host >= 0).tolist()) for of_host in at]
    alike, patterns = classes([(place.paths, rails[place.host]) for place in places])
    path_of = np.zeros((len(patterns), at.shape[1]), np.int64)
    for row, (paths, columns) in enumerate(patterns):
        for column, word in zip(columns, paths, strict=False):
            path_of[row, column] = words.setdefault(word, len(words))
    path = path_of[alike]
    without = np.array([word != "" and not word.startswith("NV") for word in words])
    return Topology(
        tuple(probe.hosts), host, gpu, at, number, kind, nic_kind, nic, named, path, without[path], domain,
        any(place.pxn for place in places), probe.unit,
    )  # fmt: skip


def unordered(number: Ints, a: Ints, b: Ints) -> Ints:
    """Return one number for each two of `number[a]` and `number[b]`, in any order."""
    low, high = np.minimum(number[a], number[b]), np.maximum(number[a], number[b])
    return np.asarray(low * (number.max() + 1) + high, np.int64)


def classes(values: Sequence[Key]) -> tuple[Ints, list[Key]]:
    """Number the distinct values in order of appearance. Returns the number of each, and the values."""
    numbers: dict[Key, int] = {}
    found = [numbers.setdefault(value, len(numbers)) for value in values]
    return np.array(found, np.int64), list(numbers)
