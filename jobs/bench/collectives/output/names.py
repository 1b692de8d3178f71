"""Name the ranks and groups behind a row's numbers, in comment lines (--names).

"out of place" has no hyphens here: programs take the last line with "out-of-place" for the column titles.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from meshrun.jobs.bench.collectives.results import Header, RankMismatch, ResultRow, SplitGroup
from meshrun.runner.report.units import counted, ranges_of


def names(measured: ResultRow, header: Header) -> str:
    """Return a line for each rank with wrong data, each group, the slowest rank and the last to arrive."""
    hosts = {one.rank: f"rank {one.rank} (host {one.host}, device {one.device})" for one in header.ranks}
    lines: list[str] = []
    for place, values in (("out of place", measured.out_of_place), ("in place", measured.in_place)):
        lines += [_wrong(place, wrong) for wrong in values.findings]
        lines += [_group(place, group) for group in values.groups]
        lines += _extremes(place, values.groups)
        if values.by_rank:
            slow = largest(values.by_rank)
            lines.append(f"slowest: {hosts[slow]} {place}: {_microseconds(values.by_rank[slow])}")
        if values.arrival_skew:
            last = largest(values.arrival_skew)
            late = _microseconds(values.arrival_skew[last])
            lines.append(f"last to arrive: {hosts[last]} {place}: {late} after the median rank")
    return "".join(f"#   {line}\n" for line in lines)


def mismatches(measured: ResultRow) -> list[str]:
    """Return a sentence for every rank with wrong data in either placement."""
    size = f"{measured.size} B {measured.datatype}"
    return [
        f"{size}: {_wrong(place, found)}"
        for place, values in (("out of place", measured.out_of_place), ("in place", measured.in_place))
        for found in values.findings
    ]


def _wrong(place: str, wrong: RankMismatch) -> str:
    text = f"wrong: rank {wrong.rank} (host {wrong.host}, {wrong.device}) {place}: "
    text += f"{counted(wrong.count, 'element')}, first at {wrong.offset}: got {wrong.got}, "
    text += f"expected {wrong.expected}, {counted(wrong.flipped_bits, 'bit')} flipped"
    if wrong.timed_call is not None:
        text += f", in timed call {wrong.timed_call}"
    return text if wrong.source is None else f"{text}, data of rank {wrong.source}"


def _group(place: str, group: SplitGroup) -> str:
    wrong = "N/A" if group.wrong is None else group.wrong
    ranks = ",".join(ranges_of(sorted(group.ranks)))
    return (
        f"group {group.color} (ranks {ranks}) {place}: {_microseconds(group.seconds)}, "
        f"busbw {group.busbw:.4g} GB/s, #wrong {wrong}"
    )


def _extremes(place: str, groups: Sequence[SplitGroup]) -> list[str]:
    if not groups:
        return []
    ordered = sorted(groups, key=lambda group: group.busbw)
    low, high, middle = ordered[0], ordered[-1], statistics.median(group.busbw for group in groups)
    return [
        f"groups {place}: busbw min {low.busbw:.4g} GB/s (group {low.color}), median {middle:.4g} GB/s, "
        f"max {high.busbw:.4g} GB/s (group {high.color})"
    ]


def largest(values: Sequence[float]) -> int:
    """Return the index of the largest value, the first of equals."""
    return max(range(len(values)), key=values.__getitem__)


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.{2 if seconds < 1e-3 else 0}f} us"
