"""Observe what carries an operation, in separate calls after the timed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from meshrun import World
from meshrun.jobs.bench.collectives.results import WireTraffic
from meshrun.jobs.bench.collectives.session import Bench, Point
from meshrun.jobs.bench.collectives.timing import steps_of
from meshrun.runner.comm.collectives.api import NcclChoice
from meshrun.runner.system.counters.gpu import nvlink_traffic
from meshrun.runner.system.counters.network import ip_traffic, rdma_traffic

Counts = Mapping[tuple[str, str, str], tuple[float, float]]  # (kind, owner, wire): bytes sent, received


def observed_choices(bench: Bench, point: Point) -> tuple[NcclChoice, ...] | None:
    """Make one step (-m calls) and return what the library of the first rank chose for it; collective.

    None if --show-tuning was not given.
    """
    if not bench.show_tuning:
        return None
    group = bench.group
    [step] = steps_of(bench, point, 1)
    with group.observed() if group.rank == 0 else nullcontext() as found:
        group.issue(step)
        group.wait()
    chosen: tuple[NcclChoice, ...] = bench.everyone.broadcast(tuple(found or ()))
    return chosen


def observed_traffic(
    bench: Bench, point: Point, read: Callable[[World], Counts] | None = None
) -> tuple[WireTraffic, ...] | None:
    """Make as many calls as were timed and return the bytes on each wire for one operation; collective.

    None if --wires was not given. read: of the counters; by default `wire_counts`. A counter that went back,
    as when its driver was reloaded, is left out.
    """
    if not bench.wires:
        return None
    read = read or wire_counts
    group, everyone, settings = bench.group, bench.everyone, bench.settings
    plan = [call for step in steps_of(bench, point, settings.iters) for call in step]
    launches = settings.cudagraph or 1
    issued: list[Any] = [group.captured(plan)] * launches if settings.cudagraph else plan
    bench.progress.before("before the calls whose bytes are counted")
    everyone.barrier()  # all ranks' earlier messages have arrived
    before = read(bench.world)
    everyone.barrier()
    bench.progress.enter(1)
    group.issue(issued)
    group.wait()
    bench.progress.done("after the calls whose bytes are counted")
    everyone.barrier()
    after = read(bench.world)
    operations = settings.iters * settings.agg_iters * launches
    moved = []
    for key in before.keys() & after.keys():
        sent, received = (now - was for now, was in zip(after[key], before[key], strict=True))
        if sent >= 0 and received >= 0:
            moved.append(WireTraffic(*key, sent / operations, received / operations))
    return tuple(sorted(one for rank in everyone.allgather(moved) for one in rank))


def wire_counts(world: World) -> Counts:
    """Read the counters of this rank's NVLinks and, on the first rank of a host, of its network."""
    here = world.here
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    if here.device.kind == "cuda":
        links = nvlink_traffic(here.device.uuid)
        found |= {("nvlink", f"rank {here.number}", link): both for link, both in links.items()}
    if here == world.beside[0]:
        for kind, counts in (("rdma", rdma_traffic()), ("ip", ip_traffic())):
            found |= {(kind, here.host, wire): both for wire, both in counts.items()}
    return found
