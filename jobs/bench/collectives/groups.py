"""Split ranks: the group of a rank, and the figures of each group.

nccl-tests averages over all ranks whatever the split: one slow group of eight makes the average an eighth
slower, and nothing in the output names it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jobs.bench.collectives.results import Group, RankMismatch
from jobs.bench.collectives.specs import bandwidths
from runner.errors import UserError

if TYPE_CHECKING:
    from jobs.bench.collectives.session import Bench, Point

SPLIT_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "AND": operator.and_,
    "&": operator.and_,
    "OR": operator.or_,
    "|": operator.or_,
    "MOD": operator.mod,
    "%": operator.mod,
    "DIV": operator.floordiv,
    "/": operator.floordiv,
}


def color_of(rank: int, split: str | None, mask: str | None) -> int:
    """Return the group of a rank by NCCL_TESTS_SPLIT_MASK (hexadecimal, rank AND mask) or NCCL_TESTS_SPLIT.

    NCCL_TESTS_SPLIT is AND, OR, MOD or DIV (or & | % /) with a number: decimal, 0x or 0b. Raises UserError.
    """
    if mask:
        try:
            return rank & int(mask, 16)
        except ValueError as reason:
            raise UserError("the split mask is not a hexadecimal number", got=repr(mask)) from reason
    if not split:
        return 0
    match = re.fullmatch(r"\s*(AND|OR|MOD|DIV|[&|%/])\s*(0x[0-9a-f]+|0b[01]+|\d+)\s*", split, re.IGNORECASE)
    number = int(match[2], 0 if match[2][:1] == "0" and len(match[2]) > 2 else 10) if match else 0
    if match is None or (number == 0 and match[1].upper() in ("MOD", "%", "DIV", "/")):
        raise UserError(
            "the split does not parse",
            got=repr(split),
            expected="AND, OR, MOD or DIV and a number, such as MOD8",
        )
    return SPLIT_OPERATORS[match[1].upper()](rank, number)


def grouped_figures(
    bench: Bench,
    point: Point,
    by_rank: Sequence[float],
    findings: Sequence[RankMismatch] | None,
    average: Callable[[Sequence[float]], float],
) -> tuple[Group, ...]:
    """Compute the figures of each color, averaged over its own ranks; empty if there is only one color."""
    colors = sorted({*bench.colors})
    if len(colors) == 1:
        return ()
    groups = []
    for color in colors:
        ranks = tuple(rank for rank, other in enumerate(bench.colors) if other == color)
        seconds = average([by_rank[rank] for rank in ranks])
        counts = bench.operation.counts(point.elements, point.datatype, len(ranks), bench.traffic)
        algbw, busbw = bandwidths(bench.operation, counts, point.datatype, len(ranks), seconds)
        wrong = None if findings is None else sum(found.count for found in findings if found.rank in ranks)
        groups.append(Group(color, ranks, seconds, algbw, busbw, wrong))
    return tuple(groups)
