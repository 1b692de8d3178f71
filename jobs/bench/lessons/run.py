"""Measure one lesson, print it and write its record, on all ranks."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from meshrun import World
from meshrun.jobs.bench.lessons import show
from meshrun.jobs.bench.lessons.protocol import Context, Lesson
from meshrun.jobs.measure.exit_codes import NeedsGpu, WrongResults
from meshrun.jobs.measure.record_file import (
    create_outputs,
    print_table,
    recorded_environment,
    text_stream,
    write_record,
)
from meshrun.jobs.measure.status_line import StatusLine
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.errors import UserError
from meshrun.runner.system.launcher import environment
from meshrun.runner.world.failure import FailureHandler

GPU_ONLY = ("streams",)  # lessons without methods for a CPU
BETWEEN_RANKS = ("p2p",)  # lessons that need two ranks or more; others measure one


@dataclass(frozen=True)
class LessonOptions:
    """The command's options. sizes: first and last, bytes. own: options of this lesson only, by name."""

    name: str
    samples: int
    check: bool
    sizes: tuple[int, int]
    own: dict[str, Any]
    output_file: str | None = None
    plot: str | None = None


def run(world: World, handler: FailureHandler, options: LessonOptions, cli_context: Any) -> dict[str, Any]:
    """Measure; returns the completion record. Raises WrongResults, after everything is printed."""
    options = world.control.broadcast(options)
    _refuse(world, options.name)
    module = importlib.import_module(f"meshrun.jobs.bench.lessons.{options.name}.lesson")
    path = world.on_root(lambda: create_outputs(options.output_file, options.plot))
    box = open_box() if world.here.device.kind == "cuda" else None
    status = StatusLine(cli_context.columns if world.rank == 0 else None)
    try:
        context = Context(
            world,
            box,
            world.here.device.index,
            options.samples,
            options.check,
            *options.sizes,
            options.own,
            status.show,
        )
        lesson: Lesson = module.measure(context)
    finally:
        if box is not None:
            box.close()
    if world.rank == 0:
        status.clear()
        print_table(show.text(lesson), text_stream(path))
        if path is not None:
            text = show.record(lesson, recorded_environment(environment()))
            write_record(path, text)
        if options.plot:
            show.draw(lesson, options.plot)
    if world.control.broadcast(not any(table.rows for table in lesson.tables)):
        raise UserError(f"{options.name}: nothing was measured", hint="smaller sizes", everywhere=True)
    mismatches = world.control.broadcast(lesson.mismatches)
    if mismatches:
        raise WrongResults(f"{options.name}: " + "; ".join(mismatches[:4]), everywhere=True)
    return {"command": "bench memory", "lesson": options.name, "ranks": world.size}


def _refuse(world: World, name: str) -> None:
    if world.here.device.kind != "cuda" and name in GPU_ONLY:
        raise NeedsGpu(
            f"bench memory {name} needs a GPU, and this is a CPU",
            hint="meshrun doctor lists the GPUs",
            everywhere=True,
        )
    if (world.size > 1) != (name in BETWEEN_RANKS):
        many = world.size > 1
        raise UserError(
            f"bench memory {name} measures {'one GPU' if many else 'between ranks'}",
            got=f"{world.size} rank{'s'[:many]}",
            expected="one rank" if many else None,
            hint=f"meshrun {'' if many else '-n 2 '}bench memory {name}",
            everywhere=True,
        )
