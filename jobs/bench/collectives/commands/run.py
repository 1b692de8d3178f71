"""Measure the chosen operations on all ranks; rank 0 prints and records the results."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshrun import World
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.measure import sweep
from meshrun.jobs.bench.collectives.output import rows_csv
from meshrun.jobs.bench.collectives.output.nccl_tests_json import combined, json_line, record
from meshrun.jobs.bench.collectives.output.reader import BenchRecord, of_rows
from meshrun.jobs.bench.collectives.output.screen import Screen
from meshrun.jobs.bench.collectives.output.transports import side_by_side
from meshrun.jobs.bench.collectives.results import Footer, Header, ResultRow
from meshrun.jobs.bench.collectives.session import (
    Bench,
    Session,
    check_ranks,
    colors_of,
    fits_hypercube,
    opened,
)
from meshrun.jobs.bench.collectives.specs import SPECS
from meshrun.jobs.measure import plots as measure_plots
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.jobs.measure.record_file import Json, RecordFile, open_record, refuse_unwritable
from meshrun.jobs.measure.watchdog import watching
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.report.record import STDOUT
from meshrun.runner.system.launcher import environment
from meshrun.runner.world.failure import FailureHandler


def run(world: World, handler: FailureHandler, options: BenchOptions, cli_context: Any) -> Json:
    """Measure; returns the completion record. Raises WrongResults, on every rank, after all is measured."""
    # Options also come from environment variables, which launchers may not pass to other hosts.
    options = world.control.broadcast(options)
    screen = Screen(world.rank == 0, options, cli_context.colour, cli_context.columns)
    colors = colors_of(world, options)
    operations = [name for name in options.operations if name != "hypercube" or fits_hypercube(colors)]
    for name in operations or options.operations:
        check_ranks(SPECS[name], options.settings, colors)
    world.on_root(lambda: check_files(options))
    if world.rank == 0:
        for name in filter(None, (options.json_lines, options.csv)):
            Path(name).write_text("", encoding="utf-8")
        if options.csv:
            append(options.csv, rows_csv.titles(options.settings))
    plotted: list[PlottedOperation] = []
    wrong: list[str] = []
    record_file: RecordFile | None = None
    documents: dict[str, str] = {}
    if len(operations) < len(options.operations):
        screen.line("# hypercube: skipped, the number of ranks in a group is no power of two\n")
    several = len(options.operations) * len(options.transports) > 1
    for name in operations:
        by_transport: list[BenchRecord] = []
        for transport in options.transports:
            label = name if len(options.transports) == 1 else f"{name}, {transport}"
            with (
                watching(world, handler, options.settings.timeout) as progress,
                opened(world, world.control, options, name, progress, colors, transport=transport) as session,
            ):
                record_file = record_file or open_record(world, options.output_file, screen.line)

                def written(text: str, label: str = label) -> str:
                    documents[label] = text
                    return combined(documents) if several else text

                lines, footer = _one(
                    world, handler, options, session, screen, cli_context.words, record_file, written
                )
            wrong += _problems(label, footer)
            settings, header = session.bench.settings, session.header
            by_transport.append(of_rows(str(transport), settings, header, lines))
            plotted.append(PlottedOperation(label, settings, header, lines, full_link(session.bench)))
        if len(by_transport) > 1:
            screen.line(side_by_side(*by_transport))
    if record_file is not None:
        record_file.close()
    if options.plot and world.rank == 0:
        what = options.operations[0] if len(options.operations) == 1 else "All operations"
        draw(options.plot, f"{what} on {world.size} rank{'s'[: world.size > 1]}: time and bandwidth", plotted)
    if wrong:
        raise WrongResults("; ".join(wrong), everywhere=True)
    return {"command": "bench", "operations": list(options.operations), "ranks": world.size}


def _one(
    world: World,
    handler: FailureHandler,
    options: BenchOptions,
    session: Session,
    screen: Screen,
    words: tuple[str, ...],
    record_file: RecordFile,
    document: Callable[[str], str],
) -> tuple[list[ResultRow], Footer]:
    """Measure one operation, from header to footer. document: makes the run's JSON of this operation's."""
    settings, header, bench = session.bench.settings, session.header, session.bench
    started, rows = time.time(), list[ResultRow]()
    if session.reduced:
        screen.line(f"#\n# Reducing maxBytes to {session.reduced} due to memory limitation\n")
    screen.header(settings, header)
    total = _total(settings, bench.operation.reduces, bench.operation.rooted, bench.group.size)
    rounds = sweep(bench)
    footer = Footer(0, 0.0, options.min_busbw, errors=("ended before all was measured",))

    def written() -> str:
        return document(record(settings, header, rows, footer, words, environment(), started, time.time()))

    def write_early() -> None:
        record_file.write(written, last=True)
        record_file.close()

    handler.before_exit = write_early
    while True:
        record_file.write(written)
        screen.progress(f"{bench.operation.name}, {session.header.backend}", len(rows), total)
        row = next(rounds, None)
        if row is None:
            break
        rows.append(row)
        screen.row(settings, header, row)
        if options.json_lines and world.rank == 0:
            append(options.json_lines, json_line(settings, header, row))
        if options.csv and world.rank == 0:
            append(options.csv, rows_csv.line(settings, header, row))
    failures = sum(world.control.allgather(bench.failures))
    busbw = [placed.busbw for row in rows for placed in (row.out_of_place, row.in_place)]
    footer = Footer(failures, statistics.fmean(busbw), options.min_busbw, session.memory())
    record_file.write(written, last=True)
    handler.before_exit = None
    screen.footer(settings, footer, header.program)
    return rows, footer


def append(name: str, line: str) -> None:
    """Append a line to a file. Raises RunError, with the file's name."""
    try:
        with open(name, "a", encoding="utf-8") as lines:
            lines.write(line)
    except OSError as reason:
        raise RunError(f"cannot write {name}", why=reason.strerror or reason) from reason


def check_files(options: BenchOptions) -> None:
    """Raise UserError for files that cannot be written or drawn; changes nothing."""
    if options.plot:
        measure_plots.check(options.plot)
    for option, name in (("--json-lines", options.json_lines), ("--csv", options.csv)):
        if name == STDOUT:
            raise UserError(f"{option} writes a file", got="-", hint="-J -, which is for standard output")
    for name in filter(None, (options.plot, options.json_lines, options.csv)):
        refuse_unwritable(Path(name))


@dataclass(frozen=True)
class PlottedOperation:
    """One operation's results for the plot, drawn after its buffers are freed. full: from `full_link`."""

    operation: str
    settings: SweepSettings
    header: Header
    rows: Sequence[ResultRow]
    full: tuple[float, float] | None


def draw(target: str, title: str, plotted: Sequence[PlottedOperation]) -> None:
    """Plot the rows of all operations, and the bandwidth at which each one's limiting link is full."""
    from meshrun.jobs.bench.collectives.output import plots, reader

    lines: list[plots.PlotSeries] = []
    limits: list[plots.BandwidthLimit] = []
    for one in plotted:
        label = one.operation if len(plotted) > 1 else one.header.backend.partition(" (")[0]
        lines += plots.series(reader.of_rows(label, one.settings, one.header, one.rows), label)
        if one.full is not None:
            nominal, busbw = one.full
            limits.append(
                plots.BandwidthLimit(f"{one.operation}: link at its nominal {nominal:g} GB/s", busbw)
            )
    plots.plot(lines, target, title, limits)


def full_link(bench: Bench) -> tuple[float, float] | None:
    """Return the limiting link's nominal rate and the bus bandwidth that fills it, GB/s; None if unknown."""
    factor = bench.operation.factor(bench.colors.count(bench.colors[0]))
    carried, _ = bench.wire(1.0, factor)
    return (bench.nominal, bench.nominal * factor / carried) if carried and bench.nominal else None


def _problems(name: str, footer: Footer) -> list[str]:
    """Return a sentence for each failure of one operation: wrong data, low bandwidth."""
    found = []
    if footer.failures:
        found.append(f"{name}: wrong data, in {footer.failures} checks on single ranks")
    least = footer.minimum_busbw
    if least is not None and not footer.average_busbw >= 0.9 * least:
        found.append(f"{name}: average bus bandwidth {footer.average_busbw:.4g} GB/s, below 0.9 of {least:g}")
    return found


def _total(settings: SweepSettings, reduces: bool, rooted: bool, ranks: int) -> int:
    """Return the number of rows to come; 0 if the run is endless."""
    roots = ranks if rooted and settings.root == -1 else 1
    return (
        len(settings.sizes())
        * len(settings.datatypes)
        * (len(settings.reductions) if reduces else 1)
        * roots
        * settings.run_cycles
    )
