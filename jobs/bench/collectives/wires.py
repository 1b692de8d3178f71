"""The tight link of this run: what it must have carried, and its nominal rate."""

from __future__ import annotations

import runner
from jobs.bench.collectives.state import Bench, Wire, unknown
from jobs.measure.link_rates import Layout, assumed_algorithm, percent, wire_rate
from runner import Control, World

NVLS_CAPABILITY = 90  # Hopper


def wires(
    world: World, everyone: Control, bench: Bench, told: float | None
) -> tuple[Wire, float | None, tuple[str, ...]]:
    """GB/s on the tight link and its percentage of nominal, from algbw and busbw; nominal; what they rest on.

    Known for GPUs only: MPI's way through host memory is its own. told: the nominal rate that somebody
    states, GB/s; None for what NVML and sysfs say. Collective over `everyone`.
    """
    device = world.here.device
    if device.kind != "cuda":
        return unknown, None, ()
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
    rates = [reading.rate for reading in readings if reading.rate is not None]
    nominal, source = told, "--link-rate"
    if told is None:
        # A link that does not tell its rate may be the tight one.
        nominal = min(rates) if len(rates) == len(readings) else None
        source = next((reading.source for reading in readings if reading.rate is None), readings[0].source)
    stated = "not known" if nominal is None else f"{nominal:g} GB/s"
    sample = wire_rate(bench.operation.name, layout, assumed, 1.0, 1.0)
    sentences = (f"wire rate of {sample.assumption}", f"nominal rate of that link: {stated} ({source})")

    def wire(algbw: float, busbw: float) -> tuple[float | None, float | None]:
        rate = wire_rate(bench.operation.name, layout, assumed, algbw, busbw).rate
        return rate, percent(rate, nominal)

    return wire, nominal, sentences
