"""Explain measured transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.measure.sizes import size_name

SecondsByMethod = Mapping[str, Mapping[str, Sequence[float | None]]]  # direction -> method -> by size


def sentences(
    sizes: Sequence[int], seconds: SecondsByMethod, allocated: Mapping[str, tuple[int, float]]
) -> list[str]:
    """Explain the times. allocated: bytes and seconds of the allocation of each kind of memory."""
    found = []
    for direction, methods in seconds.items():
        found += slower(direction, sizes, "pinned", methods["pinned"], "pageable", methods["pageable"])
        found += slower(
            direction,
            sizes,
            "prefetched",
            methods["prefetched"],
            "managed without prefetch",
            methods["managed"],
        )
    return found + break_even(sizes, seconds, allocated)


def slower(
    direction: str,
    sizes: Sequence[int],
    good: str,
    good_seconds: Sequence[float | None],
    bad: str,
    bad_seconds: Sequence[float | None],
) -> list[str]:
    """Compare the second method with the first at the largest size that both have."""
    known = [(n, a, b) for n, a, b in zip(sizes, good_seconds, bad_seconds, strict=True) if a and b]
    if not known:
        return []
    nbytes, fast, slow = known[-1]
    compared = f"{slow / fast:.3g} times as long as" if slow > 1.05 * fast else "no longer than"
    return [f"{size_name(nbytes)} {direction}: {bad} takes {compared} {good}."]


def break_even(
    sizes: Sequence[int], seconds: SecondsByMethod, allocated: Mapping[str, tuple[int, float]]
) -> list[str]:
    """Return after how many copies the allocation of pinned memory has paid off."""
    slow, fast = seconds["to GPU"]["pageable"][-1], seconds["to GPU"]["pinned"][-1]
    if not {"pinned", "pageable"} <= allocated.keys() or not slow or not fast:
        return []
    extra = allocated["pinned"][1] - allocated["pageable"][1]
    if extra <= 0:
        return []
    if slow <= fast:
        return ["Pinned memory takes longer to allocate, and copies to the GPU do not pay that back here."]
    copies = max(extra / (slow - fast), 1)
    return [
        f"Allocating pinned memory pays off after {copies:.3g} copies of {size_name(sizes[-1])} to the GPU."
    ]
