"""What measured strides and misalignments show, in words."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.bench.lessons.coalescing.access import Access, ceiling, moved
from jobs.measure.sizes import size_name

CLOSE = 0.8  # of what was expected, and still as expected


def paragraphs(
    pieces: str,
    grain: int,
    strided: Mapping[Access, float],
    shifted: Mapping[Access, float],
    nbytes: int,
    cache: int,
) -> tuple[str, ...]:
    """pieces, grain: of memory, and how many elements they hold. strided, shifted: useful rates, as fractions
    of a copy's. nbytes: of the buffer. cache: bytes of L2, 0 where not known."""
    said = [
        coalesced(pieces, grain, strided),
        beyond(pieces, grain, strided),
        misaligned(pieces, grain, shifted),
    ]
    if nbytes < 4 * cache:
        said.append(
            f"The buffer of {size_name(nbytes)} is less than four times the L2 cache of {size_name(cache)}: "
            "part of this was read from the cache. A larger -e shows the memory."
        )
    return tuple(said)


def coalesced(pieces: str, grain: int, strided: Mapping[Access, float]) -> str:
    """Strides within a grain."""
    near, *_ = strided
    lost = ", ".join(
        f"{fraction:.1%} of a copy at stride {access.stride} ({ceiling(access, grain):.1%})"
        for access, fraction in strided.items()
        if 1 < access.stride <= grain
    )
    return (
        f"Read next to each other, elements arrive at {strided[near]:.1%} of a plain copy's rate. Memory "
        f"moves {pieces} of {4 * grain} bytes, {grain} elements each; with a stride only one element in so "
        f"many is used, until from stride {grain} on every element costs a whole one. Useful bytes came at "
        f"{lost}; in brackets, what is left of a copy where whole ones move at a copy's rate."
    )


def beyond(pieces: str, grain: int, strided: Mapping[Access, float]) -> str:
    """Strides past a grain, which by the arithmetic of grains change nothing more."""
    edge = next(access for access in strided if access.stride == grain)
    far = list(strided)[-1]

    def flow(access: Access) -> float:
        return strided[access] * moved(access, grain) / access.useful

    said = (
        f"From stride {edge.stride} to stride {far.stride} {pieces} say that nothing changes; useful bytes "
        f"went from {strided[edge]:.1%} to {strided[far]:.1%} of a copy, and all that moved from "
        f"{flow(edge):.1%} to {flow(far):.1%}."
    )
    if strided[far] < CLOSE * strided[edge]:
        said += (
            f" So {pieces} are not all of it: memory that fetches neighbours too, fewer bytes out of each "
            "open row, and more pages to translate all show in this way."
        )
    elif strided[far] * CLOSE > strided[edge]:
        said += " So far strides were faster than near ones here: part of them came out of a cache."
    return said


def misaligned(pieces: str, grain: int, shifted: Mapping[Access, float]) -> str:
    aligned, *rest = shifted
    worst = min(rest, key=lambda access: shifted[access])
    loss = 1 - shifted[worst] / shifted[aligned]
    said = f"Misaligned reads lose at most {max(loss, 0):.1%} (offset {worst.first})."
    partial = [access for access in rest if access.first % grain]
    if partial and loss < 1 - CLOSE:
        said += (
            f" They touch parts of {pieces} at both ends of every load, and its neighbour's load finds the "
            "rest of those in a cache: memory moves hardly more than before."
        )
    return said
