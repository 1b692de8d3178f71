"""Explain a map on streams."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.bench.lessons.streams.schedule import STAGES, StreamVariant


def sentences(stage_seconds: Sequence[float], variants: Sequence[StreamVariant]) -> list[str]:
    """Explain the times. stage_seconds: of each stage of a chunk by itself. variants: the first runs one step
    after another, the last uses pageable memory."""
    sequential, *pinned, pageable = variants
    best = min(pinned, key=lambda one: one.seconds)
    found = [
        f"Best: {best.label}, {sequential.seconds / best.seconds:.3g} times as fast as one step after another"
        + (f", {best.bound / best.seconds:.1%} of what its stages allow." if best.bound else ".")
    ]
    longest = max(stage_seconds)
    if longest > 1.2 * min(stage_seconds):
        found.append(f"Limited by: {STAGES[list(stage_seconds).index(longest)]}, the longest stage.")
    same = next(one for one in pinned if one.streams == pageable.streams)
    ratio = pageable.seconds / same.seconds
    compared = f"takes {ratio:.3g} times as long as" if ratio > 1.05 else "takes no longer than"
    return [*found, f"From pageable memory, {same.label} {compared} from pinned memory."]
