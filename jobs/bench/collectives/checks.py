"""Check results: write the data of a call before it, and compare with what its result must be after it.

One timed call of each size and placement is checked in this way, and as many calls after the timed ones as -c
says. All memory that is poisoned is compared, so that what a call writes beyond its result shows too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.jobs.bench.collectives.results import RankMismatch
from meshrun.jobs.bench.collectives.session import Bench, Point
from meshrun.jobs.bench.collectives.specs import GUARD, data_layout, surroundings
from meshrun.jobs.bench.collectives.timing import bound_call, places, start_of
from meshrun.jobs.measure.check import fill, poison, verify
from meshrun.jobs.measure.patterns import Segment
from meshrun.runner.comm.collectives.api import Pointer

REPEATABLE = ("min", "max")  # reductions whose result is the same with one of the inputs replaced by it


@dataclass(frozen=True)
class PreparedCall:
    """A call whose data is written. memory: receive memory at its place, flat uint8. result: where in it the
    result begins, in elements. expected: all of the memory after the call, the result first. timed_call: as
    in `RankMismatch`."""

    memory: Any
    result: int
    expected: Sequence[Segment]
    timed_call: int | None = None


def prepare(bench: Bench, point: Point, number: int, iteration: int | None = None) -> PreparedCall:
    """Poison the receive memory and write the input of check `number`.

    iteration: a timed call, whose place other calls' places follow; None for a call that is made only to be
    checked, at the first place, with GUARD more bytes.
    """
    call, counts, size = bound_call(bench, point, iteration or 0), point.counts, point.datatype.itemsize
    rank = bench.group.rank
    layout = data_layout(
        bench.operation, counts, bench.group.size, rank, point.root, point.reduction, number, point.in_place
    )
    nbytes = point.bytes + (GUARD if iteration is None else 0)
    memory = Pointer(bench.recv, start_of(bench, point, iteration or 0)).bytes(nbytes)
    bench.progress.pause()  # large data takes long to write
    poison(memory)
    fill(call.send.bytes(counts.send * size), point.datatype, layout.sent)
    bench.world.backend.synchronize()
    bench.progress.before("its input is ready")
    result = counts.recv_step * rank if point.in_place else 0
    expected = [Segment(result + one.start, one.count, one.data, one.source) for one in layout.expected]
    expected += surroundings(layout, counts, rank, point.in_place, nbytes // size)
    return PreparedCall(memory, result, expected, iteration)


def chosen_call(bench: Bench, point: Point, calls: int | None = None) -> int | None:
    """Choose the timed call to check, at random and the same on all ranks; None if none can be checked.

    It is one of those whose result no later call overwrites, at a place that the untimed call before does not
    use if there is another. A reduction in place that is repeated on its own result has no exact one. calls:
    number of timed ones; None: as the settings say.
    """
    settings, several = bench.settings, places(bench, point)
    calls = settings.iters * settings.agg_iters if calls is None else calls
    last = range(max(calls - several, 0), calls)
    iteration = random.Random(bench.checks).choice([one for one in last if one % several] or last)
    place = iteration % several
    times = len(range(place, calls, several)) * (settings.cudagraph or 1) + (place == 0)
    repeatable = not bench.operation.reduces or point.reduction in REPEATABLE
    return iteration if times == 1 or repeatable or not point.in_place else None


def check(bench: Bench, point: Point, number: int) -> RankMismatch | None:
    """Check one call on fresh data; returns the mismatch in this rank's result, or None."""
    prepared = prepare(bench, point, number)
    bench.progress.done("in the call that is checked")
    one = [bench.group.bind(bound_call(bench, point, 0))]
    bench.group.issue([bench.group.captured(one)] if bench.settings.cudagraph else one)
    bench.group.wait()
    return compare(bench, point, prepared)


def compare(bench: Bench, point: Point, prepared: PreparedCall) -> RankMismatch | None:
    """Compare the memory of a call that was made with what is expected."""
    bench.progress.pause()
    found = verify(prepared.memory, point.datatype, prepared.expected)
    bench.progress.done("its result is checked")
    if found is None:
        return None
    here, mine = bench.world.here, bench.colors[bench.everyone.rank]
    members = [rank for rank, color in zip(bench.world_ranks, bench.colors, strict=True) if color == mine]
    return RankMismatch(
        rank=here.number,
        host=here.host,
        device=str(here.device),
        count=found.count,
        offset=found.offset - prepared.result,
        got=found.got,
        expected=found.expected,
        source=None if found.source is None else members[found.source],
        flipped_bits=found.flipped_bits,
        timed_call=prepared.timed_call,
    )
