"""What allocation was measured to cost, as tables, charts and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jobs.bench.lessons.pool.workload import Account, Moment
from jobs.bench.lessons.protocol import Chart, Lesson, Line, Table
from jobs.measure.sizes import size_name

MIB = 1 << 20
STRETCHES = 50  # of a run, in a drawing of digits
POINTS = 200  # of a run, in a chart
USUAL = 1 << 20  # bytes of the allocation that a sentence is about, where it was measured


@dataclass(frozen=True)
class Times:
    """Seconds of one call; settled: until the device has done it.

    first: an allocation when the pool holds nothing. again: one of a size that was released just before.
    """

    first: float
    first_settled: float
    again: float
    again_settled: float
    release: float
    release_settled: float


@dataclass(frozen=True)
class Passes:
    """Seconds of the workload, settled after each step: from an empty pool; again; and again, not settled."""

    first: float
    again: float
    alone: float


@dataclass(frozen=True)
class Measured:
    """device: what was measured. asked, most: bytes at a time, by the command's word and really.

    pools: labels, the driver's or the system's own calls first. allocations: in the workload. watch: whether
    memory over the run is shown. times: by pool and bytes. passes, accounts: by pool. wrong: a sentence for
    each overlap.
    """

    device: str
    on_gpu: bool
    asked: int
    most: int
    pools: tuple[str, ...]
    sizes: tuple[int, ...]
    allocations: int
    watch: bool = False
    times: dict[tuple[str, int], Times] = field(default_factory=dict)
    passes: dict[str, Passes] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def settling(self) -> str:
        """What settling is."""
        return "sync" if self.on_gpu else "touch"


def lesson(found: Measured) -> Lesson:
    """Everything that is shown and recorded."""
    tables = [*(_times(found, pool) for pool in found.pools), _workload(found)]
    charts = [_by_size(found)]
    if found.watch:
        tables += _watched(found)
        charts += _over_the_run(found)
    return Lesson(
        name="pool",
        title=f"Allocation on {found.device}",
        tables=tuple(tables),
        said=tuple(said(found)),
        charts=tuple(charts),
        wrong=tuple(found.wrong),
        facts=_facts(found),
    )


def _times(found: Measured, pool: str) -> Table:
    more = found.settling
    kinds = {"first": "first", f"first+{more}": "first_settled"}
    kinds |= {"again": "again", f"again+{more}": "again_settled", "release": "release"}
    if found.on_gpu:  # on a host a release is done when the call is
        kinds[f"release+{more}"] = "release_settled"
    rows = tuple(
        (size_name(size), *(getattr(found.times[pool, size], name) * 1e6 for name in kinds.values()))
        for size in found.sizes
    )
    return Table(("size", *(f"{title} (us)" for title in kinds)), rows, pool)


def _workload(found: Measured) -> Table:
    titles = (
        "pool", f"first+{found.settling} (ms)", f"again+{found.settling} (ms)", "again (ms)",
        "most in use (MiB)", "most held (MiB)", "fragmentation (%)", "held at end (MiB)", "trimmed (MiB)",
    )  # fmt: skip
    rows = []
    for pool in found.pools:
        kept, spent = found.accounts[pool], found.passes[pool]
        times = (spent.first * 1e3, spent.again * 1e3, spent.alone * 1e3)
        sizes = (kept.live / MIB, kept.peak.reserved / MIB)
        rest = (kept.left / MIB, kept.trimmed / MIB)
        rows.append((pool, *times, *sizes, 100 * kept.peak.fragmentation, *rest))
    title = f"{found.allocations} allocations and releases, at most {size_name(found.most)} at a time"
    return Table(titles, tuple(rows), title)


def said(found: Measured) -> list[str]:
    """Paragraphs; each figure in them was measured."""
    paragraphs = [_one_size(found), _whole(found), _held(found), _left(found)]
    if found.most < found.asked:
        paragraphs.append(
            f"At most {size_name(found.most)} were asked for at a time, a quarter of what was free, "
            f"instead of {size_name(found.asked)}."
        )
    return paragraphs


def _one_size(found: Measured) -> str:
    """What a pool saves, of one allocation."""
    size = USUAL if USUAL in found.sizes else found.sizes[-1]
    own, *pools = found.pools
    settled = not found.on_gpu  # memory that nobody touches is of no use to anybody

    def pair(pool: str) -> float:
        times = found.times[pool, size]
        return times.release + (times.again_settled if settled else times.again)

    words = f"{size_name(size)} allocated{', touched' if settled else ''} and released again and again: "
    words += f"{own} {_us(pair(own))}; " + "; ".join(
        f"{pool} {_us(pair(pool))}, {_times_as(pair(own), pair(pool))}" for pool in pools
    )
    first = [(getattr(found.times[p, size], "first_settled" if settled else "first"), p) for p in pools]
    return f"{words}. The first time: " + ", ".join(f"{pool} {_us(taken)}" for taken, pool in first) + "."


def _whole(found: Measured) -> str:
    """What it saves a program."""
    doing = "synchronised after every call" if found.on_gpu else "every page touched"
    kinds = [("From empty pools", "first"), ("Once more, with what the pools kept", "again")]
    if found.on_gpu:
        kinds.append(("Once more, the calls alone", "alone"))
    words = [
        f"{when}: " + ", ".join(f"{pool} {_ms(getattr(found.passes[pool], kind))}" for pool in found.pools)
        for when, kind in kinds
    ]
    what = f"{found.allocations} allocations of sizes left to chance, and their releases, {doing}"
    return f"{what}. {'. '.join(words)}."


def _held(found: Measured) -> str:
    """What that costs in memory."""
    words = [
        f"{pool} {size_name(kept.peak.reserved)} for {size_name(kept.peak.live)} in use "
        f"({kept.peak.fragmentation:.1%} fragmentation)"
        for pool, kept in found.accounts.items()
    ]
    unknown = (
        "" if found.on_gpu else f" (What malloc holds for {found.pools[0]} beyond that, it does not say.)"
    )
    return f"Held at the peak: {'; '.join(words)}.{unknown}"


def _left(found: Measured) -> str:
    """What stays when the program needs nothing."""
    left = [
        f"{pool} {size_name(kept.left)}, {size_name(kept.trimmed)} after it was told to give back"
        for pool, kept in found.accounts.items()
        if kept.left
    ]
    none = [pool for pool, kept in found.accounts.items() if not kept.left]
    words = "Held when all is released: " + "; ".join(left) if left else ""
    nothing = f"nothing by {', '.join(none)}" if none else ""
    if words and nothing:
        return f"{words}; {nothing}."
    return f"{words}." if words else f"Held when all is released: {nothing}."


def _by_size(found: Measured) -> Chart:
    lines = [
        Line(
            f"{pool}, {name}",
            tuple((float(size), getattr(found.times[pool, size], kind) * 1e6) for size in found.sizes),
        )
        for pool in found.pools
        for name, kind in (
            ("first", "first" if found.on_gpu else "first_settled"),
            ("again", "again" if found.on_gpu else "again_settled"),
        )
    ]
    return Chart("size", "allocation (us)", tuple(lines), bytes=True, log_y=True)


def _rows(found: Measured) -> tuple[list[tuple[str, list[int]]], list[tuple[str, list[int]]]]:
    """Bytes after each step: asked for and held by each pool; in use on the device while it ran."""
    accounts = list(found.accounts.items())
    held = [("asked for", [moment.live for moment in accounts[0][1].moments])]
    held += [(pool, [moment.reserved for moment in kept.moments]) for pool, kept in accounts]
    return held, [(pool, [moment.used for moment in kept.moments]) for pool, kept in accounts]


def _watched(found: Measured) -> list[Table]:
    tables = []
    whose = "The GPU's memory in use" if found.on_gpu else "This process's memory"
    for what, rows in zip(("Held", whose), _rows(found), strict=True):
        top = max(max(values) for _, values in rows)
        drawn = tuple((name, digits(values, top), max(values) / MIB) for name, values in rows)
        title = f"{what} over the run, 9 is {size_name(top)}"
        tables.append(Table(("", "from begin to end", "most (MiB)"), drawn, title))
    return tables


def _over_the_run(found: Measured) -> list[Chart]:
    charts = []
    for name, rows in zip(("held (MiB)", "in use (MiB)"), _rows(found), strict=True):
        lines = tuple(
            Line(label, tuple((float(at), value / MIB) for at, value in thinned(values)))
            for label, values in rows
        )
        charts.append(Chart("step", name, lines, log_x=False))
    return charts


def digits(values: Sequence[int], top: int) -> str:
    """A drawing: for each of STRETCHES parts of the run its highest value, 9 for `top`."""
    return "".join(str(9 * value // top if top else 0) for _, value in thinned(values, STRETCHES))


def thinned(values: Sequence[int], points: int = POINTS) -> list[tuple[int, int]]:
    """At most so many (step, value): the highest of each stretch, steps from 1."""
    length = -(-len(values) // points)
    starts = range(0, len(values), length)
    return [(start + 1, max(values[start : start + length])) for start in starts]


def _times_as(slow: float, quick: float) -> str:
    if quick <= 0 or slow <= 0:
        return "too short for the clock"
    return f"{slow / quick:.3g} times as fast" if slow >= quick else f"{quick / slow:.3g} times as slow"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _facts(found: Measured) -> dict[str, Any]:
    """Seconds and bytes."""
    return {
        "device": found.device,
        "asked": found.asked,
        "most": found.most,
        "times": [{"pool": pool, "bytes": n, **asdict(times)} for (pool, n), times in found.times.items()],
        "workload": [
            {
                "pool": pool,
                "allocations": found.allocations,
                "seconds": asdict(found.passes[pool]),
                "peak_live": kept.live,
                "peak_reserved": kept.peak.reserved,
                "fragmentation": kept.peak.fragmentation,
                "left": kept.left,
                "trimmed": kept.trimmed,
                **({"moments": [_moment(moment) for moment in kept.moments]} if found.watch else {}),
            }
            for pool, kept in found.accounts.items()
        ],
    }


def _moment(moment: Moment) -> list[int]:
    """live, reserved, used."""
    return [moment.live, moment.reserved, moment.used]
