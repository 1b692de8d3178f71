"""Wire rates, against published runs and against bytes counted by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from meshrun.jobs.measure.link_rates import (
    INSIDE,
    OUTSIDE,
    Algorithm,
    Assumed,
    RankLayout,
    assumed_algorithm,
    percent,
    wire_rate,
)
from meshrun.runner.comm.collectives.api import OPERATIONS


def rate(operation: str, layout: RankLayout, algorithm: Algorithm, algbw: float, busbw: float) -> float:
    found = wire_rate(operation, layout, Assumed(algorithm, "set"), algbw, busbw)
    assert found.rate is not None, found.assumption
    return found.rate


def all_reduce(layout: RankLayout, algorithm: Algorithm, busbw: float) -> float:
    n = layout.ranks
    return rate("all_reduce", layout, algorithm, busbw * n / (2 * (n - 1)), busbw)


@pytest.mark.parametrize(
    ("ranks", "busbw", "wire"),
    [
        # H200, 8 GiB
        (5, 414.2, 310.6),
        (6, 435.6, 304.9),
        (7, 460.0, 306.7),
        (8, 473.1, 304.1),
        # B200, 8 GiB
        (6, 778.2, 544.7),
        (7, 811.2, 540.8),
        (8, 838.0, 538.7),
    ],
)
def test_nvls_carries_the_same_whatever_the_number_of_gpus(ranks: int, busbw: float, wire: float) -> None:
    assert all_reduce(RankLayout(ranks), "nvls", busbw) == pytest.approx(wire, abs=0.06)


def test_nvls_and_a_ring_break_even_at_four_gpus() -> None:
    """At the wire efficiencies published for the H200, NVLS's 305 GB/s gives the busbw of the ring's 363."""
    assert all_reduce(RankLayout(4), "nvls", 366.0) == pytest.approx(305.0)
    assert all_reduce(RankLayout(4), "ring", 363.0) == 363.0


@pytest.mark.parametrize(
    ("layout", "algorithm", "busbw", "nic"),
    [
        (RankLayout(64, 8), "ring", 386.0, 48.3),  # 64 H100, 8 x 400G a host
        (RankLayout(16, 2), "tree", 487.0, 32.5),  # 2 hosts of 8 H100
        (RankLayout(16, 2), "ring", 487.0, 60.9),  # more than its NICs have: it was no ring
        (RankLayout(32, 4), "ring", 381.8, 47.7),  # 4 hosts of 8 B200
        (RankLayout(32, 4), "tree", 381.8, 36.9),
        (RankLayout(16, 2), "nvls", 750.0, 50.0),  # the ceiling of a hierarchical one
        (RankLayout(4, 4), "ring", 40.0, 40.0),  # a rail: one GPU a host
        (RankLayout(4, 4), "tree", 40.0, 40.0),
    ],
)
def test_a_nic_of_several_hosts(layout: RankLayout, algorithm: Algorithm, busbw: float, nic: float) -> None:
    assert all_reduce(layout, algorithm, busbw) == pytest.approx(nic, abs=0.06)


def test_collnet_crosses_the_network_once() -> None:
    assert rate("all_reduce", RankLayout(64, 8), "collnet", 195.0, 386.0) == pytest.approx(24.4, abs=0.06)


def test_alltoall_on_two_hosts_at_its_ceiling() -> None:
    """16 GPUs on 2 hosts with NICs of 50 GB/s: busbw of 93.75."""
    assert rate("alltoall", RankLayout(16, 2), "direct", 100.0, 93.75) == pytest.approx(50.0)


# Bytes counted message by message, for a size S of 1 in a time of 1.


def hosts(layout: RankLayout) -> list[int]:
    return [rank // layout.per_host for rank in range(layout.ranks)]


def messages(operation: str, n: int) -> list[tuple[int, int, float]]:
    """(from, to, bytes) of an operation of nccl-tests' size 1, made of direct messages."""
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    if operation == "sendrecv":
        return [(i, (i + 1) % n, 1.0) for i in range(n)]
    if operation == "hypercube":
        steps = [1 << bit for bit in range(n.bit_length() - 1)]
        return [(i, i ^ mask, mask / (n - 1)) for mask in steps for i in range(n)]
    wanted = {"gather": lambda i, j: j == 0, "scatter": lambda i, j: i == 0, "alltoall": lambda i, j: True}
    return [(i, j, 1 / n) for i, j in pairs if wanted[operation](i, j)]


@pytest.mark.parametrize("operation", ["alltoall", "gather", "scatter", "sendrecv", "hypercube"])
@pytest.mark.parametrize(
    "layout", [RankLayout(2), RankLayout(8), RankLayout(8, 2), RankLayout(8, 4), RankLayout(8, 8)], ids=str
)
def test_direct_messages(operation: str, layout: RankLayout) -> None:
    n, host = layout.ranks, hosts(layout)
    sent, received = [0.0] * n, [0.0] * n
    for source, target, size in messages(operation, n):
        if layout.hosts == 1 or host[source] != host[target]:
            sent[source] += size
            received[target] += size
    busbw = 1.0 if operation in ("sendrecv", "hypercube") else (n - 1) / n
    assert rate(operation, layout, "direct", 1.0, busbw) == pytest.approx(max(sent + received))


@pytest.mark.parametrize("n", [2, 5, 8])
def test_rings_inside_a_host(n: int) -> None:
    steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}
    for operation, blocks in steps.items():
        assert rate(operation, RankLayout(n), "ring", 1.0, blocks / n) == blocks * (1 / n)
    for operation in ("broadcast", "reduce"):
        assert rate(operation, RankLayout(n), "ring", 1.0, 1.0) == 1.0


@pytest.mark.parametrize(("k", "g"), [(2, 8), (4, 2), (3, 1)])
def test_rings_over_hosts_share_the_nics(k: int, g: int) -> None:
    n = k * g
    for operation, blocks in {
        "all_reduce": 2 * (n - 1),
        "all_gather": n - 1,
        "reduce_scatter": n - 1,
    }.items():
        # A ring that enters a host once carries `blocks` blocks of 1/n over that link; g rings have 1/g each.
        expected = blocks / n / g
        assert rate(operation, RankLayout(n, k), "ring", 1.0, blocks / n) == pytest.approx(expected)
    for operation in ("broadcast", "reduce"):
        assert rate(operation, RankLayout(n, k), "ring", 1.0, 1.0) == pytest.approx(1 / g)


@pytest.mark.parametrize(("k", "g"), [(2, 8), (4, 2), (3, 1)])
def test_a_hierarchical_one_sends_only_what_other_hosts_lack(k: int, g: int) -> None:
    n = k * g
    missing = (k - 1) / k / g  # of S, through each NIC of a host
    assert rate("all_gather", RankLayout(n, k), "nvls", 1.0, (n - 1) / n) == pytest.approx(missing)
    assert rate("reduce_scatter", RankLayout(n, k), "nvls", 1.0, (n - 1) / n) == pytest.approx(missing)
    assert rate("all_reduce", RankLayout(n, k), "tree", 1.0, 2 * (n - 1) / n) == pytest.approx(2 * missing)


def test_the_link_is_named() -> None:
    ring = Assumed("ring", "set")
    assert wire_rate("all_reduce", RankLayout(8), ring, 1, 1).link == "NVLink"
    assert wire_rate("all_reduce", RankLayout(8, 1, "PCIe"), ring, 1, 1).link == "PCIe"
    found = wire_rate("all_reduce", RankLayout(8, 2), ring, 1, 1)
    assert found.link == "network"
    assert (
        found.assumption == "all_reduce: ring assumed (set), ranks in blocks of 4 per host, one NIC per rank"
    )


@pytest.mark.parametrize(
    ("operation", "layout", "algorithm", "why"),
    [
        ("all_reduce", RankLayout(1), "ring", "one rank"),
        ("all_reduce", RankLayout(7, 2), "ring", "7 ranks are not spread evenly over 2 hosts"),
        ("all_reduce", RankLayout(8, 1, "PCIe"), "nvls", "needs NVLink"),
        ("all_reduce", RankLayout(8), "tree", "a chain inside a host"),
        ("all_reduce", RankLayout(8), "collnet", "no formula for all_reduce by collnet on 1 host"),
        ("all_gather", RankLayout(8, 8), "pat", "no formula for all_gather by pat on 8 host"),
        ("alltoallv", RankLayout(8), "direct", "depend on its matrix"),
    ],
)
def test_no_rate_where_none_can_be_defended(
    operation: str, layout: RankLayout, algorithm: Algorithm, why: str
) -> None:
    found = wire_rate(operation, layout, Assumed(algorithm, "set"), 100.0, 100.0)
    assert (found.rate, found.link) == (None, None)
    assert why in found.assumption


def test_formulas_are_for_operations_that_exist() -> None:
    assert {operation for operation, _ in [*INSIDE, *OUTSIDE]} == {*OPERATIONS} - {"alltoallv"}


# Which algorithm.


@pytest.mark.parametrize(
    ("ranks", "environment", "possible", "expected"),
    [
        (8, {}, True, "nvls"),
        (5, {}, True, "nvls"),
        (4, {}, True, "ring"),
        (8, {}, False, "ring"),
        (8, {"NCCL_NVLS_ENABLE": "0"}, True, "ring"),
        (8, {"NCCL_NVLS_ENABLE": "2"}, True, "nvls"),
        (8, {"NCCL_ALGO": "Ring"}, True, "ring"),
        (8, {"NCCL_ALGO": "Ring,Tree"}, True, "ring"),
        (8, {"NCCL_ALGO": "ring,nvls"}, True, "nvls"),
        (8, {"NCCL_ALGO": "^NVLS,NVLSTree"}, True, "ring"),
        (8, {"NCCL_ALGO": "^Tree"}, True, "nvls"),
        (2, {"NCCL_ALGO": "NVLS"}, True, "nvls"),
        (8, {"NCCL_ALGO": "allreduce:tree;broadcast:ring"}, True, "tree"),
        (8, {"NCCL_ALGO": "allgather:ring"}, True, "nvls"),
        (8, {"NCCL_ALGO": "ring;allreduce:nvls"}, True, "nvls"),
        (8, {"NCCL_ALGO": "tree,collnetdirect"}, True, "tree"),
        (8, {"NCCL_ALGO": "bogus"}, True, "nvls"),
    ],
)
def test_all_reduce_on_one_host(
    ranks: int, environment: Mapping[str, str], possible: bool, expected: str
) -> None:
    assert assumed_algorithm("all_reduce", RankLayout(ranks), environment, possible).algorithm == expected


def test_over_several_hosts_a_ring_and_a_word_on_trees() -> None:
    found = assumed_algorithm("all_reduce", RankLayout(16, 2), {}, True)
    assert found.algorithm == "ring"
    assert "a tree would put less on the network" in found.reason
    for word, algorithm in {"TREE": "tree", "COLLNETCHAIN": "collnet", "NVLSTree": "nvls"}.items():
        text = assumed_algorithm("all_reduce", RankLayout(16, 2), {"NCCL_ALGO": word}, True)
        assert text == Assumed(algorithm, f"NCCL_ALGO={word}")


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "all_reduce"])
def test_the_other_operations(operation: str) -> None:
    collective = operation in ("all_gather", "reduce_scatter", "broadcast", "reduce")
    expected = "ring" if collective else "direct"
    assert assumed_algorithm(operation, RankLayout(8), {}, True).algorithm == expected
    # NCCL has no tree for these.
    assert assumed_algorithm(operation, RankLayout(8), {"NCCL_ALGO": "Tree"}, True).algorithm == expected


def test_all_gather_by_nvls_when_told() -> None:
    assert assumed_algorithm("all_gather", RankLayout(8), {"NCCL_ALGO": "NVLS"}, True).algorithm == "nvls"
    assert rate("all_gather", RankLayout(8), "nvls", 400.0, 350.0) == 400.0


def test_percent() -> None:
    assert percent(304.1, 450.0) == pytest.approx(67.6, abs=0.05)
    assert percent(None, 450.0) is None
    assert percent(304.1, None) is None
