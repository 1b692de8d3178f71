"""What measured transfers show, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.measure.sizes import size_name

WHY_STAGING = (
    "Copy engines need pages that stay where they are: the driver copies pageable data through pinned "
    "buffers of its own."
)
Seconds = Mapping[str, Mapping[str, Sequence[float | None]]]


def paragraphs(
    sizes: Sequence[int],
    seconds: Seconds,
    fastest: Mapping[str, Sequence[tuple[float, str]]],
    allocated: Mapping[str, tuple[int, float]],
) -> tuple[str, ...]:
    """seconds: of each direction and way, by size. fastest: of each direction, (from which size on, way).

    allocated: of each kind of memory, its bytes and the seconds that it took to get them.
    """
    said = (staging(direction, sizes, ways) for direction, ways in seconds.items())
    staged = [sentence for sentence in said if sentence]
    return tuple(
        paragraph
        for paragraph in (
            " ".join(winners(direction, found) for direction, found in fastest.items() if found),
            " ".join([*staged, WHY_STAGING]) if staged else "",
            start(sizes, seconds),
            pages(sizes, seconds),
            price(sizes, seconds, allocated),
        )
        if paragraph
    )


def winners(direction: str, found: Sequence[tuple[float, str]]) -> str:
    (_, first), *later = found
    if not later:
        return f"Data {direction}: {first} is the fastest way at every size."
    changes = ", ".join(f"{way} from {size_name(round(size))}" for size, way in later)
    return f"Data {direction}: {first} is the fastest way at first, {changes}."


def staging(direction: str, sizes: Sequence[int], ways: Mapping[str, Sequence[float | None]]) -> str:
    """Pageable against pinned, at the largest size."""
    pageable, pinned = ways["pageable"][-1], ways["pinned"][-1]
    if not pageable or not pinned:
        return ""
    size, factor = size_name(sizes[-1]), pageable / pinned
    if factor > 1.05:
        return (
            f"{size} {direction} takes {factor:.3g} times as long with pageable memory as with pinned memory."
        )
    return f"{size} {direction} takes no longer with pageable memory than with pinned memory."


def start(sizes: Sequence[int], seconds: Seconds) -> str:
    """What the smallest transfers cost, where that is time to start and not to move."""
    found = []
    for direction, ways in seconds.items():
        known = sorted((times[0], way) for way, times in ways.items() if times[0])
        each_byte = [t / n for times in ways.values() for n, t in zip(sizes, times, strict=True) if t]
        if known and known[0][0] > 2 * sizes[0] * min(each_byte):
            (least, best), (most, worst) = known[0], known[-1]
            found.append(
                f"{size_name(sizes[0])} {direction} takes from {least * 1e6:.3g} us ({best}) to "
                f"{most * 1e6:.3g} us ({worst})"
            )
    if not found:
        return ""
    return f"{'; '.join(found)}: small transfers cost the time to start them, whatever the rate of the link."


def pages(sizes: Sequence[int], seconds: Seconds) -> str:
    """Managed memory with and without prefetch, at the largest size that there is of it."""
    found = []
    for direction, ways in seconds.items():
        known = [
            (n, one, other)
            for n, one, other in zip(sizes, ways["managed"], ways["prefetched"], strict=True)
            if one and other
        ]
        if known:
            n, touched, fetched = known[-1]
            found.append(
                f"{size_name(n)} {direction} at {n / touched / 1e9:.3g} GB/s without prefetch and "
                f"{n / fetched / 1e9:.3g} GB/s with it"
            )
    if not found:
        return ""
    return (
        f"Managed pages moved {', and '.join(found)}. Without prefetch a page moves once somebody has "
        "touched it and waits; a prefetch moves them before, without faults."
    )


def price(sizes: Sequence[int], seconds: Seconds, allocated: Mapping[str, tuple[int, float]]) -> str:
    """What pinned memory costs, and after how many copies that is paid back."""
    if not {"pinned", "pageable"} <= allocated.keys():
        return ""
    nbytes, pinned = allocated["pinned"]
    _, pageable = allocated["pageable"]
    gib = (1 << 30) / nbytes
    said = (
        f"To allocate a GiB took {pinned * gib:.3g} s pinned and {pageable * gib:.3g} s pageable "
        f"(measured with {size_name(nbytes)})"
    )
    slow, fast = seconds["to GPU"]["pageable"][-1], seconds["to GPU"]["pinned"][-1]
    if not slow or not fast or pinned <= pageable:
        return f"{said}."
    if slow <= fast:
        return f"{said}, which faster copies to the GPU never pay back here."
    copies = (pinned - pageable) / (slow - fast)
    return (
        f"{said}. Faster copies to the GPU pay the difference back after {max(copies, 1):.3g} of them at "
        "that size: pinned memory is for buffers that are kept."
    )
