"""What a map on streams shows, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.bench.lessons.streams.schedule import STAGES
from jobs.measure.sizes import size_name


def paragraphs(
    alone: Sequence[float], variants: Mapping[str, tuple[float, float | None]], chunks: int, nbytes: int
) -> tuple[str, ...]:
    """alone: seconds of each stage of a chunk of `nbytes`, from pinned memory. variants: by label, seconds
    and their bound; the first one step after another, the last from pageable memory, which has no bound."""
    (_, (sequential, _)), *others = variants.items()
    label, (pageable, _) = others.pop()
    bounded = {other: (seconds, bound) for other, (seconds, bound) in others if bound is not None}
    return (
        limits(alone, chunks, nbytes),
        gains(sequential, bounded),
        needs(sequential, variants[label.partition(",")[0]][0], label, pageable),
    )


def limits(alone: Sequence[float], chunks: int, nbytes: int) -> str:
    longest = max(alone)
    parts = ", ".join(f"{stage} {t * 1e3:.4g} ms" for stage, t in zip(STAGES, alone, strict=True))
    most = chunks * sum(alone) / (sum(alone) + (chunks - 1) * longest)
    said = (
        f"A chunk of {size_name(nbytes)} takes {parts}: {sum(alone) * 1e3:.4g} ms one after another, and "
        f"{longest * 1e3:.4g} ms where all three overlap, which with {chunks} chunks, filling and draining "
        f"included, is {most:.3g} times as fast at most."
    )
    if longest > 1.2 * min(alone):
        said += (
            f" The stages are not alike: {STAGES[list(alone).index(longest)]} limits what streams can gain."
        )
    return said


def gains(sequential: float, variants: Mapping[str, tuple[float, float]]) -> str:
    """variants: by label, seconds and bound, of pinned memory."""
    speeds = ", ".join(f"{sequential / seconds:.3g} with {label}" for label, (seconds, _) in variants.items())
    best = min(variants, key=lambda label: variants[label][0])
    seconds, bound = variants[best]
    said = (
        f"Times as fast as one step after another: {speeds}. {best.capitalize()} took the least time, "
        f"{bound / seconds:.1%} of what its stages allow."
    )
    if bound < 0.9 * seconds:
        said += (
            " The bound takes each stage's time alone and no call's; side by side the two directions share a "
            "link and the host's memory, and copies and kernel the GPU's memory."
        )
    return said


def needs(sequential: float, pinned: float, label: str, pageable: float) -> str:
    """The same streams from pinned and from pageable memory."""
    said = (
        "A stream does one thing after another; what is on different streams may run at once, since each "
        "direction has a copy engine of its own beside the processors that run the kernel. Copies do so from "
        f"pinned memory only: the call for a pageable one copies itself. {label.capitalize()}, is "
        f"{sequential / pageable:.3g} times as fast as one step after another from pinned memory"
    )
    if pageable > 1.05 * pinned:
        return (
            f"{said}, and takes {pageable / pinned:.3g} times as long as the same streams with pinned memory."
        )
    return f"{said}, as fast as the same streams with pinned memory: here it costs nothing."
