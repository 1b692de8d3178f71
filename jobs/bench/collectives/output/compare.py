"""Compare two records row by row: whether B is as fast as A, and whether its data is right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshrun.jobs.bench.collectives.output.reader import PLACEMENTS, BenchRecord, Figures, RowKey, median
from meshrun.runner.errors import UserError
from meshrun.runner.report.table import table

METRICS = {"time": "time_us", "algbw": "algbw", "busbw": "busbw"}
UNITS = {"time": "us", "algbw": "GB/s", "busbw": "GB/s"}
ROUNDING = 1e-9  # so that 105 is within 5 % of 100 in floating point too
TITLES = ("size", "type", "redop", "root", "placement", "A", "B", "B/A", "verdict")


@dataclass(frozen=True)
class ComparisonRow:
    """One size and placement. a, b: medians over cycles; None if the record lacks it. ratio: b / a.

    ok: whether the comparison may pass. verdict: why.
    """

    key: RowKey
    placement: str
    a: float | None
    b: float | None
    ratio: float
    verdict: str
    ok: bool

    @property
    def place(self) -> str:
        key = self.key
        root = "" if key.root < 0 else f", root {key.root}"
        return f"{key.size} B {key.datatype} {key.reduction}{root} {PLACEMENTS[self.placement]}"


@dataclass(frozen=True)
class Comparison:
    """a, b: the records' names. metric: "time" (of A's clock), "algbw" or "busbw". tolerance: a fraction."""

    a: str
    b: str
    metric: str
    tolerance: float
    rows: tuple[ComparisonRow, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def judged(self) -> tuple[ComparisonRow, ...]:
        """All rows except those that only B has."""
        return tuple(row for row in self.rows if row.a is not None or not row.ok)

    @property
    def worst(self) -> ComparisonRow:
        """The worst row: a failure without a ratio first, then the slowest."""
        return max(self.judged, key=lambda row: (not row.ok, _slowdown(row.ratio, self.metric)))


def compare(a: BenchRecord, b: BenchRecord, tolerance: float, metric: str = "time") -> Comparison:
    """Compare every row of A with the same row of B; also list the rows that only B has.

    A row is not ok if B is slower than A by more than the tolerance (b / a - 1 of times, 1 - b / a of rates),
    if B lacks it, if a value is no number, or no time above 0, or if a record has wrong data. A faster row is
    ok. Raises UserError for an unknown metric, a negative tolerance, records of different tests, or times of
    different clocks.
    """
    if metric not in METRICS:
        raise UserError("unknown metric", got=metric, expected=" or ".join(METRICS))
    if not tolerance >= 0:
        raise UserError("the tolerance is not a fraction", got=tolerance, expected="0.05 for 5 %")
    operations = [_operation(record) for record in (a, b)]
    if None not in operations and operations[0] != operations[1]:
        raise UserError("the records are of different tests", got=" and ".join(map(str, operations)))
    if metric == "time" and a.clock != b.clock:
        raise UserError(
            "the records hold different times", got=f"{a.clock} and {b.clock}", hint="both with -C or none"
        )
    return Comparison(a.name, b.name, metric, tolerance, tuple(_rows(a, b, tolerance, metric)))


def compare_each(
    a: Mapping[str, BenchRecord], b: Mapping[str, BenchRecord], tolerance: float, metric: str
) -> list[Comparison]:
    """Compare each operation of A; raises UserError also if B lacks one. a, b: from `read_each`."""
    if missing := [name for name in a if name not in b]:
        raise UserError(
            "the records are of different tests",
            got=" and ".join(", ".join(filter(None, one)) or "a single one" for one in (a, b)),
            hint=f"B with {', '.join(filter(None, missing))}" if any(missing) else "one operation's of each",
        )
    return [compare(record, b[name], tolerance, metric) for name, record in a.items()]


def render(comparison: Comparison) -> str:
    """Format a table and the verdict, as whole lines."""
    lines = table(TITLES, [_cells(row) for row in comparison.rows], left=(), indent=0)
    names = f"A: {comparison.a}\nB: {comparison.b}\n{comparison.metric} in {UNITS[comparison.metric]}\n\n"
    return names + "\n".join(lines) + f"\n\n{verdict(comparison)}\n"


def verdict(comparison: Comparison) -> str:
    """Format the verdict as one sentence that names the worst row."""
    judged, worst = comparison.judged, comparison.worst
    failed = [row for row in judged if not row.ok]
    allowed = f"{100 * comparison.tolerance:g} %"
    if not failed:
        return (
            f"ok: no value of {len(judged)} is slower than A's by more than {allowed}"
            f"{_faster(judged)}; the slowest is {worst.ratio:.3f} times A's, at {worst.place}"
        )
    what = f"{worst.ratio:.3f} times A's" if math.isfinite(worst.ratio) else worst.verdict
    return (
        f"not ok: {len(failed)} of {len(judged)} values fail (tolerance {allowed}); "
        f"the worst is {what}, at {worst.place}"
    )


def _operation(record: BenchRecord) -> str | None:
    """Return the test's name without the suffixes of its binary."""
    return None if record.program is None else record.program.removesuffix("_mpi").removesuffix("_perf")


def _rows(a: BenchRecord, b: BenchRecord, tolerance: float, metric: str) -> Iterator[ComparisonRow]:
    for key in sorted({*a.rows, *b.rows}):
        for placement in PLACEMENTS:
            before, after = (record.rows.get(key, {}).get(placement, ()) for record in (a, b))
            if before or after:
                yield _row(key, placement, before, after, tolerance, metric)


def _row(
    key: RowKey,
    placement: str,
    before: tuple[Figures, ...],
    after: tuple[Figures, ...],
    tolerance: float,
    metric: str,
) -> ComparisonRow:
    a, b = (median(cycles, METRICS[metric]) if cycles else None for cycles in (before, after))
    wrong = [name for name, cycles in (("A", before), ("B", after)) if any(c.wrong for c in cycles)]
    ratio = _ratio(a, b)
    if wrong:
        reason, ok, ratio = f"wrong data in {' and '.join(wrong)}", False, math.nan
    elif a is None:
        reason, ok = "only in B", True
    elif b is None:
        reason, ok = "missing in B", False
    elif metric == "time" and not (a > 0 and b > 0 and math.isfinite(ratio)):
        reason, ok, ratio = "not a time", False, math.nan
    elif not math.isfinite(ratio):
        reason, ok = "not a number", False
    else:
        apart = abs(ratio - 1) > tolerance + ROUNDING
        better = (ratio < 1) == (metric == "time")
        ok = better or not apart
        reason = "ok" if not apart else "faster" if better else "slower"
    return ComparisonRow(key, placement, a, b, ratio, reason, ok)


def _ratio(a: float | None, b: float | None) -> float:
    """Compute b / a; 1 for equal values, even zeros (busbw of one rank); NaN if there is no ratio."""
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return math.nan
    if a == b:
        return 1.0
    return b / a if a else math.nan


def _slowdown(ratio: float, metric: str) -> float:
    """Compute the log of B's time over A's; infinite if the ratio is not positive."""
    if not (math.isfinite(ratio) and ratio > 0):
        return math.inf
    return math.log(ratio) if metric == "time" else -math.log(ratio)


def _faster(rows: Sequence[ComparisonRow]) -> str:
    count = sum(row.verdict == "faster" for row in rows)
    return f", {count} {'is' if count == 1 else 'are'} faster" if count else ""


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    key = row.key
    ratio = f"{row.ratio:.3f}" if math.isfinite(row.ratio) else "-"
    place = PLACEMENTS[row.placement]
    values = ["-" if value is None else f"{value:.2f}" for value in (row.a, row.b)]
    return (str(key.size), key.datatype, key.reduction, str(key.root), place, *values, ratio, row.verdict)
