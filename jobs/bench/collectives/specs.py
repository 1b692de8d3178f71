"""The operations: element counts, placement, bandwidth, and which data belongs where.

Counts, rounding to 16 bytes and bandwidths are those of nccl-tests 2.19.6 (src/<op>.cu: getCollByteCount and
getBw).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from meshrun.jobs.measure.patterns import Contributed, Copied, Reduced, Segment, Untouched
from meshrun.runner.comm.collectives.api import Datatype
from meshrun.runner.errors import UserError

SEEDS_PER_CHECK = 1 << 20  # more than ranks, so that no rank's data recurs in a later check


ALIGNMENT = 16  # bytes
GUARD = 4096  # bytes past the largest result that a call must leave as they were


@dataclass(frozen=True)
class Traffic:
    """spread: 0.0 sends the same to all, 1.0 in proportion to the distance in rank order. matrix: bytes from
    rank i to rank j in row i, multiples of 16; overrides the pattern. shares: of each rank in what a rank
    sends, in place of `spread`; the busiest rank receives the size."""

    spread: float = 1.0
    matrix: tuple[tuple[int, ...], ...] | None = None
    shares: tuple[float, ...] | None = None

    def elements(self, total: int, itemsize: int, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Return elements from rank i to rank j in row i, if each rank sends about `total` bytes."""
        if self.matrix is not None:
            return tuple(tuple(cell // itemsize for cell in row[:ranks]) for row in self.matrix[:ranks])
        if self.shares is not None:
            busiest = max(self.shares) * ranks
            row = [int(total * share / busiest) & ~(ALIGNMENT - 1) for share in self.shares]
            return (tuple(nbytes // itemsize for nbytes in row),) * ranks
        by_distance = [self._bytes(distance, total, ranks) // itemsize for distance in range(ranks)]
        return tuple(tuple(by_distance[(j - i) % ranks] for j in range(ranks)) for i in range(ranks))

    def _bytes(self, distance: int, total: int, ranks: int) -> int:
        if ranks == 1:
            return total & ~(ALIGNMENT - 1)
        even = total / ranks
        graded = distance * total / (ranks * (ranks - 1) // 2)
        return int((1.0 - self.spread) * even + self.spread * graded) & ~(ALIGNMENT - 1)


def expert_shares(experts: int, skew: float, ranks: int) -> tuple[float, ...]:
    """Return the share of each rank in the tokens of a mixture of experts.

    The popularity of expert k, from 1, is k ** -skew. The experts lie on the ranks in a random order with a
    fixed seed, as evenly as they can.
    """
    popularity = [k**-skew for k in range(1, experts + 1)]
    random.Random(0).shuffle(popularity)
    shares = [sum(popularity[rank::ranks]) for rank in range(ranks)]
    return tuple(share / sum(shares) for share in shares)


def read_matrix(path: Path, scale: float, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Read a square matrix of bytes from a text file; scale it and round down to 16. Raises UserError."""
    try:
        rows = [
            [float(word) for word in line.split()] for line in path.read_text().splitlines() if line.strip()
        ]
    except (OSError, ValueError) as reason:
        raise UserError(f"the traffic matrix {path} cannot be read", why=reason) from reason
    if not rows or any(len(row) != len(rows) for row in rows) or len(rows) < ranks:
        widths = sorted({len(row) for row in rows}) or [0]
        raise UserError(
            f"the traffic matrix {path} does not fit",
            got=f"{len(rows)} x {' or '.join(map(str, widths))}",
            expected=f"square, at least {ranks} x {ranks}",
        )
    # Written this way because comparisons with NaN are false.
    if not all(cell >= 0 and cell * scale <= 2**62 for row in rows for cell in row):
        raise UserError(f"the traffic matrix {path} holds a value that is not a number of bytes")
    return tuple(tuple(int(cell * scale) & ~(ALIGNMENT - 1) for cell in row) for row in rows)


@dataclass(frozen=True)
class Counts:
    """One size of one operation.

    count: argument of NCCL's function. send, recv: elements of the input and the result on a rank. send_step,
    recv_step: in place, rank r's input and result begin r times this many elements into the receive buffer.
    moved: elements that the bandwidth counts. traffic: of alltoallv, elements [from][to].
    """

    count: int
    send: int
    recv: int
    send_step: int
    recv_step: int
    moved: int
    traffic: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True)
class CollectiveSpec:
    """One operation.

    name: as in nccl-tests, whose program is NAME_perf. counts: (elements of the size, datatype, ranks,
    traffic) -> Shape. factor: busbw over algbw for n ranks. reduces: takes a reduction. rooted: has a root.
    in_place: its result can be checked in place; nccl-tests prints N/A otherwise. shows: the reduction to
    print if it takes none.
    """

    name: str
    counts: Callable[[int, Datatype, int, Traffic], Counts]
    factor: Callable[[int], float]
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True
    shows: str = "none"

    @property
    def program(self) -> str:
        return f"{self.name}_perf"


def _whole(elements: int, datatype: Datatype, ranks: int, traffic: Traffic) -> Counts:
    """Every rank holds all of it: all_reduce, broadcast, reduce, sendrecv."""
    return Counts(elements, elements, elements, 0, 0, elements)


def _share(elements: int, datatype: Datatype, ranks: int) -> int:
    """Return a rank's part, rounded down to a multiple of 16 bytes."""
    return (elements // ranks) & ~(ALIGNMENT // datatype.itemsize - 1)


def _gathered(elements: int, datatype: Datatype, ranks: int, traffic: Traffic) -> Counts:
    """A part goes in, all parts come out: all_gather, gather."""
    part = _share(elements, datatype, ranks)
    return Counts(part, part, part * ranks, part, 0, part * ranks)


def _hypercube(elements: int, datatype: Datatype, ranks: int, traffic: Traffic) -> Counts:
    part = _share(elements, datatype, ranks)
    return Counts(part, part, part * ranks, part, 0, part * (ranks - 1))


def _scattered(elements: int, datatype: Datatype, ranks: int, traffic: Traffic) -> Counts:
    """All parts go in, one comes out: reduce_scatter, scatter."""
    part = _share(elements, datatype, ranks)
    return Counts(part, part * ranks, part, 0, part, part * ranks)


def _exchanged(elements: int, datatype: Datatype, ranks: int, traffic: Traffic) -> Counts:
    part = _share(elements, datatype, ranks)
    return Counts(part, part * ranks, part * ranks, 0, 0, part * ranks)


def _exchanged_unevenly(elements: int, datatype: Datatype, ranks: int, traffic: Traffic) -> Counts:
    """Buffers have the size that the busiest rank needs; the bandwidth is that rank's."""
    part = 0 if traffic.matrix else _share(elements, datatype, ranks)
    table = traffic.elements(part * ranks * datatype.itemsize, datatype.itemsize, ranks)
    sent = max(sum(row) for row in table)
    received = max(sum(column) for column in zip(*table, strict=True))
    return Counts(part, sent, received, 0, 0, max(sent, received), table)


def _one(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


SPECS = {
    known.name: known
    for known in (
        CollectiveSpec("all_reduce", _whole, lambda ranks: 2 * (ranks - 1) / ranks, reduces=True),
        CollectiveSpec("all_gather", _gathered, _others),
        CollectiveSpec("reduce_scatter", _scattered, _others, reduces=True),
        CollectiveSpec("alltoall", _exchanged, _others, in_place=False),
        CollectiveSpec("alltoallv", _exchanged_unevenly, _others, in_place=False),
        CollectiveSpec("broadcast", _whole, _one, rooted=True),
        CollectiveSpec("reduce", _whole, _one, reduces=True, rooted=True),
        CollectiveSpec("gather", _gathered, _others, rooted=True),
        CollectiveSpec("scatter", _scattered, _others, rooted=True),
        # nccl-tests prints -o's reduction for sendrecv, which has none, and loops over all of them.
        CollectiveSpec("sendrecv", _whole, _one, in_place=False, reduces=True),
        CollectiveSpec("hypercube", _hypercube, _one, shows=""),
    )
}


def bandwidths(
    operation: CollectiveSpec, counts: Counts, datatype: Datatype, ranks: int, seconds: float
) -> tuple[float, float]:
    """Compute algbw and busbw, GB/s (1e9 bytes)."""
    algbw = counts.moved * datatype.itemsize / 1e9 / seconds if seconds else 0.0
    return algbw, algbw * operation.factor(ranks)


@dataclass(frozen=True)
class DataLayout:
    """The contents of one rank's memory: `sent` before the operation, `expected` after it.

    Positions are elements from the start of the rank's input and of its result.
    """

    sent: tuple[Segment, ...]
    expected: tuple[Segment, ...]


def data_layout(
    operation: CollectiveSpec,
    counts: Counts,
    ranks: int,
    rank: int,
    root: int,
    reduction: str,
    check: int,
    in_place: bool,
) -> DataLayout:
    """Return the data of check number `check` on one rank of `ranks`.

    A rank that receives nothing (gather and reduce, except on the root) must find its receive buffer
    unchanged: poisoned and, in place, with its own input in it.
    """
    own = SEEDS_PER_CHECK * check + rank
    count = counts.count

    def copied(start: int, length: int, seed: int, index: int, source: int) -> Segment:
        return Segment(start, length, Copied(seed, index), source)

    if operation.name in ("all_reduce", "reduce", "reduce_scatter"):
        given = Segment(0, counts.send, Contributed(check, 0, reduction, ranks, rank), rank)
        index = rank * count if operation.name == "reduce_scatter" else 0
        result = Segment(0, counts.recv, Reduced(check, index, reduction, ranks), None)
        if operation.name == "reduce" and rank != root:
            result = given if in_place else Segment(0, counts.recv, Untouched(), None)
        return DataLayout((given,), (result,))
    if operation.name in ("all_gather", "hypercube", "gather"):
        parts = tuple(
            copied(peer * count, count, SEEDS_PER_CHECK * check + peer, 0, peer) for peer in range(ranks)
        )
        if operation.name == "gather" and rank != root:
            parts = tuple(
                part if in_place and peer == rank else Segment(part.start, count, Untouched(), None)
                for peer, part in enumerate(parts)
            )
        return DataLayout((copied(0, count, own, 0, rank),), parts)
    if operation.name == "scatter":
        given = copied(0, counts.send, check, 0, root)
        return DataLayout((given,) if rank == root else (), (copied(0, count, check, rank * count, root),))
    if operation.name == "broadcast":
        whole = copied(0, count, check, 0, root)
        return DataLayout((whole,) if rank == root else (), (whole,))
    if operation.name == "sendrecv":
        before = (rank - 1) % ranks
        return DataLayout(
            (copied(0, count, own, 0, rank),),
            (copied(0, count, SEEDS_PER_CHECK * check + before, 0, before),),
        )
    if operation.name == "alltoall":
        parts = tuple(
            copied(peer * count, count, SEEDS_PER_CHECK * check + peer, rank * count, peer)
            for peer in range(ranks)
        )
        return DataLayout((copied(0, counts.send, own, 0, rank),), parts)
    traffic = counts.traffic or ()
    received = list(accumulate((traffic[peer][rank] for peer in range(ranks)), initial=0))
    parts = tuple(
        copied(
            received[peer],
            traffic[peer][rank],
            SEEDS_PER_CHECK * check + peer,
            sum(traffic[peer][:rank]),
            peer,
        )
        for peer in range(ranks)
    )
    rest = Segment(received[-1], counts.recv - received[-1], Untouched(), None)
    return DataLayout((copied(0, sum(traffic[rank]), own, 0, rank),), (*parts, rest) if rest.count else parts)


def surroundings(
    layout: DataLayout, counts: Counts, rank: int, in_place: bool, elements: int
) -> tuple[Segment, ...]:
    """Return what a call must leave as it was in the first `elements` of the receive memory.

    Poison around the result; in place, also the part of the input that is not part of the result. Positions
    are from the start of the memory, where a result in place begins `recv_step` times the rank later.
    """
    inputs, begin = [], 0
    if in_place:
        begin = counts.recv_step * rank
        inputs = [replace(one, start=one.start + counts.send_step * rank) for one in layout.sent]
    found, position = list[Segment](), 0
    for one in [*inputs, Segment(elements, 0, Untouched())]:
        for before in (Segment(position, one.start - position, Untouched()), one):
            found += [_clip(before, 0, begin), _clip(before, begin + counts.recv, elements)]
        position = one.start + one.count
    return tuple(one for one in found if one.count > 0)


def _clip(segment: Segment, begin: int, end: int) -> Segment:
    """Return the part of a segment from element `begin` to `end` of the memory; its count may be negative."""
    first = max(segment.start, begin)
    data = segment.data
    if not isinstance(data, Untouched):
        data = replace(data, index=data.index + first - segment.start)
    return Segment(first, min(segment.start + segment.count, end) - first, data, segment.source)
