"""Name the ranks and groups behind a row's numbers, in comment lines (--names).

"out of place" has no hyphens here: programs take the last line with "out-of-place" for the column titles.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from jobs.bench.collectives.results import Header, RankMismatch, ResultRow, SplitGroup


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
    text += f"{_count(wrong.count, 'element')}, first at {wrong.offset}: got {wrong.got}, "
    text += f"expected {wrong.expected}, {_count(wrong.flipped_bits, 'bit')} flipped"
    if wrong.timed_call is not None:
        text += f", in timed call {wrong.timed_call}"
    return text if wrong.source is None else f"{text}, data of rank {wrong.source}"


def _group(place: str, group: SplitGroup) -> str:
    wrong = "N/A" if group.wrong is None else group.wrong
    return (
        f"group {group.color} (ranks {_ranges(group.ranks)}) {place}: {_microseconds(group.seconds)}, "
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


def _ranges(ranks: Sequence[int]) -> str:
    """Format ranks in order, such as "0-3,8"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def largest(values: Sequence[float]) -> int:
    """Return the index of the largest value, the first of equals."""
    return max(range(len(values)), key=values.__getitem__)


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.{2 if seconds < 1e-3 else 0}f} us"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
