"""The table and the record of calls that overlap: with calls of other communicators, and with a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshrun.jobs.bench.collectives.output.nccl_tests_text import cells, figure, titles


@dataclass(frozen=True)
class About:
    """kernel: what is computed. unit: of its rate."""

    operation: str
    backend: str
    ranks: int
    communicators: int
    kernel: str
    unit: str


@dataclass(frozen=True)
class OverlapRow:
    """One size, out of place.

    calls, launches: timed calls on each communicator, and kernels. alone, together, beside: seconds of a call
    on one communicator, on all at once, and on one beside the kernel; together is None for one communicator.
    Their busbw in GB/s: together, of all communicators. kernel, kernel_beside: its rate alone and beside the
    calls, in `About.unit`. hidden: share of the calls' time. wrong: elements; None without checks.
    """

    size: int
    count: int
    datatype: str
    reduction: str
    root: int
    calls: int
    launches: int
    alone: float
    alone_busbw: float
    together: float | None
    together_busbw: float | None
    beside: float
    beside_busbw: float
    kernel: float
    kernel_beside: float
    hidden: float
    wrong: int | None


def header(about: About) -> str:
    several = f"{about.communicators} communicators"
    shown = several if about.communicators > 1 else "one communicator"
    lines = [
        f"# Overlap of {about.operation} on {about.ranks} ranks: {shown}; beside it, a {about.kernel}",
        f"# backend: {about.backend}",
        *titles(_columns(about)),
    ]
    return "\n".join(lines) + "\n"


def row(about: About, one: OverlapRow) -> str:
    shown = [
        str(one.size),
        one.datatype,
        one.reduction,
        figure(one.alone * 1e6, 9),
        figure(one.alone_busbw, 7),
    ]
    if one.together is not None and one.together_busbw is not None:
        shown += [figure(one.together * 1e6, 9), figure(one.together_busbw, 7)]
    shown += [figure(one.beside * 1e6, 9), figure(one.beside_busbw, 7)]
    shown += [figure(one.kernel, 8), figure(one.kernel_beside, 8), f"{100 * one.hidden:.0f}"]
    return cells(_columns(about), [*shown, "N/A" if one.wrong is None else str(one.wrong)]) + "\n"


def footer(about: About) -> str:
    """Explain the columns."""
    lines = ["alone: calls on one communicator"]
    if about.communicators > 1:
        lines.append(f"together: a call on each of {about.communicators} communicators, busbw of all of them")
    lines += [
        "beside: calls on one communicator while the kernel is repeated; kernel: its rate alone and beside",
        "hidden: share of the calls' time that does not prolong the kernels",
    ]
    return "".join(f"# {line}\n" for line in lines) + "#\n"


def document(about: About, rows: Sequence[OverlapRow]) -> dict[str, Any]:
    """Convert to JSON: seconds, GB/s, and shares from 0 to 1."""
    return {"program": "overlap", **asdict(about), "rows": [asdict(one) for one in rows]}


def _columns(about: About) -> tuple[tuple[str, str, int], ...]:
    pair = (("busbw", "(GB/s)", 7),)
    together = (("together", "(us)", 9), *pair) if about.communicators > 1 else ()
    return (
        ("size", "(B)", 12), ("type", "", 8), ("redop", "", 6), ("alone", "(us)", 9), *pair, *together,
        ("beside", "(us)", 9), *pair, ("kernel", f"({about.unit})", 9), ("beside", f"({about.unit})", 9),
        ("hidden", "(%)", 6), ("#wrong", "", 6),
    )  # fmt: skip
