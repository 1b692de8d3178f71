"""Measure methods to move bytes between ranks: direct copies, kernel loads and stores, messages, the host.

A time is from a barrier of all ranks until both ranks of a pair are done; one pair is active at a time.
Bandwidth is of consecutive transfers; latency is of a single small one, including its call. If one process
issues all transfers of a series, they are queued behind a gate before the time begins.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from jobs.bench.lessons.p2p.explain import sentences
from jobs.bench.lessons.p2p.methods import GUARD, DirectCopy, Method, RankArrays, opened
from jobs.bench.lessons.p2p.results import Nominal, Pair, PeerResults
from jobs.bench.lessons.protocol import (
    Chart,
    ChartLine,
    Context,
    Lesson,
    LessonTable,
    Ranks,
    rate,
    size_table,
)
from jobs.measure import check
from jobs.measure.patterns import Copied, Segment, Untouched
from jobs.measure.sizes import size_name
from runner.comm.collectives.api import DATATYPES
from runner.system.links import gpu_links

RANKS: Ranks = "several"
CPU = True
SERIES, SERIES_BYTES = 16, 512 << 20  # consecutive transfers: at most, and their bytes; at least one
BYTES = DATATYPES["uint8"]


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
    got, expected_text = (check.text(bits, BYTES) for bits in (found.got_bits, found.expected_bits))
    return [
        f"{method.label}, rank {source} to rank {target}, {size_name(nbytes)}: {found.count} bytes wrong, "
        f"the first at {found.offset}: got {got}, expected {expected_text}"
    ]


def nominal(context: Context) -> tuple[Nominal, ...]:
    """Return the nominal rates of every rank's GPU links, empty on CPUs; collective."""
    if context.box is None:
        return ()
    links = gpu_links(context.world.here.device.uuid)
    mine = Nominal(links.nvlink.rate, links.nvlink.source, links.pcie.rate, links.pcie.source)
    return tuple(context.world.control.allgather(mine))


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
    """Return the JSON record, in seconds and bytes. `way` is the former name of `method`, for one release."""
    return {
        "messages": found.messages,
        "devices": list(found.devices),
        "transfers": [
            {"method": method, "way": method, "source": s, "target": t, "bytes": nbytes, "seconds": seconds}
            for (method, (s, t), nbytes), seconds in found.seconds.items()
        ],
        "latencies": [
            {
                "method": method, "way": method, "source": s, "target": t, "bytes": found.sizes[0],
                "seconds": seconds,
            }
            for (method, (s, t)), seconds in found.latency.items()
        ],
        "copies_inside": [{"bytes": nbytes, "seconds": s} for nbytes, s in found.inside.items()],
        "not_measured": {
            reason: [[method, *pair] for method, pair in cases] for reason, cases in found.missing.items()
        },
        "nominal": [vars(one) for one in found.nominal],
    }  # fmt: skip
