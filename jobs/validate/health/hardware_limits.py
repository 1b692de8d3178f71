"""Hardware limits: for each measurement of the ladder, the rate that its tightest link could carry.

Limits are nominal rates from NVML, sysfs and CUDA, without line coding but including packet headers; a good
machine reaches 0.8 to 0.95 of them. Each limit states its assumptions. If ranks differ, the smallest rate is
the limit; if one rate is unknown there is no limit, because it may be the smallest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from meshrun import World
from meshrun.jobs.measure.link_rates import Assumed, RankLayout, assumed_algorithm, wire_rate
from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.probe.api import RankPlace
from meshrun.jobs.validate.report.model import HardwareLimit
from meshrun.runner.report.units import counted
from meshrun.runner.system.launcher import environment
from meshrun.runner.system.links import gpu_links, network_rate, nics

GB = 1e9
NVLS_CAPABILITY = 90  # Hopper
HEADERS = "packet headers are not subtracted"


@dataclass(frozen=True)
class NominalRate:
    """Bytes per second and its source; or None and why it is unknown."""

    rate: float | None
    source: str


UNREPORTED = NominalRate(None, "neither CUDA nor NVML reports the peak rate of the arithmetic units used")


@dataclass(frozen=True)
class RankFacts:
    """Hardware rates of one rank, in one direction.

    memory: its GPU's memory, read plus written. nvlink: all active links of the GPU. network: its share of
    the host's NICs. capability: 90 for 9.0, 0 on a CPU. settings: NCCL variables that choose an algorithm.
    product, tensor: operations per second, float32, and float16 on tensor cores.
    """

    memory: NominalRate
    nvlink: NominalRate
    pcie: NominalRate
    network: NominalRate
    nvlinks: int = 0
    capability: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    product: NominalRate = UNREPORTED
    tensor: NominalRate = UNREPORTED


Members = Sequence[tuple[int, RankFacts]]  # by rank


def gather_facts(world: World) -> list[RankFacts]:
    """Gather the facts of all ranks, in rank order, on every rank. Collective."""
    device = world.here.device
    cpu = NominalRate(None, "computes on a CPU")
    share = network_rate(nics(), len(world.beside))
    network = NominalRate(share.rate and share.rate * GB, share.source)
    wanted = ("NCCL_ALGO", "NCCL_NVLS_ENABLE")
    settings = {name: value for name, value in environment().items() if name in wanted}
    mine = RankFacts(cpu, cpu, cpu, network)
    if device.kind == "cuda":
        links = gpu_links(device.uuid)
        mine = RankFacts(
            NominalRate(
                device.bandwidth, device.bandwidth_source if device.bandwidth else "not reported by CUDA"
            ),
            NominalRate(links.nvlink.rate and links.nvlink.rate * GB, links.nvlink.source),
            NominalRate(links.pcie.rate and links.pcie.rate * GB, links.pcie.source),
            network,
            links.nvlinks_active,
            device.compute_capability,
            settings,
        )
    return world.control.allgather(mine)


def compute_limits(facts: Sequence[RankFacts], places: Sequence[RankPlace]) -> tuple[HardwareLimit, ...]:
    """Return a limit for each measurement, in the order of the rungs. facts, places: in rank order."""
    members = list(enumerate(facts))
    hosts = _group_by(members, [place.host for place in places])
    pairs = [host for host in hosts if len(host) > 1]
    rails = [rail for rail in _group_by(members, [place.gpu for place in places]) if len(rail) > 1]
    outside = [member for rail in rails for member in rail] if len(hosts) > 1 else []
    memory = _least([(rank, one.memory) for rank, one in members], "a copy reads and writes each byte")
    pcie = _least([(rank, one.pcie) for rank, one in members], f"each GPU on its own path; {HEADERS}")
    product = _least([(rank, one.product) for rank, one in members])
    tensor = _least([(rank, one.tensor) for rank, one in members])
    if all(place.paths for place in places):
        flows = _least([pair for host in pairs for pair in _pair_rates(host, places)], HEADERS)
    else:
        inside = [one for host in pairs for one in _intra_host_rates(host)]
        flows = _least(inside, f"{_link_assumption(pairs)}; {HEADERS}")
    rings = [(host[0][0], _ring_of_host(host)) for host in pairs]
    ring = next((one for _, one in rings if one.rate is None), _least(rings))
    network = [(rank, _network_path(one)) for rank, one in outside]
    sharing = Counter((place.host, place.nic or place.rank) for place in places)
    by_turns = [  # as flows between hosts are measured
        (rank, _network_path(one, sharing[places[rank].host, places[rank].nic or places[rank].rank]))
        for rank, one in outside
    ]
    found: list[tuple[RungName, str, NominalRate, str]] = [
        ("gpu", "memory", memory, ""),
        ("gpu", "product", product, ""),
        ("gpu", "tensor", tensor, ""),
        ("host", "to_device", pcie, ""),
        ("host", "to_host", pcie, ""),
        ("pairs", "copies", flows, "" if pairs else "no host has two ranks"),
        ("pairs", "flows", flows, "" if pairs else "no host has two ranks"),
        ("node", "ring", ring, "" if pairs else "no host has two ranks"),
        ("host pairs", "flows", _least(by_turns, HEADERS), "" if outside else "no rail has two hosts"),
        ("rails", "ring", _least(network, RAIL), "" if outside else "no rail has two hosts"),
        ("all", "ring", _ring_of_all(hosts), ""),
    ]
    return tuple(
        HardwareLimit(rung, what, None, missing)
        if missing
        else HardwareLimit(rung, what, rate.rate, rate.source)
        for rung, what, rate, missing in found
    )


# If each host has one rank, the busiest NIC of a tree carries as much as one of a ring.
RAIL = f"a ring or a tree; in-network reduction (SHARP) would carry less; {HEADERS}"


def _group_by(members: Members, keys: Sequence[int]) -> list[Members]:
    order = sorted(members, key=lambda member: keys[member[0]])
    return [list(group) for _, group in groupby(order, key=lambda member: keys[member[0]])]


def _least(rates: Sequence[tuple[int, NominalRate]], assumption: str = "") -> NominalRate:
    """Return the smallest of the ranks' rates; None if one of them is unknown."""
    known = [(one.rate, rank, one.source) for rank, one in rates if one.rate is not None]
    if len(known) < len(rates):
        rank, one = next((rank, one) for rank, one in rates if one.rate is None)
        return NominalRate(None, f"rank {rank}: {one.source}")
    if not known:
        return NominalRate(None, "")
    least, rank, source = min(known)
    most = max(known)[0]
    words = [source, assumption]
    if most > least:
        words.append(f"rank {rank} has the least, others up to {most / GB:g} GB/s")
    return NominalRate(least, "; ".join(filter(None, words)))


def _link_kind(host: Members) -> Literal["NVLink", "PCIe"]:
    return "NVLink" if all(one.nvlinks for _, one in host) else "PCIe"


def _intra_host_rates(host: Members) -> list[tuple[int, NominalRate]]:
    """Return for each rank of a host the rate of the links between its GPUs."""
    kind = _link_kind(host)
    return [(rank, one.nvlink if kind == "NVLink" else one.pcie) for rank, one in host]


def _pair_rates(host: Members, places: Sequence[RankPlace]) -> Iterator[tuple[int, NominalRate]]:
    """Yield for each rank the rate to each other rank of its host, by the type of the path."""
    for rank, one in host:
        for path in sorted({*places[rank].paths} - {"X"}):
            if path.startswith("NV") and one.nvlink.rate is not None and one.nvlinks:
                share = min(int(path[2:]) / one.nvlinks, 1.0)
                yield rank, NominalRate(one.nvlink.rate * share, f"{one.nvlink.source}, {path[2:]} to a peer")
            elif path.startswith("NV"):
                yield rank, one.nvlink
            else:
                yield rank, NominalRate(one.pcie.rate, f"{one.pcie.source}, {path} over PCIe")


def _link_assumption(hosts: Sequence[Members]) -> str:
    kinds = {_link_kind(host) for host in hosts}
    if kinds == {"NVLink"}:
        return "all NVLinks of a GPU lead to each other GPU, as with NVSwitch"
    words = "GPUs reach each other over PCIe, each on its own path"
    return f"{words}, where they have no NVLink" if "NVLink" in kinds else words


def _ring_of_host(host: Members) -> NominalRate:
    """Return the limit of bus bandwidth of an all_reduce inside one host."""
    link = _least(_intra_host_rates(host))
    layout = RankLayout(len(host), 1, _link_kind(host))
    return link if link.rate is None else _allreduce_limit(link, layout, _algorithm(host, layout))


def _ring_of_all(hosts: Sequence[Members]) -> NominalRate:
    """Return the limit of bus bandwidth of an all_reduce of all ranks."""
    ranks = sum(map(len, hosts))
    everyone = [member for host in hosts for member in host]
    if ranks < 2:
        return NominalRate(None, "there is one rank")
    if len(hosts) == 1:
        return _ring_of_host(everyone)
    if not all(one.capability for _, one in everyone):
        return NominalRate(None, "the algorithm that MPI uses between CPUs is unknown")
    network = _least([(rank, _network_path(one)) for rank, one in everyone])
    layout = RankLayout(ranks, len(hosts))
    assumed = _algorithm(everyone, layout)
    if network.rate is None:
        return network
    if assumed.algorithm != "ring":
        return _allreduce_limit(network, layout, assumed)
    # Each ring enters and leaves a host once, each by another NIC, so a host's NICs together carry the rate.
    together = _least([(host[0][0], _sum([_network_path(one) for _, one in host])) for host in hosts])
    assumes = f"all_reduce: ring assumed ({assumed.reason}); it uses all NICs of each host; {HEADERS}"
    inside = _least([one for host in hosts if len(host) > 1 for one in _intra_host_rates(host)])
    tight = inside if inside.rate is not None and inside.rate < (together.rate or 0.0) else together
    return NominalRate(tight.rate, f"{tight.source}; {assumes}")


def _algorithm(members: Members, layout: RankLayout) -> Assumed:
    switch = layout.inside == "NVLink" and all(one.capability >= NVLS_CAPABILITY for _, one in members)
    return assumed_algorithm("all_reduce", layout, members[0][1].settings, switch)


def _allreduce_limit(link: NominalRate, layout: RankLayout, assumed: Assumed) -> NominalRate:
    """Return the bus bandwidth of an all_reduce that saturates this link (between hosts: a NIC)."""
    n = layout.ranks
    wire = wire_rate("all_reduce", layout, assumed, n / (2 * (n - 1)), 1.0)  # for a bus bandwidth of 1
    if link.rate is None or wire.rate is None:
        return NominalRate(None, wire.assumption)
    return NominalRate(link.rate / wire.rate, f"{link.source}; {wire.assumption}")


def _network_path(one: RankFacts, sharing: int = 1) -> NominalRate:
    """Return the rate from a rank's memory to the network: the smaller of its NIC share and its PCIe.

    sharing: ranks that have its NIC, if they use it in turn.
    """
    if one.network.rate is not None and sharing > 1:
        source = f"{one.network.source}, used by one at a time"
        one = replace(one, network=NominalRate(sharing * one.network.rate, source))
    if one.network.rate is None or one.pcie.rate is None or one.network.rate <= one.pcie.rate:
        return one.network
    return NominalRate(one.pcie.rate, f"{one.pcie.source}, less than its share of the network")


def _sum(rates: Sequence[NominalRate]) -> NominalRate:
    """Return the sum over the ranks of one host; all rates are known."""
    each = rates[0].source if len({one.source for one in rates}) == 1 else "its ranks' paths to the network"
    return NominalRate(
        sum(one.rate or 0.0 for one in rates), f"{counted(len(rates), 'rank')} per host, {each}"
    )
