"""One operation over two transports, row by row."""

from __future__ import annotations

from meshrun.jobs.bench.collectives.output.nccl_tests_text import cells, figure, titles
from meshrun.jobs.bench.collectives.output.reader import PLACEMENTS, BenchRecord, median


def side_by_side(a: BenchRecord, b: BenchRecord) -> str:
    """Format a table of times and bus bandwidths: medians over cycles, and the time of B over that of A."""
    columns = (
        ("size", "(B)", 12), ("type", "", 8), ("redop", "", 6), ("root", "", 6), ("placement", "", 12),
        (a.name, "(us)", 9), (b.name, "(us)", 9), (f"{b.name}/{a.name}", "", 8),
        (a.name, "(GB/s)", 7), (b.name, "(GB/s)", 7),
    )  # fmt: skip
    lines = [f"# {a.program}: {a.name} and {b.name} side by side", *titles(columns)]
    for key, placements in a.rows.items():
        for placement, figures in placements.items():
            both = figures, b.rows[key][placement]
            times, rates = ([median(one, metric) for one in both] for metric in ("time_us", "busbw"))
            shown = [str(key.size), key.datatype, key.reduction, str(key.root), PLACEMENTS[placement]]
            shown += [figure(time, 9) for time in times]
            shown.append(figure(times[1] / times[0], 8) if times[0] else "-")
            # A comment: programs that read nccl-tests' text would take it for a row.
            lines.append("#" + cells(columns, [*shown, *(figure(rate, 7) for rate in rates)])[1:])
    return "\n".join([*lines, "#"]) + "\n"
