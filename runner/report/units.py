"""Quantities as text."""

from __future__ import annotations

from collections.abc import Iterable


def figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else "<0.01"


def seconds_text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} us"


def bytes_text(count: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def size_name(size: int) -> str:
    """Format a size with four digits, for tables and plots: "8 B", "1 KiB", "1.5 MiB"."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} B"


def rate_text(rate: float) -> str:
    """rate: bytes per second."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if rate >= size:
            return f"{figure(rate / size)} {unit}"
    return f"{rate:.0f} B/s"


def cells_text(rate: float) -> str:
    """rate: cells per second."""
    size, unit = (1e9, "Gcell/s") if rate >= 1e9 else (1e6, "Mcell/s")
    return f"{figure(rate / size)} {unit}"


def percent_text(share: float) -> str:
    """share: from 0 to 1."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 or not percent else f"{percent:.1f} %"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ranges_of(numbers: Iterable[int]) -> list[str]:
    """Ascending numbers as ranges: "0-2", "5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ["-".join(map(str, run)) for run in runs]


def left_text(seconds: float) -> str:
    """Remaining time as [H:]M:SS: 0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
