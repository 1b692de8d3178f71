"""Measure methods to move bytes between ranks: direct copies, kernel loads and stores, messages, the host.

A time is from a barrier of all ranks until both ranks of a pair are done; one pair is active at a time.
Bandwidth is of consecutive transfers; latency is of a single small one, including its call. If one process
issues all transfers of a series, they are queued behind a gate before the time begins.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrun.jobs.bench.lessons.p2p.methods import GUARD, HOST, DirectCopy, Method, RankArrays, opened
from meshrun.jobs.bench.lessons.protocol import (
    Chart,
    ChartLine,
    Context,
    Lesson,
    LessonTable,
    crossings,
    rate,
    size_table,
)
from meshrun.jobs.measure import check
from meshrun.jobs.measure.patterns import Copied, Segment, Untouched
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.report.units import size_name
from meshrun.runner.system.links import GpuLinks, gpu_links

SERIES, SERIES_BYTES = 16, 512 << 20  # consecutive transfers: at most, and their bytes; at least one
BYTES = DATATYPES["uint8"]
PAIRS_NAMED = 3  # in a sentence
Pair = tuple[int, int]  # source rank, target rank


@dataclass(frozen=True)
class PeerResults:
    """methods: labels. sizes: bytes. devices: UUIDs of the ranks' GPUs, "" on CPUs. messages: the library.

    nominal: rates of each rank's links, empty on CPUs. seconds: per transfer of a series, by method, pair and
    bytes. latency: seconds of a single transfer of the first size. missing: reason -> methods and pairs not
    measured. inside: seconds of a copy inside rank 0 by bytes, on CPUs. mismatches: a sentence for each wrong
    transfer.
    """

    methods: tuple[str, ...]
    pairs: tuple[Pair, ...]
    sizes: tuple[int, ...]
    devices: tuple[str, ...]
    messages: str
    nominal: tuple[GpuLinks, ...] = ()
    seconds: dict[tuple[str, Pair, int], float] = field(default_factory=dict)
    latency: dict[tuple[str, Pair], float] = field(default_factory=dict)
    missing: dict[str, list[tuple[str, Pair]]] = field(default_factory=dict)
    inside: dict[int, float] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)

    @property
    def first(self) -> Pair:
        """The pair shown by size: the first with the most methods measured."""
        return max(
            self.pairs, key=lambda pair: sum((method, pair) in self.latency for method in self.methods)
        )

    def bandwidth(self, method: str, pair: Pair, nbytes: int | None = None) -> float | None:
        """Return GB/s; by default of the largest size."""
        nbytes = self.sizes[-1] if nbytes is None else nbytes
        seconds = self.seconds.get((method, pair, nbytes))
        return None if seconds is None else rate(nbytes, seconds)

    def microseconds(self, method: str, pair: Pair) -> float | None:
        seconds = self.latency.get((method, pair))
        return None if seconds is None else seconds * 1e6

    def same_gpu(self, pair: Pair) -> bool:
        return bool(self.devices[pair[0]]) and self.devices[pair[0]] == self.devices[pair[1]]


def measure(context: Context) -> Lesson:
    """Measure all methods between all pairs of ranks; collective.

    Raises UserError, on every rank, if there is not enough memory.
    """
    world = context.world
    pairs = tuple(itertools.permutations(range(world.size), 2))
    with opened(context) as (methods, ends):
        found = PeerResults(
            methods=tuple(method.label for method in methods),
            pairs=pairs,
            sizes=tuple(context.sizes()),
            devices=tuple(rank.device.uuid for rank in world.ranks),
            messages=world.arrays.label,
            nominal=nominal(context),
        )
        for pair, method in itertools.product(pairs, methods):
            reason = method.missing(*pair)
            if reason is not None:
                found.missing.setdefault(reason, []).append((method.label, pair))
                continue
            found.latency[method.label, pair] = transfer_seconds(context, method, pair, found.sizes[0], 1)
            for nbytes in found.sizes:
                context.progress(f"{method.label}, rank {pair[0]} to {pair[1]}, {size_name(nbytes)}")
                count = series(nbytes) if method.pipelined else 1
                seconds = transfer_seconds(context, method, pair, nbytes, count)
                found.seconds[method.label, pair, nbytes] = seconds
                if context.check:
                    found.mismatches.extend(mismatches(context, ends, method, pair, nbytes))
        if context.box is None:
            for nbytes in found.sizes:
                found.inside[nbytes] = copy_seconds(context, ends, nbytes)
    return present(found)


def timed(
    context: Context, act: Callable[[], None], queued: AbstractContextManager[None] | None = None
) -> float:
    """Return seconds from a barrier to the end of `act` on the slowest rank; collective.

    queued: context that queues work; entered before the barrier, left when the time begins, which starts it.
    """
    with queued or nullcontext():
        context.world.control.barrier()
        begin = time.perf_counter()
    act()
    spent: list[float] = context.world.control.allgather(time.perf_counter() - begin)
    return max(spent)


def transfer_seconds(context: Context, method: Method, pair: Pair, nbytes: int, count: int) -> float:
    """Return median seconds per transfer of `count` consecutive ones."""
    if isinstance(method, DirectCopy) and count > 1:
        return context.median(
            lambda: timed(context, method.finish, method.queued(*pair, nbytes, count)) / count
        )
    return context.median(lambda: timed(context, lambda: method.move(*pair, nbytes, count)) / count)


def series(nbytes: int) -> int:
    """Return how many transfers make the time to start and to end negligible."""
    return max(1, min(SERIES, SERIES_BYTES // nbytes))


def copy_seconds(context: Context, ends: RankArrays, nbytes: int) -> float:
    """Return median seconds of a copy inside rank 0, while the others wait."""
    count = series(nbytes)

    def copies() -> None:
        if context.world.rank == 0:
            for _ in range(count):
                np.copyto(ends.incoming[:nbytes], ends.outgoing[:nbytes])

    return context.median(lambda: timed(context, copies) / count)


def mismatches(context: Context, ends: RankArrays, method: Method, pair: Pair, nbytes: int) -> list[str]:
    """Check one transfer of new data into poisoned memory; the mismatches on every rank. Collective."""
    world, (source, target) = context.world, pair
    seed = zlib.crc32(f"{method.label} {pair} {nbytes}".encode())
    sent = Segment(0, nbytes, Copied(seed, 0), source)
    if world.rank == source:
        check.fill(ends.outgoing[:nbytes], BYTES, [sent])
    if world.rank == target:
        check.poison(ends.incoming[: nbytes + GUARD])
    world.backend.synchronize()
    world.control.barrier()
    method.move(source, target, nbytes, 1)
    world.control.barrier()
    found = None
    if world.rank == target:
        expected = [sent, Segment(nbytes, GUARD, Untouched())]
        found = check.verify(ends.incoming[: nbytes + GUARD], BYTES, expected)
    found = world.control.allgather(found)[target]
    if found is None:
        return []
    return [
        f"{method.label}, rank {source} to rank {target}, {size_name(nbytes)}: {found.count} bytes wrong, "
        f"the first at {found.offset}: got {found.got}, expected {found.expected}"
    ]


def nominal(context: Context) -> tuple[GpuLinks, ...]:
    """Return the nominal rates of every rank's GPU links, empty on CPUs; collective."""
    if context.box is None:
        return ()
    return tuple(context.world.control.allgather(gpu_links(context.world.here.device.uuid)))


def present(found: PeerResults) -> Lesson:
    """Make the tables, charts and facts of the results."""
    where = "GPUs" if any(found.devices) else "ranks, host memory"
    lines, (source, target) = _lines(found), found.first
    return Lesson(
        name="p2p",
        title=f"Methods between {len(found.devices)} {where}; messages by {found.messages}",
        tables=(
            size_table(found.sizes, lines, f"From rank {source} to rank {target}, by size"),
            *(_matrix(found, method) for method in found.methods),
            _latencies(found),
        ),
        explanation=tuple(sentences(found, lines)),
        charts=(Chart("size", "bandwidth (GB/s)", lines, bytes=True),),
        mismatches=tuple(found.mismatches),
        facts=_facts(found),
    )


def _lines(found: PeerResults) -> tuple[ChartLine, ...]:
    """Return bandwidth by size of the first pair."""
    pair = found.first
    lines = [
        ChartLine(method, tuple((float(size), found.bandwidth(method, pair, size)) for size in found.sizes))
        for method in found.methods
    ]
    if found.inside:
        copies = tuple((float(size), rate(size, found.inside[size])) for size in found.sizes)
        lines.append(ChartLine("copy in a rank", copies))
    return tuple(lines)


def _matrix(found: PeerResults, method: str) -> LessonTable:
    ranks = range(len(found.devices))
    return LessonTable(
        ("from", *(f"to {target} (GB/s)" for target in ranks)),
        tuple((source, *(found.bandwidth(method, (source, t)) for t in ranks)) for source in ranks),
        f"{method}, {size_name(found.sizes[-1])}",
    )


def _latencies(found: PeerResults) -> LessonTable:
    return LessonTable(
        ("from, to", *(f"{method} (us)" for method in found.methods)),
        tuple(
            (f"{s}, {t}", *(found.microseconds(method, (s, t)) for method in found.methods))
            for s, t in found.pairs
        ),
        f"Latency of a single transfer of {size_name(found.sizes[0])}",
    )


def _facts(found: PeerResults) -> dict[str, Any]:
    """Return the JSON record, in seconds and bytes."""
    return {
        "messages": found.messages,
        "devices": list(found.devices),
        "transfers": [
            {"method": method, "source": s, "target": t, "bytes": nbytes, "seconds": seconds}
            for (method, (s, t), nbytes), seconds in found.seconds.items()
        ],
        "latencies": [
            {"method": method, "source": s, "target": t, "bytes": found.sizes[0], "seconds": seconds}
            for (method, (s, t)), seconds in found.latency.items()
        ],
        "copies_inside": [{"bytes": nbytes, "seconds": s} for nbytes, s in found.inside.items()],
        "not_measured": {
            reason: [[method, *pair] for method, pair in cases] for reason, cases in found.missing.items()
        },
        "nominal": [
            {
                "nvlink": one.nvlink.rate, "nvlink_source": one.nvlink.source,
                "pcie": one.pcie.rate, "pcie_source": one.pcie.source,
            }
            for one in found.nominal
        ],
    }  # fmt: skip


def sentences(found: PeerResults, lines: Sequence[ChartLine]) -> list[str]:
    """Explain the results. lines: bandwidth by size, as plotted."""
    return [
        *_fastest(lines),
        *_best(found),
        *_over_pairs(found),
        *_shared(found),
        *(f"Not measured: {_cases(cases)}: {reason}." for reason, cases in found.missing.items()),
    ]


def _fastest(lines: Sequence[ChartLine]) -> list[str]:
    known = [line for line in lines if all(y is not None for _, y in line.points)]
    if len(known) < 2:
        return []
    return [
        "Fastest: "
        + ", ".join(f"{label} from {size_name(round(x))} on" for x, label in crossings(known))
        + "."
    ]


def _best(found: PeerResults) -> list[str]:
    """Compare the best direct method at the largest size with the host, a local copy and the links' peak."""
    pair, size = found.first, found.sizes[-1]
    rates = {method: found.bandwidth(method, pair) for method in found.methods if method != HOST}
    best = max((method for method in rates if rates[method]), key=lambda m: rates[m] or 0.0, default=None)
    speed = None if best is None else rates[best]
    if not speed:
        return []
    parts = []
    slow = found.bandwidth(HOST, pair)
    if slow:
        parts.append(f"{speed / slow:.3g} times the bandwidth through the host")
    copied = rate(size, found.inside[size]) if found.inside else None
    if copied:
        parts.append(f"{speed / copied:.1%} of the bandwidth of a copy inside rank 0")
    if found.nominal and not found.same_gpu(pair):
        links = found.nominal[pair[0]]
        peak = links.nvlink if links.nvlink.rate else links.pcie
        parts.append(
            f"{speed / peak.rate:.1%} of its links' {peak.rate:.4g} GB/s ({peak.source})"
            if peak.rate
            else f"peak of its links unknown ({links.nvlink.source}; {links.pcie.source})"
        )
    if not parts:
        return []
    return [f"{size_name(size)} from {_arrow(pair)} by {best}, {speed:.4g} GB/s: {'; '.join(parts)}."]


def _over_pairs(found: PeerResults) -> list[str]:
    """Name the slowest and the fastest pair of each method."""
    extremes = []
    for method in found.methods:
        values = [(value, pair) for pair in found.pairs if (value := found.bandwidth(method, pair))]
        if len(values) > 2:
            (low, slow), (high, fast) = min(values), max(values)
            extremes.append(f"{method} {low:.4g} GB/s ({_arrow(slow)}) to {high:.4g} ({_arrow(fast)})")
    return [f"Over all pairs: {', '.join(extremes)}."] if extremes else []


def _shared(found: PeerResults) -> list[str]:
    sharing = [pair for pair in found.pairs if pair[0] < pair[1] and found.same_gpu(pair)]
    return [f"Ranks that share a GPU, so that direct copies stay inside it: {_named(sharing)}."] * bool(
        sharing
    )


def _cases(cases: Sequence[tuple[str, Pair]]) -> str:
    """Format methods and pairs, such as "copy engine, kernel stores (0 to 1, 0 to 2)"."""
    methods = ", ".join(dict.fromkeys(method for method, _ in cases))
    return f"{methods} ({_named(list(dict.fromkeys(pair for _, pair in cases)))})"


def _named(pairs: Sequence[Pair]) -> str:
    more = len(pairs) - PAIRS_NAMED
    named = ", ".join(map(_arrow, pairs[:PAIRS_NAMED]))
    return f"{named} and {more} more" if more > 0 else named


def _arrow(pair: Pair) -> str:
    return f"{pair[0]} to {pair[1]}"
