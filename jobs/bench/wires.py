"""The tight link of this run: what it must have carried, and its nominal rate."""

from __future__ import annotations

import runner
from jobs.bench.state import Bench, Wire, unknown
from jobs.bench.wire import Layout, assumed_algorithm, percent, wire_rate
from runner import Control, World

NVLS_CAPABILITY = 90  # Hopper


def wires(world: World, everyone: Control, bench: Bench) -> tuple[Wire, tuple[str, ...]]:
    """GB/s on the tight link and its percentage of nominal, from algbw and busbw; and what that rests on.

    Known for GPUs only: MPI's way through host memory is its own. Collective over `everyone`.
    """
    device = world.here.device
    if device.kind != "cuda":
        return unknown, ()
    mine = runner.gpu_links(device.uuid)
    nics = runner.network_rate(
        runner.nics(), len([r for r in world.ranks if r.host_id == world.here.host_id])
    )
    gathered = everyone.allgather((world.here.host_id, mine, nics, device.compute_capability))
    color = bench.colors[0]  # the rows are those of rank 0's group
    members = [one for one, other in zip(gathered, bench.colors, strict=True) if other == color]
    hosts = len({host for host, *_ in members})
    joined = all(links.nvlinks_active for _, links, *_ in members)
    layout = Layout(len(members), hosts, "NVLink" if joined else "PCIe")
    possible = joined and min(capability for *_, capability in members) >= NVLS_CAPABILITY
    assumed = assumed_algorithm(bench.operation.name, layout, runner.environment(), possible)
    readings = [
        network if hosts > 1 else links.nvlink if joined else links.pcie for _, links, network, _ in members
    ]
    rates = [reading.rate for reading in readings]
    nominal = min((rate for rate in rates if rate is not None), default=None)
    if None in rates:
        nominal = None
    sample = wire_rate(bench.operation.name, layout, assumed, 1.0, 1.0)
    told = "not known" if nominal is None else f"{nominal:g} GB/s"
    sentences = (
        f"wire rate of {sample.assumption}",
        f"nominal rate of that link: {told} ({readings[0].source})",
    )

    def wire(algbw: float, busbw: float) -> tuple[float | None, float | None]:
        rate = wire_rate(bench.operation.name, layout, assumed, algbw, busbw).rate
        return rate, percent(rate, nominal)

    return wire, sentences
