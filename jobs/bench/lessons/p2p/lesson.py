"""The ways between the memories of ranks: direct copies, kernels' loads and stores, messages, the host.

A time is from a barrier of all ranks to the moment when both ranks of a pair are done; one pair is active
at a time. Bandwidth is of transfers that follow one another, latency of a small one alone, its call included.
Where one process issues all of several transfers, they wait behind a gate when the time begins.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np

import runner
from jobs.bench.lessons.p2p import methods as p2p_ways
from jobs.bench.lessons.p2p.explain import Measured, Nominal, Pair, lesson
from jobs.bench.lessons.p2p.methods import GUARD, Direct, Ends, Way
from jobs.bench.lessons.protocol import Lesson, Stage
from jobs.measure import check
from jobs.measure.patterns import Copied, Segment, Untouched
from jobs.measure.sizes import size_name

SUMMARY = "The ways between GPUs: direct, through the host, NCCL, kernel loads."
RANKS = "several"
CPU = True
SERIES, SERIES_BYTES = 16, 512 << 20  # transfers one after another: as many, and at least one
BYTES = runner.DATATYPES["uint8"]


def measure(stage: Stage) -> Lesson:
    """All ways, between all pairs of ranks; collective.

    Raises UserError, on every rank, where there is not enough memory.
    """
    world = stage.world
    opened = p2p_ways.opened(stage)
    pairs = tuple(itertools.permutations(range(world.size), 2))
    found = Measured(
        ways=tuple(way.label for way in opened.ways),
        pairs=pairs,
        sizes=tuple(stage.sizes()),
        devices=tuple(rank.device.uuid for rank in world.ranks),
        messages=world.arrays.label,
        nominal=nominal(stage),
        ahead=tuple(way.label for way in opened.ways if isinstance(way, Direct)),
    )
    for pair, way in itertools.product(pairs, opened.ways):
        reason = way.missing(*pair)
        if reason is not None:
            found.missing.setdefault(reason, []).append((way.label, pair))
            continue
        found.latency[way.label, pair] = repeated(stage, way, pair, found.sizes[0], 1)
        for nbytes in found.sizes:
            stage.progress(f"{way.label}, rank {pair[0]} to {pair[1]}, {size_name(nbytes)}")
            count = series(nbytes) if way.series else 1
            found.seconds[way.label, pair, nbytes] = repeated(stage, way, pair, nbytes, count)
            if stage.check:
                found.wrong.extend(checked(stage, opened.ends, way, pair, nbytes))
    if stage.box is None:
        for nbytes in found.sizes:
            found.inside[nbytes] = inside(stage, opened.ends, nbytes)
    p2p_ways.close(stage, opened)
    return lesson(found)


def timed(stage: Stage, act: Callable[[], None], queued: AbstractContextManager[None] | None = None) -> float:
    """Seconds from a barrier to the end of `act` on the rank that takes longest; collective.

    queued: holds work back that begins with the time.
    """
    with queued or nullcontext():
        stage.world.control.barrier()
        begin = time.perf_counter()
    act()
    spent: list[float] = stage.world.control.allgather(time.perf_counter() - begin)
    return max(spent)


def repeated(stage: Stage, way: Way, pair: Pair, nbytes: int, count: int) -> float:
    """Seconds of one of `count` transfers that follow one another."""
    if isinstance(way, Direct) and count > 1:
        return stage.median(lambda: timed(stage, way.finish, way.queued(*pair, nbytes, count)) / count)
    return stage.median(lambda: timed(stage, lambda: way.move(*pair, nbytes, count)) / count)


def series(nbytes: int) -> int:
    """How many transfers outweigh what it takes to begin and to end."""
    return max(1, min(SERIES, SERIES_BYTES // nbytes))


def inside(stage: Stage, ends: Ends, nbytes: int) -> float:
    """Seconds of a copy inside rank 0, while the others wait."""
    count = series(nbytes)

    def copies() -> None:
        if stage.world.rank == 0:
            for _ in range(count):
                np.copyto(ends.incoming[:nbytes], ends.outgoing[:nbytes])

    return stage.median(lambda: timed(stage, copies) / count)


def checked(stage: Stage, ends: Ends, way: Way, pair: Pair, nbytes: int) -> list[str]:
    """One transfer of fresh data into poisoned memory: what is wrong there, on every rank; collective."""
    world, (source, target) = stage.world, pair
    seed = zlib.crc32(f"{way.label} {pair} {nbytes}".encode())
    sent = Segment(0, nbytes, Copied(seed, 0), source)
    if world.rank == source:
        check.fill(ends.outgoing[:nbytes], BYTES, [sent])
    if world.rank == target:
        check.poison(ends.incoming[: nbytes + GUARD])
    world.backend.synchronize()
    world.control.barrier()
    way.move(source, target, nbytes, 1)
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
        f"{way.label}, rank {source} to rank {target}, {size_name(nbytes)}: {found.count} bytes wrong, "
        f"the first at {found.offset}: got {got}, expected {expected_text}"
    ]


def nominal(stage: Stage) -> tuple[Nominal, ...]:
    """What every rank's GPU's links could carry, none on CPUs; collective."""
    if stage.box is None:
        return ()
    links = runner.gpu_links(stage.world.here.device.uuid)
    mine = Nominal(links.nvlink.rate, links.nvlink.source, links.pcie.rate, links.pcie.source)
    return tuple(stage.world.control.allgather(mine))
