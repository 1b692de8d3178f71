"""Explain measured strides and misalignments."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.bench.lessons.coalescing.access import Access, ceiling
from jobs.measure.sizes import size_name


def sentences(
    size: int, strided: Mapping[Access, float], misaligned: Mapping[Access, float], nbytes: int, cache: int
) -> tuple[str, ...]:
    """Explain the rates. size: elements of a piece. strided, misaligned: useful rates as fractions of a
    copy's.

    nbytes: of the buffer. cache: bytes of the last-level cache, 0 if unknown.
    """
    aligned, *rest = misaligned
    worst = min(rest, key=lambda access: misaligned[access])
    loss = max(1 - misaligned[worst] / misaligned[aligned], 0)
    rates = ", ".join(
        f"stride {access.stride} {strided[access]:.1%} (at most {ceiling(access, size):.1%})"
        for access in strided
        if access.stride in (1, size, list(strided)[-1].stride)
    )
    found = [
        f"Useful rate as a share of a copy's: {rates}. Limits assume that pieces move at a copy's rate.",
        f"Misaligned reads lose at most {loss:.1%} (offset {worst.first}).",
    ]
    if nbytes < 4 * cache:
        found.append(
            f"The buffer of {size_name(nbytes)} is less than four times the L2 cache of {size_name(cache)}: "
            "part of it was read from the cache. Use a larger -e to measure memory."
        )
    return tuple(found)
