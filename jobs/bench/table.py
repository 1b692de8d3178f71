"""The text of nccl-tests 2.19.6, byte for byte in layout, and what it lacks as lines and columns of its own.

Functions return whole lines and print nothing. Programs read this text by its words, so lines that
nccl-tests does not have begin with "# " and hold none of these: "out-of-place" and "in-place" (they mark
the titles), "bandwidth" (the first line with it is the average) and "FAILED".
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Sequence

from jobs.bench.iterations import summary
from jobs.bench.result import Footer, Group, Header, Measured, Memory, Row, Wrong
from jobs.bench.settings import Settings

VERSION = "2.19.6"
STAMP = "%Y-%m-%d %H:%M:%S"
BLOCKING = {
    1: "wait and barrier after each inner iteration (-m) ",
    2: "wait after each inner iteration (-m), no barrier ",
    3: "wait and barrier after each outer iteration (-n); time excludes barrier ",
}
PLACEMENTS = {"out_of_place": "out of place", "in_place": "in place"}
WIDE = (  # title, unit, width
    ("wire", "(GB/s)", 6),
    ("%link", "(%)", 6),
    ("slowest", "(rank)", 7),
    ("after", "(us)", 7),
    ("latest", "(rank)", 7),
    ("by", "(us)", 7),
)
BOLD_RED, GREEN, DIM, PLAIN = "\x1b[1;31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


def figure(value: float, width: int) -> str:
    """A number as getFloatStr (util.cu) writes it: as many decimals, at most two, as the width has room for.

    One too large for its whole digits gets an exponent, and is cut where that does not fit either.
    """
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"[:width]


def header(settings: Settings, known: Header, wide: bool = False) -> str:
    """Everything before the first row, the column titles included."""
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
        lines.append(f"# Per-Iteration Report: CUDA event timing; i_* uses max over process rows{skipped} ")
    lines += ["#", "# Using devices"]
    lines += [
        f"#  Rank {seat.rank:2d} Group {seat.group:2d} Pid {seat.pid:6d} on {seat.host:>10s} "
        f"device {seat.device:2d} [{seat.bus_id}] {seat.name}"
        for seat in known.seats
    ]
    lines += [f"# backend: {known.backend}", *(f"# {sentence}" for sentence in known.assumptions)]
    return "\n".join([*lines, "#", *_titles(settings, wide)]) + "\n"


def row(settings: Settings, measured: Row, wide: bool = False) -> str:
    """One size, both placements."""
    text = f"{measured.size:12d}  {measured.count:12d}  {measured.datatype:>8s}  {measured.reduction:>6s}  "
    text += f"{measured.root:6d}"
    text += "".join(_cells(settings, placement) for placement in _placements(measured).values())
    if settings.report_timestamps:
        text += f"{time.strftime(STAMP, time.localtime(measured.finished)):>21s}"
    if wide:
        text += "".join(_wide_cells(placement) for placement in _placements(measured).values())
    return text + "\n"


def footer(settings: Settings, known: Footer, program: str, error: str = "") -> str:
    """Everything after the last row. error: what the library said last; without it, the footer's own."""
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
    errors = (error,) if error else known.errors
    return "\n".join([*lines, "#", *(f"# error: {sentence}" for sentence in errors or ())]) + (
        "\n" if errors else "\n\n"
    )


def names(measured: Row, known: Header) -> str:
    """Who: a line for every rank with wrong data, for every group, for the slowest and the last to arrive."""
    hosts = {seat.rank: f"rank {seat.rank} (host {seat.host}, device {seat.device})" for seat in known.seats}
    lines: list[str] = []
    for placement, values in _placements(measured).items():
        place = PLACEMENTS[placement]
        lines += [_wrong(place, wrong) for wrong in values.findings]
        lines += [_group(place, group) for group in values.groups]
        lines += _extremes(place, values.groups)
        if values.by_rank:
            slow = _greatest(values.by_rank)
            lines.append(f"slowest: {hosts[slow]} {place}: {_microseconds(values.by_rank[slow])}")
        if values.lateness:
            last, late = _greatest(values.lateness), max(values.lateness)
            lines.append(f"last to arrive: {hosts[last]} {place}: {_microseconds(late)} after the median rank")
    return "".join(f"#   {line}\n" for line in lines)


def colour(text: str, measured: Row) -> str:
    """A row's text with ANSI colours; what is seen stays the same, character by character."""
    paint, column = {}, 5
    for values in _placements(measured).values():
        paint[column + 2] = GREEN if values.busbw > 0 else DIM
        paint[column + 3] = BOLD_RED if values.wrong else DIM
        column += 4 + 4 * (values.iterations is not None)
    cells = enumerate(re.split(r"(\S+)", text))  # every second one is a cell
    return "".join(
        f"{paint[i // 2]}{cell}{PLAIN}" if i % 2 and i // 2 in paint else cell for i, cell in cells
    )


def _placements(measured: Row) -> dict[str, Measured]:
    return {"out_of_place": measured.out_of_place, "in_place": measured.in_place}


def _titles(settings: Settings, wide: bool) -> Iterator[str]:
    """Three lines of titles; they end in a blank, as nccl-tests' do."""
    first = ("time" if not settings.report_cputime else "cputime", "algbw", "busbw", "#wrong")
    units, widths = ("(us)", "(GB/s)", "(GB/s)", ""), (7, 6, 6, 6)
    over = "           out-of-place                       in-place          "
    if settings.per_iter_timing:
        first += ("i_min", "i_max", "i_p99", "i_cv%")
        units, widths = (*units, "(us)", "(us)", "(us)", "(%)"), (*widths, 7, 7, 7, 7)
        over = (
            "              out-of-place (+ per-iteration)                                "
            "in-place (+ per-iteration)"
        )
    stamp = ("timestamp", STAMP) if settings.report_timestamps else ("", "")
    yield f"# {'':10s}  {'':12s}  {'':8s}  {'':6s}  {'':6s}{over}"
    lines = (
        (("size", "count", "type", "redop", "root"), first, stamp[0], [title for title, _, _ in WIDE]),
        (("(B)", "(elements)", "", "", ""), units, stamp[1], [unit for _, unit, _ in WIDE]),
    )
    for what, figures, stamped, extra in lines:
        cells = [f"{cell:>{width}s}" for cell, width in zip(what, (10, 12, 8, 6, 6), strict=True)]
        cells += [f"{cell:>{width}s}" for cell, width in zip(figures, widths, strict=True)] * 2
        text = "# " + "  ".join(cells) + f" {stamped:>{19 if settings.report_timestamps else 0}s}"
        if wide:
            text = text.removesuffix(" ")
            text += "".join(f"  {cell:>{w}s}" for cell, (_, _, w) in zip(extra, WIDE, strict=True)) * 2
        yield text


def _cells(settings: Settings, values: Measured) -> str:
    seconds = values.cpu_seconds if settings.report_cputime else values.seconds
    text = f"  {figure(seconds * 1e6, 7)}  {figure(values.algbw, 6)}  {figure(values.busbw, 6)}"
    # N/A stands one column short of #wrong's other values, as it does in nccl-tests.
    text += "    N/A" if values.wrong is None else f"  {float(values.wrong):6g}"
    if values.iterations is not None:
        of = summary(values.iterations)
        shown = (of.min * 1e6, of.max * 1e6, of.p99 * 1e6, of.cv)
        text += "".join(f"  {figure(value, 7)}" for value in shown)
    return text


def _wide_cells(values: Measured) -> str:
    cells = [
        "-" if values.wire is None else figure(values.wire, 6),
        "-" if values.wire_percent is None else figure(values.wire_percent, 6),
    ]
    for seconds in (values.by_rank, values.lateness):
        cells += [str(_greatest(seconds)), figure(max(seconds) * 1e6, 7)] if seconds else ["-", "-"]
    return "".join(f"  {cell:>{width}s}" for cell, (_, _, width) in zip(cells, WIDE, strict=True))


def _memory(used: Memory) -> str:
    parts = {
        "Initialization": used.initialization,
        "User-Allocated": used.buffers,
        "Collective": used.collective,
    }
    shown = [f"{name} {_amount(size)} " for name, size in parts.items()]
    return "| ".join([*shown, f"Total  {_amount(sum(parts.values()))}"])


def _amount(size: int) -> str:
    """Bytes with three digits or so, in nccl-tests' units: powers of 1024 under decimal names."""
    amount, unit = float(size), "B"
    for power, name in ((30, "GB"), (20, "MB"), (10, "KB")):
        if abs(amount) >= 1 << power:
            amount, unit = amount / (1 << power), name
            break
    return f"{amount:.{2 if abs(amount) < 10 else 1 if abs(amount) < 100 else 0}f} {unit}"


def _wrong(place: str, wrong: Wrong) -> str:
    text = f"wrong: rank {wrong.rank} (host {wrong.host}, {wrong.device}) {place}: "
    text += f"{_count(wrong.count, 'element')}, first at {wrong.offset}: got {wrong.got}, "
    text += f"expected {wrong.expected}, {_count(wrong.flipped_bits, 'bit')} flipped"
    return text if wrong.source is None else f"{text}, data of rank {wrong.source}"


def _group(place: str, group: Group) -> str:
    wrong = "N/A" if group.wrong is None else group.wrong
    return (
        f"group {group.color} (ranks {_ranges(group.ranks)}) {place}: {_microseconds(group.seconds)}, "
        f"busbw {group.busbw:.2f} GB/s, #wrong {wrong}"
    )


def _extremes(place: str, groups: Sequence[Group]) -> list[str]:
    if not groups:
        return []
    ordered = sorted(groups, key=lambda group: group.busbw)
    low, high, middle = ordered[0], ordered[-1], statistics.median(group.busbw for group in groups)
    return [
        f"groups {place}: busbw min {low.busbw:.2f} GB/s (group {low.color}), median {middle:.2f} GB/s, "
        f"max {high.busbw:.2f} GB/s (group {high.color})"
    ]


def _ranges(ranks: Sequence[int]) -> str:
    """Ranks in order, such as "0-3,8"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _greatest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _microseconds(seconds: float) -> str:
    return f"{figure(seconds * 1e6, 7).strip()} us"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
