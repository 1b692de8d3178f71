"""Measure one operation on 1, 2, 4, ... ranks of one launch: inside a host first, then across hosts.

With one rank nothing crosses a link; copies inside the GPU's memory and to and from the host are measured
instead.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshrun import World
from meshrun.jobs.bench.collectives import session
from meshrun.jobs.bench.collectives.commands.run import check_files
from meshrun.jobs.bench.collectives.config import BenchOptions
from meshrun.jobs.bench.collectives.measure import sweep
from meshrun.jobs.bench.collectives.output.nccl_tests_text import cells, figure, titles
from meshrun.jobs.bench.collectives.output.screen import Screen
from meshrun.jobs.bench.collectives.results import ResultRow
from meshrun.jobs.bench.collectives.specs import SPECS
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.jobs.measure.record_file import RecordFile, open_record
from meshrun.jobs.measure.timers import Work, host_seconds
from meshrun.jobs.measure.watchdog import watching
from meshrun.runner.comm.api import Control
from meshrun.runner.errors import MeshrunError
from meshrun.runner.report.units import size_name
from meshrun.runner.world.failure import FailureHandler

REPEATS = 7
COLUMNS = (  # title, unit, width
    ("ranks", "", 7),
    ("hosts", "", 5),
    ("size", "(B)", 12),
    ("type", "", 8),
    ("redop", "", 6),
    ("time", "(us)", 9),
    ("algbw", "(GB/s)", 7),
    ("busbw", "(GB/s)", 7),
    ("#wrong", "", 6),
    ("wire", "(GB/s)", 7),
    ("%link", "(%)", 6),
    ("efficiency", "", 10),
)


@dataclass(frozen=True)
class ScalingPoint:
    """One number of ranks and one size, out of place. requested: the size in bytes before rounding.
    efficiency: busbw over that of the fewest ranks, 2 or more; None if that is 0."""

    ranks: int
    hosts: int
    requested: int
    row: ResultRow
    efficiency: float | None


@dataclass(frozen=True)
class SingleRank:
    """One rank, GB/s. local: read plus written inside device memory. to_device, to_host: from and to pinned
    memory; None on a CPU."""

    local: float
    to_device: float | None
    to_host: float | None


def run(world: World, handler: FailureHandler, options: BenchOptions, cli_context: Any) -> dict[str, Any]:
    """Measure every number of ranks; returns the completion record."""
    options = world.control.broadcast(options)
    screen = Screen(world.rank == 0, options, cli_context.colour, cli_context.columns)
    counts = rank_counts(world.size)
    for ranks in counts:
        session.check_ranks(SPECS[options.operations[0]], options.settings, [0] * ranks)
    world.on_root(lambda: check_files(options))
    record_file = open_record(world, options.output_file, screen.line)
    order = near_first(world)
    rungs: list[ScalingPoint] = []
    wrong: list[str] = []
    for ranks in counts:
        members = order[:ranks]
        everyone = world.control.split(int(world.rank not in members))
        failure: MeshrunError | None = None
        try:
            if world.rank in members:
                opened, rows, right = _measured(world, handler, options, everyone)
                if ranks == 1:
                    single = measure_single_rank(world, opened.bench.settings.maxbytes)
                    screen.line(_header(options, opened.header.backend, single))
                hosts = len({world.ranks[rank].host_id for rank in members})
                sizes = itertools.cycle(opened.bench.settings.sizes())
                for row, size in zip(rows, sizes, strict=False):
                    rungs.append(ScalingPoint(ranks, hosts, size, row, efficiency(rungs, ranks, size, row)))
                    screen.line(_row(rungs[-1]))
                wrong = wrong if right else [*wrong, f"wrong data with {ranks} ranks"]
        except MeshrunError as met:
            if not met.everywhere:
                raise
            failure = met  # raised on all members, and raised below on the other ranks
        wrong, failure = world.control.allgather((wrong, failure))[order[0]]
        if failure is not None:
            raise failure
        everyone.close()
    _write_outputs(world, options, rungs, record_file)
    if wrong:
        raise WrongResults("; ".join(wrong), everywhere=True)
    return {"command": "bench scale", "operations": list(options.operations), "ranks": world.size}


def _measured(
    world: World, handler: FailureHandler, options: BenchOptions, everyone: Control
) -> tuple[session.Session, list[ResultRow], bool]:
    """Measure all rows on the ranks of `everyone`; also returns whether all data is right. Collective."""
    with (
        watching(world, handler, options.settings.timeout, everyone) as progress,
        session.opened(
            world, everyone, options, options.operations[0], progress, [0] * everyone.size
        ) as opened,
    ):
        rows = list(sweep(opened.bench))
    return opened, rows, not sum(everyone.allgather(opened.bench.failures))


def efficiency(rungs: Sequence[ScalingPoint], ranks: int, requested: int, row: ResultRow) -> float | None:
    """Return a row's busbw over that of the fewest ranks (2 or more) with its size, type and reduction."""
    same_size = (
        rung.row
        for rung in rungs
        if rung.ranks > 1
        and (rung.requested, rung.row.datatype, rung.row.reduction)
        == (requested, row.datatype, row.reduction)
    )
    base = next(same_size, row).out_of_place.busbw
    return row.out_of_place.busbw / base if ranks > 1 and base else None


def rank_counts(size: int) -> list[int]:
    """Return 1, 2, 4, ... and `size` itself."""
    counts = [1 << power for power in range(size.bit_length()) if 1 << power <= size]
    return counts if counts[-1] == size else [*counts, size]


def near_first(world: World) -> list[int]:
    """Return the world ranks host by host, starting with rank 0's host."""
    hosts = list(dict.fromkeys(rank.host_id for rank in world.ranks))
    return sorted(range(world.size), key=lambda rank: (hosts.index(world.ranks[rank].host_id), rank))


def measure_single_rank(world: World, nbytes: int) -> SingleRank:
    """Measure the copy rates of this rank's device."""
    backend = world.backend
    if not backend.asynchronous:
        return SingleRank(backend.copy_rate() / 1e9, None, None)
    host, device = (
        backend.host_empty((nbytes,), np.dtype(np.uint8)),
        backend.empty((nbytes,), np.dtype(np.uint8)),
    )

    def rate(copy: Work) -> float:
        times = []
        for _ in range(REPEATS):
            backend.synchronize()
            times.append(host_seconds(copy, wait=backend.synchronize))
        return nbytes / 1e9 / statistics.median(times)

    return SingleRank(
        backend.copy_rate() / 1e9,
        rate(lambda: backend.upload(host, device)),
        rate(lambda: backend.download(device, host)),
    )


def _write_outputs(
    world: World, options: BenchOptions, rungs: list[ScalingPoint], record_file: RecordFile
) -> None:
    if world.rank:
        return
    document = {
        "program": "scale",
        "operation": options.operations[0],
        "rungs": [asdict(rung) for rung in rungs],
    }
    record_file.write(lambda: json.dumps(document) + "\n", last=True)
    record_file.close()
    if options.plot:
        from meshrun.jobs.bench.collectives.output import plots

        largest = max(rung.requested for rung in rungs)
        # One line in the plot: of the first type, reduction and root.
        firsts: dict[int, ScalingPoint] = {}
        for rung in rungs:
            if rung.requested == largest and rung.ranks > 1:
                firsts.setdefault(rung.ranks, rung)
        points = [
            plots.Scaled(ranks, r.row.out_of_place.busbw, r.efficiency, r.row.out_of_place.wire)
            for ranks, r in firsts.items()
        ]
        what = f"{options.operations[0]} of {size_name(largest)}, {rungs[0].row.datatype}"
        title = f"{what}: bandwidth by number of ranks"
        plots.plot_scaling(points, options.plot, title)


def _header(options: BenchOptions, backend: str, single: SingleRank) -> str:
    copies = f"local copy {single.local:.4g} GB/s (read plus written)"
    if single.to_device is not None and single.to_host is not None:
        copies += f", host to device {single.to_device:.4g} GB/s, device to host {single.to_host:.4g} GB/s"
    lines = [f"# scale {options.operations[0]}: out of place", f"# backend: {backend}", f"# 1 rank: {copies}"]
    return "\n".join([*lines, *titles(COLUMNS)]) + "\n"


def _row(rung: ScalingPoint) -> str:
    row, values = rung.row, rung.row.out_of_place
    figures = ((values.seconds * 1e6, 9), (values.algbw, 7), (values.busbw, 7))
    wire = ((values.wire, 7), (values.wire_percent, 6))
    shown = [str(rung.ranks), str(rung.hosts), str(row.size), row.datatype, row.reduction]
    shown += [figure(value, width) for value, width in figures]
    shown.append("N/A" if values.wrong is None else str(values.wrong))
    shown += ["-" if value is None else figure(value, width) for value, width in wire]
    shown.append("-" if rung.efficiency is None else f"{100 * rung.efficiency:.1f} %")
    return cells(COLUMNS, shown) + "\n"
