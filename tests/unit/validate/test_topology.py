"""Topology: what is a sibling of what, by path type, GPU model and NIC."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from meshrun.jobs.validate.probe.api import Probe, RankPlace
from meshrun.jobs.validate.topology import Topology, topology_of


def topology(*places: RankPlace) -> Topology:
    hosts = [f"h{number}" for number in range(1 + max(place.host for place in places))]
    probe: Any = SimpleNamespace(hosts=hosts, places=places, unit="GPU")
    return topology_of(cast(Probe, probe))


def pairs(of: Topology) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.nonzero(~np.eye(of.ranks, dtype=bool) & (of.host[:, None] == of.host))
    return a, b


def test_without_data_everything_is_of_one_kind() -> None:
    found = topology(*(RankPlace(rank, rank // 4, rank % 4) for rank in range(8)))
    assert set(found.path_kind(*pairs(found)).tolist()) == {0}
    assert set(found.kind.tolist()) == {0}
    assert found.number.tolist() == [0, 1, 2, 3] * 2
    assert found.nic_names == ("",) * 8
    assert len(set(found.nic.tolist())) == 8


def test_pairs_are_classed_by_path_type() -> None:
    """Two bridged pairs in a host of two sockets; the other host has none."""
    bridged = [("X", "NV4", "SYS", "SYS"), ("NV4", "X", "SYS", "SYS"), ("SYS", "SYS", "X", "NV4"),
               ("SYS", "SYS", "NV4", "X")]  # fmt: skip
    plain = [("X", "PHB", "SYS", "SYS"), ("PHB", "X", "SYS", "SYS"), ("SYS", "SYS", "X", "PHB"),
             ("SYS", "SYS", "PHB", "X")]  # fmt: skip
    found = topology(
        *(RankPlace(rank, 0, rank, paths=bridged[rank]) for rank in range(4)),
        *(RankPlace(4 + rank, 1, rank, paths=plain[rank]) for rank in range(4)),
    )
    kinds = dict(zip(zip(*pairs(found), strict=True), found.path_kind(*pairs(found)).tolist(), strict=True))
    assert kinds[0, 1] == kinds[3, 2] != kinds[0, 2]
    assert kinds[0, 2] == kinds[4, 6] == kinds[7, 5]
    assert kinds[4, 5] not in (kinds[0, 1], kinds[0, 2])


def test_pairs_of_other_models_are_of_another_kind() -> None:
    models = ["NVIDIA H100", "NVIDIA H100", "NVIDIA A100", "NVIDIA A100"]
    found = topology(*(RankPlace(rank, rank // 2, rank % 2, model=models[rank]) for rank in range(4)))
    assert found.kind.tolist() == [0, 0, 1, 1]
    one, other = found.path_kind(np.array([0, 2]), np.array([1, 3])).tolist()
    assert one != other


def test_kinds_of_ranks_differ_by_nic_model_too() -> None:
    found = topology(RankPlace(0, 0, 0, nic_model="400"), RankPlace(1, 1, 0, nic_model="200"))
    assert found.kind.tolist() == [0, 1]


def test_ranks_share_the_nic_of_their_host_only() -> None:
    found = topology(
        *(RankPlace(rank, rank // 4, rank % 4, nic=f"mlx5_{rank % 4 // 2} port 1") for rank in range(8))
    )
    assert found.nic.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.nic_names == ("mlx5_0 port 1", "mlx5_1 port 1") * 2


def test_the_number_is_the_physical_one() -> None:
    found = topology(RankPlace(0, 0, 0, number=3), RankPlace(1, 0, 1, number=1), RankPlace(2, 1, 0))
    assert found.number.tolist() == [3, 1, 0]
