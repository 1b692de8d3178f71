"""Explain measured allocators."""

from __future__ import annotations

from jobs.bench.lessons.pool.results import PoolResults
from jobs.measure.sizes import size_name

USUAL = 1 << 20  # bytes of the allocation to compare, if it was measured


def sentences(found: PoolResults) -> list[str]:
    lines = [_speed(found), _overhead(found)]
    if found.most < found.requested:
        lines.append(
            f"At most {size_name(found.most)} were allocated at a time, a quarter of free memory, instead of "
            f"{size_name(found.requested)}."
        )
    return lines


def _speed(found: PoolResults) -> str:
    """Compare the times of a repeated allocation and its release."""
    size = USUAL if USUAL in found.sizes else found.sizes[-1]

    def pair(pool: str) -> float:
        times = found.times[pool, size]
        # On a host the cost of memory is in the first touch.
        return times.release + (times.again if found.on_gpu else times.again_settled)

    own, *pools = found.pools
    compared = "; ".join(f"{pool} {pair(pool) * 1e6:.3g} us{_times(pair(own), pair(pool))}" for pool in pools)
    return f"Allocate and release {size_name(size)} again: {own} {pair(own) * 1e6:.3g} us; {compared}."


def _times(slow: float, fast: float) -> str:
    if slow <= 0 or fast <= 0:
        return ""
    return f" ({slow / fast:.3g} times as fast)" if slow >= fast else f" ({fast / slow:.3g} times as slow)"


def _overhead(found: PoolResults) -> str:
    """Name the pool that holds the most memory beyond that in use."""
    pool = max(found.accounts, key=lambda pool: found.accounts[pool].peak.fragmentation)
    peak = found.accounts[pool].peak
    return (
        f"Most fragmented: {pool}, which held {size_name(peak.reserved)} for {size_name(peak.live)} in use "
        f"({peak.fragmentation:.1%})."
    )
