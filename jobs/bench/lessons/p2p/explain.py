"""Explain measured methods between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.bench.lessons.p2p.methods import HOST
from jobs.bench.lessons.p2p.results import Pair, PeerResults
from jobs.bench.lessons.protocol import ChartLine, crossings, rate
from jobs.measure.sizes import size_name

PAIRS_NAMED = 3  # in a sentence


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
        peak, source = (
            (links.nvlink, links.nvlink_source) if links.nvlink else (links.pcie, links.pcie_source)
        )
        parts.append(
            f"{speed / peak:.1%} of its links' {peak:.4g} GB/s ({source})"
            if peak
            else f"peak of its links unknown ({links.nvlink_source}; {links.pcie_source})"
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
