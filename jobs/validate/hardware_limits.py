"""What the hardware allows: for each measurement of the ladder, the rate that its tightest link could carry.

Limits are nominal rates from NVML, sysfs and CUDA, without line codes but with packet headers, so that a good
machine reaches 0.8 to 0.95 of them. Every limit states what it assumes. Where ranks differ, the smallest rate
is the limit; where the rate of one is not known there is no limit, for that one may be the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from jobs.measure.link_rates import Assumed, RankLayout, assumed_algorithm, wire_rate
from jobs.validate.plan import RungName
from jobs.validate.probe.api import Place
from jobs.validate.report.model import Limit
from meshrun import World
from runner.system.launcher import environment
from runner.system.links import gpu_links, network_rate, nics

GB = 1e9
NVLS_CAPABILITY = 90  # Hopper
HEADERS = "packet headers are not taken off"


@dataclass(frozen=True)
class Rate:
    """Bytes per second, and where that was read; None, and why."""

    rate: float | None
    source: str


@dataclass(frozen=True)
class RankFacts:
    """What one rank's machine reports; rates in one direction.

    memory: of its GPU, read plus written. nvlink: all of the GPU's active links. network: its share of its
    host's NICs. capability: 90 for 9.0, 0 on a CPU. settings: NCCL variables that choose an algorithm.
    """

    memory: Rate
    nvlink: Rate
    pcie: Rate
    network: Rate
    nvlinks: int = 0
    capability: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)


Members = Sequence[tuple[int, RankFacts]]  # by rank


def gather(world: World) -> list[RankFacts]:
    """The facts of all ranks, in rank order, on every rank. Collective."""
    device = world.here.device
    cpu = Rate(None, "it computes on a CPU")
    beside = sum(rank.host_id == world.here.host_id for rank in world.ranks)
    share = network_rate(nics(), beside)
    network = Rate(share.rate and share.rate * GB, share.source)
    wanted = ("NCCL_ALGO", "NCCL_NVLS_ENABLE")
    settings = {name: value for name, value in environment().items() if name in wanted}
    mine = RankFacts(cpu, cpu, cpu, network)
    if device.kind == "cuda":
        links = gpu_links(device.uuid)
        mine = RankFacts(
            Rate(device.bandwidth, device.bandwidth_source if device.bandwidth else "CUDA does not tell it"),
            Rate(links.nvlink.rate and links.nvlink.rate * GB, links.nvlink.source),
            Rate(links.pcie.rate and links.pcie.rate * GB, links.pcie.source),
            network,
            links.nvlinks_active,
            device.compute_capability,
            settings,
        )
    return world.control.allgather(mine)


def limits(facts: Sequence[RankFacts], places: Sequence[Place]) -> tuple[Limit, ...]:
    """One limit for each measurement of each rung, in the order of the rungs.

    facts, places: in rank order.
    """
    members = list(enumerate(facts))
    hosts = _grouped(members, [place.host for place in places])
    pairs = [host for host in hosts if len(host) > 1]
    rails = [rail for rail in _grouped(members, [place.gpu for place in places]) if len(rail) > 1]
    outside = [member for rail in rails for member in rail] if len(hosts) > 1 else []
    memory = _least([(rank, one.memory) for rank, one in members], "a copy reads and writes each byte")
    pcie = _least([(rank, one.pcie) for rank, one in members], f"each GPU by a way of its own; {HEADERS}")
    product = Rate(None, "neither CUDA nor NVML tells the arithmetic rate of the units that the product uses")
    flows = _least([inside for host in pairs for inside in _inside(host)], f"{_joins(pairs)}; {HEADERS}")
    rings = [(host[0][0], _ring_of_host(host)) for host in pairs]
    ring = next((one for _, one in rings if one.rate is None), _least(rings))
    network = [(rank, _way_out(one)) for rank, one in outside]
    found: list[tuple[RungName, str, Rate, str]] = [
        ("gpu", "memory", memory, ""),
        ("gpu", "product", product, ""),
        ("host", "to_device", pcie, ""),
        ("host", "to_host", pcie, ""),
        ("pairs", "copies", flows, "" if pairs else "no host has two ranks"),
        ("pairs", "flows", flows, "" if pairs else "no host has two ranks"),
        ("node", "ring", ring, "" if pairs else "no host has two ranks"),
        ("host pairs", "flows", _least(network, HEADERS), "" if outside else "no rail has two hosts"),
        ("rails", "ring", _least(network, RAIL), "" if outside else "no rail has two hosts"),
        ("all", "ring", _ring_of_all(hosts), ""),
    ]
    return tuple(
        Limit(rung, what, None, missing) if missing else Limit(rung, what, rate.rate, rate.source)
        for rung, what, rate, missing in found
    )


# A tree's busiest NIC carries as much as a ring's where each host has one rank.
RAIL = f"a ring or a tree; a network that adds up (SHARP) would carry less; {HEADERS}"


def _grouped(members: Members, keys: Sequence[int]) -> list[Members]:
    order = sorted(members, key=lambda member: keys[member[0]])
    return [list(group) for _, group in groupby(order, key=lambda member: keys[member[0]])]


def _least(rates: Sequence[tuple[int, Rate]], assumption: str = "") -> Rate:
    """The smallest of the ranks' rates; None where one of them is not known."""
    known = [(one.rate, rank, one.source) for rank, one in rates if one.rate is not None]
    if len(known) < len(rates):
        rank, one = next((rank, one) for rank, one in rates if one.rate is None)
        return Rate(None, f"rank {rank}: {one.source}")
    if not known:
        return Rate(None, "")
    least, rank, source = min(known)
    most = max(known)[0]
    words = [source, assumption]
    if most > least:
        words.append(f"rank {rank} has the least, others up to {most / GB:g} GB/s")
    return Rate(least, "; ".join(filter(None, words)))


def _kind(host: Members) -> Literal["NVLink", "PCIe"]:
    return "NVLink" if all(one.nvlinks for _, one in host) else "PCIe"


def _inside(host: Members) -> list[tuple[int, Rate]]:
    """For each rank of a host, the rate of what joins its GPUs."""
    return [(rank, one.nvlink if _kind(host) == "NVLink" else one.pcie) for rank, one in host]


def _joins(hosts: Sequence[Members]) -> str:
    kinds = {_kind(host) for host in hosts}
    if kinds == {"NVLink"}:
        return "all NVLinks of a GPU lead to each other GPU, as with NVSwitch"
    words = "GPUs reach each other over PCIe, each by a way of its own"
    return f"{words}, where they have no NVLink" if "NVLink" in kinds else words


def _ring_of_host(host: Members) -> Rate:
    """Bus bandwidth of an all_reduce inside one host."""
    link = _least(_inside(host))
    layout = RankLayout(len(host), 1, _kind(host))
    return link if link.rate is None else _filled(link, layout, _algorithm(host, layout))


def _ring_of_all(hosts: Sequence[Members]) -> Rate:
    """Bus bandwidth of an all_reduce of all ranks."""
    ranks = sum(map(len, hosts))
    everyone = [member for host in hosts for member in host]
    if ranks < 2:
        return Rate(None, "there is one rank")
    if len(hosts) == 1:
        return _ring_of_host(everyone)
    if not all(one.capability for _, one in everyone):
        return Rate(None, "which algorithm MPI uses between CPUs is not known")
    network = _least([(rank, _way_out(one)) for rank, one in everyone])
    layout = RankLayout(ranks, len(hosts))
    assumed = _algorithm(everyone, layout)
    if network.rate is None:
        return network
    if assumed.algorithm != "ring":
        return _filled(network, layout, assumed)
    # Each ring enters and leaves a host once, by another NIC: a host's NICs together carry the rate.
    together = _least([(host[0][0], _sum([_way_out(one) for _, one in host])) for host in hosts])
    words = f"all_reduce: ring assumed ({assumed.reason}); it crosses every host by all its NICs; {HEADERS}"
    inside = _least([one for host in hosts if len(host) > 1 for one in _inside(host)])
    tight = inside if inside.rate is not None and inside.rate < (together.rate or 0.0) else together
    return Rate(tight.rate, f"{tight.source}; {words}")


def _algorithm(members: Members, layout: RankLayout) -> Assumed:
    switch = layout.inside == "NVLink" and all(one.capability >= NVLS_CAPABILITY for _, one in members)
    return assumed_algorithm("all_reduce", layout, members[0][1].settings, switch)


def _filled(link: Rate, layout: RankLayout, assumed: Assumed) -> Rate:
    """Bus bandwidth of an all_reduce that fills this link; the link of several hosts is a NIC."""
    n = layout.ranks
    wire = wire_rate("all_reduce", layout, assumed, n / (2 * (n - 1)), 1.0)  # of a bus bandwidth of 1
    if link.rate is None or wire.rate is None:
        return Rate(None, wire.assumption)
    return Rate(link.rate / wire.rate, f"{link.source}; {wire.assumption}")


def _way_out(one: RankFacts) -> Rate:
    """From a rank's memory to the network: its share of the NICs, or its GPU's PCIe where that is less."""
    if one.network.rate is None or one.pcie.rate is None or one.network.rate <= one.pcie.rate:
        return one.network
    return Rate(one.pcie.rate, f"{one.pcie.source}, less than its share of the network")


def _sum(rates: Sequence[Rate]) -> Rate:
    """The sum over the ranks of one host, all of whose rates are known."""
    each = rates[0].source if len({one.source for one in rates}) == 1 else "its ranks' ways to the network"
    return Rate(sum(one.rate or 0.0 for one in rates), f"{len(rates)} ranks a host, {each}")
