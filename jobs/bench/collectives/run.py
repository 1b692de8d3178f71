"""Every operation asked for, measured, shown and recorded, by all ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import runner
from jobs.bench.collectives.config import Asked, Settings
from jobs.bench.collectives.nccl_tests_json import json_line, record, together
from jobs.bench.collectives.results import Footer, Header, Row
from jobs.bench.collectives.screen import Screen
from jobs.bench.collectives.session import Bench, Session, check_ranks, colors_of, fits_hypercube, opened
from jobs.bench.collectives.specs import OPERATIONS
from jobs.bench.collectives.sweep import sweep
from jobs.measure import plots as measure_plots
from jobs.measure.exit_codes import WrongResults
from jobs.measure.record_file import RecordFile, open_record, refuse_unwritable
from jobs.measure.watchdog import watching
from runner import World

Json = dict[str, Any]


def run(world: World, ending: runner.Ending, asked: Asked, door: Any) -> Json:
    """Measure; the completion record. Raises WrongResults, on every rank, after all is measured."""
    # Ranks on other hosts may not have been given rank 0's environment.
    asked = world.control.broadcast(asked)
    screen = Screen(world.rank == 0, asked, door.colour, door.columns)
    colors = colors_of(world, asked)
    operations = [name for name in asked.operations if name != "hypercube" or fits_hypercube(colors)]
    for name in operations or asked.operations:
        check_ranks(OPERATIONS[name], asked.settings, colors)
    world.once(lambda: check_files(asked))
    if asked.json_lines and world.rank == 0:
        Path(asked.json_lines).write_text("", encoding="utf-8")
    curves: list[Curve] = []
    wrong: list[str] = []
    kept: RecordFile | None = None
    documents: dict[str, str] = {}
    if len(operations) < len(asked.operations):
        screen.line("# hypercube: skipped, the ranks of a group are no power of two\n")
    for name in operations:
        with (
            watching(world, ending, asked.settings.timeout) as trail,
            opened(world, world.control, asked, name, trail, colors) as session,
        ):
            kept = kept or open_record(world, asked.output_file, screen.line)
            lines, footer = _one(world, ending, asked, session, screen, door.words, kept, documents)
        wrong += _complaints(name, footer)
        curves.append(Curve(name, session.bench.settings, session.header, lines, full_link(session.bench)))
    if asked.plot and world.rank == 0:
        what = asked.operations[0] if len(asked.operations) == 1 else "All operations"
        draw(asked.plot, f"{what} on {world.size} rank{'s'[: world.size > 1]}: time and bandwidth", curves)
    if wrong:
        raise WrongResults("; ".join(wrong), everywhere=True)
    return {"command": "bench", "operations": list(asked.operations), "ranks": world.size}


def _one(
    world: World,
    ending: runner.Ending,
    asked: Asked,
    session: Session,
    screen: Screen,
    words: tuple[str, ...],
    kept: RecordFile,
    documents: dict[str, str],
) -> tuple[list[Row], Footer]:
    """One operation from header to footer; its rows. documents: JSON of those before it, then of it too."""
    settings, header, bench = session.bench.settings, session.header, session.bench
    started, rows = time.time(), list[Row]()
    if session.reduced:
        screen.line(f"#\n# Reducing maxBytes to {session.reduced} due to memory limitation\n")
    screen.header(settings, header)
    total = _total(settings, bench.operation.reduces, bench.operation.rooted, bench.group.size)
    rounds = sweep(bench)
    footer = Footer(0, 0.0, asked.min_busbw, errors=("ended before all was measured",))

    def written() -> str:
        text = record(settings, header, rows, footer, words, runner.environment(), started, time.time())
        documents[bench.operation.name] = text
        return text if len(asked.operations) == 1 else together(documents)

    ending.keep = lambda: kept.write(written, last=True)
    while True:
        kept.write(written)
        screen.progress(f"{bench.operation.name}, {session.header.backend}", len(rows), total)
        row = next(rounds, None)
        if row is None:
            break
        rows.append(row)
        screen.row(settings, header, row)
        if asked.json_lines and world.rank == 0:
            with open(asked.json_lines, "a", encoding="utf-8") as lines:
                lines.write(json_line(settings, header, row))
    failures = sum(world.control.allgather(bench.failures))
    busbw = [placed.busbw for row in rows for placed in (row.out_of_place, row.in_place)]
    footer = Footer(failures, statistics.fmean(busbw), asked.min_busbw, session.memory())
    kept.write(written, last=True)
    ending.keep = None
    screen.footer(settings, footer, header.program)
    return rows, footer


def check_files(asked: Asked) -> None:
    """Raise UserError for files that cannot be written or drawn; changes nothing."""
    if asked.plot:
        measure_plots.check(asked.plot)
    for name in filter(None, (asked.plot, asked.json_lines)):
        refuse_unwritable(Path(name))


@dataclass(frozen=True)
class Curve:
    """What a plot shows of one operation; its buffers are gone by then. full: of `full_link`."""

    operation: str
    settings: Settings
    header: Header
    rows: Sequence[Row]
    full: tuple[float, float] | None


def draw(target: str, title: str, curves: Sequence[Curve]) -> None:
    """Every operation's rows over each other, and where each one's tight link would be full."""
    from jobs.bench.collectives import plots, reader

    lines: list[plots.Series] = []
    limits: list[plots.Limit] = []
    for curve in curves:
        label = curve.operation if len(curves) > 1 else curve.header.backend.partition(" (")[0]
        lines += plots.series(reader.of_rows(label, curve.settings, curve.header, curve.rows), label)
        if curve.full is not None:
            nominal, busbw = curve.full
            limits.append(plots.Limit(f"{curve.operation}: link at its nominal {nominal:g} GB/s", busbw))
    plots.plot(lines, target, title, limits)


def full_link(bench: Bench) -> tuple[float, float] | None:
    """The tight link's nominal rate, and the bus bandwidth that would fill it, GB/s; None where not known."""
    factor = bench.operation.factor(bench.colors.count(bench.colors[0]))
    carried, _ = bench.wire(1.0, factor)
    return (bench.nominal, bench.nominal * factor / carried) if carried and bench.nominal else None


def _complaints(name: str, footer: Footer) -> list[str]:
    """What is wrong with one operation's results, for people."""
    found = []
    if footer.failures:
        found.append(f"{name}: wrong data, in {footer.failures} checks on single ranks")
    least = footer.minimum_busbw
    if least is not None and not footer.average_busbw >= 0.9 * least:
        found.append(f"{name}: average bus bandwidth {footer.average_busbw:.4g} GB/s, below 0.9 of {least:g}")
    return found


def _total(settings: Settings, reduces: bool, rooted: bool, ranks: int) -> int:
    """How many rows there will be; 0 where they go on for ever."""
    roots = ranks if rooted and settings.root == -1 else 1
    return (
        len(settings.sizes())
        * len(settings.datatypes)
        * (len(settings.reductions) if reduces else 1)
        * roots
        * settings.run_cycles
    )
