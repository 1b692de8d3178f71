"""Repeat a record on these ranks; rank 0 prints its times beside those of the run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshrun import World
from meshrun.jobs.bench.replay.repeat import Repeater
from meshrun.jobs.bench.replay.source import read_source
from meshrun.jobs.bench.replay.wire import TimeParts, time_parts
from meshrun.jobs.measure.record_file import open_record, print_table, text_stream
from meshrun.runner.comm.clock import clock_offsets
from meshrun.runner.errors import UserError
from meshrun.runner.recorder.operations import OperationRecord, RankOperations
from meshrun.runner.world.failure import FailureHandler

ROW = "  {:<18} {:>12} {:>9} {:>12} {:>12} {:>7}"
PART = "# {:<24} {:>12} {:>12}"


@dataclass(frozen=True)
class ReplayOptions:
    """The command's options. record: the file. gaps: wait as the run computed. repeats: of the whole run."""

    record: Path
    gaps: bool = True
    repeats: int = 3
    output_file: str | None = None


def run(world: World, handler: FailureHandler, options: ReplayOptions, cli_context: Any) -> dict[str, Any]:
    """Repeat a record; returns the completion record. UserError for a record that does not fit."""
    options = world.control.broadcast(options)
    record = world.on_root(lambda: read_source(options.record))
    record = world.control.broadcast(record)
    if len(record.ranks) > world.size:
        raise UserError(
            f"{options.record} is of {len(record.ranks)} ranks",
            got=f"{world.size} here",
            hint=f"meshrun -n {len(record.ranks)} bench replay {options.record}",
            everywhere=True,
        )
    stream = text_stream(options.output_file)

    def say(line: str) -> None:
        if world.rank == 0:
            print_table(line, stream)

    record_file = open_record(world, options.output_file, say)
    gaps = options.gaps and record.timed
    repeater = Repeater(world, record)
    repeater.run(gaps=False)  # connects the ranks, and brings code into caches
    repeated = [_gathered(world, record, repeater.run(gaps)) for _ in range(options.repeats)]
    repeater.close()
    parts = sorted((time_parts(one) for one in repeated), key=lambda one: one.wire)
    here = parts[len(parts) // 2]
    before = time_parts(record) if record.timed else None
    say(text(options, record, before, here, world, gaps))
    document = {
        "program": "replay",
        "source": str(options.record),
        "command": record.command,
        "ranks": len(record.ranks),
        "gaps": gaps,
        "recorded": None if before is None else summary(before),
        "here": summary(here),
        "repeats": [one.wire for one in parts],
    }
    record_file.write(lambda: json.dumps(document) + "\n", last=True)
    record_file.close()
    return {"command": "bench replay", "ranks": world.size}


def _gathered(world: World, record: OperationRecord, mine: RankOperations) -> OperationRecord:
    """Return the record with the times of this repeat, on rank 0's clock. Collective."""
    offset = clock_offsets(world.control)[world.rank].offset
    operations = [replace(one, began=one.began - offset, ended=one.ended - offset) for one in mine.operations]
    moved = replace(mine, began=mine.began - offset, ended=mine.ended - offset, operations=operations)
    return replace(record, ranks=world.control.allgather(moved)[: len(record.ranks)], timed=True)


def summary(parts: TimeParts) -> dict[str, Any]:
    """Return the parts for JSON: seconds, sums over the ranks."""
    kinds = [
        {
            "operation": name,
            "bytes": nbytes,
            "calls": kind.calls,
            "wire": kind.seconds,
            "median": kind.median,
        }
        for (name, nbytes), kind in sorted(parts.kinds.items())
    ]
    return {
        "total": parts.total,
        "wire": parts.wire,
        "waiting": parts.waiting,
        "rest": parts.rest,
        "kinds": kinds,
    }


def text(
    options: ReplayOptions,
    record: OperationRecord,
    before: TimeParts | None,
    here: TimeParts,
    world: World,
    gaps: bool,
) -> str:
    """Return the table: wire time of each kind of operation, then the parts of the time, per rank."""
    ranks = len(record.ranks)
    hosts = ", ".join(dict.fromkeys(rank.host for rank in record.ranks if rank.host))
    lines = [
        f"# Replay of {options.record}: {record.command}, {ranks} ranks{f' on {hosts}' if hosts else ''}",
        f"# Here: {world.size} ranks on {', '.join(world.hosts)}, {world.arrays.label}, median of "
        f"{options.repeats} repeats",
    ]
    if world.size > ranks:
        lines.append(f"# Ranks {ranks} to {world.size - 1} have no part in it")
    if record.others:
        lines.append(f"# {record.others} operations of other threads are left out")
    if not record.timed:
        lines.append("# The log has no times: operations follow one another without gaps")
    lines.append(
        "#\n# Seconds on the wire per rank, from when all ranks that take part have entered an operation:"
    )
    lines.append("#" + ROW[1:].format("operation", "bytes", "calls", "recorded", "here", "ratio"))
    for (name, nbytes), kind in sorted(here.kinds.items(), key=lambda item: -item[1].seconds):
        recorded = None if before is None else before.kinds[name, nbytes].seconds / ranks
        lines.append(
            ROW.format(
                name, nbytes, kind.calls, _seconds(recorded), _seconds(kind.seconds / ranks),
                "-" if not recorded else f"{kind.seconds / ranks / recorded:.2f}",
            )
        )  # fmt: skip
    lines.append("#\n" + PART.format("Seconds per rank", "recorded", "here"))
    for title, name in (
        ("wire", "wire"),
        ("waiting for other ranks", "waiting"),
        ("rest", "rest"),
        ("total", "total"),
    ):
        recorded = None if before is None else getattr(before, name) / ranks
        lines.append(PART.format(title, _seconds(recorded), _seconds(getattr(here, name) / ranks)))
    shares = [f"{parts.wire / parts.total:.1%}" if parts and parts.total else "-" for parts in (before, here)]
    lines.append(PART.format("wire, share of total", *shares))
    if before is not None and not gaps:
        lines.append("# Without gaps, the total here is not that of the run")
    return "\n".join(lines) + "\n"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
