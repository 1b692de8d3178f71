"""Explain measured transposes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from jobs.bench.lessons.transpose.methods import TimedTranspose


def sentences(timed: Sequence[TimedTranspose], cache: int) -> list[str]:
    """Explain the rates. cache: bytes of the GPU's L2 cache, 0 on a CPU."""
    if not timed:
        return []
    found = []
    largest = max(timed, key=lambda one: one.nbytes)
    shares = {
        method: share
        for method in largest.seconds
        if method != "copy" and (share := largest.of_copy(method)) is not None
    }
    if shares:
        best = max(shares, key=lambda method: shares[method])
        found.append(
            f"Largest matrix ({largest}): {best} is best, at {100 * shares[best]:.0f} % of a copy's "
            f"{largest.rate('copy'):.0f} GB/s."
        )
    found += gain(timed, "strided", "blocked")
    found += gain(timed, "naive", "tiled")
    found += gain([one for one in timed if one.aligned], "tiled", "vectorised")
    small = [str(one) for one in timed if one.nbytes <= cache]
    if small:
        found.append(f"Matrix and result fit in the L2 cache of {cache >> 20} MiB: {'; '.join(small)}.")
    return found


def gain(timed: Sequence[TimedTranspose], before: str, after: str) -> list[str]:
    """Compare the second method with the first: median speed-up over all matrices."""
    gains = [
        b / a
        for one in timed
        if {before, after} <= one.seconds.keys() and (a := one.rate(before)) and (b := one.rate(after))
    ]
    if not gains:
        return []
    return [f"{after.capitalize()} is {statistics.median(gains):.2f} times as fast as {before} (median)."]
