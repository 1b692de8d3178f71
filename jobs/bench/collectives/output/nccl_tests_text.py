"""Format the text of nccl-tests 2.19.6 in its exact layout, and lines and columns of our own.

Functions return whole lines and print nothing. Programs parse this text by its words: an additional line
must begin with "# " and contain neither "out-of-place" (they take the last such line for the
titles), nor "bandwidth" (the first such line for the average), nor "FAILED".
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.output.names import largest
from meshrun.jobs.bench.collectives.results import Footer, GpuMemoryUse, Header, PlacementResult, ResultRow

VERSION = "2.19.6"
STAMP = "%Y-%m-%d %H:%M:%S"
BLOCKING = {
    1: "wait and barrier after each inner iteration (-m) ",
    2: "wait after each inner iteration (-m), no barrier ",
    3: "wait and barrier after each outer iteration (-n); time excludes barrier ",
}
Columns = Sequence[tuple[str, str, int]]  # title, unit, width
KEYS = (("size", "(B)", 10), ("count", "(elements)", 12), ("type", "", 8), ("redop", "", 6), ("root", "", 6))
TIME = {False: ("time", "(us)", 7), True: ("cputime", "(us)", 7)}  # by -C
FIGURES = (("algbw", "(GB/s)", 6), ("busbw", "(GB/s)", 6), ("#wrong", "", 6))
ITERATIONS = (("i_min", "(us)", 7), ("i_max", "(us)", 7), ("i_p99", "(us)", 7), ("i_cv%", "(%)", 7))
BOLD_RED, GREEN, DIM, PLAIN = "\x1b[1;31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


def figure(value: float, width: int) -> str:
    """Format a number as getFloatStr (util.cu) does: as many decimals, at most two, as fit into the width.

    A number whose integer digits do not fit gets an exponent, and is cut if that does not fit either.
    """
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"[:width]


@dataclass(frozen=True)
class FurtherColumns:
    """Columns of our own at the end of a row, once for each placement. cells: a text for each column."""

    columns: Columns
    cells: Callable[[PlacementResult], Sequence[str]]


def cells(columns: Columns, row: Sequence[str]) -> str:
    """Align a row of one of our own tables, a text for each column."""
    return "  ".join(f"{cell:>{width}s}" for cell, (_, _, width) in zip(row, columns, strict=True))


def titles(columns: Columns) -> list[str]:
    """Return the two lines above such a table: titles and units."""
    rows = [title for title, _, _ in columns], [unit for _, unit, _ in columns]
    return ["#" + cells(columns, row)[1:] for row in rows]


def header(settings: SweepSettings, known: Header, further: Sequence[FurtherColumns] = ()) -> str:
    """Format everything before the first row, including the column titles."""
    step, unit = (settings.stepfactor, "factor") if settings.stepfactor > 1 else (settings.stepbytes, "bytes")
    lines = [
        f"# nccl-tests version {VERSION} nccl-headers={known.library} nccl-library={known.library}",
        f"# Collective test starting: {known.program}",
        f"# nThread 1 nGpus 1 minBytes {settings.minbytes} maxBytes {settings.maxbytes} step: {step}({unit}) "
        f"warmup iters: {settings.warmup_iters} iters: {settings.iters} agg iters: {settings.agg_iters} "
        f"validation: {settings.check} graph: {settings.cudagraph} unalign: {settings.unalign}",
    ]
    if settings.blocking in BLOCKING:
        lines.append(f"# Blocking Enabled: {BLOCKING[settings.blocking]}")
    if settings.per_iter_timing:
        skips = settings.per_iter_skip
        skipped = f"; summary skips first {skips} iterations" if skips else ""
        clock = "CUDA event" if known.library else "host clock"
        lines.append(f"# Per-Iteration Report: {clock} timing; i_* uses max over process rows{skipped} ")
    lines += ["#", "# Using devices"]
    lines += [
        f"#  Rank {one.rank:2d} Group {one.group:2d} Pid {one.pid:6d} on {one.host:>10s} "
        f"device {one.device:2d} [{one.bus_id}] {one.name}"
        for one in known.ranks
    ]
    lines += [f"# backend: {known.backend}", *(f"# {sentence}" for sentence in known.assumptions)]
    return "\n".join([*lines, "#", *_titles(settings, further)]) + "\n"


def row(settings: SweepSettings, measured: ResultRow, further: Sequence[FurtherColumns] = ()) -> str:
    """Format one size, both placements."""
    text = f"{measured.size:12d}  {measured.count:12d}  {measured.datatype:>8s}  {measured.reduction:>6s}  "
    text += f"{measured.root:6d}"
    text += "".join(_cells(settings, placement) for placement in (measured.out_of_place, measured.in_place))
    if settings.report_timestamps:
        text += f"{time.strftime(STAMP, time.localtime(measured.finished)):>21s}"
    for more in further:
        for placement in (measured.out_of_place, measured.in_place):
            aligned = zip(more.cells(placement), more.columns, strict=True)
            text += "".join(f"  {cell:>{width}s}" for cell, (_, _, width) in aligned)
    return text + "\n"


def footer(settings: SweepSettings, known: Footer, program: str) -> str:
    """Format everything after the last row."""
    verdict = ""
    if known.minimum_busbw is not None:
        verdict = "FAILED" if known.average_busbw < 0.9 * known.minimum_busbw else "OK"
    lines = [
        f"# {'Out of bounds values':<20s} : {known.failures} {'FAILED' if known.failures else 'OK'}",
        f"# {'Avg bus bandwidth':<20s} : {known.average_busbw:g} {verdict}",
        "#",
        f"# Collective test concluded: {program}",
    ]
    if settings.memory and known.memory is not None:
        lines.append(f"# {'GPU memory usage':<20s} : {_memory(known.memory)}")
    return "\n".join([*lines, "#", *([f"# error: {sentence}" for sentence in known.errors] or [""])]) + "\n"


def colour(text: str, measured: ResultRow) -> str:
    """Add ANSI colours to a row's text; the visible characters stay the same."""
    paint, column = {}, 5
    for values in (measured.out_of_place, measured.in_place):
        paint[column + 2] = GREEN if values.busbw > 0 else DIM
        paint[column + 3] = BOLD_RED if values.wrong else DIM
        column += 4 + 4 * (values.iterations is not None)
    cells = enumerate(re.split(r"(\S+)", text))  # every second one is a cell
    return "".join(
        f"{paint[i // 2]}{cell}{PLAIN}" if i % 2 and i // 2 in paint else cell for i, cell in cells
    )


def _titles(settings: SweepSettings, further: Sequence[FurtherColumns]) -> list[str]:
    """Format three lines of titles, with nccl-tests' trailing blank."""
    over = "           out-of-place                       in-place          "
    if settings.per_iter_timing:
        over = (
            "              out-of-place (+ per-iteration)                                "
            "in-place (+ per-iteration)"
        )
    figures = (TIME[settings.report_cputime], *FIGURES, *(ITERATIONS if settings.per_iter_timing else ()))
    columns = [*KEYS, *figures, *figures]
    stamp = ("timestamp", STAMP, 19) if settings.report_timestamps else ("", "", 0)
    titles, units = (
        "  ".join(f"{column[line]:>{column[2]}s}" for column in columns) + f" {stamp[line]:>{stamp[2]}s}"
        for line in (0, 1)
    )
    if further:
        added = [column for more in further for column in (*more.columns, *more.columns)]
        extra = ["".join(f"  {column[line]:>{column[2]}s}" for column in added) for line in (0, 1)]
        titles, units = titles.removesuffix(" ") + extra[0], units.removesuffix(" ") + extra[1]
    return [f"# {'':10s}  {'':12s}  {'':8s}  {'':6s}  {'':6s}{over}", f"# {titles}", f"# {units}"]


def _cells(settings: SweepSettings, values: PlacementResult) -> str:
    seconds = values.cpu_seconds if settings.report_cputime else values.seconds
    text = f"  {figure(seconds * 1e6, 7)}  {figure(values.algbw, 6)}  {figure(values.busbw, 6)}"
    # N/A stands one column short of #wrong's other values, as it does in nccl-tests.
    text += "    N/A" if values.wrong is None else f"  {float(values.wrong):6g}"
    if values.iterations is not None:
        of = values.iterations.summary()
        shown = (of.min * 1e6, of.max * 1e6, of.p99 * 1e6, of.cv)
        text += "".join(f"  {figure(value, 7)}" for value in shown)
    return text


def _wide_cells(values: PlacementResult) -> list[str]:
    cells = [
        "-" if values.wire is None else figure(values.wire, 6),
        "-" if values.wire_percent is None else figure(values.wire_percent, 6),
    ]
    for seconds in (values.by_rank, values.arrival_skew):
        cells += [str(largest(seconds)), figure(max(seconds) * 1e6, 7)] if seconds else ["-", "-"]
    return cells


WIDE = FurtherColumns(
    (
        ("wire", "(GB/s)", 6),
        ("%link", "(%)", 6),
        ("slowest", "(rank)", 7),
        ("after", "(us)", 7),
        ("latest", "(rank)", 7),
        ("by", "(us)", 7),
    ),
    _wide_cells,
)


def _tuning_cells(values: PlacementResult) -> list[str]:
    """What the library chose; two choices, as for a group of operations, are joined by "+"."""
    if not values.choices:
        return ["-", "-", "-"]
    parts = zip(*((c.algorithm, c.protocol, str(c.channels or "-")) for c in values.choices), strict=True)
    return ["+".join(dict.fromkeys(part)) for part in parts]


TUNING = FurtherColumns((("algo", "", 13), ("proto", "", 8), ("channels", "", 8)), _tuning_cells)


KINDS = {"nvlink": "nvl", "rdma": "rdma", "ip": "ip"}  # of WireTraffic: in titles


def _traffic_cells(values: PlacementResult) -> list[str]:
    """GB/s sent and received during one operation's time, by kind; the most of any GPU or host."""
    cells = []
    for kind in KINDS:
        for way in ("sent", "received"):
            sums: dict[str, float] = {}
            for wire in values.traffic or ():
                if wire.kind == kind:
                    sums[wire.owner] = sums.get(wire.owner, 0.0) + getattr(wire, way)
            rate = max(sums.values(), default=0.0) / 1e9 / values.seconds if values.seconds else 0.0
            cells.append(figure(rate, 7) if sums else "-")
    return cells


WIRES = FurtherColumns(
    tuple((f"{name}{way}", "(GB/s)", 7) for name in KINDS.values() for way in ("_tx", "_rx")), _traffic_cells
)


def _memory(used: GpuMemoryUse) -> str:
    parts = {
        "Initialization": used.initialization,
        "User-Allocated": used.buffers,
        "Collective": used.collective,
    }
    shown = [f"{name} {_amount(size)} " for name, size in parts.items()]
    return "| ".join([*shown, f"Total  {_amount(sum(parts.values()))}"])


def _amount(size: int) -> str:
    """Format bytes with about three digits in nccl-tests' units: powers of 1024 with decimal names."""
    amount, unit = float(size), "B"
    for power, name in ((30, "GB"), (20, "MB"), (10, "KB")):
        if abs(amount) >= 1 << power:
            amount, unit = amount / (1 << power), name
            break
    return f"{amount:.{2 if abs(amount) < 10 else 1 if abs(amount) < 100 else 0}f} {unit}"
